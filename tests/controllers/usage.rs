//! The loops that count what is used, and pods that nobody can end any more.

use serde_json::{Value, json};

use super::support::{Client, Server};
use super::{becomes, gone, server};

const PODS: &str = "/api/v1/namespaces/default/pods";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

fn pod(name: &str, node: &str) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "500m"}}}]}});
    if !node.is_empty() {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

fn secret(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}})
}

fn quota(name: &str, hard: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": {"hard": hard}})
}

/// Waits until a quota says that this is used.
fn uses(client: &mut Client, name: &str, used: &Value) {
    becomes(client, &format!("{QUOTAS}/{name}"), |quota| quota["status"]["used"] == *used);
}

fn end(client: &mut Client, name: &str, phase: &str) {
    client.patch(&format!("{PODS}/{name}/status"), "merge", &json!({"status": {"phase": phase}})).ok();
}

#[test]
fn a_quota_says_what_is_used_and_gets_back_what_is_not() {
    let server = server(&[]);
    let mut client = server.admin();
    client.post(SECRETS, &secret("before")).ok();
    client.post(PODS, &pod("first", "")).ok();
    let hard =
        json!({"pods": "3", "requests.cpu": "1100m", "count/secrets": "2", "count/widgets.example.com": "1"});
    client.post(QUOTAS, &quota("q", &hard)).ok();
    let counted = |pods: &str, cpu: &str, secrets: &str| json!({"pods": pods, "requests.cpu": cpu, "count/secrets": secrets});
    uses(&mut client, "q", &counted("1", "500m", "1"));
    assert_eq!(client.get(&format!("{QUOTAS}/q")).ok()["status"]["hard"], hard);

    // Admission charges, the loop gives back: whoever is refused may come again when something went.
    client.post(PODS, &pod("second", "")).ok();
    uses(&mut client, "q", &counted("2", "1", "1"));
    assert_eq!(client.post(PODS, &pod("third", "")).status, 403);
    end(&mut client, "first", "Succeeded");
    uses(&mut client, "q", &counted("1", "500m", "1"));
    client.post(PODS, &pod("third", "")).ok();
    client.post(SECRETS, &secret("after")).ok();
    assert_eq!(client.post(SECRETS, &secret("one-more")).status, 403);
    client.delete(&format!("{SECRETS}/before")).ok();
    uses(&mut client, "q", &counted("2", "1", "1"));
    client.post(SECRETS, &secret("one-more")).ok();

    // A quota that says something else is counted anew, and what nobody may use any more is not shown.
    client
        .patch(
            &format!("{QUOTAS}/q"),
            "merge",
            &json!({"spec": {"hard": {"pods": "9", "count/secrets": null}}}),
        )
        .ok();
    uses(&mut client, "q", &json!({"pods": "2", "requests.cpu": "1"}));
    let last = client.get(&format!("{QUOTAS}/q")).ok();
    assert_eq!(last["status"]["hard"]["pods"], "9");
    assert!(last["status"]["hard"]["count/secrets"].is_null());
}

#[test]
fn a_status_that_somebody_wrote_is_put_right_in_time() {
    let server = server(&["--resource-quota-sync-period=1s"]);
    let mut client = server.admin();
    let made = client.post(QUOTAS, &quota("q", &json!({"pods": "3"}))).ok();
    uses(&mut client, "q", &json!({"pods": "0"}));
    assert_eq!(client.get(&format!("{QUOTAS}/q")).ok()["metadata"]["uid"], made["metadata"]["uid"]);
    // Without a version: who counts may write at any moment.
    let wrong = json!({"status": {"used": {"pods": "2"}}});
    client.patch(&format!("{QUOTAS}/q/status"), "merge", &wrong).ok();
    uses(&mut client, "q", &json!({"pods": "0"}));
}

#[test]
fn many_creations_and_deletions_at_once_leave_a_right_count() {
    let server = server(&[]);
    let mut client = server.admin();
    client.post(QUOTAS, &quota("q", &json!({"count/secrets": "30"}))).ok();
    uses(&mut client, "q", &json!({"count/secrets": "0"}));
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let mut client = client.again();
            scope.spawn(move || {
                for number in 0..40 {
                    let name = format!("s{worker}-{number}");
                    if client.post(SECRETS, &secret(&name)).status == 201 && number % 3 > 0 {
                        client.delete(&format!("{SECRETS}/{name}")).ok();
                    }
                }
            });
        }
    });
    let left = client.get(SECRETS).ok()["items"].as_array().unwrap().len();
    assert!(left <= 30, "{left}");
    uses(&mut client, "q", &json!({"count/secrets": left.to_string()}));
}

#[test]
fn pods_that_are_over_go_when_there_are_too_many() {
    let server = server(&["--terminated-pod-gc-threshold=1"]);
    let mut client = server.admin();
    for name in ["a", "b", "runs"] {
        client.post(PODS, &pod(name, "")).ok();
    }
    end(&mut client, "a", "Succeeded");
    end(&mut client, "b", "Failed");
    gone(&mut client, &format!("{PODS}/a"));
    assert_eq!(client.get(&format!("{PODS}/b")).status, 200);
    assert_eq!(client.get(&format!("{PODS}/runs")).status, 200);
}

#[test]
fn pods_that_nobody_ends_go() {
    let server = server(&[]);
    let mut client = server.admin();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    client.post("/api/v1/nodes", &node).ok();
    client.post(PODS, &pod("on-node", "n")).ok();
    client.post(PODS, &pod("stays", "n")).ok();
    client.delete(&format!("{PODS}/on-node")).ok();
    assert_eq!(client.get(&format!("{PODS}/on-node")).status, 200, "a node ends it");
    let taints =
        json!({"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}});
    client.patch("/api/v1/nodes/n", "merge", &taints).ok();
    gone(&mut client, &format!("{PODS}/on-node"));
    assert_eq!(client.get(&format!("{PODS}/stays")).status, 200);

    let mut held = pod("held", "");
    held["metadata"]["finalizers"] = json!(["example.com/wait"]);
    client.post(PODS, &held).ok();
    client.delete(&format!("{PODS}/held")).ok();
    becomes(&mut client, &format!("{PODS}/held"), |pod| pod["status"]["phase"] == "Failed");
}

#[test]
#[ignore = "takes the 40 s that a missing node is given"]
fn pods_of_a_node_that_is_gone_go_after_a_while() {
    let server = Server::with(&["--engine=memory", "--controllers=*"]);
    let mut client = server.admin();
    client
        .post("/api/v1/nodes", &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}))
        .ok();
    client.post(PODS, &pod("lost", "n")).ok();
    let mut watch = client.watch(PODS, "");
    assert_eq!(watch.next()["type"], "ADDED");
    client.delete("/api/v1/nodes/n").ok();
    std::thread::sleep(std::time::Duration::from_secs(38));
    assert_eq!(client.get(&format!("{PODS}/lost")).ok()["status"]["phase"], "Pending");
    let failed = watch.next();
    assert_eq!(failed["object"]["status"]["phase"], "Failed");
    let condition = &failed["object"]["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("DisruptionTarget"), &json!("DeletionByPodGC"))
    );
    gone(&mut client, &format!("{PODS}/lost"));
}
