//! Warnings about writes of an object.

use pilothouse_apimachinery::error_list::WarningList;
use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::value::Value;

/// Warnings about creates and updates.
#[derive(Clone, Copy, Debug)]
pub struct WarningRules {
    /// Warnings about an accepted object: deprecated or dubious fields. Updates also get the old object.
    pub warn: fn(new: &Value, old: Option<&Value>, warnings: &mut WarningList),
    /// Warnings about a new object even if it is refused.
    pub warn_early: fn(object: &Value, warnings: &mut WarningList),
}

impl WarningRules {
    /// No warnings.
    pub const DEFAULT: WarningRules = WarningRules { warn: |_, _, _| {}, warn_early: |_, _| {} };

    /// Warnings about a new object, accepted or not.
    pub fn early_warnings(&self, object: &Value) -> WarningList {
        let mut warnings = WarningList::new();
        (self.warn_early)(object, &mut warnings);
        warnings
    }

    /// Warnings about an accepted object.
    pub(crate) fn accepted_warnings(
        &self,
        new: &Value,
        old: Option<&Value>,
        features: EnabledFeatures,
    ) -> WarningList {
        let mut warnings = WarningList::with_features(features);
        (self.warn)(new, old, &mut warnings);
        warnings
    }
}
