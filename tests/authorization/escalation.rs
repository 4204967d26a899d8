//! Nobody gains rights by making and binding a role.

use serde_json::json;

use super::{RBAC, alice, bind, binding, object, rule};
use crate::support::Server;
use crate::support::compare::text;

#[test]
fn the_right_to_the_empty_name_grants_no_right_to_all_names() {
    let server = Server::with(&["--engine=memory"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    let roles = format!("{RBAC}/namespaces/default/roles");
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let all = rule(&["get"], "", &["secrets"]);
    let mut empty = all.clone();
    empty["resourceNames"] = json!([""]);
    let author = rule(&["create", "update"], "rbac.authorization.k8s.io", &["roles", "rolebindings"]);
    admin.post(&roles, &object("Role", "author", &json!({"rules": [author, empty]}))).ok();
    bind(&mut admin, ("Role", "author"));
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    admin.post("/api/v1/namespaces/default/secrets", &secret).ok();

    let lacking = "is attempting to grant RBAC permissions not currently held:\n\
                   {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}";
    let granted = object("Role", "granted", &json!({"rules": [all]}));
    let status = alice.post(&roles, &granted).refused(403, "Forbidden");
    assert!(text(&status, "/message").ends_with(lacking), "{status}");
    // Neither can they bind what somebody else has made, nor widen what is theirs.
    admin.post(&roles, &granted).ok();
    let status = alice
        .post(&bindings, &binding("RoleBinding", "granted", ("Role", "granted")))
        .refused(403, "Forbidden");
    assert!(text(&status, "/message").ends_with(lacking), "{status}");
    alice.post(&roles, &object("Role", "same", &json!({"rules": [empty]}))).ok();
    alice.post(&bindings, &binding("RoleBinding", "same", ("Role", "same"))).ok();
    alice
        .put(&format!("{roles}/same"), &object("Role", "same", &json!({"rules": [all]})))
        .refused(403, "Forbidden");
    alice.get("/api/v1/namespaces/default/secrets/s").refused(403, "Forbidden");
}
