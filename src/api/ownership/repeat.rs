//! Whether an apply states again what the same owner stated before and the object still says.
//!
//! Nearly every apply of a controller does. One walk over what is stated finds that out without merging anything; whenever it is in
//! doubt it says no, and the whole work is done.

use super::compare::{Side, Walk};
use super::field_set::is_nothing;
use super::owned::{Owned, Steps};
use super::set::{Element, Set};
use super::shape::{self, Place, Shape};
use crate::api::codec::json;
use crate::api::limits::OWNED_DEPTH;
use crate::api::schema::encode::encode;
use crate::api::schema::{Registry, Struct, TypeId, default};
use crate::api::value::{Object, Value};

/// How a statement repeats what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeated {
    /// It does not, or that is in doubt.
    No,
    /// It says the same in other words: what it says may still be wrong for the type.
    Alike,
    /// To the letter, or it is what the defaults make of it.
    Literally,
}

/// Whether `config` states the fields that are `owned` by whoever applies it, and `live` says of each what is stated. `spares` says
/// of what would be replaced as a whole and filled in again whether nobody else has it; `reset` is what the write cannot set.
pub(super) fn repeated(
    registry: &Registry,
    ty: TypeId,
    (live, config): (&Value, &Value),
    owned: Owned<'_>,
    reset: &Set,
    spares: impl FnOnce(&Set) -> bool,
) -> Repeated {
    let mut walk = Repetition { registry, compared: Walk::new(registry), is_literal: true };
    let mut filled = Set::default();
    let shape = shape::of_type(registry, ty, None);
    let at = At { place: Place::Root, reset: Some(reset), depth: OWNED_DEPTH };
    let same = walk.inside(shape, at, live, config, owned, &mut filled);
    match same && (filled.is_empty() || spares(&filled)) {
        false => Repeated::No,
        true if walk.is_literal => Repeated::Literally,
        true => Repeated::Alike,
    }
}

/// Where the walk is.
#[derive(Clone, Copy)]
struct At<'s> {
    place: Place,
    reset: Option<&'s Set>,
    depth: usize,
}

impl At<'_> {
    fn below(self) -> Self {
        At { place: Place::Inside, reset: None, depth: self.depth.saturating_sub(1) }
    }
}

struct Repetition<'r> {
    registry: &'r Registry,
    compared: Walk<'r>,
    is_literal: bool,
}

impl<'r> Repetition<'r> {
    /// Whether the parts of a place are those in `owned`, and are as stated. Collects into `filled` what is as stated only once
    /// its defaults are filled in.
    fn inside(
        &mut self,
        shape: Shape<'r>,
        at: At<'_>,
        live: &Value,
        config: &Value,
        owned: Owned<'_>,
        filled: &mut Set,
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
                    let element = || Element::field(key);
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
        filled: &mut Set,
    ) -> bool {
        let mut steps = owned.fields();
        for (name, value) in config {
            if at.place.skips(name) {
                // What has no owner must still be the same, or the write is refused. A time that is yet to be set is what
                // generated manifests state.
                let unset = at.place == Place::Metadata && name == "creationTimestamp" && value.is_null();
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
            let stated = matches!(shape, Shape::Whole(_)) || (is_nothing(value) && place != Place::Metadata);
            if owned.has_itself() != stated {
                return false;
            }
            let old = Side::among(self.registry, field, Some(live));
            let same = match (old, shape) {
                (Side::Value(live), _) if !is_nothing(value) || !is_nothing(live) => {
                    let at = At { place, reset, depth: at.depth.saturating_sub(1) };
                    let element = || Element::Field(field.name.clone());
                    self.value(shape, at, live, value, owned, filled, element)
                }
                // Something may be printed though nothing is said, and the other way round.
                _ => {
                    self.is_literal &= says_nothing(shape, value);
                    let new = Side::among(self.registry, field, Some(config));
                    if matches!(old, Side::Absent) {
                        // What says as much as nothing is stated where nothing is shown: it would be added first.
                        filled.push(Element::Field(field.name.clone()), Set::leaf());
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
        filled: &mut Set,
    ) -> bool {
        if config.len() != owned.len() {
            return false;
        }
        let (registry, inner) = (self.registry, shape::of_item(self.registry, shape, item));
        let (Ok(known), Ok(stated)) = (Steps::to(registry, shape, live), Steps::to(registry, shape, config))
        else {
            return false;
        };
        // Of items that stand twice the merge makes one.
        if known.has_twins() {
            return false;
        }
        // In the same order: else the stated one would be taken on. So no item is met twice, and as many are stated as owned.
        let mut rest = known.iter().zip(live);
        stated.iter().zip(config).all(|(step, value)| {
            let Some((_, live)) = rest.find(|(known, _)| *known == step) else { return false };
            let Some(owned) = owned.item(step) else { return false };
            // The steps could be written, so the item can be told.
            let element = || shape::element(registry, shape, value).unwrap_or(Element::Index(0));
            owned.has_itself() && self.value(inner, at.below(), live, value, owned, filled, element)
        })
    }

    /// Whether a value that is there is as stated.
    #[expect(clippy::too_many_arguments, reason = "a value, what is stated of it, and what is known of both")]
    fn value(
        &mut self,
        shape: Shape<'r>,
        at: At<'_>,
        live: &Value,
        config: &Value,
        owned: Owned<'_>,
        filled: &mut Set,
        element: impl FnOnce() -> Element,
    ) -> bool {
        let mut below = Set::default();
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
            // Nothing is stated of something that says more.
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

    /// Whether what is there is printed as it is stated.
    fn prints(&self, ty: TypeId, live: &Value, config: &Value) -> bool {
        match config {
            Value::Object(_) | Value::Array(_) => {
                json::read(&encode(self.registry, ty, live)).is_ok_and(|printed| printed == *config)
            }
            _ => live == config,
        }
    }

    /// Whether the defaults make of what is stated what is there.
    fn fills_to(&self, ty: TypeId, live: &Value, config: &Value) -> bool {
        let mut stated = config.clone();
        default::apply(self.registry, ty, &mut stated);
        stated == *live
    }
}

/// Whether a value that holds nothing is of the type.
fn says_nothing(shape: Shape<'_>, value: &Value) -> bool {
    value.is_null() || matches!((shape, value), (Shape::Struct(_) | Shape::Map(_), Value::Object(_)))
}

#[cfg(test)]
mod tests {
    use super::super::apply::{Applied, apply, apply_at_length};
    use super::super::{Versions, Write};
    use super::*;
    use crate::api::codec;
    use crate::api::kinds;
    use crate::api::schema::GroupVersionKind;
    use crate::api::status::Result;
    use crate::api::version::GroupVersion;

    /// A pod with a field that is replaced as a whole and then filled in: the reference of a variable.
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
            Versions { registry: &self.registry, kind: "Pod", stored: &self.version, elsewhere: None }
        }

        fn write<'a>(&'a self, manager: &'a str) -> Write<'a> {
            let reset: &[&[&str]] = &[&["status"]];
            Write { manager, version: &self.version, subresource: "", now: "2024-01-01T00:00:00Z", reset }
        }

        fn apply(&self, manager: &str, live: Option<&Value>, config: &str) -> Result<Applied> {
            let config = json::read(config.as_bytes()).unwrap();
            apply(&self.versions(), &self.write(manager), live, &config, false)
        }

        /// What is stored of an apply.
        fn stored(&self, live: Option<&Value>, applied: Applied) -> Value {
            let kind = GroupVersionKind::new("", "v1", "Pod");
            let text = json::to_json(&applied.onto(live));
            let mut value = codec::decode_object(&text, &kind, &self.registry).unwrap().value;
            kinds::fill_in(kinds::rules("", "Pod"), &mut value, Default::default());
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
        // Another owner of something else changes nothing about it.
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
            live.entry("metadata").set("managedFields", Value::Array(entries.clone()));
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
        let at_length =
            apply_at_length(&stage.versions(), &stage.write("m"), &two, &config, false).unwrap_err();
        assert!(at_length.message.contains(".env"), "{}", at_length.message);
        assert_eq!(stage.apply("m", Some(&two), POD).unwrap_err().message, at_length.message);
    }
}
