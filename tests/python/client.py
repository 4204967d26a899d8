"""The Python client against a running server. Ends with status 0 when everything was as expected.

Usage: client.py KUBECONFIG
"""

import base64
import sys

from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException


def refused(code, call, *arguments, **options):
    """The refusal of a call that must be refused with this code."""
    try:
        call(*arguments, **options)
    except ApiException as error:
        assert error.status == code, f"wanted {code}, got {error.status}: {error.body}"
        return error
    raise AssertionError(f"wanted {code}, but it was accepted")


def objects_live_and_die(core):
    body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="a", labels={"l": "1"}), data={"k": "1"})
    made = core.create_namespaced_config_map("default", body)
    assert made.metadata.uid and made.metadata.resource_version
    refused(409, core.create_namespaced_config_map, "default", body)
    made.data = {"k": "2"}
    changed = core.replace_namespaced_config_map("a", "default", made)
    assert changed.data == {"k": "2"}
    made.data = {"k": "3"}
    refused(409, core.replace_namespaced_config_map, "a", "default", made)
    core.create_namespaced_config_map(
        "default", client.V1ConfigMap(metadata=client.V1ObjectMeta(name="dry")), dry_run="All"
    )
    refused(404, core.read_namespaced_config_map, "dry", "default")
    listed = core.list_namespaced_config_map("default", label_selector="l=1", limit=1)
    assert [item.metadata.name for item in listed.items] == ["a"]
    core.delete_namespaced_config_map("a", "default")
    refused(404, core.read_namespaced_config_map, "a", "default")


def bytes_and_defaults_come_back(core, apps, batch):
    secret = client.V1Secret(
        metadata=client.V1ObjectMeta(name="s"), data={"b": base64.b64encode(b"\x00\xff").decode()}
    )
    core.create_namespaced_secret("default", secret)
    back = core.read_namespaced_secret("s", "default")
    assert base64.b64decode(back.data["b"]) == b"\x00\xff" and back.type == "Opaque"

    template = client.V1PodTemplateSpec(
        metadata=client.V1ObjectMeta(labels={"app": "d"}),
        spec=client.V1PodSpec(containers=[client.V1Container(name="c", image="example.com/app:1")]),
    )
    deployment = client.V1Deployment(
        metadata=client.V1ObjectMeta(name="d"),
        spec=client.V1DeploymentSpec(
            selector=client.V1LabelSelector(match_labels={"app": "d"}), template=template
        ),
    )
    made = apps.create_namespaced_deployment("default", deployment)
    assert made.spec.replicas == 1 and made.spec.strategy.type == "RollingUpdate"
    template.spec.restart_policy = "Never"
    job = client.V1Job(metadata=client.V1ObjectMeta(name="j"), spec=client.V1JobSpec(template=template))
    made = batch.create_namespaced_job("default", job)
    assert made.spec.completions == 1 and made.spec.backoff_limit == 6

    service = client.V1Service(
        metadata=client.V1ObjectMeta(name="w"),
        spec=client.V1ServiceSpec(selector={"app": "d"}, ports=[client.V1ServicePort(port=80)]),
    )
    assert core.create_namespaced_service("default", service).spec.cluster_ip


def mistakes_are_named(core):
    wrong = client.V1Pod(
        metadata=client.V1ObjectMeta(name="p"),
        spec=client.V1PodSpec(containers=[client.V1Container(name="Not A Name", image="i")]),
    )
    error = refused(422, core.create_namespaced_pod, "default", wrong)
    assert "spec.containers[0].name" in error.body, error.body
    unknown = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "u"}, "unknown": 1}
    error = refused(400, core.create_namespaced_config_map, "default", unknown, field_validation="Strict")
    assert 'unknown field \\"unknown\\"' in error.body, error.body


def a_watch_tells_what_happens(core):
    version = core.list_namespaced_config_map("default").metadata.resource_version
    for number in range(3):
        body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name=f"w{number}"))
        core.create_namespaced_config_map("default", body)
    core.delete_namespaced_config_map("w1", "default")
    told = []
    stream = watch.Watch().stream(
        core.list_namespaced_config_map, "default", resource_version=version, timeout_seconds=60
    )
    for event in stream:
        told.append((event["type"], event["object"].metadata.name))
        if len(told) == 4:
            break
    assert told == [("ADDED", "w0"), ("ADDED", "w1"), ("ADDED", "w2"), ("DELETED", "w1")], told


def any_kind_is_found_by_discovery(api):
    found = dynamic.DynamicClient(api).resources.get(api_version="batch/v1", kind="CronJob")
    body = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "c"},
        "spec": {
            "schedule": "*/5 * * * *",
            "jobTemplate": {
                "spec": {
                    "template": {
                        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}
                    }
                }
            },
        },
    }
    made = found.create(body=body, namespace="default")
    assert made.spec.concurrencyPolicy == "Allow"
    assert [item.metadata.name for item in found.get(namespace="default").items] == ["c"]


def main():
    config.load_kube_config(config_file=sys.argv[1])
    api = client.ApiClient()
    core, apps, batch = client.CoreV1Api(api), client.AppsV1Api(api), client.BatchV1Api(api)
    assert client.VersionApi(api).get_code().minor == "33"
    objects_live_and_die(core)
    bytes_and_defaults_come_back(core, apps, batch)
    mistakes_are_named(core)
    a_watch_tells_what_happens(core)
    any_kind_is_found_by_discovery(api)


main()
