//! The `request` variable of match conditions: the `spec` of the review with all fields, including empty ones, so that a condition
//! need not check their presence.

use pilothouse_apimachinery::value::Value;
use pilothouse_types::authorization::{Action, Selection, Target};
use pilothouse_types::filter::{FieldRule, LabelRule};
use pilothouse_types::identity::Identity;

fn string_array<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> Value {
    Value::Array(items.into_iter().map(|text| Value::from(text.as_ref())).collect())
}

fn requirement(key: &str, operator: &str, values: Value) -> Value {
    let mut requirement = Value::object();
    requirement.set("key", key);
    requirement.set("operator", operator);
    requirement.set("values", values);
    requirement
}

fn field_requirement(rule: &FieldRule) -> Value {
    match rule {
        FieldRule::Equals(key, value) => requirement(key, "In", string_array([value])),
        FieldRule::Differs(key, value) => requirement(key, "NotIn", string_array([value])),
    }
}

/// Numeric comparisons cannot be expressed; without them the review covers more objects, not fewer.
fn label_requirement(rule: &LabelRule) -> Option<Value> {
    let no_values: [&str; 0] = [];
    Some(match rule {
        LabelRule::In(key, values) => requirement(key, "In", string_array(values)),
        LabelRule::NotIn(key, values) => requirement(key, "NotIn", string_array(values)),
        LabelRule::Exists(key) => requirement(key, "Exists", string_array(no_values)),
        LabelRule::Absent(key) => requirement(key, "DoesNotExist", string_array(no_values)),
        LabelRule::Above(..) | LabelRule::Below(..) => return None,
    })
}

/// The `request` variable.
pub(super) fn request(identity: &Identity, action: &Action, selection: &Selection) -> Value {
    let mut request = Value::object();
    request.set("user", identity.name.as_str());
    request.set("uid", identity.uid.as_str());
    request.set("groups", string_array(&identity.groups));
    request.set("extra", Value::object());
    for (key, values) in &identity.extra {
        request.entry("extra").set(key, string_array(values));
    }
    match &action.target {
        Target::Path(path) => {
            let attributes = request.entry("nonResourceAttributes");
            attributes.set("path", path.as_str());
            attributes.set("verb", action.verb.as_str());
        }
        Target::Resource { group, version, resource, subresource, namespace, name } => {
            let attributes = request.entry("resourceAttributes");
            attributes.set("verb", action.verb.as_str());
            let parts = [
                ("group", group),
                ("version", version),
                ("resource", resource),
                ("subresource", subresource),
                ("namespace", namespace),
                ("name", name),
            ];
            for (field, text) in parts {
                attributes.set(field, text.as_str());
            }
            let fields: Vec<Value> = selection.fields.iter().map(field_requirement).collect();
            let labels: Vec<Value> = selection.labels.iter().filter_map(label_requirement).collect();
            for (field, requirements) in [("fieldSelector", fields), ("labelSelector", labels)] {
                if !requirements.is_empty() {
                    attributes.entry(field).set("requirements", Value::Array(requirements.into()));
                }
            }
        }
    }
    request
}
