//! RuntimeClass: the overhead and scheduling constraints of a pod's runtime.

use pilothouse_apimachinery::field_value::same;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;

use super::lookup::RUNTIME_CLASSES;
use super::{Operation, Outcome, Plugin, Write, tolerations};

/// Sets the overhead, node selector and tolerations of a pod's runtime class.
pub struct RuntimeClass;

const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
const UNFOUNDED: &str = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";

impl Plugin for RuntimeClass {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Create && write.is_of("", "pods")
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, pod: &'a mut Value) -> Outcome<'a> {
        Box::pin(async {
            let Some(class) = class_of(write, pod).await? else { return Ok(()) };
            let set = set_overhead(pod, &class).and_then(|()| set_place(pod, &class));
            set.map_err(|why| write.forbidden(pod, &why))
        })
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, pod: &'a Value) -> Outcome<'a> {
        Box::pin(async {
            let class = class_of(write, pod).await?;
            check_overhead(pod, class.as_ref()).map_err(|why| write.forbidden(pod, why))
        })
    }
}

async fn class_of(write: &Write<'_>, pod: &Value) -> Result<Option<Value>> {
    let Some(name) = pod.at(&["spec", "runtimeClassName"]).and_then(Value::as_str) else { return Ok(None) };
    let found = RUNTIME_CLASSES.get(write, name).await?;
    if found.is_none() {
        return Err(write.forbidden(pod, &format!("pod rejected: RuntimeClass {name:?} not found")));
    }
    Ok(found)
}

fn set_overhead(pod: &mut Value, class: &Value) -> std::result::Result<(), String> {
    let Some(overhead) = class.get("overhead") else { return Ok(()) };
    let fixed = overhead.get("podFixed");
    let said = pod.at(&["spec", "overhead"]);
    if said.and_then(Value::fields).is_some_and(|said| !said.is_empty()) && !same(said, fixed) {
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

fn set_place(pod: &mut Value, class: &Value) -> std::result::Result<(), String> {
    let Some(scheduling) = class.get("scheduling") else { return Ok(()) };
    let spec = pod.entry("spec");
    for (key, wanted) in scheduling.get("nodeSelector").and_then(Value::fields).into_iter().flatten() {
        let said = spec.at(&["nodeSelector", key]);
        if let Some(said) = said.filter(|said| *said != wanted) {
            let (said, wanted) = (said.as_str().unwrap_or_default(), wanted.as_str().unwrap_or_default());
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; pod.spec.nodeSelector[{key}] = {said}"
            ));
        }
        spec.entry("nodeSelector").set(key, wanted.clone());
    }
    let items = |value: &Value| value.get("tolerations").map(Value::items).unwrap_or_default().to_vec();
    let merged = tolerations::merge(&items(spec), &items(scheduling));
    if !merged.is_empty() {
        spec.set("tolerations", merged);
    }
    Ok(())
}

fn check_overhead(pod: &Value, class: Option<&Value>) -> std::result::Result<(), &'static str> {
    let said = pod.at(&["spec", "overhead"]);
    match class.and_then(|class| class.get("overhead")) {
        Some(overhead) if same(said, overhead.get("podFixed")) => Ok(()),
        Some(_) => Err(MISMATCH),
        None if said.is_some() => Err(UNFOUNDED),
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
    fn a_pod_takes_over_what_its_class_says() {
        let mut pod = Value::object();
        assert_eq!(set_overhead(&mut pod, &class()), Ok(()));
        assert_eq!(set_place(&mut pod, &class()), Ok(()));
        assert_eq!(pod.at(&["spec", "overhead", "memory"]), Some(&Value::from("10Mi")));
        assert_eq!(pod.at(&["spec", "nodeSelector", "arch"]), Some(&Value::from("x")));
        assert_eq!(pod.at(&["spec", "tolerations"]).map(|all| all.items().len()), Some(1));
        assert_eq!(check_overhead(&pod, Some(&class())), Ok(()));
        assert_eq!(check_overhead(&pod, None), Err(UNFOUNDED));
    }

    #[test]
    fn a_class_without_amounts_takes_an_empty_overhead_away() {
        let mut class = Value::object();
        class.set("overhead", Value::object());
        let mut pod = Value::object();
        pod.entry("spec").set("overhead", Value::object());
        assert_eq!(check_overhead(&pod, None), Err(UNFOUNDED), "empty is not none");
        assert_eq!(set_overhead(&mut pod, &class), Ok(()));
        assert_eq!(check_overhead(&pod, Some(&class)), Ok(()));
    }

    #[test]
    fn contradictions_are_refused() {
        let mut pod = Value::object();
        pod.entry("spec").entry("overhead").set("memory", "11Mi");
        pod.entry("spec").entry("nodeSelector").set("arch", "y");
        assert_eq!(set_overhead(&mut pod, &class()), Err(MISMATCH.to_owned()));
        assert_eq!(check_overhead(&pod, Some(&class())), Err(MISMATCH));
        let wrong = set_place(&mut pod, &class()).unwrap_err();
        assert_eq!(
            wrong,
            "conflict: runtimeClass.scheduling.nodeSelector[arch] = x; pod.spec.nodeSelector[arch] = y"
        );
    }
}
