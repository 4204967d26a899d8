"""The flow of a controller's test: owners and dependents, and a namespace that goes."""

import sys
import time

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException


def gone(read, *where):
    """Waits until nothing is there."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            read(*where)
        except ApiException as error:
            assert error.status == 404, error
            return
        time.sleep(0.01)
    raise AssertionError(f"{where} is still there")


def make(core, name, owner=None):
    references = None
    if owner is not None:
        references = [
            client.V1OwnerReference(
                api_version="v1",
                kind="ConfigMap",
                name=owner.metadata.name,
                uid=owner.metadata.uid,
                block_owner_deletion=True,
            )
        ]
    body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, owner_references=references))
    return core.create_namespaced_config_map("default", body)


def main():
    config.load_kube_config(sys.argv[1])
    core = client.CoreV1Api()
    for policy in ["Background", "Foreground", "Orphan"]:
        name = policy.lower()
        make(core, f"{name}-child", make(core, name))
        core.delete_namespaced_config_map(name, "default", propagation_policy=policy)
        gone(core.read_namespaced_config_map, name, "default")
    gone(core.read_namespaced_config_map, "background-child", "default")
    gone(core.read_namespaced_config_map, "foreground-child", "default")
    orphan = core.read_namespaced_config_map("orphan-child", "default")
    assert not orphan.metadata.owner_references, orphan

    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name="short")))
    core.create_namespaced_config_map("short", client.V1ConfigMap(metadata=client.V1ObjectMeta(name="a")))
    core.delete_namespace("short")
    gone(core.read_namespace, "short")


main()
