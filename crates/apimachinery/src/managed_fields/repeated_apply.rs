//! Detects an apply that repeats what the same manager applied before and the object still contains.
//!
//! Nearly every apply of a controller does. One pass over the configuration detects that without merging; in case of doubt
//! the result is no, and the full algorithm runs.

use super::applied_fields::is_null_or_empty;
use super::compare::{Comparer, Side};
use super::field_set::{FieldSet, PathElement};
use super::owned_fields::{EncodedElements, Owned};
use super::shape::{self, Position, Shape};
use crate::json;
use crate::limits::OWNED_DEPTH;
use crate::schema::encode::encode;
use crate::schema::{Registry, Struct, TypeId, default};
use crate::value::{Object, Value};

/// Whether a configuration repeats the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeated {
    /// It does not, or it is in doubt.
    No,
    /// It is equivalent, but the configuration may have a type error.
    Equivalent,
    /// Literally, or after defaulting.
    Literally,
}

/// An object, and a configuration that is applied to it.
pub(super) struct RepeatedApply<'a> {
    pub registry: &'a Registry,
    pub ty: TypeId,
    pub live: &'a Value,
    pub config: &'a Value,
    /// The fields that the applier owns.
    pub owned: Owned<'a>,
    /// The fields that the write cannot set.
    pub reset: &'a FieldSet,
}

impl RepeatedApply<'_> {
    /// Whether `config` states exactly the fields in `owned`, and `live` has the stated values. `is_unowned`: whether no other
    /// manager owns the atomic values that would be replaced and defaulted again.
    pub(super) fn detect(&self, is_unowned: impl FnOnce(&FieldSet) -> bool) -> Repeated {
        let &RepeatedApply { registry, ty, live, config, owned, reset } = self;
        let mut check = RepetitionCheck { registry, comparer: Comparer::new(registry), is_literal: true };
        let mut defaulted = FieldSet::default();
        let shape = shape::for_type(registry, ty, None);
        let (position, depth) = (Position::Root, OWNED_DEPTH);
        let root = Node { live, config, owned, position, reset: Some(reset), depth };
        let same = check.check_parts(shape, &root, &mut defaulted);
        match same && (defaulted.is_empty() || is_unowned(&defaulted)) {
            false => Repeated::No,
            true if check.is_literal => Repeated::Literally,
            true => Repeated::Equivalent,
        }
    }
}

/// A value in the object and in the configuration. `T` says what both are, once it is known.
struct Node<'n, T: ?Sized = Value> {
    live: &'n T,
    config: &'n T,
    owned: Owned<'n>,
    position: Position,
    reset: Option<&'n FieldSet>,
    /// How many levels may follow, including this one.
    depth: usize,
}

impl<'n, T: ?Sized> Node<'n, T> {
    /// The same node, whose values are both of this sort.
    fn narrow<U: ?Sized>(&self, live: &'n U, config: &'n U) -> Node<'n, U> {
        let Node { owned, position, reset, depth, .. } = *self;
        Node { live, config, owned, position, reset, depth }
    }

    /// A part of this value.
    fn child(&self, live: &'n Value, config: &'n Value, owned: Owned<'n>) -> Node<'n> {
        let depth = self.depth.saturating_sub(1);
        Node { live, config, owned, position: Position::Inside, reset: None, depth }
    }
}

/// A walk over the configuration. Every step returns whether the object is as stated, and collects into `defaulted` the parts
/// that are only equal after defaulting.
struct RepetitionCheck<'r> {
    registry: &'r Registry,
    comparer: Comparer<'r>,
    is_literal: bool,
}

impl<'r> RepetitionCheck<'r> {
    /// Whether the parts of a value are exactly the owned ones and have the stated values.
    fn check_parts(&mut self, shape: Shape<'r>, node: &Node<'_>, defaulted: &mut FieldSet) -> bool {
        if node.depth == 0 {
            return false;
        }
        match (shape.resolve([Some(node.live), Some(node.config)]), node.live, node.config) {
            (Shape::Struct(structure), Value::Object(live), Value::Object(config)) => {
                self.check_fields(structure, &node.narrow(live, config), defaulted)
            }
            (Shape::Map(ty), Value::Object(live), Value::Object(config)) => {
                self.check_entries(ty, &node.narrow(live, config), defaulted)
            }
            (Shape::Set(item) | Shape::Keyed(item, _), Value::Array(live), Value::Array(config)) => {
                self.check_items(shape, item, &node.narrow(live, config), defaulted)
            }
            _ => false,
        }
    }

    fn check_entries(&mut self, ty: TypeId, node: &Node<'_, Object>, defaulted: &mut FieldSet) -> bool {
        if node.config.len() != node.owned.len() {
            return false;
        }
        let shape = shape::for_type(self.registry, ty, None);
        let mut owned = node.owned.fields();
        node.config.iter().all(|(key, value)| {
            let (Some(live), Ok(Some(owned))) = (node.live.get(key), owned.advance_to(key)) else {
                return false;
            };
            let element = || PathElement::field(key);
            owned.has_itself() && self.check_value(shape, &node.child(live, value, owned), defaulted, element)
        })
    }

    fn check_fields(
        &mut self,
        structure: &'r Struct,
        node: &Node<'_, Object>,
        defaulted: &mut FieldSet,
    ) -> bool {
        let &Node { live, config, position: parent, .. } = node;
        let mut owned_fields = node.owned.fields();
        for (name, value) in config {
            if parent.is_unowned(name) {
                // Fields without owners must still be equal, or the write is refused. Generated manifests state a null
                // creationTimestamp.
                let unset = parent == Position::Metadata && name == "creationTimestamp" && value.is_null();
                if !unset && live.get(name) != Some(value) {
                    return false;
                }
                continue;
            }
            let reset = node.reset.and_then(|reset| reset.get_field(name));
            if reset.is_some_and(|reset| reset.member) {
                if is_null_or_empty(value) && matches!(owned_fields.advance_to(name), Ok(None)) {
                    self.is_literal = false;
                    continue;
                }
                return false;
            }
            let Some(field) = structure.field(name) else { return false };
            let shape = shape::for_field(self.registry, field).resolve([live.get(name), Some(value)]);
            let position = parent.child(name);
            let Ok(owned) = owned_fields.advance_to(name) else { return false };
            let owned = owned.unwrap_or(Owned::NOTHING);
            let stated = matches!(shape, Shape::Atomic(_))
                || (is_null_or_empty(value) && position != Position::Metadata);
            if owned.has_itself() != stated {
                return false;
            }
            let old = Side::from_field(self.registry, field, Some(live));
            let same = match (old, shape) {
                (Side::Value(live), _) if !is_null_or_empty(value) || !is_null_or_empty(live) => {
                    let field_node = Node { position, reset, ..node.child(live, value, owned) };
                    let element = || PathElement::Field(field.name.clone());
                    self.check_value(shape, &field_node, defaulted, element)
                }
                // An absent field may be printed, and a printed one may be absent.
                _ => {
                    self.is_literal &= is_valid_empty(shape, value);
                    let new = Side::from_field(self.registry, field, Some(config));
                    if matches!(old, Side::Absent) {
                        // An empty value is stated where none is printed: a merge would add it first.
                        defaulted.push(PathElement::Field(field.name.clone()), FieldSet::leaf());
                    }
                    stated && owned.is_empty() && self.comparer.same(shape, old, new)
                }
            };
            if !same {
                return false;
            }
        }
        owned_fields.is_exhausted()
    }

    fn check_items(
        &mut self,
        shape: Shape<'r>,
        item: TypeId,
        node: &Node<'_, [Value]>,
        defaulted: &mut FieldSet,
    ) -> bool {
        let &Node { live, config, owned, .. } = node;
        if config.len() != owned.len() {
            return false;
        }
        let (registry, inner) = (self.registry, shape::for_item(self.registry, shape, item));
        let (Ok(current), Ok(stated)) = (
            EncodedElements::encode(registry, shape, live),
            EncodedElements::encode(registry, shape, config),
        ) else {
            return false;
        };
        // A merge would join duplicate items.
        if current.has_duplicates() {
            return false;
        }
        // In the same order: otherwise the merge would reorder the list. So no item matches twice, and the numbers of stated and
        // owned items are equal.
        let mut rest = current.iter().zip(live);
        stated.iter().zip(config).all(|(key, value)| {
            let Some((_, live)) = rest.find(|(element, _)| *element == key) else { return false };
            let Some(owned) = owned.item(key) else { return false };
            // The path elements could be encoded, so this cannot fail.
            let element = || shape::element(registry, shape, value).unwrap_or(PathElement::Index(0));
            owned.has_itself() && self.check_value(inner, &node.child(live, value, owned), defaulted, element)
        })
    }

    /// Whether an existing value is as stated. `element` is its path element.
    fn check_value(
        &mut self,
        shape: Shape<'r>,
        node: &Node<'_>,
        defaulted: &mut FieldSet,
        element: impl FnOnce() -> PathElement,
    ) -> bool {
        let &Node { live, config, owned, .. } = node;
        let mut below = FieldSet::default();
        let shape = shape.resolve([Some(live), Some(config)]);
        let same = match shape {
            Shape::Atomic(ty) => {
                below.member = !self.prints(ty, live, config);
                owned.is_empty()
                    && (live == config || {
                        let same = self.comparer.same(
                            shape,
                            Side::from_value(Some(live)),
                            Side::from_value(Some(config)),
                        );
                        self.is_literal &= !same;
                        same || self.fills_to(ty, live, config)
                    })
            }
            // An empty value is stated for a nonempty one.
            _ if is_null_or_empty(config) => {
                self.is_literal &= is_valid_empty(shape, config);
                owned.is_empty()
            }
            _ => self.check_parts(shape, node, &mut below),
        };
        if !below.is_empty() {
            defaulted.push(element(), below);
        }
        same
    }

    /// Whether the existing value prints as stated.
    fn prints(&self, ty: TypeId, live: &Value, config: &Value) -> bool {
        match config {
            Value::Object(_) | Value::Array(_) => {
                json::read(&encode(self.registry, ty, live)).is_ok_and(|printed| printed == *config)
            }
            _ => live == config,
        }
    }

    /// Whether defaulting turns the stated value into the existing one.
    fn fills_to(&self, ty: TypeId, live: &Value, config: &Value) -> bool {
        let mut stated = config.clone();
        default::apply(self.registry, ty, &mut stated);
        stated == *live
    }
}

/// Whether an empty value has the right type.
fn is_valid_empty(shape: Shape<'_>, value: &Value) -> bool {
    value.is_null() || matches!((shape, value), (Shape::Struct(_) | Shape::Map(_), Value::Object(_)))
}

#[cfg(test)]
mod tests {
    use super::super::apply::{Applied, apply, apply_fully};
    use super::super::{Conversion, Versions, Write};
    use super::*;
    use crate::codec;
    use crate::convert::ConversionTable;
    use crate::schema::GroupVersionKind;
    use crate::status::Result;
    use crate::version::GroupVersion;

    /// A pod with an atomic field that is defaulted: the reference of an environment variable.
    const POD: &str = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","creationTimestamp":null,"labels":{"x":"1"}},
        "spec":{"containers":[{"name":"c","image":"i","resources":{},"env":[{"name":"IP","valueFrom":{"fieldRef":{"fieldPath":"status.podIP"}}}],
        "ports":[{"containerPort":80},{"containerPort":81}]}],"hostNetwork":false},"status":{}}"#;

    struct Fixture {
        registry: Registry,
        version: GroupVersion,
    }

    impl Fixture {
        fn new() -> Fixture {
            Fixture { registry: Registry::builtin().unwrap(), version: GroupVersion::new("", "v1") }
        }

        fn versions(&self) -> Versions<'_> {
            Versions {
                registry: &self.registry,
                kind: "Pod",
                stored: &self.version,
                conversion: Conversion::Table(ConversionTable::EMPTY),
                is_custom: false,
            }
        }

        fn write<'a>(&'a self, manager: &'a str) -> Write<'a> {
            let reset: &[&[&str]] = &[&["status"]];
            Write { manager, version: &self.version, subresource: "", now: "2024-01-01T00:00:00Z", reset }
        }

        fn apply(&self, manager: &str, live: Option<&Value>, config: &str) -> Result<Applied> {
            let config = json::read(config.as_bytes()).unwrap();
            apply(&self.versions(), &self.write(manager), live, &config, false)
        }

        /// The stored result of an apply.
        fn stored(&self, live: Option<&Value>, applied: Applied) -> Value {
            let kind = GroupVersionKind::new("", "v1", "Pod");
            let text = json::to_json(&applied.onto(live));
            let mut value = codec::decode_object(&text, &kind, &self.registry).unwrap().value;
            default::apply(&self.registry, self.registry.lookup(&kind).unwrap(), &mut value);
            value.entry("metadata").set("creationTimestamp", "2024-01-01T00:00:00Z");
            value
        }

        fn is_repeated(&self, live: &Value, config: &str) -> bool {
            let applied = self.apply("m", Some(live), config).unwrap();
            applied.object.is_none() && applied.managers.is_none()
        }
    }

    #[test]
    fn repeated_apply_is_detected_in_defaulted_object() {
        let fixture = Fixture::new();
        let live = fixture.stored(None, fixture.apply("m", None, POD).unwrap());
        let fields = live.get_path(&["spec", "containers"]).unwrap().items()[0].get("env").unwrap();
        assert!(String::from_utf8(json::to_json(fields)).unwrap().contains(r#""apiVersion":"v1""#));
        assert!(fixture.is_repeated(&live, POD));
        // Another manager of another field makes no difference.
        let label = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","labels":{"y":"1"}}}"#;
        let two = fixture.stored(Some(&live), fixture.apply("n", Some(&live), label).unwrap());
        assert!(fixture.is_repeated(&two, POD));
    }

    #[test]
    fn changed_configuration_is_no_repetition() {
        let fixture = Fixture::new();
        let live = fixture.stored(None, fixture.apply("m", None, POD).unwrap());
        let changes = [
            (r#""x":"1""#, r#""x":"2""#),
            (r#""x":"1""#, r#""x":"1","y":"1""#),
            (r#""labels":{"x":"1"}"#, r#""labels":{}"#),
            (r#","labels":{"x":"1"}"#, ""),
            (r#""name":"a""#, r#""name":"a","uid":"u""#),
            (r#""name":"a""#, r#""name":"b""#),
            (r#""creationTimestamp":null"#, r#""creationTimestamp":"2023-01-01T00:00:00Z""#),
            (r#""image":"i","#, ""),
            (r#""resources":{}"#, r#""resources":{"limits":{"cpu":"1"}}"#),
            (r#""resources":{},"#, ""),
            ("status.podIP", "metadata.name"),
            (r#"{"containerPort":80},{"containerPort":81}"#, r#"{"containerPort":81},{"containerPort":80}"#),
            (r#"{"containerPort":80},{"containerPort":81}"#, r#"{"containerPort":80}"#),
            (r#"{"containerPort":80},{"containerPort":81}"#, r#"{"containerPort":80},{"containerPort":82}"#),
            (r#","hostNetwork":false"#, ""),
            (r#""hostNetwork":false"#, r#""hostNetwork":true"#),
            (r#""status":{}"#, r#""status":{"podIP":"1"}"#),
        ];
        for (from, to) in changes {
            assert!(POD.contains(from));
            assert!(!fixture.is_repeated(&live, &POD.replace(from, to)), "{from} -> {to}");
        }
    }

    #[test]
    fn invalid_managed_fields_run_the_full_apply() {
        let fixture = Fixture::new();
        let live = fixture.stored(None, fixture.apply("m", None, POD).unwrap());
        let invalid = [
            r#""manager":"n","operation":"Apply","apiVersion":"v1","fieldsV1":{}"#,
            r#""manager":"n","operation":"Apply","apiVersion":"v9","fieldsV1":{"f:spec":{}}"#,
            r#""manager":"n","operation":"Apply","apiVersion":"v1","fieldsV1":{"spec":{}}"#,
            r#""manager":"m","operation":"Apply","apiVersion":"v1","fieldsV1":{"f:spec":{}}"#,
        ];
        for entry in invalid {
            let entry = json::read(format!(r#"{{{entry},"fieldsType":"FieldsV1"}}"#).as_bytes()).unwrap();
            let mut live = live.clone();
            let mut entries = live.get_path(&["metadata", "managedFields"]).unwrap().items().to_vec();
            entries.push(entry);
            live.entry("metadata").set("managedFields", Value::Array(entries.clone().into()));
            let applied = fixture.apply("m", Some(&live), POD);
            assert!(
                applied.is_err() || applied.is_ok_and(|applied| applied.managers.is_some()),
                "{entries:?}"
            );
        }
    }

    #[test]
    fn equivalent_configuration_with_type_error_is_refused() {
        let fixture = Fixture::new();
        let live = fixture.stored(None, fixture.apply("m", None, POD).unwrap());
        let reference = r#"{"fieldPath":"status.podIP"}"#;
        for (from, to) in [
            (reference, r#"{"fieldPath":"status.podIP","no":1}"#),
            (reference, r#"{"apiVersion":"v1","fieldPath":"status.podIP","no":1}"#),
            (r#""hostNetwork":false"#, r#""hostNetwork":"""#),
            (r#""hostNetwork":false"#, r#""hostNetwork":{}"#),
            (r#""status":{}"#, r#""status":[]"#),
            (r#""resources":{}"#, r#""resources":[]"#),
        ] {
            assert!(POD.contains(from));
            let refused = fixture.apply("m", Some(&live), &POD.replace(from, to)).unwrap_err();
            assert!(
                refused.message.starts_with("failed to create typed patch object"),
                "{}",
                refused.message
            );
        }
    }

    #[test]
    fn atomic_value_of_other_manager_causes_conflict() {
        let fixture = Fixture::new();
        let live = fixture.stored(None, fixture.apply("m", None, POD).unwrap());
        let whole = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{"containers":[{"name":"c",
            "env":[{"name":"IP","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"status.podIP"}}}]}]}}"#;
        let two = fixture.stored(Some(&live), fixture.apply("n", Some(&live), whole).unwrap());
        let config = json::read(POD.as_bytes()).unwrap();
        let full = apply_fully(&fixture.versions(), &fixture.write("m"), &two, &config, false).unwrap_err();
        assert!(full.message.contains(".env"), "{}", full.message);
        assert_eq!(fixture.apply("m", Some(&two), POD).unwrap_err().message, full.message);
    }
}
