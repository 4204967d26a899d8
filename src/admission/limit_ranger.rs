//! LimitRanger: default requests and limits of pods, and the bounds for pods and claims.

use std::ops::Bound;

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::{Object, Value};

use crate::limits::LIMIT_DEFAULTS_PER_POD;

use super::lookup::{CachedSnapshot, LIMIT_RANGES};
use super::{Operation, Outcome, Plugin, Write, done, limit_checks};

/// Lists the defaults that were set on a pod.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Applies the LimitRanges of a namespace.
#[derive(Default)]
pub struct LimitRanger(CachedSnapshot);

impl Plugin for LimitRanger {
    fn handles(&self, write: &Write<'_>) -> bool {
        let is_relevant = match write.operation {
            Operation::Create => write.is_of("", "pods") || write.is_of("", "persistentvolumeclaims"),
            // The resources of a pod change only through the `resize` subresource.
            Operation::Update => {
                write.is_of_subresource("", "pods", "resize") || write.is_of("", "persistentvolumeclaims")
            }
            Operation::Delete | Operation::Connect => false,
        };
        is_relevant && !write.old.is_some_and(meta::is_terminating)
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, object: &'a mut Value) -> Outcome<'a> {
        if write.group_resource().resource != "pods" {
            return done(Ok(()));
        }
        Box::pin(async {
            for range in self.ranges(write).await? {
                apply_defaults(object, &range)?;
            }
            Ok(())
        })
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, object: &'a Value) -> Outcome<'a> {
        Box::pin(async {
            for range in self.ranges(write).await? {
                let errors = match write.group_resource().resource {
                    "pods" => limit_checks::check_pod(object, &range),
                    _ => limit_checks::check_claim(object, &range),
                };
                if let Some(message) = join_unique(errors) {
                    return Err(write.forbidden(object, &message));
                }
            }
            Ok(())
        })
    }
}

impl LimitRanger {
    /// The LimitRanges of the namespace.
    async fn ranges(&self, write: &Write<'_>) -> Result<Vec<Value>> {
        let snapshot = self.0.get(&LIMIT_RANGES, write).await?;
        let objects = snapshot.scan(Some(write.call.namespace()), Bound::Unbounded);
        objects.map(|range| LIMIT_RANGES.read(write, range)).collect()
    }
}

/// Joins messages into one, without duplicates.
fn join_unique(mut errors: Vec<String>) -> Option<String> {
    let mut seen = std::collections::HashSet::new();
    errors.retain(|text| seen.insert(text.clone()));
    match errors.len() {
        0 => None,
        1 => errors.pop(),
        _ => Some(format!("[{}]", errors.join(", "))),
    }
}

/// Sets the requests and limits that containers leave out.
fn apply_defaults(pod: &mut Value, range: &Value) -> Result<()> {
    let (mut requests, mut limits) = (Object::new(), Object::new());
    for limit in range.get_path(&["spec", "limits"]).map(Value::items).unwrap_or_default() {
        if limit.str("type") == "Container" {
            for (field, target) in [("defaultRequest", &mut requests), ("default", &mut limits)] {
                let defaults = limit.get(field).and_then(Value::fields).into_iter().flatten();
                target.extend(defaults.map(|(name, amount)| (name.clone(), amount.clone())));
            }
        }
    }
    let containers = |list: &str| pod.get_path(&["spec", list]).map_or(0, |list| list.items().len());
    let all = containers("containers") + containers("initContainers");
    if all.saturating_mul(requests.len() + limits.len()) > LIMIT_DEFAULTS_PER_POD {
        return Err(Status::too_large("the pod has too many containers for the defaults of its namespace"));
    }
    let mut changes = Vec::new();
    for (list, container_type) in [("containers", "container"), ("initContainers", "init container")] {
        let Some(Value::Array(containers)) = pod.entry("spec").get_mut(list) else { continue };
        for container in containers {
            let name = container.str("name").to_owned();
            let defaulted = [
                ("request", set_missing(container, "requests", &requests)),
                ("limit", set_missing(container, "limits", &limits)),
            ];
            for (field_name, names) in defaulted.into_iter().filter(|(_, names)| !names.is_empty()) {
                changes.push(format!("{} {field_name} for {container_type} {name}", names.join(", ")));
            }
        }
    }
    if !changes.is_empty() {
        let annotation = format!("LimitRanger plugin set: {}", changes.join("; "));
        pod.entry("metadata").entry("annotations").set(ANNOTATION, annotation);
    }
    Ok(())
}

/// Sets the missing entries and returns their names.
fn set_missing<'a>(container: &mut Value, field: &str, defaults: &'a Object) -> Vec<&'a str> {
    let is_missing = |name: &&String| container.get_path(&["resources", field, name]).is_none();
    let names: Vec<&str> = defaults.keys().filter(is_missing).map(String::as_str).collect();
    for name in &names {
        if let Some(amount) = defaults.get(name) {
            container.entry("resources").entry(field).set(name, amount.clone());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::super::limit_checks::testing::range;
    use super::*;

    #[test]
    fn limit_ranger_sets_defaults_and_annotation() {
        let mut pod = object(
            r#"{"spec":{"containers":[{"name":"a","resources":{"limits":{"cpu":"1"},"requests":{"cpu":"1"}}},
                {"name":"b"}],"initContainers":[{"name":"i"}]}}"#,
        );
        let range = range(
            r#"{"type":"Container","default":{"cpu":"2","memory":"1Gi"},"defaultRequest":{"cpu":"1"}}"#,
        );
        apply_defaults(&mut pod, &range).unwrap();
        assert_eq!(
            pod.get_path(&["metadata", "annotations", ANNOTATION]).and_then(Value::as_str),
            Some(
                "LimitRanger plugin set: memory limit for container a; cpu request for container b; cpu, memory limit \
                 for container b; cpu request for init container i; cpu, memory limit for init container i"
            )
        );
        let containers = pod.get_path(&["spec", "containers"]).map(Value::items).unwrap_or_default();
        assert_eq!(containers[0].get_path(&["resources", "limits", "cpu"]), Some(&Value::from("1")));
        assert_eq!(containers[1].get_path(&["resources", "limits", "memory"]), Some(&Value::from("1Gi")));
        let before = pod.clone();
        apply_defaults(&mut pod, &range).unwrap();
        assert_eq!(pod, before);
    }

    #[test]
    fn limit_range_without_defaults_changes_nothing() {
        let mut pod = object(r#"{"spec":{"containers":[{"name":"a"}]}}"#);
        let before = pod.clone();
        apply_defaults(&mut pod, &range(r#"{"type":"Container","max":{"cpu":"2"}}"#)).unwrap();
        assert_eq!(pod, before);
    }

    #[test]
    fn limit_ranger_refuses_too_many_defaults() {
        let mut pod = Value::object();
        pod.entry("spec").set("containers", vec![Value::object(); 1_000]);
        let mut limit = Value::object();
        limit.set("type", "Container");
        for number in 0..101 {
            limit.entry("default").set(&format!("r{number}"), "1");
        }
        let mut range = Value::object();
        range.entry("spec").set("limits", vec![limit]);
        assert_eq!(apply_defaults(&mut pod, &range).map_err(|status| status.code), Err(413));
    }

    #[test]
    fn errors_are_joined_without_duplicates() {
        let strings = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        assert_eq!(join_unique(strings(&[])), None);
        assert_eq!(join_unique(strings(&["a", "a"])).as_deref(), Some("a"));
        assert_eq!(join_unique(strings(&["a", "b", "a"])).as_deref(), Some("[a, b]"));
    }
}
