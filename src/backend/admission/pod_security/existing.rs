//! Warnings about existing pods, for changes that raise the standard of a namespace.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use pilothouse_actors::yield_every::YieldEvery;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::object::Object;

use crate::limits::{PODS_WARNED_ABOUT, PODS_WARNED_ABOUT_WITHIN};

use super::super::Write;
use super::super::lookup::PODS;
use super::checks::Findings;
use super::config::Configuration;
use super::levels::Standard;
use super::pod::{Pod, plural};

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
    let deadline = write.backend.clock.moment().plus(PODS_WARNED_ABOUT_WITHIN);
    let mut waiting: VecDeque<&Arc<Object>> = snapshot.scan(Some(namespace), Bound::Unbounded).collect();
    let mut left = waiting.len();
    let mut tally = Tally { total: left, ..Tally::default() };
    let mut controllers = HashSet::new();
    let mut turn = YieldEvery::new(PODS_PER_TURN);
    while let Some(object) = waiting.pop_front() {
        turn.worked(1).await;
        let is_first_round = left > 0;
        left = left.saturating_sub(1);
        let Ok(value) = PODS.read(write, object) else { continue };
        let pod = Pod::of(&value, configuration.relaxed);
        if configuration.exempts_runtime(&pod) {
            tally.total -= 1;
        } else if is_first_round && controller(&value).is_some_and(|uid| !controllers.insert(uid.to_owned()))
        {
            waiting.push_back(object);
        } else {
            tally.add(meta::name(&value), &Findings::of(&pod, standard));
        }
        if tally.checked >= PODS_WARNED_ABOUT || write.backend.clock.moment() > deadline {
            break;
        }
    }
    tally.told(namespace, standard)
}

/// The uid of the controller of a pod.
fn controller(pod: &Value) -> Option<&str> {
    let owners = meta::of(pod).get("ownerReferences").map(Value::items).unwrap_or_default();
    let controls = |owner: &&Value| owner.get("controller").and_then(Value::as_bool) == Some(true);
    owners.iter().find(controls).map(|owner| owner.str("uid"))
}

/// The results so far.
#[derive(Default)]
struct Tally {
    total: usize,
    checked: usize,
    /// By violation: the first pod's name, and the number of pods.
    failing: BTreeMap<String, (String, usize)>,
}

impl Tally {
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

    fn told(self, namespace: &str, standard: Standard) -> Vec<String> {
        let Tally { total, checked, failing } = self;
        let mut told = Vec::new();
        if checked < total {
            told.push(format!(
                "new PodSecurity enforce level only checked against the first {checked} of {total} existing pods"
            ));
        }
        if !failing.is_empty() {
            told.push(format!(
                "existing pods in namespace \"{namespace}\" violate the new PodSecurity enforce level \"{standard}\""
            ));
        }
        let mut pods: Vec<String> = failing
            .into_iter()
            .map(|(reasons, (name, count))| match count - 1 {
                0 => format!("{name}: {reasons}"),
                others => format!("{name} (and {others} other {}): {reasons}", plural("pod", "pods", others)),
            })
            .collect();
        pods.sort_unstable();
        told.append(&mut pods);
        told
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
        Findings::of(&Pod::of(&pod, false), STANDARD)
    }

    #[test]
    fn pods_that_fail_alike_are_told_together() {
        let mut tally = Tally { total: 9, ..Tally::default() };
        let windows = {
            let mut pod = Value::object();
            pod.entry("spec").entry("securityContext").entry("windowsOptions").set("hostProcess", true);
            Findings::of(&Pod::of(&pod, false), STANDARD)
        };
        for (name, findings) in [
            ("c", &failing("hostPID")),
            ("b", &failing("hostIPC")),
            ("d", &failing("hostIPC")),
            ("z", &windows),
            ("y", &windows),
            ("fine", &Findings::default()),
        ] {
            tally.add(name, findings);
        }
        assert_eq!(
            tally.told("n", STANDARD),
            [
                "new PodSecurity enforce level only checked against the first 6 of 9 existing pods",
                "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"",
                "b (and 2 other pods): host namespaces",
                "y (and 1 other pod): hostProcess",
            ]
        );
        assert!(Tally::default().told("n", STANDARD).is_empty());
    }

    #[test]
    fn one_pod_of_a_controller_stands_for_all() {
        let mut pod = Value::object();
        let mut owner = Value::object();
        owner.set("uid", "u");
        pod.entry("metadata").set("ownerReferences", vec![owner.clone()]);
        assert_eq!(controller(&pod), None, "an owner that does not control");
        owner.set("controller", true);
        pod.entry("metadata").set("ownerReferences", vec![owner]);
        assert_eq!(controller(&pod), Some("u"));
    }
}
