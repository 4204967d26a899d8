//! Preparation of writes, before validation.

use pilothouse_apimachinery::value::Value;

use crate::WriteContext;

/// The fields that a write of the object sets or keeps.
#[derive(Clone, Copy, Debug)]
pub struct PreparationRules {
    /// PrepareForCreate: runs after the system fields were set.
    pub prepare_create: fn(object: &mut Value, context: &WriteContext<'_>),
    /// PrepareForUpdate: copies fields from the old object that an update must not change.
    pub prepare_update: fn(new: &mut Value, old: &Value, context: &WriteContext<'_>),
}

impl PreparationRules {
    /// Writes are stored as they are.
    pub const DEFAULT: PreparationRules =
        PreparationRules { prepare_create: |_, _| {}, prepare_update: |_, _, _| {} };
}
