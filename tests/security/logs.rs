//! What the log and the metrics keep of requests.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::json;

use super::http2::{END_HEADERS, END_STREAM, HEADERS, Http2, get};
use super::support::client::JSON;
use super::support::compare::text;
use super::support::kubelet::{Kubelet, Papers};
use super::support::{ADMIN_TOKEN, Server, USER_TOKEN};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
/// In everything that must not be logged.
const MARK: &str = "hush-0123456789abcdef";

/// CVE-2019-11250 and CVE-2020-8563 to CVE-2020-8566: tokens and the content of secrets in log lines, at any verbosity.
#[test]
fn tokens_and_secrets_are_not_logged_at_any_verbosity() {
    let mut server = Server::with(&["--engine=memory", "--v=10"]);
    let mut admin = server.admin();
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa"}});
    admin.post("/api/v1/namespaces/default/serviceaccounts", &account).ok();
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let made = admin.post("/api/v1/namespaces/default/serviceaccounts/sa/token", &request).ok();
    let token = text(&made, "/status/token").to_owned();
    let forged = format!("{token}{MARK}");
    for shown in [token.as_str(), forged.as_str(), MARK] {
        server.anonymous().with_token(Some(shown)).get(MAPS);
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": shown}});
        admin.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).ok();
        let mut connection = Http2::connect(&server);
        connection.send(HEADERS, END_STREAM | END_HEADERS, 1, &get(MAPS, Some(shown))).unwrap();
        connection.receive().unwrap();
        let protocols = format!(
            "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.{}",
            URL_SAFE_NO_PAD.encode(shown)
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
    server.anonymous().request("GET", MAPS, &[("Authorization", &basic)], b"").refused(403, "Forbidden");
    // Secrets that are stored, refused, patched wrongly and no JSON at all.
    let secret = |name: &str, kind: &str, field: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "stringData": {field: MARK}});
    admin.post(SECRETS, &secret("good", "Opaque", "password")).ok();
    for wrong in [
        secret("docker", "kubernetes.io/dockerconfigjson", ".dockerconfigjson"),
        secret("docker", "kubernetes.io/dockercfg", ".dockercfg"),
        secret("tls", "kubernetes.io/tls", "tls.crt"),
        secret("NOT A NAME", "Opaque", "a"),
    ] {
        let answer = admin.post(SECRETS, &wrong);
        assert_eq!(answer.status, 422, "{}", answer.text());
        assert!(!answer.text().contains(MARK), "{}", answer.text());
    }
    let cut = format!("{{\"kind\": \"Secret\", \"data\": {{\"a\": \"{MARK}\"");
    admin.request("POST", SECRETS, &JSON, cut.as_bytes()).refused(400, "BadRequest");
    admin.patch(&format!("{SECRETS}/good"), "merge", &json!({"data": {"a": {"b": MARK}}}));
    // A webhook that cannot be asked about a secret.
    let hook = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "w"}, "webhooks": [{"name": "w.x.io", "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"]}],
        "sideEffects": "None", "admissionReviewVersions": ["v1"]}]});
    admin.post(WEBHOOKS, &hook).ok();
    admin.post(SECRETS, &secret("unasked", "Opaque", "password")).refused(500, "InternalError");
    server.unharmed();
    let log = server.log();
    assert!(log.contains("DEBUG"), "the log is verbose");
    let signature = token.rsplit_once('.').unwrap().1;
    let encoded = [STANDARD.encode(MARK), URL_SAFE_NO_PAD.encode(MARK)];
    let hidden = [MARK, signature, ADMIN_TOKEN, USER_TOKEN, &basic[6..], &encoded[0], &encoded[1]];
    for line in log.lines() {
        assert!(!hidden.iter().any(|hidden| line.contains(hidden)), "{line}");
    }
}

/// CVE-2020-8561: a webhook sends this server on to a place that its owner cannot reach, and reads the answer in the log.
#[test]
fn redirects_of_webhooks_are_not_followed() {
    let inner =
        Kubelet::plain("127.0.0.1".parse().unwrap(), |_, wire| wire.answer("200 OK", "", MARK.as_bytes()));
    let place = format!("Location: http://{}/latest/meta-data\r\n", inner.address);
    let papers = Papers::new("h", &["127.0.0.1"]);
    let hook = Kubelet::start("127.0.0.1".parse().unwrap(), &papers, move |seen, wire| {
        let length = seen.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let _ = wire.exactly(length);
        let status = if seen.path() == "/307" { "307 Temporary Redirect" } else { "302 Found" };
        wire.answer(status, &place, b"go there");
    });
    let mut server = Server::with(&["--engine=memory", "--v=10"]);
    let mut admin = server.admin();
    let bundle = STANDARD.encode(papers.certificate.to_pem().unwrap());
    for path in ["302", "307"] {
        let url = format!("https://{}/{path}", hook.address);
        let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "w"}, "webhooks": [{"name": "w.x.io", "clientConfig": {"url": url, "caBundle": bundle},
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"]}]});
        admin.post(WEBHOOKS, &object).ok();
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
        admin.post(MAPS, &map).refused(500, "InternalError");
        admin.delete(&format!("{WEBHOOKS}/w")).ok();
    }
    assert!(hook.seen().len() >= 2 && inner.seen().is_empty(), "{:?}", inner.seen());
    assert!(!server.log().contains(MARK));
    server.unharmed();
}

/// CVE-2020-8552: a label of a metric that clients choose, and so a series in memory for each of their requests.
#[test]
fn requests_add_no_series_of_their_own() {
    let mut server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    // The page itself is counted from the second time on.
    admin.get("/metrics");
    let mut odd = |from: usize| {
        for at in from..from + 50 {
            let agent = format!("agent-{at}");
            let media = format!("application/odd-{at}");
            admin.request(
                "GET",
                &format!("{MAPS}/name-{at}"),
                &[("User-Agent", &agent), ("Accept", &media)],
                b"",
            );
            admin.request("POST", MAPS, &[("Content-Type", &media), ("X-Forwarded-For", &agent)], b"{}");
            admin.get(&format!("/apis/group-{at}/v1/things"));
            admin.get(&format!("/path-{at}/below"));
            admin.get(&format!("/api/v1/namespaces/ns-{at}/things-{at}/x/part-{at}"));
            admin.request(&format!("VERB{at}"), MAPS, &[], b"");
            admin.request("GET", MAPS, &[("Impersonate-User", &agent)], b"");
            server.anonymous().with_token(Some(&agent)).get(MAPS);
        }
        let page = admin.get("/metrics").text();
        assert!(!page.contains("agent-") && !page.contains("group-") && !page.contains("odd-"), "{page}");
        page.lines().filter(|line| !line.starts_with('#')).count()
    };
    let (first, second) = (odd(0), odd(1_000));
    assert_eq!(first, second, "series before and after");
    server.unharmed();
}
