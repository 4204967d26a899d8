//! Detects an apply that repeats what the same manager applied before and the object still contains.
//!
//! Nearly every apply of a controller does. One walk over the configuration finds that without merging; in case of doubt it
//! answers no, and the full algorithm runs.

use super::applied_fields::is_nothing;
use super::compare::{Side, Walk};
use super::field_set::{FieldSet, PathElement};
use super::owned_fields::{EncodedElements, Owned};
use super::shape::{self, Position, Shape};
use crate::json;
use crate::limits::OWNED_DEPTH;
use crate::schema::encode::encode;
use crate::schema::{Registry, Struct, TypeId, default};
use crate::value::{Object, Value};

/// How a configuration repeats the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeated {
    /// It does not, or it is in doubt.
    No,
    /// It is equivalent: the configuration may still have a wrong type.
    Alike,
    /// Literally, or after defaulting.
    Literally,
}

/// Whether `config` states exactly the fields in `owned`, and `live` has the stated values. `spares` tells for an atomic value
/// that would be replaced and defaulted again whether no other manager owns it; `reset` are the fields that the write cannot set.
pub(super) fn repeated(
    registry: &Registry,
    ty: TypeId,
    (live, config): (&Value, &Value),
    owned: Owned<'_>,
    reset: &FieldSet,
    spares: impl FnOnce(&FieldSet) -> bool,
) -> Repeated {
    let mut walk = Repetition { registry, compared: Walk::new(registry), is_literal: true };
    let mut filled = FieldSet::default();
    let shape = shape::of_type(registry, ty, None);
    let at = At { place: Position::Root, reset: Some(reset), depth: OWNED_DEPTH };
    let same = walk.inside(shape, at, live, config, owned, &mut filled);
    match same && (filled.is_empty() || spares(&filled)) {
        false => Repeated::No,
        true if walk.is_literal => Repeated::Literally,
        true => Repeated::Alike,
    }
}

/// The position of the walk.
#[derive(Clone, Copy)]
struct At<'s> {
    place: Position,
    reset: Option<&'s FieldSet>,
    depth: usize,
}

impl At<'_> {
    fn below(self) -> Self {
        At { place: Position::Inside, reset: None, depth: self.depth.saturating_sub(1) }
    }
}

struct Repetition<'r> {
    registry: &'r Registry,
    compared: Walk<'r>,
    is_literal: bool,
}

impl<'r> Repetition<'r> {
    /// Whether the parts of a place are exactly those in `owned` and have the stated values. Collects into `filled` the parts
    /// that are only equal after defaulting.
    fn inside(
        &mut self,
        shape: Shape<'r>,
        at: At<'_>,
        live: &Value,
        config: &Value,
        owned: Owned<'_>,
        filled: &mut FieldSet,
    ) -> bool {
        if at.depth == 0 {
            return false;
        }
        match (shape.settled([Some(live), Some(config)]), live, config) {
            (Shape::Struct(structure), Value::Object(live), Value::Object(config)) => {
                self.fields(structure, at, live, config, owned, filled)
            }
            (Shape::Map(ty), Value::Object(live), Value::Object(config)) => {
                let inner = shape::of_type(self.registry, ty, None);
                if config.len() != owned.len() {
                    return false;
                }
                let mut owned = owned.fields();
                config.iter().all(|(key, value)| {
                    let (Some(live), Ok(Some(owned))) = (live.get(key), owned.reach(key)) else {
                        return false;
                    };
                    let element = || PathElement::field(key);
                    owned.has_itself() && self.value(inner, at.below(), live, value, owned, filled, element)
                })
            }
            (Shape::Set(item) | Shape::Keyed(item, _), Value::Array(live), Value::Array(config)) => {
                self.items(shape, item, at, live, config, owned, filled)
            }
            _ => false,
        }
    }

    fn fields(
        &mut self,
        structure: &'r Struct,
        at: At<'_>,
        live: &Object,
        config: &Object,
        owned: Owned<'_>,
        filled: &mut FieldSet,
    ) -> bool {
        let mut steps = owned.fields();
        for (name, value) in config {
            if at.place.skips(name) {
                // Fields without owners must still be equal, or the write is refused. Generated manifests state a null
                // creationTimestamp.
                let unset = at.place == Position::Metadata && name == "creationTimestamp" && value.is_null();
                if !unset && live.get(name) != Some(value) {
                    return false;
                }
                continue;
            }
            let reset = at.reset.and_then(|reset| reset.get_field(name));
            if reset.is_some_and(|reset| reset.member) {
                if is_nothing(value) && matches!(steps.reach(name), Ok(None)) {
                    self.is_literal = false;
                    continue;
                }
                return false;
            }
            let Some(field) = structure.field(name) else { return false };
            let shape = shape::of_field(self.registry, field).settled([live.get(name), Some(value)]);
            let place = at.place.under(name);
            let Ok(owned) = steps.reach(name) else { return false };
            let owned = owned.unwrap_or(Owned::NOTHING);
            let stated =
                matches!(shape, Shape::Whole(_)) || (is_nothing(value) && place != Position::Metadata);
            if owned.has_itself() != stated {
                return false;
            }
            let old = Side::among(self.registry, field, Some(live));
            let same = match (old, shape) {
                (Side::Value(live), _) if !is_nothing(value) || !is_nothing(live) => {
                    let at = At { place, reset, depth: at.depth.saturating_sub(1) };
                    let element = || PathElement::Field(field.name.clone());
                    self.value(shape, at, live, value, owned, filled, element)
                }
                // An absent field may be printed, and a printed one may be absent.
                _ => {
                    self.is_literal &= says_nothing(shape, value);
                    let new = Side::among(self.registry, field, Some(config));
                    if matches!(old, Side::Absent) {
                        // An empty value is stated where nothing is shown: a merge would add it first.
                        filled.push(PathElement::Field(field.name.clone()), FieldSet::leaf());
                    }
                    stated && owned.is_empty() && self.compared.same(shape, old, new)
                }
            };
            if !same {
                return false;
            }
        }
        steps.is_over()
    }

    #[expect(clippy::too_many_arguments, reason = "a list, what is stated of it, and what is known of both")]
    fn items(
        &mut self,
        shape: Shape<'r>,
        item: TypeId,
        at: At<'_>,
        live: &[Value],
        config: &[Value],
        owned: Owned<'_>,
        filled: &mut FieldSet,
    ) -> bool {
        if config.len() != owned.len() {
            return false;
        }
        let (registry, inner) = (self.registry, shape::of_item(self.registry, shape, item));
        let (Ok(known), Ok(stated)) =
            (EncodedElements::to(registry, shape, live), EncodedElements::to(registry, shape, config))
        else {
            return false;
        };
        // A merge would join duplicate items.
        if known.has_twins() {
            return false;
        }
        // In the same order: otherwise the stated order would be taken. So no item matches twice, and the numbers of stated and
        // owned items are equal.
        let mut rest = known.iter().zip(live);
        stated.iter().zip(config).all(|(step, value)| {
            let Some((_, live)) = rest.find(|(known, _)| *known == step) else { return false };
            let Some(owned) = owned.item(step) else { return false };
            // The path elements could be encoded, so this cannot fail.
            let element = || shape::element(registry, shape, value).unwrap_or(PathElement::Index(0));
            owned.has_itself() && self.value(inner, at.below(), live, value, owned, filled, element)
        })
    }

    /// Whether an existing value is as stated.
    #[expect(clippy::too_many_arguments, reason = "a value, what is stated of it, and what is known of both")]
    fn value(
        &mut self,
        shape: Shape<'r>,
        at: At<'_>,
        live: &Value,
        config: &Value,
        owned: Owned<'_>,
        filled: &mut FieldSet,
        element: impl FnOnce() -> PathElement,
    ) -> bool {
        let mut below = FieldSet::default();
        let shape = shape.settled([Some(live), Some(config)]);
        let same = match shape {
            Shape::Whole(ty) => {
                below.member = !self.prints(ty, live, config);
                owned.is_empty()
                    && (live == config || {
                        let same = self.compared.same(shape, Side::of(Some(live)), Side::of(Some(config)));
                        self.is_literal &= !same;
                        same || self.fills_to(ty, live, config)
                    })
            }
            // An empty value is stated for a nonempty one.
            _ if is_nothing(config) => {
                self.is_literal &= says_nothing(shape, config);
                owned.is_empty()
            }
            _ => self.inside(shape, at, live, config, owned, &mut below),
        };
        if !below.is_empty() {
            filled.push(element(), below);
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
fn says_nothing(shape: Shape<'_>, value: &Value) -> bool {
    value.is_null() || matches!((shape, value), (Shape::Struct(_) | Shape::Map(_), Value::Object(_)))
}

#[cfg(test)]
mod tests {
    use super::super::apply::{Applied, apply, apply_fully};
    use super::super::{Versions, Write};
    use super::*;
    use crate::codec;
    use crate::schema::GroupVersionKind;
    use crate::status::Result;
    use crate::version::GroupVersion;

    /// A pod with an atomic field that is defaulted: the reference of an environment variable.
    const POD: &str = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","creationTimestamp":null,"labels":{"x":"1"}},
        "spec":{"containers":[{"name":"c","image":"i","resources":{},"env":[{"name":"IP","valueFrom":{"fieldRef":{"fieldPath":"status.podIP"}}}],
        "ports":[{"containerPort":80},{"containerPort":81}]}],"hostNetwork":false},"status":{}}"#;

    struct Stage {
        registry: Registry,
        version: GroupVersion,
    }

    impl Stage {
        fn new() -> Stage {
            Stage { registry: Registry::builtin().unwrap(), version: GroupVersion::new("", "v1") }
        }

        fn versions(&self) -> Versions<'_> {
            Versions {
                registry: &self.registry,
                kind: "Pod",
                stored: &self.version,
                elsewhere: None,
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
    fn what_is_stated_again_is_found_in_the_object_with_its_defaults() {
        let stage = Stage::new();
        let live = stage.stored(None, stage.apply("m", None, POD).unwrap());
        let fields = live.at(&["spec", "containers"]).unwrap().items()[0].get("env").unwrap();
        assert!(String::from_utf8(json::to_json(fields)).unwrap().contains(r#""apiVersion":"v1""#));
        assert!(stage.is_repeated(&live, POD));
        // Another manager of another field makes no difference.
        let label = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","labels":{"y":"1"}}}"#;
        let two = stage.stored(Some(&live), stage.apply("n", Some(&live), label).unwrap());
        assert!(stage.is_repeated(&two, POD));
    }

    #[test]
    fn whatever_is_stated_otherwise_is_no_repetition() {
        let stage = Stage::new();
        let live = stage.stored(None, stage.apply("m", None, POD).unwrap());
        let other = [
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
        for (from, to) in other {
            assert!(POD.contains(from));
            assert!(!stage.is_repeated(&live, &POD.replace(from, to)), "{from} -> {to}");
        }
    }

    #[test]
    fn owners_in_doubt_are_looked_at_in_full() {
        let stage = Stage::new();
        let live = stage.stored(None, stage.apply("m", None, POD).unwrap());
        let odd = [
            r#""manager":"n","operation":"Apply","apiVersion":"v1","fieldsV1":{}"#,
            r#""manager":"n","operation":"Apply","apiVersion":"v9","fieldsV1":{"f:spec":{}}"#,
            r#""manager":"n","operation":"Apply","apiVersion":"v1","fieldsV1":{"spec":{}}"#,
            r#""manager":"m","operation":"Apply","apiVersion":"v1","fieldsV1":{"f:spec":{}}"#,
        ];
        for entry in odd {
            let entry = json::read(format!(r#"{{{entry},"fieldsType":"FieldsV1"}}"#).as_bytes()).unwrap();
            let mut live = live.clone();
            let mut entries = live.at(&["metadata", "managedFields"]).unwrap().items().to_vec();
            entries.push(entry);
            live.entry("metadata").set("managedFields", Value::Array(entries.clone().into()));
            let applied = stage.apply("m", Some(&live), POD);
            assert!(applied.is_err() || applied.is_ok_and(|done| done.managers.is_some()), "{entries:?}");
        }
    }

    #[test]
    fn what_is_wrong_for_the_type_is_refused_though_it_says_the_same() {
        let stage = Stage::new();
        let live = stage.stored(None, stage.apply("m", None, POD).unwrap());
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
            let refused = stage.apply("m", Some(&live), &POD.replace(from, to)).unwrap_err();
            assert!(
                refused.message.starts_with("failed to create typed patch object"),
                "{}",
                refused.message
            );
        }
    }

    #[test]
    fn what_others_own_as_it_is_there_is_not_replaced_silently() {
        let stage = Stage::new();
        let live = stage.stored(None, stage.apply("m", None, POD).unwrap());
        let whole = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{"containers":[{"name":"c",
            "env":[{"name":"IP","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"status.podIP"}}}]}]}}"#;
        let two = stage.stored(Some(&live), stage.apply("n", Some(&live), whole).unwrap());
        let config = json::read(POD.as_bytes()).unwrap();
        let at_length = apply_fully(&stage.versions(), &stage.write("m"), &two, &config, false).unwrap_err();
        assert!(at_length.message.contains(".env"), "{}", at_length.message);
        assert_eq!(stage.apply("m", Some(&two), POD).unwrap_err().message, at_length.message);
    }
}
