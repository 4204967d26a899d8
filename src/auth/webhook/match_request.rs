//! The request as match conditions see it: the `spec` of the review with all fields, including empty ones, so that a condition
//! need not check their presence.

use pilothouse_apimachinery::value::Value;
use pilothouse_types::authorization::{Action, Selection, Target};
use pilothouse_types::filter::{FieldRule, LabelRule};
use pilothouse_types::identity::Identity;

fn texts<T: AsRef<str>>(all: impl IntoIterator<Item = T>) -> Value {
    Value::Array(all.into_iter().map(|text| Value::from(text.as_ref())).collect())
}

fn requirement(key: &str, operator: &str, values: Value) -> Value {
    let mut requirement = Value::object();
    requirement.set("key", key);
    requirement.set("operator", operator);
    requirement.set("values", values);
    requirement
}

fn of_field(rule: &FieldRule) -> Value {
    match rule {
        FieldRule::Equals(key, value) => requirement(key, "In", texts([value])),
        FieldRule::Differs(key, value) => requirement(key, "NotIn", texts([value])),
    }
}

/// Numeric comparisons cannot be expressed; without them the question covers more objects, not fewer.
fn of_label(rule: &LabelRule) -> Option<Value> {
    let none: [&str; 0] = [];
    Some(match rule {
        LabelRule::In(key, values) => requirement(key, "In", texts(values)),
        LabelRule::NotIn(key, values) => requirement(key, "NotIn", texts(values)),
        LabelRule::Exists(key) => requirement(key, "Exists", texts(none)),
        LabelRule::Absent(key) => requirement(key, "DoesNotExist", texts(none)),
        LabelRule::Above(..) | LabelRule::Below(..) => return None,
    })
}

/// The `request` variable.
pub(super) fn request(who: &Identity, action: &Action, selection: &Selection) -> Value {
    let mut request = Value::object();
    request.set("user", who.name.as_str());
    request.set("uid", who.uid.as_str());
    request.set("groups", texts(&who.groups));
    request.set("extra", Value::object());
    for (key, values) in &who.extra {
        request.entry("extra").set(key, texts(values));
    }
    match &action.target {
        Target::Path(path) => {
            let about = request.entry("nonResourceAttributes");
            about.set("path", path.as_str());
            about.set("verb", action.verb.as_str());
        }
        Target::Resource { group, version, resource, subresource, namespace, name } => {
            let about = request.entry("resourceAttributes");
            about.set("verb", action.verb.as_str());
            let parts = [
                ("group", group),
                ("version", version),
                ("resource", resource),
                ("subresource", subresource),
                ("namespace", namespace),
                ("name", name),
            ];
            for (field, text) in parts {
                about.set(field, text.as_str());
            }
            let fields: Vec<Value> = selection.fields.iter().map(of_field).collect();
            let labels: Vec<Value> = selection.labels.iter().filter_map(of_label).collect();
            for (field, all) in [("fieldSelector", fields), ("labelSelector", labels)] {
                if !all.is_empty() {
                    about.entry(field).set("requirements", Value::Array(all.into()));
                }
            }
        }
    }
    request
}
