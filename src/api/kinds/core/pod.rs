//! Pods.

use super::{container, pod_spec};
use crate::api::field::{FieldError, Path};
use crate::api::kinds::check::{Node, fill, items_mut, same};
use crate::api::kinds::quantity::Amount;
use crate::api::kinds::{Errors, Occasion};
use crate::api::meta;
use crate::api::value::Value;

const MIRROR: &str = "kubernetes.io/config.mirror";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const CHANGEABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
    `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
    tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// A new pod is pending, and what it asks for decides who is thrown out first.
pub fn prepare_create(pod: &mut Value, _: &Occasion<'_>) {
    let mut status = Value::object();
    status.set("phase", "Pending");
    status.set("qosClass", quality(pod));
    if pod.at(&["spec", "schedulingGates"]).is_some_and(|gates| !gates.items().is_empty()) {
        let mut condition = Value::object();
        condition.set("type", "PodScheduled");
        condition.set("status", "False");
        condition.set("reason", "SchedulingGated");
        condition.set("message", "Scheduling is blocked due to non-empty scheduling gates");
        condition.set("lastProbeTime", Value::Null);
        condition.set("lastTransitionTime", Value::Null);
        status.set("conditions", vec![condition]);
    }
    pod.set("status", status);
}

/// The quality of service is decided once.
pub fn prepare_status(new: &mut Value, old: &Value, _: &Occasion<'_>) {
    if let Some(class) = old.at(&["status", "qosClass"]) {
        fill(new.entry("status"), "qosClass", class.clone());
    }
}

/// The quality of service: guaranteed when every container asks for exactly its limits, best effort when nobody asks
/// for anything.
fn quality(pod: &Value) -> &'static str {
    let spec = Node::of(pod, "spec");
    let (mut asks, mut guaranteed, mut any) = (false, true, false);
    for list in ["containers", "initContainers"] {
        for container in spec.child(list).items() {
            any = true;
            let resources = container.child("resources");
            let amount = |kind: &str, name: &str| -> Option<Amount> {
                resources.child(kind).child(name).amount().filter(|amount| !amount.is_zero())
            };
            for name in ["cpu", "memory"] {
                let (request, limit) = (amount("requests", name), amount("limits", name));
                asks |= request.is_some() || limit.is_some();
                guaranteed &= limit.is_some() && request == limit;
            }
        }
    }
    match (asks, guaranteed && any) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Checks the annotations that mean something to pods.
pub fn validate_annotations(annotations: &Value, spec: &Node<'_>, path: &Path, errors: &mut Errors) {
    if let Some(mirror) = annotations.get(MIRROR).filter(|_| spec.child("nodeName").is_empty()) {
        let wrong = "must set spec.nodeName if mirror pod annotation is set";
        Node { value: mirror, path: path.key(MIRROR) }.invalid(errors, wrong);
    }
    if let Some(cost) = annotations.get(DELETION_COST) {
        let text = cost.as_str().unwrap_or_default();
        let leading =
            text.starts_with('+') || (text.len() > 1 && text.starts_with('0')) || text.starts_with("-0");
        if leading || text.parse::<i32>().is_err() {
            Node { value: cost, path: path.key(DELETION_COST) }.invalid(errors, "must be a 32bit integer");
        }
    }
}

/// Checks a pod.
fn validate_any(pod: &Value, errors: &mut Errors) {
    let spec = Node::of(pod, "spec");
    let annotations = meta::of(pod).get("annotations").unwrap_or(&Value::Null);
    validate_annotations(annotations, &spec, &Path::new("metadata").child("annotations"), errors);
    pod_spec::validate(&spec, true, errors);
    if spec.child("serviceAccountName").is_empty() {
        for volume in spec.child("volumes").items() {
            for source in volume.child("projected").child("sources").items() {
                let token = source.child("serviceAccountToken");
                if token.is_set() {
                    token.forbidden(errors, "must not be specified when serviceAccountName is not set");
                }
            }
        }
    }
    for list in ["containers", "initContainers"] {
        for one in spec.child(list).items() {
            container::trimmed_image(&one, errors);
        }
    }
}

/// Checks a new pod.
pub fn validate(pod: &Value, errors: &mut Errors) {
    validate_any(pod, errors);
    let spec = Node::of(pod, "spec");
    if !spec.child("ephemeralContainers").is_empty() {
        spec.child("ephemeralContainers").forbidden(errors, "cannot be set on create");
    }
    if !spec.child("nodeName").is_empty() && !spec.child("schedulingGates").is_empty() {
        let wrong = "cannot be set until all schedulingGates have been cleared";
        spec.child("nodeName").forbidden(errors, wrong);
    }
}

/// Checks a changed pod: images, deadlines and tolerations may change, hardly anything else.
pub fn validate_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate_any(new, errors);
    validate_annotation_changes(new, old, errors);
    let (spec, was) = (Node::of(new, "spec"), Node::of(old, "spec"));
    for list in ["containers", "initContainers"] {
        if spec.child(list).len() != was.child(list).len() {
            spec.child(list).forbidden(errors, "pod updates may not add or remove containers");
            return;
        }
    }
    if !validate_deadline(&spec, &was, errors) {
        return;
    }
    validate_tolerations(&spec, &was, errors);
    let known: Vec<&str> =
        was.child("schedulingGates").items().map(|gate| gate.child("name").text()).collect();
    for gate in spec.child("schedulingGates").items() {
        let name = gate.child("name");
        if !known.contains(&name.text()) {
            let wrong = format!("only deletion is allowed, but found new scheduling gate '{}'", name.text());
            name.forbidden(errors, &wrong);
        }
    }
    if !same(Some(&with_changeable_of(spec.value, was.value)), Some(was.value)) {
        errors.push(FieldError::forbidden(&spec.path, CHANGEABLE));
    }
}

/// The new spec with all that may change put back.
fn with_changeable_of(new: &Value, old: &Value) -> Value {
    let mut spec = new.clone();
    for list in ["containers", "initContainers"] {
        let images = old.get(list).map(Value::items).unwrap_or_default();
        for (container, was) in items_mut(&mut spec, list).iter_mut().zip(images) {
            meta::copy(container, was, "image");
        }
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        meta::copy(&mut spec, old, field);
    }
    let grace = "terminationGracePeriodSeconds";
    let was_negative = old.get(grace).and_then(Value::as_int).is_some_and(|seconds| seconds < 0);
    if was_negative && spec.get(grace) == Some(&Value::Int(1)) {
        meta::copy(&mut spec, old, grace);
    }
    let gated = old.get("schedulingGates").is_some_and(|gates| !gates.items().is_empty());
    if gated {
        meta::copy(&mut spec, old, "nodeSelector");
        meta::copy(&mut spec, old, "affinity");
    }
    spec
}

fn validate_annotation_changes(new: &Value, old: &Value, errors: &mut Errors) {
    let annotation = |pod| meta::of(pod).at(&["annotations", MIRROR]).cloned();
    let (new, old) = (annotation(new), annotation(old));
    let path = Path::new("metadata").child("annotations").key(MIRROR);
    match (old, new) {
        (None, Some(_)) => errors.push(FieldError::forbidden(&path, "may not add mirror pod annotation")),
        (Some(old), new) if new.as_ref() != Some(&old) => {
            errors.push(FieldError::forbidden(&path, "may not remove or update mirror pod annotation"));
        }
        _ => {}
    }
}

/// Deadlines may only come nearer. Answers whether the rest is worth looking at.
fn validate_deadline(spec: &Node<'_>, was: &Node<'_>, errors: &mut Errors) -> bool {
    let deadline = spec.child("activeDeadlineSeconds");
    match (deadline.int(), was.child("activeDeadlineSeconds").int()) {
        (Some(new), Some(old)) if new > old => {
            deadline.invalid(errors, "must be less than or equal to previous value");
            false
        }
        (None, Some(_)) => {
            deadline.invalid(errors, "must not update from a positive integer to nil value");
            true
        }
        _ => true,
    }
}

fn validate_tolerations(spec: &Node<'_>, was: &Node<'_>, errors: &mut Errors) {
    let list = spec.child("tolerations");
    let without_time = |toleration: &Value| {
        let mut rest = toleration.clone();
        rest.remove("tolerationSeconds");
        rest
    };
    let new: Vec<Value> = list.value.items().iter().map(without_time).collect();
    let kept = was.child("tolerations").value.items().iter().all(|old| new.contains(&without_time(old)));
    if !kept {
        list.forbidden(errors, "existing toleration can not be modified except its tolerationSeconds");
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{NOBODY, each_change_refused, each_refused, object};
    use super::*;

    fn base() -> Value {
        object(
            r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i:1"}],"restartPolicy":"Always",
                "activeDeadlineSeconds":9,"tolerations":[{"key":"k","operator":"Exists"}]}}"#,
        )
    }

    #[test]
    fn each_rule_of_a_new_pod_refuses() {
        each_refused(
            &base(),
            validate,
            &[
                ("spec.ephemeralContainers", r#"[{"name":"e","image":"i"}]"#, "cannot be set on create"),
                ("spec.containers.0.image", r#"" i""#, "must not have leading or trailing whitespace"),
                (
                    "metadata.annotations",
                    r#"{"kubernetes.io/config.mirror":"x"}"#,
                    "must set spec.nodeName if mirror",
                ),
                (
                    "metadata.annotations",
                    r#"{"controller.kubernetes.io/pod-deletion-cost":"x"}"#,
                    "must be a 32bit integer",
                ),
                (
                    "spec.volumes",
                    r#"[{"name":"t","projected":{"sources":[{"serviceAccountToken":{"path":"t"}}]}}]"#,
                    "serviceAccountName is not set",
                ),
            ],
        );
    }

    #[test]
    fn each_forbidden_change_is_refused() {
        each_change_refused(
            &base(),
            validate_update,
            &[
                (
                    "spec.restartPolicy",
                    r#""Never""#,
                    "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.init",
                ),
                ("spec.nodeName", r#""n""#, CHANGEABLE),
                (
                    "spec.containers",
                    r#"[{"name":"c","image":"i:1"},{"name":"d","image":"i:1"}]"#,
                    "may not add or remove containers",
                ),
                (
                    "spec.activeDeadlineSeconds",
                    "10",
                    "spec.activeDeadlineSeconds: Invalid value: 10: must be less than or equal",
                ),
                (
                    "spec.activeDeadlineSeconds",
                    "null",
                    "must not update from a positive integer to nil value",
                ),
                ("spec.tolerations", "[]", "existing toleration can not be modified"),
                ("spec.schedulingGates", r#"[{"name":"a"}]"#, "found new scheduling gate 'a'"),
            ],
        );
        let mut new = base();
        new.entry("spec").set("containers", object(r#"[{"name":"c","image":"i:2"}]"#));
        new.entry("spec").set("activeDeadlineSeconds", 8);
        let mut errors = Errors::new();
        validate_update(&new, &base(), &mut errors);
        assert_eq!(errors, []);
    }

    #[test]
    fn quality_follows_requests_and_limits() {
        let table = [
            ("{}", "BestEffort"),
            (r#"{"requests":{"cpu":"1"}}"#, "Burstable"),
            (
                r#"{"requests":{"cpu":"1","memory":"1Gi"},"limits":{"cpu":"1","memory":"1024Mi"}}"#,
                "Guaranteed",
            ),
            (r#"{"limits":{"cpu":"1","memory":"1Gi"}}"#, "Burstable"),
            (r#"{"requests":{"cpu":"0"}}"#, "BestEffort"),
        ];
        for (resources, wanted) in table {
            let mut pod = base();
            pod.entry("spec")
                .set("containers", object(&format!(r#"[{{"name":"c","resources":{resources}}}]"#)));
            prepare_create(&mut pod, &Occasion { now: "", user: &NOBODY });
            assert_eq!(pod.at(&["status", "qosClass"]), Some(&Value::from(wanted)), "{resources}");
            assert_eq!(pod.at(&["status", "phase"]), Some(&Value::from("Pending")));
        }
    }
}
