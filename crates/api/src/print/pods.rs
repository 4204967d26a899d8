//! Rows of pods: the status column is computed from the states of all containers.

use std::collections::BTreeMap;

use pilothouse_apimachinery::value::Value;

use super::cells::{NONE, PrintedObject, cells, holds, instant, int, items, or, text};
use crate::age;

/// How a pod has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The phase it ended in.
    pub reason: &'static str,
    /// The same for a person.
    pub message: &'static str,
}

/// How the pod has ended, if it has.
pub fn completion(pod: &Value) -> Option<Completion> {
    match text(pod, "status.phase") {
        "Succeeded" => {
            Some(Completion { reason: "Succeeded", message: "The pod has completed successfully." })
        }
        "Failed" => Some(Completion { reason: "Failed", message: "The pod failed." }),
        _ => None,
    }
}

/// Cells of a pod.
pub fn pod(it: &PrintedObject<'_>) -> Vec<Value> {
    let summary = Summary::of(it);
    let restarts = match summary.restarts.last {
        Some(last) if summary.restarts.count != 0 => {
            format!("{} ({} ago)", summary.restarts.count, age::since(Some(last), it.now))
        }
        _ => summary.restarts.count.to_string(),
    };
    let ip = it.items("status.podIPs").first().map(|ip| ip.str("ip")).unwrap_or_default();
    cells![
        it.name(),
        format!("{}/{}", summary.ready, summary.containers),
        summary.word,
        restarts,
        it.age(),
        or(ip, NONE),
        or(it.text("spec.nodeName"), NONE),
        or(it.text("status.nominatedNodeName"), NONE),
        readiness_gates(it),
    ]
}

/// What the states of all containers come to.
struct Summary {
    word: String,
    containers: usize,
    ready: usize,
    restarts: Restarts,
}

/// How often containers were started again, and when the last of them had ended.
#[derive(Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: Option<i64>,
}

impl Restarts {
    fn add(&mut self, status: &Value) {
        self.count = self.count.saturating_add(int(status, "restartCount"));
        self.last = self.last.max(instant(status, "lastState.terminated.finishedAt"));
    }
}

impl Summary {
    fn of(it: &PrintedObject<'_>) -> Summary {
        let conditions = it.items("status.conditions");
        let gated = conditions
            .iter()
            .any(|found| found.str("type") == "PodScheduled" && found.str("reason") == "SchedulingGated");
        let phase = it.text("status.phase");
        let word = if gated { "SchedulingGated" } else { or(it.text("status.reason"), phase) };
        let sidecars = it.items("spec.initContainers").iter().filter(|container| is_sidecar(container));
        let mut summary = Summary {
            word: word.to_owned(),
            containers: it.items("spec.containers").len() + sidecars.count(),
            ready: 0,
            restarts: Restarts::default(),
        };
        let (held_up, of_sidecars) = summary.of_init_containers(it);
        // A pod that has been initialized once is not initializing again when an init container is restarted.
        if !held_up || holds(conditions, "Initialized") {
            summary.restarts = of_sidecars;
            summary.of_containers(it, conditions);
        }
        if it.is_terminating() && it.text("status.reason") == "NodeLost" {
            summary.word = "Unknown".to_owned();
        } else if it.is_terminating() && completion(it.object).is_none() {
            summary.word = "Terminating".to_owned();
        }
        summary
    }

    /// Takes in the init containers up to the first that holds the others up. Tells whether there is one, and the
    /// restarts of those that go on running beside the containers.
    fn of_init_containers(&mut self, it: &PrintedObject<'_>) -> (bool, Restarts) {
        let specs = it.items("spec.initContainers");
        // The last of a name counts.
        let sidecars: BTreeMap<&str, bool> =
            specs.iter().map(|spec| (spec.str("name"), is_sidecar(spec))).collect();
        let mut of_sidecars = Restarts::default();
        for (position, status) in it.items("status.initContainerStatuses").iter().enumerate() {
            self.restarts.add(status);
            let sidecar = sidecars.get(status.str("name")).copied().unwrap_or_default();
            if sidecar {
                of_sidecars.add(status);
            }
            let ended = status.at(&["state", "terminated"]);
            if ended.is_some_and(|ended| int(ended, "exitCode") == 0) {
                continue;
            }
            if sidecar && status.get("started").and_then(Value::as_bool) == Some(true) {
                self.ready += usize::from(is_ready(status));
                continue;
            }
            let waits_for = text(status, "state.waiting.reason");
            self.word = match ended {
                Some(ended) => format!("Init:{}", end(ended)),
                None if !waits_for.is_empty() && waits_for != "PodInitializing" => {
                    format!("Init:{waits_for}")
                }
                None => format!("Init:{position}/{}", specs.len()),
            };
            return (true, of_sidecars);
        }
        (false, of_sidecars)
    }

    /// Takes in the containers. The first one has the last word.
    fn of_containers(&mut self, it: &PrintedObject<'_>, conditions: &[Value]) {
        let mut has_running = false;
        for status in it.items("status.containerStatuses").iter().rev() {
            self.restarts.add(status);
            let waits_for = text(status, "state.waiting.reason");
            if !waits_for.is_empty() {
                self.word = waits_for.to_owned();
            } else if let Some(ended) = status.at(&["state", "terminated"]) {
                self.word = end(ended);
            } else if is_ready(status) && status.at(&["state", "running"]).is_some() {
                has_running = true;
                self.ready += 1;
            }
        }
        if self.word == "Completed" && has_running {
            self.word = if is_true_in_any(conditions, "Ready") { "Running" } else { "NotReady" }.to_owned();
        }
    }
}

/// Why a container ended.
fn end(ended: &Value) -> String {
    match (ended.str("reason"), int(ended, "signal")) {
        ("", 0) => format!("ExitCode:{}", int(ended, "exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn is_ready(status: &Value) -> bool {
    status.get("ready").and_then(Value::as_bool) == Some(true)
}

/// Whether an init container goes on running beside the containers.
fn is_sidecar(container: &Value) -> bool {
    container.str("restartPolicy") == "Always"
}

fn is_true_in_any(conditions: &[Value], kind: &str) -> bool {
    conditions.iter().any(|found| found.str("type") == kind && found.str("status") == "True")
}

/// How many of the conditions that must hold besides readiness do.
fn readiness_gates(it: &PrintedObject<'_>) -> String {
    let gates = items(it.object, "spec.readinessGates");
    if gates.is_empty() {
        return NONE.to_owned();
    }
    let mut holds: BTreeMap<&str, bool> = BTreeMap::new();
    for found in it.items("status.conditions") {
        // The first of a type counts.
        holds.entry(found.str("type")).or_insert_with(|| found.str("status") == "True");
    }
    let held = gates.iter().filter(|gate| holds.get(gate.str("conditionType")) == Some(&true));
    format!("{}/{}", held.count(), gates.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::print::testing::{shows, value};

    /// Checks the columns ready, status and restarts of a pod with these parts.
    #[track_caller]
    fn sums_up(spec: &str, status: &str, meta: &str, expected: [&str; 3]) {
        let pod = format!(
            r#"{{"metadata":{{"name":"p","creationTimestamp":"2024-05-01T12:00:00Z"{meta}}},
                "spec":{{{spec}}},"status":{{{status}}}}}"#
        );
        let [ready, word, restarts] = expected;
        let cells =
            format!(r#"["p","{ready}","{word}","{restarts}","10m","<none>","<none>","<none>","<none>"]"#);
        shows("", "Pod", &pod, &cells);
    }

    const ONE: &str = r#""containers":[{"name":"c"}]"#;
    const TWO: &str = r#""containers":[{"name":"c"},{"name":"d"}]"#;
    const INIT: &str = r#""containers":[{"name":"c"}],"initContainers":[{"name":"i"},{"name":"j"}]"#;
    const SIDECAR: &str = r#""containers":[{"name":"c"}],"initContainers":[{"name":"i","restartPolicy":"Always"},{"name":"j"}]"#;

    #[test]
    fn the_phase_is_the_word_until_something_says_more() {
        sums_up(ONE, r#""phase":"Pending""#, "", ["0/1", "Pending", "0"]);
        sums_up(ONE, r#""phase":"Failed","reason":"Evicted""#, "", ["0/1", "Evicted", "0"]);
        sums_up(
            ONE,
            r#""phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"SchedulingGated"}]"#,
            "",
            ["0/1", "SchedulingGated", "0"],
        );
        sums_up(
            ONE,
            r#""phase":"Running","containerStatuses":[{"name":"c","ready":true,"state":{"running":{}}}]"#,
            "",
            ["1/1", "Running", "0"],
        );
    }

    #[test]
    fn the_first_container_has_the_last_word() {
        let status = |first: &str, second: &str| {
            format!(
                r#""phase":"Running","containerStatuses":[{{"name":"c",{first}}},{{"name":"d",{second}}}]"#
            )
        };
        let running = r#""ready":true,"state":{"running":{}}"#;
        for (first, second, expected) in [
            (
                r#""state":{"waiting":{"reason":"CrashLoopBackOff"}}"#,
                r#""state":{"terminated":{"reason":"Error","exitCode":1}}"#,
                ["0/2", "CrashLoopBackOff", "0"],
            ),
            (running, r#""state":{"terminated":{"exitCode":3}}"#, ["1/2", "ExitCode:3", "0"]),
            (running, r#""state":{"terminated":{"exitCode":137,"signal":9}}"#, ["1/2", "Signal:9", "0"]),
            (running, r#""state":{"terminated":{"reason":"Completed"}}"#, ["1/2", "NotReady", "0"]),
            (r#""ready":true"#, r#""state":{"waiting":{}}"#, ["0/2", "Running", "0"]),
        ] {
            sums_up(TWO, &status(first, second), "", expected);
        }
        let ready = format!(
            r#"{},"conditions":[{{"type":"Ready","status":"True"}}]"#,
            status(running, r#""state":{"terminated":{"reason":"Completed"}}"#)
        );
        sums_up(TWO, &ready, "", ["1/2", "Running", "0"]);
    }

    #[test]
    fn an_init_container_may_hold_the_pod_up() {
        let done = r#"{"name":"i","state":{"terminated":{"exitCode":0}}}"#;
        for (statuses, word) in [
            (r#"{"name":"i","state":{"running":{}}}"#.to_owned(), "Init:0/2"),
            (
                format!(r#"{done},{{"name":"j","state":{{"waiting":{{"reason":"PodInitializing"}}}}}}"#),
                "Init:1/2",
            ),
            (
                format!(r#"{done},{{"name":"j","state":{{"waiting":{{"reason":"ImagePullBackOff"}}}}}}"#),
                "Init:ImagePullBackOff",
            ),
            (
                r#"{"name":"i","state":{"terminated":{"reason":"Error","exitCode":1}}}"#.to_owned(),
                "Init:Error",
            ),
            (r#"{"name":"i","state":{"terminated":{"exitCode":2}}}"#.to_owned(), "Init:ExitCode:2"),
            (
                r#"{"name":"i","state":{"terminated":{"exitCode":2,"signal":15}}}"#.to_owned(),
                "Init:Signal:15",
            ),
        ] {
            let status = format!(r#""phase":"Pending","initContainerStatuses":[{statuses}]"#);
            sums_up(INIT, &status, "", ["0/1", word, "0"]);
        }
        // Once initialized, what the containers do counts again.
        let status = r#""phase":"Running","conditions":[{"type":"Initialized","status":"True"}],
            "initContainerStatuses":[{"name":"i","restartCount":4,"state":{"running":{}}}],
            "containerStatuses":[{"name":"c","ready":true,"restartCount":1,"state":{"running":{}}}]"#;
        sums_up(INIT, status, "", ["1/1", "Init:0/2", "1"]);
    }

    #[test]
    fn sidecars_count_as_containers() {
        let status = r#""phase":"Running","initContainerStatuses":[
                {"name":"i","started":true,"ready":true,"restartCount":2,
                    "lastState":{"terminated":{"finishedAt":"2024-05-01T12:05:00Z"}},"state":{"running":{}}},
                {"name":"j","restartCount":7,"state":{"terminated":{"exitCode":0}}}],
            "containerStatuses":[{"name":"c","ready":true,"restartCount":1,
                "lastState":{"terminated":{"finishedAt":"2024-05-01T12:01:00Z"}},"state":{"running":{}}}]"#;
        sums_up(SIDECAR, status, "", ["2/2", "Running", "3 (5m ago)"]);
        let starting = r#""phase":"Pending","initContainerStatuses":[
            {"name":"i","restartCount":2,"state":{"running":{}}}]"#;
        sums_up(SIDECAR, starting, "", ["0/2", "Init:0/2", "2"]);
    }

    #[test]
    fn restarts_tell_when_the_last_was() {
        let status = |finished: &str| {
            format!(
                r#""phase":"Running","containerStatuses":[{{"name":"c","restartCount":6,
                    "lastState":{{"terminated":{{"exitCode":1{finished}}}}},"state":{{"running":{{}}}},"ready":true}}]"#
            )
        };
        sums_up(
            ONE,
            &status(r#","finishedAt":"2024-05-01T12:05:00Z""#),
            "",
            ["1/1", "Running", "6 (5m ago)"],
        );
        sums_up(ONE, &status(""), "", ["1/1", "Running", "6"]);
    }

    #[test]
    fn deletion_shows_unless_the_pod_has_ended() {
        let going = r#","deletionTimestamp":"2024-05-01T12:09:00Z""#;
        sums_up(ONE, r#""phase":"Running""#, going, ["0/1", "Terminating", "0"]);
        sums_up(ONE, r#""phase":"Running","reason":"NodeLost""#, going, ["0/1", "Unknown", "0"]);
        sums_up(ONE, r#""phase":"Succeeded""#, going, ["0/1", "Succeeded", "0"]);
    }

    #[test]
    fn wide_cells_tell_where_it_runs() {
        shows(
            "",
            "Pod",
            r#"{"metadata":{"name":"p"},"spec":{"nodeName":"n",
                "readinessGates":[{"conditionType":"a"},{"conditionType":"b"},{"conditionType":"c"}]},
                "status":{"podIPs":[{"ip":"10.0.0.1"},{"ip":"fd00::1"}],"nominatedNodeName":"m",
                "conditions":[{"type":"a","status":"True"},{"type":"b","status":"False"}]}}"#,
            r#"["p","0/0","","0","<unknown>","10.0.0.1","n","m","1/3"]"#,
        );
    }

    #[test]
    fn pods_that_have_ended_are_marked() {
        let ended = |phase: &str| completion(&value(&format!(r#"{{"status":{{"phase":"{phase}"}}}}"#)));
        assert_eq!(ended("Succeeded").map(|it| it.message), Some("The pod has completed successfully."));
        assert_eq!(ended("Failed").map(|it| (it.reason, it.message)), Some(("Failed", "The pod failed.")));
        assert_eq!(ended("Running"), None);
    }
}
