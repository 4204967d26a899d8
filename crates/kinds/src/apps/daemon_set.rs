//! DaemonSets, and the ControllerRevisions that they and StatefulSets keep.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::field_value::{FieldValue, fill, fill_text, present_mut, same};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

use super::super::core::{pod_default, template};
use super::super::{COUNTED, KindRules, PLAIN, POD_TEMPLATE, Revalidation, WriteContext};
use super::common::{
    ROLLING, at_most_all, count, count_or_percent, counters, no_fewer_collisions, same_selector, shown_share,
    shown_strategy,
};

/// The rules of a DaemonSet.
pub const DAEMON_SET: KindRules = KindRules {
    pods_at: POD_TEMPLATE,
    default: default_daemon_set,
    prepare_create: prepare_daemon_set,
    prepare_update: prepare_daemon_set_update,
    prepare_status: prepare_daemon_set_status,
    validate: validate_daemon_set,
    revalidation: Revalidation::Twice,
    validate_update: same_selector,
    validate_status: validate_daemon_set_status,
    warn: warn_daemon_set,
    ..COUNTED
};

/// The rules of a ControllerRevision.
pub const CONTROLLER_REVISION: KindRules =
    KindRules { validate: validate_revision, validate_update: validate_revision_update, ..PLAIN };

/// The defaults of a DaemonSet.
fn default_daemon_set(object: &mut Value) {
    // The template generation is a field only in old versions. In v1 it is this annotation, so every writer of a DaemonSet also
    // writes it.
    fill(object.entry("metadata").entry("annotations"), TEMPLATE_GENERATION, "0");
    let spec = object.entry("spec");
    pod_default::template(spec, "template");
    let strategy = spec.entry("updateStrategy");
    fill_text(strategy, "type", ROLLING);
    if strategy.str("type") == ROLLING {
        strategy.entry("rollingUpdate").fields_mut();
    } else if let Some(rolling) = present_mut(strategy, "rollingUpdate") {
        // An unused field gets no default, and an absent one is zero.
        fill(rolling, "maxUnavailable", 0);
    }
}

/// Checks a changed status of a DaemonSet.
pub(super) fn validate_daemon_set_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    let all = [
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    counters(&FieldValue::of(new, "status"), &all, &[], errors);
    no_fewer_collisions(new, old, errors);
}

/// Warns about a DaemonSet: only if the template changed.
pub(super) fn warn_daemon_set(object: &Value, old: Option<&Value>, warned: &mut WarningList) {
    let count = |object| meta::of(object).at(&["annotations", TEMPLATE_GENERATION]).cloned();
    if old.is_none_or(|old| count(old) != count(object)) {
        let at = |object| FieldValue::of(object, "spec").child("template");
        template::warn_of_template(&at(object), old.map(at).as_ref(), warned);
    }
}

/// A new DaemonSet has template generation 1.
pub(super) fn prepare_daemon_set(object: &mut Value, _: &WriteContext<'_>) {
    if templates(object) < 1 {
        object.entry("metadata").entry("annotations").set(TEMPLATE_GENERATION, "1");
    }
}

/// The template generation of a DaemonSet.
fn templates(object: &Value) -> i64 {
    let count = meta::of(object).get("annotations").map_or("", |all| all.str(TEMPLATE_GENERATION));
    count.parse().unwrap_or_default()
}

/// A status update keeps the template generation.
pub(super) fn prepare_daemon_set_status(new: &mut Value, old: &Value, _: &WriteContext<'_>) {
    let count = templates(old).to_string();
    new.entry("metadata").entry("annotations").set(TEMPLATE_GENERATION, count);
}

/// The annotation with the template generation of a DaemonSet.
pub const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// A changed template increases the template generation.
pub(super) fn prepare_daemon_set_update(new: &mut Value, old: &Value, _: &WriteContext<'_>) {
    let count = templates(old);
    let template = ["spec", "template"];
    let moved = i64::from(!same(new.at(&template), old.at(&template)));
    new.entry("metadata").entry("annotations").set(TEMPLATE_GENERATION, (count + moved).to_string());
}

/// Checks a DaemonSet.
pub(super) fn validate_daemon_set(object: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::of(object, "spec");
    let (chosen, pods) = (spec.child("selector"), spec.child("template"));
    let usable = label_selector::check(&chosen, errors);
    let labels = pods.child("metadata").child("labels");
    if usable && !label_selector::matches(Some(chosen.value), Some(labels.value)) {
        template::mismatch(&pods, errors);
    }
    if chosen.is_set() && label_selector::is_empty(chosen.value) {
        let wrong = "empty selector is invalid for daemonset";
        errors.push(FieldError::invalid(&chosen.path, "v1.LabelSelector{}", wrong));
    }
    template::validate(&pods, errors);
    template::always_restarts(&pods, "DaemonSet", errors);
    spec.child("minReadySeconds").not_negative(errors);
    daemon_strategy(&spec.child("updateStrategy"), errors);
    spec.child("revisionHistoryLimit").not_negative(errors);
}

fn daemon_strategy(strategy: &FieldValue<'_>, errors: &mut ErrorList) {
    let rolling = strategy.child("rollingUpdate");
    match strategy.child("type").text() {
        "OnDelete" | "" => {}
        ROLLING if !rolling.is_set() => rolling.required(errors, ""),
        ROLLING => {
            let (unavailable, surge) = (rolling.child("maxUnavailable"), rolling.child("maxSurge"));
            for node in [&unavailable, &surge] {
                count_or_percent(node, errors);
            }
            for node in [&unavailable, &surge] {
                at_most_all(node, errors);
            }
            match (count(&unavailable) != 0, count(&surge) != 0) {
                (true, true) => {
                    let wrong = "may not be set when maxUnavailable is non-zero";
                    errors.push(FieldError::invalid(&surge.path, &shown_share(&surge), wrong));
                }
                (false, false) => unavailable.required(errors, "cannot be 0 when maxSurge is 0"),
                _ => {}
            }
        }
        _ => {
            let shown =
                shown_strategy(strategy, "apps.DaemonSetUpdateStrategy", "apps.RollingUpdateDaemonSet");
            errors.push(FieldError::not_supported(&strategy.path, &shown, &[ROLLING, "OnDelete"]));
        }
    }
}

/// Checks a ControllerRevision.
pub(super) fn validate_revision(object: &Value, errors: &mut ErrorList) {
    FieldValue::of(object, "revision").not_negative(errors);
    let data = FieldValue::of(object, "data");
    match data.value {
        Value::Null => data.required(errors, "data is mandatory"),
        Value::Object(_) => {}
        _ => data.required(errors, "data must be a valid JSON object"),
    }
}

/// Checks an updated ControllerRevision: its data is immutable.
pub(super) fn validate_revision_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    FieldValue::of(new, "revision").not_negative(errors);
    if new.get("data") != old.get("data") {
        errors.push(FieldError::invalid(&FieldPath::new("data"), "runtime.RawExtension{}", meta::IMMUTABLE));
    }
}
