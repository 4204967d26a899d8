//! Objects that an expression constructed.

use std::collections::BTreeMap;

use pilothouse_apimachinery::limits::FIELD_ERRORS;

use super::{Fault, List, Map, NativeError, SizeBudget, Val};
use crate::constructed_types::{JSON_PATCH, field};
use crate::types::Type;

/// A constructed object: type name and fields.
#[derive(Clone, Debug)]
pub struct ConstructedObject<'v> {
    name: &'v str,
    fields: BTreeMap<&'v str, Val<'v>>,
}

impl<'v> ConstructedObject<'v> {
    /// Constructs an object, if its type has these fields.
    pub fn new(name: &'v str, fields: BTreeMap<&'v str, Val<'v>>) -> Result<ConstructedObject<'v>, Fault> {
        for (own, value) in &fields {
            match (field(name, own), value) {
                (None, _) => return Err(Fault::error(format!("unexpected JSONPatchType field: {own}"))),
                (Some(Type::String), Val::String(_)) | (Some(Type::Dyn), _) => {}
                (Some(_), other) => {
                    let found = other.go_type();
                    let why = format!("unexpected type {found} for JSONPatchType '{own}' field");
                    return Err(Fault::error(why));
                }
            }
        }
        Ok(ConstructedObject { name, fields })
    }

    /// The name of its type.
    pub fn name(&self) -> &'v str {
        self.name
    }

    /// Its fields.
    pub fn fields(&self) -> &BTreeMap<&'v str, Val<'v>> {
        &self.fields
    }

    fn is_operation(&self) -> bool {
        self.name == JSON_PATCH
    }

    /// Whether it has no fields. A JSONPatch is never empty.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty() && !self.is_operation()
    }

    /// A field that is set. Empty strings of a JSONPatch count as unset.
    pub fn field(&self, name: &str) -> Option<Val<'v>> {
        let is_word = |value: &Val<'v>| matches!(value, Val::String(text) if text.is_empty());
        let value = self.fields.get(name).cloned()?;
        (name == "value" || !self.is_operation() || !is_word(&value)).then_some(value)
    }

    /// The value of a field, set or not.
    pub fn selected(&self, name: &str) -> Val<'v> {
        let absent = || match field(self.name, name) {
            Some(Type::String) => Val::from(""),
            _ => Val::Null,
        };
        self.field(name).unwrap_or_else(absent)
    }

    /// A message about nested objects whose type does not match their path; `None` if all do. Items of lists and maps have the
    /// path of their container.
    pub fn misplaced(&self) -> Result<Option<String>, NativeError> {
        let (mut wrong, mut room) = (Vec::new(), SizeBudget::default());
        self.find_misplaced(self.name, &mut wrong, &mut room)?;
        Ok((!wrong.is_empty()).then(|| wrong.join("\n")))
    }

    fn find_misplaced(
        &self,
        expected: &str,
        wrong: &mut Vec<String>,
        room: &mut SizeBudget,
    ) -> Result<(), NativeError> {
        if self.name != expected && wrong.len() < FIELD_ERRORS {
            wrong.push(format!(
                "unexpected type name {:?}, expected {expected:?}, which matches field name path from root Object type",
                self.name
            ));
        }
        for (name, value) in &self.fields {
            if holds_made(value) {
                find_misplaced(value, &format!("{expected}.{name}"), wrong, room)?;
            }
        }
        Ok(())
    }
}

/// Whether it may contain constructed objects. Input values never do.
fn holds_made(value: &Val<'_>) -> bool {
    matches!(value, Val::Made(_) | Val::List(List::Made(_)) | Val::Map(Map::Made(_)))
}

fn find_misplaced(
    value: &Val<'_>,
    expected: &str,
    wrong: &mut Vec<String>,
    room: &mut SizeBudget,
) -> Result<(), NativeError> {
    room.take(expected.len())?;
    let mut within = |inner: &Val<'_>| match holds_made(inner) {
        true => find_misplaced(inner, expected, wrong, room),
        false => Ok(()),
    };
    match value {
        Val::Made(made) => made.find_misplaced(expected, wrong, room),
        Val::List(List::Made(items)) => items.iter().try_for_each(within),
        Val::Map(Map::Made(entries)) => entries.values().try_for_each(|(_, value)| within(value)),
        _ => Ok(()),
    }
}
