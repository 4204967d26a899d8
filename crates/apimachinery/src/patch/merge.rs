//! JSON merge patch, RFC 7386: objects are merged, null removes, anything else replaces.

use super::lazy_json::Node;

/// Merges a patch into a text.
pub fn apply<'a>(target: &mut Node<'a>, mut patch: Node<'a>) {
    patch.open();
    target.open();
    match (target, patch) {
        (Node::Object(fields), Node::Object(changes)) => {
            for (key, change) in changes {
                match (fields.get_mut(&key), change) {
                    (_, Node::Null) => {
                        fields.remove(&key);
                    }
                    (Some(field), change) if !matches!(field, Node::Null) => apply(field, change),
                    (_, mut change) => {
                        prune(&mut change);
                        fields.insert(key, change);
                    }
                }
            }
        }
        (target, mut patch) => {
            prune(&mut patch);
            *target = patch;
        }
    }
}

/// Removes nulls from a part that has nothing to merge with.
fn prune(node: &mut Node<'_>) {
    node.open();
    match node {
        Node::Object(fields) => {
            fields.retain(|_, value| !matches!(value, Node::Null));
            fields.values_mut().for_each(prune);
        }
        Node::Array(items) => items.iter_mut().for_each(prune),
        Node::Null | Node::Text(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;

    use super::*;
    use crate::json;

    fn merged(target: &str, patch: &str) -> String {
        let mut node = Node::from_text(Cow::Borrowed(target));
        apply(&mut node, Node::from_text(Cow::Borrowed(patch)));
        node.to_text()
    }

    /// The examples of the RFC that begin and end with an object, and their consequences.
    #[test]
    fn examples_of_the_rfc() {
        for (target, patch, result) in [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, "{}"),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"a":1,"e":null}"#),
            ("{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
            (r#"{"a":null}"#, r#"{"a":{"b":null,"c":[{"d":null}]}}"#, r#"{"a":{"c":[{}]}}"#),
            (
                r#"{"z":{"y":1,"x":2}}"#,
                r#"{"a":{ "c":1, "b":2 }}"#,
                r#"{"a":{"b":2,"c":1},"z":{"y":1,"x":2}}"#,
            ),
        ] {
            assert_eq!(merged(target, patch), result, "{target} {patch}");
        }
    }

    /// An object without nulls, a few levels deep.
    fn any_object() -> impl Strategy<Value = crate::value::Value> {
        use crate::value::Value;
        let leaf = prop_oneof![any::<i64>().prop_map(Value::Int), "[a-c]{0,2}".prop_map(Value::String)];
        let inner = leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map("[a-c]", inner, 0..3)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        });
        proptest::collection::btree_map("[a-d]", inner, 0..4)
            .prop_map(|fields| Value::Object(fields.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn json_merge_patch_is_idempotent(target in any_object(), patch in any_object()) {
            let text = |value| String::from_utf8(json::to_json(value)).unwrap();
            let once = merged(&text(&target), &text(&patch));
            prop_assert_eq!(&merged(&once, &text(&patch)), &once);
            prop_assert_eq!(&merged(&text(&target), "{}"), &text(&target));
            prop_assert_eq!(&merged("{}", &text(&patch)), &text(&patch));
        }
    }
}
