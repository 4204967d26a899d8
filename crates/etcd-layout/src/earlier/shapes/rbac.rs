//! Bindings.

use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::{AUTHENTICATED, RBAC_GROUP};

use super::each_item;

/// A binding of v1alpha1: its subjects have the apiVersion of their kind in place of its group, and `*` stands for all users.
pub(super) fn binding(mut binding: Value) -> Value {
    each_item(&mut binding, &["subjects"], |subject| {
        let api_version = subject.remove("apiVersion");
        let api_version = api_version.as_ref().and_then(Value::as_str).unwrap_or_default();
        let group = match subject.str("kind") {
            "ServiceAccount" => "",
            "User" | "Group" => RBAC_GROUP,
            _ => api_version.split_once('/').map_or("", |(group, _)| group),
        }
        .to_owned();
        match group.is_empty() {
            true => drop(subject.remove("apiGroup")),
            false => subject.set("apiGroup", group),
        }
        if subject.str("kind") == "User" && subject.str("name") == "*" {
            subject.set("kind", "Group");
            subject.set("name", AUTHENTICATED);
        }
    });
    binding
}
