//! The fields of an object, shared between copies until one of them is changed.
//!
//! Most writes work on a copy of the stored object and change little of it. So a copy is free until it is written to, and then
//! costs only the path to the change; parts that two copies share compare equal by pointer.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::Value;
use super::fields::{Fields, IntoIter, Iter, IterMut};

static EMPTY: Fields = Fields::new();

/// The fields of an object or the entries of a map, by key.
#[derive(Clone, Default)]
pub struct Object(Option<Arc<Fields>>);

impl Object {
    /// An object without fields.
    pub const fn new() -> Object {
        Object(None)
    }

    /// Whether both are unchanged copies of one object: then they are equal.
    pub fn is_shared_with(&self, other: &Object) -> bool {
        match (&self.0, &other.0) {
            (Some(left), Some(right)) => Arc::ptr_eq(left, right),
            (left, right) => left.is_none() && right.is_none(),
        }
    }

    /// The fields themselves, copied if others share them.
    pub fn into_fields(self) -> Fields {
        self.0.map(Arc::unwrap_or_clone).unwrap_or_default()
    }
}

impl Deref for Object {
    type Target = Fields;

    fn deref(&self) -> &Fields {
        self.0.as_deref().unwrap_or(&EMPTY)
    }
}

/// Write access copies the fields first, if another copy shares them.
impl DerefMut for Object {
    fn deref_mut(&mut self) -> &mut Fields {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Object) -> bool {
        self.is_shared_with(other) || **self == **other
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl From<Fields> for Object {
    fn from(mut fields: Fields) -> Object {
        fields.shrink();
        Object((!fields.is_empty()).then(|| Arc::new(fields)))
    }
}

impl<const N: usize> From<[(String, Value); N]> for Object {
    fn from(fields: [(String, Value); N]) -> Object {
        fields.into_iter().collect()
    }
}

impl FromIterator<(String, Value)> for Object {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(fields: I) -> Object {
        fields.into_iter().collect::<Fields>().into()
    }
}

impl IntoIterator for Object {
    type Item = (String, Value);
    type IntoIter = IntoIter;

    fn into_iter(self) -> IntoIter {
        self.into_fields().into_iter()
    }
}

impl<'a> IntoIterator for &'a Object {
    type Item = (&'a String, &'a Value);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Object {
    type Item = (&'a String, &'a mut Value);
    type IntoIter = IterMut<'a>;

    fn into_iter(self) -> IterMut<'a> {
        self.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(fields: &[(&str, i64)]) -> Object {
        fields.iter().map(|(key, number)| ((*key).to_owned(), Value::Int(*number))).collect()
    }

    #[test]
    fn changed_copy_leaves_the_original_unchanged() {
        let mut outer = Value::object();
        outer.set("inner", object(&[("a", 1)]));
        outer.set("other", object(&[("b", 2)]));
        let before = outer.clone();
        assert!(before.fields().unwrap().is_shared_with(outer.fields().unwrap()));
        outer.entry("inner").set("a", 7);
        assert_eq!(before.get_path(&["inner", "a"]), Some(&Value::Int(1)));
        assert_eq!(outer.get_path(&["inner", "a"]), Some(&Value::Int(7)));
        assert_ne!(outer, before);
        outer.entry("inner").set("a", 1);
        assert_eq!(outer, before);
        let shared = |field: &str| {
            let [left, right] =
                [&outer, &before].map(|value| value.get(field).and_then(Value::fields).unwrap());
            left.is_shared_with(right)
        };
        assert!(shared("other") && !shared("inner"));
    }

    #[test]
    fn objects_are_equal_by_content() {
        let mut emptied = object(&[("a", 1)]);
        emptied.remove("a");
        assert_eq!(emptied, Object::new());
        assert_eq!(object(&[]), Object::new());
        assert_ne!(object(&[("a", 1)]), Object::new());
        assert_eq!(object(&[("a", 1), ("b", 2)]), object(&[("b", 2), ("a", 1)]));
        assert_ne!(object(&[("a", 1)]), object(&[("a", 2)]));
    }

    #[test]
    fn shared_fields_are_copied_when_consumed() {
        let original = object(&[("a", 1), ("b", 2)]);
        let copy = original.clone();
        let keys: Vec<String> = original.into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["a", "b"]);
        assert_eq!(copy, object(&[("a", 1), ("b", 2)]));
    }
}
