//! LimitRanger: default requests and limits of pods, and the bounds for pods and claims.

use std::ops::Bound;

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::{Object, Value};

use crate::limits::LIMITS_FILLED_IN;

use super::lookup::{CachedSnapshot, LIMIT_RANGES};
use super::{Operation, Outcome, Plugin, Write, done, limit_checks};

/// Lists the defaults that were set on a pod.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Applies the LimitRanges of a namespace.
#[derive(Default)]
pub struct LimitRanger(CachedSnapshot);

impl Plugin for LimitRanger {
    fn handles(&self, write: &Write<'_>) -> bool {
        let matters = match write.operation {
            Operation::Create => write.is_of("", "pods") || write.is_of("", "persistentvolumeclaims"),
            // The resources of a pod change only through the `resize` subresource.
            Operation::Update => {
                write.is_of_part("", "pods", "resize") || write.is_of("", "persistentvolumeclaims")
            }
            Operation::Delete | Operation::Connect => false,
        };
        matters && !write.old.is_some_and(meta::is_terminating)
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, object: &'a mut Value) -> Outcome<'a> {
        if write.call.of().resource != "pods" {
            return done(Ok(()));
        }
        Box::pin(async {
            for range in self.ranges(write).await? {
                fill_in(object, &range)?;
            }
            Ok(())
        })
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, object: &'a Value) -> Outcome<'a> {
        Box::pin(async {
            for range in self.ranges(write).await? {
                let wrong = match write.call.of().resource {
                    "pods" => limit_checks::pod(object, &range),
                    _ => limit_checks::claim(object, &range),
                };
                if let Some(why) = joined(wrong) {
                    return Err(write.forbidden(object, &why));
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
        let found = snapshot.scan(Some(write.call.namespace), Bound::Unbounded);
        found.map(|range| LIMIT_RANGES.read(write, range)).collect()
    }
}

/// Joins messages into one, without duplicates.
fn joined(mut wrong: Vec<String>) -> Option<String> {
    let mut said = std::collections::HashSet::new();
    wrong.retain(|text| said.insert(text.clone()));
    match wrong.len() {
        0 => None,
        1 => wrong.pop(),
        _ => Some(format!("[{}]", wrong.join(", "))),
    }
}

/// Sets the requests and limits that containers leave out.
fn fill_in(pod: &mut Value, range: &Value) -> Result<()> {
    let (mut requests, mut limits) = (Object::new(), Object::new());
    for limit in range.at(&["spec", "limits"]).map(Value::items).unwrap_or_default() {
        if limit.str("type") == "Container" {
            for (field, into) in [("defaultRequest", &mut requests), ("default", &mut limits)] {
                let defaults = limit.get(field).and_then(Value::fields).into_iter().flatten();
                into.extend(defaults.map(|(name, amount)| (name.clone(), amount.clone())));
            }
        }
    }
    let containers = |list: &str| pod.at(&["spec", list]).map_or(0, |list| list.items().len());
    let all = containers("containers") + containers("initContainers");
    if all.saturating_mul(requests.len() + limits.len()) > LIMITS_FILLED_IN {
        return Err(Status::too_large("the pod has too many containers for the defaults of its namespace"));
    }
    let mut notes = Vec::new();
    for (list, title) in [("containers", "container"), ("initContainers", "init container")] {
        let Some(Value::Array(containers)) = pod.entry("spec").get_mut(list) else { continue };
        for container in containers {
            let name = container.str("name").to_owned();
            let set = [
                ("request", set(container, "requests", &requests)),
                ("limit", set(container, "limits", &limits)),
            ];
            for (what, names) in set.into_iter().filter(|(_, names)| !names.is_empty()) {
                notes.push(format!("{} {what} for {title} {name}", names.join(", ")));
            }
        }
    }
    if !notes.is_empty() {
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        pod.entry("metadata").entry("annotations").set(ANNOTATION, note);
    }
    Ok(())
}

/// Sets the missing entries and answers their names.
fn set<'a>(container: &mut Value, field: &str, defaults: &'a Object) -> Vec<&'a str> {
    let absent = |name: &&String| container.at(&["resources", field, name]).is_none();
    let names: Vec<&str> = defaults.keys().filter(absent).map(String::as_str).collect();
    for name in &names {
        if let Some(amount) = defaults.get(name) {
            container.entry("resources").entry(field).set(name, amount.clone());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::super::limit_checks::testing::{object, range};
    use super::*;

    #[test]
    fn what_containers_leave_out_is_filled_in_and_told() {
        let mut pod = object(
            r#"{"spec":{"containers":[{"name":"a","resources":{"limits":{"cpu":"1"},"requests":{"cpu":"1"}}},
                {"name":"b"}],"initContainers":[{"name":"i"}]}}"#,
        );
        let range = range(
            r#"{"type":"Container","default":{"cpu":"2","memory":"1Gi"},"defaultRequest":{"cpu":"1"}}"#,
        );
        fill_in(&mut pod, &range).unwrap();
        assert_eq!(
            pod.at(&["metadata", "annotations", ANNOTATION]).and_then(Value::as_str),
            Some(
                "LimitRanger plugin set: memory limit for container a; cpu request for container b; cpu, memory limit \
                 for container b; cpu request for init container i; cpu, memory limit for init container i"
            )
        );
        let containers = pod.at(&["spec", "containers"]).map(Value::items).unwrap_or_default();
        assert_eq!(containers[0].at(&["resources", "limits", "cpu"]), Some(&Value::from("1")));
        assert_eq!(containers[1].at(&["resources", "limits", "memory"]), Some(&Value::from("1Gi")));
        let before = pod.clone();
        fill_in(&mut pod, &range).unwrap();
        assert_eq!(pod, before);
    }

    #[test]
    fn a_range_without_defaults_leaves_no_trace() {
        let mut pod = object(r#"{"spec":{"containers":[{"name":"a"}]}}"#);
        let before = pod.clone();
        fill_in(&mut pod, &range(r#"{"type":"Container","max":{"cpu":"2"}}"#)).unwrap();
        assert_eq!(pod, before);
    }

    #[test]
    fn two_large_bodies_do_not_make_an_enormous_one() {
        let mut pod = Value::object();
        pod.entry("spec").set("containers", vec![Value::object(); 1_000]);
        let mut limit = Value::object();
        limit.set("type", "Container");
        for number in 0..101 {
            limit.entry("default").set(&format!("r{number}"), "1");
        }
        let mut range = Value::object();
        range.entry("spec").set("limits", vec![limit]);
        assert_eq!(fill_in(&mut pod, &range).map_err(|status| status.code), Err(413));
    }

    #[test]
    fn findings_are_said_once() {
        let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        assert_eq!(joined(texts(&[])), None);
        assert_eq!(joined(texts(&["a", "a"])).as_deref(), Some("a"));
        assert_eq!(joined(texts(&["a", "b", "a"])).as_deref(), Some("[a, b]"));
    }
}
