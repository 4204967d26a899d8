//! The kinds that describe storage.

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
    GUARDED, Generation, KindRules, MetaRevalidation, PLAIN, Revalidation, StatusMeta, gated, messages,
};
use crate::allowed::storage_v1;

/// The rules of a StorageClass.
pub const STORAGE_CLASS: KindRules = KindRules {
    validate: validate_class,
    revalidation: Revalidation::Once,
    validate_update: validate_class_update,
    warn: warn_class,
    ..PLAIN
};

/// The rules of a CSIDriver.
pub const CSI_DRIVER: KindRules = KindRules {
    generation: Generation { starts: false, ..Generation::SPEC },
    gated: gated::rows::DRIVER,
    default_by: default_driver,
    validate: validate_driver,
    revalidation: Revalidation::Once,
    validate_update: validate_driver_update,
    meta_revalidation: MetaRevalidation::Change,
    ..GUARDED
};

/// The rules of a CSINode.
pub const CSI_NODE: KindRules = KindRules {
    validate: validate_csi_node,
    revalidation: Revalidation::Twice,
    validate_update: validate_csi_node_update,
    meta_revalidation: MetaRevalidation::WholeTwice,
    ..GUARDED
};

/// The rules of a CSIStorageCapacity.
pub const CSI_STORAGE_CAPACITY: KindRules = KindRules {
    validate: validate_capacity,
    revalidation: Revalidation::Once,
    validate_update: validate_capacity_update,
    warn: warn_capacity,
    ..GUARDED
};

/// The rules of a VolumeAttachment.
pub const VOLUME_ATTACHMENT: KindRules = KindRules {
    status_meta: StatusMeta::Fixed,
    gated: gated::rows::ATTACHMENT,
    validate: validate_attachment,
    validate_update: validate_attachment_update,
    validate_status: validate_attachment_update,
    status_meta_revalidation: MetaRevalidation::WholeTwice,
    meta_revalidation: MetaRevalidation::WholeTwice,
    ..GUARDED
};

/// The rules of a VolumeAttributesClass.
pub const VOLUME_ATTRIBUTES_CLASS: KindRules = KindRules {
    validate: validate_attributes_class,
    validate_update: validate_attributes_class_update,
    ..PLAIN
};

fn provisioner(node: &FieldValue<'_>, errors: &mut ErrorList) {
    if node.need(errors) {
        // Messages show the name as it was looked at.
        let name = node.text().to_lowercase();
        meta::texts(errors, &node.path, &name, names::qualified_name(&name));
    }
}

fn parameters(node: &FieldValue<'_>, errors: &mut ErrorList) {
    const MOST: usize = 512;
    const LARGEST: usize = 256 * 1_024;
    if node.len() > MOST {
        errors.push(FieldError::too_long(&node.path, MOST));
        return;
    }
    let mut size = 0;
    for (key, value) in node.entries() {
        if key.is_empty() {
            errors.push(FieldError::invalid(&node.path, "\"\"", "field can not be empty."));
        }
        size += key.len() + value.text().len();
    }
    if size > LARGEST {
        errors.push(FieldError::too_long(&node.path, LARGEST));
    }
}

/// Checks a StorageClass.
pub fn validate_class(class: &Value, errors: &mut ErrorList) {
    provisioner(&FieldValue::of(class, "provisioner"), errors);
    parameters(&FieldValue::of(class, "parameters"), errors);
    let policy = FieldValue::of(class, "reclaimPolicy");
    if !policy.is_empty() {
        // Published are the words of volumes, but none that a class makes can be recycled.
        policy.one_of(errors, &["Delete", "Retain"]);
    }
    let mode = FieldValue::of(class, "volumeBindingMode");
    if mode.is_set() {
        mode.one_of(errors, storage_v1::StorageClass::VOLUME_BINDING_MODE);
    } else {
        mode.required(errors, "");
    }
    topologies(&FieldValue::of(class, "allowedTopologies"), errors);
}

/// Checks where volumes may be: no two terms may say the same, and no term may say a thing twice. A term that says
/// nothing is taken for a copy of as many others as there are terms.
fn topologies(list: &FieldValue<'_>, errors: &mut ErrorList) {
    let mut terms: BTreeMap<Vec<(&str, BTreeSet<&str>)>, usize> = BTreeMap::new();
    terms.insert(Vec::new(), list.len());
    for term in list.items() {
        let expressions = term.child("matchLabelExpressions");
        let mut all: Vec<(&str, BTreeSet<&str>)> = Vec::new();
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
            all.push((key.text(), seen));
        }
        all.sort();
        let same = terms.entry(all).or_default();
        for _ in 0..*same {
            errors.add(|| FieldError::duplicate(&expressions.path, "\"\""));
        }
        *same += 1;
    }
}

/// Checks a changed StorageClass: it stays as it is.
fn validate_class_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    fixed(new, old, &["parameters", "provisioner", "reclaimPolicy"], errors);
    FieldValue::of(new, "volumeBindingMode").unchanged(&FieldValue::of(old, "volumeBindingMode"), errors);
}

fn fixed(new: &Value, old: &Value, fields: &[&str], errors: &mut ErrorList) {
    for field in fields {
        if !same(new.get(field), old.get(field)) {
            let wrong = format!("updates to {field} are forbidden.");
            errors.push(FieldError::forbidden(&FieldPath::new(field), &wrong));
        }
    }
}

/// Warns of labels of nodes that other labels have replaced.
fn warn_class(class: &Value, _old: Option<&Value>, warned: &mut WarningList) {
    for term in FieldValue::of(class, "allowedTopologies").items() {
        for expression in term.child("matchLabelExpressions").items() {
            let key = expression.child("key");
            if let Some(why) = node_label::deprecated(key.text()) {
                warned.push(format!("{}: {why}", key.path));
            }
        }
    }
}

/// Checks a VolumeAttributesClass.
fn validate_attributes_class(class: &Value, errors: &mut ErrorList) {
    provisioner(&FieldValue::of(class, "driverName"), errors);
    let given = FieldValue::of(class, "parameters");
    parameters(&given, errors);
    if given.is_empty() {
        given.required(errors, "must contain at least one key/value pair");
    }
}

/// Checks a changed VolumeAttributesClass: it stays as it is. What is wrong with it is said twice, as by the reference.
fn validate_attributes_class_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_attributes_class(new, errors);
    fixed(new, old, &["driverName", "parameters"], errors);
    validate_attributes_class(new, errors);
}

/// Drivers that do not say whether they can mount with labels of SELinux cannot.
fn default_driver(driver: &mut Value, terms: EnabledFeatures) {
    if terms.has(Feature::SELinuxMountReadWriteOncePod) {
        fill(driver.entry("spec"), "seLinuxMount", false);
    }
}

/// Checks a CSIDriver.
fn validate_driver(driver: &Value, errors: &mut ErrorList) {
    let spec = FieldValue::of(driver, "spec");
    // The first of these is misspelt in the reference's messages, and clients see it so.
    for (field, shown) in
        [("attachRequired", "attachedRequired"), ("podInfoOnMount", ""), ("storageCapacity", "")]
    {
        if !spec.child(field).is_set() {
            let path = spec.path.child(if shown.is_empty() { field } else { shown });
            errors.push(FieldError::required(&path, ""));
        }
    }
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    spec.child("fsGroupPolicy").one_of_if_set(errors, &policies);
    token_requests(&spec.child("tokenRequests"), errors);
    let modes = spec.child("volumeLifecycleModes");
    for mode in modes.items().filter(|mode| !matches!(mode.text(), "Persistent" | "Ephemeral")) {
        errors.push(FieldError::not_supported(&modes.path, &mode.shown(), &["Persistent", "Ephemeral"]));
    }
    if !spec.child("seLinuxMount").is_set() && errors.features().has(Feature::SELinuxMountReadWriteOncePod) {
        spec.child("seLinuxMount").required(errors, "");
    }
    const SHORTEST_PERIOD: i64 = 10;
    let period = spec.child("nodeAllocatableUpdatePeriodSeconds");
    if period.int().is_some_and(|seconds| seconds < SHORTEST_PERIOD) {
        period.invalid(errors, "must be greater than or equal to 10 seconds");
    }
}

fn token_requests(requests: &FieldValue<'_>, errors: &mut ErrorList) {
    const SHORTEST: i64 = 600;
    const LONGEST: i64 = 1 << 32;
    let mut audiences = BTreeSet::new();
    for request in requests.items() {
        let (audience, seconds) = (request.child("audience"), request.child("expirationSeconds"));
        if !audiences.insert(audience.text()) {
            errors.push(FieldError::duplicate(&audience.path, &quoted(audience.text())));
            continue;
        }
        if seconds.int().is_some_and(|seconds| seconds < SHORTEST) {
            seconds.invalid(errors, "may not specify a duration less than 10 minutes");
        }
        if seconds.int().is_some_and(|seconds| seconds > LONGEST) {
            seconds.invalid(errors, "may not specify a duration larger than 2^32 seconds");
        }
    }
}

/// Checks a changed CSIDriver: whether volumes are attached stays.
fn validate_driver_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (spec, was) = (FieldValue::of(new, "spec"), FieldValue::of(old, "spec"));
    let attach =
        FieldValue { value: spec.child("attachRequired").value, path: spec.path.child("attachedRequired") };
    attach.unchanged(&was.child("attachRequired"), errors);
    let modes = spec.child("volumeLifecycleModes");
    if !same(Some(modes.value), Some(was.child("volumeLifecycleModes").value)) {
        let shown = messages::shown_texts(&modes, "storage.VolumeLifecycleMode");
        errors.push(FieldError::invalid(&modes.path, &shown, meta::IMMUTABLE));
    }
}

/// Checks the name of a driver.
fn driver_name(name: &FieldValue<'_>, errors: &mut ErrorList) {
    const LONGEST: usize = 63;
    name.need(errors);
    if name.text().len() > LONGEST {
        errors.push(FieldError::too_long(&name.path, LONGEST));
    }
    for wrong in names::dns_subdomain(&name.text().to_lowercase()) {
        name.invalid_text(errors, &wrong);
    }
}

/// Checks a CSINode.
fn validate_csi_node(node: &Value, errors: &mut ErrorList) {
    const LONGEST_ID: usize = 256;
    let mut seen = BTreeSet::new();
    for driver in FieldValue::of(node, "spec").child("drivers").items() {
        let (name, id) = (driver.child("name"), driver.child("nodeID"));
        driver_name(&name, errors);
        if id.need(errors) && id.text().len() > LONGEST_ID {
            id.invalid(errors, &format!("must be {LONGEST_ID} characters or less"));
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

/// Checks a changed CSINode: what a driver said of itself stays. The whole is looked at twice.
fn validate_csi_node_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let drivers = |object| FieldValue::of(object, "spec").child("drivers");
    for was in drivers(old).items() {
        for driver in drivers(new).items().filter(|one| one.child("name").text() == was.child("name").text())
        {
            let (mut now, mut before) = (driver.value.clone(), was.value.clone());
            if errors.features().has(Feature::MutableCSINodeAllocatableCount) {
                now.remove("allocatable");
                before.remove("allocatable");
            }
            let driver = FieldValue { value: &now, path: drivers(new).path };
            let was = FieldValue { value: &before, path: was.path.clone() };
            messages::same_structure(&driver, &was, "storage.CSINodeDriver", errors);
        }
    }
}

/// Checks a CSIStorageCapacity.
fn validate_capacity(object: &Value, errors: &mut ErrorList) {
    label_selector::validate(&FieldValue::of(object, "nodeTopology"), errors);
    FieldValue::of(object, "storageClassName").syntax(errors, names::dns_subdomain);
    let amount = FieldValue::of(object, "capacity");
    if amount.amount().is_some_and(NanoQuantity::is_negative) {
        amount.invalid_text(errors, "must be greater than or equal to 0");
    }
}

/// Checks a changed CSIStorageCapacity: which storage it is about stays.
fn validate_capacity_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (topology, was) = (FieldValue::of(new, "nodeTopology"), FieldValue::of(old, "nodeTopology"));
    messages::same_structure(&topology, &was, "v1.LabelSelector", errors);
    if new.str("storageClassName") != old.str("storageClassName") {
        FieldValue::of(new, "storageClassName").invalid_text(errors, meta::IMMUTABLE);
    }
}

/// Warns of labels of nodes that other labels have replaced.
fn warn_capacity(object: &Value, _old: Option<&Value>, warned: &mut WarningList) {
    node_label::warn_selector(&FieldPath::new("nodeTopology"), object.get("nodeTopology"), warned);
}

/// Checks a VolumeAttachment.
fn validate_attachment(attachment: &Value, errors: &mut ErrorList) {
    attachment_any(attachment, errors);
    let spec = FieldValue::of(attachment, "spec");
    driver_name(&spec.child("attacher"), errors);
    let named = spec.child("source").child("persistentVolumeName");
    if named.is_set() {
        named.syntax(errors, names::dns_subdomain);
    }
}

fn attachment_any(attachment: &Value, errors: &mut ErrorList) {
    const EXACTLY_ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    let spec = FieldValue::of(attachment, "spec");
    spec.child("attacher").need(errors);
    let source = spec.child("source");
    let (inline, named) = (source.child("inlineVolumeSpec"), source.child("persistentVolumeName"));
    match (inline.is_set(), named.is_set()) {
        (false, false) => source.required(errors, EXACTLY_ONE),
        (true, true) => source.forbidden(errors, EXACTLY_ONE),
        (false, true) if named.is_empty() => {
            named.required(errors, "must specify non empty persistentVolumeName");
        }
        (true, false) => persistent_volume::validate_inline(&inline, errors),
        (false, true) => {}
    }
    spec.child("nodeName").syntax(errors, names::dns_subdomain);
    attachment_status(&FieldValue::of(attachment, "status"), errors);
}

fn attachment_status(status: &FieldValue<'_>, errors: &mut ErrorList) {
    const LARGEST: usize = 256 * 1_024;
    const LONGEST_MESSAGE: usize = 1_024;
    let metadata = status.child("attachmentMetadata");
    if metadata.entries().map(|(key, value)| key.len() + value.text().len()).sum::<usize>() > LARGEST {
        errors.push(FieldError::too_long(&metadata.path, LARGEST));
    }
    for field in ["attachError", "detachError"] {
        let message = status.child(field).child("message");
        if message.text().len() > LONGEST_MESSAGE {
            errors.push(FieldError::too_long(&message.path, LARGEST));
        }
        let code = status.child(field).child("errorCode");
        if code.number() < 0 {
            code.invalid(errors, &names::outside(0, i64::from(i32::MAX)));
        }
    }
}

/// Checks a changed VolumeAttachment: what is attached where stays. The whole is looked at twice.
fn validate_attachment_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    attachment_any(new, errors);
    attachment_any(new, errors);
    if !same(new.get("spec"), old.get("spec")) {
        messages::structure(&FieldPath::new("spec"), "storage.VolumeAttachmentSpec", errors, meta::IMMUTABLE);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::super::testing::filled;
    use super::*;

    #[test]
    fn each_rule_of_a_class_refuses() {
        let base = filled(("storage.k8s.io", "v1"), "StorageClass", r#"{"provisioner":"a"}"#);
        each_refused(
            &base,
            validate_class,
            &[
                ("provisioner", "null", "provisioner: Required value"),
                ("provisioner", r#""-""#, "provisioner: Invalid value"),
                (
                    "reclaimPolicy",
                    r#""Nope""#,
                    "reclaimPolicy: Unsupported value: \"Nope\": supported values: \"Delete\", \"Retain\"",
                ),
                ("volumeBindingMode", r#""X""#, "supported values: \"Immediate\", \"WaitForFirstConsumer\""),
            ],
        );
        each_change_refused(
            &base,
            validate_class_update,
            &[
                ("provisioner", r#""b""#, "provisioner: Forbidden: updates to provisioner are forbidden."),
                ("parameters", r#"{"a":"b"}"#, "updates to parameters are forbidden."),
                ("reclaimPolicy", r#""Retain""#, "updates to reclaimPolicy are forbidden."),
                (
                    "volumeBindingMode",
                    r#""WaitForFirstConsumer""#,
                    "volumeBindingMode: Invalid value: \"WaitForFirstConsumer\": field is immutable",
                ),
            ],
        );
    }

    #[test]
    fn each_rule_of_the_others_refuses() {
        let driver = object(
            r#"{"spec":{"attachRequired":true,"podInfoOnMount":false,"storageCapacity":false,"seLinuxMount":false,
                "volumeLifecycleModes":["Persistent"],"fsGroupPolicy":"File","tokenRequests":[{"audience":"a"}]}}"#,
        );
        each_refused(
            &driver,
            validate_driver,
            &[
                ("spec.volumeLifecycleModes", r#"["X"]"#, "supported values: \"Persistent\", \"Ephemeral\""),
                ("spec.fsGroupPolicy", r#""X""#, "\"File\", \"None\", \"ReadWriteOnceWithFSType\""),
                ("spec.attachRequired", "null", "spec.attachedRequired: Required value"),
                ("spec.storageCapacity", "null", "spec.storageCapacity: Required value"),
                (
                    "spec.tokenRequests.0.expirationSeconds",
                    "599",
                    "may not specify a duration less than 10 minutes",
                ),
                (
                    "spec.tokenRequests.0.expirationSeconds",
                    "4294967297",
                    "may not specify a duration larger than 2^32 seconds",
                ),
                (
                    "spec.nodeAllocatableUpdatePeriodSeconds",
                    "9",
                    "must be greater than or equal to 10 seconds",
                ),
                (
                    "spec.tokenRequests",
                    r#"[{"audience":"a"},{"audience":"a"}]"#,
                    "tokenRequests[1].audience: Duplicate value: \"a\"",
                ),
            ],
        );
        each_change_refused(
            &driver,
            validate_driver_update,
            &[(
                "spec.attachRequired",
                "false",
                "spec.attachedRequired: Invalid value: false: field is immutable",
            )],
        );
        let node = object(r#"{"spec":{"drivers":[{"name":"a","nodeID":"n"}]}}"#);
        each_refused(
            &node,
            validate_csi_node,
            &[
                ("spec.drivers.0.name", r#""a_b""#, "spec.drivers[0].name: Invalid value: \"a_b\""),
                ("spec.drivers.0.topologyKeys", r#"["k","k"]"#, "spec.drivers[0]: Duplicate value: \"k\""),
                ("spec.drivers.0.topologyKeys", r#"["-"]"#, "spec.drivers[0]: Invalid value: \"-\""),
                ("spec.drivers.0.nodeID", "null", "spec.drivers[0].nodeID: Required value"),
                ("spec.drivers.0.allocatable", r#"{"count":-1}"#, "count: Invalid value: -1"),
                (
                    "spec.drivers",
                    r#"[{"name":"a","nodeID":"n"},{"name":"a","nodeID":"n"}]"#,
                    "spec.drivers[1].name: Duplicate value: \"a\"",
                ),
            ],
        );
        let attachment =
            object(r#"{"spec":{"attacher":"a.b","nodeName":"n","source":{"persistentVolumeName":"p"}}}"#);
        each_refused(
            &attachment,
            validate_attachment,
            &[
                ("spec.attacher", r#""a_b""#, "spec.attacher: Invalid value"),
                ("spec.nodeName", r#""A""#, "spec.nodeName: Invalid value: \"A\""),
                (
                    "status.attachError",
                    r#"{"errorCode":-1}"#,
                    "status.attachError.errorCode: Invalid value: -1",
                ),
                ("spec.source", "{}", "spec.source: Required value: must specify exactly one"),
                ("spec.source.inlineVolumeSpec", r#"{"x":1}"#, "spec.source: Forbidden"),
            ],
        );
        each_change_refused(
            &attachment,
            validate_attachment_update,
            &[(
                "spec.nodeName",
                r#""m""#,
                "spec: Invalid value: storage.VolumeAttachmentSpec{}: field is immutable",
            )],
        );
        each_change_refused(
            &node,
            validate_csi_node_update,
            &[(
                "spec.drivers.0.nodeID",
                r#""m""#,
                "spec.drivers: Invalid value: storage.CSINodeDriver{}: field is immutable",
            )],
        );
        let capacity =
            object(r#"{"storageClassName":"c","capacity":"1Gi","nodeTopology":{"matchLabels":{"a":"b"}}}"#);
        each_refused(
            &capacity,
            validate_capacity,
            &[
                ("storageClassName", "null", "storageClassName: Invalid value: \"\""),
                (
                    "capacity",
                    r#""-1""#,
                    "capacity: Invalid value: \"-1\": must be greater than or equal to 0",
                ),
                ("nodeTopology.matchLabels.a", r#""-""#, "nodeTopology.matchLabels: Invalid value"),
            ],
        );
        each_change_refused(
            &capacity,
            validate_capacity_update,
            &[
                ("storageClassName", r#""d""#, "storageClassName: Invalid value: \"d\": field is immutable"),
                (
                    "nodeTopology.matchLabels.a",
                    r#""c""#,
                    "nodeTopology: Invalid value: v1.LabelSelector{}: field is immutable",
                ),
            ],
        );
        let attributes = object(r#"{"driverName":"a.b","parameters":{"k":"v"}}"#);
        each_refused(
            &attributes,
            validate_attributes_class,
            &[
                ("driverName", "null", "driverName: Required value"),
                (
                    "parameters",
                    "null",
                    "parameters: Required value: must contain at least one key/value pair",
                ),
                ("parameters", r#"{"":"v"}"#, "parameters: Invalid value: \"\": field can not be empty."),
            ],
        );
        each_change_refused(
            &attributes,
            validate_attributes_class_update,
            &[("parameters.k", r#""w""#, "parameters: Forbidden: updates to parameters are forbidden.")],
        );
    }

    #[test]
    fn places_of_volumes_are_said_once_and_by_their_new_names() {
        let base = filled(
            ("storage.k8s.io", "v1"),
            "StorageClass",
            r#"{"provisioner":"a","allowedTopologies":[{"matchLabelExpressions":[{"key":"k","values":["v"]}]},
                {"matchLabelExpressions":[{"key":"beta.kubernetes.io/os","values":["v"]}]}]}"#,
        );
        let expression = "allowedTopologies.0.matchLabelExpressions";
        let (values, key) = (format!("{expression}.0.values"), format!("{expression}.0.key"));
        each_refused(
            &base,
            validate_class,
            &[
                (&values, "[]", "matchLabelExpressions[0].values: Required value"),
                (&values, r#"["v","v"]"#, "values[1]: Duplicate value: \"v\""),
                (&key, r#""-""#, "matchLabelExpressions[0].key: Invalid value: \"-\""),
                (
                    &key,
                    r#""beta.kubernetes.io/os""#,
                    "allowedTopologies[1].matchLabelExpressions: Duplicate value: \"\"",
                ),
                (
                    expression,
                    r#"[{"key":"k","values":["v"]},{"key":"k","values":["w"]}]"#,
                    "matchLabelExpressions[1].key: Duplicate value: \"k\"",
                ),
            ],
        );
        let mut warned = WarningList::new();
        warn_class(&base, None, &mut warned);
        assert_eq!(
            warned,
            [
                "allowedTopologies[1].matchLabelExpressions[0].key: deprecated since v1.14; use \"kubernetes.io/os\" instead"
            ]
        );
        let capacity = object(
            r#"{"nodeTopology":{"matchLabels":{"beta.kubernetes.io/os":"a"},"matchExpressions":[{"key":"beta.kubernetes.io/arch"}]}}"#,
        );
        let mut warned = WarningList::new();
        warn_capacity(&capacity, None, &mut warned);
        assert_eq!(
            warned,
            [
                "nodeTopology.matchExpressions[0].key: beta.kubernetes.io/arch is deprecated since v1.14; use \"kubernetes.io/arch\" instead",
                "nodeTopology.matchLabels.beta.kubernetes.io/os: deprecated since v1.14; use \"kubernetes.io/os\" instead",
            ]
        );
    }

    #[test]
    fn a_term_that_says_nothing_is_a_copy_of_all() {
        let class = |terms: &str| {
            let class = format!(
                r#"{{"provisioner":"Ex.com/P","volumeBindingMode":"Immediate","allowedTopologies":{terms}}}"#
            );
            let mut errors = ErrorList::new();
            validate_class(&object(&class), &mut errors);
            errors.len()
        };
        assert_eq!(class("[]"), 0);
        assert_eq!(class("[{}]"), 1);
        assert_eq!(class("[{},{}]"), 5, "two for the first, three for the second");
    }

    #[test]
    fn names_of_provisioners_are_shown_in_small_letters() {
        let mut errors = ErrorList::new();
        provisioner(&FieldValue::of(&object(r#"{"provisioner":"Bad!"}"#), "provisioner"), &mut errors);
        assert!(errors.iter().all(|error| error.message.starts_with("Invalid value: \"bad!\"")));
        assert!(!errors.is_empty());
    }

    #[test]
    fn each_rule_of_an_inline_volume_refuses() {
        let base = object(
            r#"{"spec":{"attacher":"a.b","nodeName":"n","source":{"inlineVolumeSpec":{"accessModes":["ReadWriteOnce"],
                "csi":{"driver":"d.e","volumeHandle":"h"}}}}}"#,
        );
        let wrong = "may not be specified in the context of inline volumes";
        let at = |field: &str| format!("spec.source.inlineVolumeSpec.{field}");
        let (claim, capacity, nodes, class, policy, mode, modes) = (
            at("claimRef"),
            at("capacity"),
            at("nodeAffinity"),
            at("storageClassName"),
            at("persistentVolumeReclaimPolicy"),
            at("volumeMode"),
            at("accessModes"),
        );
        each_refused(
            &base,
            validate_attachment,
            &[
                (&claim, r#"{"name":"c"}"#, wrong),
                (&capacity, r#"{"storage":"1Gi"}"#, wrong),
                (&nodes, r#"{"required":{}}"#, wrong),
                (&class, r#""c""#, wrong),
                (&policy, r#""Delete""#, "may only be Retain in the context of inline volumes"),
                (&mode, r#""Block""#, "may not specify volumeMode other than Filesystem"),
                (&modes, "[]", "accessModes: Required value"),
            ],
        );
    }
}
