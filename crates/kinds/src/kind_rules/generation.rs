//! When `metadata.generation` is increased.

use pilothouse_apimachinery::field_value::same;
use pilothouse_apimachinery::value::Value;

/// When `metadata.generation` is increased.
#[derive(Clone, Copy, Debug)]
pub struct Generation {
    /// Whether a new object has generation 1.
    pub starts: bool,
    /// The fields whose change increases it.
    pub increased_by: &'static [&'static [&'static str]],
    /// Whether an empty list in the request counts as a change each time, because it is never stored.
    pub counts_empty_lists: bool,
    /// Whether fields of disabled features count as a change, although they are dropped.
    pub counts_dropped_fields: bool,
}

impl Generation {
    /// Never set.
    pub const NONE: Generation = Generation {
        starts: false,
        increased_by: &[],
        counts_empty_lists: false,
        counts_dropped_fields: false,
    };
    /// 1, and never increased.
    pub const FIRST: Generation = Generation { starts: true, ..Generation::NONE };
    /// 1, and increased when the spec changes.
    pub const SPEC: Generation = Generation { increased_by: &[&["spec"]], ..Generation::FIRST };

    /// Whether a field has changed that increases the generation.
    pub(crate) fn has_change(self, new: &Value, old: &Value) -> bool {
        let is_changed = |path: &&[&str]| {
            let (value, old_value) = (non_empty(new, path), non_empty(old, path));
            !same(value, old_value) || (self.counts_empty_lists && value.is_some_and(has_empty_list))
        };
        self.increased_by.iter().any(is_changed)
    }
}

/// The field at this path; `None` also if it is an empty object. The reference cannot tell an empty spec from an absent one.
fn non_empty<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    object.get_path(path).filter(|value| !value.fields().is_some_and(|fields| fields.is_empty()))
}

/// Whether it contains an empty list.
fn has_empty_list(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty() || items.iter().any(has_empty_list),
        Value::Object(fields) => fields.values().any(has_empty_list),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn empty_list_counts_as_change_where_configured() {
        let counts = Generation { counts_empty_lists: true, ..Generation::SPEC };
        let (without_list, empty) = (object(r#"{"spec":{"a":{}}}"#), object(r#"{"spec":{"a":{"b":[]}}}"#));
        assert!(counts.has_change(&empty, &without_list) && !counts.has_change(&without_list, &empty));
        assert!(!Generation::SPEC.has_change(&empty, &without_list));
        assert!(Generation::SPEC.has_change(&without_list, &object("{}")));
        assert!(!Generation::SPEC.has_change(&object(r#"{"spec":{}}"#), &object("{}")));
    }
}
