//! RuntimeClass: the overhead and scheduling constraints of a pod's runtime.

use pilothouse_apimachinery::field_value::same;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;

use super::lookup::RUNTIME_CLASSES;
use super::{Operation, Outcome, Plugin, Write, tolerations};

/// Sets the overhead, node selector and tolerations of a pod's runtime class.
pub struct RuntimeClass;

const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
const WITHOUT_CLASS: &str =
    "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";

impl Plugin for RuntimeClass {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Create && write.is_of("", "pods")
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, pod: &'a mut Value) -> Outcome<'a> {
        Box::pin(async {
            let Some(class) = class_of(write, pod).await? else { return Ok(()) };
            let result = set_overhead(pod, &class).and_then(|()| set_scheduling(pod, &class));
            result.map_err(|reason| write.forbidden(pod, &reason))
        })
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, pod: &'a Value) -> Outcome<'a> {
        Box::pin(async {
            let class = class_of(write, pod).await?;
            check_overhead(pod, class.as_ref()).map_err(|reason| write.forbidden(pod, reason))
        })
    }
}

async fn class_of(write: &Write<'_>, pod: &Value) -> Result<Option<Value>> {
    let Some(name) = pod.get_path(&["spec", "runtimeClassName"]).and_then(Value::as_str) else {
        return Ok(None);
    };
    let class = RUNTIME_CLASSES.get(write, name).await?;
    if class.is_none() {
        return Err(write.forbidden(pod, &format!("pod rejected: RuntimeClass {name:?} not found")));
    }
    Ok(class)
}

fn set_overhead(pod: &mut Value, class: &Value) -> std::result::Result<(), String> {
    let Some(overhead) = class.get("overhead") else { return Ok(()) };
    let fixed = overhead.get("podFixed");
    let current = pod.get_path(&["spec", "overhead"]);
    if current.and_then(Value::fields).is_some_and(|current| !current.is_empty()) && !same(current, fixed) {
        return Err(MISMATCH.to_owned());
    }
    match fixed {
        Some(fixed) => pod.entry("spec").set("overhead", fixed.clone()),
        None => {
            pod.entry("spec").remove("overhead");
        }
    }
    Ok(())
}

fn set_scheduling(pod: &mut Value, class: &Value) -> std::result::Result<(), String> {
    let Some(scheduling) = class.get("scheduling") else { return Ok(()) };
    let spec = pod.entry("spec");
    for (key, required) in scheduling.get("nodeSelector").and_then(Value::fields).into_iter().flatten() {
        let current = spec.get_path(&["nodeSelector", key]);
        if let Some(current) = current.filter(|current| *current != required) {
            let (current, required) =
                (current.as_str().unwrap_or_default(), required.as_str().unwrap_or_default());
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {required}; pod.spec.nodeSelector[{key}] = {current}"
            ));
        }
        spec.entry("nodeSelector").set(key, required.clone());
    }
    let items = |value: &Value| value.get("tolerations").map(Value::items).unwrap_or_default().to_vec();
    let merged = tolerations::merge(&items(spec), &items(scheduling));
    if !merged.is_empty() {
        spec.set("tolerations", merged);
    }
    Ok(())
}

fn check_overhead(pod: &Value, class: Option<&Value>) -> std::result::Result<(), &'static str> {
    let overhead = pod.get_path(&["spec", "overhead"]);
    match class.and_then(|class| class.get("overhead")) {
        Some(defined) if same(overhead, defined.get("podFixed")) => Ok(()),
        Some(_) => Err(MISMATCH),
        None if overhead.is_some() => Err(WITHOUT_CLASS),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class() -> Value {
        let mut class = Value::object();
        class.entry("overhead").entry("podFixed").set("memory", "10Mi");
        class.entry("scheduling").entry("nodeSelector").set("arch", "x");
        let mut toleration = Value::object();
        toleration.set("operator", "Exists");
        class.entry("scheduling").set("tolerations", vec![toleration]);
        class
    }

    #[test]
    fn runtime_class_sets_overhead_and_scheduling() {
        let mut pod = Value::object();
        assert_eq!(set_overhead(&mut pod, &class()), Ok(()));
        assert_eq!(set_scheduling(&mut pod, &class()), Ok(()));
        assert_eq!(pod.get_path(&["spec", "overhead", "memory"]), Some(&Value::from("10Mi")));
        assert_eq!(pod.get_path(&["spec", "nodeSelector", "arch"]), Some(&Value::from("x")));
        assert_eq!(pod.get_path(&["spec", "tolerations"]).map(|all| all.items().len()), Some(1));
        assert_eq!(check_overhead(&pod, Some(&class())), Ok(()));
        assert_eq!(check_overhead(&pod, None), Err(WITHOUT_CLASS));
    }

    #[test]
    fn runtime_class_without_pod_fixed_removes_empty_overhead() {
        let mut class = Value::object();
        class.set("overhead", Value::object());
        let mut pod = Value::object();
        pod.entry("spec").set("overhead", Value::object());
        assert_eq!(check_overhead(&pod, None), Err(WITHOUT_CLASS), "empty is not none");
        assert_eq!(set_overhead(&mut pod, &class), Ok(()));
        assert_eq!(check_overhead(&pod, Some(&class)), Ok(()));
    }

    #[test]
    fn runtime_class_conflicts_are_refused() {
        let mut pod = Value::object();
        pod.entry("spec").entry("overhead").set("memory", "11Mi");
        pod.entry("spec").entry("nodeSelector").set("arch", "y");
        assert_eq!(set_overhead(&mut pod, &class()), Err(MISMATCH.to_owned()));
        assert_eq!(check_overhead(&pod, Some(&class())), Err(MISMATCH));
        let error = set_scheduling(&mut pod, &class()).unwrap_err();
        assert_eq!(
            error,
            "conflict: runtimeClass.scheduling.nodeSelector[arch] = x; pod.spec.nodeSelector[arch] = y"
        );
    }
}
