//! Rows of pods: the status column is computed from the states of all containers.

use std::collections::BTreeMap;

use pilothouse_apimachinery::value::Value;

use super::cells::{NONE, PrintedObject, cells, instant, int, is_condition_true, items, text, text_or};

/// The completion of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The final phase.
    pub reason: &'static str,
    /// The explanation for people.
    pub message: &'static str,
}

/// The completion of a pod, if it has finished.
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
pub fn pod(object: &PrintedObject<'_>) -> Vec<Value> {
    let summary = Summary::new(object);
    let restarts = match summary.restarts.last {
        Some(last) if summary.restarts.count != 0 => {
            format!("{} ({} ago)", summary.restarts.count, object.ages.since(Some(last)))
        }
        _ => summary.restarts.count.to_string(),
    };
    let ip = object.items("status.podIPs").first().map(|ip| ip.str("ip")).unwrap_or_default();
    cells![
        object.name(),
        format!("{}/{}", summary.ready, summary.containers),
        summary.status,
        restarts,
        object.age(),
        text_or(ip, NONE),
        text_or(object.text("spec.nodeName"), NONE),
        text_or(object.text("status.nominatedNodeName"), NONE),
        readiness_gates(object),
    ]
}

/// The summary of the states of all containers.
struct Summary {
    status: String,
    containers: usize,
    ready: usize,
    restarts: Restarts,
}

/// The number of container restarts, and the time of the last one.
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
    fn new(object: &PrintedObject<'_>) -> Summary {
        let conditions = object.items("status.conditions");
        let is_gated = conditions.iter().any(|condition| {
            condition.str("type") == "PodScheduled" && condition.str("reason") == "SchedulingGated"
        });
        let phase = object.text("status.phase");
        let status = if is_gated { "SchedulingGated" } else { text_or(object.text("status.reason"), phase) };
        let sidecars = object.items("spec.initContainers").iter().filter(|container| is_sidecar(container));
        let mut summary = Summary {
            status: status.to_owned(),
            containers: object.items("spec.containers").len() + sidecars.count(),
            ready: 0,
            restarts: Restarts::default(),
        };
        let (is_initializing, sidecar_restarts) = summary.add_init_containers(object);
        // A pod that has been initialized once is not initializing again when an init container is restarted.
        if !is_initializing || is_condition_true(conditions, "Initialized") {
            summary.restarts = sidecar_restarts;
            summary.add_containers(object, conditions);
        }
        if object.is_terminating() && object.text("status.reason") == "NodeLost" {
            summary.status = "Unknown".to_owned();
        } else if object.is_terminating() && completion(object.value).is_none() {
            summary.status = "Terminating".to_owned();
        }
        summary
    }

    /// Adds the init containers up to the first that is not done. Returns whether there is one, and the restarts of sidecars.
    fn add_init_containers(&mut self, object: &PrintedObject<'_>) -> (bool, Restarts) {
        let specs = object.items("spec.initContainers");
        // Of several with one name the last counts.
        let sidecars: BTreeMap<&str, bool> =
            specs.iter().map(|spec| (spec.str("name"), is_sidecar(spec))).collect();
        let mut sidecar_restarts = Restarts::default();
        for (position, status) in object.items("status.initContainerStatuses").iter().enumerate() {
            self.restarts.add(status);
            let is_sidecar_container = sidecars.get(status.str("name")).copied().unwrap_or_default();
            if is_sidecar_container {
                sidecar_restarts.add(status);
            }
            let terminated = status.get_path(&["state", "terminated"]);
            if terminated.is_some_and(|terminated| int(terminated, "exitCode") == 0) {
                continue;
            }
            if is_sidecar_container && status.get("started").and_then(Value::as_bool) == Some(true) {
                self.ready += usize::from(is_ready(status));
                continue;
            }
            let waiting_reason = text(status, "state.waiting.reason");
            self.status = match terminated {
                Some(terminated) => format!("Init:{}", termination_reason(terminated)),
                None if !waiting_reason.is_empty() && waiting_reason != "PodInitializing" => {
                    format!("Init:{waiting_reason}")
                }
                None => format!("Init:{position}/{}", specs.len()),
            };
            return (true, sidecar_restarts);
        }
        (false, sidecar_restarts)
    }

    /// Adds the containers. The first one decides the status.
    fn add_containers(&mut self, object: &PrintedObject<'_>, conditions: &[Value]) {
        let mut has_running = false;
        for status in object.items("status.containerStatuses").iter().rev() {
            self.restarts.add(status);
            let waiting_reason = text(status, "state.waiting.reason");
            if !waiting_reason.is_empty() {
                self.status = waiting_reason.to_owned();
            } else if let Some(terminated) = status.get_path(&["state", "terminated"]) {
                self.status = termination_reason(terminated);
            } else if is_ready(status) && status.get_path(&["state", "running"]).is_some() {
                has_running = true;
                self.ready += 1;
            }
        }
        if self.status == "Completed" && has_running {
            self.status =
                if is_any_condition_true(conditions, "Ready") { "Running" } else { "NotReady" }.to_owned();
        }
    }
}

/// The reason that a container terminated.
fn termination_reason(terminated: &Value) -> String {
    match (terminated.str("reason"), int(terminated, "signal")) {
        ("", 0) => format!("ExitCode:{}", int(terminated, "exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn is_ready(status: &Value) -> bool {
    status.get("ready").and_then(Value::as_bool) == Some(true)
}

/// Whether an init container is a sidecar, which runs as long as the pod.
fn is_sidecar(container: &Value) -> bool {
    container.str("restartPolicy") == "Always"
}

fn is_any_condition_true(conditions: &[Value], kind: &str) -> bool {
    conditions.iter().any(|condition| condition.str("type") == kind && condition.str("status") == "True")
}

/// The number of true readiness gates, of all.
fn readiness_gates(object: &PrintedObject<'_>) -> String {
    let gates = items(object.value, "spec.readinessGates");
    if gates.is_empty() {
        return NONE.to_owned();
    }
    let mut is_true: BTreeMap<&str, bool> = BTreeMap::new();
    for condition in object.items("status.conditions") {
        // The first of a type counts.
        is_true.entry(condition.str("type")).or_insert_with(|| condition.str("status") == "True");
    }
    let passed = gates.iter().filter(|gate| is_true.get(gate.str("conditionType")) == Some(&true));
    format!("{}/{}", passed.count(), gates.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::print::testing::{assert_cells, value};

    /// Checks the columns ready, status and restarts of a pod with these parts.
    #[track_caller]
    fn assert_pod_cells(spec: &str, status: &str, meta: &str, expected: [&str; 3]) {
        let pod = format!(
            r#"{{"metadata":{{"name":"p","creationTimestamp":"2024-05-01T12:00:00Z"{meta}}},
                "spec":{{{spec}}},"status":{{{status}}}}}"#
        );
        let [ready, status, restarts] = expected;
        let cells =
            format!(r#"["p","{ready}","{status}","{restarts}","10m","<none>","<none>","<none>","<none>"]"#);
        assert_cells("", "Pod", &pod, &cells);
    }

    const ONE: &str = r#""containers":[{"name":"c"}]"#;
    const TWO: &str = r#""containers":[{"name":"c"},{"name":"d"}]"#;
    const INIT: &str = r#""containers":[{"name":"c"}],"initContainers":[{"name":"i"},{"name":"j"}]"#;
    const SIDECAR: &str = r#""containers":[{"name":"c"}],"initContainers":[{"name":"i","restartPolicy":"Always"},{"name":"j"}]"#;

    #[test]
    fn pod_status_is_the_phase_or_reason() {
        assert_pod_cells(ONE, r#""phase":"Pending""#, "", ["0/1", "Pending", "0"]);
        assert_pod_cells(ONE, r#""phase":"Failed","reason":"Evicted""#, "", ["0/1", "Evicted", "0"]);
        assert_pod_cells(
            ONE,
            r#""phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"SchedulingGated"}]"#,
            "",
            ["0/1", "SchedulingGated", "0"],
        );
        assert_pod_cells(
            ONE,
            r#""phase":"Running","containerStatuses":[{"name":"c","ready":true,"state":{"running":{}}}]"#,
            "",
            ["1/1", "Running", "0"],
        );
    }

    #[test]
    fn pod_status_is_decided_by_the_first_container() {
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
            assert_pod_cells(TWO, &status(first, second), "", expected);
        }
        let ready = format!(
            r#"{},"conditions":[{{"type":"Ready","status":"True"}}]"#,
            status(running, r#""state":{"terminated":{"reason":"Completed"}}"#)
        );
        assert_pod_cells(TWO, &ready, "", ["1/2", "Running", "0"]);
    }

    #[test]
    fn pod_status_is_init_while_init_containers_run() {
        let done = r#"{"name":"i","state":{"terminated":{"exitCode":0}}}"#;
        for (statuses, expected) in [
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
            assert_pod_cells(INIT, &status, "", ["0/1", expected, "0"]);
        }
        // Once initialized, the containers decide again.
        let status = r#""phase":"Running","conditions":[{"type":"Initialized","status":"True"}],
            "initContainerStatuses":[{"name":"i","restartCount":4,"state":{"running":{}}}],
            "containerStatuses":[{"name":"c","ready":true,"restartCount":1,"state":{"running":{}}}]"#;
        assert_pod_cells(INIT, status, "", ["1/1", "Init:0/2", "1"]);
    }

    #[test]
    fn ready_and_restarts_include_sidecars() {
        let status = r#""phase":"Running","initContainerStatuses":[
                {"name":"i","started":true,"ready":true,"restartCount":2,
                    "lastState":{"terminated":{"finishedAt":"2024-05-01T12:05:00Z"}},"state":{"running":{}}},
                {"name":"j","restartCount":7,"state":{"terminated":{"exitCode":0}}}],
            "containerStatuses":[{"name":"c","ready":true,"restartCount":1,
                "lastState":{"terminated":{"finishedAt":"2024-05-01T12:01:00Z"}},"state":{"running":{}}}]"#;
        assert_pod_cells(SIDECAR, status, "", ["2/2", "Running", "3 (5m ago)"]);
        let starting = r#""phase":"Pending","initContainerStatuses":[
            {"name":"i","restartCount":2,"state":{"running":{}}}]"#;
        assert_pod_cells(SIDECAR, starting, "", ["0/2", "Init:0/2", "2"]);
    }

    #[test]
    fn restarts_show_age_of_the_last_one() {
        let status = |finished: &str| {
            format!(
                r#""phase":"Running","containerStatuses":[{{"name":"c","restartCount":6,
                    "lastState":{{"terminated":{{"exitCode":1{finished}}}}},"state":{{"running":{{}}}},"ready":true}}]"#
            )
        };
        assert_pod_cells(
            ONE,
            &status(r#","finishedAt":"2024-05-01T12:05:00Z""#),
            "",
            ["1/1", "Running", "6 (5m ago)"],
        );
        assert_pod_cells(ONE, &status(""), "", ["1/1", "Running", "6"]);
    }

    #[test]
    fn terminating_pod_status_unless_finished() {
        let terminating = r#","deletionTimestamp":"2024-05-01T12:09:00Z""#;
        assert_pod_cells(ONE, r#""phase":"Running""#, terminating, ["0/1", "Terminating", "0"]);
        assert_pod_cells(
            ONE,
            r#""phase":"Running","reason":"NodeLost""#,
            terminating,
            ["0/1", "Unknown", "0"],
        );
        assert_pod_cells(ONE, r#""phase":"Succeeded""#, terminating, ["0/1", "Succeeded", "0"]);
    }

    #[test]
    fn wide_pod_cells_show_addresses_node_and_readiness_gates() {
        assert_cells(
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
    fn finished_pods_have_a_completion() {
        let completion_of =
            |phase: &str| completion(&value(&format!(r#"{{"status":{{"phase":"{phase}"}}}}"#)));
        assert_eq!(
            completion_of("Succeeded").map(|completion| completion.message),
            Some("The pod has completed successfully.")
        );
        assert_eq!(
            completion_of("Failed").map(|completion| (completion.reason, completion.message)),
            Some(("Failed", "The pod failed."))
        );
        assert_eq!(completion_of("Running"), None);
    }
}
