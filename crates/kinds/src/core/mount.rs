//! Volume mounts and volume devices of containers.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::value::Value;

use super::volume::Volumes;
use super::volume_source::validate_relative_path;
use crate::allowed::core_v1;

/// The values of a string field of all items, to compare with another list.
fn collect<'a>(list: &'a Value, field: &str) -> BTreeSet<&'a str> {
    list.items().iter().map(|item| item.str(field)).collect()
}

/// Checks the mounts of a container.
pub fn validate_mounts(container: &FieldValue<'_>, volumes: &Volumes<'_>, errors: &mut ErrorList) {
    let Some(list) = container.opt("volumeMounts") else { return };
    let devices = container.read("volumeDevices");
    let (device_names, device_paths) = (collect(devices, "name"), collect(devices, "devicePath"));
    let mut paths = BTreeSet::new();
    for mount in list.items() {
        let (name, path) = (mount.child("name"), mount.child("mountPath"));
        name.need(errors);
        if !volumes.contains(name.text()) {
            errors.push(FieldError::not_found(&name.path, &quoted(name.text())));
        }
        path.need(errors);
        if !paths.insert(path.text()) {
            path.invalid_text(errors, "must be unique");
        }
        if device_names.contains(name.text()) {
            name.invalid_text(errors, "must not already exist in volumeDevices");
        }
        if device_paths.contains(path.text()) {
            path.invalid_text(errors, "must not already exist as a path in volumeDevices");
        }
        let sub = mount.read("subPath").as_str().unwrap_or_default();
        if !sub.is_empty() {
            validate_relative_path(&mount.child("subPath").named(list.path.child("subPath")), errors);
        }
        if !mount.str("subPathExpr").is_empty() {
            let expression = mount.child("subPathExpr");
            if !sub.is_empty() {
                expression.invalid(errors, "subPathExpr and subPath are mutually exclusive");
            }
            validate_relative_path(&expression.named(list.path.child("subPathExpr")), errors);
        }
        validate_propagation(&mount, &list, container, errors);
        validate_recursive_read_only(&mount, &list, errors);
    }
}

fn validate_propagation(
    mount: &FieldValue<'_>,
    list: &FieldValue<'_>,
    container: &FieldValue<'_>,
    errors: &mut ErrorList,
) {
    let Some(mode) = mount.opt("mountPropagation") else { return };
    let mode = mode.named(list.path.child("mountPropagation"));
    mode.one_of(errors, core_v1::VolumeMount::MOUNT_PROPAGATION);
    let is_privileged = container.child("securityContext").child("privileged").is_true();
    if mode.text() == "Bidirectional" && !is_privileged {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        mode.forbidden(errors, detail);
    }
}

fn validate_recursive_read_only(mount: &FieldValue<'_>, list: &FieldValue<'_>, errors: &mut ErrorList) {
    let Some(mode) = mount.opt("recursiveReadOnly") else { return };
    let mode = mode.named(list.path.child("recursiveReadOnly"));
    match mode.text() {
        "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if !mount.child("readOnly").is_true() {
                mode.forbidden(errors, "may only be specified when readOnly is true");
            }
            if !matches!(mount.str("mountPropagation"), "" | "None") {
                let detail = "may only be specified when mountPropagation is None or not specified";
                mode.forbidden(errors, detail);
            }
        }
        _ => mode.one_of(errors, &["Disabled", "Enabled", "IfPossible"]),
    }
}

/// Checks the block devices of a container.
pub fn validate_devices(container: &FieldValue<'_>, volumes: &Volumes<'_>, errors: &mut ErrorList) {
    let Some(list) = container.opt("volumeDevices") else { return };
    let mounts = container.read("volumeMounts");
    let (mount_names, mount_paths) = (collect(mounts, "name"), collect(mounts, "mountPath"));
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for device in list.items() {
        let (name, path) = (device.child("name"), device.child("devicePath"));
        name.need(errors);
        if names.contains(name.text()) {
            name.invalid_text(errors, "must be unique");
        }
        match volumes.source(name.text()) {
            Some("persistentVolumeClaim" | "ephemeral") => {}
            Some(_) => {
                let detail =
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                name.invalid_text(errors, detail);
            }
            None => errors.push(FieldError::not_found(&name.path, &quoted(name.text()))),
        }
        path.need(errors);
        if paths.contains(path.text()) {
            path.invalid_text(errors, "must be unique");
        }
        if path.text().split('/').any(|part| part == "..") {
            path.invalid_text(errors, "can not contain backsteps ('..')");
        } else {
            paths.insert(path.text());
        }
        if mount_names.contains(name.text()) {
            name.invalid_text(errors, "must not already exist in volumeMounts");
        }
        if mount_paths.contains(path.text()) {
            path.invalid_text(errors, "must not already exist as a path in volumeMounts");
        }
        if !name.is_empty() {
            names.insert(name.text());
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, error_messages, object, with};

    use super::*;

    fn check(object: &Value, errors: &mut ErrorList) {
        let volumes = Volumes::validate(&FieldValue::top_level(object, "volumes"), "", errors);
        validate_mounts(&FieldValue::top_level(object, "c"), &volumes, errors);
        validate_devices(&FieldValue::top_level(object, "c"), &volumes, errors);
    }

    fn base() -> Value {
        object(
            r#"{"volumes":[{"name":"v","emptyDir":{}},{"name":"p","persistentVolumeClaim":{"claimName":"c"}}],
                "c":{"volumeMounts":[{"name":"v","mountPath":"/v","readOnly":true}],
                     "volumeDevices":[{"name":"p","devicePath":"/d"}]}}"#,
        )
    }

    #[test]
    fn mounts_validation_refuses_each_violation() {
        each_refused(
            &base(),
            check,
            &[
                (
                    "c.volumeMounts.0.subPathExpr",
                    r#""..""#,
                    "volumeMounts.subPathExpr: Invalid value: \"..\"",
                ),
                ("c.volumeMounts.0.recursiveReadOnly", r#""X""#, "\"Disabled\", \"Enabled\", \"IfPossible\""),
                (
                    "c.volumeMounts.0",
                    r#"{"name":"v","mountPath":"/v","recursiveReadOnly":"Enabled"}"#,
                    "when readOnly is true",
                ),
                (
                    "c.volumeMounts.0",
                    r#"{"name":"v","mountPath":"/v","readOnly":true,"recursiveReadOnly":"Enabled","mountPropagation":"HostToContainer"}"#,
                    "when mountPropagation is None",
                ),
                (
                    "c.volumeMounts.0.mountPropagation",
                    r#""X""#,
                    "\"Bidirectional\", \"HostToContainer\", \"None\"",
                ),
                (
                    "c.volumeMounts.0",
                    r#"{"name":"v","mountPath":"/v","subPath":"a","subPathExpr":"b"}"#,
                    "mutually exclusive",
                ),
            ],
        );
        let duplicate = with(
            &base(),
            "c.volumeMounts",
            r#"[{"name":"v","mountPath":"/v"},{"name":"v","mountPath":"/v"}]"#,
        );
        let mut errors = ErrorList::new();
        check(&duplicate, &mut errors);
        assert_eq!(
            error_messages(&errors),
            ["c.volumeMounts[1].mountPath: Invalid value: \"/v\": must be unique"]
        );
        errors.clear();
        check(&with(&base(), "c.volumeMounts.0.mountPath", r#""/d""#), &mut errors);
        assert_eq!(
            error_messages(&errors),
            [
                "c.volumeMounts[0].mountPath: Invalid value: \"/d\": must not already exist as a path in volumeDevices",
                "c.volumeDevices[0].devicePath: Invalid value: \"/d\": must not already exist as a path in volumeMounts",
            ]
        );
        errors.clear();
        check(&with(&base(), "c.volumeMounts.0.name", r#""p""#), &mut errors);
        assert_eq!(
            error_messages(&errors),
            [
                "c.volumeMounts[0].name: Invalid value: \"p\": must not already exist in volumeDevices",
                "c.volumeDevices[0].name: Invalid value: \"p\": must not already exist in volumeMounts",
            ]
        );
    }
}
