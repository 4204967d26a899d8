//! Paths and queries of requests.

use std::fmt::Write as _;

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

use crate::commands::object_stream::resource::{Resource, namespace};

/// A query, of parameters in the order in which they were added.
#[derive(Default)]
pub(super) struct Query(String);

impl Query {
    /// Adds a parameter.
    pub(super) fn add(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(name);
        self.0.push('=');
        escape(&mut self.0, value);
    }

    /// The path with this query.
    pub(super) fn append_to(&self, path: &str) -> String {
        format!("{path}{}", self.0)
    }
}

/// Appends text in which all but letters, digits and the signs `-._~` is percent-encoded.
fn escape(out: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            // Writing to a string cannot fail.
            _ => _ = write!(out, "%{byte:02X}"),
        }
    }
}

/// The path of the objects of a resource, in one namespace or in all of them.
pub(super) fn collection_path(resource: &Resource, namespace: &str) -> String {
    let mut path = match resource.group.as_str() {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    };
    if resource.is_namespaced && !namespace.is_empty() {
        path.push_str("/namespaces/");
        escape(&mut path, namespace);
    }
    path.push('/');
    path.push_str(&resource.name);
    path
}

/// The path of an object, or of a subresource of it.
pub(super) fn object_path(resource: &Resource, namespace: &str, name: &str, subresource: &str) -> String {
    let mut path = collection_path(resource, namespace);
    path.push('/');
    escape(&mut path, name);
    if !subresource.is_empty() {
        path.push('/');
        path.push_str(subresource);
    }
    path
}

/// The same of an object that is at hand.
pub(super) fn path_of(resource: &Resource, object: &Value, subresource: &str) -> String {
    object_path(resource, namespace(object), meta::name(object), subresource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        let resource = Resource {
            group: "rbac.authorization.k8s.io".to_owned(),
            version: "v1".to_owned(),
            name: "roles".to_owned(),
            kind: "Role".to_owned(),
            is_namespaced: true,
            has_status: false,
            is_aggregated: false,
        };
        assert_eq!(
            object_path(&resource, "a", "system:x y?ü", "status"),
            "/apis/rbac.authorization.k8s.io/v1/namespaces/a/roles/system%3Ax%20y%3F%C3%BC/status"
        );
    }
}
