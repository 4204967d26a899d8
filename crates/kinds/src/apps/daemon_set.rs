//! DaemonSets, and the ControllerRevisions that they and StatefulSets keep.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::field_value::{FieldValue, fill, fill_text, present_mut, same};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

use super::super::core::{pod_default, template};
use super::super::{
    DefaultingRules, KindRules, MetadataRules, PodSpecPath, PreparationRules, Revalidation, StatusRules,
    ValidationRules, WarningRules, WriteContext, messages,
};
use super::common::{
    ROLLING, int_value, render_int_or_string, render_strategy, validate_at_most_100_percent,
    validate_collision_count, validate_count_or_percent, validate_selector_unchanged,
};

/// The rules of a DaemonSet.
pub const DAEMON_SET: KindRules = KindRules {
    metadata: MetadataRules::SPEC_GENERATION,
    pod_spec: PodSpecPath::TEMPLATE,
    defaulting: DefaultingRules { default: default_daemon_set, ..DefaultingRules::DEFAULT },
    preparation: PreparationRules {
        prepare_create: prepare_daemon_set,
        prepare_update: prepare_daemon_set_update,
    },
    validation: ValidationRules {
        validate: validate_daemon_set,
        revalidation: Revalidation::Twice,
        validate_update: validate_selector_unchanged,
    },
    warnings: WarningRules { warn: warn_daemon_set, ..WarningRules::DEFAULT },
    status: StatusRules {
        prepare: prepare_daemon_set_status,
        validate: validate_daemon_set_status,
        ..StatusRules::DEFAULT
    },
    ..KindRules::DEFAULT
};

/// The rules of a ControllerRevision.
pub const CONTROLLER_REVISION: KindRules = KindRules {
    validation: ValidationRules {
        validate: validate_revision,
        validate_update: validate_revision_update,
        ..ValidationRules::DEFAULT
    },
    ..KindRules::DEFAULT
};

/// The defaults of a DaemonSet.
fn default_daemon_set(object: &mut Value) {
    // The template generation is a field only in old versions. In v1 it is this annotation, so every writer of a DaemonSet also
    // writes it.
    fill(object.entry("metadata").entry("annotations"), TEMPLATE_GENERATION, "0");
    let spec = object.entry("spec");
    pod_default::default_template(spec, "template");
    let strategy = spec.entry("updateStrategy");
    fill_text(strategy, "type", ROLLING);
    if strategy.str("type") == ROLLING {
        strategy.entry("rollingUpdate").fields_mut();
    } else if let Some(rolling) = present_mut(strategy, "rollingUpdate") {
        // An unused field gets no default, and an absent one is zero.
        fill(rolling, "maxUnavailable", 0);
    }
}

/// Validates a status update of a DaemonSet.
pub(super) fn validate_daemon_set_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    let fields = [
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
    messages::validate_counters(&FieldValue::top_level(new, "status"), &fields, &[], errors);
    validate_collision_count(new, old, errors);
}

/// Warns about a DaemonSet: only if the template changed.
pub(super) fn warn_daemon_set(object: &Value, old: Option<&Value>, warnings: &mut WarningList) {
    let generation = |object| meta::metadata(object).get_path(&["annotations", TEMPLATE_GENERATION]).cloned();
    if old.is_none_or(|old| generation(old) != generation(object)) {
        let template_of = |object| FieldValue::top_level(object, "spec").child("template");
        template::warn_template(&template_of(object), old.map(template_of).as_ref(), warnings);
    }
}

/// A new DaemonSet has template generation 1.
pub(super) fn prepare_daemon_set(object: &mut Value, _: &WriteContext<'_>) {
    if template_generation(object) < 1 {
        object.entry("metadata").entry("annotations").set(TEMPLATE_GENERATION, "1");
    }
}

/// The template generation of a DaemonSet.
fn template_generation(object: &Value) -> i64 {
    let generation = meta::metadata(object)
        .get("annotations")
        .map_or("", |annotations| annotations.str(TEMPLATE_GENERATION));
    generation.parse().unwrap_or_default()
}

/// A status update keeps the template generation.
pub(super) fn prepare_daemon_set_status(new: &mut Value, old: &Value, _: &WriteContext<'_>) {
    let generation = template_generation(old).to_string();
    new.entry("metadata").entry("annotations").set(TEMPLATE_GENERATION, generation);
}

/// The annotation with the template generation of a DaemonSet.
pub const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// A changed template increases the template generation.
pub(super) fn prepare_daemon_set_update(new: &mut Value, old: &Value, _: &WriteContext<'_>) {
    let generation = template_generation(old);
    let template = ["spec", "template"];
    let increment = i64::from(!same(new.get_path(&template), old.get_path(&template)));
    new.entry("metadata").entry("annotations").set(TEMPLATE_GENERATION, (generation + increment).to_string());
}

/// Checks a DaemonSet.
pub(super) fn validate_daemon_set(object: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(object, "spec");
    let (selector, pods) = (spec.child("selector"), spec.child("template"));
    let is_usable = label_selector::check(&selector, errors);
    let labels = pods.child("metadata").child("labels");
    if is_usable && !label_selector::matches(Some(selector.value), Some(labels.value)) {
        template::report_label_mismatch(&pods, errors);
    }
    if selector.is_set() && label_selector::is_empty(selector.value) {
        let detail = "empty selector is invalid for daemonset";
        errors.push(FieldError::invalid(&selector.path, "v1.LabelSelector{}", detail));
    }
    template::validate(&pods, errors);
    template::validate_always_restarts(&pods, "DaemonSet", errors);
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
                validate_count_or_percent(node, errors);
            }
            for node in [&unavailable, &surge] {
                validate_at_most_100_percent(node, errors);
            }
            match (int_value(&unavailable) != 0, int_value(&surge) != 0) {
                (true, true) => {
                    let detail = "may not be set when maxUnavailable is non-zero";
                    errors.push(FieldError::invalid(&surge.path, &render_int_or_string(&surge), detail));
                }
                (false, false) => unavailable.required(errors, "cannot be 0 when maxSurge is 0"),
                _ => {}
            }
        }
        _ => {
            let rendered =
                render_strategy(strategy, "apps.DaemonSetUpdateStrategy", "apps.RollingUpdateDaemonSet");
            errors.push(FieldError::not_supported(&strategy.path, &rendered, &[ROLLING, "OnDelete"]));
        }
    }
}

/// Checks a ControllerRevision.
pub(super) fn validate_revision(object: &Value, errors: &mut ErrorList) {
    FieldValue::top_level(object, "revision").not_negative(errors);
    let data = FieldValue::top_level(object, "data");
    match data.value {
        Value::Null => data.required(errors, "data is mandatory"),
        Value::Object(_) => {}
        _ => data.required(errors, "data must be a valid JSON object"),
    }
}

/// Checks an updated ControllerRevision: its data is immutable.
pub(super) fn validate_revision_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    FieldValue::top_level(new, "revision").not_negative(errors);
    if new.get("data") != old.get("data") {
        errors.push(FieldError::invalid(&FieldPath::new("data"), "runtime.RawExtension{}", meta::IMMUTABLE));
    }
}
