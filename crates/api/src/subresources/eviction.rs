//! Evictions: whether PodDisruptionBudgets allow the deletion of a pod.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::schema::GroupVersionKind;
use pilothouse_apimachinery::status::{Cause, GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;

use super::conditions;

/// The limit of `disruptedPods`: evictions that the controller of budgets has not observed yet.
const MAX_DISRUPTED_PODS: usize = 2000;
/// The Retry-After for a budget whose latest generation its controller has not observed yet.
const UNOBSERVED_RETRY_SECONDS: u32 = 10;
const BUDGET_MESSAGE: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
const BUDGET: GroupResource<'_> = GroupResource { group: "policy", resource: "poddisruptionbudget" };

/// A removed version that clients may still send. It has the same fields.
pub fn older_version(kind: &GroupVersionKind) -> Option<&'static str> {
    (kind.group == "policy" && kind.kind == "Eviction").then_some("policy/v1beta1")
}

/// Validates an eviction.
pub fn validate(eviction: &Value, errors: &mut ErrorList) {
    let field = "ignoreStoreReadErrorWithClusterBreakingPotential";
    if eviction.get_path(&["deleteOptions", field]) == Some(&Value::Bool(true)) {
        let path = FieldPath::new("deleteOptions").child(field);
        let detail = "can not be set for pod eviction, try after removing the option";
        errors.push(FieldError::invalid(&path, "true", detail));
    }
}

/// The state of a pod, for an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodState {
    /// Finished or terminating: no budget counts it.
    Finished,
    /// Pending: no budget counts it, unless it starts at this moment.
    Pending,
    /// Running but not ready.
    Unready,
    /// Running and ready.
    Ready,
}

/// The state of a pod.
pub fn pod_state(pod: &Value) -> PodState {
    let status = pod.get("status").unwrap_or(&Value::Null);
    match status.str("phase") {
        "Succeeded" | "Failed" => PodState::Finished,
        _ if meta::is_terminating(pod) => PodState::Finished,
        "Pending" => PodState::Pending,
        _ => {
            let conditions = status.get("conditions").map(Value::items).unwrap_or_default();
            let ready = conditions.iter().find(|condition| condition.str("type") == "Ready");
            match ready.is_some_and(|ready| ready.str("status") == "True") {
                true => PodState::Ready,
                false => PodState::Unready,
            }
        }
    }
}

/// Whether a budget selects this pod.
pub fn selects_pod(budget: &Value, pod: &Value) -> bool {
    label_selector::matches(budget.get_path(&["spec", "selector"]), meta::metadata(pod).get("labels"))
}

/// Whether an unready pod may be evicted without a disruption: by the eviction policy, or if enough pods are healthy.
pub fn allows_unready(budget: &Value) -> bool {
    let (healthy, desired) = (count(budget, "currentHealthy"), count(budget, "desiredHealthy"));
    let policy = budget.get("spec").unwrap_or(&Value::Null).str("unhealthyPodEvictionPolicy");
    policy == "AlwaysAllow" || (healthy >= desired && desired > 0)
}

/// Takes one disruption from a budget, or returns the refusal.
pub fn take_disruption(budget: &mut Value, pod: &str, now: &str) -> Result<()> {
    let name = meta::name(budget);
    let forbid = |message| Err(Status::forbidden(message, Some((BUDGET, name))));
    let allowed = count(budget, "disruptionsAllowed");
    let disrupted = budget.get_path(&["status", "disruptedPods"]).and_then(Value::fields);
    if count(budget, "observedGeneration") < meta::generation(budget) {
        return Err(unobserved_budget(name));
    }
    if allowed < 0 {
        return forbid("pdb disruptions allowed is negative");
    }
    if disrupted.is_some_and(|disrupted| disrupted.len() > MAX_DISRUPTED_PODS) {
        return forbid("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    if allowed == 0 {
        let (desired, healthy) = (count(budget, "desiredHealthy"), count(budget, "currentHealthy"));
        let message =
            format!("The disruption budget {name} needs {desired} healthy pods and has {healthy} currently");
        return Err(over_budget(message, 0));
    }
    let observed = count(budget, "observedGeneration");
    let status = budget.entry("status");
    if allowed == 1 {
        status.remove("disruptionsAllowed");
        let mut condition = Value::object();
        condition.set("type", "DisruptionAllowed");
        condition.set("status", "False");
        condition.set("reason", "InsufficientPods");
        if observed != 0 {
            condition.set("observedGeneration", observed);
        }
        conditions::set(status, condition, now);
    } else {
        status.set("disruptionsAllowed", allowed - 1);
    }
    status.entry("disruptedPods").set(pod, now);
    Ok(())
}

fn count(budget: &Value, field: &str) -> i64 {
    budget.get_path(&["status", field]).and_then(Value::as_int).unwrap_or(0)
}

/// 429: the controller has not yet computed the allowed disruptions.
pub fn unobserved_budget(budget: &str) -> Box<Status> {
    let message = format!("The disruption budget {budget} is still being processed by the server.");
    over_budget(message, UNOBSERVED_RETRY_SECONDS)
}

fn over_budget(message: String, seconds: u32) -> Box<Status> {
    let mut status = Status::too_many_requests(BUDGET_MESSAGE, seconds);
    let cause = Cause { reason: "DisruptionBudget".to_owned(), message, field: String::new() };
    status.details.get_or_insert_default().causes.push(cause);
    status
}

/// 500: several budgets select the pod.
pub fn several_budgets() -> Box<Status> {
    Status::bare(
        500,
        "",
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
    )
}

/// Adds the DisruptionTarget condition to the pod.
pub fn add_disruption_target(pod: &mut Value, now: &str) {
    let mut condition = Value::object();
    condition.set("type", "DisruptionTarget");
    condition.set("status", "True");
    condition.set("reason", "EvictionByEvictionAPI");
    condition.set("message", "Eviction API: evicting");
    condition.set("lastProbeTime", Value::Null);
    conditions::set(pod.entry("status"), condition, now);
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    fn budget(status: &str) -> Value {
        object(&format!(
            r#"{{"metadata":{{"name":"b","generation":2}},"spec":{{"selector":{{"matchLabels":{{"a":"b"}}}}}},
                "status":{status}}}"#
        ))
    }

    #[test]
    fn eviction_refuses_cluster_breaking_option() {
        let field = "deleteOptions.ignoreStoreReadErrorWithClusterBreakingPotential";
        each_refused(
            &object(r#"{"deleteOptions":{"gracePeriodSeconds":1}}"#),
            validate,
            &[(field, "true", "can not be set for pod eviction")],
        );
    }

    #[test]
    fn pod_state_depends_on_phase_deletion_and_readiness() {
        let table = [
            (r#"{"status":{"phase":"Failed"}}"#, PodState::Finished),
            (r#"{"status":{"phase":"Succeeded"}}"#, PodState::Finished),
            (
                r#"{"metadata":{"deletionTimestamp":"2001-01-01T00:00:00Z"},"status":{"phase":"Pending"}}"#,
                PodState::Finished,
            ),
            (r#"{"status":{"phase":"Pending"}}"#, PodState::Pending),
            (r#"{"status":{"phase":"Running"}}"#, PodState::Unready),
            (
                r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"False"}]}}"#,
                PodState::Unready,
            ),
            (
                r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}"#,
                PodState::Ready,
            ),
        ];
        for (json, expected) in table {
            assert_eq!(pod_state(&object(json)), expected, "{json}");
        }
    }

    #[test]
    fn budget_guards_pods_of_its_selector() {
        let pod = object(r#"{"metadata":{"labels":{"a":"b"}}}"#);
        assert!(selects_pod(&budget("{}"), &pod));
        assert!(selects_pod(&object(r#"{"spec":{"selector":{}}}"#), &pod), "an empty selector selects all");
        assert!(!selects_pod(&object(r#"{"spec":{}}"#), &pod), "none selects nothing");
        assert!(!selects_pod(&budget("{}"), &object(r#"{"metadata":{}}"#)));
    }

    #[test]
    fn unready_pods_are_spared_while_enough_are_healthy() {
        let table = [
            (r#"{"status":{"currentHealthy":1,"desiredHealthy":1}}"#, true),
            (r#"{"status":{"currentHealthy":1,"desiredHealthy":2}}"#, false),
            (r#"{"status":{}}"#, false),
            (r#"{"spec":{"unhealthyPodEvictionPolicy":"AlwaysAllow"},"status":{"desiredHealthy":2}}"#, true),
            (
                r#"{"spec":{"unhealthyPodEvictionPolicy":"IfHealthyBudget"},"status":{"desiredHealthy":2}}"#,
                false,
            ),
        ];
        for (json, expected) in table {
            assert_eq!(allows_unready(&object(json)), expected, "{json}");
        }
    }

    #[test]
    fn disruption_is_taken_and_recorded() {
        let mut two = budget(r#"{"observedGeneration":2,"disruptionsAllowed":2}"#);
        take_disruption(&mut two, "p", "t1").unwrap();
        assert_eq!(
            two.get("status"),
            Some(&object(r#"{"observedGeneration":2,"disruptionsAllowed":1,"disruptedPods":{"p":"t1"}}"#))
        );
        take_disruption(&mut two, "q", "t2").unwrap();
        assert_eq!(
            two.get("status"),
            Some(&object(
                r#"{"observedGeneration":2,"disruptedPods":{"p":"t1","q":"t2"},"conditions":[
                    {"type":"DisruptionAllowed","status":"False","reason":"InsufficientPods",
                     "observedGeneration":2,"lastTransitionTime":"t2"}]}"#
            ))
        );
    }

    #[test]
    fn exhausted_or_unobserved_budget_refuses_disruption() {
        let table = [
            (r#"{"disruptionsAllowed":1}"#, 429, "DisruptionBudget", Some(10)),
            (
                r#"{"observedGeneration":2,"desiredHealthy":3,"currentHealthy":1}"#,
                429,
                "DisruptionBudget",
                None,
            ),
            (r#"{"observedGeneration":2,"disruptionsAllowed":-1}"#, 403, "", None),
        ];
        for (status, code, reason, seconds) in table {
            let mut budget_object = budget(status);
            let over_budget = take_disruption(&mut budget_object, "p", "now").unwrap_err();
            assert_eq!((over_budget.code, over_budget.retry_after()), (code, seconds), "{status}");
            let causes =
                over_budget.details.as_ref().map(|details| details.causes.clone()).unwrap_or_default();
            assert_eq!(causes.first().map_or("", |cause| &cause.reason), reason, "{status}");
            assert_eq!(budget_object, budget(status), "a refusal changes nothing");
        }
        let over_budget =
            take_disruption(&mut budget(r#"{"observedGeneration":2,"desiredHealthy":3}"#), "p", "now");
        let details = over_budget.unwrap_err().details.unwrap();
        assert_eq!(
            details.causes.first().unwrap().message,
            "The disruption budget b needs 3 healthy pods and has 0 currently"
        );
    }
}
