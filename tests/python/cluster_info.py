"""What a new node reads before it trusts anybody, verified by a library that has nothing to do with the server.

Arguments: a kubeconfig, and whether the key of a signature is the whole token or the secret part of it."""

import base64
import sys
import time

from jwcrypto import jwk, jws
from kubernetes import client, config

KUBECONFIG = "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n"


def url_safe(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signature(core, token_id, content):
    """Waits for the signature of this content by a token."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        data = core.read_namespaced_config_map("cluster-info", "kube-public").data
        detached = data.get(f"jws-kubeconfig-{token_id}")
        if data["kubeconfig"] == content and detached:
            return detached
        time.sleep(0.01)
    raise AssertionError("nobody signed")


def verify(detached, token, content):
    header, empty, mac = detached.split(".")
    assert empty == "", detached
    key = jwk.JWK(kty="oct", k=url_safe(token.encode()))
    whole = jws.JWS()
    # Whoever takes another algorithm than the one that is meant can be deceived.
    whole.allowed_algs = ["HS256"]
    whole.deserialize(".".join([header, url_safe(content.encode()), mac]))
    whole.verify(key)
    assert whole.payload == content.encode()
    return whole.jose_header


def main():
    config.load_kube_config(sys.argv[1])
    keys = {"token": "abcdef.0123456789abcdef", "secret": "0123456789abcdef"}
    key = keys.pop(sys.argv[2])
    (other_key,) = keys.values()
    core = client.CoreV1Api()
    metadata = client.V1ObjectMeta(name="bootstrap-token-abcdef")
    data = {"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"}
    secret = client.V1Secret(metadata=metadata, type="bootstrap.kubernetes.io/token", string_data=data)
    core.create_namespaced_secret("kube-system", secret)
    info = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="cluster-info"), data={"kubeconfig": KUBECONFIG})
    core.create_namespaced_config_map("kube-public", info)

    first = signature(core, "abcdef", KUBECONFIG)
    assert verify(first, key, KUBECONFIG) == {"alg": "HS256", "kid": "abcdef"}
    for token, content in [(other_key, KUBECONFIG), (key[::-1], KUBECONFIG), (key, KUBECONFIG + " ")]:
        try:
            verify(first, token, content)
        except jws.InvalidJWSSignature:
            continue
        raise AssertionError("somebody else could have signed this")

    core.patch_namespaced_config_map("cluster-info", "kube-public", {"data": {"kubeconfig": "other"}})
    deadline = time.monotonic() + 30
    while signature(core, "abcdef", "other") == first and time.monotonic() < deadline:
        time.sleep(0.01)
    verify(signature(core, "abcdef", "other"), key, "other")


main()
