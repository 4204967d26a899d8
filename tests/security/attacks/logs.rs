//! Attacks on log and metrics: secrets in log lines, and unbounded metric series.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::json;

use super::http2::{END_HEADERS, END_STREAM, HEADERS, Http2, get};
use crate::support::client::JSON;
use crate::support::compare::text;
use crate::support::kubelet::{Kubelet, TlsIdentity};
use crate::support::{ADMIN_TOKEN, Server, USER_TOKEN};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
/// A marker in all data that must not be logged.
const MARK: &str = "hush-0123456789abcdef";

/// CVE-2019-11250 and CVE-2020-8563 to CVE-2020-8566: tokens and the content of secrets in log lines, at any verbosity.
#[test]
fn tokens_and_secrets_are_not_logged_at_any_verbosity() {
    let mut server = Server::with_flags(&["--engine=memory", "--v=10"]);
    let mut admin = server.admin();
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa"}});
    admin.post("/api/v1/namespaces/default/serviceaccounts", &account).ok();
    let token_request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let created = admin.post("/api/v1/namespaces/default/serviceaccounts/sa/token", &token_request).ok();
    let token = text(&created, "/status/token").to_owned();
    let forged = format!("{token}{MARK}");
    for token_sent in [token.as_str(), forged.as_str(), MARK] {
        server.anonymous().with_token(Some(token_sent)).get(MAPS);
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token_sent}});
        admin.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).ok();
        let mut connection = Http2::connect(&server);
        connection.send(HEADERS, END_STREAM | END_HEADERS, 1, &get(MAPS, Some(token_sent))).unwrap();
        connection.receive().unwrap();
        let protocols = format!(
            "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.{}",
            URL_SAFE_NO_PAD.encode(token_sent)
        );
        let headers = [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Protocol", protocols.as_str()),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="),
        ];
        server.anonymous().request("GET", MAPS, &headers, b"");
    }
    let basic = format!("Basic {}", STANDARD.encode(format!("root:{MARK}")));
    server.anonymous().request("GET", MAPS, &[("Authorization", &basic)], b"").expect_error(403, "Forbidden");
    // Secrets that are stored, refused, patched with invalid data, and malformed.
    let secret = |name: &str, kind: &str, field: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "stringData": {field: MARK}});
    admin.post(SECRETS, &secret("good", "Opaque", "password")).ok();
    for invalid_secret in [
        secret("docker", "kubernetes.io/dockerconfigjson", ".dockerconfigjson"),
        secret("docker", "kubernetes.io/dockercfg", ".dockercfg"),
        secret("tls", "kubernetes.io/tls", "tls.crt"),
        secret("NOT A NAME", "Opaque", "a"),
    ] {
        let response = admin.post(SECRETS, &invalid_secret);
        assert_eq!(response.status, 422, "{}", response.text());
        assert!(!response.text().contains(MARK), "{}", response.text());
    }
    let truncated = format!("{{\"kind\": \"Secret\", \"data\": {{\"a\": \"{MARK}\"");
    admin.request("POST", SECRETS, &JSON, truncated.as_bytes()).expect_error(400, "BadRequest");
    admin.patch(&format!("{SECRETS}/good"), "merge", &json!({"data": {"a": {"b": MARK}}}));
    // A webhook for secrets that cannot be called.
    let hook = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "w"}, "webhooks": [{"name": "w.x.io", "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"]}],
        "sideEffects": "None", "admissionReviewVersions": ["v1"]}]});
    admin.post(WEBHOOKS, &hook).ok();
    admin.post(SECRETS, &secret("unasked", "Opaque", "password")).expect_error(500, "InternalError");
    server.assert_healthy();
    let log = server.log();
    assert!(log.contains("DEBUG"), "the log is verbose");
    let signature = token.rsplit_once('.').unwrap().1;
    let encoded = [STANDARD.encode(MARK), URL_SAFE_NO_PAD.encode(MARK)];
    let secrets = [MARK, signature, ADMIN_TOKEN, USER_TOKEN, &basic[6..], &encoded[0], &encoded[1]];
    for line in log.lines() {
        assert!(!secrets.iter().any(|secrets| line.contains(secrets)), "{line}");
    }
}

/// CVE-2020-8561: a webhook sends this server on to a place that its owner cannot reach, and reads the answer in the log.
#[test]
fn webhook_redirects_are_not_followed() {
    let redirect_target =
        Kubelet::plain("127.0.0.1".parse().unwrap(), |_, wire| wire.respond("200 OK", "", MARK.as_bytes()));
    let location = format!("Location: http://{}/latest/meta-data\r\n", redirect_target.address);
    let identity = TlsIdentity::new("h", &["127.0.0.1"]);
    let hook = Kubelet::start("127.0.0.1".parse().unwrap(), &identity, move |request, wire| {
        let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let _ = wire.read_bytes(length);
        let status = if request.path() == "/307" { "307 Temporary Redirect" } else { "302 Found" };
        wire.respond(status, &location, b"go there");
    });
    let mut server = Server::with_flags(&["--engine=memory", "--v=10"]);
    let mut admin = server.admin();
    let bundle = STANDARD.encode(identity.certificate.to_pem().unwrap());
    for path in ["302", "307"] {
        let url = format!("https://{}/{path}", hook.address);
        let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "w"}, "webhooks": [{"name": "w.x.io", "clientConfig": {"url": url, "caBundle": bundle},
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"]}]});
        admin.post(WEBHOOKS, &object).ok();
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
        admin.post(MAPS, &map).expect_error(500, "InternalError");
        admin.delete(&format!("{WEBHOOKS}/w")).ok();
    }
    assert!(
        hook.requests().len() >= 2 && redirect_target.requests().is_empty(),
        "{:?}",
        redirect_target.requests()
    );
    assert!(!server.log().contains(MARK));
    server.assert_healthy();
}

/// CVE-2020-8552: a label of a metric that clients choose, and so a series in memory for each of their requests.
#[test]
fn requests_add_no_metric_series() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    // The metrics page itself is counted from the second request on.
    admin.get("/metrics");
    let mut send_odd_requests = |start: usize| {
        for number in start..start + 50 {
            let agent = format!("agent-{number}");
            let media = format!("application/odd-{number}");
            admin.request(
                "GET",
                &format!("{MAPS}/name-{number}"),
                &[("User-Agent", &agent), ("Accept", &media)],
                b"",
            );
            admin.request("POST", MAPS, &[("Content-Type", &media), ("X-Forwarded-For", &agent)], b"{}");
            admin.get(&format!("/apis/group-{number}/v1/things"));
            admin.get(&format!("/path-{number}/below"));
            admin.get(&format!("/api/v1/namespaces/ns-{number}/things-{number}/x/part-{number}"));
            admin.request(&format!("VERB{number}"), MAPS, &[], b"");
            admin.request("GET", MAPS, &[("Impersonate-User", &agent)], b"");
            server.anonymous().with_token(Some(&agent)).get(MAPS);
        }
        let page = admin.get("/metrics").text();
        assert!(!page.contains("agent-") && !page.contains("group-") && !page.contains("odd-"), "{page}");
        page.lines().filter(|line| !line.starts_with('#')).count()
    };
    let (first, second) = (send_odd_requests(0), send_odd_requests(1_000));
    assert_eq!(first, second, "series before and after");
    server.assert_healthy();
}
