//! Who may do what: roles and bindings as they come and go, the other modes, and the questions that can be asked about it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "authorization/escalation.rs"]
mod escalation;
#[path = "authorization/node.rs"]
mod node;
mod support;
#[path = "authorization/webhook.rs"]
mod webhook;

use std::fs;

use serde_json::{Value, json};
use support::client::JSON;
use support::compare::text;
use support::server::{USER_TOKEN, directory};
use support::wait::{CAP, poll};
use support::{Client, Server};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1";

fn alice(server: &Server) -> Client {
    server.anonymous().with_token(Some(USER_TOKEN))
}

fn object(kind: &str, name: &str, fields: &Value) -> Value {
    let mut object =
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
    for (field, value) in fields.as_object().expect("fields") {
        object[field] = value.clone();
    }
    object
}

fn rule(verbs: &[&str], group: &str, resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": [group], "resources": resources})
}

fn binding(kind: &str, name: &str, role: (&str, &str)) -> Value {
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1});
    object(kind, name, &json!({"roleRef": role, "subjects": [{"kind": "User", "name": "alice"}]}))
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
fn what_is_only_asked_has_nothing_below_it_and_no_rows() {
    let server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    let questions = [
        format!("{REVIEWS}/subjectaccessreviews"),
        format!("{REVIEWS}/selfsubjectaccessreviews"),
        format!("{REVIEWS}/namespaces/default/localsubjectaccessreviews"),
        "/apis/authentication.k8s.io/v1/tokenreviews".to_owned(),
        "/api/v1/namespaces/default/bindings".to_owned(),
    ];
    let table = [JSON[0], ("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    for path in &questions {
        admin.get(path).refused(405, "MethodNotAllowed");
        for method in ["GET", "PUT", "POST", "DELETE"] {
            admin.request(method, &format!("{path}/x"), &JSON, b"{}").refused(404, "NotFound");
        }
        admin.request("POST", path, &table, b"{}").refused(406, "NotAcceptable");
    }
    for path in [format!("{REVIEWS}/localsubjectaccessreviews"), "/api/v1/bindings".to_owned()] {
        admin.post(&path, &json!({})).refused(404, "NotFound");
        admin.get(&path).refused(404, "NotFound");
    }
    // What only the server says of objects is not held against a question.
    let question = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "metadata": {"uid": "x", "creationTimestamp": "2020-01-01T00:00:00Z"},
        "spec": {"user": "a", "nonResourceAttributes": {"path": "/", "verb": "get"}}});
    admin.post(&questions[0], &question).ok();
}

#[test]
fn whoever_makes_a_role_without_a_name_is_told_so() {
    let server = Server::with(&["--engine=memory"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    let roles = format!("{RBAC}/namespaces/default/roles");
    let author = rule(&["create"], "rbac.authorization.k8s.io", &["roles"]);
    admin.post(&roles, &object("Role", "author", &json!({"rules": [author]}))).ok();
    bind(&mut admin, ("Role", "author"));
    let mut role = object("Role", "", &json!({"rules": [rule(&["get"], "", &["pods"])]}));
    role["metadata"] = json!({"generateName": "new-"});
    let status = alice.post(&roles, &role).refused(403, "Forbidden");
    let message = text(&status, "/message");
    assert!(message.starts_with("roles.rbac.authorization.k8s.io is forbidden: user \"alice\""), "{message}");
    assert_eq!(status["details"].get("name"), None);
}

#[test]
fn a_change_counts_for_the_next_request() {
    let server = Server::with(&["--engine=memory"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    let roles = format!("{RBAC}/namespaces/default/roles");
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let read = object("Role", "read", &json!({"rules": [rule(&["list"], "", &["configmaps"])]}));
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
    let status = alice.get(MAPS).refused(403, "Forbidden");
    assert!(
        text(&status, "/message").ends_with("RBAC: role.rbac.authorization.k8s.io \"gone\" not found"),
        "{status}"
    );
}

#[test]
fn an_update_that_creates_needs_the_right_to_create() {
    let server = Server::with(&["--engine=memory"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let rules = json!({"rules": [rule(&["update", "patch"], "coordination.k8s.io", &["leases"])]});
    admin.post(&format!("{RBAC}/clusterroles"), &object("ClusterRole", "change", &rules)).ok();
    bind(&mut admin, ("ClusterRole", "change"));
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}});
    let refusal = "leases.coordination.k8s.io \"a\" is forbidden: User \"alice\" cannot create resource \"leases\" in API \
                   group \"coordination.k8s.io\" in the namespace \"default\"";
    let status = alice.put(&format!("{leases}/a"), &lease).refused(403, "Forbidden");
    assert_eq!(text(&status, "/message"), refusal);
    let path = format!("{leases}/a?fieldManager=m");
    let apply = [("Content-Type", "application/apply-patch+yaml")];
    let status = alice.request("PATCH", &path, &apply, lease.to_string().as_bytes());
    let status = status.refused(403, "Forbidden");
    assert_eq!(text(&status, "/message"), refusal);
    let made = admin.post(leases, &lease).ok();
    alice.put(&format!("{leases}/a"), &made).ok();
}

#[test]
fn default_roles_are_repaired_at_every_start_unless_somebody_says_no() {
    let home = directory();
    let data = home.path().join("data");
    let role = |name: &str| format!("{RBAC}/clusterroles/{name}");
    let bound = |name: &str| format!("{RBAC}/clusterrolebindings/{name}");
    {
        let server = Server::on(&data, &[]);
        let mut admin = server.admin();
        let merge = "merge";
        let own = rule(&["get"], "example.com", &["things"]);
        admin.patch(&role("system:basic-user"), merge, &json!({"rules": [own]})).ok();
        admin.patch(&bound("system:discovery"), merge, &json!({"subjects": []})).ok();
        let alone = json!({"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}},
            "subjects": []});
        admin.patch(&bound("system:monitoring"), merge, &alone).ok();
        admin.delete(&role("system:kube-dns")).ok();
        admin.delete(&bound("system:basic-user")).ok();
        let other = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"});
        let other = object("ClusterRoleBinding", "system:basic-user", &json!({"roleRef": other}));
        admin.post(&format!("{RBAC}/clusterrolebindings"), &other).ok();
    }
    let server = Server::on(&data, &[]);
    let mut admin = server.admin();
    let rules = admin.get(&role("system:basic-user")).ok()["rules"].as_array().unwrap().len();
    assert_eq!(rules, 4, "its own, and three that came back");
    assert_eq!(admin.get(&bound("system:discovery")).ok()["subjects"][0]["name"], "system:authenticated");
    assert_eq!(admin.get(&bound("system:monitoring")).ok().get("subjects"), None);
    admin.get(&role("system:kube-dns")).ok();
    let remade = admin.get(&bound("system:basic-user")).ok();
    assert_eq!(remade["roleRef"]["name"], "system:basic-user");
    assert_eq!(remade["metadata"]["managedFields"][0]["manager"], "kube-apiserver");
}

#[test]
fn a_user_lives_under_view_and_edit_once_they_are_gathered() {
    let server = Server::with(&["--engine=memory", "--controllers=*"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    bind(&mut admin, ("ClusterRole", "view"));
    poll(CAP, || (alice.get(MAPS).status == 200).then_some(())).expect("view is gathered");
    assert_eq!(alice.get("/api/v1/namespaces/default/secrets").status, 403);
    assert_eq!(alice.post(MAPS, &map("a")).status, 403);
    bind(&mut admin, ("ClusterRole", "edit"));
    poll(CAP, || (alice.post(MAPS, &map("a")).status == 201).then_some(())).expect("edit is gathered");
    assert_eq!(alice.get("/api/v1/namespaces/default/secrets").status, 200);
    assert_eq!(alice.get("/api/v1/namespaces/kube-system/configmaps").status, 403);
    alice.delete(&format!("{MAPS}/a")).ok();

    // A role of one's own joins by its label, at once and through the roles that gather it.
    let mut part = object("ClusterRole", "part", &json!({"rules": [rule(&["list"], "", &["nodes"])]}));
    part["metadata"]["labels"] = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    admin.post(&format!("{RBAC}/clusterroles"), &part).ok();
    poll(CAP, || {
        let rules = admin.get(&format!("{RBAC}/clusterroles/admin")).ok()["rules"].to_string();
        rules.contains("\"nodes\"").then_some(())
    })
    .expect("admin gathers what edit gathers from view");
}

fn gathers(name: &str, label: &str, from: &str) -> Value {
    let selector = json!({"matchLabels": {from: "true"}});
    let mut role = object(
        "ClusterRole",
        name,
        &json!({"aggregationRule": {"clusterRoleSelectors": [selector]}, "rules": []}),
    );
    role["metadata"]["labels"] = json!({label: "true"});
    role
}

#[test]
fn roles_that_gather_each_other_settle_and_give_nothing_of_their_own() {
    let server = Server::with(&["--engine=memory", "--controllers=clusterrole-aggregation"]);
    let mut admin = server.admin();
    let roles = format!("{RBAC}/clusterroles");
    let mut rules = |name: &str| admin.get(&format!("{RBAC}/clusterroles/{name}")).ok()["rules"].clone();
    let mut other = server.admin();
    for (name, label, from) in [("a", "la", "lb"), ("b", "lb", "lc"), ("c", "lc", "la")] {
        other.post(&roles, &gathers(name, label, from)).ok();
    }
    let mut leaf = object("ClusterRole", "leaf", &json!({"rules": [rule(&["get"], "", &["pods"])]}));
    leaf["metadata"]["labels"] = json!({"lb": "true"});
    other.post(&roles, &leaf).ok();
    let wanted = json!([rule(&["get"], "", &["pods"])]);
    for name in ["a", "b", "c"] {
        poll(CAP, || (rules(name) == wanted).then_some(())).unwrap_or_else(|| panic!("{name} is gathered"));
    }
    // What somebody writes into one of them does not go around for ever.
    let own = json!({"rules": [rule(&["delete"], "", &["secrets"])]});
    other.patch(&format!("{roles}/b"), "merge", &own).ok();
    poll(CAP, || (rules("b") == wanted).then_some(())).expect("b is as it was");
    assert_eq!((rules("a"), rules("c")), (wanted.clone(), wanted));
    other.delete(&format!("{roles}/leaf")).ok();
    for name in ["a", "b", "c"] {
        poll(CAP, || (rules(name).as_array().is_none_or(Vec::is_empty)).then_some(()))
            .expect("nothing is left");
    }
    let version = |client: &mut Client| client.get(&roles).ok()["metadata"]["resourceVersion"].clone();
    let gathered = r#""manager":"clusterrole-aggregation-controller","operation":"Apply""#;
    for name in ["view", "edit", "admin"] {
        let gathered = poll(CAP, || {
            let role = other.get(&format!("{roles}/{name}")).ok();
            role["metadata"]["managedFields"].to_string().contains(gathered).then_some(())
        });
        gathered.unwrap_or_else(|| panic!("{name} is gathered too"));
    }
    // The last of them may still be on its way; roles that went around for ever would never rest.
    let rests = poll(CAP, || {
        let before = version(&mut other);
        std::thread::sleep(std::time::Duration::from_millis(300));
        (version(&mut other) == before).then_some(())
    });
    rests.expect("nobody writes any more");

    let off = Server::with(&["--engine=memory"]);
    let view = off.admin().get(&format!("{roles}/view")).ok();
    assert!(view["rules"].as_array().is_none_or(Vec::is_empty), "{view}");
}

#[test]
fn names_restrict_what_has_one_and_odd_names_are_names() {
    let server = Server::with(&["--engine=memory"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    let mut named =
        rule(&["get", "list", "watch", "create", "deletecollection", "update"], "", &["configmaps"]);
    named["resourceNames"] = json!(["a"]);
    admin
        .post(&format!("{RBAC}/clusterroles"), &object("ClusterRole", "one", &json!({"rules": [named]})))
        .ok();
    bind(&mut admin, ("ClusterRole", "one"));
    admin.post(MAPS, &map("a")).ok();
    admin.post(MAPS, &map("b")).ok();
    alice.get(&format!("{MAPS}/a")).ok();
    assert_eq!(alice.get(&format!("{MAPS}/b")).status, 403);
    assert_eq!(alice.get(MAPS).status, 403);
    let one = alice.get(&format!("{MAPS}?fieldSelector=metadata.name%3Da")).ok();
    assert_eq!(one["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(alice.get(&format!("{MAPS}?fieldSelector=metadata.name%3Db")).status, 403);
    alice.try_watch(MAPS, "fieldSelector=metadata.name%3Da").expect("a watch of one");
    assert_eq!(alice.post(MAPS, &map("a")).status, 403, "a new object has no name yet");
    assert_eq!(alice.delete(&format!("{MAPS}?fieldSelector=metadata.name%3Da")).status, 403);

    let odd =
        ["\u{f6}dd \"user\" <b>&", "*", "system:serviceaccount:default:", "a/b%2f", "line\nfeed", "\u{202e}"];
    for (number, user) in odd.iter().enumerate() {
        let mut given = binding("RoleBinding", &format!("odd-{number}"), ("ClusterRole", "cluster-admin"));
        given["subjects"] = json!([{"kind": "User", "name": user}]);
        admin.post(&format!("{RBAC}/namespaces/default/rolebindings"), &given).ok();
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
fn a_role_too_large_to_compare_is_refused_and_not_waited_for() {
    let server = Server::with(&["--engine=memory"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    let own: Vec<Value> =
        (0..2_000).map(|n| rule(&["get"], &format!("g{n}.example.com"), &["pods"])).collect();
    admin.post(&format!("{RBAC}/clusterroles"), &object("ClusterRole", "many", &json!({"rules": own}))).ok();
    bind(&mut admin, ("ClusterRole", "many"));
    bind(&mut admin, ("ClusterRole", "admin"));
    let write = rule(&["create", "update"], "rbac.authorization.k8s.io", &["roles"]);
    admin
        .post(&format!("{RBAC}/clusterroles"), &object("ClusterRole", "write", &json!({"rules": [write]})))
        .ok();
    bind(&mut admin, ("ClusterRole", "write"));
    let names: Vec<String> = (0..20_000).map(|n| format!("n{n}")).collect();
    let mut huge = rule(&["get"], "", &["pods"]);
    huge["resourceNames"] = json!(names);
    let role = object("Role", "huge", &json!({"rules": [huge]}));
    let status = alice.post(&format!("{RBAC}/namespaces/default/roles"), &role).refused(403, "Forbidden");
    assert!(
        text(&status, "/message").contains("is attempting to grant RBAC permissions not currently held"),
        "{status}"
    );
    // Whoever has everything may give it, however long the list is.
    admin.post(&format!("{RBAC}/namespaces/default/roles"), &role).ok();
}

#[test]
fn reviews_say_who_may_what_and_why() {
    let server = Server::with(&["--engine=memory"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    let ask = |client: &mut Client, kind: &str, query: &str, spec: Value| {
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
        client.post(&format!("{REVIEWS}/{}s{query}", kind.to_lowercase()), &review).ok()["status"].clone()
    };
    let list = json!({"namespace": "default", "verb": "list", "resource": "configmaps"});
    let about_alice = json!({"user": "alice", "resourceAttributes": list});
    let own = json!({"resourceAttributes": list});
    assert_eq!(ask(&mut alice, "SelfSubjectAccessReview", "", own.clone()), json!({"allowed": false}));
    assert_eq!(ask(&mut admin, "SubjectAccessReview", "", about_alice.clone()), json!({"allowed": false}));
    // Only for those who ask for it and may have it.
    let hinted = ask(&mut admin, "SubjectAccessReview", "?explain=true", about_alice.clone());
    assert!(text(&hinted, "/reason").contains("would allow it"), "{hinted}");
    assert_eq!(ask(&mut alice, "SelfSubjectAccessReview", "?explain=true", own), json!({"allowed": false}));
    bind(&mut admin, ("ClusterRole", "cluster-admin"));
    let allowed = ask(&mut admin, "SubjectAccessReview", "", about_alice);
    assert_eq!(
        text(&allowed, "/reason"),
        "RBAC: allowed by RoleBinding \"cluster-admin/default\" of ClusterRole \"cluster-admin\" to User \"alice\""
    );
    let rights = ask(&mut alice, "SelfSubjectRulesReview", "", json!({"namespace": "default"}));
    assert_eq!(rights["incomplete"], false);
    assert!(
        rights["resourceRules"]
            .to_string()
            .contains(r#"{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}"#)
    );
    let me = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let me = alice.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &me).ok();
    assert_eq!(me["status"]["userInfo"]["groups"], json!(["devs", "testers", "system:authenticated"]));
    assert_eq!(me["status"]["userInfo"]["uid"], "uid-alice");
    // A body that says nothing, and one in another encoding.
    let empty = admin.request("POST", &format!("{REVIEWS}/subjectaccessreviews"), &JSON, b"{}");
    assert_eq!(empty.status, 422);
    let metrics = admin.get("/metrics").text();
    assert!(metrics.contains(
        "apiserver_authorization_decisions_total{decision=\"allowed\",name=\"rbac\",type=\"RBAC\"}"
    ));
    assert!(metrics.contains("authorization_attempts_total{result=\"allowed\"}"));
}

#[test]
fn the_other_modes_decide_in_their_order() {
    let open = Server::with(&["--engine=memory", "--authorization-mode=AlwaysDeny,AlwaysAllow"]);
    assert_eq!(alice(&open).get(MAPS).status, 200);
    let closed = Server::with(&["--engine=memory", "--authorization-mode=AlwaysDeny"]);
    let status = alice(&closed).get(MAPS).refused(403, "Forbidden");
    assert!(text(&status, "/message").ends_with(": Everything is forbidden."), "{status}");
    assert_eq!(closed.admin().get(MAPS).status, 200);

    let home = directory();
    let file = home.path().join("policy.jsonl");
    let line = r#"{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"group":"devs","namespace":"default","resource":"configmaps","readonly":true}}"#;
    fs::write(&file, line).unwrap();
    let file = format!("--authorization-policy-file={}", file.display());
    let ruled = Server::with(&["--engine=memory", "--authorization-mode=ABAC", &file]);
    let mut alice = alice(&ruled);
    assert_eq!(alice.get(MAPS).status, 200);
    let status = alice.post(MAPS, &map("a")).refused(403, "Forbidden");
    assert!(text(&status, "/message").ends_with(": No policy matched."), "{status}");
}
