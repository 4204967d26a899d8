//! Kinds with few rules: leases, priorities, runtimes.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, same};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

use super::{BASE, GUARDED, Generation, KindRules, MetaRevalidation, Revalidation, gated};
use crate::allowed::scheduling_v1;

/// The rules of a Lease.
pub const LEASE: KindRules = KindRules {
    create_on_update: true,
    known_finalizers: false,
    gated: gated::rows::LEASE,
    validate: validate_lease,
    revalidation: Revalidation::Once,
    meta_revalidation: MetaRevalidation::Change,
    ..GUARDED
};

/// The rules of a LeaseCandidate.
pub const LEASE_CANDIDATE: KindRules = KindRules {
    name: candidate_name,
    create_on_update: true,
    known_finalizers: false,
    validate: validate_candidate,
    revalidation: Revalidation::Once,
    validate_update: validate_candidate_update,
    meta_revalidation: MetaRevalidation::Change,
    ..GUARDED
};

/// The rules of a PriorityClass.
pub const PRIORITY_CLASS: KindRules = KindRules {
    generation: Generation::FIRST,
    validate: validate_priority,
    validate_update: validate_priority_update,
    keep: keep_priority,
    meta_revalidation: MetaRevalidation::Change,
    ..BASE
};

/// The rules of a RuntimeClass.
pub const RUNTIME_CLASS: KindRules = KindRules {
    create_on_update: true,
    known_finalizers: false,
    validate: validate_runtime,
    revalidation: Revalidation::Once,
    validate_update: validate_runtime_update,
    warn: warn_runtime,
    ..GUARDED
};

/// The largest priority that is not the system's.
const LARGEST_PRIORITY: i64 = 1_000_000_000;
const SYSTEM_PREFIX: &str = "system-";
const SYSTEM_PRIORITIES: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// Checks a Lease.
fn validate_lease(lease: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::of(lease, "spec");
    if spec.child("leaseDurationSeconds").is_set() {
        spec.child("leaseDurationSeconds").positive(errors);
    }
    spec.child("leaseTransitions").not_negative(errors);
    let strategy = spec.child("strategy");
    if strategy.is_set() {
        lease_strategy(&strategy, errors);
    }
    if !spec.child("preferredHolder").is_empty() && spec.child("strategy").is_empty() {
        spec.child("preferredHolder").forbidden(errors, "may only be specified if `strategy` is defined");
    }
}

/// Checks how a leader is chosen: a known way, or one with a domain. The path names the field twice, as clients know it.
fn lease_strategy(strategy: &FieldValue<'_>, errors: &mut ErrorList) {
    let node = FieldValue { value: strategy.value, path: strategy.path.child("strategy") };
    if strategy.text().contains('/') {
        node.syntax(errors, names::qualified_name);
    } else {
        node.one_of(errors, &["OldestEmulationVersion"]);
    }
}

/// The syntax of the names of candidates: that of keys.
fn candidate_name(name: &str, _prefix: bool) -> Vec<String> {
    names::config_key(name)
}

/// The three numbers of a version, and whether something less than a release follows; `None` if it is no version.
pub fn version(text: &str) -> Option<(u64, u64, u64, bool)> {
    let (core, build) = text.split_once('+').unwrap_or((text, "x"));
    let (core, less) = core.split_once('-').map_or((core, None), |(core, less)| (core, Some(less)));
    let number = |text: &str| -> Option<u64> {
        let good = text == "0" || !text.starts_with('0');
        text.bytes().all(|byte| byte.is_ascii_digit()).then_some(())?;
        if good { text.parse().ok() } else { None }
    };
    let fits = |text: &str| {
        text.split('.').all(|part| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        })
    };
    if !fits(build) || less.is_some_and(|less| !fits(less)) {
        return None;
    }
    let mut parts = core.split('.');
    let all = (number(parts.next()?)?, number(parts.next()?)?, number(parts.next()?)?);
    parts.next().is_none().then_some((all.0, all.1, all.2, less.is_none()))
}

/// Checks a LeaseCandidate.
fn validate_candidate(candidate: &Value, errors: &mut ErrorList) {
    const NO_VERSION: &str = "must be a valid semantic version";
    let spec = FieldValue::of(candidate, "spec");
    let (emulated, binary, strategy) =
        (spec.child("emulationVersion"), spec.child("binaryVersion"), spec.child("strategy"));
    spec.child("leaseName").need(errors);
    if !emulated.is_empty() && version(emulated.text()).is_none() {
        emulated.invalid(errors, NO_VERSION);
    }
    if binary.need(errors) && version(binary.text()).is_none() {
        binary.invalid(errors, NO_VERSION);
    }
    // What is no version counts as the lowest one.
    const LOWEST: (u64, u64, u64, bool) = (0, 0, 0, true);
    let read = |node: &FieldValue<'_>| version(node.text()).unwrap_or(LOWEST);
    if !emulated.is_empty() && !binary.is_empty() && read(&binary) < read(&emulated) {
        binary.invalid(errors, "must be greater than or equal to `emulationVersion`");
    }
    if !strategy.need(errors) {
        return;
    }
    if strategy.text() == "OldestEmulationVersion" && read(&emulated) == LOWEST {
        emulated.required(errors, "must be specified when `strategy` is 'OldestEmulationVersion'");
    }
    lease_strategy(&strategy, errors);
}

/// Checks a changed LeaseCandidate: what it is a candidate for stays.
fn validate_candidate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let at = |object| FieldValue::of(object, "spec").child("leaseName");
    if at(new).text() != at(old).text() {
        at(new).invalid_text(errors, meta::IMMUTABLE);
    }
}

/// Why a PriorityClass cannot be deleted: the system needs its own.
fn keep_priority(name: &str) -> Option<&'static str> {
    let is_of_system = SYSTEM_PRIORITIES.iter().any(|(known, _)| *known == name);
    is_of_system.then_some("this is a system priority class and cannot be deleted")
}

/// Checks a PriorityClass: the highest ones belong to the system.
fn validate_priority(class: &Value, errors: &mut ErrorList) {
    let (name, value) = (meta::name(class), FieldValue::of(class, "value").number());
    if name.starts_with(SYSTEM_PREFIX) {
        let why = match SYSTEM_PRIORITIES.iter().find(|(known, _)| *known == name) {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, wanted)) if *wanted != value => {
                Some(format!("value of {name} PriorityClass must be {wanted}"))
            }
            Some(_) if FieldValue::of(class, "globalDefault").is_true() => {
                Some(format!("globalDefault of {name} PriorityClass must be false"))
            }
            Some(_) => None,
        };
        if let Some(why) = why {
            let wrong = format!(
                "priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use only. error: {why}"
            );
            errors.push(FieldError::forbidden(&FieldPath::new("metadata").child("name"), &wrong));
        }
    } else if value > LARGEST_PRIORITY {
        let wrong = format!("maximum allowed value of a user defined priority is {LARGEST_PRIORITY}");
        FieldValue::of(class, "value").forbidden(errors, &wrong);
    }
    let policy = FieldValue::of(class, "preemptionPolicy");
    if policy.is_set() {
        policy.need_one_of(errors, scheduling_v1::PriorityClass::PREEMPTION_POLICY);
    }
}

/// Checks a changed PriorityClass.
fn validate_priority_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    if FieldValue::of(new, "value").number() != FieldValue::of(old, "value").number() {
        FieldValue::of(new, "value").forbidden(errors, "may not be changed in an update.");
    }
    FieldValue::of(new, "preemptionPolicy").unchanged(&FieldValue::of(old, "preemptionPolicy"), errors);
}

/// Checks a RuntimeClass.
fn validate_runtime(class: &Value, errors: &mut ErrorList) {
    FieldValue::of(class, "handler").syntax(errors, names::dns_label);
    let overhead = FieldValue::of(class, "overhead");
    if overhead.is_set() {
        let mut holder = Value::object();
        holder.set("limits", overhead.child("podFixed").value.clone());
        crate::core::resources::requirements(&FieldValue { value: &holder, path: overhead.path }, errors);
    }
    let scheduling = FieldValue::of(class, "scheduling");
    let nodes = scheduling.child("nodeSelector");
    meta::validate_labels(Some(nodes.value), &nodes.path, errors);
    let tolerations = scheduling.child("tolerations");
    // The path names the field twice, as clients know it.
    let inner = FieldValue { value: tolerations.value, path: tolerations.path.child("tolerations") };
    crate::core::pod_spec::tolerations(&inner, errors);
    let mut seen = BTreeSet::new();
    for toleration in tolerations.items() {
        let key = ["key", "operator", "value", "effect"].map(|field| toleration.child(field).text());
        if !seen.insert(key) {
            let [key, operator, value, effect] = key.map(quoted);
            // Where there are seconds the reference prints an address, which is another one each time.
            let seconds = if toleration.has("tolerationSeconds") { "0xc000000000" } else { "nil" };
            errors.add(|| {
                let shown = format!(
                    "core.Toleration{{Key:{key}, Operator:{operator}, Value:{value}, Effect:{effect}, \
                     TolerationSeconds:(*int64)({seconds})}}"
                );
                FieldError::duplicate(&toleration.path, &shown)
            });
        }
    }
}

/// Warns of labels of nodes that other labels have replaced.
fn warn_runtime(class: &Value, _old: Option<&Value>, warned: &mut WarningList) {
    let nodes = FieldValue::of(class, "scheduling").child("nodeSelector");
    for (label, _) in nodes.entries() {
        if let Some(why) = crate::core::node_label::deprecated(label) {
            warned.push(format!("{}: {why}", nodes.path));
        }
    }
}

/// Checks a changed RuntimeClass: what it names stays.
fn validate_runtime_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    if !same(new.get("handler"), old.get("handler")) {
        FieldValue::of(new, "handler").invalid_text(errors, meta::IMMUTABLE);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::super::testing::filled;
    use super::*;

    #[test]
    fn each_rule_of_a_candidate_refuses() {
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
        for good in ["0.1.0", "1.33.0-alpha.1+x.y"] {
            assert!(version(good).is_some(), "{good}");
        }
        for bad in ["", "1.2", "v1.2.3", "01.2.3", "1.2.3-", "1.2.3+"] {
            assert!(version(bad).is_none(), "{bad}");
        }
        assert!(version("1.0.0-a") < version("1.0.0"));
        let mut warned = WarningList::new();
        warn_runtime(
            &object(r#"{"scheduling":{"nodeSelector":{"beta.kubernetes.io/os":"x"}}}"#),
            None,
            &mut warned,
        );
        assert_eq!(
            warned,
            ["scheduling.nodeSelector: deprecated since v1.14; use \"kubernetes.io/os\" instead"]
        );
    }

    #[test]
    fn each_rule_of_small_kinds_refuses() {
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
