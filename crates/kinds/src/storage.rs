//! The kinds of `storage.k8s.io`.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::features::{EnabledFeatures, Feature};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, fill, same};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::nano_quantity::NanoQuantity;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::{meta, names};

use super::core::{node_label, persistent_volume};
use super::{
    DefaultingRules, DeletionRules, Generation, KindRules, MetaRevalidation, MetadataRules, ResetFields,
    Revalidation, StatusMeta, StatusRules, UpdateRules, ValidationRules, WarningRules, gated, messages,
};
use crate::allowed::storage_v1;

/// The rules of a StorageClass.
pub const STORAGE_CLASS: KindRules = KindRules {
    validation: ValidationRules {
        validate: validate_class,
        revalidation: Revalidation::Once,
        validate_update: validate_class_update,
    },
    warnings: WarningRules { warn: warn_class, ..WarningRules::DEFAULT },
    deletion: DeletionRules::RETURNS_OBJECT,
    ..KindRules::DEFAULT
};

/// The rules of a CSIDriver.
pub const CSI_DRIVER: KindRules = KindRules {
    metadata: MetadataRules {
        generation: Generation { starts: false, ..Generation::SPEC },
        revalidation: MetaRevalidation::Change,
        ..MetadataRules::DEFAULT
    },
    update: UpdateRules::CONDITIONAL,
    defaulting: DefaultingRules { default_by_feature: default_driver, ..DefaultingRules::DEFAULT },
    gated: gated::rows::DRIVER,
    validation: ValidationRules {
        validate: validate_driver,
        revalidation: Revalidation::Once,
        validate_update: validate_driver_update,
    },
    deletion: DeletionRules::RETURNS_OBJECT,
    ..KindRules::DEFAULT
};

/// The rules of a CSINode.
pub const CSI_NODE: KindRules = KindRules {
    metadata: MetadataRules { revalidation: MetaRevalidation::WholeTwice, ..MetadataRules::DEFAULT },
    update: UpdateRules::CONDITIONAL,
    validation: ValidationRules {
        validate: validate_csi_node,
        revalidation: Revalidation::Twice,
        validate_update: validate_csi_node_update,
    },
    deletion: DeletionRules::RETURNS_OBJECT,
    ..KindRules::DEFAULT
};

/// The rules of a CSIStorageCapacity.
pub const CSI_STORAGE_CAPACITY: KindRules = KindRules {
    update: UpdateRules::CONDITIONAL,
    validation: ValidationRules {
        validate: validate_capacity,
        revalidation: Revalidation::Once,
        validate_update: validate_capacity_update,
    },
    warnings: WarningRules { warn: warn_capacity, ..WarningRules::DEFAULT },
    ..KindRules::DEFAULT
};

/// The rules of a VolumeAttachment.
pub const VOLUME_ATTACHMENT: KindRules = KindRules {
    metadata: MetadataRules { revalidation: MetaRevalidation::WholeTwice, ..MetadataRules::DEFAULT },
    update: UpdateRules::CONDITIONAL,
    gated: gated::rows::ATTACHMENT,
    validation: ValidationRules {
        validate: validate_attachment,
        validate_update: validate_attachment_update,
        ..ValidationRules::DEFAULT
    },
    status: StatusRules {
        metadata: StatusMeta::ResetForStatus,
        metadata_revalidation: MetaRevalidation::WholeTwice,
        validate: validate_attachment_update,
        ..StatusRules::DEFAULT
    },
    reset_fields: ResetFields::STATUS_KEEPS_METADATA,
    deletion: DeletionRules::RETURNS_OBJECT,
    ..KindRules::DEFAULT
};

/// The rules of a VolumeAttributesClass.
pub const VOLUME_ATTRIBUTES_CLASS: KindRules = KindRules {
    validation: ValidationRules {
        validate: validate_attributes_class,
        validate_update: validate_attributes_class_update,
        ..ValidationRules::DEFAULT
    },
    deletion: DeletionRules::RETURNS_OBJECT,
    ..KindRules::DEFAULT
};

fn validate_provisioner(node: &FieldValue<'_>, errors: &mut ErrorList) {
    if node.need(errors) {
        // The reference validates and reports the name in lower case.
        let name = node.text().to_lowercase();
        meta::add_invalid(errors, &node.path, &name, names::qualified_name(&name));
    }
}

fn validate_parameters(node: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_PARAMETERS: usize = 512;
    const MAX_SIZE: usize = 256 * 1_024;
    if node.len() > MAX_PARAMETERS {
        errors.push(FieldError::too_long(&node.path, MAX_PARAMETERS));
        return;
    }
    let mut size = 0;
    for (key, value) in node.entries() {
        if key.is_empty() {
            errors.push(FieldError::invalid(&node.path, "\"\"", "field can not be empty."));
        }
        size += key.len() + value.text().len();
    }
    if size > MAX_SIZE {
        errors.push(FieldError::too_long(&node.path, MAX_SIZE));
    }
}

/// Checks a StorageClass.
pub fn validate_class(class: &Value, errors: &mut ErrorList) {
    validate_provisioner(&FieldValue::top_level(class, "provisioner"), errors);
    validate_parameters(&FieldValue::top_level(class, "parameters"), errors);
    let policy = FieldValue::top_level(class, "reclaimPolicy");
    if !policy.is_empty() {
        // The published values are those of volumes, but a class cannot recycle.
        policy.one_of(errors, &["Delete", "Retain"]);
    }
    let mode = FieldValue::top_level(class, "volumeBindingMode");
    if mode.is_set() {
        mode.one_of(errors, storage_v1::StorageClass::VOLUME_BINDING_MODE);
    } else {
        mode.required(errors, "");
    }
    validate_topologies(&FieldValue::top_level(class, "allowedTopologies"), errors);
}

/// Checks that no two terms are equal, and no term has an expression twice. The reference counts an empty term as a duplicate
/// of as many others as there are terms.
fn validate_topologies(list: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut terms: BTreeMap<Vec<(&str, BTreeSet<&str>)>, usize> = BTreeMap::new();
    terms.insert(Vec::new(), list.len());
    for term in list.items() {
        let expressions = term.child("matchLabelExpressions");
        let mut requirements: Vec<(&str, BTreeSet<&str>)> = Vec::new();
        let mut keys = BTreeSet::new();
        for expression in expressions.items() {
            let (key, values) = (expression.child("key"), expression.child("values"));
            values.need(errors);
            let mut seen = BTreeSet::new();
            for value in values.items() {
                if !seen.insert(value.text()) {
                    value.duplicate(errors);
                }
            }
            key.syntax(errors, names::qualified_name);
            if !keys.insert(key.text()) {
                key.duplicate(errors);
            }
            requirements.push((key.text(), seen));
        }
        requirements.sort();
        let duplicates = terms.entry(requirements).or_default();
        for _ in 0..*duplicates {
            errors.add(|| FieldError::duplicate(&expressions.path, "\"\""));
        }
        *duplicates += 1;
    }
}

/// Validates an updated StorageClass: it is immutable.
fn validate_class_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_immutable(new, old, &["parameters", "provisioner", "reclaimPolicy"], errors);
    FieldValue::top_level(new, "volumeBindingMode")
        .unchanged(&FieldValue::top_level(old, "volumeBindingMode"), errors);
}

fn validate_immutable(new: &Value, old: &Value, fields: &[&str], errors: &mut ErrorList) {
    for field in fields {
        if !same(new.get(field), old.get(field)) {
            let detail = format!("updates to {field} are forbidden.");
            errors.push(FieldError::forbidden(&FieldPath::new(field), &detail));
        }
    }
}

/// Warns about deprecated node labels.
fn warn_class(class: &Value, _old: Option<&Value>, warnings: &mut WarningList) {
    for term in FieldValue::top_level(class, "allowedTopologies").items() {
        for expression in term.child("matchLabelExpressions").items() {
            let key = expression.child("key");
            if let Some(detail) = node_label::deprecated(key.text()) {
                warnings.push(format!("{}: {detail}", key.path));
            }
        }
    }
}

/// Checks a VolumeAttributesClass.
fn validate_attributes_class(class: &Value, errors: &mut ErrorList) {
    validate_provisioner(&FieldValue::top_level(class, "driverName"), errors);
    let parameters = FieldValue::top_level(class, "parameters");
    validate_parameters(&parameters, errors);
    if parameters.is_empty() {
        parameters.required(errors, "must contain at least one key/value pair");
    }
}

/// Validates an updated VolumeAttributesClass: it is immutable. The reference validates it twice.
fn validate_attributes_class_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_attributes_class(new, errors);
    validate_immutable(new, old, &["driverName", "parameters"], errors);
    validate_attributes_class(new, errors);
}

/// seLinuxMount defaults to false.
fn default_driver(driver: &mut Value, features: EnabledFeatures) {
    if features.has(Feature::SELinuxMountReadWriteOncePod) {
        fill(driver.entry("spec"), "seLinuxMount", false);
    }
}

/// Checks a CSIDriver.
fn validate_driver(driver: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(driver, "spec");
    // The first field is misspelt in messages of the reference.
    for (field, rendered) in
        [("attachRequired", "attachedRequired"), ("podInfoOnMount", ""), ("storageCapacity", "")]
    {
        if !spec.child(field).is_set() {
            let path = spec.path.child(if rendered.is_empty() { field } else { rendered });
            errors.push(FieldError::required(&path, ""));
        }
    }
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    spec.child("fsGroupPolicy").one_of_if_set(errors, &policies);
    validate_token_requests(&spec.child("tokenRequests"), errors);
    let modes = spec.child("volumeLifecycleModes");
    for mode in modes.items().filter(|mode| !matches!(mode.text(), "Persistent" | "Ephemeral")) {
        errors.push(FieldError::not_supported(&modes.path, &mode.render(), &["Persistent", "Ephemeral"]));
    }
    if !spec.child("seLinuxMount").is_set() && errors.features().has(Feature::SELinuxMountReadWriteOncePod) {
        spec.child("seLinuxMount").required(errors, "");
    }
    const MIN_PERIOD: i64 = 10;
    let period = spec.child("nodeAllocatableUpdatePeriodSeconds");
    if period.int().is_some_and(|seconds| seconds < MIN_PERIOD) {
        period.invalid(errors, "must be greater than or equal to 10 seconds");
    }
}

fn validate_token_requests(requests: &FieldValue<'_>, errors: &mut ErrorList) {
    const MIN_SECONDS: i64 = 600;
    const MAX_SECONDS: i64 = 1 << 32;
    let mut audiences = BTreeSet::new();
    for request in requests.items() {
        let (audience, seconds) = (request.child("audience"), request.child("expirationSeconds"));
        if !audiences.insert(audience.text()) {
            errors.push(FieldError::duplicate(&audience.path, &quoted(audience.text())));
            continue;
        }
        if seconds.int().is_some_and(|seconds| seconds < MIN_SECONDS) {
            seconds.invalid(errors, "may not specify a duration less than 10 minutes");
        }
        if seconds.int().is_some_and(|seconds| seconds > MAX_SECONDS) {
            seconds.invalid(errors, "may not specify a duration larger than 2^32 seconds");
        }
    }
}

/// Validates an updated CSIDriver: attachRequired and volumeLifecycleModes are immutable.
fn validate_driver_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (spec, old_spec) = (FieldValue::top_level(new, "spec"), FieldValue::top_level(old, "spec"));
    let attach =
        FieldValue { value: spec.child("attachRequired").value, path: spec.path.child("attachedRequired") };
    attach.unchanged(&old_spec.child("attachRequired"), errors);
    let modes = spec.child("volumeLifecycleModes");
    if !same(Some(modes.value), Some(old_spec.child("volumeLifecycleModes").value)) {
        let rendered = messages::render_strings(&modes, "storage.VolumeLifecycleMode");
        errors.push(FieldError::invalid(&modes.path, &rendered, meta::IMMUTABLE));
    }
}

/// Checks the name of a driver.
fn validate_driver_name(name: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_LENGTH: usize = 63;
    name.need(errors);
    if name.text().len() > MAX_LENGTH {
        errors.push(FieldError::too_long(&name.path, MAX_LENGTH));
    }
    for detail in names::dns_subdomain(&name.text().to_lowercase()) {
        name.invalid_text(errors, &detail);
    }
}

/// Checks a CSINode.
fn validate_csi_node(node: &Value, errors: &mut ErrorList) {
    const MAX_ID_LENGTH: usize = 256;
    let mut seen = BTreeSet::new();
    for driver in FieldValue::top_level(node, "spec").child("drivers").items() {
        let (name, id) = (driver.child("name"), driver.child("nodeID"));
        validate_driver_name(&name, errors);
        if id.need(errors) && id.text().len() > MAX_ID_LENGTH {
            id.invalid(errors, &format!("must be {MAX_ID_LENGTH} characters or less"));
        }
        driver.child("allocatable").child("count").not_negative(errors);
        if !seen.insert(name.text()) {
            errors.push(FieldError::duplicate(&name.path, &quoted(name.text())));
        }
        let mut keys = BTreeSet::new();
        for key in driver.child("topologyKeys").items() {
            let at_driver = FieldValue { value: key.value, path: driver.path.clone() };
            at_driver.need(errors);
            if !keys.insert(key.text()) {
                errors.push(FieldError::duplicate(&driver.path, &quoted(key.text())));
            }
            at_driver.syntax(errors, names::qualified_name);
        }
    }
}

/// Validates an updated CSINode: its drivers are immutable.
fn validate_csi_node_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let drivers = |object| FieldValue::top_level(object, "spec").child("drivers");
    for old_driver in drivers(old).items() {
        for driver in
            drivers(new).items().filter(|other| other.child("name").text() == old_driver.child("name").text())
        {
            let (mut new_value, mut old_value) = (driver.value.clone(), old_driver.value.clone());
            if errors.features().has(Feature::MutableCSINodeAllocatableCount) {
                new_value.remove("allocatable");
                old_value.remove("allocatable");
            }
            let driver = FieldValue { value: &new_value, path: drivers(new).path };
            let old_driver = FieldValue { value: &old_value, path: old_driver.path.clone() };
            messages::validate_struct_unchanged(&driver, &old_driver, "storage.CSINodeDriver", errors);
        }
    }
}

/// Checks a CSIStorageCapacity.
fn validate_capacity(object: &Value, errors: &mut ErrorList) {
    label_selector::validate(&FieldValue::top_level(object, "nodeTopology"), errors);
    FieldValue::top_level(object, "storageClassName").syntax(errors, names::dns_subdomain);
    let amount = FieldValue::top_level(object, "capacity");
    if amount.amount().is_some_and(NanoQuantity::is_negative) {
        amount.invalid_text(errors, "must be greater than or equal to 0");
    }
}

/// Validates an updated CSIStorageCapacity: topology and class are immutable.
fn validate_capacity_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (topology, old_topology) =
        (FieldValue::top_level(new, "nodeTopology"), FieldValue::top_level(old, "nodeTopology"));
    messages::validate_struct_unchanged(&topology, &old_topology, "v1.LabelSelector", errors);
    if new.str("storageClassName") != old.str("storageClassName") {
        FieldValue::top_level(new, "storageClassName").invalid_text(errors, meta::IMMUTABLE);
    }
}

/// Warns about deprecated node labels.
fn warn_capacity(object: &Value, _old: Option<&Value>, warnings: &mut WarningList) {
    node_label::warn_selector(&FieldPath::new("nodeTopology"), object.get("nodeTopology"), warnings);
}

/// Checks a VolumeAttachment.
fn validate_attachment(attachment: &Value, errors: &mut ErrorList) {
    validate_attachment_common(attachment, errors);
    let spec = FieldValue::top_level(attachment, "spec");
    validate_driver_name(&spec.child("attacher"), errors);
    let volume_name = spec.child("source").child("persistentVolumeName");
    if volume_name.is_set() {
        volume_name.syntax(errors, names::dns_subdomain);
    }
}

fn validate_attachment_common(attachment: &Value, errors: &mut ErrorList) {
    const EXACTLY_ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    let spec = FieldValue::top_level(attachment, "spec");
    spec.child("attacher").need(errors);
    let source = spec.child("source");
    let (inline, volume_name) = (source.child("inlineVolumeSpec"), source.child("persistentVolumeName"));
    match (inline.is_set(), volume_name.is_set()) {
        (false, false) => source.required(errors, EXACTLY_ONE),
        (true, true) => source.forbidden(errors, EXACTLY_ONE),
        (false, true) if volume_name.is_empty() => {
            volume_name.required(errors, "must specify non empty persistentVolumeName");
        }
        (true, false) => persistent_volume::validate_inline(&inline, errors),
        (false, true) => {}
    }
    spec.child("nodeName").syntax(errors, names::dns_subdomain);
    validate_attachment_status(&FieldValue::top_level(attachment, "status"), errors);
}

fn validate_attachment_status(status: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_SIZE: usize = 256 * 1_024;
    const MAX_MESSAGE_LENGTH: usize = 1_024;
    let metadata = status.child("attachmentMetadata");
    if metadata.entries().map(|(key, value)| key.len() + value.text().len()).sum::<usize>() > MAX_SIZE {
        errors.push(FieldError::too_long(&metadata.path, MAX_SIZE));
    }
    for field in ["attachError", "detachError"] {
        let message = status.child(field).child("message");
        if message.text().len() > MAX_MESSAGE_LENGTH {
            errors.push(FieldError::too_long(&message.path, MAX_SIZE));
        }
        let code = status.child(field).child("errorCode");
        if code.number() < 0 {
            code.invalid(errors, &names::outside(0, i64::from(i32::MAX)));
        }
    }
}

/// Validates an updated VolumeAttachment: its spec is immutable. The reference validates it twice.
fn validate_attachment_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_attachment_common(new, errors);
    validate_attachment_common(new, errors);
    if !same(new.get("spec"), old.get("spec")) {
        messages::invalid_struct(
            &FieldPath::new("spec"),
            "storage.VolumeAttachmentSpec",
            errors,
            meta::IMMUTABLE,
        );
    }
}

#[cfg(test)]
mod tests;
