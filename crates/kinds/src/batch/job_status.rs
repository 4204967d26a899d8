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

/// The old or new status, with the properties that rules compare.
struct Seen<'a> {
    status: FieldValue<'a>,
}

impl Seen<'_> {
    fn is(&self, kind: &str, wanted: &str) -> bool {
        self.status.child("conditions").items().any(|condition| {
            condition.child("type").text() == kind && condition.child("status").text() == wanted
        })
    }

    fn has(&self, kind: &str) -> bool {
        self.is(kind, "True")
    }

    fn finished(&self) -> bool {
        self.has("Complete") || self.has("Failed")
    }
}

/// Checks a changed status.
pub fn validate(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (now, was) =
        (Seen { status: FieldValue::of(new, "status") }, Seen { status: FieldValue::of(old, "status") });
    let spec = FieldValue::of(new, "spec");
    counts(&now.status, errors);
    let features = errors.features();
    // The strict rules depend on the feature gate for external Job controllers.
    if !features.has(Feature::JobManagedBy) {
        let anywhere = features.has(Feature::JobPodReplacementPolicy) || was.has(SUCCESS);
        success_criteria(&spec, &now, anywhere, errors);
        criteria_change(&now, &was, errors);
        return;
    }
    condition_pairs(&now, &was, errors);
    finished(&spec, &now, &was, errors);
    index_sets(&spec, &now, &was, errors);
    ready(&now, &was, errors);
    success_criteria(&spec, &now, true, errors);
    transitions(&spec, &now, &was, errors);
    criteria_change(&now, &was, errors);
}

fn changed(field: &str, now: &Seen<'_>, was: &Seen<'_>) -> bool {
    !same(Some(now.status.child(field).value), Some(was.status.child(field).value))
}

fn flipped(kind: &str, now: &Seen<'_>, was: &Seen<'_>) -> bool {
    now.has(kind) != was.has(kind)
}

fn counts(status: &FieldValue<'_>, errors: &mut ErrorList) {
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

fn about_conditions(now: &Seen<'_>, errors: &mut ErrorList, why: &str) {
    messages::omitted(&now.status.child("conditions").path, errors, why);
}

fn condition_pairs(now: &Seen<'_>, was: &Seen<'_>, errors: &mut ErrorList) {
    let complete = now.has("Complete");
    let (complete_flips, failed_flips) = (flipped("Complete", now, was), flipped("Failed", now, was));
    if (complete_flips || failed_flips) && complete && now.has("Failed") {
        about_conditions(now, errors, "cannot set Complete=True and Failed=true conditions");
    }
    if (complete_flips || flipped("FailureTarget", now, was)) && complete && now.has("FailureTarget") {
        about_conditions(now, errors, "cannot set Complete=True and FailureTarget=true conditions");
    }
    let (start, end) = (now.status.child("startTime"), now.status.child("completionTime"));
    let end_changed = changed("completionTime", now, was);
    let bad_end = |errors: &mut ErrorList, why| {
        errors.push(FieldError::invalid(&end.path, &messages::shown_time(&end), why));
    };
    if complete_flips || end_changed {
        if end.is_set() && !complete {
            bad_end(errors, "cannot set completionTime when there is no Complete=True condition");
        }
        if !end.is_set() && complete {
            end.required(errors, "completionTime is required for Complete jobs");
        }
    }
    // Both are canonical RFC 3339, whose string order is the order of times.
    let times_changed = end_changed || changed("startTime", now, was);
    if times_changed && start.is_set() && end.is_set() && end.text() < start.text() {
        bad_end(errors, "completionTime cannot be set before startTime");
    }
    if (failed_flips || changed("failedIndexes", now, was)) && now.has("Failed") && !now.has("FailureTarget")
    {
        about_conditions(
            now,
            errors,
            "cannot set Failed=True condition without the FailureTarget=true condition",
        );
    }
    let criteria_flips = flipped(SUCCESS, now, was);
    if (complete_flips || criteria_flips) && complete && !now.has(SUCCESS) {
        let why = "cannot set Complete=True condition without the SuccessCriteriaMet=true condition";
        about_conditions(now, errors, why);
    }
}

fn finished(spec: &FieldValue<'_>, now: &Seen<'_>, was: &Seen<'_>, errors: &mut ErrorList) {
    if !now.finished() {
        return;
    }
    let flips = now.finished() != was.finished();
    let (active, uncounted) = (now.status.child("active"), now.status.child("uncountedTerminatedPods"));
    if (flips || changed("active", now, was)) && active.number() > 0 {
        active.invalid(errors, "active>0 is invalid for finished job");
    }
    let never_runs = spec.child("suspend").is_true() && spec.child("completions").int() == Some(0);
    let start = now.status.child("startTime");
    if (flips || changed("startTime", now, was)) && !never_runs && !start.is_set() {
        start.required(errors, "startTime is required for finished job");
    }
    let some = uncounted.child("failed").len() + uncounted.child("succeeded").len() > 0;
    if (flips || changed("uncountedTerminatedPods", now, was)) && some {
        let why = "uncountedTerminatedPods needs to be empty for finished job";
        messages::structure(&uncounted.path, "batch.UncountedTerminatedPods", errors, why);
    }
}

fn index_sets(spec: &FieldValue<'_>, now: &Seen<'_>, was: &Seen<'_>, errors: &mut ErrorList) {
    let (done, failed) = (now.status.child("completedIndexes"), now.status.child("failedIndexes"));
    let (done_changed, failed_changed) =
        (changed("completedIndexes", now, was), changed("failedIndexes", now, was));
    let (completions, per_index) = (spec.child("completions"), spec.child("backoffLimitPerIndex"));
    if let Some(completions) = completions.int() {
        if let Some(why) = indexes::count(done.text(), completions).err().filter(|_| done_changed) {
            done.invalid(errors, &format!("error parsing completedIndexes: {why}"));
        }
        let check_failed = failed_changed && per_index.is_set() && failed.is_set();
        if let Some(why) = indexes::count(failed.text(), completions).err().filter(|_| check_failed) {
            failed.invalid(errors, &format!("error parsing failedIndexes: {why}"));
        }
    }
    if done_changed && !done.is_empty() && spec.child("completionMode").text() != "Indexed" {
        done.invalid(errors, "cannot set non-empty completedIndexes when non-indexed completion mode");
    }
    if failed_changed && failed.is_set() && !per_index.is_set() {
        failed.invalid(errors, "cannot set non-null failedIndexes when backoffLimitPerIndex is null");
    }
    let compared = completions.int().filter(|_| failed.is_set() && (done_changed || failed_changed));
    let both = compared.and_then(|completions| indexes::overlap(done.text(), failed.text(), completions));
    if let Some(index) = both {
        let why = format!("failedIndexes and completedIndexes overlap at index: {index}");
        failed.invalid(errors, &why);
    }
}

fn ready(now: &Seen<'_>, was: &Seen<'_>, errors: &mut ErrorList) {
    let (terminating, ready) = (now.status.child("terminating"), now.status.child("ready"));
    let flips = now.finished() != was.finished();
    if (flips || changed("terminating", now, was)) && terminating.number() > 0 && now.finished() {
        terminating.invalid(errors, "terminating>0 is invalid for finished job");
    }
    let moved = changed("ready", now, was) || changed("active", now, was);
    if moved && ready.is_set() && ready.number() > now.status.child("active").number() {
        ready.invalid(errors, "cannot set more ready pods than active");
    }
}

/// Checks the condition SuccessCriteriaMet. `anywhere`: also without a success policy.
fn success_criteria(spec: &FieldValue<'_>, now: &Seen<'_>, anywhere: bool, errors: &mut ErrorList) {
    let met = now.has(SUCCESS);
    if met && !anywhere && spec.str("completionMode") != "Indexed" {
        about_conditions(now, errors, "cannot set SuccessCriteriaMet to NonIndexed Job");
    }
    if met && now.has("Failed") {
        about_conditions(now, errors, "cannot set SuccessCriteriaMet=True and Failed=true conditions");
    }
    if met && now.has("FailureTarget") {
        about_conditions(now, errors, "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions");
    }
    if met && !anywhere && !spec.has("successPolicy") {
        about_conditions(now, errors, "cannot set SuccessCriteriaMet=True for Job without SuccessPolicy");
    }
    if spec.child("successPolicy").is_set() && !met && now.has("Complete") {
        let why = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
        about_conditions(now, errors, why);
    }
}

fn transitions(spec: &FieldValue<'_>, now: &Seen<'_>, was: &Seen<'_>, errors: &mut ErrorList) {
    for kind in ["Failed", "Complete", "FailureTarget"] {
        if was.has(kind) && !now.has(kind) {
            about_conditions(now, errors, &format!("cannot disable the terminal {kind}=True condition"));
        }
    }
    let count = |field: &str| (now.status.child(field), was.status.child(field));
    let (failed, before) = count("failed");
    messages::no_less(&failed, &before, errors, "cannot decrease the failed counter");
    let elastic = spec.child("completionMode").text() == "Indexed"
        && same(Some(spec.child("completions").value), Some(spec.child("parallelism").value));
    if !elastic {
        let (succeeded, before) = count("succeeded");
        messages::no_less(&succeeded, &before, errors, "cannot decrease the succeeded counter");
    }
    let (end, before) = count("completionTime");
    if end.is_set() && before.is_set() && end.value != before.value {
        errors.push(FieldError::invalid(
            &end.path,
            &messages::shown_time(&end),
            "completionTime cannot be mutated",
        ));
    }
    let resumes = was.has("Suspended") && now.is("Suspended", "False");
    let (start, before) = count("startTime");
    if before.is_set() && start.value != before.value && !resumes && !spec.child("suspend").is_true() {
        start.required(errors, "startTime cannot be removed for unsuspended job");
    }
}

/// SuccessCriteriaMet must not be removed, and must precede Complete.
fn criteria_change(now: &Seen<'_>, was: &Seen<'_>, errors: &mut ErrorList) {
    if was.has(SUCCESS) && !now.has(SUCCESS) {
        about_conditions(now, errors, "cannot disable the SuccessCriteriaMet=True condition");
    }
    if was.has("Complete") && !was.has(SUCCESS) && now.has(SUCCESS) {
        let why = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        about_conditions(now, errors, why);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{object, said};

    use super::*;

    /// The errors of a status update of a Job with this spec.
    fn found(spec: &str, old: &str, new: &str) -> Vec<String> {
        let whole = |status: &str| object(&format!("{{\"spec\":{spec},\"status\":{status}}}"));
        let mut errors = ErrorList::new();
        validate(&whole(new), &whole(old), &mut errors);
        said(&errors)
    }

    const PLAIN: &str = r#"{"completions":3,"parallelism":1}"#;
    const INDEXED: &str =
        r#"{"completions":5,"parallelism":1,"completionMode":"Indexed","backoffLimitPerIndex":1}"#;
    const TIMES: &str = r#""startTime":"2024-01-01T00:00:00Z","completionTime":"2024-01-01T00:01:00Z""#;

    fn with(conditions: &[&str], rest: &str) -> String {
        let all: Vec<String> =
            conditions.iter().map(|kind| format!("{{\"type\":\"{kind}\",\"status\":\"True\"}}")).collect();
        let rest = if rest.is_empty() { String::new() } else { format!(",{rest}") };
        format!("{{\"conditions\":[{}]{rest}}}", all.join(","))
    }

    #[test]
    fn a_good_end_is_accepted() {
        let done = with(&["SuccessCriteriaMet", "Complete"], TIMES);
        assert_eq!(found(PLAIN, "{}", &done), Vec::<String>::new());
        let failed = with(&["FailureTarget", "Failed"], r#""startTime":"2024-01-01T00:00:00Z""#);
        assert_eq!(found(PLAIN, "{}", &failed), Vec::<String>::new());
    }

    #[test]
    fn each_rule_of_a_status_refuses() {
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
                with(&["SuccessCriteriaMet", "Complete"], start),
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
                with(&["Failed"], start),
                "status.conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition",
            ),
            (
                PLAIN,
                "{}",
                with(&["Complete"], TIMES),
                "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
            ),
            (
                PLAIN,
                "{}",
                with(&["FailureTarget", "Failed"], ""),
                "status.startTime: Required value: startTime is required for finished job",
            ),
            (
                PLAIN,
                "{}",
                with(&["FailureTarget", "Failed"], &format!("{start},\"active\":1")),
                "active>0 is invalid for finished job",
            ),
            (
                PLAIN,
                "{}",
                with(&["FailureTarget", "Failed"], &format!("{start},\"terminating\":1")),
                "terminating>0 is invalid for finished job",
            ),
            (
                PLAIN,
                "{}",
                with(
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
                with(&["SuccessCriteriaMet", "FailureTarget"], ""),
                "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
            ),
        ];
        for (spec, old, new, wanted) in table {
            let errors = found(spec, old, &new);
            assert!(errors.len() == 1 && errors[0].contains(wanted), "{new}: {errors:#?}");
        }
        let done = with(&["SuccessCriteriaMet", "Complete"], TIMES);
        let later = done.replace("00:01:00", "00:02:00");
        assert_eq!(found(PLAIN, &done, &later).len(), 1);
        let both = with(&["SuccessCriteriaMet", "Complete", "Failed", "FailureTarget"], TIMES);
        assert_eq!(found(PLAIN, "{}", &both).len(), 4);
    }
}
