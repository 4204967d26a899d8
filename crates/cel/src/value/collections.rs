//! Lists and maps: computed, or borrowed from an object.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_apimachinery::value::{Object, Value};

use super::super::types::{DeclType, ListKind, ObjectType};
use super::{Fault, Outcome, Text, Val};

/// A list.
#[derive(Clone, Debug)]
pub enum List<'v> {
    /// Computed.
    Made(Arc<Vec<Val<'v>>>),
    /// Borrowed from an object.
    Given(&'v [Value], &'v DeclType, &'v ListKind),
    /// A concatenation, and its length.
    Joined(Arc<(List<'v>, List<'v>)>, usize),
}

/// A map.
#[derive(Clone, Debug)]
pub enum Map<'v> {
    /// Computed: each entry has the original key and the value.
    Made(Arc<BTreeMap<Key<'v>, (Val<'v>, Val<'v>)>>),
    /// A map of an object, with values of one declared type.
    Given(&'v Object, &'v DeclType),
    /// An object with declared fields.
    Object(&'v Object, &'v ObjectType),
    /// An object without a declared type.
    Free(&'v Object),
}

/// A map key. Equal numbers are the same key, whatever their types.
#[derive(Clone, Debug)]
pub enum Key<'v> {
    /// Boolean.
    Bool(bool),
    /// Integer.
    Number(i128),
    /// String.
    String(Text<'v>),
}

impl Key<'_> {
    fn order(&self) -> (u8, i128, &str) {
        match self {
            Key::Bool(truth) => (0, i128::from(*truth), ""),
            Key::Number(number) => (1, *number, ""),
            Key::String(text) => (2, 0, text),
        }
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Key<'_>) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Key<'_> {}

impl PartialOrd for Key<'_> {
    fn partial_cmp(&self, other: &Key<'_>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key<'_> {
    fn cmp(&self, other: &Key<'_>) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl<'v> List<'v> {
    /// The number of items.
    pub fn len(&self) -> usize {
        match self {
            List::Made(items) => items.len(),
            List::Given(items, ..) => items.len(),
            List::Joined(_, length) => *length,
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An item.
    pub fn get(&self, index: usize) -> Option<Outcome<'v>> {
        match self {
            List::Made(items) => items.get(index).cloned().map(Ok),
            List::Given(items, shape, _) => items.get(index).map(|item| Val::given(item, shape)),
            List::Joined(lists, _) => match index.checked_sub(lists.0.len()) {
                Some(behind) => lists.1.get(behind),
                None => lists.0.get(index),
            },
        }
    }

    /// All items.
    pub fn iter(&self) -> impl Iterator<Item = Outcome<'v>> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

impl<'v> Map<'v> {
    /// The number of entries.
    pub fn len(&self) -> usize {
        match self {
            Map::Made(entries) => entries.len(),
            Map::Given(fields, _) | Map::Object(fields, _) | Map::Free(fields) => fields.len(),
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a key.
    pub fn get(&self, key: &Val<'v>) -> Result<Option<Val<'v>>, Fault> {
        match (self, key) {
            (Map::Made(entries), key) => {
                let found = key.key().and_then(|key| entries.get(&key).cloned());
                Ok(found.map(|(_, value)| value))
            }
            (_, Val::String(name)) => self.field(name).transpose(),
            _ => Err(Fault::no_overload()),
        }
    }

    /// The value of a string key. For objects with declared fields it is the escaped name.
    pub fn field(&self, name: &str) -> Option<Outcome<'v>> {
        match self {
            Map::Made(entries) => {
                let key = Key::String(Text::Owned(name.into()));
                entries.get(&key).map(|(_, value)| Ok(value.clone()))
            }
            Map::Given(fields, shape) => fields.get(name).map(|value| Val::given(value, shape)),
            Map::Object(fields, object) => {
                let property = object.field(name)?;
                let value = fields.get(&property.name).filter(|value| !value.is_null())?;
                Some(Val::given(value, &property.shape))
            }
            Map::Free(fields) => fields.get(name).map(|value| Ok(Val::free(value))),
        }
    }

    /// All keys.
    pub fn keys(&self) -> Vec<Val<'v>> {
        match self {
            Map::Made(entries) => entries.values().map(|(key, _)| key.clone()).collect(),
            Map::Given(fields, _) => fields.keys().map(|name| Val::from(name.as_str())).collect(),
            Map::Free(fields) => fields.keys().map(|name| Val::from(name.as_str())).collect(),
            Map::Object(fields, object) => {
                let known = object.fields.iter().filter(|(_, property)| fields.contains_key(&property.name));
                known.map(|(name, _)| Val::from(name.as_str())).collect()
            }
        }
    }
}
