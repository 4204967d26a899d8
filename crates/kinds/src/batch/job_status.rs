//! Validation of the status of Jobs. Each rule applies only to changed fields, so that a status with old errors can still be
//! updated.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::{FieldValue, same};
use pilothouse_apimachinery::value::Value;

use super::indexes;
use crate::messages;

const SUCCESS: &str = "SuccessCriteriaMet";

/// The old or the new status.
struct JobStatus<'a> {
    status: FieldValue<'a>,
}

impl JobStatus<'_> {
    fn has_condition(&self, kind: &str, value: &str) -> bool {
        self.status.child("conditions").items().any(|condition| {
            condition.child("type").text() == kind && condition.child("status").text() == value
        })
    }

    fn is_true(&self, kind: &str) -> bool {
        self.has_condition(kind, "True")
    }

    fn is_finished(&self) -> bool {
        self.is_true("Complete") || self.is_true("Failed")
    }
}

/// Validates a status update.
pub fn validate(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (new_status, old_status) = (
        JobStatus { status: FieldValue::top_level(new, "status") },
        JobStatus { status: FieldValue::top_level(old, "status") },
    );
    let spec = FieldValue::top_level(new, "spec");
    validate_counts(&new_status.status, errors);
    let features = errors.features();
    // The strict rules depend on the feature gate for external Job controllers.
    if !features.has(Feature::JobManagedBy) {
        let without_policy = features.has(Feature::JobPodReplacementPolicy) || old_status.is_true(SUCCESS);
        validate_success_criteria(&spec, &new_status, without_policy, errors);
        validate_success_criteria_change(&new_status, &old_status, errors);
        return;
    }
    validate_condition_pairs(&new_status, &old_status, errors);
    validate_finished(&spec, &new_status, &old_status, errors);
    validate_indexes(&spec, &new_status, &old_status, errors);
    validate_ready(&new_status, &old_status, errors);
    validate_success_criteria(&spec, &new_status, true, errors);
    validate_transitions(&spec, &new_status, &old_status, errors);
    validate_success_criteria_change(&new_status, &old_status, errors);
}

fn has_changed(field: &str, new: &JobStatus<'_>, old: &JobStatus<'_>) -> bool {
    !same(Some(new.status.child(field).value), Some(old.status.child(field).value))
}

fn has_flipped(kind: &str, new: &JobStatus<'_>, old: &JobStatus<'_>) -> bool {
    new.is_true(kind) != old.is_true(kind)
}

fn validate_counts(status: &FieldValue<'_>, errors: &mut ErrorList) {
    for field in ["active", "succeeded", "failed", "ready", "terminating"] {
        status.child(field).not_negative(errors);
    }
    let mut seen = BTreeSet::new();
    for list in ["succeeded", "failed"] {
        for uid in status.child("uncountedTerminatedPods").child(list).items() {
            if uid.is_empty() {
                uid.invalid_text(errors, "must not be empty");
            } else if !seen.insert(uid.text()) {
                uid.duplicate(errors);
            }
        }
    }
}

fn invalid_conditions(new: &JobStatus<'_>, errors: &mut ErrorList, detail: &str) {
    messages::invalid_without_value(&new.status.child("conditions").path, errors, detail);
}

fn validate_condition_pairs(new: &JobStatus<'_>, old: &JobStatus<'_>, errors: &mut ErrorList) {
    let complete = new.is_true("Complete");
    let (complete_flips, failed_flips) = (has_flipped("Complete", new, old), has_flipped("Failed", new, old));
    if (complete_flips || failed_flips) && complete && new.is_true("Failed") {
        invalid_conditions(new, errors, "cannot set Complete=True and Failed=true conditions");
    }
    if (complete_flips || has_flipped("FailureTarget", new, old)) && complete && new.is_true("FailureTarget")
    {
        invalid_conditions(new, errors, "cannot set Complete=True and FailureTarget=true conditions");
    }
    let (start, end) = (new.status.child("startTime"), new.status.child("completionTime"));
    let end_changed = has_changed("completionTime", new, old);
    let invalid_end = |errors: &mut ErrorList, detail| {
        errors.push(FieldError::invalid(&end.path, &messages::render_time(&end), detail));
    };
    if complete_flips || end_changed {
        if end.is_set() && !complete {
            invalid_end(errors, "cannot set completionTime when there is no Complete=True condition");
        }
        if !end.is_set() && complete {
            end.required(errors, "completionTime is required for Complete jobs");
        }
    }
    // Both are canonical RFC 3339, whose string order is the order of times.
    let times_changed = end_changed || has_changed("startTime", new, old);
    if times_changed && start.is_set() && end.is_set() && end.text() < start.text() {
        invalid_end(errors, "completionTime cannot be set before startTime");
    }
    if (failed_flips || has_changed("failedIndexes", new, old))
        && new.is_true("Failed")
        && !new.is_true("FailureTarget")
    {
        invalid_conditions(
            new,
            errors,
            "cannot set Failed=True condition without the FailureTarget=true condition",
        );
    }
    let criteria_flips = has_flipped(SUCCESS, new, old);
    if (complete_flips || criteria_flips) && complete && !new.is_true(SUCCESS) {
        let detail = "cannot set Complete=True condition without the SuccessCriteriaMet=true condition";
        invalid_conditions(new, errors, detail);
    }
}

fn validate_finished(
    spec: &FieldValue<'_>,
    new: &JobStatus<'_>,
    old: &JobStatus<'_>,
    errors: &mut ErrorList,
) {
    if !new.is_finished() {
        return;
    }
    let flips = new.is_finished() != old.is_finished();
    let (active, uncounted) = (new.status.child("active"), new.status.child("uncountedTerminatedPods"));
    if (flips || has_changed("active", new, old)) && active.number() > 0 {
        active.invalid(errors, "active>0 is invalid for finished job");
    }
    let never_runs = spec.child("suspend").is_true() && spec.child("completions").int() == Some(0);
    let start = new.status.child("startTime");
    if (flips || has_changed("startTime", new, old)) && !never_runs && !start.is_set() {
        start.required(errors, "startTime is required for finished job");
    }
    let has_uncounted = uncounted.child("failed").len() + uncounted.child("succeeded").len() > 0;
    if (flips || has_changed("uncountedTerminatedPods", new, old)) && has_uncounted {
        let detail = "uncountedTerminatedPods needs to be empty for finished job";
        messages::invalid_struct(&uncounted.path, "batch.UncountedTerminatedPods", errors, detail);
    }
}

fn validate_indexes(spec: &FieldValue<'_>, new: &JobStatus<'_>, old: &JobStatus<'_>, errors: &mut ErrorList) {
    let (completed, failed) = (new.status.child("completedIndexes"), new.status.child("failedIndexes"));
    let (completed_changed, failed_changed) =
        (has_changed("completedIndexes", new, old), has_changed("failedIndexes", new, old));
    let (completions, per_index) = (spec.child("completions"), spec.child("backoffLimitPerIndex"));
    if let Some(completions) = completions.int() {
        if let Some(detail) =
            indexes::count(completed.text(), completions).err().filter(|_| completed_changed)
        {
            completed.invalid(errors, &format!("error parsing completedIndexes: {detail}"));
        }
        let check_failed = failed_changed && per_index.is_set() && failed.is_set();
        if let Some(detail) = indexes::count(failed.text(), completions).err().filter(|_| check_failed) {
            failed.invalid(errors, &format!("error parsing failedIndexes: {detail}"));
        }
    }
    if completed_changed && !completed.is_empty() && spec.child("completionMode").text() != "Indexed" {
        completed.invalid(errors, "cannot set non-empty completedIndexes when non-indexed completion mode");
    }
    if failed_changed && failed.is_set() && !per_index.is_set() {
        failed.invalid(errors, "cannot set non-null failedIndexes when backoffLimitPerIndex is null");
    }
    let compared = completions.int().filter(|_| failed.is_set() && (completed_changed || failed_changed));
    let overlap =
        compared.and_then(|completions| indexes::overlap(completed.text(), failed.text(), completions));
    if let Some(index) = overlap {
        let detail = format!("failedIndexes and completedIndexes overlap at index: {index}");
        failed.invalid(errors, &detail);
    }
}

fn validate_ready(new: &JobStatus<'_>, old: &JobStatus<'_>, errors: &mut ErrorList) {
    let (terminating, ready) = (new.status.child("terminating"), new.status.child("ready"));
    let flips = new.is_finished() != old.is_finished();
    if (flips || has_changed("terminating", new, old)) && terminating.number() > 0 && new.is_finished() {
        terminating.invalid(errors, "terminating>0 is invalid for finished job");
    }
    let has_moved = has_changed("ready", new, old) || has_changed("active", new, old);
    if has_moved && ready.is_set() && ready.number() > new.status.child("active").number() {
        ready.invalid(errors, "cannot set more ready pods than active");
    }
}

/// Checks the condition SuccessCriteriaMet. `without_policy`: it may be set on Jobs without a success policy.
fn validate_success_criteria(
    spec: &FieldValue<'_>,
    new: &JobStatus<'_>,
    without_policy: bool,
    errors: &mut ErrorList,
) {
    let is_met = new.is_true(SUCCESS);
    if is_met && !without_policy && spec.str("completionMode") != "Indexed" {
        invalid_conditions(new, errors, "cannot set SuccessCriteriaMet to NonIndexed Job");
    }
    if is_met && new.is_true("Failed") {
        invalid_conditions(new, errors, "cannot set SuccessCriteriaMet=True and Failed=true conditions");
    }
    if is_met && new.is_true("FailureTarget") {
        invalid_conditions(
            new,
            errors,
            "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
        );
    }
    if is_met && !without_policy && !spec.has("successPolicy") {
        invalid_conditions(new, errors, "cannot set SuccessCriteriaMet=True for Job without SuccessPolicy");
    }
    if spec.child("successPolicy").is_set() && !is_met && new.is_true("Complete") {
        let detail = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
        invalid_conditions(new, errors, detail);
    }
}

fn validate_transitions(
    spec: &FieldValue<'_>,
    new: &JobStatus<'_>,
    old: &JobStatus<'_>,
    errors: &mut ErrorList,
) {
    for kind in ["Failed", "Complete", "FailureTarget"] {
        if old.is_true(kind) && !new.is_true(kind) {
            invalid_conditions(new, errors, &format!("cannot disable the terminal {kind}=True condition"));
        }
    }
    let count = |field: &str| (new.status.child(field), old.status.child(field));
    let (failed, old_count) = count("failed");
    messages::validate_not_decreased(&failed, &old_count, errors, "cannot decrease the failed counter");
    let is_elastic = spec.child("completionMode").text() == "Indexed"
        && same(Some(spec.child("completions").value), Some(spec.child("parallelism").value));
    if !is_elastic {
        let (succeeded, old_count) = count("succeeded");
        messages::validate_not_decreased(
            &succeeded,
            &old_count,
            errors,
            "cannot decrease the succeeded counter",
        );
    }
    let (end, old_end) = count("completionTime");
    if end.is_set() && old_end.is_set() && end.value != old_end.value {
        errors.push(FieldError::invalid(
            &end.path,
            &messages::render_time(&end),
            "completionTime cannot be mutated",
        ));
    }
    let is_resumed = old.is_true("Suspended") && new.has_condition("Suspended", "False");
    let (start, old_start) = count("startTime");
    if old_start.is_set() && start.value != old_start.value && !is_resumed && !spec.child("suspend").is_true()
    {
        start.required(errors, "startTime cannot be removed for unsuspended job");
    }
}

/// SuccessCriteriaMet must not be removed, and must precede Complete.
fn validate_success_criteria_change(new: &JobStatus<'_>, old: &JobStatus<'_>, errors: &mut ErrorList) {
    if old.is_true(SUCCESS) && !new.is_true(SUCCESS) {
        invalid_conditions(new, errors, "cannot disable the SuccessCriteriaMet=True condition");
    }
    if old.is_true("Complete") && !old.is_true(SUCCESS) && new.is_true(SUCCESS) {
        let detail = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        invalid_conditions(new, errors, detail);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{error_messages, object};

    use super::*;

    /// The errors of a status update of a Job with this spec.
    fn validation_errors(spec: &str, old: &str, new: &str) -> Vec<String> {
        let job = |status: &str| object(&format!("{{\"spec\":{spec},\"status\":{status}}}"));
        let mut errors = ErrorList::new();
        validate(&job(new), &job(old), &mut errors);
        error_messages(&errors)
    }

    const PLAIN: &str = r#"{"completions":3,"parallelism":1}"#;
    const INDEXED: &str =
        r#"{"completions":5,"parallelism":1,"completionMode":"Indexed","backoffLimitPerIndex":1}"#;
    const TIMES: &str = r#""startTime":"2024-01-01T00:00:00Z","completionTime":"2024-01-01T00:01:00Z""#;

    fn status_with(conditions: &[&str], rest: &str) -> String {
        let all: Vec<String> =
            conditions.iter().map(|kind| format!("{{\"type\":\"{kind}\",\"status\":\"True\"}}")).collect();
        let rest = if rest.is_empty() { String::new() } else { format!(",{rest}") };
        format!("{{\"conditions\":[{}]{rest}}}", all.join(","))
    }

    #[test]
    fn consistent_terminal_status_is_accepted() {
        let done = status_with(&["SuccessCriteriaMet", "Complete"], TIMES);
        assert_eq!(validation_errors(PLAIN, "{}", &done), Vec::<String>::new());
        let failed = status_with(&["FailureTarget", "Failed"], r#""startTime":"2024-01-01T00:00:00Z""#);
        assert_eq!(validation_errors(PLAIN, "{}", &failed), Vec::<String>::new());
    }

    #[test]
    fn job_status_validation_refuses_each_violation() {
        let start = r#""startTime":"2024-01-01T00:00:00Z""#;
        let table: Vec<(&str, &str, String, &str)> = vec![
            (
                PLAIN,
                "{}",
                r#"{"active":-1}"#.into(),
                "status.active: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                PLAIN,
                "{}",
                r#"{"uncountedTerminatedPods":{"failed":[""]}}"#.into(),
                "failed[0]: Invalid value: \"\": must not be empty",
            ),
            (
                PLAIN,
                "{}",
                r#"{"uncountedTerminatedPods":{"succeeded":["a"],"failed":["a"]}}"#.into(),
                "failed[0]: Duplicate value: \"a\"",
            ),
            (
                PLAIN,
                "{}",
                status_with(&["SuccessCriteriaMet", "Complete"], start),
                "completionTime is required for Complete jobs",
            ),
            (
                PLAIN,
                "{}",
                format!("{{{TIMES}}}"),
                "status.completionTime: Invalid value: 2024-01-01 00:01:00 +0000 UTC: cannot set completionTime when there is no Complete=True condition",
            ),
            (
                PLAIN,
                "{}",
                status_with(&["Failed"], start),
                "status.conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition",
            ),
            (
                PLAIN,
                "{}",
                status_with(&["Complete"], TIMES),
                "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
            ),
            (
                PLAIN,
                "{}",
                status_with(&["FailureTarget", "Failed"], ""),
                "status.startTime: Required value: startTime is required for finished job",
            ),
            (
                PLAIN,
                "{}",
                status_with(&["FailureTarget", "Failed"], &format!("{start},\"active\":1")),
                "active>0 is invalid for finished job",
            ),
            (
                PLAIN,
                "{}",
                status_with(&["FailureTarget", "Failed"], &format!("{start},\"terminating\":1")),
                "terminating>0 is invalid for finished job",
            ),
            (
                PLAIN,
                "{}",
                status_with(
                    &["FailureTarget", "Failed"],
                    &format!("{start},\"uncountedTerminatedPods\":{{\"failed\":[\"a\"]}}"),
                ),
                "uncountedTerminatedPods needs to be empty for finished job",
            ),
            (
                INDEXED,
                "{}",
                r#"{"completedIndexes":"9"}"#.into(),
                "error parsing completedIndexes: too large index: \"9\"",
            ),
            (INDEXED, "{}", r#"{"failedIndexes":"x"}"#.into(), "error parsing failedIndexes: cannot convert"),
            (
                PLAIN,
                "{}",
                r#"{"completedIndexes":"1"}"#.into(),
                "cannot set non-empty completedIndexes when non-indexed completion mode",
            ),
            (
                PLAIN,
                "{}",
                r#"{"failedIndexes":"1"}"#.into(),
                "cannot set non-null failedIndexes when backoffLimitPerIndex is null",
            ),
            (
                INDEXED,
                "{}",
                r#"{"completedIndexes":"1-3","failedIndexes":"3"}"#.into(),
                "failedIndexes and completedIndexes overlap at index: 3",
            ),
            (PLAIN, "{}", r#"{"ready":1}"#.into(), "cannot set more ready pods than active"),
            (
                PLAIN,
                r#"{"failed":2}"#,
                r#"{"failed":1}"#.into(),
                "status.failed: Invalid value: 1: cannot decrease the failed counter",
            ),
            (
                PLAIN,
                r#"{"succeeded":2}"#,
                r#"{"succeeded":1}"#.into(),
                "cannot decrease the succeeded counter",
            ),
            (
                PLAIN,
                r#"{"startTime":"2024-01-01T00:00:00Z"}"#,
                "{}".into(),
                "status.startTime: Required value: startTime cannot be removed for unsuspended job",
            ),
            (
                PLAIN,
                r#"{"conditions":[{"type":"FailureTarget","status":"True"}]}"#,
                "{}".into(),
                "cannot disable the terminal FailureTarget=True condition",
            ),
            (
                PLAIN,
                r#"{"conditions":[{"type":"SuccessCriteriaMet","status":"True"}]}"#,
                "{}".into(),
                "cannot disable the SuccessCriteriaMet=True condition",
            ),
            (
                PLAIN,
                "{}",
                status_with(&["SuccessCriteriaMet", "FailureTarget"], ""),
                "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
            ),
        ];
        for (spec, old, new, expected) in table {
            let errors = validation_errors(spec, old, &new);
            assert!(errors.len() == 1 && errors[0].contains(expected), "{new}: {errors:#?}");
        }
        let done = status_with(&["SuccessCriteriaMet", "Complete"], TIMES);
        let later = done.replace("00:01:00", "00:02:00");
        assert_eq!(validation_errors(PLAIN, &done, &later).len(), 1);
        let overlap = status_with(&["SuccessCriteriaMet", "Complete", "Failed", "FailureTarget"], TIMES);
        assert_eq!(validation_errors(PLAIN, "{}", &overlap).len(), 4);
    }
}
