//! Objects that an expression has made.

use std::collections::BTreeMap;

use super::{Fault, List, Map, NativeError, SizeBudget, Val};
use crate::api::cel::constructed_types::{JSON_PATCH, field};
use crate::api::cel::types::Type;
use crate::api::limits::FIELD_ERRORS;

/// An object of a named type, with the fields that it was given.
#[derive(Clone, Debug)]
pub struct ConstructedObject<'v> {
    name: &'v str,
    fields: BTreeMap<&'v str, Val<'v>>,
}

impl<'v> ConstructedObject<'v> {
    /// Puts an object together, if its type can have such fields.
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

    /// The fields that it was given.
    pub fn fields(&self) -> &BTreeMap<&'v str, Val<'v>> {
        &self.fields
    }

    fn is_operation(&self) -> bool {
        self.name == JSON_PATCH
    }

    /// Whether it says nothing. An operation always says something.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty() && !self.is_operation()
    }

    /// A field that is there. The words of an operation are not there if they are empty.
    pub fn field(&self, name: &str) -> Option<Val<'v>> {
        let is_word = |value: &Val<'v>| matches!(value, Val::String(text) if text.is_empty());
        let value = self.fields.get(name).cloned()?;
        (name == "value" || !self.is_operation() || !is_word(&value)).then_some(value)
    }

    /// A field, whatever stands there.
    pub fn selected(&self, name: &str) -> Val<'v> {
        let absent = || match field(self.name, name) {
            Some(Type::String) => Val::from(""),
            _ => Val::Null,
        };
        self.field(name).unwrap_or_else(absent)
    }

    /// Which objects within it are of another type than the way to them says, all in one text; `None` if none is. What stands
    /// in lists and maps has the way of these.
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

/// Whether there may be something made in it. What was given to the expression has nothing of the kind.
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
