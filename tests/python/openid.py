"""A provider of OpenID Connect, and a user who logs in there. The provider is the package oidc-provider-mock, over TLS.

Usage: openid.py serve PORT CERTIFICATE KEY            prints "ready", serves until its input ends; each start has a new key
       openid.py login ISSUER CERTIFICATE CLIENT USER  prints the ID token of a login with an authorization code
"""

import os
import ssl
import sys
import threading
from urllib.parse import parse_qs, urlparse

CLAIMS_TOKEN = "t"

USERS = {
    "ann": {"email": "ann@example.com", "email_verified": True, "groups": ["devs", "testers"], "tier": "gold"},
    "bob": {"email": "bob@example.com", "email_verified": False, "groups": "devs", "tier": "gold"},
    "cat": {"groups": ["devs"]},
    "far": {
        "tier": "gold",
        "_claim_names": {"groups": "src"},
        "_claim_sources": {"src": {"endpoint": "https://127.0.0.1:1/groups", "access_token": CLAIMS_TOKEN}},
    },
}


def with_claims(app, issuer, certificate):
    """The provider with an endpoint of distributed claims: those of ann, for whoever has the access token."""

    def respond(environ, start_response):
        if environ["PATH_INFO"] != "/claims":
            return app(environ, start_response)
        if environ.get("HTTP_AUTHORIZATION") != f"Bearer {CLAIMS_TOKEN}":
            start_response("403 Forbidden", [("Content-Length", "0")])
            return []
        token = id_token(issuer, certificate, "pilothouse", "ann").encode()
        start_response("200 OK", [("Content-Type", "application/jwt"), ("Content-Length", str(len(token)))])
        return [token]

    return respond


def serve(port, certificate, key):
    import oidc_provider_mock
    import werkzeug.serving

    issuer = f"https://127.0.0.1:{port}"
    source = {"endpoint": f"{issuer}/claims", "access_token": CLAIMS_TOKEN}
    USERS["near"] = USERS["far"] | {"_claim_sources": {"src": source}}
    users = [oidc_provider_mock.User(sub=name, claims=claims) for name, claims in USERS.items()]
    server = werkzeug.serving.make_server(
        "127.0.0.1",
        int(port),
        with_claims(oidc_provider_mock.app(user_claims=users), issuer, certificate),
        threaded=True,
        ssl_context=(certificate, key),
    )

    def end():
        # Whoever started this holds the other end, also if it is killed.
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()
    print("ready", flush=True)
    server.serve_forever()


def login(issuer, certificate, client, user):
    print(id_token(issuer, certificate, client, user))


def id_token(issuer, certificate, client, user):
    import httpx

    context = ssl.create_default_context(cafile=certificate)
    # The certificate vouches for itself; strict checks want an authority of its own.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    with httpx.Client(verify=context, timeout=30, trust_env=False) as http:
        provider = http.get(f"{issuer}/.well-known/openid-configuration").raise_for_status().json()
        assert provider["issuer"] == issuer, provider
        back = "https://client.example/back"
        asked = {
            "response_type": "code",
            "client_id": client,
            "redirect_uri": back,
            "scope": "openid email profile",
            "state": "s",
        }
        answer = http.post(provider["authorization_endpoint"], params=asked, data={"sub": user})
        assert answer.status_code == 302, answer.text
        code = parse_qs(urlparse(answer.headers["location"]).query)["code"][0]
        granted = http.post(
            provider["token_endpoint"],
            data={"grant_type": "authorization_code", "code": code, "redirect_uri": back},
            auth=(client, "secret"),
        )
        return granted.raise_for_status().json()["id_token"]


if __name__ == "__main__":
    {"serve": serve, "login": login}[sys.argv[1]](*sys.argv[2:])
