use pilothouse_api::bootstrap::flow_control;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::testing::object;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::{AUTHENTICATED, MASTERS};
use pilothouse_types::clock::{Clock, Timestamp};

use super::*;

/// A table of the mandatory objects only.
fn mandatory_only() -> Table {
    let seats = Levels::new(600, Clock::manual(Timestamp(0)));
    Table::new(Arc::new(seats), Arc::new(Metrics::new(Timestamp(0)).unwrap()))
}

/// A table of the bootstrap objects, with their names as UIDs.
fn bootstrapped() -> Table {
    let mut flows = mandatory_only();
    let with_uid = |object: &Value| {
        let name = meta::name(object).to_owned();
        let mut object = object.clone();
        object.entry("metadata").set("uid", name.as_str());
        (name, object)
    };
    for level in flow_control::levels() {
        let (name, level) = with_uid(&level.object);
        flows.put_level(&name, PriorityLevel::read(&level));
    }
    for schema in flow_control::schemas() {
        let (name, schema) = with_uid(&schema.object);
        flows.put_schema(&name, Some(FlowSchema::read(&schema)));
    }
    flows
}

fn user(name: &str, groups: &[&str]) -> Identity {
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    Identity { name: name.to_owned(), groups, ..Identity::default() }
}

fn flow(flows: &Table, user: &Identity, method: &str, path: &str) -> String {
    let query = Query::parse("");
    let flow = flows.classify(user, &Request::parse(method, path, &query).unwrap());
    let text = |uid: &Bytes| String::from_utf8(uid.to_vec()).unwrap();
    flow.map_or("none".to_owned(), |flow| format!("{} {}", text(&flow.schema.uid), text(&flow.level_uid)))
}

#[test]
fn bootstrap_flow_schemas_classify_requests() {
    let flows = bootstrapped();
    let (admin, alice) = (user("admin", &["system:masters", AUTHENTICATED]), user("alice", &[AUTHENTICATED]));
    let nobody = user("system:anonymous", &["system:unauthenticated"]);
    let node = user("system:node:n", &["system:nodes", AUTHENTICATED]);
    let account = user("system:serviceaccount:n:a", &["system:serviceaccounts", AUTHENTICATED]);
    let system_account =
        user("system:serviceaccount:kube-system:a", &["system:serviceaccounts", AUTHENTICATED]);
    let pods = "/api/v1/namespaces/n/pods";
    let table = [
        (&admin, "GET", "/healthz", "exempt exempt"),
        (&alice, "GET", "/healthz", "probes exempt"),
        (&nobody, "GET", "/livez/ping", "probes exempt"),
        (&nobody, "GET", "/livezz", "global-default global-default"),
        (&nobody, "POST", "/healthz", "global-default global-default"),
        (&alice, "GET", pods, "global-default global-default"),
        (&node, "GET", pods, "system-nodes system"),
        (&node, "PUT", "/api/v1/nodes/n/status", "system-node-high node-high"),
        (&node, "GET", "/api/v1/nodes/n", "system-node-high node-high"),
        (&account, "GET", pods, "service-accounts workload-low"),
        (&system_account, "GET", pods, "kube-system-service-accounts workload-high"),
        (
            &system_account,
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/n/leases/l",
            "system-leader-election leader-election",
        ),
        (&admin, "GET", "/api/v1/namespaces/n/pods/p/log", "none"),
        (&admin, "POST", "/api/v1/namespaces/n/pods/p/exec", "none"),
        (&admin, "GET", "/api/v1/watch/namespaces/n/pods", "exempt exempt"),
        (&user("odd", &[]), "GET", pods, "catch-all catch-all"),
    ];
    for (user, method, path, expected) in table {
        assert_eq!(flow(&flows, user, method, path), expected, "{} {method} {path}", user.name);
    }
}

#[test]
fn flow_schemas_match_by_precedence_and_name_if_level_exists() {
    let mut flows = bootstrapped();
    let alice = user("alice", &[AUTHENTICATED]);
    let schema = |precedence: i64, level: &str, uid: &str| {
        let text = format!(
            r#"{{"metadata":{{"uid":"{uid}"}},"spec":{{"matchingPrecedence":{precedence},
                "priorityLevelConfiguration":{{"name":"{level}"}},
                "rules":[{{"subjects":[{{"kind":"User","user":{{"name":"alice"}}}}],
                    "resourceRules":[{{"verbs":["list"],"apiGroups":[""],"resources":["pods"],
                        "namespaces":["n"]}}]}}]}}}}"#
        );
        Some(FlowSchema::read(&object(&text)))
    };
    let pods = "/api/v1/namespaces/n/pods";
    flows.put_schema("b", schema(50, "system", "b"));
    assert_eq!(flow(&flows, &alice, "GET", pods), "b system");
    assert_eq!(flow(&flows, &alice, "GET", "/api/v1/pods"), "global-default global-default");
    assert_eq!(flow(&flows, &alice, "GET", "/api/v1/namespaces/m/pods"), "global-default global-default");
    flows.put_schema("a", schema(50, "not-yet", "a"));
    assert_eq!(flow(&flows, &alice, "GET", pods), "b system");
    let level =
        PriorityLevel { uid: Bytes::from_static(b"l"), ..PriorityLevel::mandatory(CATCH_ALL).unwrap() };
    flows.put_level("not-yet", Some(level));
    assert_eq!(flow(&flows, &alice, "GET", pods), "a l");
    flows.put_schema("c", schema(49, "system", "c"));
    assert_eq!(flow(&flows, &alice, "GET", pods), "c system");
    for name in ["a", "b", "c"] {
        flows.put_schema(name, None);
    }
    assert_eq!(flow(&flows, &alice, "GET", pods), "global-default global-default");
}

/// A schema of lower precedence may limit users that a later one exempts.
#[test]
fn unreadable_flow_schema_disables_exemptions() {
    let mut flows = bootstrapped();
    let all = r#"{"metadata":{"uid":"all"},"spec":{"matchingPrecedence":100,
        "priorityLevelConfiguration":{"name":"exempt"},
        "rules":[{"subjects":[{"kind":"Group","group":{"name":"*"}}],
            "resourceRules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"namespaces":["*"]}]}]}}"#;
    flows.put_schema("all", Some(FlowSchema::read(&object(all))));
    let (admin, alice) = (user("admin", &[MASTERS, AUTHENTICATED]), user("alice", &[AUTHENTICATED]));
    let pods = "/api/v1/namespaces/n/pods";
    for type_index in [0, 1] {
        assert_eq!(flow(&flows, &alice, "GET", pods), "all exempt");
        flows.fail_closed(type_index, &Key::cluster("limits-alice"));
        assert_eq!(flow(&flows, &alice, "GET", pods), "catch-all catch-all");
        assert_eq!(flow(&flows, &alice, "GET", "/readyz"), "probes exempt");
        assert_eq!(flow(&flows, &admin, "GET", pods), "exempt exempt");
        flows.remove(type_index, &Key::cluster("limits-alice"));
    }
    flows.fail_closed(0, &Key::cluster(EXEMPT));
    flows.fail_closed(1, &Key::cluster(EXEMPT));
    assert_eq!(flow(&flows, &admin, "GET", pods), " ", "administrators stay exempt");
}

#[test]
fn match_order_is_built_on_first_request() {
    let flows = bootstrapped();
    assert!(flows.match_order.get().is_none(), "reading objects does not sort them");
    assert_eq!(flow(&flows, &user("odd", &[]), "GET", "/api/v1/pods"), "catch-all catch-all");
    assert!(flows.match_order.get().is_some());
}

#[test]
fn mandatory_flow_schemas_always_exist() {
    let flows = mandatory_only();
    let admin = user("admin", &[MASTERS]);
    assert_eq!(flow(&flows, &admin, "GET", "/api/v1/pods"), " ");
    let mut flows = bootstrapped();
    flows.put_schema(EXEMPT, None);
    assert_eq!(flow(&flows, &admin, "GET", "/api/v1/pods"), " exempt");
    flows.put_schema(CATCH_ALL, None);
    assert_eq!(flow(&flows, &user("odd", &[]), "GET", "/api/v1/pods"), " catch-all");
}

#[test]
fn priority_level_keeps_its_state_when_schemas_change() {
    let mut flows = bootstrapped();
    let (alice, query) = (user("alice", &[AUTHENTICATED]), Query::parse(""));
    let request = Request::parse("GET", "/api/v1/pods", &query).unwrap();
    let before = flows.classify(&alice, &request).unwrap();
    let schema = flows.schemas.get("probes").cloned();
    flows.put_schema("probes", schema);
    assert!(Arc::ptr_eq(&before, &flows.classify(&alice, &request).unwrap()), "nothing has changed");
    flows.put_schema("probes", None);
    let after = flows.classify(&alice, &request).unwrap();
    assert!(!Arc::ptr_eq(&before, &after) && Arc::ptr_eq(&before.level, &after.level));
    flows.put_level("system", None);
    assert!(Arc::ptr_eq(&before.level, &flows.classify(&alice, &request).unwrap().level));
    assert_eq!(flows.seats.snapshots().len(), 7);
}
