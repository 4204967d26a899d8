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
use crate::{COUNTED, KindRules, POD_TEMPLATE, WriteContext, messages};

/// The rules of a Job.
pub const RULES: KindRules = KindRules {
    pods_at: POD_TEMPLATE,
    finish: Some(take_labels),
    orphans: true,
    warn_on_delete: Some(WARN_ON_DELETE),
    default,
    default_by: default_replacement,
    prepare_create,
    prepare_update,
    validate,
    validate_update,
    validate_status: job_status::validate,
    warn,
    ..COUNTED
};

const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];
const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];
const INDEXED: &str = "Indexed";
const NEEDS_INDEX: &str = "requires indexed completion mode";
const MOST_INDEXED_PODS: i64 = 100_000;
/// Above this number of completions, backoffLimitPerIndex has additional limits.
const MANY_COMPLETIONS: i64 = 100_000;
const MOST_OF_MANY: i64 = 10_000;
const LONGEST_MANAGER: usize = 63;
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
    pod_default::template(spec, "template");
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
    take_labels(job);
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
fn take_labels(job: &mut Value) {
    let labels = job.at(&["spec", "template", "metadata", "labels"]).cloned();
    let bare = meta::of(job).get("labels").and_then(Value::fields).is_none_or(|fields| fields.is_empty());
    if let Some(labels) = labels.filter(|_| bare) {
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
    if job.at(&["spec", "manualSelector"]).and_then(Value::as_bool) == Some(true) {
        return;
    }
    let took = took_labels(job);
    let (name, uid) = (meta::name(job).to_owned(), meta::of(job).str("uid").to_owned());
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
    if took {
        job.entry("metadata").set("labels", labels);
    }
}

/// podReplacementPolicy can be added only if its feature is enabled.
fn prepare_update(new: &mut Value, old: &Value, context: &WriteContext<'_>) {
    if !context.features.has(Feature::JobPodReplacementPolicy) && old.at(&["spec", REPLACEMENT]).is_none() {
        new.entry("spec").remove(REPLACEMENT);
    }
}

/// Whether a Job has its labels by default from the pod template. In the reference both then share one map, so labels that are
/// generated for the template appear on the Job, too. Labels that a client set on both are separate.
fn took_labels(job: &Value) -> bool {
    let own = meta::of(job).get("labels").and_then(Value::fields);
    let pods = job.at(&["spec", "template", "metadata", "labels"]).and_then(Value::fields);
    own.zip(pods).is_some_and(|(own, pods)| own.is_shared_with(pods))
}

/// Checks a Job.
fn validate(job: &Value, errors: &mut ErrorList) {
    validate_whole(job, true, errors);
}

fn validate_whole(job: &Value, prefixed_labels: bool, errors: &mut ErrorList) {
    let spec = FieldValue::of(job, "spec");
    generated_selector(job, &spec, prefixed_labels, errors);
    validate_spec(&spec, true, errors);
    let completions = spec.child("completions").number();
    if spec.child("completionMode").text() == INDEXED && completions > 0 {
        let hostname = format!("{}-{}", meta::name(job), completions - 1);
        if !names::dns_label(&hostname).is_empty() {
            let wrong = format!("will not able to create pod with invalid DNS label: {hostname}");
            let path = FieldPath::new("metadata").child("name");
            errors.push(FieldError::invalid(&path, &quoted(meta::name(job)), &wrong));
        }
    }
}

/// Checks the generated labels. Jobs of old releases lack the prefixed ones.
fn generated_selector(job: &Value, spec: &FieldValue<'_>, prefixed: bool, errors: &mut ErrorList) {
    let chosen = spec.child("selector");
    if spec.child("manualSelector").is_true() || !chosen.is_set() {
        return;
    }
    let (name, uid) = (meta::name(job), meta::of(job).str("uid"));
    if uid.is_empty() {
        errors.push(FieldError::required(&FieldPath::new("metadata").child("uid"), ""));
    }
    let labels = spec.child("template").child("metadata").child("labels");
    let mut expected = Value::object();
    let all = [(UID_LABELS[0], uid), (NAME_LABELS[0], name), (UID_LABELS[1], uid), (NAME_LABELS[1], name)];
    for (label, wanted) in all.into_iter().take(if prefixed { 4 } else { 2 }) {
        expected.set(label, wanted);
        match labels.value.get(label).and_then(Value::as_str) {
            None => {
                errors.push(FieldError::required(&labels.path.key(label), &format!("must be '{wanted}'")));
            }
            Some(found) if found != wanted => {
                let shown = pilothouse_apimachinery::field_value::shown_map(Some(labels.value));
                let wrong = format!("must be '{wanted}'");
                errors.push(FieldError::invalid(&labels.path.key(label), &shown, &wrong));
            }
            Some(_) => {}
        }
    }
    let usable = label_selector::check(&chosen, &mut ErrorList::new());
    if usable && !label_selector::matches(Some(chosen.value), Some(&expected)) {
        errors.push(FieldError::invalid(&chosen.path, "v1.LabelSelector{}", "`selector` not auto-generated"));
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
    policy::failure(spec, errors);
    if spec.child("successPolicy").is_set() {
        if spec.child("completionMode").text() == INDEXED {
            policy::success(spec, errors);
        } else {
            messages::structure(
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
    let chosen = spec.child("selector");
    let mut usable = true;
    if chosen.is_set() {
        usable = label_selector::check(&chosen, errors);
    } else {
        chosen.required(errors, "");
    }
    if usable
        && !label_selector::matches(Some(chosen.value), Some(pods.child("metadata").child("labels").value))
    {
        template::mismatch(&pods, errors);
    }
}

fn managed_by(manager: &FieldValue<'_>, errors: &mut ErrorList) {
    if !manager.is_set() || !manager.need(errors) {
        return;
    }
    for (wrong, part) in names::domain_prefixed_path(manager.text()) {
        errors.push(FieldError::invalid(&manager.path, &quoted(&part), &wrong));
    }
    if manager.text().len() > LONGEST_MANAGER {
        errors.push(FieldError::too_long(&manager.path, LONGEST_MANAGER));
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
        if parallelism.number() > MOST_INDEXED_PODS {
            let wrong =
                format!("must be less than or equal to {MOST_INDEXED_PODS} when completion mode is Indexed");
            parallelism.invalid(errors, &wrong);
        }
        if completions.is_set() && failed.is_set() && failed.number() > completions.number() {
            failed.invalid(errors, "must be less than or equal to completions");
        }
        if failed.number() > MOST_INDEXED_PODS {
            failed.invalid(errors, &format!("must be less than or equal to {MOST_INDEXED_PODS}"));
        }
        if completions.number() > MANY_COMPLETIONS && spec.child("backoffLimitPerIndex").is_set() {
            bound_of_many(&parallelism, &failed, errors);
        }
    } else if !mode.is_set() || mode.text() == "NonIndexed" {
        for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if spec.child(field).is_set() {
                spec.child(field).invalid(errors, NEEDS_INDEX);
            }
        }
    }
}

fn bound_of_many(parallelism: &FieldValue<'_>, failed: &FieldValue<'_>, errors: &mut ErrorList) {
    if !failed.is_set() {
        let why = format!("must be specified when completions is above {MANY_COMPLETIONS}");
        failed.required(errors, &why);
    }
    let why = format!(
        "must be less than or equal to {MOST_OF_MANY} when completions are above {MANY_COMPLETIONS} and used \
         with backoff limit per index"
    );
    messages::no_more(parallelism, MOST_OF_MANY, errors, &why);
    messages::no_more(failed, MOST_OF_MANY, errors, &why);
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

/// Checks an updated Job: most of the spec is immutable, except for parallelism, and scheduling directives while it is suspended.
/// The spec is validated twice, as in the reference, so its errors appear twice.
fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (spec, was) = (FieldValue::of(new, "spec"), FieldValue::of(old, "spec"));
    let old_labels = was.child("template").child("metadata").child("labels");
    let had_prefixed = [NAME_LABELS[1], UID_LABELS[1]].iter().all(|label| old_labels.child(label).is_set());
    validate_whole(new, had_prefixed, errors);
    validate_spec(&spec, true, errors);
    completions_change(&spec, &was, errors);
    messages::same_structure(&spec.child("selector"), &was.child("selector"), "v1.LabelSelector", errors);
    template_change(&spec, &was, old, errors);
    let unchanged =
        |field: &str, errors: &mut ErrorList| spec.child(field).unchanged(&was.child(field), errors);
    unchanged("completionMode", errors);
    let policies = ["podFailurePolicy", "successPolicy"].map(|field| (spec.child(field), was.child(field)));
    messages::same_structure(&policies[0].0, &policies[0].1, "batch.PodFailurePolicy", errors);
    unchanged("backoffLimitPerIndex", errors);
    unchanged("managedBy", errors);
    messages::same_structure(&policies[1].0, &policies[1].1, "batch.SuccessPolicy", errors);
}

/// The completions of an indexed Job may change together with parallelism; those of others are immutable.
fn completions_change(spec: &FieldValue<'_>, was: &FieldValue<'_>, errors: &mut ErrorList) {
    let (completions, before) = (spec.child("completions"), was.child("completions"));
    if spec.child("completionMode").text() != INDEXED {
        completions.unchanged(&before, errors);
        return;
    }
    let changed = !same(Some(completions.value), Some(before.value));
    if changed && completions.is_set() && completions.number() != spec.child("parallelism").number() {
        completions.invalid(errors, "can only be modified in tandem with spec.parallelism");
    }
}

fn template_change(spec: &FieldValue<'_>, was: &FieldValue<'_>, old: &Value, errors: &mut ErrorList) {
    let template = spec.child("template");
    let mut before = was.child("template").value.clone();
    let started = FieldValue::of(old, "status").child("startTime").is_set();
    if was.child("suspend").is_true() && !started {
        let pods = template.child("spec");
        for field in ["nodeSelector", "tolerations", "schedulingGates"] {
            meta::copy(before.entry("spec"), pods.value, field);
        }
        placed_like(before.entry("spec"), pods.child("affinity").value);
        for field in ["annotations", "labels"] {
            meta::copy(before.entry("metadata"), template.child("metadata").value, field);
        }
        // Without both there are no metadata.
        if before.get("metadata").and_then(Value::fields).is_none_or(|fields| fields.is_empty()) {
            before.remove("metadata");
        }
    }
    if !same(Some(template.value), Some(&before)) {
        messages::structure(&template.path, "core.PodTemplateSpec", errors, meta::IMMUTABLE);
    }
}

/// Sets the node affinity of a PodSpec to that of `affinity`.
fn placed_like(spec: &mut Value, affinity: &Value) {
    if !affinity.is_null() {
        let before = spec.entry("affinity");
        // An affinity with nothing but node affinity may be added as a whole.
        before.fields_mut();
        meta::copy(before, affinity, "nodeAffinity");
    } else if let Some(before) = present_mut(spec, "affinity") {
        before.remove("nodeAffinity");
        // An affinity with nothing but node affinity may be removed as a whole.
        if before.fields().is_some_and(|rest| rest.is_empty()) {
            spec.remove("affinity");
        }
    }
}

/// Warns of what is dubious in a Job.
fn warn(job: &Value, old: Option<&Value>, warned: &mut WarningList) {
    if old.is_none() {
        messages::pod_names(job, warned);
    } else if old.is_some_and(|old| meta::generation(old) == meta::generation(job)) {
        return;
    }
    warn_spec(&FieldValue::of(job, "spec"), old.map(|old| FieldValue::of(old, "spec")), warned);
}

/// Warns of what is dubious in the spec of a Job.
pub fn warn_spec(spec: &FieldValue<'_>, old: Option<FieldValue<'_>>, warned: &mut WarningList) {
    let many = spec.child("completions").number() > MANY_COMPLETIONS
        && spec.child("parallelism").number() > MOST_OF_MANY;
    if spec.child("completionMode").text() == INDEXED && many {
        warned.push(format!(
            "{}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than \
             10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail",
            spec.path
        ));
    }
    let old = old.map(|old| old.child("template"));
    template::warn_of_template(&spec.child("template"), old.as_ref(), warned);
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object, said};

    use super::super::super::testing::context;
    use super::*;

    fn base() -> Value {
        let mut job = object(
            r#"{"metadata":{"name":"j","uid":"u"},"spec":{"template":{"spec":{"restartPolicy":"Never",
                "containers":[{"name":"c","image":"i"}]}}}}"#,
        );
        default(&mut job);
        prepare_create(&mut job, &context(""));
        job
    }

    #[test]
    fn a_job_that_took_the_labels_of_its_pods_takes_what_they_get() {
        let made = |own: &str| {
            let mut job = object(&format!(
                r#"{{"metadata":{{"name":"j","uid":"u"{own}}},"spec":{{"template":{{"metadata":{{"labels":{{"a":"b"}}}},
                    "spec":{{"containers":[]}}}}}}}}"#
            ));
            default(&mut job);
            prepare_create(&mut job, &context(""));
            job.at(&["metadata", "labels"]).and_then(Value::fields).unwrap().len()
        };
        assert_eq!(made(""), 5);
        assert_eq!(made(r#","labels":{"a":"b"}"#), 1, "these are its own");
        assert_eq!(made(r#","labels":{"c":"d"}"#), 1);
    }

    #[test]
    fn a_suspended_job_may_be_placed_elsewhere() {
        let node = r#"{"affinity":{"nodeAffinity":{"x":[1]}}}"#;
        let table = [
            ("null", node, "{}"),
            (
                "null",
                r#"{"affinity":{"podAffinity":{},"nodeAffinity":{}}}"#,
                r#"{"affinity":{"podAffinity":{}}}"#,
            ),
            (r#"{"nodeAffinity":{"x":[1]}}"#, "{}", node),
            ("{}", "{}", r#"{"affinity":{}}"#),
            (
                r#"{"podAffinity":{},"nodeAffinity":{"y":[2]}}"#,
                node,
                r#"{"affinity":{"nodeAffinity":{"y":[2]}}}"#,
            ),
        ];
        for (new, old, wanted) in table {
            let mut spec = object(old);
            placed_like(&mut spec, &object(new));
            assert_eq!(spec, object(wanted), "{old} like {new}");
        }
    }

    #[test]
    fn a_job_gets_its_own_labels_and_defaults() {
        let mut job = base();
        assert_eq!(job.at(&["metadata", "labels"]), None, "checks say what is wrong with labels once");
        take_labels(&mut job);
        let labels = object(
            r#"{"batch.kubernetes.io/controller-uid":"u","batch.kubernetes.io/job-name":"j","controller-uid":"u","job-name":"j"}"#,
        );
        assert_eq!(job.at(&["metadata", "labels"]), Some(&labels));
        assert_eq!(job.at(&["spec", "template", "metadata", "labels"]), Some(&labels));
        assert_eq!(
            job.at(&["spec", "selector"]),
            Some(&object(r#"{"matchLabels":{"batch.kubernetes.io/controller-uid":"u"}}"#))
        );
        for (field, wanted) in [("completions", 1), ("parallelism", 1), ("backoffLimit", 6)] {
            assert_eq!(job.at(&["spec", field]), Some(&Value::Int(wanted)), "{field}");
        }
    }

    #[test]
    fn each_rule_of_a_job_refuses() {
        each_refused(
            &base(),
            validate,
            &[
                (
                    "spec.parallelism",
                    "-1",
                    "spec.parallelism: Invalid value: -1: must be greater than or equal to 0",
                ),
                ("spec.backoffLimit", "-1", "spec.backoffLimit"),
                ("spec.completionMode", r#""X""#, "supported values: \"NonIndexed\", \"Indexed\""),
                ("spec.backoffLimitPerIndex", "1", "requires indexed completion mode"),
                ("spec.managedBy", r#""x""#, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
                ("spec.successPolicy", r#"{"rules":[]}"#, NEEDS_INDEX),
                (
                    "spec.podReplacementPolicy",
                    r#""X""#,
                    "supported values: \"Failed\", \"TerminatingOrFailed\"",
                ),
                (
                    "spec.template.spec.restartPolicy",
                    r#""Always""#,
                    "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
                ),
                ("spec.template.metadata.labels.job-name", r#""x""#, "must be 'j'"),
            ],
        );
        each_change_refused(
            &base(),
            validate_update,
            &[
                (
                    "spec.template.spec.hostname",
                    r#""h""#,
                    "spec.template: Invalid value: core.PodTemplateSpec{}: field is immutable",
                ),
                ("spec.completions", "2", "spec.completions: Invalid value: 2: field is immutable"),
                (
                    "spec.managedBy",
                    r#""a.b/c""#,
                    "spec.managedBy: Invalid value: \"a.b/c\": field is immutable",
                ),
            ],
        );
    }

    #[test]
    fn a_selector_of_its_own_must_be_announced() {
        let mut job = base();
        job.entry("spec")
            .set("selector", object(r#"{"matchLabels":{"x":"y","batch.kubernetes.io/controller-uid":"u"}}"#));
        let mut errors = ErrorList::new();
        validate(&job, &mut errors);
        let errors = said(&errors);
        assert_eq!(errors.len(), 2);
        assert!(errors[0].ends_with("`selector` not auto-generated"));
        assert!(errors[1].starts_with("spec.template.metadata.labels: Invalid value: map[string]string{"));
    }

    #[test]
    fn an_indexed_job_is_bounded_and_follows_its_parallelism() {
        let mut job = base();
        let spec = job.entry("spec");
        for (field, value) in [("completions", 200_000), ("parallelism", 10), ("backoffLimitPerIndex", 1)] {
            spec.set(field, value);
        }
        spec.set("completionMode", INDEXED);
        spec.set("maxFailedIndexes", 5);
        each_refused(
            &job,
            validate,
            &[
                ("spec.maxFailedIndexes", "null", "must be specified when completions is above 100000"),
                (
                    "spec.maxFailedIndexes",
                    "10001",
                    "must be less than or equal to 10000 when completions are above 100000 and used with backoff limit per index",
                ),
                (
                    "spec.parallelism",
                    "10001",
                    "must be less than or equal to 10000 when completions are above",
                ),
                ("spec.successPolicy", r#"{"rules":[]}"#, "at least one rules must be specified"),
            ],
        );
        let mut open = job.clone();
        open.entry("spec").remove("maxFailedIndexes");
        open.entry("spec").remove("backoffLimitPerIndex");
        open.entry("spec").set("completions", -1);
        let mut errors = ErrorList::new();
        validate(&open, &mut errors);
        assert_eq!(
            said(&errors),
            ["spec.completions: Invalid value: -1: must be greater than or equal to 0"]
        );
        each_change_refused(
            &job,
            validate_update,
            &[("spec.completions", "5", "can only be modified in tandem with spec.parallelism")],
        );
        let mut warned = WarningList::new();
        job.entry("spec").set("parallelism", 20_000);
        warn(&job, None, &mut warned);
        assert!(warned[0].starts_with("spec: In Indexed Jobs with a number of completions"));
    }

    #[test]
    fn a_suspended_job_may_lose_the_metadata_of_its_pods() {
        let mut old = base();
        old.entry("spec").set("suspend", true);
        let mut new = old.clone();
        new.entry("spec").entry("template").remove("metadata");
        let mut errors = ErrorList::new();
        template_change(&FieldValue::of(&new, "spec"), &FieldValue::of(&old, "spec"), &old, &mut errors);
        assert_eq!(said(&errors), Vec::<String>::new());
    }

    #[test]
    fn a_suspended_job_may_move() {
        let mut old = base();
        old.entry("spec").set("suspend", true);
        let mut new = old.clone();
        new.entry("spec").entry("template").entry("spec").entry("nodeSelector").set("a", "b");
        let mut errors = ErrorList::new();
        validate_update(&new, &old, &mut errors);
        assert_eq!(errors, []);
    }
}
