//! Unreadable policies, webhooks, CRDs, RBAC objects and registrations fail closed and are reported until they are deleted.

use std::collections::BTreeSet;
use std::path::Path;

use pilothouse_actors::engine::redb::Redb;
use pilothouse_types::object::TypeName;
use serde_json::{Value, json};

use super::{FORCE, MAPS, map};
use crate::support::compare::text;
use crate::support::server::{USER_TOKEN, temp_directory};
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

const GATES: &str = "--feature-gates=MutatingAdmissionPolicy=true,AllowUnsafeMalformedObjectDeletion=true";
const ALPHA: &str = "--runtime-config=admissionregistration.k8s.io/v1alpha1=true";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io";

/// A stored object: its collection, its type and its key.
struct Guard {
    collection: String,
    type_name: &'static str,
    key: &'static str,
}

impl Guard {
    fn new(collection: &str, type_name: &'static str, key: &'static str) -> Guard {
        Guard { collection: collection.to_owned(), type_name, key }
    }

    fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or_default()
    }

    /// The name in messages.
    fn display_name(&self) -> String {
        format!("{} \"{}\"", self.type_name, self.key)
    }

    fn remove(&self, client: &mut Client) {
        client.delete(&format!("{}/{}?{FORCE}", self.collection, self.name())).ok();
    }
}

fn damage(data: &Path, guards: &[Guard]) {
    let mut engine = Redb::open(&data.join("pilothouse.redb")).expect("the store");
    for Guard { type_name, key, .. } in guards {
        assert!(
            engine.damage(&TypeName::new(type_name), key).expect("a store that can be written"),
            "{type_name} {key}"
        );
    }
}

/// Checks that the health check and the metric report these objects and no others.
fn assert_reported(client: &mut Client, guards: &[Guard]) {
    let page = client.get("/readyz/readable-guards");
    let metrics = client.get("/metrics").text();
    let counted: BTreeSet<&str> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("pilothouse_unreadable_objects{resource=\""))
        .collect();
    let expected: Vec<String> = guards.iter().map(|guard| format!("{}\"}} 1", guard.type_name)).collect();
    assert_eq!(counted, expected.iter().map(String::as_str).collect());
    assert_eq!(page.status, if guards.is_empty() { 200 } else { 500 }, "{}", page.text());
    for guard in guards {
        assert!(page.text().contains(&guard.display_name()), "{} in {}", guard.display_name(), page.text());
    }
    assert_eq!(client.get("/readyz").status, page.status);
    assert_eq!(client.get("/readyz?exclude=readable-guards").status, 200);
    assert_eq!(client.get("/livez").status, 200);
}

fn admission_guards(client: &mut Client) -> Vec<Guard> {
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]);
    let constraints = json!({"resourceRules": rules});
    let hook = json!([{"name": "h.example.com", "rules": rules, "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "failurePolicy": "Ignore", "clientConfig": {"url": "https://127.0.0.1:9/"}}]);
    let mut guards = Vec::new();
    for (version, resource, type_name, spec) in [
        (
            "v1",
            "validatingadmissionpolicies",
            "validatingadmissionpolicies.admissionregistration.k8s.io",
            json!({"spec": {"failurePolicy": "Fail", "matchConstraints": constraints,
                "validations": [{"expression": "false"}]}}),
        ),
        (
            "v1",
            "validatingadmissionpolicybindings",
            "validatingadmissionpolicybindings.admissionregistration.k8s.io",
            json!({"spec": {"policyName": "g", "validationActions": ["Deny"]}}),
        ),
        (
            "v1alpha1",
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicies.admissionregistration.k8s.io",
            json!({"spec": {"failurePolicy": "Fail", "matchConstraints": constraints, "reinvocationPolicy": "Never",
                "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression":
                    "Object{metadata: Object.metadata{labels: {'a': 'b'}}}"}}]}}),
        ),
        (
            "v1alpha1",
            "mutatingadmissionpolicybindings",
            "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
            json!({"spec": {"policyName": "g"}}),
        ),
        (
            "v1",
            "mutatingwebhookconfigurations",
            "mutatingwebhookconfigurations.admissionregistration.k8s.io",
            json!({"webhooks": hook}),
        ),
        (
            "v1",
            "validatingwebhookconfigurations",
            "validatingwebhookconfigurations.admissionregistration.k8s.io",
            json!({"webhooks": hook}),
        ),
    ] {
        let collection = format!("{ADMISSION}/{version}/{resource}");
        let mut object = spec;
        object["metadata"] = json!({"name": "g"});
        client.post(&collection, &object).ok();
        guards.push(Guard::new(&collection, type_name, "g"));
    }
    guards
}

/// Each of them might refuse any write, so all writes are refused until the last of them is deleted.
#[test]
fn unreadable_admission_object_refuses_every_write() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let server = Server::start_on_file(&data, &[GATES, ALPHA]);
    let mut client = server.admin();
    client.post(MAPS, &map("before")).ok();
    let mut guards = admission_guards(&mut client);
    assert_reported(&mut client, &[]);
    server.stop();
    damage(&data, &guards);

    let server = Server::start_on_file(&data, &[GATES, ALPHA]);
    let mut client = server.admin();
    assert_reported(&mut client, &guards);
    // Reads and writes of admission configuration still work.
    client.get(&format!("{MAPS}/before")).ok();
    let policy = json!({"metadata": {"name": "other"}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": ["none"], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["none"]}]}, "validations": [{"expression": "true"}]}});
    client.post(&format!("{ADMISSION}/v1/validatingadmissionpolicies"), &policy).ok();
    for _ in 0..6 {
        let merge = json!({"data": {"a": "b"}});
        let (created, patched, deleted) = (
            client.post(MAPS, &map("new")).expect_error(500, "InternalError"),
            client.patch(&format!("{MAPS}/before"), "merge", &merge).expect_error(500, "InternalError"),
            client.delete(&format!("{MAPS}/before")).expect_error(500, "InternalError"),
        );
        let guard_index = |status: &Value| {
            let message = text(status, "/message").to_owned();
            let guard_index = guards.iter().position(|guard| message.contains(&guard.display_name()));
            guard_index.unwrap_or_else(|| panic!("{status}"))
        };
        assert_eq!(guard_index(&created), guard_index(&patched));
        guard_index(&deleted);
        let guard = guards.remove(guard_index(&created));
        assert_eq!(created["details"]["causes"].as_array().map(Vec::len), Some(1), "{created}");
        guard.remove(&mut client);
        assert_reported(&mut client, &guards);
    }
    client.post(MAPS, &map("new")).ok();
    client.delete(&format!("{MAPS}/before")).ok();
    server.stop();
}

fn widgets() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}})
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/doomed/widgets";

fn define_widgets(client: &mut Client) {
    client.post(DEFINITIONS, &widgets()).ok();
    poll(TIMEOUT, || (client.get(WIDGETS).status == 200).then_some(())).expect("it is served");
}

/// The objects of an unreadable CRD are neither served nor deleted.
#[test]
fn unreadable_crd_makes_its_objects_unavailable_not_deleted() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let server = Server::start_on_file(&data, &[GATES]);
    let mut client = server.admin();
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "doomed"}})).ok();
    define_widgets(&mut client);
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    client.post(WIDGETS, &widget).ok();
    server.stop();
    let guards =
        [Guard::new(DEFINITIONS, "customresourcedefinitions.apiextensions.k8s.io", "widgets.example.com")];
    damage(&data, &guards);

    let server = Server::start_on_file(&data, &[GATES, "--controllers=*"]);
    let mut client = server.admin();
    assert_reported(&mut client, &guards);
    for path in [WIDGETS, &format!("{WIDGETS}/w"), "/apis/example.com/v2/widgets"] {
        let status = client.get(path).expect_error(503, "ServiceUnavailable");
        assert!(text(&status, "/message").contains(&guards[0].display_name()), "{status}");
    }
    client.post(WIDGETS, &widget).expect_error(503, "ServiceUnavailable");
    client.get("/apis/example.com/v1").expect_error(503, "ServiceUnavailable");
    client.get("/apis/apiregistration.k8s.io/v1/apiservices/v1.example.com").ok();
    assert_eq!(client.get("/apis/example.com/v1/gadgets").status, 404, "only what it may define");
    // Its names are unknown, so a CRD of the same group is not accepted.
    let mut gadgets = widgets();
    gadgets["metadata"]["name"] = json!("gadgets.example.com");
    gadgets["spec"]["names"] =
        json!({"plural": "gadgets", "singular": "gadget", "kind": "Widget", "listKind": "WidgetList"});
    client.post(DEFINITIONS, &gadgets).ok();
    let names_condition = poll(TIMEOUT, || {
        let gadgets = client.get(&format!("{DEFINITIONS}/gadgets.example.com")).ok();
        let conditions = gadgets["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| condition["type"] == "NamesAccepted")
    });
    assert_eq!(names_condition.expect("a condition")["reason"], "NamesUnknown");
    client.delete(&format!("{DEFINITIONS}/gadgets.example.com")).ok();
    // Deletion of a namespace with such objects waits.
    client.delete("/api/v1/namespaces/doomed").ok();
    let condition = poll(TIMEOUT, || {
        let namespace = client.get("/api/v1/namespaces/doomed").ok();
        let conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| {
            condition["type"] == "NamespaceDeletionContentFailure" && condition["status"] == "True"
        })
    });
    assert!(text(&condition.expect("it says why"), "/message").contains(&guards[0].display_name()));

    guards[0].remove(&mut client);
    assert_reported(&mut client, &[]);
    poll(TIMEOUT, || (client.get("/apis/example.com/v1").status == 404).then_some(())).expect("it is gone");
    server.stop();
}

/// RBAC, flow control, APIService, quota and limit range objects.
#[test]
fn unreadable_rbac_quota_and_registration_objects_fail_closed() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let server = Server::start_on_file(&data, &[GATES, "--controllers=*"]);
    let mut client = server.admin();
    let rules = json!([{"apiGroups": ["example.com"], "resources": ["things"], "verbs": ["get"]}]);
    let label = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    client.post(ROLES, &json!({"metadata": {"name": "g", "labels": label}, "rules": rules})).ok();
    poll(TIMEOUT, || view_has_rule(&mut client, "things").then_some(())).expect("it is aggregated");
    let view = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"});
    let all_users =
        json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}]);
    client
        .post(ROLE_BINDINGS, &json!({"metadata": {"name": "g"}, "roleRef": view, "subjects": all_users}))
        .ok();
    client.with_token(Some(USER_TOKEN)).get(MAPS).ok();
    let mut guards = create_other_guards(&mut client);
    server.stop();
    damage(&data, &guards);

    let server = Server::start_on_file(&data, &[GATES, "--controllers=*"]);
    let mut client = server.admin();
    assert_reported(&mut client, &guards);
    client.with_token(Some(USER_TOKEN)).get(MAPS).expect_error(403, "Forbidden");
    // Another source of the aggregated role triggers its controller.
    let other_rules = json!([{"apiGroups": ["example.com"], "resources": ["others"], "verbs": ["get"]}]);
    client.post(ROLES, &json!({"metadata": {"name": "h", "labels": label}, "rules": other_rules})).ok();
    for path in ["/apis/far.example.com/v1/things", "/apis/far.example.com/v1"] {
        let status = client.get(path).expect_error(503, "ServiceUnavailable");
        assert!(text(&status, "/message").contains(&guards[3].display_name()), "{status}");
    }
    let status = client.post(MAPS, &map("new")).expect_error(500, "InternalError");
    assert!(text(&status, "/message").contains(&guards[4].display_name()), "{status}");
    guards.remove(4).remove(&mut client);
    client.post(MAPS, &map("new")).ok();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let status = client.post("/api/v1/namespaces/default/pods", &pod).expect_error(500, "InternalError");
    assert!(text(&status, "/message").contains(&guards[4].display_name()), "{status}");
    guards.remove(4).remove(&mut client);
    client.post("/api/v1/namespaces/default/pods", &pod).ok();
    assert_reported(&mut client, &guards);
    assert!(view_has_rule(&mut client, "things"), "rules stay while their source cannot be read");
    while let Some(guard) = guards.pop() {
        guard.remove(&mut client);
        assert_reported(&mut client, &guards);
    }
    // Now the role can be aggregated again.
    poll(TIMEOUT, || view_has_rule(&mut client, "others").then_some(())).expect("the controller goes on");
    assert!(!view_has_rule(&mut client, "things"), "the source is gone");
    server.stop();
}

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const ROLE_BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";

/// Whether the aggregated role `view` has a rule for a resource.
fn view_has_rule(client: &mut Client, resource: &str) -> bool {
    let view = client.get(&format!("{ROLES}/view")).ok();
    view["rules"]
        .as_array()
        .is_some_and(|rules| rules.iter().any(|rule| rule["resources"] == json!([resource])))
}

/// Creates a flow schema, an APIService, a quota and a limit range. Returns them behind the role and the binding `g`.
fn create_other_guards(client: &mut Client) -> Vec<Guard> {
    let schemas = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
    client
        .post(
            schemas,
            &json!({"metadata": {"name": "g"}, "spec": {"matchingPrecedence": 50,
        "priorityLevelConfiguration": {"name": "catch-all"}}}),
        )
        .ok();
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    client
        .post(
            services,
            &json!({"metadata": {"name": "v1.far.example.com"}, "spec": {"group": "far.example.com",
        "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100, "insecureSkipTLSVerify": true,
        "service": {"namespace": "default", "name": "far"}}}),
        )
        .ok();
    let (quotas, ranges) =
        ("/api/v1/namespaces/default/resourcequotas", "/api/v1/namespaces/default/limitranges");
    client.post(quotas, &json!({"metadata": {"name": "g"}, "spec": {"hard": {"configmaps": "9"}}})).ok();
    client
        .post(
            ranges,
            &json!({"metadata": {"name": "g"}, "spec": {"limits": [{"type": "Pod", "max": {"cpu": "1"}}]}}),
        )
        .ok();
    vec![
        Guard::new(ROLES, "clusterroles.rbac.authorization.k8s.io", "g"),
        Guard::new(ROLE_BINDINGS, "clusterrolebindings.rbac.authorization.k8s.io", "g"),
        Guard::new(schemas, "flowschemas.flowcontrol.apiserver.k8s.io", "g"),
        Guard::new(services, "apiservices.apiregistration.k8s.io", "v1.far.example.com"),
        Guard::new(quotas, "resourcequotas", "default/g"),
        Guard::new(ranges, "limitranges", "default/g"),
    ]
}
