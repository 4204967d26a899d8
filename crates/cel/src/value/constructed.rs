//! Objects that an expression constructed.

use std::collections::BTreeMap;

use pilothouse_apimachinery::limits::FIELD_ERRORS;

use super::{Fault, List, Map, NativeError, SizeBudget, Val};
use crate::constructed_types::{JSON_PATCH, field_type};
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
        for (field, value) in &fields {
            match (field_type(name, field), value) {
                (None, _) => return Err(Fault::error(format!("unexpected JSONPatchType field: {field}"))),
                (Some(Type::String), Val::String(_)) | (Some(Type::Dyn), _) => {}
                (Some(_), other) => {
                    let actual = other.go_type();
                    let message = format!("unexpected type {actual} for JSONPatchType '{field}' field");
                    return Err(Fault::error(message));
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
        let is_empty_text = |value: &Val<'v>| matches!(value, Val::String(text) if text.is_empty());
        let value = self.fields.get(name).cloned()?;
        (name == "value" || !self.is_operation() || !is_empty_text(&value)).then_some(value)
    }

    /// The value of a field, set or not.
    pub fn select(&self, name: &str) -> Val<'v> {
        let default = || match field_type(self.name, name) {
            Some(Type::String) => Val::from(""),
            _ => Val::Null,
        };
        self.field(name).unwrap_or_else(default)
    }

    /// A message about nested objects whose type does not match their path; `None` if all do. Items of lists and maps have the
    /// path of their container.
    pub fn type_path_errors(&self) -> Result<Option<String>, NativeError> {
        let (mut errors, mut budget) = (Vec::new(), SizeBudget::default());
        self.find_type_path_errors(self.name, &mut errors, &mut budget)?;
        Ok((!errors.is_empty()).then(|| errors.join("\n")))
    }

    fn find_type_path_errors(
        &self,
        expected: &str,
        errors: &mut Vec<String>,
        budget: &mut SizeBudget,
    ) -> Result<(), NativeError> {
        if self.name != expected && errors.len() < FIELD_ERRORS {
            errors.push(format!(
                "unexpected type name {:?}, expected {expected:?}, which matches field name path from root Object type",
                self.name
            ));
        }
        for (name, value) in &self.fields {
            if may_contain_objects(value) {
                find_type_path_errors(value, &format!("{expected}.{name}"), errors, budget)?;
            }
        }
        Ok(())
    }
}

/// Whether it may contain constructed objects. Input values never do.
fn may_contain_objects(value: &Val<'_>) -> bool {
    matches!(value, Val::Constructed(_) | Val::List(List::Computed(_)) | Val::Map(Map::Computed(_)))
}

fn find_type_path_errors(
    value: &Val<'_>,
    expected: &str,
    errors: &mut Vec<String>,
    budget: &mut SizeBudget,
) -> Result<(), NativeError> {
    budget.take(expected.len())?;
    let mut check_inner = |inner: &Val<'_>| match may_contain_objects(inner) {
        true => find_type_path_errors(inner, expected, errors, budget),
        false => Ok(()),
    };
    match value {
        Val::Constructed(object) => object.find_type_path_errors(expected, errors, budget),
        Val::List(List::Computed(items)) => items.iter().try_for_each(check_inner),
        Val::Map(Map::Computed(entries)) => entries.values().try_for_each(|(_, value)| check_inner(value)),
        _ => Ok(()),
    }
}
