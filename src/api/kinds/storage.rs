//! The kinds that describe storage.

use super::Errors;
use super::check::{Node, fill, same};
use crate::api::field::{FieldError, Path};
use crate::api::names;
use crate::api::value::Value;

/// The defaults of a StorageClass.
pub fn default_class(class: &mut Value) {
    fill(class, "reclaimPolicy", "Delete");
    fill(class, "volumeBindingMode", "Immediate");
}

/// Checks a StorageClass.
pub fn validate_class(class: &Value, errors: &mut Errors) {
    Node::of(class, "provisioner").need_syntax(errors, |name| names::qualified_name(&name.to_lowercase()));
    let policy = Node::of(class, "reclaimPolicy");
    if !policy.is_empty() {
        policy.one_of(errors, &["Delete", "Retain"]);
    }
    Node::of(class, "volumeBindingMode").one_of_if_set(errors, &["Immediate", "WaitForFirstConsumer"]);
}

/// Checks a changed StorageClass: it stays as it is.
pub fn validate_class_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate_class(new, errors);
    for field in ["parameters", "provisioner", "reclaimPolicy"] {
        if !same(new.get(field), old.get(field)) {
            let wrong = format!("updates to {field} are forbidden.");
            errors.push(FieldError::forbidden(&Path::new(field), &wrong));
        }
    }
    Node::of(new, "volumeBindingMode").unchanged(&Node::of(old, "volumeBindingMode"), errors);
}

/// Checks a CSIDriver.
pub fn validate_driver(driver: &Value, errors: &mut Errors) {
    let spec = Node::of(driver, "spec");
    for mode in spec.child("volumeLifecycleModes").items() {
        if !matches!(mode.text(), "Persistent" | "Ephemeral") {
            let path = spec.child("volumeLifecycleModes").path;
            errors.push(FieldError::not_supported(&path, &mode.shown(), &["Ephemeral", "Persistent"]));
        }
    }
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    spec.child("fsGroupPolicy").one_of_if_set(errors, &policies);
    let mut audiences = std::collections::BTreeSet::new();
    for request in spec.child("tokenRequests").items() {
        if !audiences.insert(request.child("audience").text()) {
            let path = request.child("audience").path;
            errors.push(FieldError::duplicate(
                &path,
                &crate::api::field::quoted(request.child("audience").text()),
            ));
        }
    }
}

/// Checks a changed CSIDriver: whether volumes are attached stays.
pub fn validate_driver_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate_driver(new, errors);
    let (spec, was) = (Node::of(new, "spec"), Node::of(old, "spec"));
    for field in ["attachRequired", "volumeLifecycleModes"] {
        let path = if field == "attachRequired" { "attachedRequired" } else { field };
        let node = Node { value: spec.child(field).value, path: spec.path.child(path) };
        node.unchanged(&was.child(field), errors);
    }
}

/// Checks a CSINode.
pub fn validate_csi_node(node: &Value, errors: &mut Errors) {
    const LONGEST_ID: usize = 256;
    let mut seen = std::collections::BTreeSet::new();
    for driver in Node::of(node, "spec").child("drivers").items() {
        let (name, id) = (driver.child("name"), driver.child("nodeID"));
        name.need(errors);
        if id.need(errors) && id.text().len() > LONGEST_ID {
            id.invalid(errors, &format!("must be {LONGEST_ID} characters or less"));
        }
        let count = driver.child("allocatable").child("count");
        count.not_negative(errors);
        if !name.is_empty() && !seen.insert(name.text()) {
            name.duplicate(errors);
        }
    }
}

/// Checks a changed CSINode.
pub fn validate_csi_node_update(new: &Value, _old: &Value, errors: &mut Errors) {
    validate_csi_node(new, errors);
}

/// Checks a VolumeAttachment.
pub fn validate_attachment(attachment: &Value, errors: &mut Errors) {
    let spec = Node::of(attachment, "spec");
    spec.child("attacher").need_syntax(errors, |name| names::qualified_name(&name.to_lowercase()));
    let source = spec.child("source");
    let (inline, named) = (source.child("inlineVolumeSpec"), source.child("persistentVolumeName"));
    match (inline.is_set(), !named.is_empty()) {
        (false, false) => {
            source.required(errors, "must specify exactly one of inlineVolumeSpec and persistentVolumeName");
        }
        (true, true) => {
            source.forbidden(errors, "must specify exactly one of inlineVolumeSpec and persistentVolumeName");
        }
        (false, true) => named.syntax(errors, names::dns_subdomain),
        (true, false) => {}
    }
    spec.child("nodeName").need_syntax(errors, names::dns_subdomain);
}

/// Checks a changed VolumeAttachment: what is attached where stays.
pub fn validate_attachment_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate_attachment(new, errors);
    if !same(new.get("spec"), old.get("spec")) {
        let wrong = crate::api::meta::IMMUTABLE;
        errors.push(FieldError::invalid(&Path::new("spec"), "storage.VolumeAttachmentSpec{}", wrong));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{each_change_refused, each_refused, object};
    use super::*;

    #[test]
    fn each_rule_of_a_class_refuses() {
        let mut base = object(r#"{"provisioner":"a"}"#);
        default_class(&mut base);
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
            r#"{"spec":{"attachRequired":true,"volumeLifecycleModes":["Persistent"],"fsGroupPolicy":"File","tokenRequests":[{"audience":"a"}]}}"#,
        );
        each_refused(
            &driver,
            validate_driver,
            &[
                ("spec.volumeLifecycleModes", r#"["X"]"#, "supported values: \"Ephemeral\", \"Persistent\""),
                ("spec.fsGroupPolicy", r#""X""#, "\"File\", \"None\", \"ReadWriteOnceWithFSType\""),
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
                ("spec.drivers.0.name", "null", "spec.drivers[0].name: Required value"),
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
                ("spec.attacher", "null", "spec.attacher: Required value"),
                ("spec.nodeName", "null", "spec.nodeName: Required value"),
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
    }
}
