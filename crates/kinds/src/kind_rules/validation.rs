//! Validation of creates and updates.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::value::Value;

/// The validation of creates and updates, except for the metadata.
#[derive(Clone, Copy, Debug)]
pub struct ValidationRules {
    /// Validates a new object.
    pub validate: fn(object: &Value, errors: &mut ErrorList),
    /// How often an update runs `validate`.
    pub revalidation: Revalidation,
    /// Validates an update. Need not repeat `validate` where [`Self::revalidation`] does.
    pub validate_update: fn(new: &Value, old: &Value, errors: &mut ErrorList),
}

/// How often an update runs the create validation before the update validation. Errors that are found twice are two causes in
/// the Status, so clients see the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revalidation {
    /// Not at all: the update validation calls what it needs.
    No,
    /// Once.
    Once,
    /// Twice: both validations of the reference include it.
    Twice,
}

impl ValidationRules {
    /// Nothing is validated.
    pub const DEFAULT: ValidationRules = ValidationRules {
        validate: |_, _| {},
        revalidation: Revalidation::No,
        validate_update: |_, _, _| {},
    };

    /// Validates an update, and as a new object where the kind repeats that.
    pub(crate) fn check_update(&self, new: &Value, old: &Value, errors: &mut ErrorList) {
        let times = match self.revalidation {
            Revalidation::No => 0,
            Revalidation::Once => 1,
            Revalidation::Twice => 2,
        };
        for _ in 0..times {
            (self.validate)(new, errors);
        }
        (self.validate_update)(new, old, errors);
    }
}
