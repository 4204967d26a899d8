//! Lists and maps: computed, or borrowed from an object.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_apimachinery::value::{Object, Value};

use super::{Fault, Outcome, Text, Val};
use crate::types::{DeclType, ListKind, ObjectType};

/// A list.
#[derive(Clone, Debug)]
pub enum List<'v> {
    /// Computed.
    Computed(Arc<Vec<Val<'v>>>),
    /// Borrowed from an object.
    Borrowed(&'v [Value], &'v DeclType, &'v ListKind),
    /// A concatenation, and its length.
    Concatenated(Arc<(List<'v>, List<'v>)>, usize),
}

/// A map.
#[derive(Clone, Debug)]
pub enum Map<'v> {
    /// Computed: each entry has the original key and the value.
    Computed(Arc<BTreeMap<Key<'v>, (Val<'v>, Val<'v>)>>),
    /// A map of an object, with values of one declared type.
    Typed(&'v Object, &'v DeclType),
    /// An object with declared fields.
    Object(&'v Object, &'v ObjectType),
    /// An object without a declared type.
    Untyped(&'v Object),
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
            Key::Bool(boolean) => (0, i128::from(*boolean), ""),
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
            List::Computed(items) => items.len(),
            List::Borrowed(items, ..) => items.len(),
            List::Concatenated(_, length) => *length,
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An item.
    pub fn get(&self, index: usize) -> Option<Outcome<'v>> {
        match self {
            List::Computed(items) => items.get(index).cloned().map(Ok),
            List::Borrowed(items, decl_type, _) => items.get(index).map(|item| Val::typed(item, decl_type)),
            List::Concatenated(lists, _) => match index.checked_sub(lists.0.len()) {
                Some(rest) => lists.1.get(rest),
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
            Map::Computed(entries) => entries.len(),
            Map::Typed(fields, _) | Map::Object(fields, _) | Map::Untyped(fields) => fields.len(),
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a key.
    pub fn get(&self, key: &Val<'v>) -> Result<Option<Val<'v>>, Fault> {
        match (self, key) {
            (Map::Computed(entries), key) => {
                let entry = key.key().and_then(|key| entries.get(&key).cloned());
                Ok(entry.map(|(_, value)| value))
            }
            (_, Val::String(name)) => self.field(name).transpose(),
            _ => Err(Fault::no_overload()),
        }
    }

    /// The value of a string key. For objects with declared fields it is the escaped name.
    pub fn field(&self, name: &str) -> Option<Outcome<'v>> {
        match self {
            Map::Computed(entries) => {
                let key = Key::String(Text::Owned(name.into()));
                entries.get(&key).map(|(_, value)| Ok(value.clone()))
            }
            Map::Typed(fields, decl_type) => fields.get(name).map(|value| Val::typed(value, decl_type)),
            Map::Object(fields, object) => {
                let property = object.field(name)?;
                let value = fields.get(&property.name).filter(|value| !value.is_null())?;
                Some(Val::typed(value, &property.decl_type))
            }
            Map::Untyped(fields) => fields.get(name).map(|value| Ok(Val::untyped(value))),
        }
    }

    /// All keys.
    pub fn keys(&self) -> Vec<Val<'v>> {
        match self {
            Map::Computed(entries) => entries.values().map(|(key, _)| key.clone()).collect(),
            Map::Typed(fields, _) => fields.keys().map(|name| Val::from(name.as_str())).collect(),
            Map::Untyped(fields) => fields.keys().map(|name| Val::from(name.as_str())).collect(),
            Map::Object(fields, object) => {
                let present =
                    object.fields.iter().filter(|(_, property)| fields.contains_key(&property.name));
                present.map(|(name, _)| Val::from(name.as_str())).collect()
            }
        }
    }
}
