//! Another server decides: over TLS, with certificates on both sides, and whatever it does.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use pilothouse_types::lock::Lock;
use serde_json::{Value, json};

use super::support::compare::text;
use super::support::kubelet::{Kubelet, Papers, Wire};
use super::support::server::directory;
use super::support::wait::{CAP, poll};
use super::support::{Client, Server};
use super::{MAPS, alice};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// What a webhook answers to what it is asked about.
type Opinion = dyn Fn(&Value) -> Reply + Send + Sync;

enum Reply {
    /// This status of the review.
    Status(Value),
    /// This answer.
    Raw(&'static str, &'static str),
    /// Nothing, for as long as the asker waits.
    Silence,
}

/// A webhook that remembers what it was asked.
struct Webhook {
    server: Kubelet,
    asked: Arc<Lock<Vec<Value>>>,
    papers: Papers,
}

fn read_body(wire: &mut Wire, length: usize) -> Value {
    serde_json::from_slice(&wire.exactly(length).expect("a body")).expect("JSON")
}

impl Webhook {
    fn start(opinion: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Webhook {
        let papers = Papers::new("webhook.test", &["127.0.0.1"]);
        let asked = Arc::<Lock<Vec<Value>>>::default();
        let (remembered, opinion): (_, Arc<Opinion>) = (Arc::clone(&asked), Arc::new(opinion));
        let server = Kubelet::start(LOOPBACK, &papers, move |seen, wire| {
            let length = seen.header("content-length").and_then(|text| text.parse().ok()).expect("a length");
            let review = read_body(wire, length);
            remembered.lock().push(review.clone());
            match opinion(&review["spec"]) {
                Reply::Status(status) => {
                    let (kind, version) = (&review["kind"], &review["apiVersion"]);
                    let answer = json!({"kind": kind, "apiVersion": version, "status": status});
                    wire.answer("200 OK", "", answer.to_string().as_bytes());
                }
                Reply::Raw(status, body) => wire.answer(status, "", body.as_bytes()),
                Reply::Silence => wire.until_hung_up(),
            }
        });
        Webhook { server, asked, papers }
    }

    /// Those questions that were about this user.
    fn asked_about(&self, user: &str) -> Vec<Value> {
        let asked = self.asked.lock();
        asked.iter().filter(|review| review["spec"]["user"] == user).cloned().collect()
    }

    /// A kubeconfig that leads to it, believes it, and shows a certificate.
    fn kubeconfig(&self, folder: &Path, name: &str) -> String {
        let (authority, _) = self.papers.write(folder, name);
        let (certificate, key) = Papers::new("the-api-server", &[]).write(folder, &format!("{name}-client"));
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

fn maps(name: &str) -> String {
    format!("{MAPS}/{name}")
}

#[test]
fn a_webhook_over_tls_decides_and_is_remembered() {
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
    let home = directory();
    let file = format!("--authorization-webhook-config-file={}", webhook.kubeconfig(home.path(), "w"));
    let server = Server::with(&[
        "--engine=memory",
        "--authorization-mode=Webhook,RBAC",
        "--authorization-webhook-version=v1",
        &file,
    ]);
    let mut alice = alice(&server);
    // Allowed, and then not there.
    assert_eq!(alice.get(&maps("allowed")).status, 404);
    assert_eq!(alice.get(&maps("allowed")).status, 404);
    assert_eq!(webhook.asked_about("alice").len(), 1, "the second time it was remembered");
    let asked = webhook.asked_about("alice").remove(0);
    assert_eq!(asked["apiVersion"], "authorization.k8s.io/v1");
    assert_eq!(
        asked["spec"],
        json!({
            "user": "alice", "uid": "uid-alice", "groups": ["devs", "testers", "system:authenticated"],
            "resourceAttributes": {"namespace": "default", "verb": "get", "version": "v1",
                "resource": "configmaps", "name": "allowed"},
        })
    );
    assert_eq!(webhook.server.last().client.as_deref(), Some("the-api-server"), "it sees who asks");
    let status = alice.get(&maps("denied")).refused(403, "Forbidden");
    assert!(text(&status, "/message").ends_with(": never"), "{status}");
    let status = alice.get(&maps("nobody")).refused(403, "Forbidden");
    assert!(text(&status, "/message").ends_with("in the namespace \"default\""), "{status}");
    for doubtful in ["both", "lie", "nonsense", "odd", "refused"] {
        assert_eq!(alice.get(&maps(doubtful)).status, 500, "{doubtful}");
    }
    // Everything that matters is part of the question that is remembered.
    assert_eq!(alice.delete(&maps("allowed")).status, 404);
    assert_eq!(webhook.asked_about("alice").last().unwrap()["spec"]["resourceAttributes"]["verb"], "delete");

    // What nobody allows here, roles may; who may do everything is never asked about.
    let mut admin = server.admin();
    admin.get("/api/v1/namespaces").ok();
    assert!(webhook.asked_about("admin").is_empty());
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
fn a_webhook_that_nobody_vouches_for_is_not_believed() {
    let webhook = Webhook::start(|_| allowed());
    let home = directory();
    let file = webhook.kubeconfig(home.path(), "w");
    // Somebody else's authority.
    Papers::new("another.test", &[]).write(home.path(), "w");
    let file = format!("--authorization-webhook-config-file={file}");
    let server = Server::with(&["--engine=memory", "--authorization-mode=Webhook", &file]);
    assert_eq!(alice(&server).get(MAPS).status, 500);
    assert!(webhook.asked_about("alice").is_empty());
}

fn entry(name: &str, kubeconfig: &str, rest: &str) -> String {
    format!(
        "- type: Webhook\n  name: {name}\n  webhook:\n    subjectAccessReviewVersion: v1beta1\n    connectionInfo: \
         {{type: KubeConfigFile, kubeConfigFile: {kubeconfig}}}\n{rest}"
    )
}

const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n";

fn get(client: &mut Client, name: &str) -> u16 {
    client.get(&maps(name)).status
}

#[test]
fn a_file_names_several_who_are_asked_in_order_and_may_change() {
    let hangs = Webhook::start(|spec| match spec["resourceAttributes"]["name"].as_str() {
        Some("slow" | "slower") => Reply::Silence,
        _ => Reply::Status(json!({"allowed": false})),
    });
    let knows = Webhook::start(|_| allowed());
    let home = directory();
    let (first, second) = (hangs.kubeconfig(home.path(), "first"), knows.kubeconfig(home.path(), "second"));
    let file = home.path().join("authorization.yaml");
    let careful = entry("careful.test", &first, "    timeout: 2s\n    failurePolicy: Deny\n");
    let knowing = entry("knowing.test", &second, "    timeout: 10s\n    failurePolicy: NoOpinion\n");
    let roles = "- {type: RBAC, name: rbac}\n";
    fs::write(&file, format!("{HEAD}{careful}{knowing}{roles}")).unwrap();
    let flag = format!("--authorization-config={}", file.display());
    let server = Server::with(&["--engine=memory", &flag]);
    let (mut alice, mut admin) = (alice(&server), server.admin());
    assert_eq!(get(&mut alice, "a"), 404, "the second one allows it");
    let asked = knows.asked_about("alice").remove(0);
    assert_eq!(asked["apiVersion"], "authorization.k8s.io/v1beta1");
    assert_eq!(asked["spec"]["group"], json!(["devs", "testers", "system:authenticated"]));
    assert_eq!(get(&mut alice, "slow"), 500, "the first one hangs, and nobody else is asked");
    assert_eq!(knows.asked_about("alice").len(), 1);
    let metrics = admin.get("/metrics").text();
    for line in [
        "apiserver_authorization_webhook_evaluations_total{name=\"careful.test\",result=\"timeout\"} 1",
        "apiserver_authorization_decisions_total{decision=\"allowed\",name=\"knowing.test\",type=\"Webhook\"} 1",
        "apiserver_authorization_config_controller_automatic_reloads_total{apiserver_id_hash=\"\",status=\"success\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }

    // The first one may now be silent. What does not make sense is not used.
    let changes = |text: &str, wanted: &str| {
        // Two files of one length within the resolution of the clock would be one.
        thread::sleep(Duration::from_millis(20));
        fs::write(&file, text).unwrap();
        let counted = |metrics: &str| metrics.lines().any(|line| line.starts_with(wanted));
        poll(CAP, || counted(&server.admin().get("/metrics").text()).then_some(()))
            .expect("the file is read");
    };
    let reloads =
        "apiserver_authorization_config_controller_automatic_reloads_total{apiserver_id_hash=\"\",status=";
    changes("authorizers: nonsense", &format!("{reloads}\"failure\"}} 1"));
    assert_eq!(get(&mut alice, "b"), 404, "the old ones still decide");
    changes(&format!("{HEAD}{knowing}"), &format!("{reloads}\"failure\"}} 2"));
    assert!(server.log().contains("missing required types: [RBAC]"), "{}", server.log());
    let careless = careful.replace("Deny", "NoOpinion");
    changes(&format!("{HEAD}{careless}{knowing}{roles}"), &format!("{reloads}\"success\"}} 2"));
    assert_eq!(get(&mut alice, "slower"), 404, "the second one is asked");
    let open = "apiserver_authorization_webhook_evaluations_fail_open_total{name=\"careful.test\",result=\"timeout\"} 1";
    assert!(admin.get("/metrics").text().contains(open));
    changes(&format!("{HEAD}{roles}"), &format!("{reloads}\"success\"}} 3"));
    assert_eq!(get(&mut alice, "c"), 403);
}

#[test]
fn settings_that_make_no_sense_are_refused_at_the_start() {
    let home = directory();
    let file = home.path().join("authorization.yaml");
    let flag = format!("--authorization-config={}", file.display());
    let started = |text: &str, flags: &[&str]| {
        fs::write(&file, text).unwrap();
        let data = home.path().join("data");
        let flags: Vec<&str> = ["--engine=memory", &flag].into_iter().chain(flags.iter().copied()).collect();
        let refusal = Server::try_on(&data, &flags).err().expect("it does not start");
        assert!(!refusal.status.success());
        refusal.stderr
    };
    let roles = format!("{HEAD}- {{type: RBAC, name: rbac}}\n");
    let both = started(&roles, &["--authorization-mode=RBAC"]);
    assert!(both.contains("cannot be used with") && both.contains("--authorization-mode"), "{both}");
    let both = started(&roles, &["--authorization-webhook-cache-authorized-ttl=1s"]);
    assert!(both.contains("cannot be used with"), "{both}");
    let none = started(&format!("{HEAD}  []"), &[]);
    assert!(none.contains("at least one authorization mode must be defined"), "{none}");
    let rest = "    timeout: 1s\n    failurePolicy: Deny\n";
    let gone = started(&format!("{HEAD}{}", entry("w", "/nowhere/at/all", rest)), &[]);
    assert!(gone.contains("/nowhere/at/all"), "{gone}");
    let conditions = "    matchConditions: [{expression: request.user}]\n    matchConditionSubjectAccessReviewVersion: v1\n";
    let expression = started(&format!("{HEAD}{}", entry("w", "/x", &format!("{rest}{conditions}"))), &[]);
    assert!(expression.contains("must evaluate to bool but got string"), "{expression}");
}

#[test]
fn conditions_say_which_requests_a_webhook_is_asked_about() {
    let webhook = Webhook::start(|_| allowed());
    let home = directory();
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
    let written = |policy: &str| {
        let rest = format!("{conditions}    failurePolicy: {policy}\n");
        fs::write(&file, format!("{HEAD}{}{roles}", entry("some.test", &kubeconfig, &rest))).unwrap();
        Server::with(&["--engine=memory", &format!("--authorization-config={}", file.display())])
    };
    let server = written("Deny");
    let mut client = alice(&server);
    assert_eq!(get(&mut client, "a"), 404, "all conditions hold, and the webhook allows it");
    assert_eq!(webhook.asked_about("alice").len(), 1);
    assert_eq!(get(&mut client, "secret"), 403, "one does not hold: nobody else allows it");
    assert_eq!(client.get("/metrics").status, 403, "no resource");
    assert_eq!(get(&mut client, "broken"), 500, "what cannot be evaluated denies");
    assert_eq!(webhook.asked_about("alice").len(), 1, "the webhook was asked nothing of that");
    let metrics = server.admin().get("/metrics").text();
    let name = "apiserver_authorization_match_condition";
    for line in [
        format!("{name}_exclusions_total{{name=\"some.test\",type=\"Webhook\"}} 2"),
        format!("{name}_evaluation_errors_total{{name=\"some.test\",type=\"Webhook\"}} 1"),
        format!("{name}_evaluation_seconds_count{{name=\"some.test\",type=\"Webhook\"}} 4"),
    ] {
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
    let server = written("NoOpinion");
    // Whoever has no opinion but failed is told of, as long as nobody allows it.
    let status = get(&mut alice(&server), "broken");
    assert_eq!(status, 500);
    assert_eq!(webhook.asked_about("alice").len(), 1, "nor of this");
}
