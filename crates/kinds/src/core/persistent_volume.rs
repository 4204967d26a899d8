//! Persistent volumes.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::field_value::{FieldValue, fill, fill_text, present_mut, same};
use pilothouse_apimachinery::nano_quantity;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::STORAGE_CLASS;
use pilothouse_apimachinery::{meta, names};

use super::volume_source::{self, Owner, validate_no_backsteps};
use super::{affinity, node_label, volume_claim};
use crate::allowed::core_v1;
use crate::{
    DefaultingRules, DeletionRules, KindRules, MetaRevalidation, MetadataRules, PreparationRules,
    Revalidation, StatusRules, ValidationRules, WarningRules, WriteContext, gated,
};

/// The rules of a PersistentVolume.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules { revalidation: MetaRevalidation::WholeTwice, ..MetadataRules::DEFAULT },
    defaulting: DefaultingRules { default, ..DefaultingRules::DEFAULT },
    gated: gated::rows::VOLUME,
    preparation: PreparationRules { prepare_create: prepare, ..PreparationRules::DEFAULT },
    validation: ValidationRules { validate, revalidation: Revalidation::Once, validate_update },
    warnings: WarningRules { warn, ..WarningRules::DEFAULT },
    status: StatusRules { prepare: prepare_status, ..StatusRules::DEFAULT },
    deletion: DeletionRules::RETURNS_OBJECT,
    ..KindRules::DEFAULT
};

const ATTRIBUTES_CLASS: &str = "volumeAttributesClassName";
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
/// The volume sources in the order of validation.
const SOURCES: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];
/// The volume sources that support mount options.
const WITH_MOUNT_OPTIONS: [&str; 13] = [
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "nfs",
    "rbd",
    "quobyte",
    "iscsi",
    "cinder",
    "cephfs",
    "azureFile",
    "vsphereVolume",
    "azureDisk",
    "photonPersistentDisk",
];
/// Deprecated volume sources: the field, its name in the message, and the release.
const DEPRECATED: [(&str, &str, &str); 6] = [
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// The defaults of a volume.
fn default(volume: &mut Value) {
    let spec = volume.entry("spec");
    fill_text(spec, "persistentVolumeReclaimPolicy", "Retain");
    fill(spec, "volumeMode", "Filesystem");
    if let Some(path) = present_mut(spec, "hostPath") {
        fill(path, "type", "");
    }
}

/// A new volume is Pending.
fn prepare(volume: &mut Value, context: &WriteContext<'_>) {
    let status = volume.entry("status");
    status.set("phase", "Pending");
    status.set("lastPhaseTransitionTime", context.now);
}

/// Checks volumeAttributesClassName, which only CSI volumes support.
fn validate_attributes_class(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let is_enabled = errors.features().has(Feature::VolumeAttributesClass);
    let Some(class) = spec.opt(ATTRIBUTES_CLASS).filter(|_| is_enabled) else { return };
    if class.is_empty() {
        class.required(errors, "an empty string is disallowed");
    } else {
        class.syntax(errors, names::dns_subdomain);
    }
    if spec.opt("csi").is_none() {
        spec.child("csi").required(errors, "has to be specified when using volumeAttributesClassName");
    }
}

/// volumeAttributesClassName can change, but not be removed.
fn validate_attributes_class_change(
    spec: &FieldValue<'_>,
    old_spec: &FieldValue<'_>,
    errors: &mut ErrorList,
) {
    let class = spec.child(ATTRIBUTES_CLASS);
    if same(Some(class.value), Some(old_spec.read(ATTRIBUTES_CLASS))) {
        return;
    }
    if !errors.features().has(Feature::VolumeAttributesClass) {
        class
            .forbidden(errors, "update is forbidden when the VolumeAttributesClass feature gate is disabled");
    } else if old_spec.has(ATTRIBUTES_CLASS) && !class.is_set() {
        class.forbidden(errors, "update from non-nil value to nil is forbidden");
    }
}

/// A change of the phase sets lastPhaseTransitionTime.
fn prepare_status(new: &mut Value, old: &Value, context: &WriteContext<'_>) {
    let old_status = old.get("status").cloned().unwrap_or_default();
    let status = new.entry("status");
    let time = "lastPhaseTransitionTime";
    if status.str("phase") == old_status.str("phase") {
        if status.get(time).is_none() {
            meta::copy(status, &old_status, time);
        }
    } else if status.get(time).is_none() || status.get(time) == old_status.get(time) {
        status.set(time, context.now);
    }
}

/// Checks a volume.
fn validate(volume: &Value, errors: &mut ErrorList) {
    validate_spec(&FieldValue::top_level(volume, "spec"), meta::name(volume), errors);
    validate_mount_options(volume, errors);
}

fn validate_mount_options(volume: &Value, errors: &mut ErrorList) {
    let is_supported = WITH_MOUNT_OPTIONS.iter().any(|kind| volume.get_path(&["spec", kind]).is_some());
    if meta::metadata(volume).get_path(&["annotations", MOUNT_OPTIONS]).is_some() && !is_supported {
        let path = FieldPath::new("metadata").child("annotations").child(MOUNT_OPTIONS);
        errors.push(FieldError::forbidden(&path, "may not specify mount options for this volume type"));
    }
}

fn validate_spec(spec: &FieldValue<'_>, name: &str, errors: &mut ErrorList) {
    let modes = spec.child("accessModes");
    modes.need(errors);
    volume_claim::validate_access_modes(&modes, errors);
    validate_capacity(&spec.child("capacity"), errors);
    let policy = spec.child("persistentVolumeReclaimPolicy");
    if !policy.is_empty() {
        policy.one_of(errors, core_v1::PersistentVolumeSpec::PERSISTENT_VOLUME_RECLAIM_POLICY);
    }
    if let Some(nodes) = spec.opt("nodeAffinity") {
        match nodes.opt("required") {
            Some(required) => affinity::validate_node_selector(&required, errors),
            None => nodes.child("required").required(errors, "must specify required node constraints"),
        }
    }
    validate_source(spec, name, errors);
    let root = spec.child("hostPath").str("path");
    if !root.is_empty() && cleans_to_root(root) && policy.text() == "Recycle" {
        policy.forbidden(errors, "may not be 'recycle' for a hostPath mount of '/'");
    }
    spec.child("storageClassName").syntax_if_set(errors, names::dns_subdomain);
    spec.child("volumeMode").one_of_if_set(errors, core_v1::PersistentVolumeSpec::VOLUME_MODE);
    validate_attributes_class(spec, errors);
}

/// Checks the inline volume of a VolumeAttachment: a CSI volume without the fields that only matter to claims.
pub fn validate_inline(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    const NOT_INLINE: &str = "may not be specified in the context of inline volumes";
    let forbidden = |field: &str, errors: &mut ErrorList| {
        if !spec.child(field).is_empty() || (spec.has(field) && field != "capacity") {
            spec.child(field).forbidden(errors, NOT_INLINE);
        }
    };
    forbidden("claimRef", errors);
    forbidden("capacity", errors);
    if !spec.has("csi") {
        spec.child("csi").required(errors, "has to be specified in the context of inline volumes");
    }
    let modes = spec.child("accessModes");
    modes.need(errors);
    volume_claim::validate_access_modes(&modes, errors);
    let policy = spec.child("persistentVolumeReclaimPolicy");
    if !matches!(policy.text(), "" | "Retain") {
        policy.forbidden(errors, "may only be Retain in the context of inline volumes");
    }
    forbidden("nodeAffinity", errors);
    validate_source(spec, "", errors);
    if !spec.str("storageClassName").is_empty() {
        spec.child("storageClassName").forbidden(errors, NOT_INLINE);
    }
    let mode = spec.child("volumeMode");
    if mode.is_set() && mode.text() != "Filesystem" {
        let detail = "may not specify volumeMode other than Filesystem in the context of inline volumes";
        mode.forbidden(errors, detail);
    }
}

/// Whether a path is `/` after normalization.
fn cleans_to_root(path: &str) -> bool {
    let mut depth = 0usize;
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => depth = depth.saturating_sub(1),
            _ => depth += 1,
        }
    }
    path.starts_with('/') && depth == 0
}

fn validate_capacity(capacity: &FieldValue<'_>, errors: &mut ErrorList) {
    capacity.need(errors);
    let rendered = if capacity.is_set() {
        nano_quantity::render_resource_list(capacity.value)
    } else {
        "core.ResourceList(nil)".to_owned()
    };
    if !capacity.has("storage") || capacity.len() > 1 {
        errors.push(FieldError::not_supported(&capacity.path, &rendered, &["storage"]));
    }
    for (_, entry) in capacity.entries() {
        let Some(amount) = entry.amount() else { continue };
        volume_claim::validate_not_negative(&entry, errors);
        if amount.is_negative() || amount.is_zero() {
            entry.invalid(errors, "must be greater than zero");
        }
    }
}

fn validate_source(spec: &FieldValue<'_>, name: &str, errors: &mut ErrorList) {
    let mut has_source = false;
    for kind in SOURCES {
        let Some(source) = spec.opt(kind) else { continue };
        // The reference does not count flexVolume for the check of several sources.
        if has_source && kind != "flexVolume" {
            let rendered = if kind == "cephfs" { "cephFS" } else { kind };
            source
                .named(spec.path.child(rendered))
                .forbidden(errors, "may not specify more than 1 volume type");
            continue;
        }
        has_source = true;
        if kind == "local" {
            if source.child("path").need(errors) {
                validate_no_backsteps(&source.child("path"), errors);
            }
            if !spec.has("nodeAffinity") {
                spec.child("nodeAffinity").required(errors, "Local volume requires node affinity");
            }
        } else {
            volume_source::validate(kind, &source, Owner::Volume(name), errors);
        }
    }
    if !has_source {
        spec.required(errors, "must specify a volume type");
    }
}

/// Checks an updated volume: its source is immutable.
fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_spec(&FieldValue::top_level(new, "spec"), meta::name(new), errors);
    let (spec, old_spec) = (FieldValue::top_level(new, "spec"), FieldValue::top_level(old, "spec"));
    let source_changed = SOURCES.iter().any(|kind| {
        let (new, old) = (spec.value.get(kind), old_spec.value.get(kind));
        if *kind == "csi" { !same_csi(new, old) } else { !same(new, old) || new.is_some() != old.is_some() }
    });
    if source_changed {
        let path = FieldPath::new("spec").child("persistentvolumesource");
        errors.push(FieldError::forbidden(&path, "spec.persistentvolumesource is immutable after creation"));
    }
    spec.child("volumeMode")
        .named(FieldPath::new("volumeMode"))
        .unchanged(&old_spec.child("volumeMode"), errors);
    if let Some(nodes) = old_spec.opt("nodeAffinity")
        && !same(
            Some(&with_stable_labels(nodes.value, spec.read("nodeAffinity"))),
            Some(spec.read("nodeAffinity")),
        )
    {
        let detail = "field is immutable, except for updating from beta label to GA";
        spec.child("nodeAffinity").named(FieldPath::new("nodeAffinity")).invalid(errors, detail);
    }
    validate_attributes_class_change(&spec, &old_spec, errors);
}

/// Whether CSI sources are equal, except that controllerExpandSecretRef may be added.
fn same_csi(new: Option<&Value>, old: Option<&Value>) -> bool {
    let (Some(new), Some(old)) = (new, old) else { return new.is_some() == old.is_some() };
    if old.get("controllerExpandSecretRef").is_some() || new.get("controllerExpandSecretRef").is_none() {
        return same(Some(new), Some(old));
    }
    let mut without_secret = new.clone();
    without_secret.remove("controllerExpandSecretRef");
    same(Some(&without_secret), Some(old))
}

/// The old node affinity with deprecated labels replaced where the new one has the stable name.
fn with_stable_labels(old: &Value, new: &Value) -> Value {
    let mut renamed = old.clone();
    let terms =
        |nodes: &Value| nodes.get_path(&["required", "nodeSelectorTerms"]).cloned().unwrap_or_default();
    let target = terms(new);
    let Some(Value::Array(list)) =
        renamed.get_mut("required").and_then(|required| required.get_mut("nodeSelectorTerms"))
    else {
        return renamed;
    };
    for (term, target) in list.iter_mut().zip(target.items()) {
        for part in ["matchExpressions", "matchFields"] {
            let target = target.get(part).map(Value::items).unwrap_or_default();
            for (expression, target) in
                pilothouse_apimachinery::field_value::items_mut(term, part).iter_mut().zip(target)
            {
                let key = target.str("key");
                // One without a key has an error already.
                if key.is_empty() || node_label::stable_name(expression.str("key")) == Some(key) {
                    expression.set("key", key);
                }
            }
        }
    }
    renamed
}

/// Warns about a volume.
fn warn(volume: &Value, _old: Option<&Value>, warnings: &mut WarningList) {
    let annotations = [
        (STORAGE_CLASS, "deprecated since v1.8; use \"storageClassName\" attribute instead"),
        (MOUNT_OPTIONS, "deprecated since v1.31; use \"mountOptions\" attribute instead"),
    ];
    for (key, warning) in annotations {
        if meta::metadata(volume).get_path(&["annotations", key]).is_some() {
            warnings.push(format!("{}: {warning}", FieldPath::new("metadata").child("annotations").key(key)));
        }
    }
    let Some(spec) = volume.get("spec") else { return };
    if spec.str("persistentVolumeReclaimPolicy") == "Recycle" {
        warnings.push(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended \
             approach is to use dynamic provisioning."
                .to_owned(),
        );
    }
    let terms = spec
        .get_path(&["nodeAffinity", "required", "nodeSelectorTerms"])
        .map(Value::items)
        .unwrap_or_default();
    for (index, term) in terms.iter().enumerate() {
        let path = FieldPath::new("spec").child("nodeAffinity").child("required").child("nodeSelectorTerms");
        node_label::warn_term(&path.index(index), term, false, warnings);
    }
    for (field, rendered, warning) in DEPRECATED {
        if spec.get(field).is_some() {
            warnings.push(format!("spec.{rendered}: {warning}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, error_messages, object, with};

    use super::*;

    fn base() -> Value {
        object(
            r#"{"metadata":{"name":"p"},"spec":{"accessModes":["ReadWriteOnce"],"capacity":{"storage":"1Gi"},"hostPath":{"path":"/x"},
                "persistentVolumeReclaimPolicy":"Retain","volumeMode":"Filesystem"}}"#,
        )
    }

    #[test]
    fn persistent_volume_validation_refuses_each_violation() {
        each_refused(
            &base(),
            validate,
            &[
                ("spec.accessModes", "[]", "spec.accessModes: Required value"),
                ("spec.capacity", r#"{"cpu":"1"}"#, "supported values: \"storage\""),
                ("spec.capacity.storage", r#""0""#, "must be greater than zero"),
                ("spec.hostPath", "null", "spec: Required value: must specify a volume type"),
                ("spec.hostPath.path", "null", "spec.hostPath.path: Required value"),
                ("spec.nfs", r#"{"server":"s","path":"/"}"#, "may not specify more than 1 volume type"),
                (
                    "spec.cephfs",
                    r#"{"monitors":["m"]}"#,
                    "spec.cephFS: Forbidden: may not specify more than 1 volume type",
                ),
                ("spec.persistentVolumeReclaimPolicy", r#""X""#, "\"Delete\", \"Recycle\", \"Retain\""),
                ("spec.nodeAffinity", r#"{"x":1}"#, "must specify required node constraints"),
                ("spec.storageClassName", r#""A""#, "spec.storageClassName: Invalid value"),
                (
                    "metadata.annotations",
                    r#"{"volume.beta.kubernetes.io/mount-options":"x"}"#,
                    "may not specify mount options for this volume type",
                ),
            ],
        );
        let mut errors = ErrorList::new();
        validate(&with(&base(), "spec.capacity.storage", r#""-1""#), &mut errors);
        assert_eq!(
            error_messages(&errors),
            [
                "spec.capacity[storage]: Invalid value: -1: must be a valid resource quantity",
                "spec.capacity[storage]: Invalid value: \"-1\": must be greater than zero",
            ]
        );
        let local = with(&with(&base(), "spec.hostPath", "null"), "spec.local", r#"{"path":"/a/.."}"#);
        errors.clear();
        validate(&local, &mut errors);
        assert_eq!(errors.len(), 2, "{errors:?}");
        let recycled = with(
            &with(&base(), "spec.hostPath.path", r#""/a/../""#),
            "spec.persistentVolumeReclaimPolicy",
            r#""Recycle""#,
        );
        errors.clear();
        validate(&recycled, &mut errors);
        assert!(
            error_messages(&errors)
                .iter()
                .any(|error| error.contains("may not be 'recycle' for a hostPath mount of '/'"))
        );
    }

    #[test]
    fn volume_source_and_node_affinity_are_immutable() {
        let affinity = r#"{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"beta.kubernetes.io/os","operator":"Exists"}]}]}}"#;
        let base = with(&base(), "spec.nodeAffinity", affinity);
        each_change_refused(
            &base,
            validate_update,
            &[
                ("spec.hostPath.path", r#""/y""#, "spec.persistentvolumesource is immutable after creation"),
                ("spec.volumeMode", r#""Block""#, "volumeMode: Invalid value: \"Block\": field is immutable"),
                (
                    "spec.nodeAffinity.required.nodeSelectorTerms.0.matchExpressions.0.key",
                    r#""x""#,
                    "nodeAffinity: Invalid value: {required:",
                ),
            ],
        );
        let renamed = with(
            &base,
            "spec.nodeAffinity.required.nodeSelectorTerms.0.matchExpressions.0.key",
            r#""kubernetes.io/os""#,
        );
        let mut errors = ErrorList::new();
        validate_update(&renamed, &base, &mut errors);
        assert_eq!(error_messages(&errors), Vec::<String>::new());
        let csi =
            with(&with(&base, "spec.hostPath", "null"), "spec.csi", r#"{"driver":"d","volumeHandle":"h"}"#);
        let extended = with(&csi, "spec.csi.controllerExpandSecretRef", r#"{"name":"n","namespace":"m"}"#);
        validate_update(&extended, &csi, &mut errors);
        assert_eq!(error_messages(&errors), Vec::<String>::new());
        validate_update(&csi, &extended, &mut errors);
        assert_eq!(errors.len(), 1);
        let key = "spec.nodeAffinity.required.nodeSelectorTerms.0.matchExpressions.0.key";
        let mut errors = ErrorList::new();
        validate_update(&with(&base, key, r#""""#), &base, &mut errors);
        assert!(
            !errors.is_empty() && !error_messages(&errors).concat().contains("immutable"),
            "{:?}",
            error_messages(&errors)
        );
    }

    #[test]
    fn persistent_volume_warnings_name_deprecated_fields() {
        let table = [
            (
                "metadata.annotations",
                r#"{"volume.beta.kubernetes.io/storage-class":"x"}"#,
                "metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use \"storageClassName\" attribute instead",
            ),
            (
                "spec.persistentVolumeReclaimPolicy",
                r#""Recycle""#,
                "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
            ),
            ("spec.storageos", "{}", "spec.storageOS: deprecated in v1.22, non-functional in v1.25+"),
        ];
        for (path, json, expected) in table {
            let mut warnings = WarningList::new();
            warn(&with(&base(), path, json), None, &mut warnings);
            assert_eq!(warnings, [expected], "{path}");
        }
    }
}
