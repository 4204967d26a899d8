//! Pod annotations with a meaning: mirror pods, and former alpha fields.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::{APPARMOR, MIRROR, SECCOMP_CONTAINER, SECCOMP_POD};

use super::pod_spec;
use super::volume_source::local_path;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const LOCALHOST: &str = "localhost/";
const KINDS_OF_CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Whether the pod deletion cost annotation is no valid number.
pub fn has_bad_cost(annotations: &Value) -> bool {
    annotations.get(DELETION_COST).and_then(Value::as_str).is_some_and(|cost| {
        let leading =
            cost.starts_with('+') || (cost.len() > 1 && cost.starts_with('0')) || cost.starts_with("-0");
        leading || cost.parse::<i32>().is_err()
    })
}

/// Checks the pod annotations with a meaning.
pub fn validate(annotations: &Value, spec: &FieldValue<'_>, path: &FieldPath, errors: &mut ErrorList) {
    if annotations.fields().is_none_or(|fields| fields.is_empty()) {
        return;
    }
    let at =
        |key: &str| FieldValue { value: annotations.get(key).unwrap_or(&Value::Null), path: path.key(key) };
    if annotations.get(MIRROR).is_some() && spec.str("nodeName").is_empty() {
        at(MIRROR).invalid(errors, "must set spec.nodeName if mirror pod annotation is set");
    }
    tolerations(annotations.str(TOLERATIONS), path, errors);
    if has_bad_cost(annotations) && errors.features().has(Feature::PodDeletionCost) {
        at(DELETION_COST).invalid(errors, "must be a 32bit integer");
    }
    if annotations.get(SECCOMP_POD).is_some() {
        seccomp_name(&at(SECCOMP_POD).named(path.child(SECCOMP_POD)), errors);
    }
    for (key, value) in annotations.fields().into_iter().flatten() {
        if key.starts_with(SECCOMP_CONTAINER) {
            seccomp_name(&FieldValue { value, path: path.child(key) }, errors);
        }
    }
    let known: BTreeSet<&str> = KINDS_OF_CONTAINERS
        .iter()
        .flat_map(|kind| spec.read(kind).items())
        .map(|container| container.str("name"))
        .collect();
    for (key, value) in annotations.fields().into_iter().flatten() {
        if let Some(container) = key.strip_prefix(APPARMOR) {
            apparmor_name(container, &FieldValue { value, path: path.key(key) }, &known, errors);
        }
    }
}

/// Checks the annotation with tolerations.
fn tolerations(text: &str, path: &FieldPath, errors: &mut ErrorList) {
    if text.is_empty() {
        return;
    }
    match serde_json::from_str::<Vec<BTreeMap<String, serde_json::Value>>>(text) {
        Ok(list) => {
            let list: Vec<Value> = list.iter().map(toleration).collect();
            let list = Value::Array(list.into());
            pod_spec::tolerations(&FieldValue { value: &list, path: path.child(TOLERATIONS) }, errors);
        }
        Err(wrong) => errors.push(FieldError::invalid(path, &quoted(TOLERATIONS), &wrong.to_string())),
    }
}

fn toleration(fields: &BTreeMap<String, serde_json::Value>) -> Value {
    let mut toleration = Value::object();
    for (field, value) in fields {
        match value {
            serde_json::Value::String(text) => toleration.set(field, text.as_str()),
            serde_json::Value::Number(number) => toleration.set(field, number.as_i64().unwrap_or_default()),
            _ => {}
        }
    }
    toleration
}

fn seccomp_name(node: &FieldValue<'_>, errors: &mut ErrorList) {
    match node.text() {
        "runtime/default" | "docker/default" | "unconfined" => {}
        text => match text.strip_prefix(LOCALHOST) {
            Some(file) => {
                let file = Value::from(file);
                local_path(&FieldValue { value: &file, path: node.path.clone() }, errors);
            }
            None => node.invalid_text(errors, "must be a valid seccomp profile"),
        },
    }
}

fn apparmor_name(container: &str, node: &FieldValue<'_>, known: &BTreeSet<&str>, errors: &mut ErrorList) {
    if !known.contains(container) {
        errors.push(FieldError::invalid(&node.path, &quoted(container), "container not found"));
    }
    let text = node.text();
    if !matches!(text, "" | "runtime/default" | "unconfined") && !text.starts_with(LOCALHOST) {
        node.invalid_text(errors, &format!("invalid AppArmor profile name: {}", quoted(text)));
    }
}

/// The annotation value of a profile field; `None` if the field is invalid.
pub fn profile_name(profile: &Value) -> Option<String> {
    match profile.str("type") {
        "Unconfined" => Some("unconfined".to_owned()),
        "RuntimeDefault" => Some("runtime/default".to_owned()),
        "Localhost" => {
            profile.get("localhostProfile").and_then(Value::as_str).map(|file| format!("{LOCALHOST}{file}"))
        }
        _ => None,
    }
}

/// The profile field of an annotation value; `None` if it is invalid.
pub fn profile_of(name: &str) -> Option<Value> {
    let mut profile = Value::object();
    match name {
        "unconfined" => profile.set("type", "Unconfined"),
        "runtime/default" => profile.set("type", "RuntimeDefault"),
        _ => {
            let file =
                name.strip_prefix(LOCALHOST).filter(|file| !file.is_empty() && file.trim() == *file)?;
            profile.set("type", "Localhost");
            profile.set("localhostProfile", file);
        }
    }
    Some(profile)
}

/// Checks that annotations and their fields are equal.
pub fn agree(annotations: &Value, spec: &FieldValue<'_>, errors: &mut ErrorList) {
    if annotations.fields().is_none_or(|fields| fields.is_empty()) {
        return;
    }
    if let (Some(context), Some(name)) = (spec.opt("securityContext"), annotations.get(SECCOMP_POD))
        && let Some(profile) = context.opt("seccompProfile")
    {
        same_profile("seccomp", &profile, profile.value, name.as_str().unwrap_or_default(), errors);
    }
    let each = |prefix: &str, check: &mut dyn FnMut(&FieldValue<'_>, &str)| {
        for list in KINDS_OF_CONTAINERS.iter().filter_map(|kind| spec.opt(kind)) {
            for container in list.items() {
                let key = format!("{prefix}{}", container.str("name"));
                if let Some(name) = annotations.get(&key).and_then(Value::as_str) {
                    check(&container.child("securityContext"), name);
                }
            }
        }
    };
    each(SECCOMP_CONTAINER, &mut |context, name| {
        if let Some(profile) = context.opt("seccompProfile") {
            same_profile("seccomp", &profile, profile.value, name, errors);
        }
    });
    if spec.child("os").str("name") == "windows" {
        return;
    }
    let pod_profile = spec.value.at(&["securityContext", "appArmorProfile"]);
    each(APPARMOR, &mut |context, name| {
        if let Some(profile) = context.value.get("appArmorProfile").or(pod_profile) {
            same_profile("apparmor", &context.child("appArmorProfile"), profile, name, errors);
        }
    });
}

fn same_profile(what: &str, place: &FieldValue<'_>, profile: &Value, name: &str, errors: &mut ErrorList) {
    let type_differs = || format!("{what} type in annotation and field must match");
    match profile.str("type") {
        "Unconfined" if name != "unconfined" => place.child("type").forbidden(errors, &type_differs()),
        "RuntimeDefault" if name != "runtime/default" && !(what == "seccomp" && name == "docker/default") => {
            place.child("type").forbidden(errors, &type_differs());
        }
        "Localhost" => match name.strip_prefix(LOCALHOST) {
            None => place.child("type").forbidden(errors, &type_differs()),
            Some(file) if profile.get("localhostProfile").and_then(Value::as_str) != Some(file) => {
                let wrong = format!("{what} profile in annotation and field must match");
                place.child("localhostProfile").forbidden(errors, &wrong);
            }
            Some(_) => {}
        },
        _ => {}
    }
}

/// Checks that an update does not change annotations that are only read at creation.
pub fn validate_change(new: &Value, old: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let kept = [(APPARMOR, "AppArmor annotations"), (MIRROR, "mirror pod annotation")];
    let marked = |key: &str| {
        kept.iter().find(|(name, _)| key == *name || (*name == APPARMOR && key.starts_with(APPARMOR)))
    };
    for (key, value) in old.fields().into_iter().flatten() {
        if let Some((_, what)) = marked(key).filter(|_| new.get(key) != Some(value)) {
            let wrong = format!("may not remove or update {what}");
            errors.push(FieldError::forbidden(&path.key(key), &wrong));
        }
    }
    for (key, _) in new.fields().into_iter().flatten() {
        if let Some((_, what)) = marked(key).filter(|_| old.get(key).is_none()) {
            errors.push(FieldError::forbidden(&path.key(key), &format!("may not add {what}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object, said};

    use super::*;

    fn check(object: &Value, errors: &mut ErrorList) {
        let spec = FieldValue::of(object, "spec");
        let annotations = object.at(&["metadata", "annotations"]).unwrap_or(&Value::Null);
        validate(annotations, &spec, &FieldPath::new("a"), errors);
        agree(annotations, &spec, errors);
    }

    #[test]
    fn each_rule_of_annotations_refuses() {
        let base = object(
            r#"{"metadata":{"annotations":{"x":"y"}},"spec":{"containers":[{"name":"c",
                "securityContext":{"seccompProfile":{"type":"Localhost","localhostProfile":"p"},
                                   "appArmorProfile":{"type":"Unconfined"}}}],
                "securityContext":{"seccompProfile":{"type":"RuntimeDefault"}}}}"#,
        );
        let annotations = "metadata.annotations";
        each_refused(
            &base,
            check,
            &[
                (annotations, r#"{"kubernetes.io/config.mirror":"x"}"#, "must set spec.nodeName if mirror"),
                (
                    annotations,
                    r#"{"controller.kubernetes.io/pod-deletion-cost":"+1"}"#,
                    "must be a 32bit integer",
                ),
                (
                    annotations,
                    r#"{"scheduler.alpha.kubernetes.io/tolerations":"[{\"operator\":\"X\",\"key\":\"k\"}]"}"#,
                    "a.scheduler.alpha.kubernetes.io/tolerations[0].operator: Unsupported value",
                ),
                (
                    annotations,
                    r#"{"scheduler.alpha.kubernetes.io/tolerations":"{}"}"#,
                    "a: Invalid value: \"scheduler.alpha",
                ),
                (
                    annotations,
                    r#"{"container.seccomp.security.alpha.kubernetes.io/x":"y"}"#,
                    "a.container.seccomp.security.alpha.kubernetes.io/x: Invalid value: \"y\": must be a valid seccomp profile",
                ),
                (
                    annotations,
                    r#"{"container.seccomp.security.alpha.kubernetes.io/x":"localhost/.."}"#,
                    "must not contain '..'",
                ),
                (
                    annotations,
                    r#"{"seccomp.security.alpha.kubernetes.io/pod":"unconfined"}"#,
                    "spec.securityContext.seccompProfile.type: Forbidden: seccomp type in annotation and field must match",
                ),
                (
                    annotations,
                    r#"{"container.seccomp.security.alpha.kubernetes.io/c":"localhost/q"}"#,
                    "spec.containers[0].securityContext.seccompProfile.localhostProfile: Forbidden: seccomp profile in",
                ),
                (
                    annotations,
                    r#"{"container.apparmor.security.beta.kubernetes.io/d":"unconfined"}"#,
                    "a[container.apparmor.security.beta.kubernetes.io/d]: Invalid value: \"d\": container not found",
                ),
                (
                    annotations,
                    r#"{"container.apparmor.security.beta.kubernetes.io/c":"runtime/default"}"#,
                    "spec.containers[0].securityContext.appArmorProfile.type: Forbidden: apparmor type in annotation",
                ),
            ],
        );
    }

    #[test]
    fn marks_stay_as_they_were() {
        let old = object(
            r#"{"kubernetes.io/config.mirror":"x","container.apparmor.security.beta.kubernetes.io/c":"unconfined"}"#,
        );
        let new = object(
            r#"{"kubernetes.io/config.mirror":"y","container.apparmor.security.beta.kubernetes.io/d":"unconfined"}"#,
        );
        let mut errors = ErrorList::new();
        validate_change(&new, &old, &FieldPath::new("a"), &mut errors);
        assert_eq!(
            said(&errors),
            [
                "a[container.apparmor.security.beta.kubernetes.io/c]: Forbidden: may not remove or update AppArmor annotations",
                "a[kubernetes.io/config.mirror]: Forbidden: may not remove or update mirror pod annotation",
                "a[container.apparmor.security.beta.kubernetes.io/d]: Forbidden: may not add AppArmor annotations",
            ]
        );
        for name in ["unconfined", "runtime/default", "localhost/a"] {
            assert_eq!(profile_of(name).as_ref().and_then(profile_name).as_deref(), Some(name));
        }
        assert_eq!(profile_of("localhost/"), None);
    }
}
