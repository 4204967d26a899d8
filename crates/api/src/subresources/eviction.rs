//! Evictions: whether PodDisruptionBudgets allow the deletion of a pod.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::schema::GroupVersionKind;
use pilothouse_apimachinery::status::{Cause, GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;

use super::conditions;

/// The number of evicted pods that a budget records until its controller has seen them go.
const MOST_DISRUPTED: usize = 2000;
/// The Retry-After for a budget that is not counted yet.
const COUNTED_WITHIN_SECONDS: u32 = 10;
const REFUSED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
const BUDGET: GroupResource<'_> = GroupResource { group: "policy", resource: "poddisruptionbudget" };

/// A removed version that clients may still send. It has the same fields.
pub fn older_version(kind: &GroupVersionKind) -> Option<&'static str> {
    (kind.group == "policy" && kind.kind == "Eviction").then_some("policy/v1beta1")
}

/// Validates an eviction.
pub fn validate(eviction: &Value, errors: &mut ErrorList) {
    let field = "ignoreStoreReadErrorWithClusterBreakingPotential";
    if eviction.at(&["deleteOptions", field]) == Some(&Value::Bool(true)) {
        let path = FieldPath::new("deleteOptions").child(field);
        let wrong = "can not be set for pod eviction, try after removing the option";
        errors.push(FieldError::invalid(&path, "true", wrong));
    }
}

/// The state of a pod, for an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodState {
    /// Finished or terminating: no budget counts it.
    Over,
    /// Pending: no budget counts it, unless it starts at this moment.
    NotBegun,
    /// Running but not ready.
    Unready,
    /// Running and ready.
    Ready,
}

/// The state of a pod.
pub fn standing(pod: &Value) -> PodState {
    let status = pod.get("status").unwrap_or(&Value::Null);
    match status.str("phase") {
        "Succeeded" | "Failed" => PodState::Over,
        _ if meta::is_terminating(pod) => PodState::Over,
        "Pending" => PodState::NotBegun,
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
pub fn guards(budget: &Value, pod: &Value) -> bool {
    label_selector::matches(budget.at(&["spec", "selector"]), meta::of(pod).get("labels"))
}

/// Whether a pod that is not ready may go without being counted: it always may, or all that must be healthy are.
pub fn spares_unready(budget: &Value) -> bool {
    let (healthy, desired) = (count(budget, "currentHealthy"), count(budget, "desiredHealthy"));
    let policy = budget.get("spec").unwrap_or(&Value::Null).str("unhealthyPodEvictionPolicy");
    policy == "AlwaysAllow" || (healthy >= desired && desired > 0)
}

/// Takes one disruption out of a budget, or says why there is none to take.
pub fn take(budget: &mut Value, pod: &str, now: &str) -> Result<()> {
    let name = meta::name(budget);
    let forbidden = |why| Err(Status::forbidden(why, Some((BUDGET, name))));
    let allowed = count(budget, "disruptionsAllowed");
    let disrupted = budget.at(&["status", "disruptedPods"]).and_then(Value::fields);
    if count(budget, "observedGeneration") < meta::generation(budget) {
        return Err(not_counted(name));
    }
    if allowed < 0 {
        return forbidden("pdb disruptions allowed is negative");
    }
    if disrupted.is_some_and(|disrupted| disrupted.len() > MOST_DISRUPTED) {
        return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    if allowed == 0 {
        let (desired, healthy) = (count(budget, "desiredHealthy"), count(budget, "currentHealthy"));
        let why =
            format!("The disruption budget {name} needs {desired} healthy pods and has {healthy} currently");
        return Err(refused(why, 0));
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
        conditions::put(status, condition, now);
    } else {
        status.set("disruptionsAllowed", allowed - 1);
    }
    status.entry("disruptedPods").set(pod, now);
    Ok(())
}

fn count(budget: &Value, field: &str) -> i64 {
    budget.at(&["status", field]).and_then(Value::as_int).unwrap_or(0)
}

/// 429: nobody has counted yet what the budget allows.
pub fn not_counted(budget: &str) -> Box<Status> {
    let why = format!("The disruption budget {budget} is still being processed by the server.");
    refused(why, COUNTED_WITHIN_SECONDS)
}

fn refused(why: String, seconds: u32) -> Box<Status> {
    let mut status = Status::too_many_requests(REFUSED, seconds);
    let cause = Cause { reason: "DisruptionBudget".to_owned(), message: why, field: String::new() };
    status.details.get_or_insert_default().causes.push(cause);
    status
}

/// 500: several budgets count the pod, and nobody says which of them decides.
pub fn several_budgets() -> Box<Status> {
    Status::bare(
        500,
        "",
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
    )
}

/// Leaves word in the pod of why it goes.
pub fn announce(pod: &mut Value, now: &str) {
    let mut condition = Value::object();
    condition.set("type", "DisruptionTarget");
    condition.set("status", "True");
    condition.set("reason", "EvictionByEvictionAPI");
    condition.set("message", "Eviction API: evicting");
    condition.set("lastProbeTime", Value::Null);
    conditions::put(pod.entry("status"), condition, now);
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
    fn an_eviction_cannot_break_the_cluster() {
        let field = "deleteOptions.ignoreStoreReadErrorWithClusterBreakingPotential";
        each_refused(
            &object(r#"{"deleteOptions":{"gracePeriodSeconds":1}}"#),
            validate,
            &[(field, "true", "can not be set for pod eviction")],
        );
    }

    #[test]
    fn pods_stand_differently() {
        let table = [
            (r#"{"status":{"phase":"Failed"}}"#, PodState::Over),
            (r#"{"status":{"phase":"Succeeded"}}"#, PodState::Over),
            (
                r#"{"metadata":{"deletionTimestamp":"2001-01-01T00:00:00Z"},"status":{"phase":"Pending"}}"#,
                PodState::Over,
            ),
            (r#"{"status":{"phase":"Pending"}}"#, PodState::NotBegun),
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
        for (json, wanted) in table {
            assert_eq!(standing(&object(json)), wanted, "{json}");
        }
    }

    #[test]
    fn a_budget_counts_the_pods_that_it_selects() {
        let pod = object(r#"{"metadata":{"labels":{"a":"b"}}}"#);
        assert!(guards(&budget("{}"), &pod));
        assert!(guards(&object(r#"{"spec":{"selector":{}}}"#), &pod), "an empty selector selects all");
        assert!(!guards(&object(r#"{"spec":{}}"#), &pod), "none selects nothing");
        assert!(!guards(&budget("{}"), &object(r#"{"metadata":{}}"#)));
    }

    #[test]
    fn the_unready_may_go_while_enough_are_healthy() {
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
        for (json, wanted) in table {
            assert_eq!(spares_unready(&object(json)), wanted, "{json}");
        }
    }

    #[test]
    fn a_budget_gives_what_it_has_and_remembers_it() {
        let mut two = budget(r#"{"observedGeneration":2,"disruptionsAllowed":2}"#);
        take(&mut two, "p", "t1").unwrap();
        assert_eq!(
            two.get("status"),
            Some(&object(r#"{"observedGeneration":2,"disruptionsAllowed":1,"disruptedPods":{"p":"t1"}}"#))
        );
        take(&mut two, "q", "t2").unwrap();
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
    fn a_budget_says_why_it_gives_nothing() {
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
            let mut it = budget(status);
            let refused = take(&mut it, "p", "now").unwrap_err();
            assert_eq!((refused.code, refused.retry_after()), (code, seconds), "{status}");
            let causes = refused.details.as_ref().map(|details| details.causes.clone()).unwrap_or_default();
            assert_eq!(causes.first().map_or("", |cause| &cause.reason), reason, "{status}");
            assert_eq!(it, budget(status), "a refusal changes nothing");
        }
        let refused = take(&mut budget(r#"{"observedGeneration":2,"desiredHealthy":3}"#), "p", "now");
        let details = refused.unwrap_err().details.unwrap();
        assert_eq!(
            details.causes.first().unwrap().message,
            "The disruption budget b needs 3 healthy pods and has 0 currently"
        );
    }
}
