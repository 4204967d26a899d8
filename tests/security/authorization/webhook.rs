//! Authorization webhooks: decisions over mutual TLS, failures, configuration files and match conditions.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use pilothouse_types::lock::Lock;
use serde_json::{Value, json};

use super::{MAPS, alice};
use crate::support::compare::text;
use crate::support::kubelet::{Kubelet, TlsIdentity, Wire};
use crate::support::server::temp_directory;
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The reply of a webhook to the spec of a review.
type ReplyFunction = dyn Fn(&Value) -> Reply + Send + Sync;

enum Reply {
    /// A review with this status.
    Status(Value),
    /// This status line and body.
    Raw(&'static str, &'static str),
    /// No response.
    Silence,
}

/// A webhook that records its reviews.
struct Webhook {
    server: Kubelet,
    reviews: Arc<Lock<Vec<Value>>>,
    identity: TlsIdentity,
}

fn read_body(wire: &mut Wire, length: usize) -> Value {
    serde_json::from_slice(&wire.read_bytes(length).expect("a body")).expect("JSON")
}

impl Webhook {
    fn start(reply: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Webhook {
        let identity = TlsIdentity::new("webhook.test", &["127.0.0.1"]);
        let reviews = Arc::<Lock<Vec<Value>>>::default();
        let (recorded, reply): (_, Arc<ReplyFunction>) = (Arc::clone(&reviews), Arc::new(reply));
        let server = Kubelet::start(LOOPBACK, &identity, move |request, wire| {
            let length =
                request.header("content-length").and_then(|text| text.parse().ok()).expect("a length");
            let review = read_body(wire, length);
            recorded.lock().push(review.clone());
            match reply(&review["spec"]) {
                Reply::Status(status) => {
                    let (kind, version) = (&review["kind"], &review["apiVersion"]);
                    let response = json!({"kind": kind, "apiVersion": version, "status": status});
                    wire.respond("200 OK", "", response.to_string().as_bytes());
                }
                Reply::Raw(status, body) => wire.respond(status, "", body.as_bytes()),
                Reply::Silence => wire.wait_for_disconnect(),
            }
        });
        Webhook { server, reviews, identity }
    }

    /// The reviews of this user.
    fn reviews_of(&self, user: &str) -> Vec<Value> {
        let reviews = self.reviews.lock();
        reviews.iter().filter(|review| review["spec"]["user"] == user).cloned().collect()
    }

    /// A kubeconfig with the address and CA of the webhook and a client certificate.
    fn kubeconfig(&self, folder: &Path, name: &str) -> String {
        let (authority, _) = self.identity.write(folder, name);
        let (certificate, key) =
            TlsIdentity::new("the-api-server", &[]).write(folder, &format!("{name}-client"));
        let path = folder.join(format!("{name}.kubeconfig"));
        let (authority, certificate, key) = (authority.display(), certificate.display(), key.display());
        let address = self.server.address;
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: k, cluster: {{server: 'https://{address}/authorize', certificate-authority: {authority}}}}}]\n\
             users: [{{name: u, user: {{client-certificate: {certificate}, client-key: {key}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n"
        );
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn allowed() -> Reply {
    Reply::Status(json!({"allowed": true, "reason": "because"}))
}

fn map_path(name: &str) -> String {
    format!("{MAPS}/{name}")
}

#[test]
fn authorization_webhook_decides_and_is_cached() {
    let webhook = Webhook::start(|spec| match spec["resourceAttributes"]["name"].as_str() {
        Some("allowed") => allowed(),
        Some("denied") => Reply::Status(json!({"allowed": false, "denied": true, "reason": "never"})),
        Some("both") => Reply::Status(json!({"allowed": true, "denied": true, "reason": "sure"})),
        Some("lie") => Reply::Raw("200 OK", r#"{"kind":"Pod","apiVersion":"v1","status":{"allowed":true}}"#),
        Some("nonsense") => Reply::Raw("200 OK", "yes"),
        Some("odd") => Reply::Raw("200 OK", r#"{"status":{"allowed":"true"}}"#),
        Some("refused") => Reply::Raw("403 Forbidden", r#"{"status":{"allowed":true}}"#),
        _ => Reply::Status(json!({"allowed": false})),
    });
    let home = temp_directory();
    let file = format!("--authorization-webhook-config-file={}", webhook.kubeconfig(home.path(), "w"));
    let server = Server::with_flags(&[
        "--engine=memory",
        "--authorization-mode=Webhook,RBAC",
        "--authorization-webhook-version=v1",
        &file,
    ]);
    let mut alice = alice(&server);
    // Allowed, but not found.
    assert_eq!(alice.get(&map_path("allowed")).status, 404);
    assert_eq!(alice.get(&map_path("allowed")).status, 404);
    assert_eq!(webhook.reviews_of("alice").len(), 1, "the second decision is cached");
    let review = webhook.reviews_of("alice").remove(0);
    assert_eq!(review["apiVersion"], "authorization.k8s.io/v1");
    assert_eq!(
        review["spec"],
        json!({
            "user": "alice", "uid": "uid-alice", "groups": ["devs", "testers", "system:authenticated"],
            "resourceAttributes": {"namespace": "default", "verb": "get", "version": "v1",
                "resource": "configmaps", "name": "allowed"},
        })
    );
    assert_eq!(
        webhook.server.last_request().client.as_deref(),
        Some("the-api-server"),
        "the server presents its client certificate"
    );
    let status = alice.get(&map_path("denied")).expect_error(403, "Forbidden");
    assert!(text(&status, "/message").ends_with(": never"), "{status}");
    let status = alice.get(&map_path("nobody")).expect_error(403, "Forbidden");
    assert!(text(&status, "/message").ends_with("in the namespace \"default\""), "{status}");
    for object_name in ["both", "lie", "nonsense", "odd", "refused"] {
        assert_eq!(alice.get(&map_path(object_name)).status, 500, "{object_name}");
    }
    // The cache key includes the verb.
    assert_eq!(alice.delete(&map_path("allowed")).status, 404);
    assert_eq!(webhook.reviews_of("alice").last().unwrap()["spec"]["resourceAttributes"]["verb"], "delete");

    // RBAC decides what the webhook leaves open; system:masters is never reviewed.
    let mut admin = server.admin();
    admin.get("/api/v1/namespaces").ok();
    assert!(webhook.reviews_of("admin").is_empty());
    let metrics = admin.get("/metrics").text();
    for line in [
        "apiserver_authorization_webhook_evaluations_total{name=\"default\",result=\"success\"} 5",
        "apiserver_authorization_webhook_evaluations_total{name=\"default\",result=\"error\"} 4",
        "apiserver_authorization_webhook_evaluations_fail_open_total{name=\"default\",result=\"error\"} 4",
        "apiserver_authorization_webhook_duration_seconds_count{name=\"default\",result=\"success\"} 5",
        "apiserver_authorization_decisions_total{decision=\"denied\",name=\"default\",type=\"Webhook\"} 2",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
}

#[test]
fn authorization_webhook_with_untrusted_certificate_fails() {
    let webhook = Webhook::start(|_| allowed());
    let home = temp_directory();
    let file = webhook.kubeconfig(home.path(), "w");
    // The CA of another server.
    TlsIdentity::new("another.test", &[]).write(home.path(), "w");
    let file = format!("--authorization-webhook-config-file={file}");
    let server = Server::with_flags(&["--engine=memory", "--authorization-mode=Webhook", &file]);
    assert_eq!(alice(&server).get(MAPS).status, 500);
    assert!(webhook.reviews_of("alice").is_empty());
}

fn webhook_entry(name: &str, kubeconfig: &str, rest: &str) -> String {
    format!(
        "- type: Webhook\n  name: {name}\n  webhook:\n    subjectAccessReviewVersion: v1beta1\n    connectionInfo: \
         {{type: KubeConfigFile, kubeConfigFile: {kubeconfig}}}\n{rest}"
    )
}

const CONFIG_HEADER: &str =
    "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n";

fn get(client: &mut Client, name: &str) -> u16 {
    client.get(&map_path(name)).status
}

#[test]
fn authorization_config_lists_ordered_authorizers_and_reloads() {
    let hanging_webhook = Webhook::start(|spec| match spec["resourceAttributes"]["name"].as_str() {
        Some("slow" | "slower") => Reply::Silence,
        _ => Reply::Status(json!({"allowed": false})),
    });
    let allowing_webhook = Webhook::start(|_| allowed());
    let home = temp_directory();
    let (first, second) = (
        hanging_webhook.kubeconfig(home.path(), "first"),
        allowing_webhook.kubeconfig(home.path(), "second"),
    );
    let file = home.path().join("authorization.yaml");
    let denying = webhook_entry("careful.test", &first, "    timeout: 2s\n    failurePolicy: Deny\n");
    let allowing = webhook_entry("knowing.test", &second, "    timeout: 10s\n    failurePolicy: NoOpinion\n");
    let roles = "- {type: RBAC, name: rbac}\n";
    fs::write(&file, format!("{CONFIG_HEADER}{denying}{allowing}{roles}")).unwrap();
    let flag = format!("--authorization-config={}", file.display());
    let server = Server::with_flags(&["--engine=memory", &flag]);
    let (mut alice, mut admin) = (alice(&server), server.admin());
    assert_eq!(get(&mut alice, "a"), 404, "the second one allows it");
    let review = allowing_webhook.reviews_of("alice").remove(0);
    assert_eq!(review["apiVersion"], "authorization.k8s.io/v1beta1");
    assert_eq!(review["spec"]["group"], json!(["devs", "testers", "system:authenticated"]));
    assert_eq!(get(&mut alice, "slow"), 500, "the first one hangs, and the second one is not called");
    assert_eq!(allowing_webhook.reviews_of("alice").len(), 1);
    let metrics = admin.get("/metrics").text();
    for line in [
        "apiserver_authorization_webhook_evaluations_total{name=\"careful.test\",result=\"timeout\"} 1",
        "apiserver_authorization_decisions_total{decision=\"allowed\",name=\"knowing.test\",type=\"Webhook\"} 1",
        "apiserver_authorization_config_controller_automatic_reloads_total{apiserver_id_hash=\"\",status=\"success\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }

    // Invalid files are ignored; then the first webhook may fail open.
    let write_config = |text: &str, expected: &str| {
        // A change is noticed by length and time, so writes must be apart by the clock resolution.
        thread::sleep(Duration::from_millis(20));
        fs::write(&file, text).unwrap();
        let counted = |metrics: &str| metrics.lines().any(|line| line.starts_with(expected));
        poll(TIMEOUT, || counted(&server.admin().get("/metrics").text()).then_some(()))
            .expect("the file is read");
    };
    let reloads =
        "apiserver_authorization_config_controller_automatic_reloads_total{apiserver_id_hash=\"\",status=";
    write_config("authorizers: nonsense", &format!("{reloads}\"failure\"}} 1"));
    assert_eq!(get(&mut alice, "b"), 404, "the old ones still decide");
    write_config(&format!("{CONFIG_HEADER}{allowing}"), &format!("{reloads}\"failure\"}} 2"));
    assert!(server.log().contains("missing required types: [RBAC]"), "{}", server.log());
    let ignoring = denying.replace("Deny", "NoOpinion");
    write_config(
        &format!("{CONFIG_HEADER}{ignoring}{allowing}{roles}"),
        &format!("{reloads}\"success\"}} 2"),
    );
    assert_eq!(get(&mut alice, "slower"), 404, "the second one is called");
    let open = "apiserver_authorization_webhook_evaluations_fail_open_total{name=\"careful.test\",result=\"timeout\"} 1";
    assert!(admin.get("/metrics").text().contains(open));
    write_config(&format!("{CONFIG_HEADER}{roles}"), &format!("{reloads}\"success\"}} 3"));
    assert_eq!(get(&mut alice, "c"), 403);
}

#[test]
fn start_refuses_invalid_authorization_config() {
    let home = temp_directory();
    let file = home.path().join("authorization.yaml");
    let flag = format!("--authorization-config={}", file.display());
    let start_failure = |text: &str, flags: &[&str]| {
        fs::write(&file, text).unwrap();
        let data = home.path().join("data");
        let flags: Vec<&str> = ["--engine=memory", &flag].into_iter().chain(flags.iter().copied()).collect();
        let refusal = Server::try_start_in(&data, &flags).err().expect("it does not start");
        assert!(!refusal.status.success());
        refusal.stderr
    };
    let roles = format!("{CONFIG_HEADER}- {{type: RBAC, name: rbac}}\n");
    let message = start_failure(&roles, &["--authorization-mode=RBAC"]);
    assert!(message.contains("cannot be used with") && message.contains("--authorization-mode"), "{message}");
    let message = start_failure(&roles, &["--authorization-webhook-cache-authorized-ttl=1s"]);
    assert!(message.contains("cannot be used with"), "{message}");
    let message = start_failure(&format!("{CONFIG_HEADER}  []"), &[]);
    assert!(message.contains("at least one authorization mode must be defined"), "{message}");
    let rest = "    timeout: 1s\n    failurePolicy: Deny\n";
    let message =
        start_failure(&format!("{CONFIG_HEADER}{}", webhook_entry("w", "/nowhere/at/all", rest)), &[]);
    assert!(message.contains("/nowhere/at/all"), "{message}");
    let conditions = "    matchConditions: [{expression: request.user}]\n    matchConditionSubjectAccessReviewVersion: v1\n";
    let expression = start_failure(
        &format!("{CONFIG_HEADER}{}", webhook_entry("w", "/x", &format!("{rest}{conditions}"))),
        &[],
    );
    assert!(expression.contains("must evaluate to bool but got string"), "{expression}");
}

#[test]
fn authorization_webhook_match_conditions_filter_requests() {
    let webhook = Webhook::start(|_| allowed());
    let home = temp_directory();
    let kubeconfig = webhook.kubeconfig(home.path(), "w");
    let file = home.path().join("authorization.yaml");
    let conditions = "    timeout: 5s
    matchConditionSubjectAccessReviewVersion: v1
    matchConditions:
    - expression: \"has(request.resourceAttributes) && 'devs' in request.groups\"
    - expression: \"request.resourceAttributes.name != 'broken' || request.resourceAttributes.fieldSelector.requirements.size() == 0\"
    - expression: \"request.resourceAttributes.name != 'secret'\"
";
    let roles = "- {type: RBAC, name: rbac}\n";
    let start_with_policy = |policy: &str| {
        let rest = format!("{conditions}    failurePolicy: {policy}\n");
        fs::write(&file, format!("{CONFIG_HEADER}{}{roles}", webhook_entry("some.test", &kubeconfig, &rest)))
            .unwrap();
        Server::with_flags(&["--engine=memory", &format!("--authorization-config={}", file.display())])
    };
    let server = start_with_policy("Deny");
    let mut client = alice(&server);
    assert_eq!(get(&mut client, "a"), 404, "all conditions hold, and the webhook allows it");
    assert_eq!(webhook.reviews_of("alice").len(), 1);
    assert_eq!(get(&mut client, "secret"), 403, "one does not hold: nobody else allows it");
    assert_eq!(client.get("/metrics").status, 403, "no resource");
    assert_eq!(get(&mut client, "broken"), 500, "what cannot be evaluated denies");
    assert_eq!(webhook.reviews_of("alice").len(), 1, "the webhook was asked nothing of that");
    let metrics = server.admin().get("/metrics").text();
    let name = "apiserver_authorization_match_condition";
    for line in [
        format!("{name}_exclusions_total{{name=\"some.test\",type=\"Webhook\"}} 2"),
        format!("{name}_evaluation_errors_total{{name=\"some.test\",type=\"Webhook\"}} 1"),
        format!("{name}_evaluation_seconds_count{{name=\"some.test\",type=\"Webhook\"}} 4"),
    ] {
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
    let server = start_with_policy("NoOpinion");
    // An evaluation error with NoOpinion is reported unless another authorizer allows the request.
    let status = get(&mut alice(&server), "broken");
    assert_eq!(status, 500);
    assert_eq!(webhook.reviews_of("alice").len(), 1, "nor of this");
}
