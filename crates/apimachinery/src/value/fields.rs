//! A map of fields, sorted by key, that is small if it has few fields.
//!
//! Most objects have a handful of fields. A node of a tree has space for eleven: a body of many objects with one field each would
//! take eighty times its size. So few fields are a sorted list, and only many are a tree, where every change is logarithmic.

use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::{slice, vec};

use super::Value;

/// The most fields of a sorted list. An insertion moves the others, which up to this number costs less than the search of a tree.
const MAX_LISTED: usize = 32;

/// The fields of an object, by key. Code that sets many fields is faster on this type than on an [`super::Object`], which checks
/// for sharing each time.
#[derive(Clone)]
pub struct Fields(Form);

#[derive(Clone)]
enum Form {
    /// Sorted, at most [`MAX_LISTED`].
    List(Vec<(String, Value)>),
    /// More than that, or fewer after some were removed. Boxed, so that the list takes no more for it.
    #[expect(clippy::box_collection, reason = "it decides the size of every value")]
    Tree(Box<BTreeMap<String, Value>>),
}

/// The place of a field, or the one where it would be.
fn position(list: &[(String, Value)], key: &str) -> Result<usize, usize> {
    list.binary_search_by(|(name, _)| name.as_str().cmp(key))
}

/// The place of a field. One after the other, because keys of different lengths are told apart without a look at their letters:
/// encoding asks for every field of a type, and most are absent.
fn find(list: &[(String, Value)], key: &str) -> Option<usize> {
    list.iter().position(|(name, _)| name == key)
}

impl Fields {
    /// No fields.
    pub const fn new() -> Fields {
        Fields(Form::List(Vec::new()))
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::List(list) => list.len(),
            Form::Tree(tree) => tree.len(),
        }
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a field.
    pub fn get(&self, key: &str) -> Option<&Value> {
        match &self.0 {
            Form::List(list) => find(list, key).and_then(|index| list.get(index)).map(|(_, value)| value),
            Form::Tree(tree) => tree.get(key),
        }
    }

    /// The value of a field, to change it.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        match &mut self.0 {
            Form::List(list) => find(list, key).and_then(|index| list.get_mut(index)).map(|(_, value)| value),
            Form::Tree(tree) => tree.get_mut(key),
        }
    }

    /// Whether the field exists.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The field with the least key.
    pub fn first_key_value(&self) -> Option<(&String, &Value)> {
        self.iter().next()
    }

    /// Sets a field. Returns its previous value.
    pub fn insert(&mut self, key: String, value: Value) -> Option<Value> {
        let (key, value) = match &mut self.0 {
            Form::List(list) => match position(list, &key) {
                Ok(index) => return list.get_mut(index).map(|(_, old)| std::mem::replace(old, value)),
                Err(index) if list.len() < MAX_LISTED => {
                    list.insert(index, (key, value));
                    return None;
                }
                Err(_) => (key, value),
            },
            Form::Tree(tree) => return tree.insert(key, value),
        };
        self.tree().insert(key, value)
    }

    /// Removes a field.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        match &mut self.0 {
            Form::List(list) => position(list, key).ok().map(|index| list.remove(index).1),
            Form::Tree(tree) => tree.remove(key),
        }
    }

    /// The field `key`, present or not.
    pub fn entry(&mut self, key: String) -> FieldEntry<'_> {
        FieldEntry { fields: self, key }
    }

    /// Removes all fields.
    pub fn clear(&mut self) {
        *self = Fields::new();
    }

    /// Keeps the fields that `keep` accepts.
    pub fn retain(&mut self, mut keep: impl FnMut(&String, &mut Value) -> bool) {
        match &mut self.0 {
            Form::List(list) => list.retain_mut(|(key, value)| keep(key, value)),
            Form::Tree(tree) => tree.retain(keep),
        }
    }

    /// The fields, sorted by key.
    pub fn iter(&self) -> Iter<'_> {
        match &self.0 {
            Form::List(list) => Iter::List(list.iter()),
            Form::Tree(tree) => Iter::Tree(tree.iter()),
        }
    }

    /// The fields, to change their values.
    pub fn iter_mut(&mut self) -> IterMut<'_> {
        match &mut self.0 {
            Form::List(list) => IterMut::List(list.iter_mut()),
            Form::Tree(tree) => IterMut::Tree(tree.iter_mut()),
        }
    }

    /// The keys, sorted.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &String> + Clone {
        self.iter().map(|(key, _)| key)
    }

    /// The values, by the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &Value> + Clone {
        self.iter().map(|(_, value)| value)
    }

    /// The values, to change them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.iter_mut().map(|(_, value)| value)
    }

    /// The values themselves, by the order of their keys.
    pub fn into_values(self) -> impl Iterator<Item = Value> {
        self.into_iter().map(|(_, value)| value)
    }

    /// Releases unused capacity if it is at least half: less is not worth a copy, and the allocator would not reuse it.
    pub(super) fn shrink(&mut self) {
        if let Form::List(list) = &mut self.0
            && list.len() * 2 <= list.capacity()
        {
            list.shrink_to_fit();
        }
    }

    /// The fields as a tree, converted from a list if necessary.
    fn tree(&mut self) -> &mut BTreeMap<String, Value> {
        if let Form::List(list) = &mut self.0 {
            self.0 = Form::Tree(Box::new(std::mem::take(list).into_iter().collect()));
        }
        match &mut self.0 {
            Form::Tree(tree) => tree,
            Form::List(_) => unreachable!("made a tree just above"),
        }
    }
}

/// A field that may be absent.
pub struct FieldEntry<'f> {
    fields: &'f mut Fields,
    key: String,
}

impl<'f> FieldEntry<'f> {
    /// The value, null if the field was absent.
    pub fn or_default(self) -> &'f mut Value {
        self.or_insert_with(Value::default)
    }

    /// The value, `value` if the field was absent.
    pub fn or_insert(self, value: Value) -> &'f mut Value {
        self.or_insert_with(|| value)
    }

    /// The value, made by `value` if the field was absent.
    pub fn or_insert_with(self, value: impl FnOnce() -> Value) -> &'f mut Value {
        let FieldEntry { fields, key } = self;
        let position = match &fields.0 {
            Form::List(list) => {
                Some(position(list, &key)).filter(|position| position.is_ok() || list.len() < MAX_LISTED)
            }
            Form::Tree(_) => None,
        };
        let Some(position) = position else { return fields.tree().entry(key).or_insert_with(value) };
        let Form::List(list) = &mut fields.0 else { unreachable!("only a list has positions") };
        let index = position.unwrap_or_else(|index| {
            list.insert(index, (key, value()));
            index
        });
        &mut list[index].1
    }
}

impl Default for Fields {
    fn default() -> Fields {
        Fields::new()
    }
}

impl PartialEq for Fields {
    fn eq(&self, other: &Fields) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl From<BTreeMap<String, Value>> for Fields {
    fn from(tree: BTreeMap<String, Value>) -> Fields {
        if tree.len() > MAX_LISTED {
            return Fields(Form::Tree(Box::new(tree)));
        }
        Fields(Form::List(tree.into_iter().collect()))
    }
}

impl Extend<(String, Value)> for Fields {
    fn extend<I: IntoIterator<Item = (String, Value)>>(&mut self, fields: I) {
        for (key, value) in fields {
            self.insert(key, value);
        }
    }
}

impl FromIterator<(String, Value)> for Fields {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(fields: I) -> Fields {
        let mut all = Fields::new();
        all.extend(fields);
        all
    }
}

/// The fields by reference.
#[derive(Clone, Debug)]
pub enum Iter<'f> {
    /// The fields of a list.
    List(slice::Iter<'f, (String, Value)>),
    /// The fields of a tree.
    Tree(btree_map::Iter<'f, String, Value>),
}

impl<'f> Iterator for Iter<'f> {
    type Item = (&'f String, &'f Value);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Iter::List(list) => list.next().map(|(key, value)| (key, value)),
            Iter::Tree(tree) => tree.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Iter::List(list) => list.size_hint(),
            Iter::Tree(tree) => tree.size_hint(),
        }
    }
}

impl DoubleEndedIterator for Iter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        match self {
            Iter::List(list) => list.next_back().map(|(key, value)| (key, value)),
            Iter::Tree(tree) => tree.next_back(),
        }
    }
}

impl ExactSizeIterator for Iter<'_> {}

/// The fields by reference, to change their values.
pub enum IterMut<'f> {
    /// The fields of a list.
    List(slice::IterMut<'f, (String, Value)>),
    /// The fields of a tree.
    Tree(btree_map::IterMut<'f, String, Value>),
}

impl<'f> Iterator for IterMut<'f> {
    type Item = (&'f String, &'f mut Value);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            IterMut::List(list) => list.next().map(|(key, value)| (&*key, value)),
            IterMut::Tree(tree) => tree.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            IterMut::List(list) => list.size_hint(),
            IterMut::Tree(tree) => tree.size_hint(),
        }
    }
}

/// The fields themselves.
pub enum IntoIter {
    /// The fields of a list.
    List(vec::IntoIter<(String, Value)>),
    /// The fields of a tree.
    Tree(btree_map::IntoIter<String, Value>),
}

impl Iterator for IntoIter {
    type Item = (String, Value);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            IntoIter::List(list) => list.next(),
            IntoIter::Tree(tree) => tree.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            IntoIter::List(list) => list.size_hint(),
            IntoIter::Tree(tree) => tree.size_hint(),
        }
    }
}

impl IntoIterator for Fields {
    type Item = (String, Value);
    type IntoIter = IntoIter;

    fn into_iter(self) -> IntoIter {
        match self.0 {
            Form::List(list) => IntoIter::List(list.into_iter()),
            Form::Tree(tree) => IntoIter::Tree(tree.into_iter()),
        }
    }
}

impl<'f> IntoIterator for &'f Fields {
    type Item = (&'f String, &'f Value);
    type IntoIter = Iter<'f>;

    fn into_iter(self) -> Iter<'f> {
        self.iter()
    }
}

impl<'f> IntoIterator for &'f mut Fields {
    type Item = (&'f String, &'f mut Value);
    type IntoIter = IterMut<'f>;

    fn into_iter(self) -> IterMut<'f> {
        self.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One change of a map.
    #[derive(Clone, Debug)]
    enum Change {
        Insert(u8, i64),
        Entry(u8),
        Remove(u8),
        Retain(u8),
        Clear,
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            12 => (any::<u8>(), any::<i64>()).prop_map(|(key, number)| Change::Insert(key, number)),
            4 => any::<u8>().prop_map(Change::Entry),
            3 => any::<u8>().prop_map(Change::Remove),
            1 => any::<u8>().prop_map(Change::Retain),
            1 => Just(Change::Clear),
        ]
    }

    proptest! {
        /// As a list and as a tree, the fields equal those of a map of the standard library.
        #[test]
        fn fields_behave_as_a_sorted_map(changes in proptest::collection::vec(change(), 0..200)) {
            let (mut fields, mut model) = (Fields::new(), BTreeMap::new());
            for change in changes {
                match change {
                    Change::Insert(key, number) => prop_assert_eq!(
                        fields.insert(key.to_string(), Value::Int(number)),
                        model.insert(key.to_string(), Value::Int(number))
                    ),
                    Change::Entry(key) => prop_assert_eq!(
                        fields.entry(key.to_string()).or_default(),
                        model.entry(key.to_string()).or_default()
                    ),
                    Change::Remove(key) => {
                        prop_assert_eq!(fields.remove(&key.to_string()), model.remove(&key.to_string()));
                    }
                    Change::Retain(least) => {
                        let keep = |key: &String| key.parse::<u8>().unwrap() >= least;
                        fields.retain(|key, _| keep(key));
                        model.retain(|key, _| keep(key));
                    }
                    Change::Clear => {
                        fields.clear();
                        model.clear();
                    }
                }
                prop_assert_eq!(fields.len(), model.len());
            }
            prop_assert!(fields.iter().eq(model.iter()));
            prop_assert!(fields.iter().rev().eq(model.iter().rev()));
            prop_assert!(fields.iter_mut().eq(model.iter_mut()));
            for key in 0..=u8::MAX {
                let key = key.to_string();
                prop_assert_eq!(fields.get(&key), model.get(&key));
                prop_assert_eq!(fields.get_mut(&key), model.get_mut(&key));
                prop_assert_eq!(fields.contains_key(&key), model.contains_key(&key));
            }
            prop_assert_eq!(&fields, &Fields::from(model.clone()), "list and tree are equal");
            prop_assert_eq!(fields.first_key_value(), model.first_key_value());
            prop_assert!(fields.into_iter().eq(model));
        }
    }
}
