//! Rows of roles and bindings.

use pilothouse_apimachinery::value::Value;

use super::cells::{PrintedObject, cells};

/// Cells of a binding of a role.
pub fn binding(it: &PrintedObject<'_>) -> Vec<Value> {
    let of_kind = |kind: &str| {
        let subjects = it.items("subjects").iter().filter(|subject| subject.str("kind") == kind);
        let names = subjects.map(|subject| match kind {
            "ServiceAccount" => format!("{}/{}", subject.str("namespace"), subject.str("name")),
            _ => subject.str("name").to_owned(),
        });
        names.collect::<Vec<_>>().join(", ")
    };
    cells![
        it.name(),
        format!("{}/{}", it.text("roleRef.kind"), it.text("roleRef.name")),
        it.age(),
        of_kind("User"),
        of_kind("Group"),
        of_kind("ServiceAccount")
    ]
}

#[cfg(test)]
mod tests {
    use crate::print::testing::shows;

    #[test]
    fn bindings_sort_their_subjects_by_kind() {
        let object = r#"{"metadata":{"name":"b"},"roleRef":{"kind":"Role","name":"r"},"subjects":[
            {"kind":"User","name":"u"},{"kind":"Group","name":"g"},{"kind":"ServiceAccount","namespace":"n","name":"s"},
            {"kind":"User","name":"v"},{"kind":"Other","name":"o"}]}"#;
        for kind in ["RoleBinding", "ClusterRoleBinding"] {
            let row = r#"["b","Role/r","<unknown>","u, v","g","n/s"]"#;
            shows("rbac.authorization.k8s.io", kind, object, row);
            shows("rbac.authorization.k8s.io", kind, "{}", r#"["","/","<unknown>","","",""]"#);
        }
    }
}
