//! The built-in controllers: namespace deletion, garbage collection, expiry, and objects that the server restores.

mod accounts;
mod certificates;
mod cluster_objects;
mod elections;
mod extra_controllers;
mod kubectl;
mod large;
mod namespaces;
mod owners;
mod permissions;
mod usage;

use serde_json::{Value, json};

use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

/// A server with all controllers.
fn server(flags: &[&str]) -> Server {
    Server::with_flags(&[&["--controllers=*", "--engine=memory"], flags].concat())
}

/// Waits until an object is gone.
fn wait_until_gone(client: &mut Client, path: &str) {
    let last = std::cell::RefCell::new(String::new());
    let is_deleted = poll(TIMEOUT, || {
        let response = client.get(path);
        *last.borrow_mut() = String::from_utf8_lossy(&response.body).into_owned();
        (response.status == 404).then_some(())
    });
    assert!(is_deleted.is_some(), "{path} is still there: {}", last.borrow());
}

/// Waits until an object meets a condition and returns it.
fn wait_until(client: &mut Client, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let reached = poll(TIMEOUT, || {
        last = client.get(path).json();
        condition(&last).then(|| last.clone())
    });
    reached.unwrap_or_else(|| panic!("{path} is {last}"))
}

fn config_map(name: &str, owners: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners}})
}

/// An owner reference to an object.
fn reference(owner: &Value, blocks: bool) -> Value {
    json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocks})
}

#[test]
fn events_are_deleted_after_ttl() {
    let server = Server::with_flags(&["--engine=memory", "--event-ttl=1s"]);
    let mut client = server.admin();
    let events = "/api/v1/namespaces/default/events";
    let mut watch = client.watch(events, "");
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}, "reason": "R", "message": "m",
        "type": "Normal", "firstTimestamp": "2024-01-01T00:00:00Z", "lastTimestamp": "2024-01-01T00:00:00Z", "count": 1});
    client.post(events, &event).ok();
    wait_until_gone(&mut client, &format!("{events}/e"));
    let event_types: Vec<String> =
        (0..2).map(|_| watch.next()["type"].as_str().unwrap_or_default().to_owned()).collect();
    assert_eq!(event_types, ["ADDED", "DELETED"]);
}

#[test]
fn expired_apiserver_leases_are_deleted() {
    let server = Server::with_flags(&["--engine=memory"]);
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
    wait_until_gone(&mut client, &format!("{leases}/lapsed"));
    assert_eq!(client.get(&format!("{leases}/lives")).status, 200);
    assert_eq!(client.get(&format!("{leases}/other")).status, 200);
}

#[test]
fn event_ttl_starts_at_last_write() {
    let directory = crate::support::server::temp_directory();
    let data = directory.path().join("data");
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let event = |name: &str| {
        json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
            "eventTime": "2024-01-01T00:00:00.000000Z", "reportingController": "example.com/c", "reportingInstance": "i",
            "action": "A", "reason": "R", "type": "Normal",
            "regarding": {"kind": "Pod", "namespace": "default", "name": "p"}})
    };
    let server = Server::start_in(&data, &[]);
    server.admin().post(events, &event("first")).ok();
    // Time for the controller to delete the event by mistake.
    std::thread::sleep(std::time::Duration::from_millis(300));
    server.admin().post(events, &event("second")).ok();
    assert_eq!(server.admin().get(&format!("{events}/first")).status, 200);
    server.stop();
    let server = Server::start_in(&data, &[]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(server.admin().get(&format!("{events}/first")).status, 200);
}

/// The objects by which clients find this server are restored, also without controllers.
#[test]
fn kubernetes_service_and_endpoints_are_restored_after_deletion() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let restored_paths = [
        "/api/v1/namespaces/default/services/kubernetes",
        "/api/v1/namespaces/default/endpoints/kubernetes",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes",
        "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
    ];
    for path in restored_paths {
        // The endpoints are deleted with the service, and restored a moment after it.
        let object = wait_until(&mut client, path, |object| object["metadata"]["uid"].is_string());
        let before = object["metadata"]["uid"].clone();
        client.delete(path).ok();
        wait_until(&mut client, path, |current| {
            current["metadata"]["uid"].is_string() && current["metadata"]["uid"] != before
        });
    }
    let map = restored_paths[3];
    let expected_data = client.get(map).ok()["data"].clone();
    client.patch(map, "merge", &json!({"data": {"client-ca-file": "somebody else"}})).ok();
    wait_until(&mut client, map, |map| map["data"] == expected_data);
}

/// The store belongs to one process: the holder of the lease at the start is an earlier run.
#[test]
fn controllers_take_over_lease_of_earlier_run() {
    let directory = crate::support::server::temp_directory();
    let data = directory.path().join("data");
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/pilothouse-controllers";
    // Whoever shares an etcd may be alive.
    let first = Server::start_on_file(&data, &[]);
    let foreign_lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "pilothouse-controllers"},
        "spec": {"holderIdentity": "somebody else", "leaseDurationSeconds": 60,
            "renewTime": "2999-01-01T00:00:00.000000Z", "acquireTime": "2999-01-01T00:00:00.000000Z"}});
    first.admin().post("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", &foreign_lease).ok();
    first.stop();
    let second = Server::start_on_file(&data, &["--controllers=*"]);
    wait_until(&mut second.admin(), lease, |lease| lease["spec"]["holderIdentity"] != "somebody else");
    second.stop();
}

/// Pod GC may remove a pod between the two writes of the request that deletes it.
#[test]
fn pod_delete_succeeds_while_pod_gc_deletes_it() {
    let server = Server::with_flags(&["--controllers=*", "--disable-admission-plugins=ServiceAccount"]);
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
fn controllers_report_health_metrics_and_lease() {
    let server = server(&[]);
    let mut client = server.admin();
    let health = client.get("/readyz?verbose");
    assert!(String::from_utf8_lossy(&health.body).contains("[+]poststarthook/start-controllers ok"));
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/pilothouse-controllers";
    wait_until(&mut client, lease, |lease| lease["spec"]["holderIdentity"].is_string());
    let counted = poll(TIMEOUT, || {
        let text = String::from_utf8_lossy(&client.get("/metrics").body).into_owned();
        text.contains(r#"workqueue_adds_total{name="pilothouse-controllers"}"#).then_some(())
    });
    assert!(counted.is_some());
    let without_controllers = Server::with_flags(&["--engine=memory"]);
    let mut client = without_controllers.admin();
    assert!(!String::from_utf8_lossy(&client.get("/readyz?verbose").body).contains("start-controllers"));
    assert_eq!(client.get(lease).status, 404);
}
