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
    let overhead = resource_list::read(pod.get_path(&["spec", "overhead"]));
    resource_list::add(&mut requests, &overhead);
    // Overhead is not added to an unlimited resource.
    let overhead =
        overhead.into_iter().filter(|(name, _)| limits.get(name).is_some_and(|limit| !limit.is_zero()));
    let overhead: ResourceList = overhead.collect();
    resource_list::add(&mut limits, &overhead);
    resource_list::add(&mut used, &quota_names(&requests, &limits));
    used
}

/// Requests and limits under the names of quotas.
fn quota_names(requests: &ResourceList, limits: &ResourceList) -> ResourceList {
    let mut used = ResourceList::from([(PODS.to_owned(), one())]);
    for (name, amount) in requests {
        let is_node_resource =
            matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || is_huge_page(name);
        if is_node_resource {
            used.insert(name.clone(), amount.clone());
        }
        if is_node_resource || is_extended(name) {
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
    let meta = meta::metadata(pod);
    let grace = meta.get("deletionGracePeriodSeconds").and_then(Value::as_int);
    let deleted_at = meta.get("deletionTimestamp").and_then(Value::as_str);
    let deleted_at = deleted_at.and_then(|time| time::parse_seconds(time).ok());
    deleted_at.zip(grace).is_some_and(|(time, grace)| now > time.saturating_add(grace))
}

/// The container statuses by name.
fn statuses(pod: &Value) -> BTreeMap<&str, &Value> {
    let list = |name: &str| pod.get_path(&["status", name]).map(Value::items).unwrap_or_default();
    let all = list("containerStatuses").iter().chain(list("initContainerStatuses"));
    all.map(|status| (status.str("name"), status)).collect()
}

/// The requests or limits of a pod without its overhead.
fn total(pod: &Value, field: &str, statuses: &BTreeMap<&str, &Value>, features: Features) -> ResourceList {
    let is_infeasible = is_resize_infeasible(pod);
    let mut resources = resource_list::total_by(pod, |container, is_long_running| {
        let requested = resource_list::read(container.get_path(&["resources", field]));
        let running_status = statuses.get(container.str("name")).filter(|_| is_long_running);
        match running_status.filter(|status| status.get("resources").is_some()) {
            Some(status) => resized(requested, status, field, is_infeasible),
            None => requested,
        }
    });
    if features.pod_resources {
        let pod_resources = resource_list::read(pod.get_path(&["spec", "resources", field]));
        resources
            .extend(pod_resources.into_iter().filter(|(name, _)| resource_list::is_pod_level_resource(name)));
    }
    resources
}

/// The usage of a container during a resize: the maximum of the allocated and the requested resources. An infeasible request does
/// not count.
fn resized(requested: ResourceList, status: &Value, field: &str, is_infeasible: bool) -> ResourceList {
    let mut charged = if is_infeasible { ResourceList::new() } else { requested };
    resource_list::raise(&mut charged, &resource_list::read(status.get_path(&["resources", field])));
    if field == "requests" {
        resource_list::raise(&mut charged, &resource_list::read(status.get("allocatedResources")));
    }
    charged
}

fn is_resize_infeasible(pod: &Value) -> bool {
    let conditions = pod.get_path(&["status", "conditions"]).map(Value::items).unwrap_or_default();
    let pending = conditions.iter().find(|condition| condition.str("type") == "PodResizePending");
    pending.is_some_and(|condition| condition.str("reason") == "Infeasible")
}

/// The error for containers that do not specify a resource that a quota requires.
pub fn must_specify<'a>(
    pod: &Value,
    names: impl Iterator<Item = &'a str>,
    features: Features,
) -> Option<String> {
    let has_pod_resources = |field: &&str| {
        let resources = pod.get_path(&["spec", "resources", field]).and_then(Value::fields);
        resources
            .is_some_and(|resources| resources.keys().any(|name| resource_list::is_pod_level_resource(name)))
    };
    if features.pod_resources && ["requests", "limits"].iter().any(has_pod_resources) {
        return None;
    }
    let names: BTreeSet<&str> = names.filter(|name| MUST_SPECIFY.contains(name)).collect();
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for list in ["containers", "initContainers"] {
        for container in pod.get_path(&["spec", list]).map(Value::items).unwrap_or_default() {
            for name in names.iter().filter(|name| !specifies(container, name)) {
                missing.entry(name).or_default().insert(container.str("name"));
            }
        }
    }
    let parts: Vec<String> = missing
        .into_iter()
        .map(|(name, containers)| {
            format!("{name} for: {}", containers.into_iter().collect::<Vec<_>>().join(","))
        })
        .collect();
    (!parts.is_empty()).then(|| format!("must specify {}", parts.join("; ")))
}

/// Whether a container specifies the resource of this quota name.
fn specifies(container: &Value, name: &str) -> bool {
    let (field, resource) = name.split_once('.').unwrap_or(("requests", name));
    container.get_path(&["resources", field, resource]).is_some()
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::super::DEFAULT_FEATURES;
    use super::*;

    fn usage_text(pod: &str, features: Features) -> String {
        let used = usage(&object(pod), features, 1_000);
        used.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn pod_requests_and_limits_are_charged_by_quota_name() {
        let pod = r#"{"spec":{"containers":[{"name":"a","resources":{
            "requests":{"cpu":"500m","memory":"1Gi","ephemeral-storage":"1Mi","hugepages-2Mi":"4Mi","x.com/gpu":"2",
                "kubernetes.io/odd":"7"},
            "limits":{"cpu":"1","memory":"2Gi","ephemeral-storage":"2Mi","x.com/gpu":"2"}}}]}}"#;
        assert_eq!(
            usage_text(pod, DEFAULT_FEATURES),
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
    fn finished_pods_are_charged_only_for_their_count() {
        let spec = r#""spec":{"containers":[{"resources":{"requests":{"cpu":"1"}}}]}"#;
        let terminating = |grace: i64| {
            format!(
                r#"{{{spec},"metadata":{{"deletionTimestamp":"1970-01-01T00:15:00Z","deletionGracePeriodSeconds":{grace}}}}}"#
            )
        };
        let counted = "count/pods=1";
        let charged = "count/pods=1,cpu=1,pods=1,requests.cpu=1";
        for (pod, expected) in [
            (format!("{{{spec}}}"), charged),
            (format!(r#"{{{spec},"status":{{"phase":"Running"}}}}"#), charged),
            (format!(r#"{{{spec},"status":{{"phase":"Failed"}}}}"#), counted),
            (format!(r#"{{{spec},"status":{{"phase":"Succeeded"}}}}"#), counted),
            (terminating(99), counted),
            (terminating(100), charged),
        ] {
            assert_eq!(usage_text(&pod, DEFAULT_FEATURES), expected, "{pod}");
        }
    }

    #[test]
    fn pod_usage_includes_init_containers_sidecars_and_overhead() {
        let pod = r#"{"spec":{
            "containers":[{"resources":{"requests":{"cpu":"1"},"limits":{"memory":"1Gi"}}}],
            "initContainers":[{"restartPolicy":"Always","resources":{"requests":{"cpu":"500m"}}},
                {"resources":{"requests":{"cpu":"2"}}}],
            "overhead":{"cpu":"100m","memory":"1Mi"}}}"#;
        assert_eq!(
            usage_text(pod, DEFAULT_FEATURES),
            "count/pods=1,cpu=2600m,limits.memory=1025Mi,memory=1Mi,pods=1,requests.cpu=2600m,requests.memory=1Mi"
        );
    }

    #[test]
    fn resized_pod_is_charged_the_larger_size() {
        let pod = |requested: &str, reason: &str| {
            format!(
                r#"{{"spec":{{"containers":[{{"name":"a","resources":{{"requests":{{"cpu":"{requested}"}},"limits":{{"cpu":"{requested}"}}}}}}]}},
                "status":{{"conditions":[{{"type":"PodResizePending","reason":"{reason}"}}],
                    "containerStatuses":[{{"name":"a","allocatedResources":{{"cpu":"2"}},
                        "resources":{{"requests":{{"cpu":"1"}},"limits":{{"cpu":"1"}}}}}}]}}}}"#
            )
        };
        let without_resize = Features { resized_pods: false, ..DEFAULT_FEATURES };
        for (requested, reason, features, requests, limits) in [
            ("3", "Deferred", DEFAULT_FEATURES, "3", "3"),
            ("500m", "Deferred", DEFAULT_FEATURES, "2", "1"),
            ("3", "Infeasible", DEFAULT_FEATURES, "2", "1"),
            ("500m", "Deferred", without_resize, "500m", "500m"),
        ] {
            let used = usage(&object(&pod(requested, reason)), features, 0);
            assert_eq!(used["requests.cpu"].to_string(), requests, "{requested} {reason}");
            assert_eq!(used["limits.cpu"].to_string(), limits, "{requested} {reason}");
        }
    }

    #[test]
    fn pod_level_resources_are_charged_only_with_feature_gate() {
        let pod = r#"{"spec":{"resources":{"requests":{"cpu":"4","x.com/gpu":"9"}},
            "containers":[{"name":"a","resources":{"requests":{"cpu":"1"}}}]}}"#;
        let with_gate = Features { pod_resources: true, ..DEFAULT_FEATURES };
        assert_eq!(usage_text(pod, DEFAULT_FEATURES), "count/pods=1,cpu=1,pods=1,requests.cpu=1");
        assert_eq!(usage_text(pod, with_gate), "count/pods=1,cpu=4,pods=1,requests.cpu=4");
        let names = || ["memory"].into_iter();
        assert_eq!(must_specify(&object(pod), names(), with_gate), None);
        assert_eq!(
            must_specify(&object(pod), names(), DEFAULT_FEATURES).as_deref(),
            Some("must specify memory for: a")
        );
    }

    #[test]
    fn containers_must_specify_resources_of_quotas() {
        let pod = object(
            r#"{"spec":{"containers":[{"name":"b"},{"name":"a","resources":{"limits":{"cpu":"1"}}}],
                "initContainers":[{"name":"i","resources":{"requests":{"cpu":"1"}}}]}}"#,
        );
        let missing = |names: &[&str]| must_specify(&pod, names.iter().copied(), DEFAULT_FEATURES);
        assert_eq!(missing(&["pods", "limits.ephemeral-storage", "requests.x.com/gpu"]), None);
        assert_eq!(missing(&["cpu"]).as_deref(), Some("must specify cpu for: a,b"));
        assert_eq!(
            missing(&["requests.cpu", "limits.cpu"]).as_deref(),
            Some("must specify limits.cpu for: b,i; requests.cpu for: a,b")
        );
    }
}
