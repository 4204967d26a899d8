//! Workloads and runtime classes.

use pilothouse_apimachinery::value::Value;

/// The annotations that have what the specs of earlier versions had.
const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// A Deployment of apps/v1beta1 or extensions/v1beta1: it can ask for a rollback.
pub(super) fn deployment(mut deployment: Value) -> Value {
    let rollback = deployment.get_mut("spec").and_then(|spec| spec.remove("rollbackTo"));
    if let Some(rollback) = rollback.filter(|rollback| !rollback.is_null()) {
        let revision = rollback.get("revision").and_then(Value::as_int).unwrap_or(0);
        deployment.entry("metadata").entry("annotations").set(ROLLBACK_TO, revision.to_string());
    }
    deployment
}

/// A DaemonSet of extensions/v1beta1: it counts the changes of its template.
pub(super) fn daemon_set(mut set: Value) -> Value {
    let generation = set.get_mut("spec").and_then(|spec| spec.remove("templateGeneration"));
    let generation = generation.as_ref().and_then(Value::as_int).unwrap_or(0);
    set.entry("metadata").entry("annotations").set(TEMPLATE_GENERATION, generation.to_string());
    set
}

/// A StatefulSet of apps/v1beta1: it can tell an observed generation of zero from none.
pub(super) fn stateful_set(mut set: Value) -> Value {
    if let Some(status) = set.get_mut("status")
        && status.get("observedGeneration") == Some(&Value::Int(0))
    {
        status.remove("observedGeneration");
    }
    set
}

/// A RuntimeClass of v1alpha1: its fields are in a spec.
pub(super) fn runtime_class(mut class: Value) -> Value {
    if let Some(mut spec) = class.remove("spec") {
        for (from, to) in
            [("runtimeHandler", "handler"), ("overhead", "overhead"), ("scheduling", "scheduling")]
        {
            if let Some(value) = spec.remove(from).filter(|value| !value.is_null()) {
                class.set(to, value);
            }
        }
    }
    class
}
