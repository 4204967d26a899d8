//! ResourceQuotas.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

use super::resources;
use crate::allowed::core_v1;
use crate::{DeletionRules, KindRules, MetaRevalidation, MetadataRules, StatusRules, ValidationRules};

/// The rules of a ResourceQuota.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules { revalidation: MetaRevalidation::Change, ..MetadataRules::DEFAULT },
    validation: ValidationRules {
        validate: validate_quota,
        validate_update: validate_quota_update,
        ..ValidationRules::DEFAULT
    },
    status: StatusRules { validate: validate_quota_status, ..StatusRules::DEFAULT },
    deletion: DeletionRules::RETURNS_OBJECT,
    ..KindRules::DEFAULT
};

fn validate_quota_amounts(amounts: &FieldValue<'_>, errors: &mut ErrorList) {
    for (name, entry) in amounts.entries() {
        resources::validate_name(name, &entry, errors);
        if !name.contains('/') && !resources::is_standard_for_quota(name) {
            errors.push(FieldError::invalid(&entry.path, name, "must be a standard resource for quota"));
        }
        resources::validate_amount(name, &entry, errors);
    }
}

/// Whether a scope applies to a resource.
fn applies_to(scope: &str, resource: &str) -> bool {
    let compute = ["cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
    match scope {
        "Terminating"
        | "NotTerminating"
        | "NotBestEffort"
        | "PriorityClass"
        | "CrossNamespacePodAffinity" => resource == "pods" || compute.contains(&resource),
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        _ => true,
    }
}

const SCOPES: &[&str] = core_v1::ResourceQuotaSpec::SCOPES;

fn is_scope(scope: &str) -> bool {
    SCOPES.contains(&scope)
}

/// The number of resources that each scope does not apply to. Counted, because clients choose the number of scopes and
/// resources.
struct UnsupportedScopes(BTreeMap<&'static str, usize>);

impl UnsupportedScopes {
    fn count(hard: &[&str]) -> UnsupportedScopes {
        let unsupported = |scope: &str| hard.iter().filter(|name| !applies_to(scope, name)).count();
        UnsupportedScopes(SCOPES.iter().map(|scope| (*scope, unsupported(scope))).collect())
    }

    /// Reports a scope once for each such resource.
    fn report(&self, scope: &str, errors: &mut ErrorList, error: impl Fn() -> FieldError) {
        for _ in 0..self.0.get(scope).copied().unwrap_or_default() {
            if errors.is_full() {
                return;
            }
            errors.add(&error);
        }
    }
}

const UNSUPPORTED_SCOPE: &str = "unsupported scope applied to resource";
const CONFLICTING: [[&str; 2]; 2] = [["BestEffort", "NotBestEffort"], ["NotTerminating", "Terminating"]];

/// Validates a ResourceQuota.
fn validate_quota(quota: &Value, errors: &mut ErrorList) {
    validate_quota_spec(quota, errors);
    validate_quota_status(quota, quota, errors);
}

fn validate_quota_spec(quota: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(quota, "spec");
    validate_quota_amounts(&spec.child("hard"), errors);
    let hard: Vec<&str> = spec
        .read("hard")
        .fields()
        .into_iter()
        .flatten()
        .map(|(name, _)| name.as_str())
        .filter(|name| resources::is_standard_for_quota(name))
        .collect();
    let unsupported = UnsupportedScopes::count(&hard);
    if let Some(scopes) = spec.opt("scopes") {
        for scope in scopes.items() {
            if !is_scope(scope.text()) {
                scopes.invalid(errors, "unsupported scope");
            }
            unsupported.report(scope.text(), errors, || {
                FieldError::invalid(&scopes.path, &scopes.render(), UNSUPPORTED_SCOPE)
            });
        }
        let contains_scope =
            |scope: &&str| scopes.value.items().iter().any(|item| item.as_str() == Some(scope));
        for _ in CONFLICTING.iter().filter(|pair| pair.iter().all(contains_scope)) {
            scopes.invalid(errors, "conflicting scopes");
        }
    }
    if let Some(selector) = spec.opt("scopeSelector") {
        validate_scope_selector(&spec, &selector, &unsupported, errors);
    }
}

fn validate_scope_selector(
    spec: &FieldValue<'_>,
    selector: &FieldValue<'_>,
    unsupported: &UnsupportedScopes,
    errors: &mut ErrorList,
) {
    const ONLY_EXISTS: &str = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
        ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or \
        ResourceQuotaScopeCrossNamespacePodAffinity";
    // Messages name the list, not the requirement inside of it.
    let list = selector.child("matchExpressions");
    let mut seen = BTreeSet::new();
    for requirement in list.items() {
        let (scope, operator, values) =
            (requirement.str("scopeName"), requirement.str("operator"), requirement.child("values"));
        if !is_scope(scope) {
            errors.push(FieldError::invalid(
                &list.path.child("scopeName"),
                &quoted(scope),
                "unsupported scope",
            ));
        }
        unsupported
            .report(scope, errors, || FieldError::invalid(&list.path, &selector.render(), UNSUPPORTED_SCOPE));
        let needs_exists = !matches!(scope, "PriorityClass" | "VolumeAttributesClass") && is_scope(scope);
        if needs_exists && operator != "Exists" {
            errors.push(FieldError::invalid(&list.path.child("operator"), &quoted(operator), ONLY_EXISTS));
        }
        let values = values.named(list.path.child("values"));
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let detail =
                    "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                values.required(errors, detail);
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail =
                    "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                values.invalid(errors, detail);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => {
                let path = list.path.child("operator");
                errors.push(FieldError::invalid(&path, &quoted(operator), "not a valid selector operator"));
            }
        }
        seen.insert(scope);
    }
    for _ in CONFLICTING.iter().filter(|pair| pair.iter().all(|scope| seen.contains(scope))) {
        let scopes = spec.child("scopes");
        let rendered =
            if scopes.is_set() { scopes.render() } else { "[]core.ResourceQuotaScope(nil)".to_owned() };
        errors.push(FieldError::invalid(&list.path, &rendered, "conflicting scopes"));
    }
}

/// Checks an updated quota: its scopes are immutable.
fn validate_quota_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_quota_spec(new, errors);
    let (spec, old_spec) = (FieldValue::top_level(new, "spec"), FieldValue::top_level(old, "spec"));
    let scopes = |spec: &FieldValue<'_>| -> BTreeSet<String> {
        spec.child("scopes").items().map(|scope| scope.text().to_owned()).collect()
    };
    if scopes(&spec) != scopes(&old_spec) {
        let node = spec.child("scopes");
        let rendered =
            if node.is_set() { node.render() } else { "[]core.ResourceQuotaScope(nil)".to_owned() };
        errors.push(FieldError::invalid(&node.path, &rendered, meta::IMMUTABLE));
    }
}

/// Validates the status of a ResourceQuota.
fn validate_quota_status(new: &Value, _old: &Value, errors: &mut ErrorList) {
    let status = FieldValue::top_level(new, "status");
    for part in ["hard", "used"] {
        validate_quota_amounts(&status.child(part), errors);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::*;

    #[test]
    fn quota_validation_refuses_each_violation() {
        let base = object(
            r#"{"spec":{"hard":{"pods":"1","requests.example.com/gpu":"1","count/x.y":"2"},"scopes":["BestEffort"],
                "scopeSelector":{"matchExpressions":[{"scopeName":"PriorityClass","operator":"In","values":["a"]}]}}}"#,
        );
        let first = "spec.scopeSelector.matchExpressions.0";
        let (scope, operator, values) =
            (format!("{first}.scopeName"), format!("{first}.operator"), format!("{first}.values"));
        each_refused(
            &base,
            validate_quota,
            &[
                (
                    "spec.hard.pods",
                    r#""500m""#,
                    "spec.hard[pods]: Invalid value: resource.Quantity{s:\"500m\"}: must be an integer",
                ),
                ("spec.hard.pods", r#""-1""#, "must be greater than or equal to 0"),
                (
                    "spec.hard.storage",
                    r#""1""#,
                    "spec.hard[storage]: Invalid value: storage: must be a standard resource for quota",
                ),
                ("spec.scopes", r#"["X"]"#, "spec.scopes: Invalid value: []string{\"X\"}: unsupported scope"),
                ("spec.scopes", r#"["VolumeAttributesClass"]"#, "unsupported scope applied to resource"),
                ("spec.scopes", r#"["BestEffort","NotBestEffort"]"#, "conflicting scopes"),
                (
                    &scope,
                    r#""X""#,
                    "spec.scopeSelector.matchExpressions.scopeName: Invalid value: \"X\": unsupported scope",
                ),
                (&scope, r#""Terminating""#, "must be 'Exists' when scope is any of"),
                (
                    &operator,
                    r#""X""#,
                    "matchExpressions.operator: Invalid value: \"X\": not a valid selector operator",
                ),
                (&operator, r#""Exists""#, "must be no value when `operator` is 'Exist' or 'DoesNotExist'"),
                (&values, "[]", "matchExpressions.values: Required value: must be at least one value"),
                ("status.used", r#"{"pods":"-1"}"#, "status.used[pods]: Invalid value: \"-1\""),
            ],
        );
        each_change_refused(
            &base,
            validate_quota_update,
            &[("spec.scopes", "[]", "spec.scopes: Invalid value: []string{}: field is immutable")],
        );
        each_change_refused(
            &base,
            validate_quota_status,
            &[(
                "status.hard",
                r#"{"storage":"1"}"#,
                "status.hard[storage]: Invalid value: storage: must be a standard",
            )],
        );
    }
}
