//! Warnings about existing pods, for changes that raise the standard of a namespace.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use pilothouse_actors::yield_every::YieldEvery;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::object::Object;

use crate::limits::{POD_WARNINGS_CHECKED, POD_WARNINGS_TIMEOUT};

use super::super::Write;
use super::super::lookup::PODS;
use super::checks::Findings;
use super::config::Configuration;
use super::levels::Standard;
use super::pod::{Pod, pluralize};

/// Pods that are checked before the worker's other requests get a turn.
const PODS_PER_TURN: usize = 16;

/// Warnings about pods that violate a standard. Pods of one controller are alike, so one per controller is checked first.
pub async fn warnings(
    configuration: &Configuration,
    write: &Write<'_>,
    namespace: &str,
    standard: Standard,
) -> Vec<String> {
    let Ok(snapshot) = PODS.snapshot(write).await else {
        return vec!["failed to list pods while checking new PodSecurity enforce level".to_owned()];
    };
    let deadline = write.backend.clock.moment().plus(POD_WARNINGS_TIMEOUT);
    let mut queue: VecDeque<&Arc<Object>> = snapshot.scan(Some(namespace), Bound::Unbounded).collect();
    let mut unseen = queue.len();
    let mut report = Report { total: unseen, ..Report::default() };
    let mut controllers = HashSet::new();
    let mut turn = YieldEvery::new(PODS_PER_TURN);
    while let Some(object) = queue.pop_front() {
        turn.worked(1).await;
        let is_first_round = unseen > 0;
        unseen = unseen.saturating_sub(1);
        let Ok(value) = PODS.read(write, object) else { continue };
        let pod = Pod::new(&value, configuration.relaxed);
        if configuration.is_runtime_exempt(&pod) {
            report.total -= 1;
        } else if is_first_round
            && controller_uid(&value).is_some_and(|uid| !controllers.insert(uid.to_owned()))
        {
            queue.push_back(object);
        } else {
            report.add(meta::name(&value), &Findings::evaluate(&pod, standard));
        }
        if report.checked >= POD_WARNINGS_CHECKED || write.backend.clock.moment() > deadline {
            break;
        }
    }
    report.into_warnings(namespace, standard)
}

/// The uid of the controller of a pod.
fn controller_uid(pod: &Value) -> Option<&str> {
    let owners = meta::metadata(pod).get("ownerReferences").map(Value::items).unwrap_or_default();
    let is_controller = |owner: &&Value| owner.get("controller").and_then(Value::as_bool) == Some(true);
    owners.iter().find(is_controller).map(|owner| owner.str("uid"))
}

/// The results so far.
#[derive(Default)]
struct Report {
    total: usize,
    checked: usize,
    /// By violation: the first pod's name, and the number of pods.
    failing: BTreeMap<String, (String, usize)>,
}

impl Report {
    fn add(&mut self, name: &str, findings: &Findings) {
        self.checked += 1;
        if findings.is_empty() {
            return;
        }
        let (first, count) = self.failing.entry(findings.reasons()).or_insert_with(|| (name.to_owned(), 0));
        *count += 1;
        if name < first.as_str() {
            name.clone_into(first);
        }
    }

    fn into_warnings(self, namespace: &str, standard: Standard) -> Vec<String> {
        let Report { total, checked, failing } = self;
        let mut warnings = Vec::new();
        if checked < total {
            warnings.push(format!(
                "new PodSecurity enforce level only checked against the first {checked} of {total} existing pods"
            ));
        }
        if !failing.is_empty() {
            warnings.push(format!(
                "existing pods in namespace \"{namespace}\" violate the new PodSecurity enforce level \"{standard}\""
            ));
        }
        let mut pods: Vec<String> = failing
            .into_iter()
            .map(|(reasons, (name, count))| match count - 1 {
                0 => format!("{name}: {reasons}"),
                others => {
                    format!("{name} (and {others} other {}): {reasons}", pluralize("pod", "pods", others))
                }
            })
            .collect();
        pods.sort_unstable();
        warnings.append(&mut pods);
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::super::levels::{Level, Version};
    use super::*;

    const STANDARD: Standard = Standard { level: Level::Baseline, version: Version::Latest };

    fn failing(field: &str) -> Findings {
        let mut pod = Value::object();
        pod.entry("spec").set(field, true);
        Findings::evaluate(&Pod::new(&pod, false), STANDARD)
    }

    #[test]
    fn warnings_group_pods_by_violation() {
        let mut report = Report { total: 9, ..Report::default() };
        let windows = {
            let mut pod = Value::object();
            pod.entry("spec").entry("securityContext").entry("windowsOptions").set("hostProcess", true);
            Findings::evaluate(&Pod::new(&pod, false), STANDARD)
        };
        for (name, findings) in [
            ("c", &failing("hostPID")),
            ("b", &failing("hostIPC")),
            ("d", &failing("hostIPC")),
            ("z", &windows),
            ("y", &windows),
            ("fine", &Findings::default()),
        ] {
            report.add(name, findings);
        }
        assert_eq!(
            report.into_warnings("n", STANDARD),
            [
                "new PodSecurity enforce level only checked against the first 6 of 9 existing pods",
                "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"",
                "b (and 2 other pods): host namespaces",
                "y (and 1 other pod): hostProcess",
            ]
        );
        assert!(Report::default().into_warnings("n", STANDARD).is_empty());
    }

    #[test]
    fn controller_uid_of_pod() {
        let mut pod = Value::object();
        let mut owner = Value::object();
        owner.set("uid", "u");
        pod.entry("metadata").set("ownerReferences", vec![owner.clone()]);
        assert_eq!(controller_uid(&pod), None, "an owner that does not control");
        owner.set("controller", true);
        pod.entry("metadata").set("ownerReferences", vec![owner]);
        assert_eq!(controller_uid(&pod), Some("u"));
    }
}
