//! The group `batch`.

use super::core::template;
use super::{items_mut, set_if_absent};
use crate::api::value::Value;

/// Tries before a job gives up.
const BACKOFF_LIMIT: i64 = 6;

pub(super) fn job(job: &mut Value) {
    let labels = job.at(&["spec", "template", "metadata", "labels"]).cloned();
    if let Some(labels) = labels {
        set_if_absent(job.entry("metadata"), "labels", labels);
    }
    let spec = job.entry("spec");
    if spec.get("completions").is_none() && spec.get("parallelism").is_none() {
        spec.set("completions", 1);
    }
    set_if_absent(spec, "parallelism", 1);
    let per_index = spec.get("backoffLimitPerIndex").is_some();
    set_if_absent(spec, "backoffLimit", if per_index { i64::from(i32::MAX) } else { BACKOFF_LIMIT });
    set_if_absent(spec, "completionMode", "NonIndexed");
    set_if_absent(spec, "suspend", false);
    set_if_absent(spec, "manualSelector", false);
    let replacement = if spec.get("podFailurePolicy").is_some() { "Failed" } else { "TerminatingOrFailed" };
    set_if_absent(spec, "podReplacementPolicy", replacement);
    if let Some(policy) = spec.get_mut("podFailurePolicy") {
        for pattern in items_mut(policy, "rules").flat_map(|rule| items_mut(rule, "onPodConditions")) {
            set_if_absent(pattern, "status", "True");
        }
    }
    template(Some(spec));
}

pub(super) fn cron_job(job: &mut Value) {
    let template_of = job.get_mut("spec").and_then(|spec| spec.get_mut("jobTemplate"));
    template(template_of.and_then(|template| template.get_mut("spec")));
}

#[cfg(test)]
mod tests {
    use super::super::tests::defaulted;
    use super::*;

    #[test]
    fn a_job_runs_once_unless_told_otherwise() {
        let body = r#"{"spec":{"template":{"metadata":{"labels":{"a":"b"}},"spec":{}}}}"#;
        let value = defaulted("batch", "v1", "Job", body);
        let spec = value.get("spec").unwrap();
        assert_eq!(
            (spec.get("completions"), spec.get("parallelism")),
            (Some(&Value::Int(1)), Some(&Value::Int(1)))
        );
        assert_eq!(spec.get("backoffLimit"), Some(&Value::Int(BACKOFF_LIMIT)));
        assert_eq!(spec.str("podReplacementPolicy"), "TerminatingOrFailed");
        assert_eq!(value.at(&["metadata", "labels", "a"]), Some(&Value::from("b")));
        let body = r#"{"spec":{"parallelism":3,"backoffLimitPerIndex":1,
            "podFailurePolicy":{"rules":[{"onPodConditions":[{"type":"x"}]}]}}}"#;
        let value = defaulted("batch", "v1", "Job", body);
        let spec = value.get("spec").unwrap();
        assert_eq!(spec.get("completions"), None);
        assert_eq!(spec.get("backoffLimit"), Some(&Value::Int(i64::from(i32::MAX))));
        assert_eq!(spec.str("podReplacementPolicy"), "Failed");
        let rule = &spec.at(&["podFailurePolicy", "rules"]).unwrap().items()[0];
        assert_eq!(rule.get("onPodConditions").unwrap().items()[0].str("status"), "True");
    }

    #[test]
    fn the_job_of_a_cron_job_gets_its_defaults_later() {
        let body = r#"{"spec":{"jobTemplate":{"spec":{"template":{"spec":{}}}}}}"#;
        let value = defaulted("batch", "v1", "CronJob", body);
        let job = value.at(&["spec", "jobTemplate", "spec"]).unwrap();
        assert_eq!(job.get("backoffLimit"), None);
        assert_eq!(job.at(&["template", "spec", "securityContext"]), Some(&Value::object()));
    }
}
