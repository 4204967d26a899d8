//! Updates of pods. The spec is immutable except for images, activeDeadlineSeconds, tolerations and few others; ephemeral
//! containers and resources change through their subresources.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, items_mut, present_mut, render_map, same};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::MIRROR;

use super::affinity::REQUIRED;
use super::container::validate_image_whitespace;
use super::pod::{annotations, annotations_path, qos_class, validate_any};
use super::{pod_meta, pod_spec};
use crate::kind_rules::keep_metadata;

const CHANGEABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
    `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
    tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
const ONLY_AMOUNTS: &str = "only cpu and memory resources are mutable";

/// Validates an updated pod.
pub fn validate(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_any(new, errors);
    validate_annotations(new, old, errors);
    let (spec, old_spec) = (FieldValue::top_level(new, "spec"), FieldValue::top_level(old, "spec"));
    for list in ["containers", "initContainers"] {
        let containers = spec.child(list);
        if containers.len() != old_spec.read(list).items().len() {
            containers.forbidden(errors, "pod updates may not add or remove containers");
            return;
        }
        for container in containers.items() {
            container.child("image").need(errors);
            validate_image_whitespace(&container, errors);
        }
    }
    if !validate_deadline(&spec, &old_spec, errors) {
        return;
    }
    validate_tolerations(&spec, &old_spec, errors);
    validate_gates(&spec, &old_spec, errors);
    if same(Some(spec.value), Some(old_spec.value)) {
        return;
    }
    let mut comparable = with_mutable_fields_of(spec.value, old_spec.value);
    if !old_spec.read("schedulingGates").items().is_empty() {
        validate_gated_placement(&mut comparable, &spec, &old_spec, errors);
    }
    if !same(Some(&comparable), Some(old_spec.value)) {
        errors.push(FieldError::forbidden(&spec.path, CHANGEABLE));
    }
}

/// Validates the annotations and their changes.
pub fn validate_annotations(new: &Value, old: &Value, errors: &mut ErrorList) {
    pod_meta::validate_change(annotations(new), annotations(old), &annotations_path(), errors);
    pod_meta::validate(annotations(new), &FieldValue::top_level(new, "spec"), &annotations_path(), errors);
}

/// The new spec with the mutable fields of the old one, to compare the rest.
fn with_mutable_fields_of(new: &Value, old: &Value) -> Value {
    let mut spec = new.clone();
    for list in ["containers", "initContainers"] {
        let images = old.get(list).map(Value::items).unwrap_or_default();
        for (container, old_container) in items_mut(&mut spec, list).iter_mut().zip(images) {
            meta::copy(container, old_container, "image");
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

/// activeDeadlineSeconds may only decrease. Returns whether to continue validation.
fn validate_deadline(spec: &FieldValue<'_>, old_spec: &FieldValue<'_>, errors: &mut ErrorList) -> bool {
    let deadline = spec.child("activeDeadlineSeconds");
    match (deadline.int(), old_spec.read("activeDeadlineSeconds").as_int()) {
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

fn validate_tolerations(spec: &FieldValue<'_>, old_spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let list = spec.child("tolerations");
    fn immutable_fields(toleration: &Value) -> [&str; 4] {
        ["key", "operator", "value", "effect"].map(|field| toleration.str(field))
    }
    let new: BTreeSet<[&str; 4]> = list.value.items().iter().map(immutable_fields).collect();
    if old_spec.read("tolerations").items().iter().all(|old| new.contains(&immutable_fields(old))) {
        pod_spec::validate_tolerations(&list, errors);
    } else {
        list.forbidden(errors, "existing toleration can not be modified except its tolerationSeconds");
    }
}

/// Scheduling gates may only be removed.
fn validate_gates(spec: &FieldValue<'_>, old_spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let known: BTreeSet<&str> =
        old_spec.read("schedulingGates").items().iter().map(|gate| gate.str("name")).collect();
    for gate in spec.child("schedulingGates").items() {
        let name = gate.child("name");
        if !known.contains(name.text()) {
            let detail = format!("only deletion is allowed, but found new scheduling gate '{}'", name.text());
            name.forbidden(errors, &detail);
        }
    }
}

/// While a pod is gated, its node selector and node affinity may become stricter.
fn validate_gated_placement(
    comparable: &mut Value,
    spec: &FieldValue<'_>,
    old_spec: &FieldValue<'_>,
    errors: &mut ErrorList,
) {
    let (new, old) = (spec.child("nodeSelector"), old_spec.read("nodeSelector"));
    if !same(Some(new.value), Some(old)) {
        if old.fields().into_iter().flatten().any(|(key, value)| new.value.get(key) != Some(value)) {
            let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
            errors.push(FieldError::invalid(&new.path, &render_map(Some(new.value)), detail));
        }
        meta::copy(comparable, old_spec.value, "nodeSelector");
    }
    let (node_affinity, old_affinity) = (
        spec.child("affinity").child("nodeAffinity"),
        old_spec.value.get_path(&["affinity", "nodeAffinity"]),
    );
    if same(Some(node_affinity.value), old_affinity) {
        return;
    }
    validate_narrowed_terms(&node_affinity, old_affinity, errors);
    if let Some(old_affinity) = old_affinity {
        comparable.entry("affinity").set("nodeAffinity", old_affinity.clone());
    } else if let Some(affinity) = present_mut(comparable, "affinity") {
        affinity.remove("nodeAffinity");
        // An affinity with nothing but node affinity may be added as a whole.
        if affinity.fields().is_some_and(|others| others.is_empty()) && old_spec.opt("affinity").is_none() {
            comparable.remove("affinity");
        }
    }
}

/// Checks that required node selector terms only got additional requirements.
fn validate_narrowed_terms(
    node_affinity: &FieldValue<'_>,
    old_affinity: Option<&Value>,
    errors: &mut ErrorList,
) {
    let Some(old) =
        old_affinity.and_then(|old_affinity| old_affinity.get_path(&[REQUIRED, "nodeSelectorTerms"]))
    else {
        return;
    };
    let terms = node_affinity.child(REQUIRED).child("nodeSelectorTerms");
    let old = old.items();
    if !old.is_empty() && terms.len() != old.len() {
        let rendered = format!("[]core.NodeSelectorTerm{}", if terms.is_empty() { "(nil)" } else { "{}" });
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.push(FieldError::invalid(&terms.path, &rendered, detail));
        return;
    }
    for (term, old) in terms.items().zip(old) {
        let part = |term: &Value, field: &str| term.get(field).cloned().unwrap_or_default();
        let fields = ["matchExpressions", "matchFields"];
        let was_empty = fields.iter().all(|field| part(old, field).items().is_empty());
        let is_empty = fields.iter().all(|field| part(term.value, field).items().is_empty());
        let keeps_old = fields.iter().all(|field| {
            let (new, old) = (part(term.value, field), part(old, field));
            new.items().get(..old.items().len()).is_some_and(|head| head == old.items())
        });
        if (was_empty && !is_empty) || !keeps_old {
            term.invalid(errors, "only additions are allowed (no mutations or deletions)");
        }
    }
}

/// Copies everything that the subresource `ephemeralcontainers` does not change.
pub fn prepare_ephemeral(new: &mut Value, old: &Value) {
    let added = new.get_path(&["spec", "ephemeralContainers"]).cloned();
    copy_all_but_metadata(new, old);
    match added {
        Some(added) => new.entry("spec").set("ephemeralContainers", added),
        None => {
            new.entry("spec").remove("ephemeralContainers");
        }
    }
}

fn copy_all_but_metadata(new: &mut Value, old: &Value) {
    meta::copy(new, old, "spec");
    meta::copy(new, old, "status");
    keep_metadata(new, old);
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
    validate_annotations(new, old, errors);
    let list = FieldValue::top_level(new, "spec").child("ephemeralContainers");
    for old_container in old.get_path(&["spec", "ephemeralContainers"]).map(Value::items).unwrap_or_default()
    {
        let name = quoted(old_container.str("name"));
        match list.value.items().iter().rfind(|container| container.str("name") == old_container.str("name"))
        {
            None => {
                let detail = format!("existing ephemeral containers {name} may not be removed\n");
                list.forbidden(errors, &detail);
            }
            Some(container) if !same(Some(container), Some(old_container)) => {
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
        let (new_list, old_list) = (
            new.get_path(&path).cloned().unwrap_or_default(),
            old.get_path(&path).cloned().unwrap_or_default(),
        );
        if new_list.items().len() != old_list.items().len() {
            return;
        }
        lists.push((field, new_list, old_list));
    }
    copy_all_but_metadata(new, old);
    for (field, requested, mut merged) in lists {
        let names = |list: &Value| -> Vec<String> {
            list.items().iter().map(|container| container.str("name").to_owned()).collect()
        };
        if names(&requested) != names(&merged) {
            new.entry("spec").set(field, requested);
            continue;
        }
        if let Value::Array(containers) = &mut merged {
            for (container, requested) in containers.iter_mut().zip(requested.items()) {
                meta::copy(container, requested, "resources");
                meta::copy(container, requested, "resizePolicy");
            }
        }
        if !merged.is_null() {
            new.entry("spec").set(field, merged);
        }
    }
}

/// Checks an update of the subresource `resize`.
pub fn validate_resize(new: &Value, old: &Value, errors: &mut ErrorList) {
    let has_pod_level = |pod: &Value| {
        ["requests", "limits"].iter().any(|field| pod.get_path(&["spec", "resources", field]).is_some())
    };
    let refusal = if has_pod_level(old) || has_pod_level(new) {
        Some("pods with pod-level resources cannot be resized")
    } else if annotations(old).get(MIRROR).is_some() {
        Some("static pods cannot be resized")
    } else if old.get_path(&["spec", "os", "name"]).and_then(Value::as_str) == Some("windows") {
        Some("windows pods cannot be resized")
    } else {
        None
    };
    if let Some(detail) = refusal {
        errors.clear();
        errors.push(FieldError::forbidden(&FieldPath::nameless(), detail));
        return;
    }
    validate_any(new, errors);
    let (spec, old_spec) = (FieldValue::top_level(new, "spec"), FieldValue::top_level(old, "spec"));
    let class =
        old.get_path(&["status", "qosClass"]).and_then(Value::as_str).filter(|class| !class.is_empty());
    if class.unwrap_or_else(|| qos_class(old, false)) != qos_class(new, false) {
        let rendered =
            quoted(new.get_path(&["status", "qosClass"]).and_then(Value::as_str).unwrap_or_default());
        let detail = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid(&spec.path, &rendered, detail));
    }
    let running_status = old.get_path(&["status", "containerStatuses"]).map(Value::items).unwrap_or_default();
    let running_status =
        running_status.iter().find(|status| status.get_path(&["state", "running"]).is_some());
    if running_status.is_some_and(|status| status.get("resources").is_none()) {
        spec.forbidden(errors, "Pod running on node without support for resize");
    }
    if !validate_same_containers(&spec, &old_spec, errors) {
        return;
    }
    let error_count = errors.len();
    validate_amounts(&spec, &old_spec, errors);
    if errors.len() == error_count && error_count == 0 && !only_resources_differ(spec.value, old_spec.value) {
        spec.forbidden(errors, ONLY_AMOUNTS);
    }
}

fn validate_same_containers(
    spec: &FieldValue<'_>,
    old_spec: &FieldValue<'_>,
    errors: &mut ErrorList,
) -> bool {
    let error_count = errors.len();
    for field in ["containers", "initContainers"] {
        let (new, old) = (spec.child(field), old_spec.read(field).items());
        if new.len() != old.len() {
            new.forbidden(errors, &format!("{field} may not be added or removed on resize"));
            continue;
        }
        for (container, old) in new.items().zip(old) {
            if container.str("name") != old.str("name") {
                let detail = format!("{field} may not be renamed or reordered on resize");
                container.child("name").forbidden(errors, &detail);
            }
        }
    }
    errors.len() == error_count
}

fn is_sidecar(container: &Value) -> bool {
    container.str("restartPolicy") == "Always"
}

/// A container without the resources that a resize may change, to compare the rest.
fn without_resizable(container: &Value, old: &Value) -> Value {
    let mut rest = container.clone();
    for part in ["limits", "requests"] {
        let had_amounts = old.get_path(&["resources", part]).is_some();
        let Some(resources) = rest.get_mut("resources") else { continue };
        if !had_amounts {
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

fn only_resources_differ(new: &Value, old: &Value) -> bool {
    let comparable = |spec: &Value| {
        let mut spec = spec.clone();
        for list in ["containers", "initContainers"] {
            let old_containers = old.get(list).map(Value::items).unwrap_or_default();
            for (container, old_container) in items_mut(&mut spec, list).iter_mut().zip(old_containers) {
                *container = without_resizable(container, old_container);
            }
        }
        spec
    };
    same(Some(&comparable(new)), Some(&comparable(old)))
}

fn validate_amounts(spec: &FieldValue<'_>, old_spec: &FieldValue<'_>, errors: &mut ErrorList) {
    for field in ["initContainers", "containers"] {
        for (new, old) in spec.child(field).items().zip(old_spec.read(field).items()) {
            if field == "containers" || is_sidecar(old) {
                validate_container_resize(&new, old, errors);
            }
        }
    }
    for (new, old) in spec.child("containers").items().zip(old_spec.read("containers").items()) {
        if !same(Some(&without_resizable(new.value, old)), Some(&without_resizable(old, old))) {
            spec.forbidden(errors, ONLY_AMOUNTS);
        }
    }
    for (new, old) in spec.child("initContainers").items().zip(old_spec.read("initContainers").items()) {
        if is_sidecar(new.value) {
            if !same(Some(&without_resizable(new.value, old)), Some(&without_resizable(old, old))) {
                spec.forbidden(errors, "only cpu and memory resources for sidecar containers are mutable");
            }
        } else if !same(Some(new.value), Some(old)) {
            spec.forbidden(errors, "resources for non-sidecar init containers are immutable");
        }
    }
}

fn validate_container_resize(new: &FieldValue<'_>, old: &Value, errors: &mut ErrorList) {
    let resources = new.child("resources");
    for part in ["requests", "limits"] {
        let new_amounts = resources.child(part);
        let old_amounts = old.get_path(&["resources", part]).and_then(Value::fields);
        if old_amounts.into_iter().flatten().any(|(name, _)| new_amounts.value.get(name).is_none()) {
            new_amounts.forbidden(errors, &format!("resource {part} cannot be removed"));
        }
    }
    let policies = new.read("resizePolicy").items();
    let restarts_container = policies
        .iter()
        .find(|policy| policy.str("resourceName") == "memory")
        .is_some_and(|policy| policy.str("restartPolicy") == "RestartContainer");
    if restarts_container {
        return;
    }
    let new_limit = resources.child("limits").child("memory");
    let old_limit = old.get_path(&["resources", "limits", "memory"]);
    let old_limit = old_limit.map(|value| FieldValue { value, path: FieldPath::root() }.amount());
    let change = match (new_limit.amount(), old_limit) {
        (Some(new_limit), Some(Some(old_limit))) if new_limit < old_limit => "decreased",
        (Some(_), None) => "added",
        _ => return,
    };
    let detail = format!("memory limits cannot be {change} unless resizePolicy is RestartContainer");
    errors.push(FieldError::forbidden(&resources.path.child("limits").key("memory"), &detail));
}

#[cfg(test)]
mod tests;
