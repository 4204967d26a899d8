//! Rows of roles and bindings.

use pilothouse_apimachinery::value::Value;

use super::cells::{PrintedObject, cells};

/// Cells of a binding of a role.
pub fn binding(object: &PrintedObject<'_>) -> Vec<Value> {
    let subjects_of_kind = |kind: &str| {
        let subjects = object.items("subjects").iter().filter(|subject| subject.str("kind") == kind);
        let names = subjects.map(|subject| match kind {
            "ServiceAccount" => format!("{}/{}", subject.str("namespace"), subject.str("name")),
            _ => subject.str("name").to_owned(),
        });
        names.collect::<Vec<_>>().join(", ")
    };
    cells![
        object.name(),
        format!("{}/{}", object.text("roleRef.kind"), object.text("roleRef.name")),
        object.age(),
        subjects_of_kind("User"),
        subjects_of_kind("Group"),
        subjects_of_kind("ServiceAccount")
    ]
}

#[cfg(test)]
mod tests {
    use crate::print::testing::assert_cells;

    #[test]
    fn binding_cells_group_subjects_by_kind() {
        let object = r#"{"metadata":{"name":"b"},"roleRef":{"kind":"Role","name":"r"},"subjects":[
            {"kind":"User","name":"u"},{"kind":"Group","name":"g"},{"kind":"ServiceAccount","namespace":"n","name":"s"},
            {"kind":"User","name":"v"},{"kind":"Other","name":"o"}]}"#;
        for kind in ["RoleBinding", "ClusterRoleBinding"] {
            let row = r#"["b","Role/r","<unknown>","u, v","g","n/s"]"#;
            assert_cells("rbac.authorization.k8s.io", kind, object, row);
            assert_cells("rbac.authorization.k8s.io", kind, "{}", r#"["","/","<unknown>","","",""]"#);
        }
    }
}
