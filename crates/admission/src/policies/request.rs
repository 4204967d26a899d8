//! The `request` and `namespaceObject` variables of CEL expressions.

use pilothouse_apimachinery::value::Value;
use pilothouse_types::identity::Identity;

use crate::matching::AdmissionAttributes;

/// The attributes of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestInfo<'a> {
    /// The original resource and operation.
    pub asked: AdmissionAttributes<'a>,
    /// The original kind: group, version and kind.
    pub kind: (&'a str, &'a str, &'a str),
    /// The user.
    pub user: &'a Identity,
    /// Whether it is a dry run.
    pub is_trial: bool,
    /// Its options as an object; null for none.
    pub options: &'a Value,
}

fn kind_of((group, version, kind): (&str, &str, &str)) -> Value {
    named(group, version, "kind", kind)
}

fn named(group: &str, version: &str, field: &str, name: &str) -> Value {
    let mut value = Value::object();
    value.set("group", group);
    value.set("version", version);
    value.set(field, name);
    value
}

fn set_text(value: &mut Value, field: &str, text: &str) {
    if !text.is_empty() {
        value.set(field, text);
    }
}

fn resource_of(asked: &AdmissionAttributes<'_>) -> Value {
    named(asked.group, asked.version, "resource", asked.resource)
}

/// The `request.userInfo` value.
pub fn user(user: &Identity) -> Value {
    let mut value = Value::object();
    set_text(&mut value, "username", &user.name);
    set_text(&mut value, "uid", &user.uid);
    let texts = |all: &[String]| Value::Array(all.iter().map(|text| Value::from(text.as_str())).collect());
    if !user.groups.is_empty() {
        value.set("groups", texts(&user.groups));
    }
    for (key, values) in &user.extra {
        value.entry("extra").set(key, texts(values));
    }
    value
}

/// The `request` value with the matched resource and kind.
pub fn request(told: &RequestInfo<'_>, matched: &AdmissionAttributes<'_>, kind: (&str, &str, &str)) -> Value {
    let asked = &told.asked;
    let mut value = Value::object();
    value.set("uid", "");
    value.set("kind", kind_of(kind));
    value.set("resource", resource_of(matched));
    set_text(&mut value, "subResource", asked.subresource);
    value.set("requestKind", kind_of(told.kind));
    value.set("requestResource", resource_of(asked));
    set_text(&mut value, "requestSubResource", asked.subresource);
    set_text(&mut value, "name", asked.name);
    set_text(&mut value, "namespace", asked.namespace);
    value.set("operation", asked.operation);
    value.set("userInfo", user(told.user));
    value.set("dryRun", Value::Bool(told.is_trial));
    if !told.options.is_null() {
        value.set("options", told.options.clone());
    }
    value
}

/// The `namespaceObject` value, with only the metadata that the reference exposes.
pub fn namespace(whole: &Value) -> Value {
    const SHOWN: [&str; 12] = [
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
    if whole.is_null() {
        return Value::Null;
    }
    let mut shown = Value::object();
    for field in SHOWN {
        if let Some(value) = whole.at(&["metadata", field]) {
            shown.entry("metadata").set(field, value.clone());
        }
    }
    for field in ["spec", "status"] {
        shown.set(field, whole.get(field).cloned().unwrap_or_else(Value::object));
    }
    shown
}
