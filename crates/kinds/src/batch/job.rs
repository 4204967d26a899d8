//! Jobs.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::features::{EnabledFeatures, Feature};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, fill, fill_text, items_mut, present_mut, same};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

use super::{job_status, policy};
use crate::allowed::batch_v1;
use crate::core::{pod_default, template};
use crate::{
    DefaultingRules, DeletionRules, GarbageCollection, KindRules, MetadataRules, PodSpecPath,
    PreparationRules, StatusRules, ValidationRules, WarningRules, WriteContext, messages,
};

/// The rules of a Job.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules::SPEC_GENERATION,
    pod_spec: PodSpecPath::TEMPLATE,
    defaulting: DefaultingRules {
        default,
        default_by_feature: default_replacement,
        default_stored: Some(default_labels),
    },
    preparation: PreparationRules { prepare_create, prepare_update },
    validation: ValidationRules { validate, validate_update, ..ValidationRules::DEFAULT },
    warnings: WarningRules { warn, ..WarningRules::DEFAULT },
    status: StatusRules { validate: job_status::validate, ..StatusRules::DEFAULT },
    deletion: DeletionRules {
        garbage_collection: GarbageCollection::OrphanDependents,
        warning: Some(WARN_ON_DELETE),
        ..DeletionRules::DEFAULT
    },
    ..KindRules::DEFAULT
};

const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];
const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];
const INDEXED: &str = "Indexed";
const NEEDS_INDEX: &str = "requires indexed completion mode";
const MAX_INDEXED_PODS: i64 = 100_000;
/// Above this number of completions, Jobs with backoffLimitPerIndex have additional limits.
const LARGE_JOB_COMPLETIONS: i64 = 100_000;
const MAX_PODS_OF_LARGE_JOB: i64 = 10_000;
const MAX_MANAGER_LENGTH: usize = 63;
const REPLACEMENT: &str = "podReplacementPolicy";

/// The warning for a DELETE without a propagation policy.
const WARN_ON_DELETE: &str = "child pods are preserved by default when jobs are deleted; set \
    propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";

/// Fields that must not be negative.
const COUNTS: [&str; 7] = [
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "backoffLimit",
    "ttlSecondsAfterFinished",
    "backoffLimitPerIndex",
    "maxFailedIndexes",
];

/// The defaults of a Job.
fn default(job: &mut Value) {
    let spec = job.entry("spec");
    pod_default::default_template(spec, "template");
    if spec.get("completions").is_none() && spec.get("parallelism").is_none() {
        spec.set("completions", 1);
    }
    fill(spec, "parallelism", 1);
    let retries = if spec.get("backoffLimitPerIndex").is_some() { i64::from(i32::MAX) } else { 6 };
    fill(spec, "backoffLimit", retries);
    fill(spec, "completionMode", "NonIndexed");
    fill(spec, "suspend", false);
    fill(spec, "manualSelector", false);
    if let Some(policy) = present_mut(spec, "podFailurePolicy") {
        for rule in items_mut(policy, "rules") {
            for pattern in items_mut(rule, "onPodConditions") {
                fill_text(pattern, "status", "True");
            }
        }
    }
    default_labels(job);
}

/// The default of podReplacementPolicy.
fn default_replacement(job: &mut Value, features: EnabledFeatures) {
    if features.has(Feature::JobPodReplacementPolicy) {
        let spec = job.entry("spec");
        let replacement =
            if spec.get("podFailurePolicy").is_some() { "Failed" } else { "TerminatingOrFailed" };
        fill(spec, REPLACEMENT, replacement);
    }
}

/// A Job without labels gets those of its pod template.
fn default_labels(job: &mut Value) {
    let labels = job.get_path(&["spec", "template", "metadata", "labels"]).cloned();
    let has_no_labels =
        meta::metadata(job).get("labels").and_then(Value::fields).is_none_or(|fields| fields.is_empty());
    if let Some(labels) = labels.filter(|_| has_no_labels) {
        job.entry("metadata").set("labels", labels);
    }
}

/// A Job without manualSelector gets a generated selector with unique labels. Fields of disabled features are dropped here and
/// not by the table, because managedBy is not dropped from updates, where validation refuses a change.
fn prepare_create(job: &mut Value, context: &WriteContext<'_>) {
    for (feature, field) in
        [(Feature::JobManagedBy, "managedBy"), (Feature::JobPodReplacementPolicy, REPLACEMENT)]
    {
        if !context.features.has(feature) {
            job.entry("spec").remove(field);
        }
    }
    if job.get_path(&["spec", "manualSelector"]).and_then(Value::as_bool) == Some(true) {
        return;
    }
    let share_labels = has_default_labels(job);
    let (name, uid) = (meta::name(job).to_owned(), meta::metadata(job).str("uid").to_owned());
    let spec = job.entry("spec");
    let labels = spec.entry("template").entry("metadata").entry("labels");
    for label in NAME_LABELS {
        fill(labels, label, name.as_str());
    }
    for label in UID_LABELS {
        fill(labels, label, uid.as_str());
    }
    let labels = labels.clone();
    fill(spec.entry("selector").entry("matchLabels"), UID_LABELS[1], uid);
    if share_labels {
        job.entry("metadata").set("labels", labels);
    }
}

/// podReplacementPolicy can be added only if its feature is enabled.
fn prepare_update(new: &mut Value, old: &Value, context: &WriteContext<'_>) {
    if !context.features.has(Feature::JobPodReplacementPolicy)
        && old.get_path(&["spec", REPLACEMENT]).is_none()
    {
        new.entry("spec").remove(REPLACEMENT);
    }
}

/// Whether a Job has its labels by default from the pod template. In the reference both then share one map, so labels that are
/// generated for the template appear on the Job, too. Labels that a client set on both are separate.
fn has_default_labels(job: &Value) -> bool {
    let own = meta::metadata(job).get("labels").and_then(Value::fields);
    let pods = job.get_path(&["spec", "template", "metadata", "labels"]).and_then(Value::fields);
    own.zip(pods).is_some_and(|(own, pods)| own.is_shared_with(pods))
}

/// Checks a Job.
fn validate(job: &Value, errors: &mut ErrorList) {
    validate_job(job, true, errors);
}

fn validate_job(job: &Value, prefixed_labels: bool, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(job, "spec");
    generated_selector(job, &spec, prefixed_labels, errors);
    validate_spec(&spec, true, errors);
    let completions = spec.child("completions").number();
    if spec.child("completionMode").text() == INDEXED && completions > 0 {
        let hostname = format!("{}-{}", meta::name(job), completions - 1);
        if !names::dns_label(&hostname).is_empty() {
            let detail = format!("will not able to create pod with invalid DNS label: {hostname}");
            let path = FieldPath::new("metadata").child("name");
            errors.push(FieldError::invalid(&path, &quoted(meta::name(job)), &detail));
        }
    }
}

/// Checks the generated labels. Jobs of old releases lack the prefixed ones.
fn generated_selector(job: &Value, spec: &FieldValue<'_>, prefixed: bool, errors: &mut ErrorList) {
    let selector = spec.child("selector");
    if spec.child("manualSelector").is_true() || !selector.is_set() {
        return;
    }
    let (name, uid) = (meta::name(job), meta::metadata(job).str("uid"));
    if uid.is_empty() {
        errors.push(FieldError::required(&FieldPath::new("metadata").child("uid"), ""));
    }
    let labels = spec.child("template").child("metadata").child("labels");
    let mut expected_labels = Value::object();
    let all = [(UID_LABELS[0], uid), (NAME_LABELS[0], name), (UID_LABELS[1], uid), (NAME_LABELS[1], name)];
    for (label, expected) in all.into_iter().take(if prefixed { 4 } else { 2 }) {
        expected_labels.set(label, expected);
        match labels.value.get(label).and_then(Value::as_str) {
            None => {
                errors.push(FieldError::required(&labels.path.key(label), &format!("must be '{expected}'")));
            }
            Some(actual) if actual != expected => {
                let rendered = pilothouse_apimachinery::field_value::render_map(Some(labels.value));
                let detail = format!("must be '{expected}'");
                errors.push(FieldError::invalid(&labels.path.key(label), &rendered, &detail));
            }
            Some(_) => {}
        }
    }
    let is_usable = label_selector::check(&selector, &mut ErrorList::new());
    if is_usable && !label_selector::matches(Some(selector.value), Some(&expected_labels)) {
        errors.push(FieldError::invalid(
            &selector.path,
            "v1.LabelSelector{}",
            "`selector` not auto-generated",
        ));
    }
}

/// Checks the spec of a Job. That of a Job inside of a CronJob has no selector yet.
pub fn validate_spec(spec: &FieldValue<'_>, with_selector: bool, errors: &mut ErrorList) {
    for field in COUNTS {
        spec.child(field).not_negative(errors);
    }
    let (per_index, failed) = (spec.child("backoffLimitPerIndex"), spec.child("maxFailedIndexes"));
    if failed.is_set() && !per_index.is_set() {
        per_index.required(errors, "when maxFailedIndexes is specified");
    }
    managed_by(&spec.child("managedBy"), errors);
    completion_mode(spec, errors);
    policy::validate_failure_policy(spec, errors);
    if spec.child("successPolicy").is_set() {
        if spec.child("completionMode").text() == INDEXED {
            policy::validate_success_policy(spec, errors);
        } else {
            messages::invalid_struct(
                &spec.child("successPolicy").path,
                "batch.SuccessPolicy",
                errors,
                NEEDS_INDEX,
            );
        }
    }
    let replacement = spec.child(REPLACEMENT);
    if spec.child("podFailurePolicy").is_set() {
        replacement.one_of_if_set(errors, &["Failed"]);
    } else {
        replacement.one_of_if_set(errors, batch_v1::JobSpec::POD_REPLACEMENT_POLICY);
    }
    let pods = spec.child("template");
    template::validate(&pods, errors);
    restart_policy(spec, &pods.child("spec").child("restartPolicy"), errors);
    if !with_selector {
        return;
    }
    let selector = spec.child("selector");
    let mut is_usable = true;
    if selector.is_set() {
        is_usable = label_selector::check(&selector, errors);
    } else {
        selector.required(errors, "");
    }
    if is_usable
        && !label_selector::matches(Some(selector.value), Some(pods.child("metadata").child("labels").value))
    {
        template::report_label_mismatch(&pods, errors);
    }
}

fn managed_by(manager: &FieldValue<'_>, errors: &mut ErrorList) {
    if !manager.is_set() || !manager.need(errors) {
        return;
    }
    for (detail, part) in names::domain_prefixed_path(manager.text()) {
        errors.push(FieldError::invalid(&manager.path, &quoted(&part), &detail));
    }
    if manager.text().len() > MAX_MANAGER_LENGTH {
        errors.push(FieldError::too_long(&manager.path, MAX_MANAGER_LENGTH));
    }
}

fn completion_mode(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let (mode, completions, parallelism, failed) = (
        spec.child("completionMode"),
        spec.child("completions"),
        spec.child("parallelism"),
        spec.child("maxFailedIndexes"),
    );
    mode.one_of_if_set(errors, batch_v1::JobSpec::COMPLETION_MODE);
    if mode.text() == INDEXED {
        if !completions.is_set() {
            completions.required(errors, "when completion mode is Indexed");
        }
        if parallelism.number() > MAX_INDEXED_PODS {
            let detail =
                format!("must be less than or equal to {MAX_INDEXED_PODS} when completion mode is Indexed");
            parallelism.invalid(errors, &detail);
        }
        if completions.is_set() && failed.is_set() && failed.number() > completions.number() {
            failed.invalid(errors, "must be less than or equal to completions");
        }
        if failed.number() > MAX_INDEXED_PODS {
            failed.invalid(errors, &format!("must be less than or equal to {MAX_INDEXED_PODS}"));
        }
        if completions.number() > LARGE_JOB_COMPLETIONS && spec.child("backoffLimitPerIndex").is_set() {
            limit_large_job(&parallelism, &failed, errors);
        }
    } else if !mode.is_set() || mode.text() == "NonIndexed" {
        for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if spec.child(field).is_set() {
                spec.child(field).invalid(errors, NEEDS_INDEX);
            }
        }
    }
}

fn limit_large_job(parallelism: &FieldValue<'_>, failed: &FieldValue<'_>, errors: &mut ErrorList) {
    if !failed.is_set() {
        let detail = format!("must be specified when completions is above {LARGE_JOB_COMPLETIONS}");
        failed.required(errors, &detail);
    }
    let detail = format!(
        "must be less than or equal to {MAX_PODS_OF_LARGE_JOB} when completions are above {LARGE_JOB_COMPLETIONS} and used \
         with backoff limit per index"
    );
    messages::validate_at_most(parallelism, MAX_PODS_OF_LARGE_JOB, errors, &detail);
    messages::validate_at_most(failed, MAX_PODS_OF_LARGE_JOB, errors, &detail);
}

fn restart_policy(spec: &FieldValue<'_>, policy: &FieldValue<'_>, errors: &mut ErrorList) {
    match policy.text() {
        "" | "Always" => policy.required(errors, "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" if spec.child("podFailurePolicy").is_set() => {
            policy.invalid(errors, "only \"Never\" is supported when podFailurePolicy is specified");
        }
        "OnFailure" | "Never" => {}
        _ => policy.one_of(errors, &["OnFailure", "Never"]),
    }
}

/// Checks an updated Job: most of the spec is immutable, except for parallelism, and scheduling directives while it is
/// suspended. The spec is validated twice, as in the reference, so its errors appear twice.
fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (spec, old_spec) = (FieldValue::top_level(new, "spec"), FieldValue::top_level(old, "spec"));
    let old_labels = old_spec.child("template").child("metadata").child("labels");
    let had_prefixed = [NAME_LABELS[1], UID_LABELS[1]].iter().all(|label| old_labels.child(label).is_set());
    validate_job(new, had_prefixed, errors);
    validate_spec(&spec, true, errors);
    completions_change(&spec, &old_spec, errors);
    messages::validate_struct_unchanged(
        &spec.child("selector"),
        &old_spec.child("selector"),
        "v1.LabelSelector",
        errors,
    );
    template_change(&spec, &old_spec, old, errors);
    let validate_unchanged =
        |field: &str, errors: &mut ErrorList| spec.child(field).unchanged(&old_spec.child(field), errors);
    validate_unchanged("completionMode", errors);
    let policies =
        ["podFailurePolicy", "successPolicy"].map(|field| (spec.child(field), old_spec.child(field)));
    messages::validate_struct_unchanged(&policies[0].0, &policies[0].1, "batch.PodFailurePolicy", errors);
    validate_unchanged("backoffLimitPerIndex", errors);
    validate_unchanged("managedBy", errors);
    messages::validate_struct_unchanged(&policies[1].0, &policies[1].1, "batch.SuccessPolicy", errors);
}

/// The completions of an indexed Job may change together with parallelism; those of others are immutable.
fn completions_change(spec: &FieldValue<'_>, old_spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let (completions, old_completions) = (spec.child("completions"), old_spec.child("completions"));
    if spec.child("completionMode").text() != INDEXED {
        completions.unchanged(&old_completions, errors);
        return;
    }
    let changed = !same(Some(completions.value), Some(old_completions.value));
    if changed && completions.is_set() && completions.number() != spec.child("parallelism").number() {
        completions.invalid(errors, "can only be modified in tandem with spec.parallelism");
    }
}

fn template_change(spec: &FieldValue<'_>, old_spec: &FieldValue<'_>, old: &Value, errors: &mut ErrorList) {
    let template = spec.child("template");
    let mut allowed = old_spec.child("template").value.clone();
    let has_started = FieldValue::top_level(old, "status").child("startTime").is_set();
    if old_spec.child("suspend").is_true() && !has_started {
        let pods = template.child("spec");
        for field in ["nodeSelector", "tolerations", "schedulingGates"] {
            meta::copy(allowed.entry("spec"), pods.value, field);
        }
        copy_node_affinity(allowed.entry("spec"), pods.child("affinity").value);
        for field in ["annotations", "labels"] {
            meta::copy(allowed.entry("metadata"), template.child("metadata").value, field);
        }
        // Without both there are no metadata.
        if allowed.get("metadata").and_then(Value::fields).is_none_or(|fields| fields.is_empty()) {
            allowed.remove("metadata");
        }
    }
    if !same(Some(template.value), Some(&allowed)) {
        messages::invalid_struct(&template.path, "core.PodTemplateSpec", errors, meta::IMMUTABLE);
    }
}

/// Sets the node affinity of a PodSpec to that of `affinity`.
fn copy_node_affinity(spec: &mut Value, affinity: &Value) {
    if !affinity.is_null() {
        let old_affinity = spec.entry("affinity");
        // An affinity with nothing but node affinity may be added as a whole.
        old_affinity.fields_mut();
        meta::copy(old_affinity, affinity, "nodeAffinity");
    } else if let Some(old_affinity) = present_mut(spec, "affinity") {
        old_affinity.remove("nodeAffinity");
        // An affinity with nothing but node affinity may be removed as a whole.
        if old_affinity.fields().is_some_and(|rest| rest.is_empty()) {
            spec.remove("affinity");
        }
    }
}

/// Warnings about a Job.
fn warn(job: &Value, old: Option<&Value>, warnings: &mut WarningList) {
    if old.is_none() {
        messages::warn_pod_name(job, warnings);
    } else if old.is_some_and(|old| meta::generation(old) == meta::generation(job)) {
        return;
    }
    warn_spec(
        &FieldValue::top_level(job, "spec"),
        old.map(|old| FieldValue::top_level(old, "spec")),
        warnings,
    );
}

/// Warnings about the spec of a Job.
pub fn warn_spec(spec: &FieldValue<'_>, old: Option<FieldValue<'_>>, warnings: &mut WarningList) {
    let is_large = spec.child("completions").number() > LARGE_JOB_COMPLETIONS
        && spec.child("parallelism").number() > MAX_PODS_OF_LARGE_JOB;
    if spec.child("completionMode").text() == INDEXED && is_large {
        warnings.push(format!(
            "{}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than \
             10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail",
            spec.path
        ));
    }
    let old = old.map(|old| old.child("template"));
    template::warn_template(&spec.child("template"), old.as_ref(), warnings);
}

#[cfg(test)]
mod tests;
