//! The control loops inside the binary: namespaces really go away, and owners take their dependents along.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "controllers/accounts.rs"]
mod accounts;
#[path = "controllers/certificates.rs"]
mod certificates;
#[path = "controllers/clients.rs"]
mod clients;
#[path = "controllers/guests.rs"]
mod extra_controllers;
#[path = "controllers/large.rs"]
mod large;
#[path = "controllers/namespaces.rs"]
mod namespaces;
#[path = "controllers/others.rs"]
mod others;
#[path = "controllers/owners.rs"]
mod owners;
#[path = "controllers/rights.rs"]
mod rights;
mod support;
#[path = "controllers/usage.rs"]
mod usage;

use serde_json::{Value, json};
use support::wait::{CAP, poll};
use support::{Client, Server};

/// A server with all loops.
fn server(more: &[&str]) -> Server {
    Server::with(&[&["--controllers=*", "--engine=memory"], more].concat())
}

/// Waits until an object is gone.
fn gone(client: &mut Client, path: &str) {
    let last = std::cell::RefCell::new(String::new());
    let found = poll(CAP, || {
        let answer = client.get(path);
        *last.borrow_mut() = String::from_utf8_lossy(&answer.body).into_owned();
        (answer.status == 404).then_some(())
    });
    assert!(found.is_some(), "{path} is still there: {}", last.borrow());
}

/// Waits until an object is as it should be.
fn becomes(client: &mut Client, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let found = poll(CAP, || {
        last = client.get(path).json();
        wanted(&last).then(|| last.clone())
    });
    found.unwrap_or_else(|| panic!("{path} is {last}"))
}

fn config_map(name: &str, owners: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners}})
}

/// A reference to an object that the server has answered.
fn reference(owner: &Value, blocks: bool) -> Value {
    json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocks})
}

#[test]
fn events_expire_as_if_their_lease_ended() {
    let server = Server::with(&["--engine=memory", "--event-ttl=1s"]);
    let mut client = server.admin();
    let events = "/api/v1/namespaces/default/events";
    let mut watch = client.watch(events, "");
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}, "reason": "R", "message": "m",
        "type": "Normal", "firstTimestamp": "2024-01-01T00:00:00Z", "lastTimestamp": "2024-01-01T00:00:00Z", "count": 1});
    client.post(events, &event).ok();
    gone(&mut client, &format!("{events}/e"));
    let kinds: Vec<String> =
        (0..2).map(|_| watch.next()["type"].as_str().unwrap_or_default().to_owned()).collect();
    assert_eq!(kinds, ["ADDED", "DELETED"]);
}

#[test]
fn leases_of_servers_that_are_gone_go() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let lease = |name: &str, identity: &str, seconds: i64| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "labels": {"apiserver.kubernetes.io/identity": identity}},
            "spec": {"holderIdentity": "h", "leaseDurationSeconds": seconds, "renewTime": "2024-01-01T00:00:00.000000Z"}})
    };
    client.post(leases, &lease("other", "kubelet", 1)).ok();
    client.post(leases, &lease("lives", "kube-apiserver", 1_000_000_000)).ok();
    client.post(leases, &lease("lapsed", "kube-apiserver", 1)).ok();
    gone(&mut client, &format!("{leases}/lapsed"));
    assert_eq!(client.get(&format!("{leases}/lives")).status, 200);
    assert_eq!(client.get(&format!("{leases}/other")).status, 200);
}

#[test]
fn an_event_of_long_ago_lives_from_its_last_write() {
    let directory = support::server::directory();
    let data = directory.path().join("data");
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let event = |name: &str| {
        json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
            "eventTime": "2024-01-01T00:00:00.000000Z", "reportingController": "example.com/c", "reportingInstance": "i",
            "action": "A", "reason": "R", "type": "Normal",
            "regarding": {"kind": "Pod", "namespace": "default", "name": "p"}})
    };
    let server = Server::on(&data, &[]);
    server.admin().post(events, &event("first")).ok();
    // Time for the loop to be wrong in.
    std::thread::sleep(std::time::Duration::from_millis(300));
    server.admin().post(events, &event("second")).ok();
    assert_eq!(server.admin().get(&format!("{events}/first")).status, 200);
    server.stop();
    let server = Server::on(&data, &[]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(server.admin().get(&format!("{events}/first")).status, 200);
}

/// What others find this server by is put right soon, also without any loop that flags choose.
#[test]
fn what_belongs_to_the_server_comes_back() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let lost = [
        "/api/v1/namespaces/default/services/kubernetes",
        "/api/v1/namespaces/default/endpoints/kubernetes",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes",
        "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
    ];
    for path in lost {
        // The endpoints go with the service, and come back a moment after it.
        let there = becomes(&mut client, path, |there| there["metadata"]["uid"].is_string());
        let before = there["metadata"]["uid"].clone();
        client.delete(path).ok();
        becomes(&mut client, path, |now| {
            now["metadata"]["uid"].is_string() && now["metadata"]["uid"] != before
        });
    }
    let map = lost[3];
    let right = client.get(map).ok()["data"].clone();
    client.patch(map, "merge", &json!({"data": {"client-ca-file": "somebody else"}})).ok();
    becomes(&mut client, map, |map| map["data"] == right);
}

/// The store belongs to one process: whoever is named in the lease at the start is an earlier run.
#[test]
fn a_start_waits_for_no_lease() {
    let directory = support::server::directory();
    let data = directory.path().join("data");
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/pilothouse-controllers";
    let first = Server::on(&data, &[]);
    let others = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "pilothouse-controllers"},
        "spec": {"holderIdentity": "somebody else", "leaseDurationSeconds": 60,
            "renewTime": "2999-01-01T00:00:00.000000Z", "acquireTime": "2999-01-01T00:00:00.000000Z"}});
    first.admin().post("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", &others).ok();
    first.stop();
    let second = Server::on(&data, &["--controllers=*"]);
    becomes(&mut second.admin(), lease, |lease| lease["spec"]["holderIdentity"] != "somebody else");
    second.stop();
}

/// A loop may remove a pod between the mark and the removal of the call that deletes it.
#[test]
fn who_deletes_a_pod_is_not_told_that_it_is_not_there() {
    let server = Server::with(&["--controllers=*", "--disable-admission-plugins=ServiceAccount"]);
    let mut client = server.admin();
    let pods = "/api/v1/namespaces/default/pods";
    for number in 0..300 {
        let name = format!("p{number}");
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        client.post(pods, &pod).ok();
        client.delete(&format!("{pods}/{name}")).ok();
    }
}

#[test]
fn loops_show_in_health_metrics_and_a_lease() {
    let server = server(&[]);
    let mut client = server.admin();
    let shown = client.get("/readyz?verbose");
    assert!(String::from_utf8_lossy(&shown.body).contains("[+]poststarthook/start-controllers ok"));
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/pilothouse-controllers";
    becomes(&mut client, lease, |lease| lease["spec"]["holderIdentity"].is_string());
    let counted = poll(CAP, || {
        let text = String::from_utf8_lossy(&client.get("/metrics").body).into_owned();
        text.contains(r#"workqueue_adds_total{name="pilothouse-controllers"}"#).then_some(())
    });
    assert!(counted.is_some());
    let none = Server::with(&["--engine=memory"]);
    let mut client = none.admin();
    assert!(!String::from_utf8_lossy(&client.get("/readyz?verbose").body).contains("start-controllers"));
    assert_eq!(client.get(lease).status, 404);
}
