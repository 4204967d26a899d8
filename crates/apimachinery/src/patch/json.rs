//! JSON Patch, RFC 6902: a list of operations at JSON pointers.
//!
//! Where the RFC and the reference differ, the reference wins: a missing object field can be replaced, a negative index counts
//! from the end, and text before the first slash of a pointer is ignored.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::lazy_json::Node;
use crate::field::quoted;
use crate::limits;

/// One operation; unusable parts are absent.
#[derive(Clone, Debug, Default)]
pub struct Operation<'a> {
    kind: Option<String>,
    path: Option<String>,
    from: Option<String>,
    value: Option<Node<'a>>,
}

/// The patch does not fit the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoesNotApply {
    /// Whether the `from` pointer is the cause, and not the `path`.
    of_source: bool,
    reason: Reason,
}

/// The reason why an operation does not apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// The operation lacks the pointer or value.
    Missing,
    /// The parent of the pointer does not exist.
    NoParent,
    /// The object lacks the key.
    Absent,
    /// The index is out of range.
    OutOfRange,
    /// The key of a list item is no number.
    NotAnIndex,
    /// A test failed.
    Test,
    /// The operation is unknown.
    Unknown,
    /// The operation exceeds a limit.
    LimitExceeded,
}

impl From<Reason> for DoesNotApply {
    fn from(reason: Reason) -> DoesNotApply {
        DoesNotApply { of_source: false, reason }
    }
}

/// The same failure, caused by the `from` pointer.
fn of_source(fault: DoesNotApply) -> DoesNotApply {
    DoesNotApply { of_source: true, ..fault }
}

type Applied<T> = Result<T, DoesNotApply>;

/// Parses the operations of a text that is known to be a list of objects.
pub fn read(text: &str) -> Option<Vec<Operation<'_>>> {
    let operations: Option<Vec<Option<BTreeMap<String, &RawValue>>>> = serde_json::from_str(text).ok()?;
    Some(operations.unwrap_or_default().into_iter().map(operation).collect())
}

fn operation(fields: Option<BTreeMap<String, &RawValue>>) -> Operation<'_> {
    let fields = fields.unwrap_or_default();
    let text = |name| fields.get(name).and_then(|raw| serde_json::from_str(raw.get()).ok());
    let value = fields.get("value").copied().map(|raw| Node::from_text(Cow::Borrowed(raw.get())));
    Operation { kind: text("op"), path: text("path"), from: text("from"), value }
}

/// Applies the operations in order. If one fails, the target is left half changed: it is a copy.
pub fn apply<'a>(target: &mut Node<'a>, operations: &[Operation<'a>]) -> Applied<()> {
    let mut document = PatchTarget { target, copied: 0, deepened: 0 };
    operations.iter().try_for_each(|operation| document.apply(operation))
}

/// [`apply`] whose error is the message of the reference for webhooks and policies, and whether a test failed.
pub fn apply_with_message<'a>(
    target: &mut Node<'a>,
    operations: &[Operation<'a>],
) -> Result<(), (bool, String)> {
    let mut document = PatchTarget { target, copied: 0, deepened: 0 };
    let apply_one = |operation: &Operation<'a>| {
        document
            .apply(operation)
            .map_err(|fault| (fault.reason == Reason::Test, operation.failure_message(fault)))
    };
    operations.iter().try_for_each(apply_one)
}

impl Operation<'_> {
    /// The message of the reference for an operation that does not apply.
    fn failure_message(&self, DoesNotApply { of_source, reason }: DoesNotApply) -> String {
        let (path, from) =
            (self.path.as_deref().unwrap_or_default(), self.from.as_deref().unwrap_or_default());
        let kind = self.kind.as_deref().unwrap_or("unknown");
        let pointer = if of_source { from } else { path };
        let key = unescape(pointer.rsplit('/').next().unwrap_or_default());
        let is_added = matches!(kind, "add" | "copy" | "move") && !of_source;
        let missing = |rest: &str| format!("{kind} operation does not apply: {rest}: missing value");
        let inner = match reason {
            Reason::Absent => format!("Unable to remove nonexistent key: {key}: missing value"),
            Reason::OutOfRange => format!("Unable to access invalid index: {key}: invalid index referenced"),
            _ if is_added => format!(
                "value was not a proper array index: '{key}': strconv.Atoi: parsing {}: invalid syntax",
                quoted(&key)
            ),
            _ => format!("strconv.Atoi: parsing {}: invalid syntax", quoted(&key)),
        };
        match (kind, reason) {
            (_, Reason::Unknown) => format!("Unexpected kind: {kind}"),
            (_, Reason::LimitExceeded) => format!("{kind} operation does not apply: it asks for too much"),
            (_, Reason::Test) => format!("testing value {path} failed: test failed"),
            (_, Reason::Missing) if of_source => {
                format!(
                    "{kind} operation failed to decode from: operation, missing from field: missing value"
                )
            }
            (_, Reason::Missing) => format!("{kind} operation failed to decode path: missing value"),
            ("add" | "remove", Reason::NoParent) => missing(&format!("doc is missing path: \"{path}\"")),
            ("test", Reason::NoParent) => missing(&format!("is missing path: {path}")),
            ("replace", Reason::NoParent) => missing(&format!("doc is missing path: {path}")),
            ("replace", _) => missing(&format!("doc is missing key: {path}")),
            (_, Reason::NoParent) if of_source => missing(&format!("doc is missing from path: {from}")),
            (_, Reason::NoParent) => missing(&format!("doc is missing destination path: {path}")),
            ("move", _) if of_source => format!("error in move for path: '{key}': {inner}"),
            ("copy", _) if of_source => format!("error in copy for from: '{from}': {inner}"),
            ("copy", _) => format!("error while adding value during copy: {inner}"),
            _ => format!("error in {kind} for path: '{path}': {inner}"),
        }
    }
}

struct PatchTarget<'t, 'a> {
    target: &'t mut Node<'a>,
    copied: usize,
    deepened: usize,
}

impl<'a> PatchTarget<'_, 'a> {
    fn apply(&mut self, operation: &Operation<'a>) -> Applied<()> {
        let path = || operation.path.as_deref().ok_or(Reason::Missing);
        let from = || operation.from.as_deref().ok_or(of_source(Reason::Missing.into()));
        let value = || operation.value.clone().unwrap_or(Node::Null);
        match operation.kind.as_deref() {
            Some("add") => self.add(path()?, value()),
            Some("remove") => self.remove(path()?).map(drop),
            Some("replace") => self.replace(path()?, operation.value.clone()),
            Some("move") => self.move_value(from()?, path()?),
            Some("copy") => self.copy(from()?, path()?),
            Some("test") => self.test(path()?, value()),
            _ => Err(Reason::Unknown.into()),
        }
    }

    /// The object or list that contains the target of a pointer, and its key there.
    fn parent(&mut self, pointer: &str) -> Applied<(&mut Node<'a>, String)> {
        let mut keys = pointer.split('/').skip(1).map(unescape);
        let mut key = keys.next().ok_or(Reason::NoParent)?;
        let mut parent = &mut *self.target;
        for next in keys {
            let next_parent = get(parent, &key).ok().flatten();
            parent = next_parent.filter(|node| !matches!(node, Node::Null)).ok_or(Reason::NoParent)?;
            key = next;
        }
        parent.open();
        match parent {
            Node::Object(_) | Node::Array(_) => Ok((parent, key)),
            Node::Null | Node::Text(_) => Err(Reason::NoParent.into()),
        }
    }

    fn add(&mut self, pointer: &str, value: Node<'a>) -> Applied<()> {
        check_depth(pointer, value.depth())?;
        self.insert(pointer, value)
    }

    /// Moves a value. Its depth was checked at its old position, so it is only checked again at a deeper one, which takes
    /// time proportional to its size.
    fn move_value(&mut self, from: &str, to: &str) -> Applied<()> {
        let moved = self.remove(from).map_err(of_source)?;
        if level(to) > level(from) {
            self.deepened += moved.parts();
            if self.deepened > limits::PATCH_DEEPENED_PARTS {
                return Err(Reason::LimitExceeded.into());
            }
            check_depth(to, moved.depth())?;
        }
        self.insert(to, moved)
    }

    /// Inserts a value that is known not to be too deep there.
    fn insert(&mut self, pointer: &str, value: Node<'a>) -> Applied<()> {
        match self.parent(pointer)? {
            (Node::Object(fields), key) => drop(fields.insert(key, value)),
            (Node::Array(items), key) if key == "-" => items.push(value),
            (Node::Array(items), key) => {
                let index = parse_index(&key, items.len() + 1)?;
                items.insert(index, value);
            }
            _ => return Err(Reason::NoParent.into()),
        }
        Ok(())
    }

    fn remove(&mut self, pointer: &str) -> Applied<Node<'a>> {
        match self.parent(pointer)? {
            (Node::Object(fields), key) => fields.remove(&key).ok_or(Reason::Absent.into()),
            (Node::Array(items), key) => {
                let index = parse_index(&key, items.len())?;
                items.remove(index).ok_or(Reason::OutOfRange.into())
            }
            _ => Err(Reason::NoParent.into()),
        }
    }

    fn replace(&mut self, pointer: &str, value: Option<Node<'a>>) -> Applied<()> {
        if pointer.is_empty() {
            let mut value = value.ok_or(Reason::Missing)?;
            value.open();
            // A scalar as the whole document is ignored silently, as in the reference.
            if matches!(value, Node::Object(_) | Node::Array(_)) {
                *self.target = value;
            }
            return Ok(());
        }
        let value = value.unwrap_or(Node::Null);
        check_depth(pointer, value.depth())?;
        match self.parent(pointer)? {
            (Node::Object(fields), key) => {
                fields.insert(key, value);
                Ok(())
            }
            (Node::Array(items), key) => {
                let index = parse_index(&key, items.len())?;
                *items.get_mut(index).ok_or(Reason::OutOfRange)? = value;
                Ok(())
            }
            _ => Err(Reason::NoParent.into()),
        }
    }

    fn copy(&mut self, from: &str, to: &str) -> Applied<()> {
        let (parent, key) = self.parent(from).map_err(of_source)?;
        let copied = match get(parent, &key).map_err(of_source)? {
            None | Some(Node::Null) => Node::Null,
            Some(node) => {
                let text = node.to_text();
                self.copied += text.len();
                Node::Text(Cow::Owned(text))
            }
        };
        if self.copied > limits::PATCH_COPIED_BYTES {
            return Err(Reason::LimitExceeded.into());
        }
        self.add(to, copied)
    }

    fn test(&mut self, pointer: &str, mut expected: Node<'a>) -> Applied<()> {
        let actual = if pointer.is_empty() {
            Some(&mut *self.target)
        } else {
            let (parent, key) = self.parent(pointer)?;
            get(parent, &key)?
        };
        let is_equal = match actual {
            Some(actual) => actual.same(&mut expected),
            None => matches!(expected, Node::Null),
        };
        if is_equal { Ok(()) } else { Err(Reason::Test.into()) }
    }
}

fn level(pointer: &str) -> usize {
    pointer.matches('/').count()
}

/// Checked at every insertion, because encoding and dropping a value recurse.
fn check_depth(pointer: &str, depth: usize) -> Applied<()> {
    if level(pointer) + depth > limits::PATCH_DEPTH { Err(Reason::LimitExceeded.into()) } else { Ok(()) }
}

/// The value under a key. An object may lack it; a list must have the index.
fn get<'n, 'a>(parent: &'n mut Node<'a>, key: &str) -> Applied<Option<&'n mut Node<'a>>> {
    parent.open();
    match parent {
        Node::Object(fields) => Ok(fields.get_mut(key)),
        Node::Array(items) => {
            let index = parse_index(key, items.len())?;
            Ok(items.get_mut(index))
        }
        Node::Null | Node::Text(_) => Err(Reason::NoParent.into()),
    }
}

/// The index that a key means in a list of this length; negative ones count from the end.
fn parse_index(key: &str, length: usize) -> Applied<usize> {
    let number: i64 = key.parse().map_err(|_| Reason::NotAnIndex)?;
    let length = i64::try_from(length).map_err(|_| Reason::OutOfRange)?;
    let index = if number < 0 { number + length } else { number };
    let index = Some(index).filter(|index| (0..length).contains(index));
    index.and_then(|index| usize::try_from(index).ok()).ok_or(Reason::OutOfRange.into())
}

fn unescape(key: &str) -> String {
    key.replace("~1", "/").replace("~0", "~")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn patched(target: &str, patch: &str) -> Option<String> {
        let mut node = Node::from_text(Cow::Borrowed(target));
        apply(&mut node, &read(patch).unwrap()).ok()?;
        Some(node.to_text())
    }

    #[test]
    fn moves_to_deeper_levels_are_bounded() {
        let fields: Vec<String> = (0..20_000).map(|number| format!(r#""k{number}":"v""#)).collect();
        let target = format!(r#"{{"a":{{{}}},"c":{{}}}}"#, fields.join(","));
        let moves = |target: &str, times: usize| {
            let pair = format!(
                r#"{{"op":"move","from":"/a","path":"{target}"}},{{"op":"move","from":"{target}","path":"/a"}}"#
            );
            format!(r#"[{{"op":"test","path":"/a/k1","value":"v"}},{}]"#, vec![pair; times].join(","))
        };
        assert!(patched(&target, &moves("/b", 4_000)).is_some());
        assert!(patched(&target, &moves("/c/b", 50)).is_some());
        assert!(patched(&target, &moves("/c/b", 4_000)).is_none());
    }

    #[test]
    fn insertions_into_long_lists_are_fast() {
        let target = format!("[{}]", vec!["1"; 100_000].join(","));
        let insertions = vec![r#"{"op":"add","path":"/0","value":2}"#; 10_000].join(",");
        let removals = vec![r#"{"op":"remove","path":"/50000"}"#; 10_000].join(",");
        let grown = patched(&target, &format!("[{insertions}]")).unwrap();
        assert!(grown.starts_with("[2,2,") && grown.len() == target.len() + 20_000);
        assert_eq!(patched(&grown, &format!("[{removals}]")).map(|text| text.len()), Some(target.len()));
    }

    #[test]
    fn examples_of_the_rfc() {
        for (target, patch, result) in [
            (
                r#"{"foo":"bar"}"#,
                r#"[{"op":"add","path":"/baz","value":"qux"}]"#,
                r#"{"baz":"qux","foo":"bar"}"#,
            ),
            (
                r#"{"foo":["bar","baz"]}"#,
                r#"[{"op":"add","path":"/foo/1","value":"qux"}]"#,
                r#"{"foo":["bar","qux","baz"]}"#,
            ),
            (r#"{"baz":"qux","foo":"bar"}"#, r#"[{"op":"remove","path":"/baz"}]"#, r#"{"foo":"bar"}"#),
            (
                r#"{"foo":["bar","qux","baz"]}"#,
                r#"[{"op":"remove","path":"/foo/1"}]"#,
                r#"{"foo":["bar","baz"]}"#,
            ),
            (
                r#"{"baz":"qux","foo":"bar"}"#,
                r#"[{"op":"replace","path":"/baz","value":"boo"}]"#,
                r#"{"baz":"boo","foo":"bar"}"#,
            ),
            (
                r#"{"foo":{"bar":"baz","waldo":"fred"},"qux":{"corge":"grault"}}"#,
                r#"[{"op":"move","from":"/foo/waldo","path":"/qux/thud"}]"#,
                r#"{"foo":{"bar":"baz"},"qux":{"corge":"grault","thud":"fred"}}"#,
            ),
            (
                r#"{"foo":["all","grass","cows","eat"]}"#,
                r#"[{"op":"move","from":"/foo/1","path":"/foo/3"}]"#,
                r#"{"foo":["all","cows","eat","grass"]}"#,
            ),
            (
                r#"{"baz":"qux","foo":["a",2,"c"]}"#,
                r#"[{"op":"test","path":"/baz","value":"qux"},{"op":"test","path":"/foo/1","value":2}]"#,
                r#"{"baz":"qux","foo":["a",2,"c"]}"#,
            ),
            (
                r#"{"foo":"bar"}"#,
                r#"[{"op":"add","path":"/child","value":{"grandchild":{}}}]"#,
                r#"{"child":{"grandchild":{}},"foo":"bar"}"#,
            ),
            (
                r#"{"foo":"bar"}"#,
                r#"[{"op":"add","path":"/baz","value":"qux","xyz":123}]"#,
                r#"{"baz":"qux","foo":"bar"}"#,
            ),
            (r#"{"/":9,"~1":10}"#, r#"[{"op":"test","path":"/~01","value":10}]"#, r#"{"/":9,"~1":10}"#),
            (
                r#"{"foo":["bar"]}"#,
                r#"[{"op":"add","path":"/foo/-","value":["abc","def"]}]"#,
                r#"{"foo":["bar",["abc","def"]]}"#,
            ),
        ] {
            assert_eq!(patched(target, patch).as_deref(), Some(result), "{patch}");
        }
    }

    #[test]
    fn deviations_of_the_reference_from_the_rfc() {
        for (patch, result) in [
            (r#"[{"op":"replace","path":"/none","value":1}]"#, r#"{"a":[1,2],"none":1}"#),
            (r#"[{"op":"remove","path":"/a/-1"}]"#, r#"{"a":[1]}"#),
            (r#"[{"op":"add","path":"/a/-1","value":3}]"#, r#"{"a":[1,2,3]}"#),
            (r#"[{"op":"replace","path":"x/a","value":null}]"#, r#"{"a":null}"#),
            (r#"[{"op":"copy","from":"/none","path":"/b"}]"#, r#"{"a":[1,2],"b":null}"#),
            (r#"[{"op":"replace","path":"","value":{"b":1}}]"#, r#"{"b":1}"#),
            (r#"[{"op":"replace","path":"","value":7}]"#, r#"{"a":[1,2]}"#),
            (r#"[{"op":"test","path":"/none","value":null}]"#, r#"{"a":[1,2]}"#),
            (r#"[{"op":"test","path":"","value":{"a":[1, 2]}}]"#, r#"{"a":[1,2]}"#),
            ("[]", r#"{"a":[1,2]}"#),
            ("null", r#"{"a":[1,2]}"#),
        ] {
            let result_text = patched(r#"{"a":[1,2]}"#, patch);
            assert_eq!(result_text.as_deref(), Some(result), "{patch}");
        }
    }

    #[test]
    fn inapplicable_operations_are_refused() {
        for patch in [
            r#"[{"op":"nope","path":"/a"}]"#,
            r#"[{"path":"/a"}]"#,
            r#"[null]"#,
            r#"[{"op":"add","value":1}]"#,
            r#"[{"op":"add","path":"","value":1}]"#,
            r#"[{"op":"add","path":7,"value":1}]"#,
            r#"[{"op":"add","path":"/a/3","value":1}]"#,
            r#"[{"op":"add","path":"/a/x","value":1}]"#,
            r#"[{"op":"add","path":"/b/c","value":1}]"#,
            r#"[{"op":"add","path":"/a/0/c","value":1}]"#,
            r#"[{"op":"remove","path":"/b"}]"#,
            r#"[{"op":"remove","path":"/a/2"}]"#,
            r#"[{"op":"replace","path":"/a/2","value":1}]"#,
            r#"[{"op":"replace","path":""}]"#,
            r#"[{"op":"move","path":"/c"}]"#,
            r#"[{"op":"move","from":"/a","path":"/a/b"}]"#,
            r#"[{"op":"copy","from":"/a/9","path":"/c"}]"#,
            r#"[{"op":"test","path":"/a/0","value":1.0}]"#,
            r#"[{"op":"test","path":"/a/5","value":1}]"#,
            r#"[{"op":"test","path":"/a"}]"#,
        ] {
            assert_eq!(patched(r#"{"a":[1,2]}"#, patch), None, "{patch}");
        }
    }

    #[test]
    fn copied_bytes_and_depth_are_bounded() {
        let big = format!(r#"{{"a":"{}"}}"#, "x".repeat(1 << 20));
        let copies = |count| {
            let copy = r#"{"op":"copy","from":"/a","path":"/b"}"#;
            format!("[{}]", vec![copy; count].join(","))
        };
        assert!(patched(&big, &copies(2)).is_some());
        assert!(patched(&big, &copies(3)).is_none());
        // Each copy into itself doubles its depth.
        let mut patch = Vec::new();
        for level in 0..8 {
            let to = "/a".repeat(1 << level);
            patch.push(format!(r#"{{"op":"copy","from":"/a","path":"{to}/a"}}"#));
        }
        assert!(patched(r#"{"a":{}}"#, &format!("[{}]", patch[..6].join(","))).is_some());
        assert!(patched(r#"{"a":{}}"#, &format!("[{}]", patch.join(","))).is_none());
    }

    fn any_document() -> impl Strategy<Value = serde_json::Value> {
        use serde_json::Value;
        let leaf =
            prop_oneof![Just(Value::Null), (0..3i64).prop_map(Value::from), "[ab]".prop_map(Value::from)];
        let inner = leaf.prop_recursive(3, 16, 3, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map("[ab~/]", inner, 0..3)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        });
        proptest::collection::btree_map("[ab]", inner, 0..3)
            .prop_map(|fields| Value::Object(fields.into_iter().collect()))
    }

    fn any_pointer() -> impl Strategy<Value = String> {
        let key = prop_oneof![Just("a"), Just("b"), Just("0"), Just("1"), Just("-"), Just("~0"), Just("~1")];
        proptest::collection::vec(key, 1..4).prop_map(|keys| format!("/{}", keys.join("/")))
    }

    proptest! {
        /// Compared with another implementation, wherever that applies a patch: it is stricter about missing values.
        #[test]
        fn agrees_with_another_implementation(
            document in any_document(),
            operations in proptest::collection::vec(
                (0..6usize, any_pointer(), any_pointer(), any_document()), 1..4
            ),
        ) {
            let operations: Vec<serde_json::Value> = operations.into_iter().map(|(kind, path, from, value)| {
                let kind = ["add", "remove", "replace", "move", "copy", "test"][kind];
                serde_json::json!({"op": kind, "path": path, "from": from, "value": value})
            }).collect();
            let operations = serde_json::Value::from(operations);
            let mut expected = document.clone();
            let theirs: json_patch::Patch = serde_json::from_value(operations.clone()).unwrap();
            // Failed patches are not compared.
            let applied = json_patch::patch_unsafe(&mut expected, &theirs).is_ok();
            let ours = patched(&document.to_string(), &operations.to_string());
            if applied {
                let ours: Option<serde_json::Value> = ours.map(|text| serde_json::from_str(&text).unwrap());
                prop_assert_eq!(ours, Some(expected));
            }
        }
    }
}
