//! Roles and bindings.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::{FieldValue, fill_text, items_mut, same};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::RBAC_GROUP;

use super::{
    DefaultingRules, KindRules, MetaRevalidation, MetadataRules, Revalidation, UpdateRules, ValidationRules,
};

/// The rules that all kinds of the group share: an update validates each object as new and as updated.
const GROUP_RULES: KindRules = KindRules {
    metadata: MetadataRules {
        name,
        revalidation: MetaRevalidation::WholeTwiceAndChange,
        ..MetadataRules::DEFAULT
    },
    update: UpdateRules::CREATE_ON_UPDATE,
    validation: ValidationRules { revalidation: Revalidation::Twice, ..ValidationRules::DEFAULT },
    ..KindRules::DEFAULT
};

/// The rules of a Role.
pub const ROLE: KindRules = KindRules {
    validation: ValidationRules { validate: validate_role, ..GROUP_RULES.validation },
    ..GROUP_RULES
};

/// The rules of a ClusterRole.
pub const CLUSTER_ROLE: KindRules = KindRules {
    validation: ValidationRules { validate: validate_cluster_role, ..GROUP_RULES.validation },
    ..GROUP_RULES
};

/// The rules of a RoleBinding.
pub const ROLE_BINDING: KindRules = KindRules {
    defaulting: DefaultingRules { default: default_binding, ..DefaultingRules::DEFAULT },
    validation: ValidationRules {
        validate: validate_binding,
        validate_update: validate_role_unchanged,
        ..GROUP_RULES.validation
    },
    ..GROUP_RULES
};

/// The rules of a ClusterRoleBinding.
pub const CLUSTER_ROLE_BINDING: KindRules = KindRules {
    defaulting: DefaultingRules { default: default_binding, ..DefaultingRules::DEFAULT },
    validation: ValidationRules {
        validate: validate_cluster_binding,
        validate_update: validate_role_unchanged,
        ..GROUP_RULES.validation
    },
    ..GROUP_RULES
};

/// Names of roles only have to be valid path segments.
pub fn name(name: &str, _prefix: bool) -> Vec<String> {
    names::path_segment(name, false)
}

/// The defaults of a binding: users and groups are those of this API group.
fn default_binding(binding: &mut Value) {
    for subject in items_mut(binding, "subjects") {
        if matches!(subject.str("kind"), "User" | "Group") {
            fill_text(subject, "apiGroup", RBAC_GROUP);
        }
    }
}

fn validate_rules(role: &Value, namespaced: bool, errors: &mut ErrorList) {
    for rule in FieldValue::top_level(role, "rules").items() {
        let list = |field: &str| rule.child(field);
        if list("verbs").is_empty() {
            list("verbs").required(errors, "verbs must contain at least one value");
        }
        let urls = list("nonResourceURLs");
        if !urls.is_empty() {
            if namespaced {
                urls.invalid(errors, "namespaced rules cannot apply to non-resource URLs");
            }
            if ["apiGroups", "resources", "resourceNames"].iter().any(|field| !list(field).is_empty()) {
                urls.invalid(errors, "rules cannot apply to both regular resources and non-resource URLs");
            }
            continue;
        }
        if list("apiGroups").is_empty() {
            list("apiGroups").required(errors, "resource rules must supply at least one api group");
        }
        if list("resources").is_empty() {
            list("resources").required(errors, "resource rules must supply at least one resource");
        }
    }
}

/// Checks a Role.
fn validate_role(role: &Value, errors: &mut ErrorList) {
    validate_rules(role, true, errors);
}

/// Checks a ClusterRole.
fn validate_cluster_role(role: &Value, errors: &mut ErrorList) {
    validate_rules(role, false, errors);
    let aggregation = FieldValue::top_level(role, "aggregationRule");
    if !aggregation.is_set() {
        return;
    }
    let selectors = aggregation.child("clusterRoleSelectors");
    if selectors.is_empty() {
        selectors.required(errors, "at least one clusterRoleSelector required if aggregationRule is non-nil");
    }
    for selector in selectors.items() {
        let mut selector_errors = ErrorList::new();
        label_selector::validate(&selector, &mut selector_errors);
        let is_invalid = !selector_errors.is_empty();
        errors.extend(selector_errors);
        if is_invalid {
            // The reference also converts the selector, which fails again.
            errors.push(FieldError::invalid(&selector.path, "\"null\"", "invalid label selector."));
        }
    }
}

fn validate_subjects_and_role(binding: &Value, namespaced: bool, errors: &mut ErrorList) {
    let role = FieldValue::top_level(binding, "roleRef");
    role.child("apiGroup").one_of(errors, &[RBAC_GROUP]);
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    role.child("kind").one_of(errors, kinds);
    role.child("name").need_syntax(errors, |text| name(text, false));
    for subject in FieldValue::top_level(binding, "subjects").items() {
        let (name_field, group) = (subject.child("name"), subject.child("apiGroup"));
        name_field.need(errors);
        match subject.child("kind").text() {
            "ServiceAccount" => {
                name_field.syntax_if_set(errors, names::dns_subdomain);
                if !group.is_empty() {
                    group.one_of(errors, &[""]);
                }
                if !namespaced && subject.child("namespace").is_empty() {
                    subject.child("namespace").required(errors, "");
                }
            }
            "User" | "Group" => group.one_of(errors, &[RBAC_GROUP]),
            _ => subject.child("kind").one_of(errors, &["ServiceAccount", "User", "Group"]),
        }
    }
}

/// Validates that an updated binding keeps its role.
fn validate_role_unchanged(new: &Value, old: &Value, errors: &mut ErrorList) {
    if !same(new.get("roleRef"), old.get("roleRef")) {
        let path = FieldValue::top_level(new, "roleRef").path;
        errors.push(FieldError::invalid(&path, "rbac.RoleRef{}", "cannot change roleRef"));
    }
}

/// Checks a RoleBinding.
fn validate_binding(object: &Value, errors: &mut ErrorList) {
    validate_subjects_and_role(object, true, errors);
}

/// Checks a ClusterRoleBinding.
fn validate_cluster_binding(object: &Value, errors: &mut ErrorList) {
    validate_subjects_and_role(object, false, errors);
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::super::testing::filled;
    use super::*;

    #[test]
    fn role_validation_refuses_each_violation() {
        let base = object(r#"{"rules":[{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}]}"#);
        each_refused(
            &base,
            validate_role,
            &[
                (
                    "rules.0.verbs",
                    "[]",
                    "rules[0].verbs: Required value: verbs must contain at least one value",
                ),
                ("rules.0.apiGroups", "[]", "resource rules must supply at least one api group"),
                ("rules.0.resources", "[]", "resource rules must supply at least one resource"),
                (
                    "rules.0",
                    r#"{"verbs":["get"],"nonResourceURLs":["/x"]}"#,
                    "namespaced rules cannot apply to non-resource URLs",
                ),
            ],
        );
        each_refused(
            &base,
            validate_cluster_role,
            &[
                (
                    "rules.0.nonResourceURLs",
                    r#"["/x"]"#,
                    "rules cannot apply to both regular resources and non-resource URLs",
                ),
                ("aggregationRule", "{}", "at least one clusterRoleSelector required"),
            ],
        );
    }

    #[test]
    fn rbac_update_reports_each_error_twice() {
        let (role, binding) = (object(r#"{"rules":[{"verbs":["get"],"apiGroups":[""]}]}"#), object("{}"));
        for (kind, object, expected) in [
            ("Role", &role, 2),
            ("ClusterRole", &role, 2),
            ("RoleBinding", &binding, 6),
            ("ClusterRoleBinding", &binding, 6),
        ] {
            let mut errors = ErrorList::new();
            crate::rules(RBAC_GROUP, kind).validation.check_update(object, object, &mut errors);
            assert_eq!(errors.len(), expected, "{errors:?}");
        }
    }

    #[test]
    fn role_binding_validation_refuses_each_violation() {
        let base = filled(
            (RBAC_GROUP, "v1"),
            "RoleBinding",
            r#"{"roleRef":{"kind":"ClusterRole","name":"r"},"subjects":[{"kind":"User","name":"u"},
                {"kind":"ServiceAccount","name":"s","namespace":"n"}]}"#,
        );
        let table = [
            (
                "roleRef.apiGroup",
                r#""x""#,
                "roleRef.apiGroup: Unsupported value: \"x\": supported values: \"rbac.authorization.k8s.io\"",
            ),
            ("roleRef.kind", r#""X""#, "roleRef.kind: Unsupported value: \"X\""),
            ("roleRef.name", "null", "roleRef.name: Required value"),
            ("subjects.0.name", "null", "subjects[0].name: Required value"),
            ("subjects.0.kind", r#""X""#, "subjects[0].kind: Unsupported value: \"X\""),
            ("subjects.0.apiGroup", r#""x""#, "subjects[0].apiGroup: Unsupported value"),
            (
                "subjects.1.apiGroup",
                r#""x""#,
                "subjects[1].apiGroup: Unsupported value: \"x\": supported values: \"\"",
            ),
            ("subjects.1.name", r#""A""#, "subjects[1].name: Invalid value: \"A\""),
        ];
        each_refused(&base, validate_binding, &table);
        each_refused(&base, validate_cluster_binding, &table);
        each_refused(
            &base,
            validate_cluster_binding,
            &[
                ("subjects.1.namespace", "null", "subjects[1].namespace: Required value"),
                ("roleRef.kind", r#""Role""#, "supported values: \"ClusterRole\""),
            ],
        );
        each_change_refused(
            &base,
            validate_role_unchanged,
            &[("roleRef.name", r#""s""#, "roleRef: Invalid value: rbac.RoleRef{}: cannot change roleRef")],
        );
    }
}
