//! The usage of pods.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::resource_list::{self, ResourceList};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::core::resources::{COMPUTE, is_extended, is_huge_page, is_native, is_quota_huge_page};

use super::Features;
use super::usage::one;

/// The quota on pods in any state.
pub const COUNT: &str = "count/pods";
/// The quota on pods that are not finished.
const PODS: &str = "pods";

/// The resources that every container must specify if a quota names them. A legacy rule: later resources are not in it.
const MUST_SPECIFY: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

/// Whether pods use this quota resource: pods, compute resources, huge pages, and extended resources.
pub fn use_resource(name: &str) -> bool {
    matches!(name, COUNT | PODS)
        || COMPUTE.contains(&name)
        || is_quota_huge_page(name)
        || (!is_native(name) && name.starts_with("requests."))
}

/// The usage of a pod at a time, in seconds.
pub fn usage(pod: &Value, features: Features, now: i64) -> ResourceList {
    let mut used = ResourceList::from([(COUNT.to_owned(), one())]);
    if is_over(pod, now) {
        return used;
    }
    let statuses = if features.resized_pods { statuses(pod) } else { BTreeMap::new() };
    let mut requests = total(pod, "requests", &statuses, features);
    let mut limits = total(pod, "limits", &statuses, features);
    let overhead = resource_list::read(pod.at(&["spec", "overhead"]));
    resource_list::add(&mut requests, &overhead);
    // Overhead is not added to an unlimited resource.
    let overhead =
        overhead.into_iter().filter(|(name, _)| limits.get(name).is_some_and(|limit| !limit.is_zero()));
    let overhead: ResourceList = overhead.collect();
    resource_list::add(&mut limits, &overhead);
    resource_list::add(&mut used, &named(&requests, &limits));
    used
}

/// Requests and limits under the names of quotas.
fn named(requests: &ResourceList, limits: &ResourceList) -> ResourceList {
    let mut used = ResourceList::from([(PODS.to_owned(), one())]);
    for (name, amount) in requests {
        let of_nodes = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || is_huge_page(name);
        if of_nodes {
            used.insert(name.clone(), amount.clone());
        }
        if of_nodes || is_extended(name) {
            used.insert(format!("requests.{name}"), amount.clone());
        }
    }
    for name in ["cpu", "memory", "ephemeral-storage"] {
        if let Some(amount) = limits.get(name) {
            used.insert(format!("limits.{name}"), amount.clone());
        }
    }
    used
}

/// Whether the pod is finished or should be: one that hangs on a lost node must not block others.
pub fn is_over(pod: &Value, now: i64) -> bool {
    if matches!(pod.get("status").map(|status| status.str("phase")), Some("Failed" | "Succeeded")) {
        return true;
    }
    let meta = meta::of(pod);
    let grace = meta.get("deletionGracePeriodSeconds").and_then(Value::as_int);
    let going = meta.get("deletionTimestamp").and_then(Value::as_str);
    let going = going.and_then(|time| time::parse_seconds(time).ok());
    going.zip(grace).is_some_and(|(time, grace)| now > time.saturating_add(grace))
}

/// The container statuses by name.
fn statuses(pod: &Value) -> BTreeMap<&str, &Value> {
    let list = |name: &str| pod.at(&["status", name]).map(Value::items).unwrap_or_default();
    let all = list("containerStatuses").iter().chain(list("initContainerStatuses"));
    all.map(|status| (status.str("name"), status)).collect()
}

/// The requests or limits of a pod without its overhead.
fn total(pod: &Value, field: &str, statuses: &BTreeMap<&str, &Value>, features: Features) -> ResourceList {
    let infeasible = is_resize_infeasible(pod);
    let mut all = resource_list::together(pod, |container, lasting| {
        let wanted = resource_list::read(container.at(&["resources", field]));
        let running = statuses.get(container.str("name")).filter(|_| lasting);
        match running.filter(|status| status.get("resources").is_some()) {
            Some(status) => resized(wanted, status, field, infeasible),
            None => wanted,
        }
    });
    if features.pod_resources {
        let whole = resource_list::read(pod.at(&["spec", "resources", field]));
        all.extend(whole.into_iter().filter(|(name, _)| resource_list::is_for_whole_pods(name)));
    }
    all
}

/// The usage of a container during a resize: the maximum of the allocated and the requested resources. An infeasible request does
/// not count.
fn resized(wanted: ResourceList, status: &Value, field: &str, infeasible: bool) -> ResourceList {
    let mut held = if infeasible { ResourceList::new() } else { wanted };
    resource_list::raise(&mut held, &resource_list::read(status.at(&["resources", field])));
    if field == "requests" {
        resource_list::raise(&mut held, &resource_list::read(status.get("allocatedResources")));
    }
    held
}

fn is_resize_infeasible(pod: &Value) -> bool {
    let conditions = pod.at(&["status", "conditions"]).map(Value::items).unwrap_or_default();
    let pending = conditions.iter().find(|condition| condition.str("type") == "PodResizePending");
    pending.is_some_and(|condition| condition.str("reason") == "Infeasible")
}

/// The error for containers that do not specify a resource that a quota requires.
pub fn must_specify<'a>(
    pod: &Value,
    names: impl Iterator<Item = &'a str>,
    features: Features,
) -> Option<String> {
    let asks_as_whole = |field: &&str| {
        let asked = pod.at(&["spec", "resources", field]).and_then(Value::fields);
        asked.is_some_and(|asked| asked.keys().any(|name| resource_list::is_for_whole_pods(name)))
    };
    if features.pod_resources && ["requests", "limits"].iter().any(asks_as_whole) {
        return None;
    }
    let names: BTreeSet<&str> = names.filter(|name| MUST_SPECIFY.contains(name)).collect();
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for list in ["containers", "initContainers"] {
        for container in pod.at(&["spec", list]).map(Value::items).unwrap_or_default() {
            for name in names.iter().filter(|name| !says(container, name)) {
                missing.entry(name).or_default().insert(container.str("name"));
            }
        }
    }
    let parts: Vec<String> = missing
        .into_iter()
        .map(|(name, of)| format!("{name} for: {}", of.into_iter().collect::<Vec<_>>().join(",")))
        .collect();
    (!parts.is_empty()).then(|| format!("must specify {}", parts.join("; ")))
}

/// Whether a container specifies the resource of this quota name.
fn says(container: &Value, name: &str) -> bool {
    let (field, resource) = name.split_once('.').unwrap_or(("requests", name));
    container.at(&["resources", field, resource]).is_some()
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::super::USUAL;
    use super::*;

    fn shown(pod: &str, features: Features) -> String {
        let used = usage(&object(pod), features, 1_000);
        used.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn requests_and_limits_have_names_of_their_own() {
        let pod = r#"{"spec":{"containers":[{"name":"a","resources":{
            "requests":{"cpu":"500m","memory":"1Gi","ephemeral-storage":"1Mi","hugepages-2Mi":"4Mi","x.com/gpu":"2",
                "kubernetes.io/odd":"7"},
            "limits":{"cpu":"1","memory":"2Gi","ephemeral-storage":"2Mi","x.com/gpu":"2"}}}]}}"#;
        assert_eq!(
            shown(pod, USUAL),
            "count/pods=1,cpu=500m,ephemeral-storage=1Mi,hugepages-2Mi=4Mi,limits.cpu=1,limits.ephemeral-storage=2Mi,\
             limits.memory=2Gi,memory=1Gi,pods=1,requests.cpu=500m,requests.ephemeral-storage=1Mi,\
             requests.hugepages-2Mi=4Mi,requests.memory=1Gi,requests.x.com/gpu=2"
        );
        for name in
            ["cpu", "pods", "count/pods", "hugepages-1Gi", "requests.hugepages-1Gi", "requests.x.com/gpu"]
        {
            assert!(use_resource(name), "{name}");
        }
        for name in ["services", "x.com/gpu", "limits.x.com/gpu", "requests.storage", "count/services"] {
            assert!(!use_resource(name), "{name}");
        }
    }

    #[test]
    fn what_has_ended_is_only_counted() {
        let asks = r#""spec":{"containers":[{"resources":{"requests":{"cpu":"1"}}}]}"#;
        let going = |grace: i64| {
            format!(
                r#"{{{asks},"metadata":{{"deletionTimestamp":"1970-01-01T00:15:00Z","deletionGracePeriodSeconds":{grace}}}}}"#
            )
        };
        let counted = "count/pods=1";
        let charged = "count/pods=1,cpu=1,pods=1,requests.cpu=1";
        for (pod, wanted) in [
            (format!("{{{asks}}}"), charged),
            (format!(r#"{{{asks},"status":{{"phase":"Running"}}}}"#), charged),
            (format!(r#"{{{asks},"status":{{"phase":"Failed"}}}}"#), counted),
            (format!(r#"{{{asks},"status":{{"phase":"Succeeded"}}}}"#), counted),
            (going(99), counted),
            (going(100), charged),
        ] {
            assert_eq!(shown(&pod, USUAL), wanted, "{pod}");
        }
    }

    #[test]
    fn init_containers_sidecars_and_overhead_count() {
        let pod = r#"{"spec":{
            "containers":[{"resources":{"requests":{"cpu":"1"},"limits":{"memory":"1Gi"}}}],
            "initContainers":[{"restartPolicy":"Always","resources":{"requests":{"cpu":"500m"}}},
                {"resources":{"requests":{"cpu":"2"}}}],
            "overhead":{"cpu":"100m","memory":"1Mi"}}}"#;
        assert_eq!(
            shown(pod, USUAL),
            "count/pods=1,cpu=2600m,limits.memory=1025Mi,memory=1Mi,pods=1,requests.cpu=2600m,requests.memory=1Mi"
        );
    }

    #[test]
    fn a_resize_counts_the_most_of_both_sizes() {
        let pod = |wanted: &str, reason: &str| {
            format!(
                r#"{{"spec":{{"containers":[{{"name":"a","resources":{{"requests":{{"cpu":"{wanted}"}},"limits":{{"cpu":"{wanted}"}}}}}}]}},
                "status":{{"conditions":[{{"type":"PodResizePending","reason":"{reason}"}}],
                    "containerStatuses":[{{"name":"a","allocatedResources":{{"cpu":"2"}},
                        "resources":{{"requests":{{"cpu":"1"}},"limits":{{"cpu":"1"}}}}}}]}}}}"#
            )
        };
        let before = Features { resized_pods: false, ..USUAL };
        for (wanted, reason, features, requests, limits) in [
            ("3", "Deferred", USUAL, "3", "3"),
            ("500m", "Deferred", USUAL, "2", "1"),
            ("3", "Infeasible", USUAL, "2", "1"),
            ("500m", "Deferred", before, "500m", "500m"),
        ] {
            let used = usage(&object(&pod(wanted, reason)), features, 0);
            assert_eq!(used["requests.cpu"].to_string(), requests, "{wanted} {reason}");
            assert_eq!(used["limits.cpu"].to_string(), limits, "{wanted} {reason}");
        }
    }

    #[test]
    fn what_pods_ask_for_as_a_whole_counts_behind_its_gate() {
        let pod = r#"{"spec":{"resources":{"requests":{"cpu":"4","x.com/gpu":"9"}},
            "containers":[{"name":"a","resources":{"requests":{"cpu":"1"}}}]}}"#;
        let whole = Features { pod_resources: true, ..USUAL };
        assert_eq!(shown(pod, USUAL), "count/pods=1,cpu=1,pods=1,requests.cpu=1");
        assert_eq!(shown(pod, whole), "count/pods=1,cpu=4,pods=1,requests.cpu=4");
        let names = || ["memory"].into_iter();
        assert_eq!(must_specify(&object(pod), names(), whole), None);
        assert_eq!(must_specify(&object(pod), names(), USUAL).as_deref(), Some("must specify memory for: a"));
    }

    #[test]
    fn containers_must_say_what_quotas_name() {
        let pod = object(
            r#"{"spec":{"containers":[{"name":"b"},{"name":"a","resources":{"limits":{"cpu":"1"}}}],
                "initContainers":[{"name":"i","resources":{"requests":{"cpu":"1"}}}]}}"#,
        );
        let said = |names: &[&str]| must_specify(&pod, names.iter().copied(), USUAL);
        assert_eq!(said(&["pods", "limits.ephemeral-storage", "requests.x.com/gpu"]), None);
        assert_eq!(said(&["cpu"]).as_deref(), Some("must specify cpu for: a,b"));
        assert_eq!(
            said(&["requests.cpu", "limits.cpu"]).as_deref(),
            Some("must specify limits.cpu for: b,i; requests.cpu for: a,b")
        );
    }
}
