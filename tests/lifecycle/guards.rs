//! What guards something and cannot be read fails closed, is shown, and ends when it is removed.

use std::collections::BTreeSet;
use std::path::Path;

use pilothouse_actors::engine::redb::Redb;
use pilothouse_types::object::TypeName;
use serde_json::{Value, json};

use crate::support::compare::text;
use crate::support::server::{USER_TOKEN, directory};
use crate::support::wait::{CAP, poll};
use crate::support::{Client, Server};
use crate::{FORCE, MAPS, map};

const GATES: &str = "--feature-gates=MutatingAdmissionPolicy=true,AllowUnsafeMalformedObjectDeletion=true";
const ALPHA: &str = "--runtime-config=admissionregistration.k8s.io/v1alpha1=true";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io";

/// A stored object: its collection, its type, its key and its name.
struct Guard {
    collection: String,
    of: &'static str,
    key: &'static str,
}

impl Guard {
    fn new(collection: &str, of: &'static str, key: &'static str) -> Guard {
        Guard { collection: collection.to_owned(), of, key }
    }

    fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or_default()
    }

    /// How messages name it.
    fn shown(&self) -> String {
        format!("{} \"{}\"", self.of, self.key)
    }

    fn remove(&self, client: &mut Client) {
        client.delete(&format!("{}/{}?{FORCE}", self.collection, self.name())).ok();
    }
}

fn damage(data: &Path, guards: &[Guard]) {
    let mut engine = Redb::open(&data.join("pilothouse.redb")).expect("the store");
    for Guard { of, key, .. } in guards {
        assert!(engine.damage(&TypeName::new(of), key).expect("a store that can be written"), "{of} {key}");
    }
}

/// Whether the health check and the metric show these objects and no others.
fn shown(client: &mut Client, guards: &[Guard]) {
    let page = client.get("/readyz/readable-guards");
    let metrics = client.get("/metrics").text();
    let counted: BTreeSet<&str> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("pilothouse_unreadable_objects{resource=\""))
        .collect();
    let wanted: Vec<String> = guards.iter().map(|guard| format!("{}\"}} 1", guard.of)).collect();
    assert_eq!(counted, wanted.iter().map(String::as_str).collect());
    assert_eq!(page.status, if guards.is_empty() { 200 } else { 500 }, "{}", page.text());
    for guard in guards {
        assert!(page.text().contains(&guard.shown()), "{} in {}", guard.shown(), page.text());
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
    for (version, resource, of, spec) in [
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
        guards.push(Guard::new(&collection, of, "g"));
    }
    guards
}

/// Each of them might refuse anything, so everything is refused until the last of them is gone.
#[test]
fn admission_that_cannot_be_read_refuses_every_write() {
    let directory = directory();
    let data = directory.path().join("data");
    let server = Server::on(&data, &[GATES, ALPHA]);
    let mut client = server.admin();
    client.post(MAPS, &map("before")).ok();
    let mut guards = admission_guards(&mut client);
    shown(&mut client, &[]);
    server.stop();
    damage(&data, &guards);

    let server = Server::on(&data, &[GATES, ALPHA]);
    let mut client = server.admin();
    shown(&mut client, &guards);
    // Reads go on, and so do the writes that repair.
    client.get(&format!("{MAPS}/before")).ok();
    let policy = json!({"metadata": {"name": "other"}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": ["none"], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["none"]}]}, "validations": [{"expression": "true"}]}});
    client.post(&format!("{ADMISSION}/v1/validatingadmissionpolicies"), &policy).ok();
    for _ in 0..6 {
        let merge = json!({"data": {"a": "b"}});
        let (created, patched, deleted) = (
            client.post(MAPS, &map("new")).refused(500, "InternalError"),
            client.patch(&format!("{MAPS}/before"), "merge", &merge).refused(500, "InternalError"),
            client.delete(&format!("{MAPS}/before")).refused(500, "InternalError"),
        );
        let named = |status: &Value| {
            let message = text(status, "/message").to_owned();
            let named = guards.iter().position(|guard| message.contains(&guard.shown()));
            named.unwrap_or_else(|| panic!("{status}"))
        };
        assert_eq!(named(&created), named(&patched));
        named(&deleted);
        let guard = guards.remove(named(&created));
        assert_eq!(created["details"]["causes"].as_array().map(Vec::len), Some(1), "{created}");
        guard.remove(&mut client);
        shown(&mut client, &guards);
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
    poll(CAP, || (client.get(WIDGETS).status == 200).then_some(())).expect("it is served");
}

/// A definition that cannot be read: its objects are neither served nor gone.
#[test]
fn the_objects_of_a_definition_that_cannot_be_read_are_not_gone() {
    let directory = directory();
    let data = directory.path().join("data");
    let server = Server::on(&data, &[GATES]);
    let mut client = server.admin();
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "doomed"}})).ok();
    define_widgets(&mut client);
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    client.post(WIDGETS, &widget).ok();
    server.stop();
    let guards =
        [Guard::new(DEFINITIONS, "customresourcedefinitions.apiextensions.k8s.io", "widgets.example.com")];
    damage(&data, &guards);

    let server = Server::on(&data, &[GATES, "--controllers=*"]);
    let mut client = server.admin();
    shown(&mut client, &guards);
    for path in [WIDGETS, &format!("{WIDGETS}/w"), "/apis/example.com/v2/widgets"] {
        let status = client.get(path).refused(503, "ServiceUnavailable");
        assert!(text(&status, "/message").contains(&guards[0].shown()), "{status}");
    }
    client.post(WIDGETS, &widget).refused(503, "ServiceUnavailable");
    client.get("/apis/example.com/v1").refused(503, "ServiceUnavailable");
    client.get("/apis/apiregistration.k8s.io/v1/apiservices/v1.example.com").ok();
    assert_eq!(client.get("/apis/example.com/v1/gadgets").status, 404, "only what it may define");
    // Its kind may be that of a new definition.
    let mut gadgets = widgets();
    gadgets["metadata"]["name"] = json!("gadgets.example.com");
    gadgets["spec"]["names"] =
        json!({"plural": "gadgets", "singular": "gadget", "kind": "Widget", "listKind": "WidgetList"});
    client.post(DEFINITIONS, &gadgets).ok();
    let refused = poll(CAP, || {
        let gadgets = client.get(&format!("{DEFINITIONS}/gadgets.example.com")).ok();
        let conditions = gadgets["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| condition["type"] == "NamesAccepted")
    });
    assert_eq!(refused.expect("a condition")["reason"], "NamesUnknown");
    client.delete(&format!("{DEFINITIONS}/gadgets.example.com")).ok();
    // A namespace with such objects waits.
    client.delete("/api/v1/namespaces/doomed").ok();
    let waits = poll(CAP, || {
        let namespace = client.get("/api/v1/namespaces/doomed").ok();
        let conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| {
            condition["type"] == "NamespaceDeletionContentFailure" && condition["status"] == "True"
        })
    });
    assert!(text(&waits.expect("it says why"), "/message").contains(&guards[0].shown()));

    guards[0].remove(&mut client);
    shown(&mut client, &[]);
    poll(CAP, || (client.get("/apis/example.com/v1").status == 404).then_some(())).expect("it is gone");
    server.stop();
}

/// What is registered, granted, limited and looked up.
#[test]
fn other_guards_that_cannot_be_read_grant_nothing_and_are_shown() {
    let directory = directory();
    let data = directory.path().join("data");
    let server = Server::on(&data, &[GATES, "--controllers=*"]);
    let mut client = server.admin();
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let (roles, bindings) = (format!("{rbac}/clusterroles"), format!("{rbac}/clusterrolebindings"));
    let rules = json!([{"apiGroups": ["example.com"], "resources": ["things"], "verbs": ["get"]}]);
    let label = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    client.post(&roles, &json!({"metadata": {"name": "g", "labels": label}, "rules": rules})).ok();
    let has_things = |client: &mut Client| {
        let view = client.get(&format!("{roles}/view")).ok();
        view["rules"]
            .as_array()
            .is_some_and(|all| all.iter().any(|rule| rule["resources"] == json!(["things"])))
    };
    poll(CAP, || has_things(&mut client).then_some(())).expect("it is aggregated");
    let view = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"});
    let everybody =
        json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}]);
    client.post(&bindings, &json!({"metadata": {"name": "g"}, "roleRef": view, "subjects": everybody})).ok();
    client.with_token(Some(USER_TOKEN)).get(MAPS).ok();
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
    server.stop();
    let mut guards = vec![
        Guard::new(&roles, "clusterroles.rbac.authorization.k8s.io", "g"),
        Guard::new(&bindings, "clusterrolebindings.rbac.authorization.k8s.io", "g"),
        Guard::new(schemas, "flowschemas.flowcontrol.apiserver.k8s.io", "g"),
        Guard::new(services, "apiservices.apiregistration.k8s.io", "v1.far.example.com"),
        Guard::new(quotas, "resourcequotas", "default/g"),
        Guard::new(ranges, "limitranges", "default/g"),
    ];
    damage(&data, &guards);

    let server = Server::on(&data, &[GATES, "--controllers=*"]);
    let mut client = server.admin();
    shown(&mut client, &guards);
    client.with_token(Some(USER_TOKEN)).get(MAPS).refused(403, "Forbidden");
    // Another source of the same role makes the controller look at it again.
    let more = json!([{"apiGroups": ["example.com"], "resources": ["others"], "verbs": ["get"]}]);
    client.post(&roles, &json!({"metadata": {"name": "h", "labels": label}, "rules": more})).ok();
    for path in ["/apis/far.example.com/v1/things", "/apis/far.example.com/v1"] {
        let status = client.get(path).refused(503, "ServiceUnavailable");
        assert!(text(&status, "/message").contains(&guards[3].shown()), "{status}");
    }
    let status = client.post(MAPS, &map("new")).refused(500, "InternalError");
    assert!(text(&status, "/message").contains(&guards[4].shown()), "{status}");
    guards.remove(4).remove(&mut client);
    client.post(MAPS, &map("new")).ok();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let status = client.post("/api/v1/namespaces/default/pods", &pod).refused(500, "InternalError");
    assert!(text(&status, "/message").contains(&guards[4].shown()), "{status}");
    guards.remove(4).remove(&mut client);
    client.post("/api/v1/namespaces/default/pods", &pod).ok();
    shown(&mut client, &guards);
    assert!(has_things(&mut client), "rules are not taken away because their source cannot be read");
    while let Some(guard) = guards.pop() {
        guard.remove(&mut client);
        shown(&mut client, &guards);
    }
    // Now it is known who gives which rules.
    let is_settled = |client: &mut Client| {
        let view = client.get(&format!("{roles}/view")).ok();
        view["rules"]
            .as_array()
            .is_some_and(|all| all.iter().any(|rule| rule["resources"] == json!(["others"])))
    };
    poll(CAP, || is_settled(&mut client).then_some(())).expect("the controller goes on");
    assert!(!has_things(&mut client), "the source is gone");
    server.stop();
}
