//! Defaults that the schema table cannot express.

use pilothouse_apimachinery::features::EnabledFeatures;
use pilothouse_apimachinery::value::Value;

/// Defaults that the schema table cannot express.
#[derive(Clone, Copy, Debug)]
pub struct DefaultingRules {
    /// Sets defaults that depend on other fields. May run before or after the defaults of the schema table, and twice.
    pub default: fn(object: &mut Value),
    /// Sets defaults that depend on feature gates.
    pub default_by_feature: fn(object: &mut Value, features: EnabledFeatures),
    /// Sets defaults that the reference only sets when it decodes a stored object. They are not validated, and the next update
    /// stores them.
    pub default_stored: Option<fn(object: &mut Value)>,
}

impl DefaultingRules {
    /// No defaults.
    pub const DEFAULT: DefaultingRules =
        DefaultingRules { default: |_| {}, default_by_feature: |_, _| {}, default_stored: None };

    /// Sets defaults that the reference sets when it decodes a stored object. Returns whether that changed the object.
    pub fn apply_stored_defaults(&self, object: &mut Value) -> bool {
        let Some(default_stored) = self.default_stored else { return false };
        let before = object.clone();
        default_stored(object);
        *object != before
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;
    use pilothouse_apimachinery::value::Value;

    use crate::rules;

    #[test]
    fn stored_defaults_return_whether_they_changed_the_object() {
        let defaulting = rules("", "PersistentVolumeClaim").defaulting;
        let mut claim = object(r#"{"spec":{}}"#);
        assert!(defaulting.apply_stored_defaults(&mut claim));
        assert_eq!(claim.get_path(&["status", "phase"]), Some(&Value::from("Pending")));
        assert!(!defaulting.apply_stored_defaults(&mut claim));
        assert!(!rules("", "ConfigMap").defaulting.apply_stored_defaults(&mut object("{}")));
    }
}
