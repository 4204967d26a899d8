//! Quota admission: charges, refusals, and exactness under concurrency.

use std::sync::{Arc, Barrier};
use std::thread;

use serde_json::{Value, json};

use super::{CLAIMS, PODS, claim, expect_forbidden, pod, priority_class};
use crate::support::compare::text;
use crate::support::{Client, Server};

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const MERGE: &str = "merge";

/// Creates a quota and sets its used in the status, as the quota controller would.
fn create_counted_quota(admin: &mut Client, name: &str, spec: &Value, used: &Value) {
    let quota =
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec});
    let mut quota = admin.post(QUOTAS, &quota).ok();
    quota["status"] = json!({"hard": spec["hard"], "used": used});
    admin.put(&format!("{QUOTAS}/{name}/status"), &quota).ok();
}

fn usage(admin: &mut Client, name: &str) -> Value {
    admin.get(&format!("{QUOTAS}/{name}")).ok()["status"]["used"].clone()
}

fn secret(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}})
}

fn pod_requesting(name: &str, requests: &Value) -> Value {
    pod(name, &json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": requests}}]}))
}

/// Runs a request on many connections at the same moment and returns their statuses.
fn run_concurrently(
    admin: &Client,
    count_of_clients: usize,
    run: impl Fn(&mut Client, usize) -> u16 + Send + Sync,
) -> Vec<u16> {
    let (start, run) = (Arc::new(Barrier::new(count_of_clients)), &run);
    thread::scope(|scope| {
        let clients = (0..count_of_clients).map(|number| {
            let (mut client, start) = (admin.new_connection(), start.clone());
            scope.spawn(move || {
                // Connected before the signal.
                client.get("/version").ok();
                start.wait();
                run(&mut client, number)
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

#[test]
fn quota_admits_exactly_hard_limit_of_concurrent_creates() {
    let server = Server::start();
    let mut admin = server.admin();
    create_counted_quota(&mut admin, "few", &json!({"hard": {"secrets": "10"}}), &json!({"secrets": "0"}));
    create_counted_quota(
        &mut admin,
        "more",
        &json!({"hard": {"count/secrets": "11"}}),
        &json!({"count/secrets": "0"}),
    );
    let codes = run_concurrently(&admin, 64, |client, number| {
        client.post(SECRETS, &secret(&format!("s{number}"))).status
    });
    let count = |expected: u16| codes.iter().filter(|code| **code == expected).count();
    assert_eq!((count(201), count(403)), (10, 54), "{codes:?}");
    assert_eq!(admin.get(SECRETS).ok()["items"].as_array().map(Vec::len), Some(10));
    assert_eq!(usage(&mut admin, "few"), json!({"secrets": "10"}));
    assert_eq!(usage(&mut admin, "more"), json!({"count/secrets": "10"}));
}

#[test]
fn quota_usage_is_exact_under_concurrent_quota_writes() {
    let server = Server::start();
    let mut admin = server.admin();
    create_counted_quota(&mut admin, "q", &json!({"hard": {"secrets": "20"}}), &json!({"secrets": "0"}));
    let codes = run_concurrently(&admin, 40, |client, number| {
        if number % 4 == 0 {
            let change = json!({"metadata": {"labels": {format!("l{number}"): "x"}}});
            let code = client.patch(&format!("{QUOTAS}/q"), MERGE, &change).status;
            assert_eq!(code, 200);
            return 0;
        }
        client.post(SECRETS, &secret(&format!("s{number}"))).status
    });
    assert_eq!(codes.iter().filter(|code| **code == 201).count(), 20, "{codes:?}");
    let quota = admin.get(&format!("{QUOTAS}/q")).ok();
    assert_eq!(quota["status"]["used"], json!({"secrets": "20"}));
    assert_eq!(quota["metadata"]["labels"].as_object().map(serde_json::Map::len), Some(10));
}

#[test]
fn quota_charges_pods_and_refuses_over_hard_limit() {
    let server = Server::start();
    let mut admin = server.admin();
    let hard = json!({"pods": "3", "requests.cpu": "1", "count/pods": "9", "services": "5"});
    create_counted_quota(
        &mut admin,
        "q",
        &json!({"hard": hard}),
        &json!({"pods": "0", "requests.cpu": "0", "count/pods": "0", "services": "0"}),
    );
    expect_forbidden(
        &mut admin,
        PODS,
        &pod("a", &json!({})),
        "pods \"a\" is forbidden: failed quota: q: must specify requests.cpu for: c",
    );
    admin.post(PODS, &pod_requesting("a", &json!({"cpu": "600m"}))).ok();
    expect_forbidden(
        &mut admin,
        PODS,
        &pod_requesting("b", &json!({"cpu": "500m"})),
        "pods \"b\" is forbidden: exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, limited: \
         requests.cpu=1",
    );
    // A dry run is checked and not charged.
    let dry_run_path = format!("{PODS}?dryRun=All");
    expect_forbidden(
        &mut admin,
        &dry_run_path,
        &pod_requesting("b", &json!({"cpu": "500m"})),
        "limited: requests.cpu=1",
    );
    admin.post(&dry_run_path, &pod_requesting("b", &json!({"cpu": "400m"}))).ok();
    admin.post(PODS, &pod_requesting("b", &json!({"cpu": "400m"}))).ok();
    let expected_usage = json!({"pods": "2", "requests.cpu": "1", "count/pods": "2", "services": "0"});
    assert_eq!(usage(&mut admin, "q"), expected_usage);

    // The server owns the used fields that it charged, and no others.
    let quota = admin.get(&format!("{QUOTAS}/q")).ok();
    let entries = quota["metadata"]["managedFields"].as_array().unwrap();
    let entry_of_server = entries.iter().find(|entry| entry["manager"] == "kube-apiserver").unwrap();
    assert_eq!(
        (&entry_of_server["operation"], &entry_of_server["subresource"]),
        (&json!("Update"), &json!("status"))
    );
    assert_eq!(
        entry_of_server["fieldsV1"],
        json!({"f:status": {"f:used": {"f:count/pods": {}, "f:pods": {}, "f:requests.cpu": {}}}})
    );
    let full = json!({"metadata": {"name": "big"}, "kind": "Pod", "apiVersion": "v1", "spec": {"containers":
        [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "7"}}}]}});
    let status = admin.post(PODS, &full).expect_error(403, "Forbidden");
    assert_eq!(status["details"], json!({"name": "big", "kind": "pods"}));
}

#[test]
fn quota_is_enforced_once_usage_is_known_in_its_namespace() {
    let server = Server::start();
    let mut admin = server.admin();
    let quota_object = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"secrets": "0"}}});
    let mut quota_object = admin.post(QUOTAS, &quota_object).ok();
    admin.post(SECRETS, &secret("before")).ok();
    quota_object["status"] = json!({"hard": {"secrets": "0"}});
    let mut quota_object = admin.put(&format!("{QUOTAS}/q/status"), &quota_object).ok();
    expect_forbidden(&mut admin, SECRETS, &secret("a"), "status unknown for quota: q, resources: secrets");
    quota_object["status"]["used"] = json!({"secrets": "1"});
    admin.put(&format!("{QUOTAS}/q/status"), &quota_object).ok();
    expect_forbidden(
        &mut admin,
        SECRETS,
        &secret("a"),
        "exceeded quota: q, requested: secrets=1, used: secrets=1, limited: secrets=0",
    );
    admin.post("/api/v1/namespaces/kube-system/secrets", &secret("a")).ok();
    // Updates are not charged as new objects.
    admin.patch(&format!("{SECRETS}/before"), MERGE, &json!({"metadata": {"labels": {"a": "b"}}})).ok();
    admin.delete(&format!("{QUOTAS}/q")).ok();
    admin.post(SECRETS, &secret("a")).ok();
}

#[test]
fn quota_charges_claim_resize_and_service_type_change() {
    let server = Server::start();
    let mut admin = server.admin();
    let gold = "gold.storageclass.storage.k8s.io/requests.storage";
    create_counted_quota(
        &mut admin,
        "storage",
        &json!({"hard": {"requests.storage": "5Gi", gold: "3Gi", "persistentvolumeclaims": "5"}}),
        &json!({"requests.storage": "0", gold: "0", "persistentvolumeclaims": "0"}),
    );
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "a.b/c",
        "metadata": {"name": "gold"}, "allowVolumeExpansion": true});
    admin.post("/apis/storage.k8s.io/v1/storageclasses", &class).ok();
    let gold_claim = |name: &str, size: &str| {
        let mut claim = claim(name, size);
        claim["spec"]["storageClassName"] = json!("gold");
        claim["spec"]["volumeName"] = json!("v");
        claim
    };
    admin.post(CLAIMS, &claim("plain", "1Gi")).ok();
    expect_forbidden(
        &mut admin,
        CLAIMS,
        &gold_claim("a", "4Gi"),
        &format!("exceeded quota: storage, requested: {gold}=4Gi, used: {gold}=0, limited: {gold}=3Gi"),
    );
    let mut bound = admin.post(CLAIMS, &gold_claim("a", "1Gi")).ok();
    assert_eq!(
        usage(&mut admin, "storage"),
        json!({"requests.storage": "2Gi", gold: "1Gi", "persistentvolumeclaims": "2"})
    );
    bound["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
    admin.put(&format!("{CLAIMS}/a/status"), &bound).ok();
    let resize = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    let path = format!("{CLAIMS}/a");
    let status = admin.patch(&path, MERGE, &resize("9Gi")).expect_error(403, "Forbidden");
    assert!(text(&status, "/message").contains("requested: gold"), "{status}");
    admin.patch(&path, MERGE, &resize("3Gi")).ok();
    assert_eq!(
        usage(&mut admin, "storage"),
        json!({"requests.storage": "4Gi", gold: "3Gi", "persistentvolumeclaims": "2"})
    );

    create_counted_quota(
        &mut admin,
        "ports",
        &json!({"hard": {"services.nodeports": "1", "services.loadbalancers": "0"}}),
        &json!({"services.nodeports": "0", "services.loadbalancers": "0"}),
    );
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80}]}});
    admin.post(SERVICES, &service).ok();
    let path = format!("{SERVICES}/s");
    let status =
        admin.patch(&path, MERGE, &json!({"spec": {"type": "LoadBalancer"}})).expect_error(403, "Forbidden");
    assert!(text(&status, "/message").contains("requested: services.loadbalancers=1"), "{status}");
    admin.patch(&path, MERGE, &json!({"spec": {"type": "NodePort"}})).ok();
    assert_eq!(usage(&mut admin, "ports"), json!({"services.nodeports": "1", "services.loadbalancers": "0"}));
}

#[test]
fn quota_scopes_select_pods() {
    let server = Server::start();
    let mut admin = server.admin();
    admin.post(super::CLASSES, &priority_class("high", 5)).ok();
    let pods = |name: &str, spec: &Value, admin: &mut Client| {
        let mut spec = spec.clone();
        spec["hard"] = json!({"pods": "1"});
        create_counted_quota(admin, name, &spec, &json!({"pods": "0"}));
    };
    pods("best-effort", &json!({"scopes": ["BestEffort"]}), &mut admin);
    pods("ending", &json!({"scopes": ["Terminating"]}), &mut admin);
    let selector = json!({"matchExpressions":
        [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]});
    pods("high", &json!({"scopeSelector": selector}), &mut admin);
    let counts =
        |admin: &mut Client| ["best-effort", "ending", "high"].map(|name| usage(admin, name)["pods"].clone());
    admin.post(PODS, &pod_requesting("a", &json!({"cpu": "1"}))).ok();
    assert_eq!(counts(&mut admin), ["0", "0", "0"]);
    admin.post(PODS, &pod("b", &json!({}))).ok();
    assert_eq!(counts(&mut admin), ["1", "0", "0"]);
    expect_forbidden(
        &mut admin,
        PODS,
        &pod("c", &json!({})),
        "exceeded quota: best-effort, requested: pods=1, used: pods=1, limited: pods=1",
    );
    let mut high = pod_requesting("c", &json!({"cpu": "1"}));
    high["spec"]["priorityClassName"] = json!("high");
    admin.post(PODS, &high).ok();
    assert_eq!(counts(&mut admin), ["1", "0", "1"]);
    // A pod that gets a deadline enters the Terminating scope.
    admin.patch(&format!("{PODS}/a"), MERGE, &json!({"spec": {"activeDeadlineSeconds": 99}})).ok();
    assert_eq!(counts(&mut admin), ["1", "1", "1"]);
    let status = admin
        .patch(&format!("{PODS}/c"), MERGE, &json!({"spec": {"activeDeadlineSeconds": 99}}))
        .expect_error(403, "Forbidden");
    assert!(text(&status, "/message").contains("exceeded quota: ending"), "{status}");
}

#[test]
fn quota_charges_difference_on_pod_resize() {
    let server = Server::start();
    let mut admin = server.admin();
    create_counted_quota(
        &mut admin,
        "q",
        &json!({"hard": {"requests.cpu": "2"}}),
        &json!({"requests.cpu": "0"}),
    );
    admin.post(PODS, &pod_requesting("a", &json!({"cpu": "1"}))).ok();
    let size =
        |cpu: &str| json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}});
    let (path, language) = (format!("{PODS}/a/resize"), "strategic-merge");
    let status = admin.patch(&path, language, &size("3")).expect_error(403, "Forbidden");
    assert!(
        text(&status, "/message").ends_with(
            "exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=1, limited: requests.cpu=2"
        ),
        "{status}"
    );
    admin.patch(&path, language, &size("1500m")).ok();
    assert_eq!(usage(&mut admin, "q"), json!({"requests.cpu": "1500m"}));
    admin.patch(&path, language, &size("1")).ok();
    assert_eq!(usage(&mut admin, "q"), json!({"requests.cpu": "1500m"}), "admission does not release usage");
}

#[test]
fn quota_is_not_enforced_without_plugin() {
    let server = Server::with_flags(&["--disable-admission-plugins=ResourceQuota"]);
    let mut admin = server.admin();
    create_counted_quota(&mut admin, "q", &json!({"hard": {"secrets": "0"}}), &json!({"secrets": "0"}));
    admin.post(SECRETS, &secret("a")).ok();
    assert_eq!(usage(&mut admin, "q"), json!({"secrets": "0"}));
}
