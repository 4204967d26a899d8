//! Kinds with few rules: Lease, LeaseCandidate, PriorityClass, RuntimeClass.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, same};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

use super::{
    DeletionRules, Generation, KindRules, MetaRevalidation, MetadataRules, Revalidation, UpdateRules,
    ValidationRules, WarningRules, gated,
};
use crate::allowed::scheduling_v1;

/// The rules of a Lease.
pub const LEASE: KindRules = KindRules {
    metadata: MetadataRules {
        known_finalizers: false,
        revalidation: MetaRevalidation::Change,
        ..MetadataRules::DEFAULT
    },
    update: UpdateRules { allows_create: true, allows_unconditional: false },
    gated: gated::rows::LEASE,
    validation: ValidationRules {
        validate: validate_lease,
        revalidation: Revalidation::Once,
        ..ValidationRules::DEFAULT
    },
    ..KindRules::DEFAULT
};

/// The rules of a LeaseCandidate.
pub const LEASE_CANDIDATE: KindRules = KindRules {
    metadata: MetadataRules {
        name: candidate_name,
        known_finalizers: false,
        revalidation: MetaRevalidation::Change,
        ..MetadataRules::DEFAULT
    },
    update: UpdateRules { allows_create: true, allows_unconditional: false },
    validation: ValidationRules {
        validate: validate_candidate,
        revalidation: Revalidation::Once,
        validate_update: validate_candidate_update,
    },
    ..KindRules::DEFAULT
};

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

/// The rules of a RuntimeClass.
pub const RUNTIME_CLASS: KindRules = KindRules {
    metadata: MetadataRules { known_finalizers: false, ..MetadataRules::DEFAULT },
    update: UpdateRules { allows_create: true, allows_unconditional: false },
    validation: ValidationRules {
        validate: validate_runtime,
        revalidation: Revalidation::Once,
        validate_update: validate_runtime_update,
    },
    warnings: WarningRules { warn: warn_runtime, ..WarningRules::DEFAULT },
    ..KindRules::DEFAULT
};

/// The largest priority of a user-defined class.
const MAX_PRIORITY: i64 = 1_000_000_000;
const SYSTEM_PREFIX: &str = "system-";
const SYSTEM_PRIORITIES: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// Checks a Lease.
fn validate_lease(lease: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(lease, "spec");
    if spec.child("leaseDurationSeconds").is_set() {
        spec.child("leaseDurationSeconds").positive(errors);
    }
    spec.child("leaseTransitions").not_negative(errors);
    let strategy = spec.child("strategy");
    if strategy.is_set() {
        validate_lease_strategy(&strategy, errors);
    }
    if !spec.child("preferredHolder").is_empty() && spec.child("strategy").is_empty() {
        spec.child("preferredHolder").forbidden(errors, "may only be specified if `strategy` is defined");
    }
}

/// Validates the strategy of leader election: a known one, or a qualified name. The path contains the field twice, as in the
/// reference.
fn validate_lease_strategy(strategy: &FieldValue<'_>, errors: &mut ErrorList) {
    let node = FieldValue { value: strategy.value, path: strategy.path.child("strategy") };
    if strategy.text().contains('/') {
        node.syntax(errors, names::qualified_name);
    } else {
        node.one_of(errors, &["OldestEmulationVersion"]);
    }
}

/// The syntax of names of candidates: that of ConfigMap keys.
fn candidate_name(name: &str, _prefix: bool) -> Vec<String> {
    names::config_key(name)
}

/// Parses a semantic version: its three numbers, and whether it is a release (not a pre-release).
pub fn parse_version(text: &str) -> Option<(u64, u64, u64, bool)> {
    let (core, build) = text.split_once('+').unwrap_or((text, "x"));
    let (core, prerelease) =
        core.split_once('-').map_or((core, None), |(core, prerelease)| (core, Some(prerelease)));
    let number = |text: &str| -> Option<u64> {
        let has_no_leading_zero = text == "0" || !text.starts_with('0');
        text.bytes().all(|byte| byte.is_ascii_digit()).then_some(())?;
        if has_no_leading_zero { text.parse().ok() } else { None }
    };
    let is_valid_suffix = |text: &str| {
        text.split('.').all(|part| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        })
    };
    if !is_valid_suffix(build) || prerelease.is_some_and(|prerelease| !is_valid_suffix(prerelease)) {
        return None;
    }
    let mut parts = core.split('.');
    let numbers = (number(parts.next()?)?, number(parts.next()?)?, number(parts.next()?)?);
    parts.next().is_none().then_some((numbers.0, numbers.1, numbers.2, prerelease.is_none()))
}

/// Checks a LeaseCandidate.
fn validate_candidate(candidate: &Value, errors: &mut ErrorList) {
    const INVALID_VERSION: &str = "must be a valid semantic version";
    let spec = FieldValue::top_level(candidate, "spec");
    let (emulated, binary, strategy) =
        (spec.child("emulationVersion"), spec.child("binaryVersion"), spec.child("strategy"));
    spec.child("leaseName").need(errors);
    if !emulated.is_empty() && parse_version(emulated.text()).is_none() {
        emulated.invalid(errors, INVALID_VERSION);
    }
    if binary.need(errors) && parse_version(binary.text()).is_none() {
        binary.invalid(errors, INVALID_VERSION);
    }
    // An invalid version counts as the lowest one.
    const LOWEST_VERSION: (u64, u64, u64, bool) = (0, 0, 0, true);
    let version_of = |node: &FieldValue<'_>| parse_version(node.text()).unwrap_or(LOWEST_VERSION);
    if !emulated.is_empty() && !binary.is_empty() && version_of(&binary) < version_of(&emulated) {
        binary.invalid(errors, "must be greater than or equal to `emulationVersion`");
    }
    if !strategy.need(errors) {
        return;
    }
    if strategy.text() == "OldestEmulationVersion" && version_of(&emulated) == LOWEST_VERSION {
        emulated.required(errors, "must be specified when `strategy` is 'OldestEmulationVersion'");
    }
    validate_lease_strategy(&strategy, errors);
}

/// Validates an updated LeaseCandidate: its lease is immutable.
fn validate_candidate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let lease_name = |object| FieldValue::top_level(object, "spec").child("leaseName");
    if lease_name(new).text() != lease_name(old).text() {
        lease_name(new).invalid_text(errors, meta::IMMUTABLE);
    }
}

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

/// Checks a RuntimeClass.
fn validate_runtime(class: &Value, errors: &mut ErrorList) {
    FieldValue::top_level(class, "handler").syntax(errors, names::dns_label);
    let overhead = FieldValue::top_level(class, "overhead");
    if overhead.is_set() {
        let mut requirements = Value::object();
        requirements.set("limits", overhead.child("podFixed").value.clone());
        crate::core::resources::validate_requirements(
            &FieldValue { value: &requirements, path: overhead.path },
            errors,
        );
    }
    let scheduling = FieldValue::top_level(class, "scheduling");
    let nodes = scheduling.child("nodeSelector");
    meta::validate_labels(Some(nodes.value), &nodes.path, errors);
    let tolerations = scheduling.child("tolerations");
    // The path contains the field twice, as in the reference.
    let inner = FieldValue { value: tolerations.value, path: tolerations.path.child("tolerations") };
    crate::core::pod_spec::validate_tolerations(&inner, errors);
    let mut seen = BTreeSet::new();
    for toleration in tolerations.items() {
        let key = ["key", "operator", "value", "effect"].map(|field| toleration.child(field).text());
        if !seen.insert(key) {
            let [key, operator, value, effect] = key.map(quoted);
            // The reference prints the address of the seconds, which differs each time.
            let seconds = if toleration.has("tolerationSeconds") { "0xc000000000" } else { "nil" };
            errors.add(|| {
                let rendered = format!(
                    "core.Toleration{{Key:{key}, Operator:{operator}, Value:{value}, Effect:{effect}, \
                     TolerationSeconds:(*int64)({seconds})}}"
                );
                FieldError::duplicate(&toleration.path, &rendered)
            });
        }
    }
}

/// Warns about deprecated node labels.
fn warn_runtime(class: &Value, _old: Option<&Value>, warnings: &mut WarningList) {
    let nodes = FieldValue::top_level(class, "scheduling").child("nodeSelector");
    for (label, _) in nodes.entries() {
        if let Some(detail) = crate::core::node_label::deprecated(label) {
            warnings.push(format!("{}: {detail}", nodes.path));
        }
    }
}

/// Validates an updated RuntimeClass: its handler is immutable.
fn validate_runtime_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    if !same(new.get("handler"), old.get("handler")) {
        FieldValue::top_level(new, "handler").invalid_text(errors, meta::IMMUTABLE);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::super::testing::filled;
    use super::*;

    #[test]
    fn lease_candidate_validation_refuses_each_violation() {
        let base = object(
            r#"{"spec":{"leaseName":"l","binaryVersion":"1.33.0","emulationVersion":"1.32.0","strategy":"OldestEmulationVersion"}}"#,
        );
        each_refused(
            &base,
            validate_candidate,
            &[
                ("spec.leaseName", "null", "spec.leaseName: Required value"),
                ("spec.binaryVersion", r#""1.31.0""#, "must be greater than or equal to `emulationVersion`"),
                (
                    "spec.emulationVersion",
                    "null",
                    "must be specified when `strategy` is 'OldestEmulationVersion'",
                ),
                ("spec.strategy", "null", "spec.strategy: Required value"),
                ("spec.strategy", r#""X""#, "spec.strategy.strategy: Unsupported value"),
            ],
        );
        each_change_refused(
            &base,
            validate_candidate_update,
            &[("spec.leaseName", r#""m""#, "spec.leaseName: Invalid value: \"m\": field is immutable")],
        );
        for version in ["0.1.0", "1.33.0-alpha.1+x.y"] {
            assert!(parse_version(version).is_some(), "{version}");
        }
        for version in ["", "1.2", "v1.2.3", "01.2.3", "1.2.3-", "1.2.3+"] {
            assert!(parse_version(version).is_none(), "{version}");
        }
        assert!(parse_version("1.0.0-a") < parse_version("1.0.0"));
        let mut warnings = WarningList::new();
        warn_runtime(
            &object(r#"{"scheduling":{"nodeSelector":{"beta.kubernetes.io/os":"x"}}}"#),
            None,
            &mut warnings,
        );
        assert_eq!(
            warnings,
            ["scheduling.nodeSelector: deprecated since v1.14; use \"kubernetes.io/os\" instead"]
        );
    }

    #[test]
    fn lease_priority_and_runtime_validation_refuses_each_violation() {
        each_refused(
            &object(r#"{"spec":{"leaseDurationSeconds":15}}"#),
            validate_lease,
            &[
                (
                    "spec.leaseDurationSeconds",
                    "0",
                    "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
                ),
                (
                    "spec.leaseTransitions",
                    "-1",
                    "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
                ),
                ("spec.preferredHolder", r#""x""#, "may only be specified if `strategy` is defined"),
                (
                    "spec.strategy",
                    r#""X""#,
                    "spec.strategy.strategy: Unsupported value: \"X\": supported values: \"OldestEmulationVersion\"",
                ),
                ("spec.strategy", r#""a/-""#, "spec.strategy.strategy: Invalid value: \"a/-\""),
            ],
        );
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
        let runtime = object(r#"{"handler":"h","scheduling":{"nodeSelector":{"a":"b"}}}"#);
        each_refused(
            &runtime,
            validate_runtime,
            &[
                ("handler", r#""A""#, "handler: Invalid value: \"A\": a lowercase RFC 1123 label"),
                ("scheduling.nodeSelector.a", r#""-""#, "scheduling.nodeSelector: Invalid value"),
                ("overhead", r#"{"podFixed":{"cpu":"-1"}}"#, "overhead.limits[cpu]: Invalid value"),
                (
                    "scheduling.tolerations",
                    r#"[{"key":"-","operator":"Exists"}]"#,
                    "scheduling.tolerations.tolerations[0].key: Invalid value",
                ),
                (
                    "scheduling.tolerations",
                    r#"[{"operator":"Exists"},{"operator":"Exists"}]"#,
                    "scheduling.tolerations[1]: Duplicate value: core.Toleration{Key:\"\", Operator:\"Exists\", \
                     Value:\"\", Effect:\"\", TolerationSeconds:(*int64)(nil)}",
                ),
            ],
        );
        each_change_refused(
            &runtime,
            validate_runtime_update,
            &[("handler", r#""g""#, "handler: Invalid value: \"g\": field is immutable")],
        );
    }
}
