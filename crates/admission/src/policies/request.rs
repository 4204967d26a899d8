//! The `request` and `namespaceObject` variables of CEL expressions.

use pilothouse_apimachinery::value::Value;
use pilothouse_types::identity::Identity;

use crate::matching::AdmissionAttributes;

/// The attributes of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestInfo<'a> {
    /// The original resource and operation.
    pub attributes: AdmissionAttributes<'a>,
    /// The original kind.
    pub kind: KindRef<'a>,
    /// The user.
    pub user: &'a Identity,
    /// Whether it is a dry run.
    pub is_trial: bool,
    /// Its options as an object; null for none.
    pub options: &'a Value,
}

/// A kind with its group and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindRef<'a> {
    /// The group, empty for the core group.
    pub group: &'a str,
    /// The version within the group.
    pub version: &'a str,
    /// The kind within the version.
    pub kind: &'a str,
}

fn group_version_kind(kind: KindRef<'_>) -> Value {
    group_version_value(kind.group, kind.version, "kind", kind.kind)
}

fn group_version_value(group: &str, version: &str, field: &str, name: &str) -> Value {
    let mut value = Value::object();
    value.set("group", group);
    value.set("version", version);
    value.set(field, name);
    value
}

fn set_if_not_empty(value: &mut Value, field: &str, text: &str) {
    if !text.is_empty() {
        value.set(field, text);
    }
}

fn group_version_resource(attributes: &AdmissionAttributes<'_>) -> Value {
    group_version_value(attributes.group, attributes.version, "resource", attributes.resource)
}

/// The `request.userInfo` value.
pub fn user(user: &Identity) -> Value {
    let mut value = Value::object();
    set_if_not_empty(&mut value, "username", &user.name);
    set_if_not_empty(&mut value, "uid", &user.uid);
    let strings = |all: &[String]| Value::Array(all.iter().map(|text| Value::from(text.as_str())).collect());
    if !user.groups.is_empty() {
        value.set("groups", strings(&user.groups));
    }
    for (key, values) in &user.extra {
        value.entry("extra").set(key, strings(values));
    }
    value
}

/// The `request` value with the matched resource and kind.
pub fn request(info: &RequestInfo<'_>, matched: &AdmissionAttributes<'_>, kind: KindRef<'_>) -> Value {
    let attributes = &info.attributes;
    let mut value = Value::object();
    value.set("uid", "");
    value.set("kind", group_version_kind(kind));
    value.set("resource", group_version_resource(matched));
    set_if_not_empty(&mut value, "subResource", attributes.subresource);
    value.set("requestKind", group_version_kind(info.kind));
    value.set("requestResource", group_version_resource(attributes));
    set_if_not_empty(&mut value, "requestSubResource", attributes.subresource);
    set_if_not_empty(&mut value, "name", attributes.name);
    set_if_not_empty(&mut value, "namespace", attributes.namespace);
    value.set("operation", attributes.operation);
    value.set("userInfo", user(info.user));
    value.set("dryRun", Value::Bool(info.is_trial));
    if !info.options.is_null() {
        value.set("options", info.options.clone());
    }
    value
}

/// The `namespaceObject` value, with only the metadata that the reference exposes.
pub fn namespace(stored: &Value) -> Value {
    const METADATA_FIELDS: [&str; 12] = [
        "name",
        "generateName",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "labels",
        "annotations",
        "finalizers",
    ];
    if stored.is_null() {
        return Value::Null;
    }
    let mut namespace = Value::object();
    for field in METADATA_FIELDS {
        if let Some(value) = stored.get_path(&["metadata", field]) {
            namespace.entry("metadata").set(field, value.clone());
        }
    }
    for field in ["spec", "status"] {
        namespace.set(field, stored.get(field).cloned().unwrap_or_else(Value::object));
    }
    namespace
}
