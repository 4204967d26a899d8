//! Subresources: scale, status, binding, eviction, ephemeral containers, resize and approval.

use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::{X509NameBuilder, X509ReqBuilder};
use serde_json::{Value, json};

use crate::support::compare::text;
use crate::support::{Client, Server};

const PODS: &str = "/api/v1/namespaces/default/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const TABLE: (&str, &str) = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// The collections of scalable kinds, with an object of each.
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
fn scale_subresource_reads_and_updates_replicas() {
    let server = Server::start();
    let mut admin = server.admin();
    for (collection, object) in scalable() {
        let created = admin.post(collection, &object).ok();
        let path = format!("{collection}/x/scale");
        let mut scale = admin.get(&path).ok();
        assert_eq!((text(&scale, "/apiVersion"), text(&scale, "/kind")), ("autoscaling/v1", "Scale"));
        for field in ["uid", "resourceVersion", "creationTimestamp"] {
            assert_eq!(scale["metadata"][field], created["metadata"][field], "{field} of {collection}");
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
        let parent = admin.get(&format!("{collection}/x")).ok();
        assert_eq!(parent["spec"]["replicas"], 5);
        assert_eq!(parent["metadata"]["generation"], 2);
        assert_eq!(parent["metadata"]["resourceVersion"], scaled["metadata"]["resourceVersion"]);
        admin.put(&path, &stale).expect_error(409, "Conflict");

        // A scale without replicas sets zero.
        let without_replicas = json!({"metadata": {"name": "x"}});
        let without_replicas = admin.put(&path, &without_replicas).ok();
        assert_eq!(without_replicas["spec"], json!({}));
        assert_eq!(admin.get(&format!("{collection}/x")).ok()["spec"]["replicas"], 0);

        let table = admin.request("GET", &path, &[TABLE], b"").ok();
        let columns: Vec<&str> =
            table["columnDefinitions"].as_array().unwrap().iter().map(|item| text(item, "/name")).collect();
        assert_eq!(columns, ["Name", "Desired", "Available", "Age"]);
        assert_eq!(table["rows"][0]["cells"].as_array().unwrap()[..3], [json!("x"), json!(0), json!(0)]);
    }
}

#[test]
fn invalid_scale_is_refused() {
    let server = Server::start();
    let mut admin = server.admin();
    let (collection, object) = scalable().swap_remove(0);
    admin.post(collection, &object).ok();
    let path = format!("{collection}/x/scale");
    let status = admin.put(&path, &json!({"metadata": {"name": "x"}, "spec": {"replicas": -1}}));
    let status = status.expect_error(422, "Invalid");
    assert_eq!(
        text(&status, "/message"),
        "Scale.autoscaling \"x\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0"
    );
    let status = admin.put(&path, &json!({"metadata": {"name": "y"}})).expect_error(400, "BadRequest");
    assert_eq!(
        text(&status, "/message"),
        "the name of the object (y) does not match the name on the URL (x)"
    );
    let other_uid = json!({"metadata": {"name": "x", "uid": "other"}});
    let status = admin.put(&path, &other_uid).expect_error(409, "Conflict");
    assert!(text(&status, "/message").contains("UID in precondition: other"), "{status}");
    let status = admin.put(&path, &object).expect_error(400, "BadRequest");
    assert!(text(&status, "/message").contains("cannot be handled as a Scale"), "{status}");
    for response in [
        admin.get(&format!("{collection}/y/scale")),
        admin.put(&format!("{collection}/y/scale"), &json!({"metadata": {"name": "y"}})),
    ] {
        let status = response.expect_error(404, "NotFound");
        assert_eq!(text(&status, "/message"), "deployments.apps \"y\" not found");
    }
    admin.post(&path, &json!({})).expect_error(405, "MethodNotAllowed");
    admin.get("/apis/apps/v1/namespaces/default/daemonsets/x/scale").expect_error(404, "NotFound");
}

fn binding(name: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "annotations": {"why": "tests"}},
        "target": {"kind": "Node", "name": node}})
}

/// Expects 201 with a Status of success.
fn assert_success_status(response: &crate::support::Response) {
    assert_eq!(response.status, 201, "{}", response.text());
    let expected =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    assert_eq!(response.json(), expected);
}

#[test]
fn pod_binding_succeeds_once() {
    let server = Server::start();
    let mut admin = server.admin();
    let created = admin.post(PODS, &pod("p")).ok();
    let path = format!("{PODS}/p/binding");
    assert_success_status(&admin.post(&format!("{path}?dryRun=All"), &binding("p", "n1")));
    let mut stale_binding = binding("p", "n1");
    stale_binding["metadata"]["resourceVersion"] = json!("999999");
    admin.post(&path, &stale_binding).expect_error(409, "Conflict");
    assert_success_status(&admin.post(&path, &binding("p", "n1")));
    let bound = admin.get(&format!("{PODS}/p")).ok();
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["metadata"]["annotations"]["why"], "tests");
    assert_eq!(bound["metadata"]["generation"], created["metadata"]["generation"]);
    let condition = &bound["status"]["conditions"][0];
    assert_eq!((text(condition, "/type"), text(condition, "/status")), ("PodScheduled", "True"));
    let status = admin.post(&path, &binding("p", "n2")).expect_error(409, "Conflict");
    assert_eq!(
        text(&status, "/message"),
        "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n1\""
    );
    admin.post(&path, &binding("q", "n1")).expect_error(400, "BadRequest");
    let status = admin.post(&path, &binding("p", "")).expect_error(422, "Invalid");
    assert_eq!(text(&status, "/message"), "Binding \"p\" is invalid: target.name: Required value");

    let mut with_gate = pod("held");
    with_gate["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}]);
    admin.post(PODS, &with_gate).ok();
    let status =
        admin.post(&format!("{PODS}/held/binding"), &binding("held", "n1")).expect_error(409, "Conflict");
    assert!(text(&status, "/message").ends_with("pod held has non-empty .spec.schedulingGates"));

    // The older path names the pod in the body alone.
    admin.post(PODS, &pod("q")).ok();
    let bindings = "/api/v1/namespaces/default/bindings";
    assert_success_status(&admin.post(bindings, &binding("q", "n2")));
    assert_eq!(admin.get(&format!("{PODS}/q")).ok()["spec"]["nodeName"], "n2");
    admin.post(bindings, &binding("none", "n2")).expect_error(404, "NotFound");
    admin.get(bindings).expect_error(405, "MethodNotAllowed");
}

fn eviction(name: &str, options: &Value) -> Value {
    json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options})
}

/// Creates a running pod on a node, ready or not.
fn create_running_pod(admin: &mut Client, name: &str, ready: bool) {
    let mut object = pod(name);
    object["spec"]["nodeName"] = json!("n1");
    let mut created = admin.post(PODS, &object).ok();
    let ready = if ready { "True" } else { "False" };
    created["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]});
    admin.put(&format!("{PODS}/{name}/status"), &created).ok();
}

/// Sets the status of a budget.
fn set_allowed_disruptions(admin: &mut Client, name: &str, disruptions: i64, healthy: i64, desired: i64) {
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
fn eviction_honours_options_and_grace_period() {
    let server = Server::start();
    let mut admin = server.admin();
    admin.post(PODS, &pod("waiting")).ok();
    let path = |name: &str| format!("{PODS}/{name}/eviction");
    let status =
        admin.post(&path("waiting"), &eviction("other", &json!(null))).expect_error(400, "BadRequest");
    assert_eq!(text(&status, "/message"), "name in URL does not match name in Eviction object");
    admin.post(&path("none"), &eviction("none", &json!(null))).expect_error(404, "NotFound");
    assert_success_status(
        &admin.post(&format!("{}?dryRun=All", path("waiting")), &eviction("waiting", &json!(null))),
    );
    assert_success_status(&admin.post(&path("waiting"), &eviction("waiting", &json!({"dryRun": ["All"]}))));
    assert_eq!(admin.get(&format!("{PODS}/waiting")).status, 200, "a dry run changes nothing");
    let preconditions = json!({"preconditions": {"uid": "other"}});
    admin.post(&path("waiting"), &eviction("waiting", &preconditions)).expect_error(409, "Conflict");
    let preconditions = json!({"preconditions": {"resourceVersion": "999999"}});
    admin.post(&path("waiting"), &eviction("waiting", &preconditions)).expect_error(409, "Conflict");
    assert_success_status(&admin.post(&path("waiting"), &eviction("waiting", &json!(null))));
    admin.get(&format!("{PODS}/waiting")).expect_error(404, "NotFound");

    // A running pod gets its grace period and a condition.
    create_running_pod(&mut admin, "running", true);
    let mut old = eviction("running", &json!({"gracePeriodSeconds": 7}));
    old["apiVersion"] = json!("policy/v1beta1");
    assert_success_status(&admin.post(&path("running"), &old));
    let terminating = admin.get(&format!("{PODS}/running")).ok();
    assert_eq!(terminating["metadata"]["deletionGracePeriodSeconds"], 7);
    let conditions = terminating["status"]["conditions"].as_array().unwrap();
    let target = conditions.iter().find(|item| item["type"] == "DisruptionTarget").unwrap();
    assert_eq!(target["reason"], "EvictionByEvictionAPI");
    assert_success_status(
        &admin.post(&path("running"), &eviction("running", &json!({"gracePeriodSeconds": 0}))),
    );
    admin.get(&format!("{PODS}/running")).expect_error(404, "NotFound");
}

#[test]
fn eviction_consumes_disruption_budget() {
    let server = Server::start();
    let mut admin = server.admin();
    for name in ["a", "b"] {
        create_running_pod(&mut admin, name, true);
    }
    admin.post(BUDGETS, &budget("guard")).ok();
    let path = |name: &str| format!("{PODS}/{name}/eviction");
    let reason = |status: &Value| text(status, "/details/causes/0/message").to_owned();

    let response = admin.post(&path("a"), &eviction("a", &json!(null)));
    assert_eq!(response.header("retry-after"), Some("10"));
    let status = response.expect_error(429, "TooManyRequests");
    assert_eq!(reason(&status), "The disruption budget guard is still being processed by the server.");
    assert_eq!(status["details"]["causes"][0]["reason"], "DisruptionBudget");

    set_allowed_disruptions(&mut admin, "guard", 0, 2, 2);
    let status = admin.post(&path("a"), &eviction("a", &json!(null))).expect_error(429, "TooManyRequests");
    assert_eq!(reason(&status), "The disruption budget guard needs 2 healthy pods and has 2 currently");

    set_allowed_disruptions(&mut admin, "guard", 1, 2, 1);
    assert_success_status(&admin.post(&format!("{}?dryRun=All", path("a")), &eviction("a", &json!(null))));
    assert_eq!(admin.get(&format!("{BUDGETS}/guard")).ok()["status"]["disruptionsAllowed"], 1);
    assert_success_status(&admin.post(&path("a"), &eviction("a", &json!(null))));
    let budget_status = admin.get(&format!("{BUDGETS}/guard")).ok()["status"].clone();
    assert_eq!(budget_status["disruptionsAllowed"], 0);
    assert!(budget_status["disruptedPods"]["a"].is_string(), "{budget_status}");
    assert_eq!(budget_status["conditions"][0]["reason"], "InsufficientPods");
    let response = admin.post(&path("b"), &eviction("b", &json!(null)));
    response.expect_error(429, "TooManyRequests");
    // A terminating pod does not count against the budget.
    assert_success_status(&admin.post(&path("a"), &eviction("a", &json!(null))));

    let mut second_budget = budget("second");
    second_budget["spec"]["selector"] = json!({});
    admin.post(BUDGETS, &second_budget).ok();
    let response = admin.post(&path("b"), &eviction("b", &json!(null)));
    assert_eq!(response.status, 500);
    assert!(text(&response.json(), "/message").starts_with("This pod has more than one PodDisruptionBudget"));
}

#[test]
fn unready_pod_eviction_follows_unhealthy_policy() {
    let server = Server::start();
    let mut admin = server.admin();
    create_running_pod(&mut admin, "sick", false);
    admin.post(BUDGETS, &budget("guard")).ok();
    let path = format!("{PODS}/sick/eviction");
    set_allowed_disruptions(&mut admin, "guard", 0, 1, 2);
    admin.post(&path, &eviction("sick", &json!(null))).expect_error(429, "TooManyRequests");
    set_allowed_disruptions(&mut admin, "guard", 0, 2, 2);
    assert_success_status(&admin.post(&path, &eviction("sick", &json!(null))));
    let status = admin.get(&format!("{BUDGETS}/guard")).ok()["status"].clone();
    assert_eq!(status.get("disruptedPods"), None, "an unready pod is not counted");

    create_running_pod(&mut admin, "sicker", false);
    set_allowed_disruptions(&mut admin, "guard", 0, 0, 2);
    let mut with_always_allow = admin.get(&format!("{BUDGETS}/guard")).ok();
    with_always_allow["spec"]["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
    admin.put(&format!("{BUDGETS}/guard"), &with_always_allow).ok();
    assert_success_status(&admin.post(&format!("{PODS}/sicker/eviction"), &eviction("sicker", &json!(null))));
}

#[test]
fn ephemeral_containers_and_resize_change_only_their_fields() {
    let server = Server::start();
    let mut admin = server.admin();
    let mut object = pod("p");
    object["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1", "memory": "1Gi"}});
    let created = admin.post(PODS, &object).ok();
    assert_eq!(admin.get(&format!("{PODS}/p/ephemeralcontainers")).ok(), created);
    assert_eq!(admin.get(&format!("{PODS}/p/resize")).ok(), created);

    let mut with_ephemeral = created;
    with_ephemeral["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "debugger"}]);
    with_ephemeral["metadata"]["labels"]["ignored"] = json!("yes");
    let added = admin.put(&format!("{PODS}/p/ephemeralcontainers"), &with_ephemeral).ok();
    assert_eq!(added["spec"]["ephemeralContainers"][0]["imagePullPolicy"], "Always");
    assert_eq!(added["metadata"]["labels"].get("ignored"), None);
    assert_eq!(added["metadata"]["generation"], 2);
    let mut without_ephemeral = added.clone();
    without_ephemeral["spec"].as_object_mut().unwrap().remove("ephemeralContainers");
    admin.put(&format!("{PODS}/p/ephemeralcontainers"), &without_ephemeral).expect_error(422, "Invalid");

    let mut with_more_cpu = added;
    with_more_cpu["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("2");
    let resized = admin.put(&format!("{PODS}/p/resize"), &with_more_cpu).ok();
    assert_eq!(resized["spec"]["containers"][0]["resources"]["requests"]["cpu"], "2");
    assert_eq!(resized["metadata"]["generation"], 3);
    let mut without_resources = resized;
    without_resources["spec"]["containers"][0]["resources"] = json!({});
    let status = admin.put(&format!("{PODS}/p/resize"), &without_resources).expect_error(422, "Invalid");
    assert!(text(&status, "/message").contains("Pod QOS Class may not change"), "{status}");
    for subresource in ["ephemeralcontainers", "resize"] {
        let table = admin.request("GET", &format!("{PODS}/p/{subresource}"), &[TABLE], b"");
        table.expect_error(406, "NotAcceptable");
        let status = admin.get(&format!("{PODS}/none/{subresource}")).expect_error(404, "NotFound");
        assert_eq!(text(&status, "/message"), "pods \"none\" not found");
    }
}

#[test]
fn csr_approval_subresource_changes_only_conditions() {
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
    let created = admin.post(REQUESTS, &request).ok();
    assert_eq!(admin.get(&format!("{REQUESTS}/r/approval")).ok(), created);
    let approved = json!([{"type": "Approved", "status": "True", "reason": "Tested", "message": "yes"}]);
    let mut approved_request = created;
    approved_request["status"] = json!({"conditions": approved});
    approved_request["spec"]["signerName"] = json!("example.com/other");
    let stored = admin.put(&format!("{REQUESTS}/r/approval"), &approved_request).ok();
    assert_eq!(stored["spec"]["signerName"], "kubernetes.io/kube-apiserver-client");
    let condition = &stored["status"]["conditions"][0];
    assert_eq!(text(condition, "/reason"), "Tested");
    assert!(condition["lastUpdateTime"].is_string() && condition["lastTransitionTime"].is_string());
    let mut without_approval = stored;
    without_approval["status"]["conditions"] = json!([]);
    admin.put(&format!("{REQUESTS}/r/approval"), &without_approval).expect_error(422, "Invalid");
}

#[test]
fn subresources_are_patched_in_their_own_form() {
    let server = Server::start();
    let mut admin = server.admin();
    for (collection, object) in scalable() {
        admin.post(collection, &object).ok();
        let path = format!("{collection}/x/scale");
        let merged = admin.patch(&path, "merge", &json!({"spec": {"replicas": 3}})).ok();
        assert_eq!(
            (text(&merged, "/kind"), &merged["spec"]["replicas"]),
            ("Scale", &json!(3)),
            "{collection}"
        );
        let operations = json!([{"op": "test", "path": "/spec/replicas", "value": 3},
            {"op": "replace", "path": "/spec/replicas", "value": 4}]);
        assert_eq!(admin.patch(&path, "json", &operations).ok()["spec"]["replicas"], 4);
        let patch = json!({"spec": {"replicas": 6}});
        assert_eq!(admin.patch(&path, "strategic-merge", &patch).ok()["spec"]["replicas"], 6);
        let parent = admin.get(&format!("{collection}/x")).ok();
        assert_eq!((&parent["spec"]["replicas"], &parent["kind"]), (&json!(6), &object["kind"]));
        assert_eq!(admin.patch(&path, "merge", &patch).ok()["metadata"], admin.get(&path).ok()["metadata"]);
        assert_eq!(
            admin.get(&format!("{collection}/x")).ok(),
            parent,
            "a patch that changes nothing writes nothing"
        );
        let status =
            admin.patch(&path, "merge", &json!({"spec": {"replicas": -1}})).expect_error(422, "Invalid");
        assert!(text(&status, "/message").starts_with("Scale.autoscaling \"x\" is invalid"), "{status}");
        let old = json!({"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 9}});
        admin.patch(&path, "merge", &old).expect_error(409, "Conflict");
    }
    let mut object = pod("p");
    object["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
    admin.post(PODS, &object).ok();
    let with_ephemeral = json!({"metadata": {"labels": {"ignored": "yes"}},
        "spec": {"ephemeralContainers": [{"name": "e", "image": "debugger"}]}});
    let added =
        admin.patch(&format!("{PODS}/p/ephemeralcontainers"), "strategic-merge", &with_ephemeral).ok();
    assert_eq!(added["spec"]["ephemeralContainers"][0]["name"], "e");
    assert_eq!(added["metadata"]["labels"].get("ignored"), None);
    let with_more_cpu =
        json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}});
    let resized = admin.patch(&format!("{PODS}/p/resize"), "strategic-merge", &with_more_cpu).ok();
    assert_eq!(resized["spec"]["containers"][0]["resources"]["requests"]["cpu"], "2");
    assert_eq!(resized["spec"]["containers"][0]["image"], "i");
    let running = json!({"status": {"phase": "Running"}, "spec": {"hostname": "ignored"}});
    let status = admin.patch(&format!("{PODS}/p/status"), "merge", &running).ok();
    assert_eq!((text(&status, "/status/phase"), status["spec"].get("hostname")), ("Running", None));
}

#[test]
fn apply_through_object_and_scale_share_replicas_owner() {
    let server = Server::start();
    let mut admin = server.admin();
    let apply = |admin: &mut Client, path: &str, body: &Value| {
        let media = [("content-type", "application/apply-patch+yaml")];
        admin.request("PATCH", path, &media, body.to_string().as_bytes())
    };
    let (collection, object) = scalable().remove(0);
    let (path, scale) = (format!("{collection}/x?fieldManager=person"), format!("{collection}/x/scale"));
    apply(&mut admin, &path, &object).ok();
    let patch = json!({"spec": {"replicas": 3}});
    admin.patch(&format!("{scale}?fieldManager=scaler"), "merge", &patch).ok();
    let entries = admin.get(&format!("{collection}/x")).ok()["metadata"]["managedFields"].clone();
    let scaler = entries.as_array().unwrap().iter().find(|entry| entry["manager"] == "scaler").unwrap();
    assert_eq!(
        scaler,
        &json!({"manager": "scaler", "operation": "Update", "apiVersion": "apps/v1", "subresource": "scale",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}}})
    );
    let person = entries.as_array().unwrap().iter().find(|entry| entry["manager"] == "person").unwrap();
    assert_eq!(person["fieldsV1"]["f:spec"].get("f:replicas"), None);
    assert!(person["fieldsV1"]["f:spec"].get("f:template").is_some());

    let status = apply(&mut admin, &path, &object).expect_error(409, "Conflict");
    let expected = "Apply failed with 1 conflict: conflict with \"scaler\" with subresource \"scale\" using apps/v1: \
        .spec.replicas";
    assert_eq!(text(&status, "/message"), expected);
    let body = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "x"},
        "spec": {"replicas": 5}});
    let status =
        apply(&mut admin, &format!("{scale}?fieldManager=other"), &body).expect_error(409, "Conflict");
    let expected = "Apply failed with 1 conflict: conflict with \"scaler\" with subresource \"scale\" using \
        autoscaling/v1: .spec.replicas";
    assert_eq!(text(&status, "/message"), expected);
    let forced = apply(&mut admin, &format!("{scale}?fieldManager=other&force=true"), &body).ok();
    assert_eq!((text(&forced, "/kind"), &forced["spec"]["replicas"]), ("Scale", &json!(5)));
    assert_eq!(forced["metadata"].get("managedFields"), None);
    let entries = admin.get(&format!("{collection}/x")).ok()["metadata"]["managedFields"].clone();
    let owners: Vec<&str> = entries.as_array().unwrap().iter().map(|entry| text(entry, "/manager")).collect();
    assert_eq!(owners, ["other", "person"]);
}
