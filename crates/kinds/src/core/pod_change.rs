//! Updates of pods. The spec is immutable except for images, activeDeadlineSeconds, tolerations and few others; ephemeral
//! containers and resources change through their subresources.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, items_mut, present_mut, same, shown_map};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::MIRROR;

use super::affinity::REQUIRED;
use super::container::trimmed_image;
use super::pod::{annotations, annotations_path, quality, validate_any};
use super::{pod_meta, pod_spec};

const CHANGEABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
    `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
    tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
const ONLY_AMOUNTS: &str = "only cpu and memory resources are mutable";

/// Checks a changed pod.
pub fn validate(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_any(new, errors);
    annotation_changes(new, old, errors);
    let (spec, was) = (FieldValue::of(new, "spec"), FieldValue::of(old, "spec"));
    for list in ["containers", "initContainers"] {
        let containers = spec.child(list);
        if containers.len() != was.read(list).items().len() {
            containers.forbidden(errors, "pod updates may not add or remove containers");
            return;
        }
        for container in containers.items() {
            container.child("image").need(errors);
            trimmed_image(&container, errors);
        }
    }
    if !deadline(&spec, &was, errors) {
        return;
    }
    tolerations(&spec, &was, errors);
    gates(&spec, &was, errors);
    if same(Some(spec.value), Some(was.value)) {
        return;
    }
    let mut rest = with_changeable_of(spec.value, was.value);
    if !was.read("schedulingGates").items().is_empty() {
        gated_placement(&mut rest, &spec, &was, errors);
    }
    if !same(Some(&rest), Some(was.value)) {
        errors.push(FieldError::forbidden(&spec.path, CHANGEABLE));
    }
}

/// Checks the annotations and how they changed.
pub fn annotation_changes(new: &Value, old: &Value, errors: &mut ErrorList) {
    pod_meta::validate_change(annotations(new), annotations(old), &annotations_path(), errors);
    pod_meta::validate(annotations(new), &FieldValue::of(new, "spec"), &annotations_path(), errors);
}

/// The new spec with the mutable fields of the old one, to compare the rest.
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
    spec
}

/// activeDeadlineSeconds may only decrease. Answers whether to go on with the validation.
fn deadline(spec: &FieldValue<'_>, was: &FieldValue<'_>, errors: &mut ErrorList) -> bool {
    let deadline = spec.child("activeDeadlineSeconds");
    match (deadline.int(), was.read("activeDeadlineSeconds").as_int()) {
        (Some(new), _) if !(0..=i64::from(i32::MAX)).contains(&new) => {
            deadline.in_range(errors, 0, i64::from(i32::MAX));
            false
        }
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

fn tolerations(spec: &FieldValue<'_>, was: &FieldValue<'_>, errors: &mut ErrorList) {
    let list = spec.child("tolerations");
    fn fixed(one: &Value) -> [&str; 4] {
        ["key", "operator", "value", "effect"].map(|field| one.str(field))
    }
    let new: BTreeSet<[&str; 4]> = list.value.items().iter().map(fixed).collect();
    if was.read("tolerations").items().iter().all(|old| new.contains(&fixed(old))) {
        pod_spec::tolerations(&list, errors);
    } else {
        list.forbidden(errors, "existing toleration can not be modified except its tolerationSeconds");
    }
}

/// Scheduling gates may only be removed.
fn gates(spec: &FieldValue<'_>, was: &FieldValue<'_>, errors: &mut ErrorList) {
    let known: BTreeSet<&str> =
        was.read("schedulingGates").items().iter().map(|gate| gate.str("name")).collect();
    for gate in spec.child("schedulingGates").items() {
        let name = gate.child("name");
        if !known.contains(name.text()) {
            let wrong = format!("only deletion is allowed, but found new scheduling gate '{}'", name.text());
            name.forbidden(errors, &wrong);
        }
    }
}

/// While a pod is gated, its node selector and node affinity may become stricter.
fn gated_placement(rest: &mut Value, spec: &FieldValue<'_>, was: &FieldValue<'_>, errors: &mut ErrorList) {
    let (new, old) = (spec.child("nodeSelector"), was.read("nodeSelector"));
    if !same(Some(new.value), Some(old)) {
        if old.fields().into_iter().flatten().any(|(key, value)| new.value.get(key) != Some(value)) {
            let wrong = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
            errors.push(FieldError::invalid(&new.path, &shown_map(Some(new.value)), wrong));
        }
        meta::copy(rest, was.value, "nodeSelector");
    }
    let (nodes, before) =
        (spec.child("affinity").child("nodeAffinity"), was.value.at(&["affinity", "nodeAffinity"]));
    if same(Some(nodes.value), before) {
        return;
    }
    narrowed(&nodes, before, errors);
    if let Some(before) = before {
        rest.entry("affinity").set("nodeAffinity", before.clone());
    } else if let Some(affinity) = present_mut(rest, "affinity") {
        affinity.remove("nodeAffinity");
        // An affinity with nothing but node affinity may be added as a whole.
        if affinity.fields().is_some_and(|others| others.is_empty()) && was.opt("affinity").is_none() {
            rest.remove("affinity");
        }
    }
}

/// Checks that required node selector terms only got additional requirements.
fn narrowed(nodes: &FieldValue<'_>, before: Option<&Value>, errors: &mut ErrorList) {
    let Some(old) = before.and_then(|before| before.at(&[REQUIRED, "nodeSelectorTerms"])) else { return };
    let features = nodes.child(REQUIRED).child("nodeSelectorTerms");
    let old = old.items();
    if !old.is_empty() && features.len() != old.len() {
        let shown = format!("[]core.NodeSelectorTerm{}", if features.is_empty() { "(nil)" } else { "{}" });
        let wrong = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.push(FieldError::invalid(&features.path, &shown, wrong));
        return;
    }
    for (term, old) in features.items().zip(old) {
        let part = |holder: &Value, field: &str| holder.get(field).cloned().unwrap_or_default();
        let fields = ["matchExpressions", "matchFields"];
        let was_empty = fields.iter().all(|field| part(old, field).items().is_empty());
        let is_empty = fields.iter().all(|field| part(term.value, field).items().is_empty());
        let kept = fields.iter().all(|field| {
            let (new, old) = (part(term.value, field), part(old, field));
            new.items().get(..old.items().len()).is_some_and(|head| head == old.items())
        });
        if (was_empty && !is_empty) || !kept {
            term.invalid(errors, "only additions are allowed (no mutations or deletions)");
        }
    }
}

/// Copies everything that the subresource `ephemeralcontainers` does not change.
pub fn prepare_ephemeral(new: &mut Value, old: &Value) {
    let added = new.at(&["spec", "ephemeralContainers"]).cloned();
    keep_all_but_metadata(new, old);
    match added {
        Some(added) => new.entry("spec").set("ephemeralContainers", added),
        None => {
            new.entry("spec").remove("ephemeralContainers");
        }
    }
}

fn keep_all_but_metadata(new: &mut Value, old: &Value) {
    meta::copy(new, old, "spec");
    meta::copy(new, old, "status");
    for field in crate::DESCRIPTIONS {
        meta::copy(new.entry("metadata"), meta::of(old), field);
    }
}

/// Checks ephemeral containers: existing ones are immutable.
pub fn validate_ephemeral(new: &Value, old: &Value, errors: &mut ErrorList) {
    if annotations(old).get(MIRROR).is_some() {
        errors.clear();
        errors.push(FieldError::forbidden(
            &FieldPath::nameless(),
            "static pods do not support ephemeral containers",
        ));
        return;
    }
    validate_any(new, errors);
    annotation_changes(new, old, errors);
    let list = FieldValue::of(new, "spec").child("ephemeralContainers");
    for was in old.at(&["spec", "ephemeralContainers"]).map(Value::items).unwrap_or_default() {
        let name = quoted(was.str("name"));
        match list.value.items().iter().rfind(|one| one.str("name") == was.str("name")) {
            None => {
                let wrong = format!("existing ephemeral containers {name} may not be removed\n");
                list.forbidden(errors, &wrong);
            }
            Some(one) if !same(Some(one), Some(was)) => {
                list.forbidden(errors, &format!("existing ephemeral containers {name} may not be changed"));
            }
            Some(_) => {}
        }
    }
}

/// Copies everything that the subresource `resize` does not change: all but container resources.
pub fn prepare_resize(new: &mut Value, old: &Value) {
    let mut lists = Vec::new();
    for field in ["containers", "initContainers"] {
        let path = ["spec", field];
        let (one, other) =
            (new.at(&path).cloned().unwrap_or_default(), old.at(&path).cloned().unwrap_or_default());
        if one.items().len() != other.items().len() {
            return;
        }
        lists.push((field, one, other));
    }
    keep_all_but_metadata(new, old);
    for (field, wanted, mut merged) in lists {
        let names = |list: &Value| -> Vec<String> {
            list.items().iter().map(|one| one.str("name").to_owned()).collect()
        };
        if names(&wanted) != names(&merged) {
            new.entry("spec").set(field, wanted);
            continue;
        }
        if let Value::Array(all) = &mut merged {
            for (container, wanted) in all.iter_mut().zip(wanted.items()) {
                meta::copy(container, wanted, "resources");
                meta::copy(container, wanted, "resizePolicy");
            }
        }
        if !merged.is_null() {
            new.entry("spec").set(field, merged);
        }
    }
}

/// Checks an update of the subresource `resize`.
pub fn validate_resize(new: &Value, old: &Value, errors: &mut ErrorList) {
    let as_whole = |pod: &Value| {
        ["requests", "limits"].iter().any(|field| pod.at(&["spec", "resources", field]).is_some())
    };
    let refused = if as_whole(old) || as_whole(new) {
        Some("pods with pod-level resources cannot be resized")
    } else if annotations(old).get(MIRROR).is_some() {
        Some("static pods cannot be resized")
    } else if old.at(&["spec", "os", "name"]).and_then(Value::as_str) == Some("windows") {
        Some("windows pods cannot be resized")
    } else {
        None
    };
    if let Some(why) = refused {
        errors.clear();
        errors.push(FieldError::forbidden(&FieldPath::nameless(), why));
        return;
    }
    validate_any(new, errors);
    let (spec, was) = (FieldValue::of(new, "spec"), FieldValue::of(old, "spec"));
    let class = old.at(&["status", "qosClass"]).and_then(Value::as_str).filter(|class| !class.is_empty());
    if class.unwrap_or_else(|| quality(old, false)) != quality(new, false) {
        let shown = quoted(new.at(&["status", "qosClass"]).and_then(Value::as_str).unwrap_or_default());
        let wrong = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid(&spec.path, &shown, wrong));
    }
    let running = old.at(&["status", "containerStatuses"]).map(Value::items).unwrap_or_default();
    let running = running.iter().find(|status| status.at(&["state", "running"]).is_some());
    if running.is_some_and(|status| status.get("resources").is_none()) {
        spec.forbidden(errors, "Pod running on node without support for resize");
    }
    if !same_containers(&spec, &was, errors) {
        return;
    }
    let before = errors.len();
    amounts(&spec, &was, errors);
    if errors.len() == before && before == 0 && !only_amounts_differ(spec.value, was.value) {
        spec.forbidden(errors, ONLY_AMOUNTS);
    }
}

fn same_containers(spec: &FieldValue<'_>, was: &FieldValue<'_>, errors: &mut ErrorList) -> bool {
    let before = errors.len();
    for field in ["containers", "initContainers"] {
        let (new, old) = (spec.child(field), was.read(field).items());
        if new.len() != old.len() {
            new.forbidden(errors, &format!("{field} may not be added or removed on resize"));
            continue;
        }
        for (one, old) in new.items().zip(old) {
            if one.str("name") != old.str("name") {
                let wrong = format!("{field} may not be renamed or reordered on resize");
                one.child("name").forbidden(errors, &wrong);
            }
        }
    }
    errors.len() == before
}

fn is_sidecar(container: &Value) -> bool {
    container.str("restartPolicy") == "Always"
}

/// A container without the resources that a resize may change, to compare the rest.
fn without_amounts(container: &Value, was: &Value) -> Value {
    let mut rest = container.clone();
    for part in ["limits", "requests"] {
        let said = was.at(&["resources", part]).is_some();
        let Some(resources) = rest.get_mut("resources") else { continue };
        if !said {
            resources.remove(part);
        } else if let Some(amounts) = resources.get_mut(part) {
            amounts.remove("cpu");
            amounts.remove("memory");
            remove_if_empty(resources, part);
        }
    }
    remove_if_empty(&mut rest, "resources");
    rest
}

/// Removes an empty map or struct that is no pointer in Go.
fn remove_if_empty(object: &mut Value, field: &str) {
    if object.get(field).and_then(Value::fields).is_some_and(|fields| fields.is_empty()) {
        object.remove(field);
    }
}

fn only_amounts_differ(new: &Value, old: &Value) -> bool {
    let bare = |spec: &Value| {
        let mut spec = spec.clone();
        for list in ["containers", "initContainers"] {
            let before = old.get(list).map(Value::items).unwrap_or_default();
            for (container, was) in items_mut(&mut spec, list).iter_mut().zip(before) {
                *container = without_amounts(container, was);
            }
        }
        spec
    };
    same(Some(&bare(new)), Some(&bare(old)))
}

fn amounts(spec: &FieldValue<'_>, was: &FieldValue<'_>, errors: &mut ErrorList) {
    for field in ["initContainers", "containers"] {
        for (new, old) in spec.child(field).items().zip(was.read(field).items()) {
            if field == "containers" || is_sidecar(old) {
                one_resize(&new, old, errors);
            }
        }
    }
    for (new, old) in spec.child("containers").items().zip(was.read("containers").items()) {
        if !same(Some(&without_amounts(new.value, old)), Some(&without_amounts(old, old))) {
            spec.forbidden(errors, ONLY_AMOUNTS);
        }
    }
    for (new, old) in spec.child("initContainers").items().zip(was.read("initContainers").items()) {
        if is_sidecar(new.value) {
            if !same(Some(&without_amounts(new.value, old)), Some(&without_amounts(old, old))) {
                spec.forbidden(errors, "only cpu and memory resources for sidecar containers are mutable");
            }
        } else if !same(Some(new.value), Some(old)) {
            spec.forbidden(errors, "resources for non-sidecar init containers are immutable");
        }
    }
}

fn one_resize(new: &FieldValue<'_>, old: &Value, errors: &mut ErrorList) {
    let resources = new.child("resources");
    for part in ["requests", "limits"] {
        let now = resources.child(part);
        let before = old.at(&["resources", part]).and_then(Value::fields);
        if before.into_iter().flatten().any(|(name, _)| now.value.get(name).is_none()) {
            now.forbidden(errors, &format!("resource {part} cannot be removed"));
        }
    }
    let policies = new.read("resizePolicy").items();
    let restarts = policies
        .iter()
        .find(|policy| policy.str("resourceName") == "memory")
        .is_some_and(|policy| policy.str("restartPolicy") == "RestartContainer");
    if restarts {
        return;
    }
    let now = resources.child("limits").child("memory");
    let before = old.at(&["resources", "limits", "memory"]);
    let before = before.map(|value| FieldValue { value, path: FieldPath::root() }.amount());
    let done = match (now.amount(), before) {
        (Some(now), Some(Some(before))) if now < before => "decreased",
        (Some(_), None) => "added",
        _ => return,
    };
    let wrong = format!("memory limits cannot be {done} unless resizePolicy is RestartContainer");
    errors.push(FieldError::forbidden(&resources.path.child("limits").key("memory"), &wrong));
}

#[cfg(test)]
mod tests;
