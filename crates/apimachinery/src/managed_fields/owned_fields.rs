//! Reads the fields of a manager directly from the entry in `metadata.managedFields`, without building a set.
//!
//! That is enough to detect a no-op apply. If anything is written differently than this server would, the sets are built and the
//! full algorithm runs.

use std::cmp::Ordering;

use super::field_set::{FieldSet, PathElement};
use super::fields_v1;
use super::managers::{self, Operation};
use super::shape::{self, Shape};
use crate::json;
use crate::limits::OWNED_DEPTH;
use crate::schema::Registry;
use crate::value::{Iter, Object, Value};

/// The key for the field itself.
const SELF_KEY: &str = ".";

/// The owned fields at and below a position.
#[derive(Clone, Copy)]
pub(super) struct Owned<'v>(Option<&'v Object>);

impl<'v> Owned<'v> {
    /// No fields.
    pub(super) const NOTHING: Owned<'static> = Owned(None);

    /// The fields of an entry. `None` in case of doubt.
    pub(super) fn from_entry(entry: &'v Value) -> Option<Owned<'v>> {
        Owned::from_value(entry.get("fieldsV1")?)
    }

    fn from_value(value: &'v Value) -> Option<Owned<'v>> {
        value.fields().map(|keys| Owned(Some(keys)))
    }

    /// Whether the position itself is owned.
    pub(super) fn has_itself(self) -> bool {
        self.0.is_some_and(|keys| keys.is_empty() || has_self_key(keys))
    }

    /// The number of path elements below.
    pub(super) fn len(self) -> usize {
        self.0.map_or(0, |keys| keys.len() - usize::from(has_self_key(keys)))
    }

    /// Whether nothing below the position is owned.
    pub(super) fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The owned fields below, sorted by name.
    pub(super) fn fields(self) -> Fields<'v> {
        Fields { keys: self.0.map(|keys| keys.iter()), next: None }.advanced()
    }

    /// Whether any member of a set is owned.
    pub(super) fn intersects(self, set: &FieldSet) -> bool {
        let below = |(element, below): &(PathElement, FieldSet)| {
            self.item(&fields_v1::key(element)).is_some_and(|owned| owned.intersects(below))
        };
        (set.member && self.has_itself()) || set.below().iter().any(below)
    }

    /// The owned fields at and below the item with this encoded path element.
    pub(super) fn item(self, key: &str) -> Option<Owned<'v>> {
        Owned::from_value(self.0?.get(key)?)
    }
}

/// Whether the position itself is among the keys; it sorts before all others.
fn has_self_key(keys: &Object) -> bool {
    keys.first_key_value().is_some_and(|(key, _)| key == SELF_KEY)
}

/// Walks over the owned fields in parallel with another sorted iterator.
pub(super) struct Fields<'v> {
    keys: Option<Iter<'v>>,
    next: Option<(&'v str, &'v Value)>,
}

impl<'v> Fields<'v> {
    /// The owned fields at and below a field. `Err` in doubt: an earlier field is owned and was skipped.
    pub(super) fn advance_to(&mut self, name: &str) -> Result<Option<Owned<'v>>, InDoubt> {
        let Some((key, inner)) = self.next else { return Ok(None) };
        match key.strip_prefix("f:").ok_or(InDoubt)?.cmp(name) {
            Ordering::Less => Err(InDoubt),
            Ordering::Greater => Ok(None),
            Ordering::Equal => {
                self.advance();
                Owned::from_value(inner).map(Some).ok_or(InDoubt)
            }
        }
    }

    /// Whether all owned fields were visited.
    pub(super) fn is_exhausted(&self) -> bool {
        self.next.is_none()
    }

    fn advance(&mut self) {
        let next = self.keys.as_mut().and_then(|keys| keys.find(|(key, _)| *key != SELF_KEY));
        self.next = next.map(|(key, inner)| (key.as_str(), inner));
    }

    fn advanced(mut self) -> Fields<'v> {
        self.advance();
        self
    }
}

/// The apply may not be a no-op.
pub(super) struct InDoubt;

/// The encoded path elements of a list's items; all in one text.
#[derive(Default)]
pub(super) struct EncodedElements {
    text: String,
    ends: Vec<usize>,
}

impl EncodedElements {
    /// The path elements of these items. `Err` if one cannot be identified.
    pub(super) fn encode(
        registry: &Registry,
        shape: Shape<'_>,
        items: &[Value],
    ) -> Result<EncodedElements, InDoubt> {
        let mut text = Vec::with_capacity(32 * items.len());
        let mut ends = Vec::with_capacity(items.len());
        for item in items {
            write_element(&mut text, registry, shape, item)?;
            ends.push(text.len());
        }
        Ok(EncodedElements { text: String::from_utf8(text).map_err(|_| InDoubt)?, ends })
    }

    /// The path elements, in the order of the items.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| self.text.get(start..*end).unwrap_or_default())
    }

    /// Whether two items have the same path element.
    pub(super) fn has_duplicates(&self) -> bool {
        if self.ends.len() < 2 {
            return false;
        }
        let mut all: Vec<&str> = self.iter().collect();
        all.sort_unstable();
        all.windows(2).any(|pair| pair[0] == pair[1])
    }
}

/// Writes the path element of an item as [`fields_v1`] does.
fn write_element(
    text: &mut Vec<u8>,
    registry: &Registry,
    shape: Shape<'_>,
    item: &Value,
) -> Result<(), InDoubt> {
    match (shape, item) {
        (Shape::Keyed(ty, keys), Value::Object(fields)) => {
            text.extend_from_slice(b"k:{");
            // Keys are sorted by name. Most lists have one.
            let mut names: Vec<&String> = keys.iter().collect();
            names.sort_unstable();
            for (index, name) in names.into_iter().enumerate() {
                let value = shape::key(registry, ty, name, fields).ok_or(InDoubt)?;
                if index > 0 {
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
        _ => Err(InDoubt),
    }
}

/// Whether an entry belongs to the applier.
pub(super) fn belongs_to(entry: &Value, manager: &str, subresource: &str) -> bool {
    entry.str("manager") == manager
        && entry.str("operation") == Operation::Apply.as_str()
        && entry.str("subresource") == subresource
}

/// Whether an entry is valid and its manager owns something.
pub(super) fn is_valid(entry: &Value) -> bool {
    let fields = entry.get("fieldsV1").and_then(Value::fields);
    let has_valid_fields = |fields: &Object| {
        !fields.is_empty() && !fields.contains_key(SELF_KEY) && is_valid_tree(fields, OWNED_DEPTH)
    };
    managers::is_supported(entry) && fields.is_some_and(has_valid_fields)
}

fn is_valid_tree(keys: &Object, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else { return false };
    keys.iter().all(|(key, inner)| {
        let is_known = key.starts_with("f:") || key == SELF_KEY || fields_v1::is_canonical_key(key);
        is_known && inner.fields().is_some_and(|inner| is_valid_tree(inner, depth))
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
        shape::for_field(registry, inner)
    }

    #[test]
    fn encoded_elements_equal_the_keys_of_field_sets() {
        let (registry, service) = registry();
        let object = read(
            r#"{"metadata":{"finalizers":["a/b","\"<\u00e9>\""]},
                "spec":{"ports":[{"port":80},{"protocol":"UDP","port":80},{"port":81,"name":"x"}]}}"#,
        );
        let written = fields_v1::write(&owned_fields(&registry, service, &object).unwrap());
        for path in [["metadata", "finalizers"], ["spec", "ports"]] {
            let items = object.get_path(&path).unwrap().items();
            let Ok(keys) = EncodedElements::encode(&registry, shape(&registry, service, path), items) else {
                panic!("{path:?} can be encoded")
            };
            let owned = written.get_path(&[&format!("f:{}", path[0]), &format!("f:{}", path[1])]).unwrap();
            let (mut actual, expected): (Vec<&str>, Vec<&str>) =
                (keys.iter().collect(), owned.fields().unwrap().keys().map(String::as_str).collect());
            actual.sort_unstable();
            assert_eq!(actual, expected);
            assert!(!keys.has_duplicates());
            let duplicated = [items, items].concat();
            assert!(
                EncodedElements::encode(&registry, shape(&registry, service, path), &duplicated)
                    .is_ok_and(|elements| elements.has_duplicates())
            );
        }
        for (path, item) in
            [(["spec", "ports"], "{}"), (["spec", "ports"], "1"), (["metadata", "finalizers"], "{}")]
        {
            // An unset port is printed as 0, so it can be identified.
            let is_encoded =
                EncodedElements::encode(&registry, shape(&registry, service, path), &[read(item)]).is_ok();
            assert_eq!(is_encoded, path[0] == "spec" && item == "{}", "{path:?} {item}");
        }
    }

    #[test]
    fn owned_fields_are_visited_in_order() {
        let entry = read(r#"{"fieldsV1":{".":{},"f:a":{},"f:c":{"f:d":{}},"f:e":{}}}"#);
        let owned = Owned::from_entry(&entry).unwrap();
        assert!(owned.has_itself() && owned.len() == 3);
        let mut fields = owned.fields();
        assert!(fields.advance_to("a").is_ok_and(|owned| owned.is_some_and(Owned::has_itself)));
        assert!(fields.advance_to("b").is_ok_and(|owned| owned.is_none()));
        assert!(fields.advance_to("c").is_ok_and(|owned| owned.is_some_and(|owned| !owned.has_itself())));
        assert!(!fields.is_exhausted());
        assert!(fields.advance_to("f").is_err(), "e was skipped");
        assert!(fields.advance_to("e").is_ok_and(|owned| owned.is_some()));
        assert!(fields.is_exhausted());
    }

    #[test]
    fn intersects_agrees_with_field_set_intersection() {
        let sets = [
            r#"{"f:a":{}}"#,
            r#"{"f:a":{".":{},"f:b":{}}}"#,
            r#"{"f:a":{"f:b":{}}}"#,
            r#"{"f:l":{"k:{\"name\":\"x\"}":{},"v:1":{"f:c":{}}}}"#,
            r#"{"f:l":{"k:{\"name\":\"x\"}":{".":{},"f:d":{}}}}"#,
            r#"{"f:l":{"v:1":{}}}"#,
        ]
        .map(read);
        for (left, right) in sets.iter().flat_map(|left| sets.iter().map(move |right| (left, right))) {
            let (left_set, right_set) = (fields_v1::read(left).unwrap(), fields_v1::read(right).unwrap());
            let intersects = Owned::from_value(right).unwrap().intersects(&left_set);
            assert_eq!(intersects, !left_set.intersection(&right_set).is_empty(), "{left:?} {right:?}");
        }
    }

    #[test]
    fn only_decodable_entries_are_valid() {
        let entry = |fields: &str| {
            read(&format!(
                r#"{{"operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{fields}}}"#
            ))
        };
        let valid = entry(r#"{"f:a":{".":{},"k:{\"name\":\"x\"}":{},"v:1":{},"i:0":{}}}"#);
        assert!(is_valid(&valid));
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
            assert!(!is_valid(&entry(fields)), "{fields}");
        }
        let mut deep = valid.clone();
        let nested = (0..OWNED_DEPTH).fold(Value::object(), |inner, _| {
            let mut outer = Value::object();
            outer.set("f:a", inner);
            outer
        });
        deep.set("fieldsV1", nested);
        assert!(!is_valid(&deep));
        for (field, value) in [("operation", "Patch"), ("apiVersion", ""), ("fieldsType", "FieldsV2")] {
            let mut unsupported = valid.clone();
            unsupported.set(field, value);
            assert!(!is_valid(&unsupported), "{field}");
        }
    }
}
