//! The kinds of scheduling.k8s.io: PriorityClass.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

use super::{DeletionRules, Generation, KindRules, MetaRevalidation, MetadataRules, ValidationRules};
use crate::allowed::scheduling_v1;

/// The rules of a PriorityClass.
pub const PRIORITY_CLASS: KindRules = KindRules {
    metadata: MetadataRules {
        generation: Generation::FIRST,
        revalidation: MetaRevalidation::Change,
        ..MetadataRules::DEFAULT
    },
    validation: ValidationRules {
        validate: validate_priority,
        validate_update: validate_priority_update,
        ..ValidationRules::DEFAULT
    },
    deletion: DeletionRules { undeletable_reason: priority_undeletable, ..DeletionRules::DEFAULT },
    ..KindRules::DEFAULT
};

/// The largest priority of a user-defined class.
const MAX_PRIORITY: i64 = 1_000_000_000;
const SYSTEM_PREFIX: &str = "system-";
const SYSTEM_PRIORITIES: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// The reason why a PriorityClass cannot be deleted: it is one of the system.
fn priority_undeletable(name: &str) -> Option<&'static str> {
    let is_system = SYSTEM_PRIORITIES.iter().any(|(system_name, _)| *system_name == name);
    is_system.then_some("this is a system priority class and cannot be deleted")
}

/// Validates a PriorityClass: the highest priorities belong to the system.
fn validate_priority(class: &Value, errors: &mut ErrorList) {
    let (name, value) = (meta::name(class), FieldValue::top_level(class, "value").number());
    if name.starts_with(SYSTEM_PREFIX) {
        let violation = match SYSTEM_PRIORITIES.iter().find(|(system_name, _)| *system_name == name) {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, expected)) if *expected != value => {
                Some(format!("value of {name} PriorityClass must be {expected}"))
            }
            Some(_) if FieldValue::top_level(class, "globalDefault").is_true() => {
                Some(format!("globalDefault of {name} PriorityClass must be false"))
            }
            Some(_) => None,
        };
        if let Some(violation) = violation {
            let detail = format!(
                "priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use only. error: {violation}"
            );
            errors.push(FieldError::forbidden(&FieldPath::new("metadata").child("name"), &detail));
        }
    } else if value > MAX_PRIORITY {
        let detail = format!("maximum allowed value of a user defined priority is {MAX_PRIORITY}");
        FieldValue::top_level(class, "value").forbidden(errors, &detail);
    }
    let policy = FieldValue::top_level(class, "preemptionPolicy");
    if policy.is_set() {
        policy.need_one_of(errors, scheduling_v1::PriorityClass::PREEMPTION_POLICY);
    }
}

/// Validates an updated PriorityClass.
fn validate_priority_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    if FieldValue::top_level(new, "value").number() != FieldValue::top_level(old, "value").number() {
        FieldValue::top_level(new, "value").forbidden(errors, "may not be changed in an update.");
    }
    FieldValue::top_level(new, "preemptionPolicy")
        .unchanged(&FieldValue::top_level(old, "preemptionPolicy"), errors);
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused};

    use super::super::testing::filled;
    use super::*;

    #[test]
    fn priority_class_validation_refuses_each_violation() {
        let class =
            filled(("scheduling.k8s.io", "v1"), "PriorityClass", r#"{"metadata":{"name":"a"},"value":5}"#);
        each_refused(
            &class,
            validate_priority,
            &[
                (
                    "metadata.name",
                    r#""system-x""#,
                    "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-x is not a known",
                ),
                ("value", "1000000001", "maximum allowed value of a user defined priority is 1000000000"),
                ("preemptionPolicy", r#""X""#, "\"PreemptLowerPriority\", \"Never\""),
            ],
        );
        each_change_refused(
            &class,
            validate_priority_update,
            &[
                ("value", "6", "value: Forbidden: may not be changed in an update."),
                (
                    "preemptionPolicy",
                    r#""Never""#,
                    "preemptionPolicy: Invalid value: \"Never\": field is immutable",
                ),
            ],
        );
    }
}
