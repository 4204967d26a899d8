//! Pod annotations with a meaning: mirror pods, and former alpha fields.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::{APPARMOR, MIRROR, SECCOMP_CONTAINER, SECCOMP_POD};

use super::pod_spec;
use super::volume_source::validate_relative_path;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const LOCALHOST: &str = "localhost/";
const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Whether the pod deletion cost annotation is no valid number.
pub fn has_bad_cost(annotations: &Value) -> bool {
    annotations.get(DELETION_COST).and_then(Value::as_str).is_some_and(|cost| {
        let has_leading =
            cost.starts_with('+') || (cost.len() > 1 && cost.starts_with('0')) || cost.starts_with("-0");
        has_leading || cost.parse::<i32>().is_err()
    })
}

/// Checks the pod annotations with a meaning.
pub fn validate(annotations: &Value, spec: &FieldValue<'_>, path: &FieldPath, errors: &mut ErrorList) {
    if annotations.fields().is_none_or(|fields| fields.is_empty()) {
        return;
    }
    let annotation =
        |key: &str| FieldValue { value: annotations.get(key).unwrap_or(&Value::Null), path: path.key(key) };
    if annotations.get(MIRROR).is_some() && spec.str("nodeName").is_empty() {
        annotation(MIRROR).invalid(errors, "must set spec.nodeName if mirror pod annotation is set");
    }
    validate_tolerations(annotations.str(TOLERATIONS), path, errors);
    if has_bad_cost(annotations) && errors.features().has(Feature::PodDeletionCost) {
        annotation(DELETION_COST).invalid(errors, "must be a 32bit integer");
    }
    if annotations.get(SECCOMP_POD).is_some() {
        validate_seccomp_name(&annotation(SECCOMP_POD).named(path.child(SECCOMP_POD)), errors);
    }
    for (key, value) in annotations.fields().into_iter().flatten() {
        if key.starts_with(SECCOMP_CONTAINER) {
            validate_seccomp_name(&FieldValue { value, path: path.child(key) }, errors);
        }
    }
    let containers: BTreeSet<&str> = CONTAINER_LISTS
        .iter()
        .flat_map(|kind| spec.read(kind).items())
        .map(|container| container.str("name"))
        .collect();
    for (key, value) in annotations.fields().into_iter().flatten() {
        if let Some(container) = key.strip_prefix(APPARMOR) {
            validate_apparmor_name(
                container,
                &FieldValue { value, path: path.key(key) },
                &containers,
                errors,
            );
        }
    }
}

/// Checks the annotation with tolerations.
fn validate_tolerations(text: &str, path: &FieldPath, errors: &mut ErrorList) {
    if text.is_empty() {
        return;
    }
    match serde_json::from_str::<Vec<BTreeMap<String, serde_json::Value>>>(text) {
        Ok(list) => {
            let list: Vec<Value> = list.iter().map(parse_toleration).collect();
            let list = Value::Array(list.into());
            pod_spec::validate_tolerations(
                &FieldValue { value: &list, path: path.child(TOLERATIONS) },
                errors,
            );
        }
        Err(detail) => errors.push(FieldError::invalid(path, &quoted(TOLERATIONS), &detail.to_string())),
    }
}

fn parse_toleration(fields: &BTreeMap<String, serde_json::Value>) -> Value {
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

fn validate_seccomp_name(node: &FieldValue<'_>, errors: &mut ErrorList) {
    match node.text() {
        "runtime/default" | "docker/default" | "unconfined" => {}
        text => match text.strip_prefix(LOCALHOST) {
            Some(file) => {
                let file = Value::from(file);
                validate_relative_path(&FieldValue { value: &file, path: node.path.clone() }, errors);
            }
            None => node.invalid_text(errors, "must be a valid seccomp profile"),
        },
    }
}

fn validate_apparmor_name(
    container: &str,
    node: &FieldValue<'_>,
    containers: &BTreeSet<&str>,
    errors: &mut ErrorList,
) {
    if !containers.contains(container) {
        errors.push(FieldError::invalid(&node.path, &quoted(container), "container not found"));
    }
    let text = node.text();
    if !matches!(text, "" | "runtime/default" | "unconfined") && !text.starts_with(LOCALHOST) {
        node.invalid_text(errors, &format!("invalid AppArmor profile name: {}", quoted(text)));
    }
}

/// The annotation value of a profile field; `None` if the field is invalid.
pub fn profile_to_annotation(profile: &Value) -> Option<String> {
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
pub fn profile_from_annotation(name: &str) -> Option<Value> {
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

/// Checks that profile annotations and fields match.
pub fn validate_profiles_match(annotations: &Value, spec: &FieldValue<'_>, errors: &mut ErrorList) {
    if annotations.fields().is_none_or(|fields| fields.is_empty()) {
        return;
    }
    if let (Some(context), Some(name)) = (spec.opt("securityContext"), annotations.get(SECCOMP_POD))
        && let Some(profile) = context.opt("seccompProfile")
    {
        validate_profile_matches(
            "seccomp",
            &profile,
            profile.value,
            name.as_str().unwrap_or_default(),
            errors,
        );
    }
    let for_each_container = |prefix: &str, check: &mut dyn FnMut(&FieldValue<'_>, &str)| {
        for list in CONTAINER_LISTS.iter().filter_map(|kind| spec.opt(kind)) {
            for container in list.items() {
                let key = format!("{prefix}{}", container.str("name"));
                if let Some(name) = annotations.get(&key).and_then(Value::as_str) {
                    check(&container.child("securityContext"), name);
                }
            }
        }
    };
    for_each_container(SECCOMP_CONTAINER, &mut |context, name| {
        if let Some(profile) = context.opt("seccompProfile") {
            validate_profile_matches("seccomp", &profile, profile.value, name, errors);
        }
    });
    if spec.child("os").str("name") == "windows" {
        return;
    }
    let pod_profile = spec.value.get_path(&["securityContext", "appArmorProfile"]);
    for_each_container(APPARMOR, &mut |context, name| {
        if let Some(profile) = context.value.get("appArmorProfile").or(pod_profile) {
            validate_profile_matches("apparmor", &context.child("appArmorProfile"), profile, name, errors);
        }
    });
}

fn validate_profile_matches(
    mechanism: &str,
    field: &FieldValue<'_>,
    profile: &Value,
    name: &str,
    errors: &mut ErrorList,
) {
    let type_differs = || format!("{mechanism} type in annotation and field must match");
    match profile.str("type") {
        "Unconfined" if name != "unconfined" => field.child("type").forbidden(errors, &type_differs()),
        "RuntimeDefault"
            if name != "runtime/default" && !(mechanism == "seccomp" && name == "docker/default") =>
        {
            field.child("type").forbidden(errors, &type_differs());
        }
        "Localhost" => match name.strip_prefix(LOCALHOST) {
            None => field.child("type").forbidden(errors, &type_differs()),
            Some(file) if profile.get("localhostProfile").and_then(Value::as_str) != Some(file) => {
                let detail = format!("{mechanism} profile in annotation and field must match");
                field.child("localhostProfile").forbidden(errors, &detail);
            }
            Some(_) => {}
        },
        _ => {}
    }
}

/// Checks that an update does not change annotations that are only read at creation.
pub fn validate_change(new: &Value, old: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let immutable = [(APPARMOR, "AppArmor annotations"), (MIRROR, "mirror pod annotation")];
    let find_immutable = |key: &str| {
        immutable.iter().find(|(known, _)| key == *known || (*known == APPARMOR && key.starts_with(APPARMOR)))
    };
    for (key, value) in old.fields().into_iter().flatten() {
        if let Some((_, name)) = find_immutable(key).filter(|_| new.get(key) != Some(value)) {
            let detail = format!("may not remove or update {name}");
            errors.push(FieldError::forbidden(&path.key(key), &detail));
        }
    }
    for (key, _) in new.fields().into_iter().flatten() {
        if let Some((_, name)) = find_immutable(key).filter(|_| old.get(key).is_none()) {
            errors.push(FieldError::forbidden(&path.key(key), &format!("may not add {name}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, error_messages, object};

    use super::*;

    fn check(object: &Value, errors: &mut ErrorList) {
        let spec = FieldValue::top_level(object, "spec");
        let annotations = object.get_path(&["metadata", "annotations"]).unwrap_or(&Value::Null);
        validate(annotations, &spec, &FieldPath::new("a"), errors);
        validate_profiles_match(annotations, &spec, errors);
    }

    #[test]
    fn pod_annotation_validation_refuses_each_violation() {
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
    fn pod_update_keeps_apparmor_and_mirror_annotations() {
        let old = object(
            r#"{"kubernetes.io/config.mirror":"x","container.apparmor.security.beta.kubernetes.io/c":"unconfined"}"#,
        );
        let new = object(
            r#"{"kubernetes.io/config.mirror":"y","container.apparmor.security.beta.kubernetes.io/d":"unconfined"}"#,
        );
        let mut errors = ErrorList::new();
        validate_change(&new, &old, &FieldPath::new("a"), &mut errors);
        assert_eq!(
            error_messages(&errors),
            [
                "a[container.apparmor.security.beta.kubernetes.io/c]: Forbidden: may not remove or update AppArmor annotations",
                "a[kubernetes.io/config.mirror]: Forbidden: may not remove or update mirror pod annotation",
                "a[container.apparmor.security.beta.kubernetes.io/d]: Forbidden: may not add AppArmor annotations",
            ]
        );
        for name in ["unconfined", "runtime/default", "localhost/a"] {
            assert_eq!(
                profile_from_annotation(name).as_ref().and_then(profile_to_annotation).as_deref(),
                Some(name)
            );
        }
        assert_eq!(profile_from_annotation("localhost/"), None);
    }
}
