//! Roles and bindings cannot grant rights that their author does not hold.

use serde_json::json;

use super::{RBAC, alice, bind, binding, policy_rule, rbac_object};
use crate::support::Server;
use crate::support::compare::text;

#[test]
fn rule_with_empty_resource_name_does_not_cover_all_names() {
    let server = Server::with_flags(&["--engine=memory"]);
    let (mut admin, mut alice) = (server.admin(), alice(&server));
    let roles = format!("{RBAC}/namespaces/default/roles");
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let rule_for_all = policy_rule(&["get"], "", &["secrets"]);
    let mut rule_with_empty_name = rule_for_all.clone();
    rule_with_empty_name["resourceNames"] = json!([""]);
    let author_rule =
        policy_rule(&["create", "update"], "rbac.authorization.k8s.io", &["roles", "rolebindings"]);
    admin
        .post(&roles, &rbac_object("Role", "author", &json!({"rules": [author_rule, rule_with_empty_name]})))
        .ok();
    bind(&mut admin, ("Role", "author"));
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    admin.post("/api/v1/namespaces/default/secrets", &secret).ok();

    let refusal = "is attempting to grant RBAC permissions not currently held:\n\
                   {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}";
    let granted = rbac_object("Role", "granted", &json!({"rules": [rule_for_all]}));
    let status = alice.post(&roles, &granted).expect_error(403, "Forbidden");
    assert!(text(&status, "/message").ends_with(refusal), "{status}");
    // Neither may they bind a role of another user, nor widen their own role.
    admin.post(&roles, &granted).ok();
    let status = alice
        .post(&bindings, &binding("RoleBinding", "granted", ("Role", "granted")))
        .expect_error(403, "Forbidden");
    assert!(text(&status, "/message").ends_with(refusal), "{status}");
    alice.post(&roles, &rbac_object("Role", "same", &json!({"rules": [rule_with_empty_name]}))).ok();
    alice.post(&bindings, &binding("RoleBinding", "same", ("Role", "same"))).ok();
    alice
        .put(&format!("{roles}/same"), &rbac_object("Role", "same", &json!({"rules": [rule_for_all]})))
        .expect_error(403, "Forbidden");
    alice.get("/api/v1/namespaces/default/secrets/s").expect_error(403, "Forbidden");
}
