//! Reads the fields of a manager directly from the entry in `metadata.managedFields`, without building a set.
//!
//! That is enough to detect a no-op apply. Anything that this server would write differently counts as a doubt, and then the sets
//! are built and the full algorithm runs.

use std::cmp::Ordering;

use super::field_set::{FieldSet, PathElement};
use super::fields_v1;
use super::managers::{self, Operation};
use super::shape::{self, Shape};
use crate::json;
use crate::limits::OWNED_DEPTH;
use crate::schema::Registry;
use crate::value::{Iter, Object, Value};

/// The key for the place itself.
const ITSELF: &str = ".";

/// The owned fields at and below a place.
#[derive(Clone, Copy)]
pub(super) struct Owned<'v>(Option<&'v Object>);

impl<'v> Owned<'v> {
    /// No fields.
    pub(super) const NOTHING: Owned<'static> = Owned(None);

    /// The fields of an entry. `None` in case of doubt.
    pub(super) fn by(entry: &'v Value) -> Option<Owned<'v>> {
        Owned::at(entry.get("fieldsV1")?)
    }

    fn at(value: &'v Value) -> Option<Owned<'v>> {
        value.fields().map(|steps| Owned(Some(steps)))
    }

    /// Whether the place itself is owned.
    pub(super) fn has_itself(self) -> bool {
        self.0.is_some_and(|steps| steps.is_empty() || names_itself(steps))
    }

    /// The number of path elements below.
    pub(super) fn len(self) -> usize {
        self.0.map_or(0, |steps| steps.len() - usize::from(names_itself(steps)))
    }

    /// Whether nothing below the place is owned.
    pub(super) fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The owned fields below, sorted by name.
    pub(super) fn fields(self) -> Fields<'v> {
        Fields { steps: self.0.map(|steps| steps.iter()), next: None }.advanced()
    }

    /// Whether any member of a set is owned.
    pub(super) fn meets(self, set: &FieldSet) -> bool {
        let below = |(element, below): &(PathElement, FieldSet)| {
            self.item(&fields_v1::key(element)).is_some_and(|owned| owned.meets(below))
        };
        (set.member && self.has_itself()) || set.below().iter().any(below)
    }

    /// The owned fields at and below the item with this encoded path element.
    pub(super) fn item(self, step: &str) -> Option<Owned<'v>> {
        Owned::at(self.0?.get(step)?)
    }
}

/// Whether the place itself is among the elements; it sorts before all others.
fn names_itself(steps: &Object) -> bool {
    steps.first_key_value().is_some_and(|(step, _)| step == ITSELF)
}

/// Walks over the owned fields in parallel with another sorted iterator.
pub(super) struct Fields<'v> {
    steps: Option<Iter<'v>>,
    next: Option<(&'v str, &'v Value)>,
}

impl<'v> Fields<'v> {
    /// The owned fields at and below a field. `Err` in doubt: an earlier field is owned and was not asked for.
    pub(super) fn reach(&mut self, name: &str) -> Result<Option<Owned<'v>>, Differs> {
        let Some((step, inner)) = self.next else { return Ok(None) };
        match step.strip_prefix("f:").ok_or(Differs)?.cmp(name) {
            Ordering::Less => Err(Differs),
            Ordering::Greater => Ok(None),
            Ordering::Equal => {
                self.advance();
                Owned::at(inner).map(Some).ok_or(Differs)
            }
        }
    }

    /// Whether all were reached.
    pub(super) fn is_over(&self) -> bool {
        self.next.is_none()
    }

    fn advance(&mut self) {
        let others = self.steps.as_mut().and_then(|steps| steps.find(|(step, _)| *step != ITSELF));
        self.next = others.map(|(step, inner)| (step.as_str(), inner));
    }

    fn advanced(mut self) -> Fields<'v> {
        self.advance();
        self
    }
}

/// Something differs from a no-op.
pub(super) struct Differs;

/// The encoded path elements of a list's items; all in one text.
#[derive(Default)]
pub(super) struct EncodedElements {
    text: String,
    ends: Vec<usize>,
}

impl EncodedElements {
    /// The path elements of these items. `Err` if one cannot be identified.
    pub(super) fn to(
        registry: &Registry,
        shape: Shape<'_>,
        items: &[Value],
    ) -> Result<EncodedElements, Differs> {
        let mut text = Vec::with_capacity(32 * items.len());
        let mut ends = Vec::with_capacity(items.len());
        for item in items {
            write_step(&mut text, registry, shape, item)?;
            ends.push(text.len());
        }
        Ok(EncodedElements { text: String::from_utf8(text).map_err(|_| Differs)?, ends })
    }

    /// All of them, in the order of the items.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| self.text.get(start..*end).unwrap_or_default())
    }

    /// Whether two items have the same.
    pub(super) fn has_twins(&self) -> bool {
        if self.ends.len() < 2 {
            return false;
        }
        let mut all: Vec<&str> = self.iter().collect();
        all.sort_unstable();
        all.windows(2).any(|pair| pair[0] == pair[1])
    }
}

/// Writes the path element of an item as [`fields_v1`] does.
fn write_step(
    text: &mut Vec<u8>,
    registry: &Registry,
    shape: Shape<'_>,
    item: &Value,
) -> Result<(), Differs> {
    match (shape, item) {
        (Shape::Keyed(ty, keys), Value::Object(fields)) => {
            text.extend_from_slice(b"k:{");
            // Keys are sorted by name. Most lists have one.
            let mut names: Vec<&String> = keys.iter().collect();
            names.sort_unstable();
            for (at, name) in names.into_iter().enumerate() {
                let value = shape::key(registry, ty, name, fields).ok_or(Differs)?;
                if at > 0 {
                    text.push(b',');
                }
                json::write_string(text, name);
                text.push(b':');
                json::write_value(text, &value);
            }
            text.push(b'}');
            Ok(())
        }
        (Shape::Set(_), Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_)) => {
            text.extend_from_slice(b"v:");
            json::write_value(text, item);
            Ok(())
        }
        _ => Err(Differs),
    }
}

/// Whether an entry belongs to the applier.
pub(super) fn is_of(entry: &Value, manager: &str, subresource: &str) -> bool {
    entry.str("manager") == manager
        && entry.str("operation") == Operation::Apply.word()
        && entry.str("subresource") == subresource
}

/// Whether an entry is valid and its manager owns something.
pub(super) fn is_sound(entry: &Value) -> bool {
    let fields = entry.get("fieldsV1").and_then(Value::fields);
    let is_good = |fields: &Object| {
        !fields.is_empty() && !fields.contains_key(ITSELF) && is_readable(fields, OWNED_DEPTH)
    };
    managers::is_known_form(entry) && fields.is_some_and(is_good)
}

fn is_readable(steps: &Object, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else { return false };
    steps.iter().all(|(step, inner)| {
        let known = step.starts_with("f:") || step == ITSELF || fields_v1::is_step(step);
        known && inner.fields().is_some_and(|inner| is_readable(inner, depth))
    })
}

#[cfg(test)]
mod tests {
    use super::super::applied_fields::owned_fields;
    use super::*;
    use crate::schema::{GroupVersionKind, TypeId};

    fn read(text: &str) -> Value {
        json::read(text.as_bytes()).unwrap()
    }

    fn registry() -> (Registry, TypeId) {
        let registry = Registry::builtin().unwrap();
        let service = registry.lookup(&GroupVersionKind::new("", "v1", "Service")).unwrap();
        (registry, service)
    }

    /// The shape of a field of a field.
    fn shape<'r>(registry: &'r Registry, ty: TypeId, [outer, inner]: [&str; 2]) -> Shape<'r> {
        let outer = registry.structure(ty).unwrap().field(outer).unwrap();
        let inner = registry.structure(outer.ty).unwrap().field(inner).unwrap();
        shape::of_field(registry, inner)
    }

    #[test]
    fn steps_to_items_are_written_as_sets_write_them() {
        let (registry, service) = registry();
        let object = read(
            r#"{"metadata":{"finalizers":["a/b","\"<\u00e9>\""]},
                "spec":{"ports":[{"port":80},{"protocol":"UDP","port":80},{"port":81,"name":"x"}]}}"#,
        );
        let written = fields_v1::write(&owned_fields(&registry, service, &object).unwrap());
        for path in [["metadata", "finalizers"], ["spec", "ports"]] {
            let items = object.at(&path).unwrap().items();
            let Ok(steps) = EncodedElements::to(&registry, shape(&registry, service, path), items) else {
                panic!("{path:?} can be told")
            };
            let owned = written.at(&[&format!("f:{}", path[0]), &format!("f:{}", path[1])]).unwrap();
            let (mut found, wanted): (Vec<&str>, Vec<&str>) =
                (steps.iter().collect(), owned.fields().unwrap().keys().map(String::as_str).collect());
            found.sort_unstable();
            assert_eq!(found, wanted);
            assert!(!steps.has_twins());
            let twice = [items, items].concat();
            assert!(
                EncodedElements::to(&registry, shape(&registry, service, path), &twice)
                    .is_ok_and(|s| s.has_twins())
            );
        }
        for (path, item) in
            [(["spec", "ports"], "{}"), (["spec", "ports"], "1"), (["metadata", "finalizers"], "{}")]
        {
            // An unset port is printed as 0, so it can be identified.
            let told = EncodedElements::to(&registry, shape(&registry, service, path), &[read(item)]).is_ok();
            assert_eq!(told, path[0] == "spec" && item == "{}", "{path:?} {item}");
        }
    }

    #[test]
    fn fields_are_reached_in_order_or_not_at_all() {
        let entry = read(r#"{"fieldsV1":{".":{},"f:a":{},"f:c":{"f:d":{}},"f:e":{}}}"#);
        let owned = Owned::by(&entry).unwrap();
        assert!(owned.has_itself() && owned.len() == 3);
        let mut fields = owned.fields();
        assert!(fields.reach("a").is_ok_and(|owned| owned.is_some_and(Owned::has_itself)));
        assert!(fields.reach("b").is_ok_and(|owned| owned.is_none()));
        assert!(fields.reach("c").is_ok_and(|owned| owned.is_some_and(|owned| !owned.has_itself())));
        assert!(!fields.is_over());
        assert!(fields.reach("f").is_err(), "nobody asked for e");
        assert!(fields.reach("e").is_ok_and(|owned| owned.is_some()));
        assert!(fields.is_over());
    }

    #[test]
    fn what_is_in_both_is_met() {
        let sets = [
            r#"{"f:a":{}}"#,
            r#"{"f:a":{".":{},"f:b":{}}}"#,
            r#"{"f:a":{"f:b":{}}}"#,
            r#"{"f:l":{"k:{\"name\":\"x\"}":{},"v:1":{"f:c":{}}}}"#,
            r#"{"f:l":{"k:{\"name\":\"x\"}":{".":{},"f:d":{}}}}"#,
            r#"{"f:l":{"v:1":{}}}"#,
        ]
        .map(read);
        for (one, other) in sets.iter().flat_map(|one| sets.iter().map(move |other| (one, other))) {
            let (set, theirs) = (fields_v1::read(one).unwrap(), fields_v1::read(other).unwrap());
            let met = Owned::at(other).unwrap().meets(&set);
            assert_eq!(met, !set.intersection(&theirs).is_empty(), "{one:?} {other:?}");
        }
    }

    #[test]
    fn only_entries_that_can_be_read_are_sound() {
        let entry = |fields: &str| {
            read(&format!(
                r#"{{"operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{fields}}}"#
            ))
        };
        let good = entry(r#"{"f:a":{".":{},"k:{\"name\":\"x\"}":{},"v:1":{},"i:0":{}}}"#);
        assert!(is_sound(&good));
        for fields in [
            "{}",
            "null",
            "1",
            r#"{".":{}}"#,
            r#"{"f:a":1}"#,
            r#"{"a":{}}"#,
            r#"{"x:a":{}}"#,
            r#"{"k:1":{}}"#,
            r#"{"i:x":{}}"#,
            r#"{"f:a":{"k:{\"name\": \"x\"}":{}}}"#,
        ] {
            assert!(!is_sound(&entry(fields)), "{fields}");
        }
        let mut deep = good.clone();
        let nested = (0..OWNED_DEPTH).fold(Value::object(), |inner, _| {
            let mut outer = Value::object();
            outer.set("f:a", inner);
            outer
        });
        deep.set("fieldsV1", nested);
        assert!(!is_sound(&deep));
        for (field, value) in [("operation", "Patch"), ("apiVersion", ""), ("fieldsType", "FieldsV2")] {
            let mut odd = good.clone();
            odd.set(field, value);
            assert!(!is_sound(&odd), "{field}");
        }
    }
}
