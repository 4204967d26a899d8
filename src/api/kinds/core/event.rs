//! Events. Only what holds for every version of the kind is checked.

use crate::api::kinds::Errors;
use crate::api::kinds::check::Node;
use crate::api::meta;
use crate::api::value::Value;

/// Checks an event: it lives beside what it is about.
pub fn validate(event: &Value, errors: &mut Errors) {
    let about = if event.get("regarding").is_some() { "regarding" } else { "involvedObject" };
    let namespace = Node::of(event, about).child("namespace");
    let own = meta::of(event).str("namespace");
    let node = Node {
        value: namespace.value,
        path: crate::api::field::Path::new("involvedObject").child("namespace"),
    };
    if namespace.is_empty() {
        if !matches!(own, "default" | "kube-system") {
            node.invalid_text(errors, "does not match event.namespace");
        }
    } else if namespace.text() != own {
        node.invalid_text(errors, "does not match event.namespace");
    }
}

/// Checks a changed event.
pub fn validate_update(new: &Value, _old: &Value, errors: &mut Errors) {
    validate(new, errors);
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{each_refused, object};
    use super::*;

    #[test]
    fn an_event_lives_beside_what_it_is_about() {
        each_refused(
            &object(r#"{"metadata":{"namespace":"a"},"involvedObject":{"namespace":"a"}}"#),
            validate,
            &[
                (
                    "involvedObject.namespace",
                    r#""b""#,
                    "involvedObject.namespace: Invalid value: \"b\": does not match event.namespace",
                ),
                ("involvedObject.namespace", "null", "does not match event.namespace"),
            ],
        );
        each_refused(&object(r#"{"metadata":{"namespace":"default"},"regarding":{}}"#), validate, &[]);
    }
}
