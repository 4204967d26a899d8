//! Quotas: who is charged, who is refused, and that nobody gets more than there is.

use std::sync::{Arc, Barrier};
use std::thread;

use serde_json::{Value, json};

use super::support::compare::text;
use super::support::{Client, Server};
use super::{CLAIMS, PODS, claim, class, forbidden, pod};

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const MERGE: &str = "merge";

/// Makes a quota and says in its status what is used, as the one who counts would.
fn quota(admin: &mut Client, name: &str, spec: &Value, used: &Value) {
    let quota =
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec});
    let mut quota = admin.post(QUOTAS, &quota).ok();
    quota["status"] = json!({"hard": spec["hard"], "used": used});
    admin.put(&format!("{QUOTAS}/{name}/status"), &quota).ok();
}

fn used(admin: &mut Client, name: &str) -> Value {
    admin.get(&format!("{QUOTAS}/{name}")).ok()["status"]["used"].clone()
}

fn secret(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}})
}

fn asking(name: &str, requests: &Value) -> Value {
    pod(name, &json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": requests}}]}))
}

/// Lets many connections do something at the same moment and answers how each ended.
fn all_at_once(
    admin: &Client,
    many: usize,
    act: impl Fn(&mut Client, usize) -> u16 + Send + Sync,
) -> Vec<u16> {
    let (start, act) = (Arc::new(Barrier::new(many)), &act);
    thread::scope(|scope| {
        let clients = (0..many).map(|number| {
            let (mut client, start) = (admin.again(), start.clone());
            scope.spawn(move || {
                // Connected before the signal.
                client.get("/version").ok();
                start.wait();
                act(&mut client, number)
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

#[test]
fn of_many_at_once_exactly_as_many_succeed_as_there_is_room_for() {
    let server = Server::start();
    let mut admin = server.admin();
    quota(&mut admin, "few", &json!({"hard": {"secrets": "10"}}), &json!({"secrets": "0"}));
    quota(&mut admin, "more", &json!({"hard": {"count/secrets": "11"}}), &json!({"count/secrets": "0"}));
    let codes =
        all_at_once(&admin, 64, |client, number| client.post(SECRETS, &secret(&format!("s{number}"))).status);
    let count = |wanted: u16| codes.iter().filter(|code| **code == wanted).count();
    assert_eq!((count(201), count(403)), (10, 54), "{codes:?}");
    assert_eq!(admin.get(SECRETS).ok()["items"].as_array().map(Vec::len), Some(10));
    assert_eq!(used(&mut admin, "few"), json!({"secrets": "10"}));
    assert_eq!(used(&mut admin, "more"), json!({"count/secrets": "10"}));
}

#[test]
fn others_who_write_a_quota_meanwhile_do_not_break_the_count() {
    let server = Server::start();
    let mut admin = server.admin();
    quota(&mut admin, "q", &json!({"hard": {"secrets": "20"}}), &json!({"secrets": "0"}));
    let codes = all_at_once(&admin, 40, |client, number| {
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
fn pods_are_charged_and_what_is_too_much_is_refused() {
    let server = Server::start();
    let mut admin = server.admin();
    let hard = json!({"pods": "3", "requests.cpu": "1", "count/pods": "9", "services": "5"});
    quota(
        &mut admin,
        "q",
        &json!({"hard": hard}),
        &json!({"pods": "0", "requests.cpu": "0", "count/pods": "0", "services": "0"}),
    );
    forbidden(
        &mut admin,
        PODS,
        &pod("a", &json!({})),
        "pods \"a\" is forbidden: failed quota: q: must specify requests.cpu for: c",
    );
    admin.post(PODS, &asking("a", &json!({"cpu": "600m"}))).ok();
    forbidden(
        &mut admin,
        PODS,
        &asking("b", &json!({"cpu": "500m"})),
        "pods \"b\" is forbidden: exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, limited: \
         requests.cpu=1",
    );
    // A trial is judged and not charged.
    let trial = format!("{PODS}?dryRun=All");
    forbidden(&mut admin, &trial, &asking("b", &json!({"cpu": "500m"})), "limited: requests.cpu=1");
    admin.post(&trial, &asking("b", &json!({"cpu": "400m"}))).ok();
    admin.post(PODS, &asking("b", &json!({"cpu": "400m"}))).ok();
    let counted = json!({"pods": "2", "requests.cpu": "1", "count/pods": "2", "services": "0"});
    assert_eq!(used(&mut admin, "q"), counted);

    // What was counted is the server's word; the rest stays with those who said it.
    let quota = admin.get(&format!("{QUOTAS}/q")).ok();
    let entries = quota["metadata"]["managedFields"].as_array().unwrap();
    let own = entries.iter().find(|entry| entry["manager"] == "kube-apiserver").unwrap();
    assert_eq!((&own["operation"], &own["subresource"]), (&json!("Update"), &json!("status")));
    assert_eq!(
        own["fieldsV1"],
        json!({"f:status": {"f:used": {"f:count/pods": {}, "f:pods": {}, "f:requests.cpu": {}}}})
    );
    let full = json!({"metadata": {"name": "big"}, "kind": "Pod", "apiVersion": "v1", "spec": {"containers":
        [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "7"}}}]}});
    let status = admin.post(PODS, &full).refused(403, "Forbidden");
    assert_eq!(status["details"], json!({"name": "big", "kind": "pods"}));
}

#[test]
fn a_quota_binds_when_it_has_been_counted_and_only_its_namespace() {
    let server = Server::start();
    let mut admin = server.admin();
    let bare = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"secrets": "0"}}});
    let mut bare = admin.post(QUOTAS, &bare).ok();
    admin.post(SECRETS, &secret("before")).ok();
    bare["status"] = json!({"hard": {"secrets": "0"}});
    let mut bare = admin.put(&format!("{QUOTAS}/q/status"), &bare).ok();
    forbidden(&mut admin, SECRETS, &secret("a"), "status unknown for quota: q, resources: secrets");
    bare["status"]["used"] = json!({"secrets": "1"});
    admin.put(&format!("{QUOTAS}/q/status"), &bare).ok();
    forbidden(
        &mut admin,
        SECRETS,
        &secret("a"),
        "exceeded quota: q, requested: secrets=1, used: secrets=1, limited: secrets=0",
    );
    admin.post("/api/v1/namespaces/kube-system/secrets", &secret("a")).ok();
    // Updates of what is there are not new objects.
    admin.patch(&format!("{SECRETS}/before"), MERGE, &json!({"metadata": {"labels": {"a": "b"}}})).ok();
    admin.delete(&format!("{QUOTAS}/q")).ok();
    admin.post(SECRETS, &secret("a")).ok();
}

#[test]
fn claims_and_services_are_charged_when_they_grow() {
    let server = Server::start();
    let mut admin = server.admin();
    let gold = "gold.storageclass.storage.k8s.io/requests.storage";
    quota(
        &mut admin,
        "storage",
        &json!({"hard": {"requests.storage": "5Gi", gold: "3Gi", "persistentvolumeclaims": "5"}}),
        &json!({"requests.storage": "0", gold: "0", "persistentvolumeclaims": "0"}),
    );
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "a.b/c",
        "metadata": {"name": "gold"}, "allowVolumeExpansion": true});
    admin.post("/apis/storage.k8s.io/v1/storageclasses", &class).ok();
    let of_gold = |name: &str, size: &str| {
        let mut claim = claim(name, size);
        claim["spec"]["storageClassName"] = json!("gold");
        claim["spec"]["volumeName"] = json!("v");
        claim
    };
    admin.post(CLAIMS, &claim("plain", "1Gi")).ok();
    forbidden(
        &mut admin,
        CLAIMS,
        &of_gold("a", "4Gi"),
        &format!("exceeded quota: storage, requested: {gold}=4Gi, used: {gold}=0, limited: {gold}=3Gi"),
    );
    let mut bound = admin.post(CLAIMS, &of_gold("a", "1Gi")).ok();
    assert_eq!(
        used(&mut admin, "storage"),
        json!({"requests.storage": "2Gi", gold: "1Gi", "persistentvolumeclaims": "2"})
    );
    bound["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
    admin.put(&format!("{CLAIMS}/a/status"), &bound).ok();
    let grow = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    let path = format!("{CLAIMS}/a");
    let status = admin.patch(&path, MERGE, &grow("9Gi")).refused(403, "Forbidden");
    assert!(text(&status, "/message").contains("requested: gold"), "{status}");
    admin.patch(&path, MERGE, &grow("3Gi")).ok();
    assert_eq!(
        used(&mut admin, "storage"),
        json!({"requests.storage": "4Gi", gold: "3Gi", "persistentvolumeclaims": "2"})
    );

    quota(
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
        admin.patch(&path, MERGE, &json!({"spec": {"type": "LoadBalancer"}})).refused(403, "Forbidden");
    assert!(text(&status, "/message").contains("requested: services.loadbalancers=1"), "{status}");
    admin.patch(&path, MERGE, &json!({"spec": {"type": "NodePort"}})).ok();
    assert_eq!(used(&mut admin, "ports"), json!({"services.nodeports": "1", "services.loadbalancers": "0"}));
}

#[test]
fn scopes_say_which_pods_a_quota_is_about() {
    let server = Server::start();
    let mut admin = server.admin();
    admin.post(super::CLASSES, &class("high", 5)).ok();
    let pods = |name: &str, spec: &Value, admin: &mut Client| {
        let mut spec = spec.clone();
        spec["hard"] = json!({"pods": "1"});
        quota(admin, name, &spec, &json!({"pods": "0"}));
    };
    pods("best-effort", &json!({"scopes": ["BestEffort"]}), &mut admin);
    pods("ending", &json!({"scopes": ["Terminating"]}), &mut admin);
    let selector = json!({"matchExpressions":
        [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]});
    pods("high", &json!({"scopeSelector": selector}), &mut admin);
    let counts =
        |admin: &mut Client| ["best-effort", "ending", "high"].map(|name| used(admin, name)["pods"].clone());
    admin.post(PODS, &asking("a", &json!({"cpu": "1"}))).ok();
    assert_eq!(counts(&mut admin), ["0", "0", "0"]);
    admin.post(PODS, &pod("b", &json!({}))).ok();
    assert_eq!(counts(&mut admin), ["1", "0", "0"]);
    forbidden(
        &mut admin,
        PODS,
        &pod("c", &json!({})),
        "exceeded quota: best-effort, requested: pods=1, used: pods=1, limited: pods=1",
    );
    let mut high = asking("c", &json!({"cpu": "1"}));
    high["spec"]["priorityClassName"] = json!("high");
    admin.post(PODS, &high).ok();
    assert_eq!(counts(&mut admin), ["1", "0", "1"]);
    // A pod that gets a deadline comes into the scope.
    admin.patch(&format!("{PODS}/a"), MERGE, &json!({"spec": {"activeDeadlineSeconds": 99}})).ok();
    assert_eq!(counts(&mut admin), ["1", "1", "1"]);
    let status = admin
        .patch(&format!("{PODS}/c"), MERGE, &json!({"spec": {"activeDeadlineSeconds": 99}}))
        .refused(403, "Forbidden");
    assert!(text(&status, "/message").contains("exceeded quota: ending"), "{status}");
}

#[test]
fn a_pod_that_grows_is_charged_for_the_difference() {
    let server = Server::start();
    let mut admin = server.admin();
    quota(&mut admin, "q", &json!({"hard": {"requests.cpu": "2"}}), &json!({"requests.cpu": "0"}));
    admin.post(PODS, &asking("a", &json!({"cpu": "1"}))).ok();
    let size =
        |cpu: &str| json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}});
    let (path, language) = (format!("{PODS}/a/resize"), "strategic-merge");
    let status = admin.patch(&path, language, &size("3")).refused(403, "Forbidden");
    assert!(
        text(&status, "/message").ends_with(
            "exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=1, limited: requests.cpu=2"
        ),
        "{status}"
    );
    admin.patch(&path, language, &size("1500m")).ok();
    assert_eq!(used(&mut admin, "q"), json!({"requests.cpu": "1500m"}));
    admin.patch(&path, language, &size("1")).ok();
    assert_eq!(
        used(&mut admin, "q"),
        json!({"requests.cpu": "1500m"}),
        "what shrinks is counted anew, not here"
    );
}

#[test]
fn without_the_plugin_quotas_are_only_objects() {
    let server = Server::with(&["--disable-admission-plugins=ResourceQuota"]);
    let mut admin = server.admin();
    quota(&mut admin, "q", &json!({"hard": {"secrets": "0"}}), &json!({"secrets": "0"}));
    admin.post(SECRETS, &secret("a")).ok();
    assert_eq!(used(&mut admin, "q"), json!({"secrets": "0"}));
}
