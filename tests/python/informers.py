"""Informers of the Python client that run while the server is restarted and while its store is restored from a backup.

Usage: informers.py KUBECONFIG

For each line of standard input, waits until the cache of each informer has exactly what the server has, and prints the names, each with
its value, and how often the informers have listed. Ends with the input.
"""

import json
import logging
import sys
import time

from kubernetes import client, config
from kubernetes.informer import SharedInformer

NAMESPACE = "default"
GROUP, VERSION, PLURAL = "sea.example", "v1", "anchors"
TIMEOUT_SECONDS = 60
PAUSE_SECONDS = 0.02


class AnchorList:
    """A list of custom resources as the informer wants it: the client returns a plain dictionary."""

    def __init__(self, response):
        self.items = response["items"]
        self.metadata = client.V1ListMeta(resource_version=response["metadata"]["resourceVersion"])


def anchors(custom):
    def list_or_watch(namespace, **options):
        """
        :rtype: object
        """
        response = custom.list_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, **options)
        return response if options.get("watch") else AnchorList(response)

    return list_or_watch


class Counted:
    """An informer that counts its lists."""

    def __init__(self, api, list_or_watch):
        self.api, self.list_or_watch, self.lists = api, list_or_watch, 0

        def count(namespace, **options):
            # After a failure the client tries again without a pause.
            if "watch" in options:
                time.sleep(PAUSE_SECONDS)
            else:
                self.lists += 1
            return list_or_watch(namespace, **options)

        # There the client finds the type of the objects.
        count.__doc__ = list_or_watch.__doc__
        self.informer = SharedInformer(count, namespace=NAMESPACE)
        self.informer.start()

    def render(self, items):
        """All of each object, by its name. A list says the kind once for all of its objects."""
        rendered = {}
        for item in self.api.sanitize_for_serialization(items):
            item.pop("kind", None)
            item.pop("apiVersion", None)
            rendered[item["metadata"]["name"]] = item
        return rendered

    def wait_until_equal(self):
        listed = self.render(self.list_or_watch(NAMESPACE).items)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (cached := self.render(self.informer.cache.list())) != listed:
            assert time.monotonic() < deadline, f"cached {cached}, listed {listed}"
            time.sleep(PAUSE_SECONDS)
        values = {name: item["metadata"]["annotations"]["value"] for name, item in listed.items()}
        return {"objects": values, "lists": self.lists}


def main():
    # While the server is away, each attempt would be logged.
    logging.disable(logging.CRITICAL)
    config.load_kube_config(config_file=sys.argv[1])
    settings = client.Configuration.get_default_copy()
    settings.retries = False
    client.Configuration.set_default(settings)
    api = client.ApiClient()
    core, custom = client.CoreV1Api(api), client.CustomObjectsApi(api)
    functions = [core.list_namespaced_config_map, core.list_namespaced_secret, anchors(custom)]
    informers = [Counted(api, function) for function in functions]
    for _ in sys.stdin:
        print(json.dumps([informer.wait_until_equal() for informer in informers]), flush=True)


main()
