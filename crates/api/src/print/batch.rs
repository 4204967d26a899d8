//! Rows of Jobs and CronJobs.

use pilothouse_apimachinery::value::Value;

use super::cells::{NONE, PrintedObject, UNSET, cells, is_condition_true};
use super::labels::selector;
use super::workloads::containers;
use crate::age;

/// The statuses of a job, each with its condition; the first that is true counts. `None`: the job is being deleted.
const STATUSES: [(&str, Option<&str>); 5] = [
    ("Complete", Some("Complete")),
    ("Failed", Some("Failed")),
    ("Terminating", None),
    ("Suspended", Some("Suspended")),
    ("FailureTarget", Some("FailureTarget")),
];

/// Cells of a job.
pub fn job(object: &PrintedObject<'_>) -> Vec<Value> {
    let (names, images) = containers(object.field("spec.template.spec"));
    cells![
        object.name(),
        status(object),
        completions(object),
        duration(object),
        object.age(),
        names,
        images,
        selector(object.field("spec.selector"))
    ]
}

fn status(object: &PrintedObject<'_>) -> &'static str {
    let conditions = object.items("status.conditions");
    let is_true = |condition: &Option<&str>| {
        condition.map_or(object.is_terminating(), |kind| is_condition_true(conditions, kind))
    };
    STATUSES.iter().find(|(_, condition)| is_true(condition)).map_or("Running", |(status, _)| status)
}

fn completions(object: &PrintedObject<'_>) -> String {
    let succeeded = object.int("status.succeeded");
    match (object.field("spec.completions").and_then(Value::as_int), object.int("spec.parallelism")) {
        (Some(completions), _) => format!("{succeeded}/{completions}"),
        (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    }
}

fn duration(object: &PrintedObject<'_>) -> String {
    let Some(started) = object.instant("status.startTime") else { return String::new() };
    match object.instant("status.completionTime") {
        Some(completed) => age::format_duration(completed.saturating_sub(started)),
        None => object.ages.since(Some(started)),
    }
}

/// Cells of a cron job.
pub fn cron_job(object: &PrintedObject<'_>) -> Vec<Value> {
    let (names, images) = containers(object.field("spec.jobTemplate.spec.template.spec"));
    let suspended = match object.flag("spec.suspend") {
        None => UNSET,
        Some(true) => "True",
        Some(false) => "False",
    };
    let last_scheduled =
        object.field("status.lastScheduleTime").map(|_| object.since("status.lastScheduleTime"));
    cells![
        object.name(),
        object.text("spec.schedule"),
        object.field("spec.timeZone").and_then(Value::as_str).unwrap_or(NONE),
        suspended,
        object.count("status.active"),
        last_scheduled.unwrap_or_else(|| NONE.to_owned()),
        object.age(),
        names,
        images,
        selector(object.field("spec.jobTemplate.spec.selector"))
    ]
}

#[cfg(test)]
mod tests {
    use crate::print::testing::assert_cells;

    /// Checks status, completions and duration.
    #[track_caller]
    fn assert_job_cells(meta: &str, spec: &str, status: &str, expected: [&str; 3]) {
        let object =
            format!(r#"{{"metadata":{{"name":"j"{meta}}},"spec":{{{spec}}},"status":{{{status}}}}}"#);
        let [status, completions, duration] = expected;
        let row = format!(r#"["j","{status}","{completions}","{duration}","<unknown>","","","<none>"]"#);
        assert_cells("batch", "Job", &object, &row);
    }

    #[test]
    fn job_cells_show_completions_and_duration() {
        assert_job_cells("", r#""completions":5"#, r#""succeeded":2"#, ["Running", "2/5", ""]);
        assert_job_cells("", r#""parallelism":1"#, "", ["Running", "0/1", ""]);
        assert_job_cells("", r#""parallelism":3"#, r#""succeeded":1"#, ["Running", "1/1 of 3", ""]);
        let started = r#""startTime":"2024-05-01T11:10:00Z""#;
        assert_job_cells("", "", started, ["Running", "0/1", "60m"]);
        let ended = format!(r#"{started},"completionTime":"2024-05-01T11:11:30Z""#);
        assert_job_cells("", "", &ended, ["Running", "0/1", "90s"]);
    }

    #[test]
    fn job_status_is_the_first_true_condition() {
        let terminating = r#","deletionTimestamp":"2024-05-01T12:09:00Z""#;
        let with = |kinds: &[&str]| {
            let all: Vec<String> =
                kinds.iter().map(|kind| format!(r#"{{"type":"{kind}","status":"True"}}"#)).collect();
            format!(r#""conditions":[{{"type":"Other","status":"True"}},{}]"#, all.join(","))
        };
        for (meta, kinds, status) in [
            (terminating, &["Complete", "Failed"][..], "Complete"),
            (terminating, &["Suspended", "Failed"], "Failed"),
            (terminating, &["Suspended"], "Terminating"),
            ("", &["FailureTarget", "Suspended"], "Suspended"),
            ("", &["FailureTarget"], "FailureTarget"),
        ] {
            assert_job_cells(meta, "", &with(kinds), [status, "0/1", ""]);
        }
        let not_true = r#""conditions":[{"type":"Complete","status":"False"}]"#;
        assert_job_cells("", "", not_true, ["Running", "0/1", ""]);
    }

    #[test]
    fn cron_job_cells_show_schedule_and_last_run() {
        let template = r#""jobTemplate":{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"i"}]}},
            "selector":{"matchLabels":{"a":"b"}}}}"#;
        assert_cells(
            "batch",
            "CronJob",
            &format!(
                r#"{{"metadata":{{"name":"c"}},"spec":{{"schedule":"* * * * *","timeZone":"Etc/UTC","suspend":false,{template}}},
                    "status":{{"active":[{{}},{{}}],"lastScheduleTime":"2024-05-01T12:09:30Z"}}}}"#
            ),
            r#"["c","* * * * *","Etc/UTC","False",2,"30s","<unknown>","c","i","a=b"]"#,
        );
        assert_cells(
            "batch",
            "CronJob",
            r#"{"spec":{"suspend":true}}"#,
            r#"["","","<none>","True",0,"<none>","<unknown>","","","<none>"]"#,
        );
        assert_cells(
            "batch",
            "CronJob",
            "{}",
            r#"["","","<none>","<unset>",0,"<none>","<unknown>","","","<none>"]"#,
        );
    }
}
