//! What stands below objects: parts that are read and written at addresses of their own, and what is only done.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::{X509NameBuilder, X509ReqBuilder};
use serde_json::{Value, json};
use support::compare::text;
use support::{Client, Server};

const PODS: &str = "/api/v1/namespaces/default/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const TABLE: (&str, &str) = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// Objects that have replicas: where they are, and one of each.
fn scalable() -> Vec<(&'static str, Value)> {
    let template = json!({"metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let object = |api: &str, kind: &str, selector: Value| {
        json!({"apiVersion": api, "kind": kind, "metadata": {"name": "x"},
            "spec": {"replicas": 2, "selector": selector, "template": template}})
    };
    let labels = json!({"matchLabels": {"app": "a"}});
    let expression = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["b", "a"]}]});
    vec![
        (DEPLOYMENTS, object("apps/v1", "Deployment", labels.clone())),
        ("/apis/apps/v1/namespaces/default/replicasets", object("apps/v1", "ReplicaSet", labels)),
        ("/apis/apps/v1/namespaces/default/statefulsets", object("apps/v1", "StatefulSet", expression)),
        (
            "/api/v1/namespaces/default/replicationcontrollers",
            object("v1", "ReplicationController", json!({"app": "a"})),
        ),
    ]
}

#[test]
fn whatever_has_replicas_has_a_scale() {
    let server = Server::start();
    let mut admin = server.admin();
    for (place, object) in scalable() {
        let made = admin.post(place, &object).ok();
        let path = format!("{place}/x/scale");
        let mut scale = admin.get(&path).ok();
        assert_eq!((text(&scale, "/apiVersion"), text(&scale, "/kind")), ("autoscaling/v1", "Scale"));
        for field in ["uid", "resourceVersion", "creationTimestamp"] {
            assert_eq!(scale["metadata"][field], made["metadata"][field], "{field} of {place}");
        }
        assert_eq!((&scale["spec"]["replicas"], &scale["status"]["replicas"]), (&json!(2), &json!(0)));
        let selector = text(&scale, "/status/selector");
        assert!(matches!(selector, "app=a" | "app in (a,b)"), "{selector}");

        scale["spec"]["replicas"] = json!(5);
        let stale = scale.clone();
        let dry = admin.put(&format!("{path}?dryRun=All"), &scale).ok();
        assert_eq!(dry["spec"]["replicas"], 5);
        assert_eq!(admin.get(&path).ok()["spec"]["replicas"], 2, "a dry run changes nothing");
        let scaled = admin.put(&path, &scale).ok();
        assert_eq!((text(&scaled, "/kind"), &scaled["spec"]["replicas"]), ("Scale", &json!(5)));
        let parent = admin.get(&format!("{place}/x")).ok();
        assert_eq!(parent["spec"]["replicas"], 5);
        assert_eq!(parent["metadata"]["generation"], 2);
        assert_eq!(parent["metadata"]["resourceVersion"], scaled["metadata"]["resourceVersion"]);
        admin.put(&path, &stale).refused(409, "Conflict");

        // Without a version and without a number: none at all.
        let none = json!({"metadata": {"name": "x"}});
        let none = admin.put(&path, &none).ok();
        assert_eq!(none["spec"], json!({}));
        assert_eq!(admin.get(&format!("{place}/x")).ok()["spec"]["replicas"], 0);

        let table = admin.request("GET", &path, &[TABLE], b"").ok();
        let columns: Vec<&str> =
            table["columnDefinitions"].as_array().unwrap().iter().map(|it| text(it, "/name")).collect();
        assert_eq!(columns, ["Name", "Desired", "Available", "Age"]);
        assert_eq!(table["rows"][0]["cells"].as_array().unwrap()[..3], [json!("x"), json!(0), json!(0)]);
    }
}

#[test]
fn a_scale_must_make_sense() {
    let server = Server::start();
    let mut admin = server.admin();
    let (place, object) = scalable().swap_remove(0);
    admin.post(place, &object).ok();
    let path = format!("{place}/x/scale");
    let status = admin.put(&path, &json!({"metadata": {"name": "x"}, "spec": {"replicas": -1}}));
    let status = status.refused(422, "Invalid");
    assert_eq!(
        text(&status, "/message"),
        "Scale.autoscaling \"x\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0"
    );
    let status = admin.put(&path, &json!({"metadata": {"name": "y"}})).refused(400, "BadRequest");
    assert_eq!(
        text(&status, "/message"),
        "the name of the object (y) does not match the name on the URL (x)"
    );
    let other = json!({"metadata": {"name": "x", "uid": "other"}});
    let status = admin.put(&path, &other).refused(409, "Conflict");
    assert!(text(&status, "/message").contains("UID in precondition: other"), "{status}");
    let status = admin.put(&path, &object).refused(400, "BadRequest");
    assert!(text(&status, "/message").contains("cannot be handled as a Scale"), "{status}");
    for answer in [
        admin.get(&format!("{place}/y/scale")),
        admin.put(&format!("{place}/y/scale"), &json!({"metadata": {"name": "y"}})),
    ] {
        let status = answer.refused(404, "NotFound");
        assert_eq!(text(&status, "/message"), "deployments.apps \"y\" not found");
    }
    admin.post(&path, &json!({})).refused(405, "MethodNotAllowed");
    admin.get("/apis/apps/v1/namespaces/default/daemonsets/x/scale").refused(404, "NotFound");
}

fn binding(name: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "annotations": {"why": "tests"}},
        "target": {"kind": "Node", "name": node}})
}

/// Checks that something was done and nothing is shown.
fn done(answer: &support::Answer) {
    assert_eq!(answer.status, 201, "{}", answer.text());
    let wanted =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    assert_eq!(answer.json(), wanted);
}

#[test]
fn a_pod_is_bound_once() {
    let server = Server::start();
    let mut admin = server.admin();
    let made = admin.post(PODS, &pod("p")).ok();
    let path = format!("{PODS}/p/binding");
    done(&admin.post(&format!("{path}?dryRun=All"), &binding("p", "n1")));
    let mut other = binding("p", "n1");
    other["metadata"]["resourceVersion"] = json!("999999");
    admin.post(&path, &other).refused(409, "Conflict");
    done(&admin.post(&path, &binding("p", "n1")));
    let bound = admin.get(&format!("{PODS}/p")).ok();
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["metadata"]["annotations"]["why"], "tests");
    assert_eq!(bound["metadata"]["generation"], made["metadata"]["generation"]);
    let condition = &bound["status"]["conditions"][0];
    assert_eq!((text(condition, "/type"), text(condition, "/status")), ("PodScheduled", "True"));
    let status = admin.post(&path, &binding("p", "n2")).refused(409, "Conflict");
    assert_eq!(
        text(&status, "/message"),
        "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n1\""
    );
    admin.post(&path, &binding("q", "n1")).refused(400, "BadRequest");
    let status = admin.post(&path, &binding("p", "")).refused(422, "Invalid");
    assert_eq!(text(&status, "/message"), "Binding \"p\" is invalid: target.name: Required value");

    let mut held = pod("held");
    held["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}]);
    admin.post(PODS, &held).ok();
    let status = admin.post(&format!("{PODS}/held/binding"), &binding("held", "n1")).refused(409, "Conflict");
    assert!(text(&status, "/message").ends_with("pod held has non-empty .spec.schedulingGates"));

    // The older address names the pod in the body alone.
    admin.post(PODS, &pod("q")).ok();
    let bindings = "/api/v1/namespaces/default/bindings";
    done(&admin.post(bindings, &binding("q", "n2")));
    assert_eq!(admin.get(&format!("{PODS}/q")).ok()["spec"]["nodeName"], "n2");
    admin.post(bindings, &binding("none", "n2")).refused(404, "NotFound");
    admin.get(bindings).refused(405, "MethodNotAllowed");
}

fn eviction(name: &str, options: &Value) -> Value {
    json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options})
}

/// A pod on a node, running, and ready or not.
fn run(admin: &mut Client, name: &str, ready: bool) {
    let mut object = pod(name);
    object["spec"]["nodeName"] = json!("n1");
    let mut made = admin.post(PODS, &object).ok();
    let ready = if ready { "True" } else { "False" };
    made["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]});
    admin.put(&format!("{PODS}/{name}/status"), &made).ok();
}

/// Says how many disruptions a budget allows, and what it has counted.
fn allow(admin: &mut Client, name: &str, disruptions: i64, healthy: i64, desired: i64) {
    let path = format!("{BUDGETS}/{name}");
    let mut budget = admin.get(&path).ok();
    let generation = budget["metadata"]["generation"].clone();
    budget["status"] = json!({"observedGeneration": generation, "disruptionsAllowed": disruptions,
        "currentHealthy": healthy, "desiredHealthy": desired, "expectedPods": 3});
    admin.put(&format!("{path}/status"), &budget).ok();
}

fn budget(name: &str) -> Value {
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}})
}

#[test]
fn an_eviction_deletes_in_good_order() {
    let server = Server::start();
    let mut admin = server.admin();
    admin.post(PODS, &pod("waiting")).ok();
    let path = |name: &str| format!("{PODS}/{name}/eviction");
    let status = admin.post(&path("waiting"), &eviction("other", &json!(null))).refused(400, "BadRequest");
    assert_eq!(text(&status, "/message"), "name in URL does not match name in Eviction object");
    admin.post(&path("none"), &eviction("none", &json!(null))).refused(404, "NotFound");
    done(&admin.post(&format!("{}?dryRun=All", path("waiting")), &eviction("waiting", &json!(null))));
    done(&admin.post(&path("waiting"), &eviction("waiting", &json!({"dryRun": ["All"]}))));
    assert_eq!(admin.get(&format!("{PODS}/waiting")).status, 200, "a dry run changes nothing");
    let wrong = json!({"preconditions": {"uid": "other"}});
    admin.post(&path("waiting"), &eviction("waiting", &wrong)).refused(409, "Conflict");
    let wrong = json!({"preconditions": {"resourceVersion": "999999"}});
    admin.post(&path("waiting"), &eviction("waiting", &wrong)).refused(409, "Conflict");
    done(&admin.post(&path("waiting"), &eviction("waiting", &json!(null))));
    admin.get(&format!("{PODS}/waiting")).refused(404, "NotFound");

    // One that runs gets the time that it is given, and says why it goes.
    run(&mut admin, "running", true);
    let mut old = eviction("running", &json!({"gracePeriodSeconds": 7}));
    old["apiVersion"] = json!("policy/v1beta1");
    done(&admin.post(&path("running"), &old));
    let going = admin.get(&format!("{PODS}/running")).ok();
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 7);
    let conditions = going["status"]["conditions"].as_array().unwrap();
    let target = conditions.iter().find(|it| it["type"] == "DisruptionTarget").unwrap();
    assert_eq!(target["reason"], "EvictionByEvictionAPI");
    done(&admin.post(&path("running"), &eviction("running", &json!({"gracePeriodSeconds": 0}))));
    admin.get(&format!("{PODS}/running")).refused(404, "NotFound");
}

#[test]
fn an_eviction_spends_what_the_budget_has() {
    let server = Server::start();
    let mut admin = server.admin();
    for name in ["a", "b"] {
        run(&mut admin, name, true);
    }
    admin.post(BUDGETS, &budget("guard")).ok();
    let path = |name: &str| format!("{PODS}/{name}/eviction");
    let why = |status: &Value| text(status, "/details/causes/0/message").to_owned();

    let answer = admin.post(&path("a"), &eviction("a", &json!(null)));
    assert_eq!(answer.header("retry-after"), Some("10"));
    let status = answer.refused(429, "TooManyRequests");
    assert_eq!(why(&status), "The disruption budget guard is still being processed by the server.");
    assert_eq!(status["details"]["causes"][0]["reason"], "DisruptionBudget");

    allow(&mut admin, "guard", 0, 2, 2);
    let status = admin.post(&path("a"), &eviction("a", &json!(null))).refused(429, "TooManyRequests");
    assert_eq!(why(&status), "The disruption budget guard needs 2 healthy pods and has 2 currently");

    allow(&mut admin, "guard", 1, 2, 1);
    done(&admin.post(&format!("{}?dryRun=All", path("a")), &eviction("a", &json!(null))));
    assert_eq!(admin.get(&format!("{BUDGETS}/guard")).ok()["status"]["disruptionsAllowed"], 1);
    done(&admin.post(&path("a"), &eviction("a", &json!(null))));
    let spent = admin.get(&format!("{BUDGETS}/guard")).ok()["status"].clone();
    assert_eq!(spent["disruptionsAllowed"], 0);
    assert!(spent["disruptedPods"]["a"].is_string(), "{spent}");
    assert_eq!(spent["conditions"][0]["reason"], "InsufficientPods");
    let again = admin.post(&path("b"), &eviction("b", &json!(null)));
    again.refused(429, "TooManyRequests");
    // One that is going already is lost to nobody.
    done(&admin.post(&path("a"), &eviction("a", &json!(null))));

    let mut second = budget("second");
    second["spec"]["selector"] = json!({});
    admin.post(BUDGETS, &second).ok();
    let answer = admin.post(&path("b"), &eviction("b", &json!(null)));
    assert_eq!(answer.status, 500);
    assert!(text(&answer.json(), "/message").starts_with("This pod has more than one PodDisruptionBudget"));
}

#[test]
fn the_unready_may_go_when_that_harms_nobody() {
    let server = Server::start();
    let mut admin = server.admin();
    run(&mut admin, "sick", false);
    admin.post(BUDGETS, &budget("guard")).ok();
    let path = format!("{PODS}/sick/eviction");
    allow(&mut admin, "guard", 0, 1, 2);
    admin.post(&path, &eviction("sick", &json!(null))).refused(429, "TooManyRequests");
    allow(&mut admin, "guard", 0, 2, 2);
    done(&admin.post(&path, &eviction("sick", &json!(null))));
    let status = admin.get(&format!("{BUDGETS}/guard")).ok()["status"].clone();
    assert_eq!(status.get("disruptedPods"), None, "who is not ready is not counted");

    run(&mut admin, "sicker", false);
    allow(&mut admin, "guard", 0, 0, 2);
    let mut lenient = admin.get(&format!("{BUDGETS}/guard")).ok();
    lenient["spec"]["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
    admin.put(&format!("{BUDGETS}/guard"), &lenient).ok();
    done(&admin.post(&format!("{PODS}/sicker/eviction"), &eviction("sicker", &json!(null))));
}

#[test]
fn containers_are_added_and_amounts_changed_at_their_own_addresses() {
    let server = Server::start();
    let mut admin = server.admin();
    let mut object = pod("p");
    object["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1", "memory": "1Gi"}});
    let made = admin.post(PODS, &object).ok();
    assert_eq!(admin.get(&format!("{PODS}/p/ephemeralcontainers")).ok(), made);
    assert_eq!(admin.get(&format!("{PODS}/p/resize")).ok(), made);

    let mut more = made;
    more["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "debugger"}]);
    more["metadata"]["labels"]["ignored"] = json!("yes");
    let added = admin.put(&format!("{PODS}/p/ephemeralcontainers"), &more).ok();
    assert_eq!(added["spec"]["ephemeralContainers"][0]["imagePullPolicy"], "Always");
    assert_eq!(added["metadata"]["labels"].get("ignored"), None);
    assert_eq!(added["metadata"]["generation"], 2);
    let mut fewer = added.clone();
    fewer["spec"].as_object_mut().unwrap().remove("ephemeralContainers");
    admin.put(&format!("{PODS}/p/ephemeralcontainers"), &fewer).refused(422, "Invalid");

    let mut larger = added;
    larger["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("2");
    let resized = admin.put(&format!("{PODS}/p/resize"), &larger).ok();
    assert_eq!(resized["spec"]["containers"][0]["resources"]["requests"]["cpu"], "2");
    assert_eq!(resized["metadata"]["generation"], 3);
    let mut other = resized;
    other["spec"]["containers"][0]["resources"] = json!({});
    let status = admin.put(&format!("{PODS}/p/resize"), &other).refused(422, "Invalid");
    assert!(text(&status, "/message").contains("Pod QOS Class may not change"), "{status}");
    for part in ["ephemeralcontainers", "resize"] {
        let table = admin.request("GET", &format!("{PODS}/p/{part}"), &[TABLE], b"");
        table.refused(406, "NotAcceptable");
        let status = admin.get(&format!("{PODS}/none/{part}")).refused(404, "NotFound");
        assert_eq!(text(&status, "/message"), "pods \"none\" not found");
    }
}

#[test]
fn a_certificate_is_approved_at_its_own_address() {
    let server = Server::start();
    let mut admin = server.admin();
    let key = PKey::generate_ed25519().unwrap();
    let mut subject = X509NameBuilder::new().unwrap();
    subject.append_entry_by_nid(Nid::COMMONNAME, "someone").unwrap();
    let mut builder = X509ReqBuilder::new().unwrap();
    builder.set_subject_name(&subject.build()).unwrap();
    builder.set_pubkey(&key).unwrap();
    builder.sign(&key, MessageDigest::null()).unwrap();
    let pem = openssl::base64::encode_block(&builder.build().to_pem().unwrap());
    let request = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "r"}, "spec": {"request": pem, "usages": ["client auth"],
        "signerName": "kubernetes.io/kube-apiserver-client"}});
    let made = admin.post(REQUESTS, &request).ok();
    assert_eq!(admin.get(&format!("{REQUESTS}/r/approval")).ok(), made);
    let approved = json!([{"type": "Approved", "status": "True", "reason": "Tested", "message": "yes"}]);
    let mut yes = made;
    yes["status"] = json!({"conditions": approved});
    yes["spec"]["signerName"] = json!("example.com/other");
    let stored = admin.put(&format!("{REQUESTS}/r/approval"), &yes).ok();
    assert_eq!(stored["spec"]["signerName"], "kubernetes.io/kube-apiserver-client");
    let condition = &stored["status"]["conditions"][0];
    assert_eq!(text(condition, "/reason"), "Tested");
    assert!(condition["lastUpdateTime"].is_string() && condition["lastTransitionTime"].is_string());
    let mut no = stored;
    no["status"]["conditions"] = json!([]);
    admin.put(&format!("{REQUESTS}/r/approval"), &no).refused(422, "Invalid");
}

#[test]
fn parts_are_patched_as_they_are_shown() {
    let server = Server::start();
    let mut admin = server.admin();
    for (place, object) in scalable() {
        admin.post(place, &object).ok();
        let path = format!("{place}/x/scale");
        let merged = admin.patch(&path, "merge", &json!({"spec": {"replicas": 3}})).ok();
        assert_eq!((text(&merged, "/kind"), &merged["spec"]["replicas"]), ("Scale", &json!(3)), "{place}");
        let operations = json!([{"op": "test", "path": "/spec/replicas", "value": 3},
            {"op": "replace", "path": "/spec/replicas", "value": 4}]);
        assert_eq!(admin.patch(&path, "json", &operations).ok()["spec"]["replicas"], 4);
        let patch = json!({"spec": {"replicas": 6}});
        assert_eq!(admin.patch(&path, "strategic-merge", &patch).ok()["spec"]["replicas"], 6);
        let parent = admin.get(&format!("{place}/x")).ok();
        assert_eq!((&parent["spec"]["replicas"], &parent["kind"]), (&json!(6), &object["kind"]));
        assert_eq!(admin.patch(&path, "merge", &patch).ok()["metadata"], admin.get(&path).ok()["metadata"]);
        assert_eq!(
            admin.get(&format!("{place}/x")).ok(),
            parent,
            "a patch that changes nothing writes nothing"
        );
        let status = admin.patch(&path, "merge", &json!({"spec": {"replicas": -1}})).refused(422, "Invalid");
        assert!(text(&status, "/message").starts_with("Scale.autoscaling \"x\" is invalid"), "{status}");
        let old = json!({"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 9}});
        admin.patch(&path, "merge", &old).refused(409, "Conflict");
    }
    let mut object = pod("p");
    object["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
    admin.post(PODS, &object).ok();
    let more = json!({"metadata": {"labels": {"ignored": "yes"}},
        "spec": {"ephemeralContainers": [{"name": "e", "image": "debugger"}]}});
    let added = admin.patch(&format!("{PODS}/p/ephemeralcontainers"), "strategic-merge", &more).ok();
    assert_eq!(added["spec"]["ephemeralContainers"][0]["name"], "e");
    assert_eq!(added["metadata"]["labels"].get("ignored"), None);
    let larger = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}});
    let resized = admin.patch(&format!("{PODS}/p/resize"), "strategic-merge", &larger).ok();
    assert_eq!(resized["spec"]["containers"][0]["resources"]["requests"]["cpu"], "2");
    assert_eq!(resized["spec"]["containers"][0]["image"], "i");
    let running = json!({"status": {"phase": "Running"}, "spec": {"hostname": "ignored"}});
    let status = admin.patch(&format!("{PODS}/p/status"), "merge", &running).ok();
    assert_eq!((text(&status, "/status/phase"), status["spec"].get("hostname")), ("Running", None));
}

#[test]
fn an_object_and_its_scale_share_the_owners_of_the_replicas() {
    let server = Server::start();
    let mut admin = server.admin();
    let apply = |admin: &mut Client, path: &str, body: &Value| {
        let media = [("content-type", "application/apply-patch+yaml")];
        admin.request("PATCH", path, &media, body.to_string().as_bytes())
    };
    let (place, object) = scalable().remove(0);
    let (path, scale) = (format!("{place}/x?fieldManager=person"), format!("{place}/x/scale"));
    apply(&mut admin, &path, &object).ok();
    let patch = json!({"spec": {"replicas": 3}});
    admin.patch(&format!("{scale}?fieldManager=scaler"), "merge", &patch).ok();
    let entries = admin.get(&format!("{place}/x")).ok()["metadata"]["managedFields"].clone();
    let scaler = entries.as_array().unwrap().iter().find(|entry| entry["manager"] == "scaler").unwrap();
    assert_eq!(
        scaler,
        &json!({"manager": "scaler", "operation": "Update", "apiVersion": "apps/v1", "subresource": "scale",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}}})
    );
    let person = entries.as_array().unwrap().iter().find(|entry| entry["manager"] == "person").unwrap();
    assert_eq!(person["fieldsV1"]["f:spec"].get("f:replicas"), None);
    assert!(person["fieldsV1"]["f:spec"].get("f:template").is_some());

    let status = apply(&mut admin, &path, &object).refused(409, "Conflict");
    let wanted = "Apply failed with 1 conflict: conflict with \"scaler\" with subresource \"scale\" using apps/v1: \
        .spec.replicas";
    assert_eq!(text(&status, "/message"), wanted);
    let body = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "x"},
        "spec": {"replicas": 5}});
    let status = apply(&mut admin, &format!("{scale}?fieldManager=other"), &body).refused(409, "Conflict");
    let wanted = "Apply failed with 1 conflict: conflict with \"scaler\" with subresource \"scale\" using \
        autoscaling/v1: .spec.replicas";
    assert_eq!(text(&status, "/message"), wanted);
    let forced = apply(&mut admin, &format!("{scale}?fieldManager=other&force=true"), &body).ok();
    assert_eq!((text(&forced, "/kind"), &forced["spec"]["replicas"]), ("Scale", &json!(5)));
    assert_eq!(forced["metadata"].get("managedFields"), None);
    let entries = admin.get(&format!("{place}/x")).ok()["metadata"]["managedFields"].clone();
    let owners: Vec<&str> = entries.as_array().unwrap().iter().map(|entry| text(entry, "/manager")).collect();
    assert_eq!(owners, ["other", "person"]);
}
