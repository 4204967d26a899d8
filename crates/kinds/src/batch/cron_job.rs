//! CronJobs.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, same};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::time_zone;
use pilothouse_apimachinery::value::Value;

use super::{cron, job};
use crate::allowed::batch_v1;
use crate::core::pod_default;
use crate::{
    DefaultingRules, KindRules, MetaRevalidation, MetadataRules, PodSpecPath, StatusRules, ValidationRules,
    WarningRules, messages,
};

/// The rules of a CronJob.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules { revalidation: MetaRevalidation::Change, ..MetadataRules::SPEC_GENERATION },
    pod_spec: PodSpecPath(&["spec", "jobTemplate", "spec", "template", "spec"]),
    defaulting: DefaultingRules { default, ..DefaultingRules::DEFAULT },
    validation: ValidationRules { validate, validate_update, ..ValidationRules::DEFAULT },
    warnings: WarningRules { warn, ..WarningRules::DEFAULT },
    status: StatusRules { metadata_revalidation: MetaRevalidation::No, ..StatusRules::DEFAULT },
    ..KindRules::DEFAULT
};

/// The names of its Jobs are eleven characters longer.
const MAX_NAME_LENGTH: usize = 52;

/// The defaults of a CronJob, including those of its pod template.
fn default(object: &mut Value) {
    if object.get_path(&["spec", "jobTemplate", "spec", "template"]).is_some() {
        pod_default::default_template(object.entry("spec").entry("jobTemplate").entry("spec"), "template");
    }
}

fn validate_spec(spec: &FieldValue<'_>, old_spec: Option<&FieldValue<'_>>, errors: &mut ErrorList) {
    let (schedule, zone) = (spec.child("schedule"), spec.child("timeZone"));
    if schedule.need(errors) {
        let had_zone = old_spec.is_some_and(|old_spec| old_spec.child("schedule").text().contains("TZ"));
        validate_schedule(&schedule, &zone, had_zone, errors);
    }
    spec.child("startingDeadlineSeconds").not_negative(errors);
    if old_spec.is_none_or(|old_spec| !same(Some(old_spec.child("timeZone").value), Some(zone.value)))
        && zone.is_set()
    {
        validate_zone(&zone, errors);
    }
    spec.child("concurrencyPolicy").need_one_of(errors, batch_v1::CronJobSpec::CONCURRENCY_POLICY);
    let template = spec.child("jobTemplate").child("spec");
    job::validate_spec(&template, false, errors);
    let (selector, manual) = (template.child("selector"), template.child("manualSelector"));
    if selector.is_set() {
        let detail = "`selector` will be auto-generated";
        messages::invalid_struct(&selector.path, "v1.LabelSelector", errors, detail);
    }
    if manual.is_true() {
        errors.push(FieldError::not_supported(&manual.path, "true", &["nil", "false"]));
    }
    spec.child("successfulJobsHistoryLimit").not_negative(errors);
    spec.child("failedJobsHistoryLimit").not_negative(errors);
}

fn validate_schedule(
    schedule: &FieldValue<'_>,
    zone: &FieldValue<'_>,
    had_zone: bool,
    errors: &mut ErrorList,
) {
    if let Err(detail) = cron::parse(schedule.text()) {
        schedule.invalid(errors, &detail);
    }
    if schedule.text().contains("TZ") {
        if !had_zone {
            schedule.invalid(errors, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead");
        } else if zone.is_set() {
            schedule.invalid(errors, "cannot use both timeZone field and TZ or CRON_TZ in schedule");
        }
    }
}

/// Checks the name of a time zone.
fn validate_zone(zone: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_PART_LENGTH: usize = 14;
    let name = zone.text();
    let is_valid_part = |part: &str| {
        (1..=MAX_PART_LENGTH).contains(&part.len())
            && !matches!(part, "." | "..")
            && !part.starts_with('-')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_+".contains(&byte))
    };
    if name.is_empty() {
        zone.invalid_text(errors, "timeZone must be nil or non-empty string");
        return;
    }
    if name.split('/').all(is_valid_part) && name.eq_ignore_ascii_case("Local") {
        zone.invalid(
            errors,
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
        );
    }
    if !time_zone::is_known(name) && name != "Local" {
        zone.invalid(errors, &format!("unknown time zone {name}"));
    }
}

/// Checks a CronJob.
fn validate(object: &Value, errors: &mut ErrorList) {
    validate_spec(&FieldValue::top_level(object, "spec"), None, errors);
    if meta::name(object).len() > MAX_NAME_LENGTH {
        let path = FieldPath::new("metadata").child("name");
        errors.push(FieldError::invalid(
            &path,
            &quoted(meta::name(object)),
            &names::too_long(MAX_NAME_LENGTH),
        ));
    }
}

/// Validates an updated CronJob.
fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_spec(&FieldValue::top_level(new, "spec"), Some(&FieldValue::top_level(old, "spec")), errors);
}

/// Warnings about a CronJob.
fn warn(object: &Value, old: Option<&Value>, warnings: &mut WarningList) {
    let template = |object| FieldValue::top_level(object, "spec").child("jobTemplate").child("spec");
    if old.is_none() {
        messages::warn_pod_name(object, warnings);
    }
    if old.is_none_or(|old| meta::generation(old) != meta::generation(object)) {
        job::warn_spec(&template(object), old.map(template), warnings);
    }
    if old.is_some() && FieldValue::top_level(object, "spec").child("schedule").text().contains("TZ") {
        warnings.push(
            "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see \
             https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
                .to_owned(),
        );
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::*;

    #[test]
    fn cron_job_validation_refuses_each_violation() {
        let mut base = object(
            r#"{"metadata":{"name":"c"},"spec":{"schedule":"*/5 * * * *","concurrencyPolicy":"Allow","timeZone":"Etc/UTC","jobTemplate":{"spec":{"template":{"spec":{
                "restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}"#,
        );
        default(&mut base);
        let long = format!("\"{}\"", "c".repeat(53));
        each_refused(
            &base,
            validate,
            &[
                ("metadata.name", &long, "must be no more than 52 characters"),
                ("spec.schedule", "null", "spec.schedule: Required value"),
                (
                    "spec.schedule",
                    r#""bad""#,
                    "spec.schedule: Invalid value: \"bad\": expected exactly 5 fields, found 1: [bad]",
                ),
                (
                    "spec.schedule",
                    r#""TZ=UTC * * * * *""#,
                    "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
                ),
                ("spec.timeZone", r#""Etc/../UTC""#, "unknown time zone Etc/../UTC"),
                ("spec.timeZone", r#""""#, "timeZone must be nil or non-empty string"),
                ("spec.timeZone", r#""Local""#, "must be an explicit time zone"),
                ("spec.jobTemplate.spec.selector", "{}", "`selector` will be auto-generated"),
                (
                    "spec.jobTemplate.spec.manualSelector",
                    "true",
                    "spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: \"nil\", \"false\"",
                ),
                ("spec.concurrencyPolicy", "null", "spec.concurrencyPolicy: Required value"),
                (
                    "spec.timeZone",
                    r#""Nope/Zone""#,
                    "spec.timeZone: Invalid value: \"Nope/Zone\": unknown time zone Nope/Zone",
                ),
                ("spec.startingDeadlineSeconds", "-1", "spec.startingDeadlineSeconds: Invalid value: -1"),
                ("spec.concurrencyPolicy", r#""X""#, "supported values: \"Allow\", \"Forbid\", \"Replace\""),
                (
                    "spec.jobTemplate.spec.parallelism",
                    "-1",
                    "spec.jobTemplate.spec.parallelism: Invalid value: -1",
                ),
                ("spec.successfulJobsHistoryLimit", "-1", "spec.successfulJobsHistoryLimit"),
            ],
        );
        each_change_refused(
            &base,
            validate_update,
            &[("spec.timeZone", r#""Nope/Zone""#, "unknown time zone Nope/Zone")],
        );
        let mut old = base.clone();
        old.entry("spec").set("schedule", "TZ=UTC 0 0 * * *");
        let mut errors = ErrorList::new();
        validate_update(&old, &old, &mut errors);
        assert_eq!(errors.len(), 1, "timeZone and TZ in the schedule: {errors:?}");
        let mut warnings = WarningList::new();
        warn(&old, Some(&old), &mut warnings);
        assert!(warnings[0].starts_with("cannot use TZ or CRON_TZ in spec.spec.schedule"));
    }
}
