//! The objects that kube-apiserver creates at its first start, as values. Clients expect them by name.

pub mod api_services;
pub mod flow_control;
pub mod priority_classes;
pub mod roles;

use pilothouse_apimachinery::value::Value;

/// One object that must exist.
#[derive(Clone, Debug, PartialEq)]
pub struct BootstrapObject {
    /// The group of its resource.
    pub group: &'static str,
    /// The plural of its resource.
    pub resource: &'static str,
    /// The object, in version v1 of the group.
    pub object: Value,
}

/// An object with a kind and a name.
fn object_with_name(api_version: &str, kind: &str, name: &str) -> Value {
    let mut object = Value::object();
    object.set("apiVersion", api_version);
    object.set("kind", kind);
    object.entry("metadata").set("name", name);
    object
}
