//! Rows of Jobs and CronJobs.

use pilothouse_apimachinery::value::Value;

use super::cells::{NONE, PrintedObject, UNSET, cells, holds};
use super::labels::selector;
use super::workloads::containers;
use crate::age;

/// The words for what a job does, each with the condition that makes it true; the first that holds counts. `None` asks
/// for a deletion instead.
const WORDS: [(&str, Option<&str>); 5] = [
    ("Complete", Some("Complete")),
    ("Failed", Some("Failed")),
    ("Terminating", None),
    ("Suspended", Some("Suspended")),
    ("FailureTarget", Some("FailureTarget")),
];

/// Cells of a job.
pub fn job(it: &PrintedObject<'_>) -> Vec<Value> {
    let (names, images) = containers(it.at("spec.template.spec"));
    cells![
        it.name(),
        status(it),
        completions(it),
        duration(it),
        it.age(),
        names,
        images,
        selector(it.at("spec.selector"))
    ]
}

fn status(it: &PrintedObject<'_>) -> &'static str {
    let conditions = it.items("status.conditions");
    let is_true =
        |condition: &Option<&str>| condition.map_or(it.is_terminating(), |kind| holds(conditions, kind));
    WORDS.iter().find(|(_, condition)| is_true(condition)).map_or("Running", |(word, _)| word)
}

fn completions(it: &PrintedObject<'_>) -> String {
    let succeeded = it.int("status.succeeded");
    match (it.at("spec.completions").and_then(Value::as_int), it.int("spec.parallelism")) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, at_once) if at_once > 1 => format!("{succeeded}/1 of {at_once}"),
        (None, _) => format!("{succeeded}/1"),
    }
}

fn duration(it: &PrintedObject<'_>) -> String {
    let Some(started) = it.instant("status.startTime") else { return String::new() };
    age::length(it.instant("status.completionTime").unwrap_or(it.now).saturating_sub(started))
}

/// Cells of a cron job.
pub fn cron_job(it: &PrintedObject<'_>) -> Vec<Value> {
    let (names, images) = containers(it.at("spec.jobTemplate.spec.template.spec"));
    let suspended = match it.flag("spec.suspend") {
        None => UNSET,
        Some(true) => "True",
        Some(false) => "False",
    };
    let last = it.at("status.lastScheduleTime").map(|_| it.since("status.lastScheduleTime"));
    cells![
        it.name(),
        it.text("spec.schedule"),
        it.at("spec.timeZone").and_then(Value::as_str).unwrap_or(NONE),
        suspended,
        it.count("status.active"),
        last.unwrap_or_else(|| NONE.to_owned()),
        it.age(),
        names,
        images,
        selector(it.at("spec.jobTemplate.spec.selector"))
    ]
}

#[cfg(test)]
mod tests {
    use crate::print::testing::shows;

    /// Checks status, completions and duration.
    #[track_caller]
    fn job_shows(meta: &str, spec: &str, status: &str, expected: [&str; 3]) {
        let object =
            format!(r#"{{"metadata":{{"name":"j"{meta}}},"spec":{{{spec}}},"status":{{{status}}}}}"#);
        let [word, completions, duration] = expected;
        let row = format!(r#"["j","{word}","{completions}","{duration}","<unknown>","","","<none>"]"#);
        shows("batch", "Job", &object, &row);
    }

    #[test]
    fn jobs_tell_how_far_they_are() {
        job_shows("", r#""completions":5"#, r#""succeeded":2"#, ["Running", "2/5", ""]);
        job_shows("", r#""parallelism":1"#, "", ["Running", "0/1", ""]);
        job_shows("", r#""parallelism":3"#, r#""succeeded":1"#, ["Running", "1/1 of 3", ""]);
        let started = r#""startTime":"2024-05-01T11:10:00Z""#;
        job_shows("", "", started, ["Running", "0/1", "60m"]);
        let ended = format!(r#"{started},"completionTime":"2024-05-01T11:11:30Z""#);
        job_shows("", "", &ended, ["Running", "0/1", "90s"]);
    }

    #[test]
    fn the_first_word_that_is_true_counts() {
        let going = r#","deletionTimestamp":"2024-05-01T12:09:00Z""#;
        let with = |kinds: &[&str]| {
            let all: Vec<String> =
                kinds.iter().map(|kind| format!(r#"{{"type":"{kind}","status":"True"}}"#)).collect();
            format!(r#""conditions":[{{"type":"Other","status":"True"}},{}]"#, all.join(","))
        };
        for (meta, kinds, word) in [
            (going, &["Complete", "Failed"][..], "Complete"),
            (going, &["Suspended", "Failed"], "Failed"),
            (going, &["Suspended"], "Terminating"),
            ("", &["FailureTarget", "Suspended"], "Suspended"),
            ("", &["FailureTarget"], "FailureTarget"),
        ] {
            job_shows(meta, "", &with(kinds), [word, "0/1", ""]);
        }
        let not_true = r#""conditions":[{"type":"Complete","status":"False"}]"#;
        job_shows("", "", not_true, ["Running", "0/1", ""]);
    }

    #[test]
    fn cron_jobs_tell_when_they_last_ran() {
        let template = r#""jobTemplate":{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"i"}]}},
            "selector":{"matchLabels":{"a":"b"}}}}"#;
        shows(
            "batch",
            "CronJob",
            &format!(
                r#"{{"metadata":{{"name":"c"}},"spec":{{"schedule":"* * * * *","timeZone":"Etc/UTC","suspend":false,{template}}},
                    "status":{{"active":[{{}},{{}}],"lastScheduleTime":"2024-05-01T12:09:30Z"}}}}"#
            ),
            r#"["c","* * * * *","Etc/UTC","False",2,"30s","<unknown>","c","i","a=b"]"#,
        );
        shows(
            "batch",
            "CronJob",
            r#"{"spec":{"suspend":true}}"#,
            r#"["","","<none>","True",0,"<none>","<unknown>","","","<none>"]"#,
        );
        shows(
            "batch",
            "CronJob",
            "{}",
            r#"["","","<none>","<unset>",0,"<none>","<unknown>","","","<none>"]"#,
        );
    }
}
