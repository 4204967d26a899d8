//! The group `rbac.authorization.k8s.io`.

use super::{items_mut, set_if_absent};
use crate::api::value::Value;

pub(super) fn binding(binding: &mut Value) {
    for subject in items_mut(binding, "subjects") {
        if matches!(subject.str("kind"), "User" | "Group") {
            set_if_absent(subject, "apiGroup", "rbac.authorization.k8s.io");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::defaulted;
    use super::*;

    #[test]
    fn people_belong_to_the_group_and_accounts_do_not() {
        let body = r#"{"subjects":[{"kind":"User","name":"u"},{"kind":"ServiceAccount","name":"s"}]}"#;
        let value = defaulted("rbac.authorization.k8s.io", "v1", "RoleBinding", body);
        let groups: Vec<&str> =
            value.get("subjects").unwrap().items().iter().map(|s| s.str("apiGroup")).collect();
        assert_eq!(groups, ["rbac.authorization.k8s.io", ""]);
        assert_eq!(value.at(&["roleRef", "apiGroup"]).and_then(Value::as_str), Some(groups[0]));
    }
}
