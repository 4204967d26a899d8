//! Authorization: RBAC changes, role aggregation, the other modes, and access reviews.

mod escalation;
mod node;
mod webhook;

use std::fs;

use serde_json::{Value, json};

use crate::support::client::JSON;
use crate::support::compare::text;
use crate::support::server::{USER_TOKEN, temp_directory};
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1";

fn alice(server: &Server) -> Client {
    server.anonymous().with_token(Some(USER_TOKEN))
}

fn rbac_object(kind: &str, name: &str, fields: &Value) -> Value {
    let mut object =
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
    for (field, value) in fields.as_object().expect("fields") {
        object[field] = value.clone();
    }
    object
}

fn policy_rule(verbs: &[&str], group: &str, resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": [group], "resources": resources})
}

fn binding(kind: &str, name: &str, role: (&str, &str)) -> Value {
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1});
    rbac_object(kind, name, &json!({"roleRef": role, "subjects": [{"kind": "User", "name": "alice"}]}))
}

fn bind(admin: &mut Client, role: (&str, &str)) {
    admin
        .post(&format!("{RBAC}/namespaces/default/rolebindings"), &binding("RoleBinding", role.1, role))
        .ok();
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

#[test]
fn review_resources_have_no_items_and_no_table() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let review_paths = [
        format!("{REVIEWS}/subjectaccessreviews"),
        format!("{REVIEWS}/selfsubjectaccessreviews"),
        format!("{REVIEWS}/namespaces/default/localsubjectaccessreviews"),
        "/apis/authentication.k8s.io/v1/tokenreviews".to_owned(),
        "/api/v1/namespaces/default/bindings".to_owned(),
    ];
    let table_header = [JSON[0], ("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    for path in &review_paths {
        admin.get(path).expect_error(405, "MethodNotAllowed");
        for method in ["GET", "PUT", "POST", "DELETE"] {
            admin.request(method, &format!("{path}/x"), &JSON, b"{}").expect_error(404, "NotFound");
        }
        admin.request("POST", path, &table_header, b"{}").expect_error(406, "NotAcceptable");
    }
    for path in [format!("{REVIEWS}/localsubjectaccessreviews"), "/api/v1/bindings".to_owned()] {
        admin.post(&path, &json!({})).expect_error(404, "NotFound");
        admin.get(&path).expect_error(404, "NotFound");
    }
    // Server-owned metadata in a review is ignored.
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "metadata": {"uid": "x", "creationTimestamp": "2020-01-01T00:00:00Z"},
        "spec": {"user": "a", "nonResourceAttributes": {"path": "/", "verb": "get"}}});
    admin.post(&review_paths[0], &review).ok();
}

#[test]
fn escalation_refusal_of_generated_name_has_no_name() {
    let server = Server::with_flags(&["--engine=memory"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    let roles = format!("{RBAC}/namespaces/default/roles");
    let author_rule = policy_rule(&["create"], "rbac.authorization.k8s.io", &["roles"]);
    admin.post(&roles, &rbac_object("Role", "author", &json!({"rules": [author_rule]}))).ok();
    bind(&mut admin, ("Role", "author"));
    let mut role = rbac_object("Role", "", &json!({"rules": [policy_rule(&["get"], "", &["pods"])]}));
    role["metadata"] = json!({"generateName": "new-"});
    let status = alice.post(&roles, &role).expect_error(403, "Forbidden");
    let message = text(&status, "/message");
    assert!(message.starts_with("roles.rbac.authorization.k8s.io is forbidden: user \"alice\""), "{message}");
    assert_eq!(status["details"].get("name"), None);
}

#[test]
fn rbac_changes_apply_to_next_request() {
    let server = Server::with_flags(&["--engine=memory"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    let roles = format!("{RBAC}/namespaces/default/roles");
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let read = rbac_object("Role", "read", &json!({"rules": [policy_rule(&["list"], "", &["configmaps"])]}));
    admin.post(&roles, &read).ok();
    for _ in 0..50 {
        assert_eq!(alice.get(MAPS).status, 403);
        bind(&mut admin, ("Role", "read"));
        assert_eq!(alice.get(MAPS).status, 200);
        admin.patch(&format!("{roles}/read"), "merge", &json!({"rules": []})).ok();
        assert_eq!(alice.get(MAPS).status, 403);
        admin.put(&format!("{roles}/read"), &read).ok();
        assert_eq!(alice.get(MAPS).status, 200);
        admin.delete(&format!("{bindings}/read")).ok();
    }
    bind(&mut admin, ("Role", "gone"));
    let status = alice.get(MAPS).expect_error(403, "Forbidden");
    assert!(
        text(&status, "/message").ends_with("RBAC: role.rbac.authorization.k8s.io \"gone\" not found"),
        "{status}"
    );
}

#[test]
fn update_that_creates_requires_create_permission() {
    let server = Server::with_flags(&["--engine=memory"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let rules = json!({"rules": [policy_rule(&["update", "patch"], "coordination.k8s.io", &["leases"])]});
    admin.post(&format!("{RBAC}/clusterroles"), &rbac_object("ClusterRole", "change", &rules)).ok();
    bind(&mut admin, ("ClusterRole", "change"));
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}});
    let refusal = "leases.coordination.k8s.io \"a\" is forbidden: User \"alice\" cannot create resource \"leases\" in API \
                   group \"coordination.k8s.io\" in the namespace \"default\"";
    let status = alice.put(&format!("{leases}/a"), &lease).expect_error(403, "Forbidden");
    assert_eq!(text(&status, "/message"), refusal);
    let path = format!("{leases}/a?fieldManager=m");
    let apply = [("Content-Type", "application/apply-patch+yaml")];
    let status = alice.request("PATCH", &path, &apply, lease.to_string().as_bytes());
    let status = status.expect_error(403, "Forbidden");
    assert_eq!(text(&status, "/message"), refusal);
    let created = admin.post(leases, &lease).ok();
    alice.put(&format!("{leases}/a"), &created).ok();
}

#[test]
fn default_roles_are_reconciled_on_start_unless_opted_out() {
    let home = temp_directory();
    let data = home.path().join("data");
    let role = |name: &str| format!("{RBAC}/clusterroles/{name}");
    let binding_path = |name: &str| format!("{RBAC}/clusterrolebindings/{name}");
    {
        let server = Server::start_in(&data, &[]);
        let mut admin = server.admin();
        let merge = "merge";
        let own_rule = policy_rule(&["get"], "example.com", &["things"]);
        admin.patch(&role("system:basic-user"), merge, &json!({"rules": [own_rule]})).ok();
        admin.patch(&binding_path("system:discovery"), merge, &json!({"subjects": []})).ok();
        let opted_out = json!({"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}},
            "subjects": []});
        admin.patch(&binding_path("system:monitoring"), merge, &opted_out).ok();
        admin.delete(&role("system:kube-dns")).ok();
        admin.delete(&binding_path("system:basic-user")).ok();
        let other_binding =
            json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"});
        let other_binding =
            rbac_object("ClusterRoleBinding", "system:basic-user", &json!({"roleRef": other_binding}));
        admin.post(&format!("{RBAC}/clusterrolebindings"), &other_binding).ok();
    }
    let server = Server::start_in(&data, &[]);
    let mut admin = server.admin();
    let rules = admin.get(&role("system:basic-user")).ok()["rules"].as_array().unwrap().len();
    assert_eq!(rules, 4, "its own rule and three restored ones");
    assert_eq!(
        admin.get(&binding_path("system:discovery")).ok()["subjects"][0]["name"],
        "system:authenticated"
    );
    assert_eq!(admin.get(&binding_path("system:monitoring")).ok().get("subjects"), None);
    admin.get(&role("system:kube-dns")).ok();
    let recreated = admin.get(&binding_path("system:basic-user")).ok();
    assert_eq!(recreated["roleRef"]["name"], "system:basic-user");
    assert_eq!(recreated["metadata"]["managedFields"][0]["manager"], "kube-apiserver");
}

#[test]
fn view_and_edit_roles_grant_access_once_aggregated() {
    let server = Server::with_flags(&["--engine=memory", "--controllers=*"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    bind(&mut admin, ("ClusterRole", "view"));
    poll(TIMEOUT, || (alice.get(MAPS).status == 200).then_some(())).expect("view is gathered");
    assert_eq!(alice.get("/api/v1/namespaces/default/secrets").status, 403);
    assert_eq!(alice.post(MAPS, &map("a")).status, 403);
    bind(&mut admin, ("ClusterRole", "edit"));
    poll(TIMEOUT, || (alice.post(MAPS, &map("a")).status == 201).then_some(())).expect("edit is gathered");
    assert_eq!(alice.get("/api/v1/namespaces/default/secrets").status, 200);
    assert_eq!(alice.get("/api/v1/namespaces/kube-system/configmaps").status, 403);
    alice.delete(&format!("{MAPS}/a")).ok();

    // A user's role is aggregated by its label, also transitively.
    let mut partial_role =
        rbac_object("ClusterRole", "part", &json!({"rules": [policy_rule(&["list"], "", &["nodes"])]}));
    partial_role["metadata"]["labels"] = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    admin.post(&format!("{RBAC}/clusterroles"), &partial_role).ok();
    poll(TIMEOUT, || {
        let rules = admin.get(&format!("{RBAC}/clusterroles/admin")).ok()["rules"].to_string();
        rules.contains("\"nodes\"").then_some(())
    })
    .expect("admin gathers what edit gathers from view");
}

fn aggregating_role(name: &str, label: &str, source_label: &str) -> Value {
    let selector = json!({"matchLabels": {source_label: "true"}});
    let mut role = rbac_object(
        "ClusterRole",
        name,
        &json!({"aggregationRule": {"clusterRoleSelectors": [selector]}, "rules": []}),
    );
    role["metadata"]["labels"] = json!({label: "true"});
    role
}

#[test]
fn cyclic_role_aggregation_settles() {
    let server = Server::with_flags(&["--engine=memory", "--controllers=clusterrole-aggregation"]);
    let mut admin = server.admin();
    let roles = format!("{RBAC}/clusterroles");
    let mut rules = |name: &str| admin.get(&format!("{RBAC}/clusterroles/{name}")).ok()["rules"].clone();
    let mut other_admin = server.admin();
    for (name, label, source_label) in [("a", "la", "lb"), ("b", "lb", "lc"), ("c", "lc", "la")] {
        other_admin.post(&roles, &aggregating_role(name, label, source_label)).ok();
    }
    let mut leaf =
        rbac_object("ClusterRole", "leaf", &json!({"rules": [policy_rule(&["get"], "", &["pods"])]}));
    leaf["metadata"]["labels"] = json!({"lb": "true"});
    other_admin.post(&roles, &leaf).ok();
    let expected = json!([policy_rule(&["get"], "", &["pods"])]);
    for name in ["a", "b", "c"] {
        poll(TIMEOUT, || (rules(name) == expected).then_some(()))
            .unwrap_or_else(|| panic!("{name} is gathered"));
    }
    // Rules written into one of them do not circulate for ever.
    let foreign_rule = json!({"rules": [policy_rule(&["delete"], "", &["secrets"])]});
    other_admin.patch(&format!("{roles}/b"), "merge", &foreign_rule).ok();
    poll(TIMEOUT, || (rules("b") == expected).then_some(())).expect("b is as it was");
    assert_eq!((rules("a"), rules("c")), (expected.clone(), expected));
    other_admin.delete(&format!("{roles}/leaf")).ok();
    for name in ["a", "b", "c"] {
        poll(TIMEOUT, || (rules(name).as_array().is_none_or(Vec::is_empty)).then_some(()))
            .expect("nothing is left");
    }
    let version = |client: &mut Client| client.get(&roles).ok()["metadata"]["resourceVersion"].clone();
    let gathered = r#""manager":"clusterrole-aggregation-controller","operation":"Apply""#;
    for name in ["view", "edit", "admin"] {
        let gathered = poll(TIMEOUT, || {
            let role = other_admin.get(&format!("{roles}/{name}")).ok();
            role["metadata"]["managedFields"].to_string().contains(gathered).then_some(())
        });
        gathered.unwrap_or_else(|| panic!("{name} is gathered too"));
    }
    // The last write may still be pending; circulating rules would never settle.
    let settled = poll(TIMEOUT, || {
        let before = version(&mut other_admin);
        std::thread::sleep(std::time::Duration::from_millis(300));
        (version(&mut other_admin) == before).then_some(())
    });
    settled.expect("nobody writes any more");

    let without_controllers = Server::with_flags(&["--engine=memory"]);
    let view = without_controllers.admin().get(&format!("{roles}/view")).ok();
    assert!(view["rules"].as_array().is_none_or(Vec::is_empty), "{view}");
}

#[test]
fn resource_names_restrict_rules_and_odd_user_names_match_literally() {
    let server = Server::with_flags(&["--engine=memory"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    let mut named_rule =
        policy_rule(&["get", "list", "watch", "create", "deletecollection", "update"], "", &["configmaps"]);
    named_rule["resourceNames"] = json!(["a"]);
    admin
        .post(
            &format!("{RBAC}/clusterroles"),
            &rbac_object("ClusterRole", "one", &json!({"rules": [named_rule]})),
        )
        .ok();
    bind(&mut admin, ("ClusterRole", "one"));
    admin.post(MAPS, &map("a")).ok();
    admin.post(MAPS, &map("b")).ok();
    alice.get(&format!("{MAPS}/a")).ok();
    assert_eq!(alice.get(&format!("{MAPS}/b")).status, 403);
    assert_eq!(alice.get(MAPS).status, 403);
    let filtered_list = alice.get(&format!("{MAPS}?fieldSelector=metadata.name%3Da")).ok();
    assert_eq!(filtered_list["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(alice.get(&format!("{MAPS}?fieldSelector=metadata.name%3Db")).status, 403);
    alice.try_watch(MAPS, "fieldSelector=metadata.name%3Da").expect("a watch of one");
    assert_eq!(alice.post(MAPS, &map("a")).status, 403, "a new object has no name yet");
    assert_eq!(alice.delete(&format!("{MAPS}?fieldSelector=metadata.name%3Da")).status, 403);

    let odd_names =
        ["\u{f6}dd \"user\" <b>&", "*", "system:serviceaccount:default:", "a/b%2f", "line\nfeed", "\u{202e}"];
    for (number, user) in odd_names.iter().enumerate() {
        let mut role_binding =
            binding("RoleBinding", &format!("odd-{number}"), ("ClusterRole", "cluster-admin"));
        role_binding["subjects"] = json!([{"kind": "User", "name": user}]);
        admin.post(&format!("{RBAC}/namespaces/default/rolebindings"), &role_binding).ok();
        let review = |user: &str| {
            let attributes = json!({"namespace": "default", "verb": "delete", "resource": "secrets"});
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                "spec": {"user": user, "resourceAttributes": attributes}})
        };
        let path = format!("{REVIEWS}/subjectaccessreviews");
        assert_eq!(admin.post(&path, &review(user)).ok()["status"]["allowed"], true, "{user}");
        assert_eq!(admin.post(&path, &review("somebody")).ok()["status"]["allowed"], false, "{user}");
    }
    assert_eq!(alice.get("/api/v1/namespaces/default/secrets").status, 403, "no name is a wildcard");
}

#[test]
fn escalation_check_of_huge_role_is_refused_quickly() {
    let server = Server::with_flags(&["--engine=memory"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    let own_rules: Vec<Value> =
        (0..2_000).map(|n| policy_rule(&["get"], &format!("g{n}.example.com"), &["pods"])).collect();
    admin
        .post(
            &format!("{RBAC}/clusterroles"),
            &rbac_object("ClusterRole", "many", &json!({"rules": own_rules})),
        )
        .ok();
    bind(&mut admin, ("ClusterRole", "many"));
    bind(&mut admin, ("ClusterRole", "admin"));
    let write = policy_rule(&["create", "update"], "rbac.authorization.k8s.io", &["roles"]);
    admin
        .post(
            &format!("{RBAC}/clusterroles"),
            &rbac_object("ClusterRole", "write", &json!({"rules": [write]})),
        )
        .ok();
    bind(&mut admin, ("ClusterRole", "write"));
    let names: Vec<String> = (0..20_000).map(|n| format!("n{n}")).collect();
    let mut huge_rule = policy_rule(&["get"], "", &["pods"]);
    huge_rule["resourceNames"] = json!(names);
    let role = rbac_object("Role", "huge", &json!({"rules": [huge_rule]}));
    let status =
        alice.post(&format!("{RBAC}/namespaces/default/roles"), &role).expect_error(403, "Forbidden");
    assert!(
        text(&status, "/message").contains("is attempting to grant RBAC permissions not currently held"),
        "{status}"
    );
    // The administrator may grant it, however large the role is.
    admin.post(&format!("{RBAC}/namespaces/default/roles"), &role).ok();
}

#[test]
fn access_reviews_report_decision_and_reason() {
    let server = Server::with_flags(&["--engine=memory"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    let review_access = |client: &mut Client, kind: &str, query: &str, spec: Value| {
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
        client.post(&format!("{REVIEWS}/{}s{query}", kind.to_lowercase()), &review).ok()["status"].clone()
    };
    let list = json!({"namespace": "default", "verb": "list", "resource": "configmaps"});
    let about_alice = json!({"user": "alice", "resourceAttributes": list});
    let own_spec = json!({"resourceAttributes": list});
    assert_eq!(
        review_access(&mut alice, "SelfSubjectAccessReview", "", own_spec.clone()),
        json!({"allowed": false})
    );
    assert_eq!(
        review_access(&mut admin, "SubjectAccessReview", "", about_alice.clone()),
        json!({"allowed": false})
    );
    // Hints need the explain parameter and permission.
    let explained = review_access(&mut admin, "SubjectAccessReview", "?explain=true", about_alice.clone());
    assert!(text(&explained, "/reason").contains("would allow it"), "{explained}");
    assert_eq!(
        review_access(&mut alice, "SelfSubjectAccessReview", "?explain=true", own_spec),
        json!({"allowed": false})
    );
    bind(&mut admin, ("ClusterRole", "cluster-admin"));
    let allowed = review_access(&mut admin, "SubjectAccessReview", "", about_alice);
    assert_eq!(
        text(&allowed, "/reason"),
        "RBAC: allowed by RoleBinding \"cluster-admin/default\" of ClusterRole \"cluster-admin\" to User \"alice\""
    );
    let rights = review_access(&mut alice, "SelfSubjectRulesReview", "", json!({"namespace": "default"}));
    assert_eq!(rights["incomplete"], false);
    assert!(
        rights["resourceRules"]
            .to_string()
            .contains(r#"{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}"#)
    );
    let self_review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let self_review = alice.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &self_review).ok();
    assert_eq!(
        self_review["status"]["userInfo"]["groups"],
        json!(["devs", "testers", "system:authenticated"])
    );
    assert_eq!(self_review["status"]["userInfo"]["uid"], "uid-alice");
    // An empty review is invalid.
    let empty_body = admin.request("POST", &format!("{REVIEWS}/subjectaccessreviews"), &JSON, b"{}");
    assert_eq!(empty_body.status, 422);
    let metrics = admin.get("/metrics").text();
    assert!(metrics.contains(
        "apiserver_authorization_decisions_total{decision=\"allowed\",name=\"rbac\",type=\"RBAC\"}"
    ));
    assert!(metrics.contains("authorization_attempts_total{result=\"allowed\"}"));
}

#[test]
fn authorization_modes_decide_in_order() {
    let open = Server::with_flags(&["--engine=memory", "--authorization-mode=AlwaysDeny,AlwaysAllow"]);
    assert_eq!(alice(&open).get(MAPS).status, 200);
    let closed = Server::with_flags(&["--engine=memory", "--authorization-mode=AlwaysDeny"]);
    let status = alice(&closed).get(MAPS).expect_error(403, "Forbidden");
    assert!(text(&status, "/message").ends_with(": Everything is forbidden."), "{status}");
    assert_eq!(closed.admin().get(MAPS).status, 200);

    let home = temp_directory();
    let file = home.path().join("policy.jsonl");
    let line = r#"{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"group":"devs","namespace":"default","resource":"configmaps","readonly":true}}"#;
    fs::write(&file, line).unwrap();
    let file = format!("--authorization-policy-file={}", file.display());
    let abac_server = Server::with_flags(&["--engine=memory", "--authorization-mode=ABAC", &file]);
    let mut alice = alice(&abac_server);
    assert_eq!(alice.get(MAPS).status, 200);
    let status = alice.post(MAPS, &map("a")).expect_error(403, "Forbidden");
    assert!(text(&status, "/message").ends_with(": No policy matched."), "{status}");
}
