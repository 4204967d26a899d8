//! The kinds of coordination.k8s.io: Lease and LeaseCandidate.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::semver::Semver;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

use super::{KindRules, MetaRevalidation, MetadataRules, Revalidation, UpdateRules, ValidationRules, gated};

/// The rules of a Lease.
pub const LEASE: KindRules = KindRules {
    metadata: MetadataRules {
        requires_standard_finalizers: false,
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
        requires_standard_finalizers: false,
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

/// Checks a LeaseCandidate.
fn validate_candidate(candidate: &Value, errors: &mut ErrorList) {
    const INVALID_VERSION: &str = "must be a valid semantic version";
    let spec = FieldValue::top_level(candidate, "spec");
    let (emulated, binary, strategy) =
        (spec.child("emulationVersion"), spec.child("binaryVersion"), spec.child("strategy"));
    spec.child("leaseName").need(errors);
    if !emulated.is_empty() && Semver::parse(emulated.text()).is_err() {
        emulated.invalid(errors, INVALID_VERSION);
    }
    if binary.need(errors) && Semver::parse(binary.text()).is_err() {
        binary.invalid(errors, INVALID_VERSION);
    }
    // An invalid version counts as the lowest one.
    let version_of = |node: &FieldValue<'_>| Semver::parse(node.text()).unwrap_or_default();
    if !emulated.is_empty() && !binary.is_empty() && version_of(&binary) < version_of(&emulated) {
        binary.invalid(errors, "must be greater than or equal to `emulationVersion`");
    }
    if !strategy.need(errors) {
        return;
    }
    if strategy.text() == "OldestEmulationVersion" && version_of(&emulated) == Semver::default() {
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

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

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
                    "spec.binaryVersion",
                    r#""1.32.0-rc.1""#,
                    "must be greater than or equal to `emulationVersion`",
                ),
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
    }

    #[test]
    fn lease_validation_refuses_each_violation() {
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
    }
}
