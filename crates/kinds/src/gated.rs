//! Fields of feature gates.
//!
//! [`rows`] lists them by kind, and this module applies the lists. The fields of disabled features are dropped before
//! validation, so that their rules need not check the gate. An object that used a feature before keeps it: disabling a gate
//! must not change what is stored. What does not fit a row (items that are dropped as a whole, fields that depend on the value
//! of another) is a function of its kind that checks the [`EnabledFeatures`].

pub(super) mod rows;

use pilothouse_apimachinery::features::{EnabledFeatures, Feature};
use pilothouse_apimachinery::value::Value;

/// The container lists of a PodSpec, and those of a PodStatus.
const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];
const STATUSES: [&str; 3] = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];

/// Fields that are dropped together if their feature is disabled.
///
/// Paths are field names separated by dots. `[]` after a name stands for each item of a list; `?` means that the field is
/// dropped, too, if it becomes empty; `containers*` and `statuses*` stand for each item of all container lists and container
/// status lists.
#[derive(Clone, Copy, Debug)]
pub struct Gated {
    feature: Feature,
    fields: &'static [&'static str],
    /// The fields that tell whether the old object used the feature; by default the gated fields themselves.
    used_at: Option<&'static [&'static str]>,
    /// The value that the fields get instead of being removed.
    replacement: Option<&'static str>,
}

impl Gated {
    /// Fields that are dropped if the feature is disabled and the old object had none of them.
    pub const fn new(feature: Feature, fields: &'static [&'static str]) -> Gated {
        Gated { feature, fields, used_at: None, replacement: None }
    }

    /// The same, but other fields tell whether the old object used the feature; an empty list means never.
    pub const fn used_at(self, fields: &'static [&'static str]) -> Gated {
        Gated { used_at: Some(fields), ..self }
    }

    /// The same, but the fields get this value instead.
    pub const fn replaced_with(self, value: &'static str) -> Gated {
        Gated { replacement: Some(value), ..self }
    }

    fn is_used(&self, object: &Value, fields: &[&str]) -> bool {
        let is_used = |value: &Value| match value {
            Value::Null => false,
            Value::Array(items) => !items.is_empty(),
            Value::String(text) => self.replacement != Some(text.as_str()),
            _ => true,
        };
        fields.iter().any(|path| any_at(object, path, &is_used))
    }

    fn drop_from(&self, new: &mut Value, old: Option<&Value>) {
        // Checked first, because writing copies shared parts, and fields of disabled features are rare.
        if !self.fields.iter().any(|path| any_at(new, path, &|value| !value.is_null())) {
            return;
        }
        if old.is_some_and(|old| self.is_used(old, self.used_at.unwrap_or(self.fields))) {
            return;
        }
        for path in self.fields {
            drop_at(new, path, self.replacement);
        }
    }
}

/// Drops the fields of disabled features from a new or updated object, unless the old object used the feature.
pub fn drop_disabled(rows: &[Gated], features: EnabledFeatures, new: &mut Value, old: Option<&Value>) {
    for row in rows.iter().filter(|row| !features.has(row.feature)) {
        row.drop_from(new, old);
    }
}

/// Parses a path element: the field names, whether they are lists, and whether they are dropped when empty.
fn parse_element<'a>(element: &'a str, buffer: &'a mut [&'a str; 1]) -> (&'a [&'a str], bool, bool) {
    let (element, drop_empty) = element.strip_suffix('?').map_or((element, false), |element| (element, true));
    match element {
        "containers*" => (&CONTAINERS, true, drop_empty),
        "statuses*" => (&STATUSES, true, drop_empty),
        _ => {
            let (name, is_list) = element.strip_suffix("[]").map_or((element, false), |name| (name, true));
            *buffer = [name];
            (buffer, is_list, drop_empty)
        }
    }
}

/// Whether a value at the path satisfies a condition.
fn any_at(value: &Value, path: &str, condition: &dyn Fn(&Value) -> bool) -> bool {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let mut buffer = [""];
    let (names, is_list, _) = parse_element(first, &mut buffer);
    let check_value =
        |value: &Value| rest.map_or_else(|| condition(value), |rest| any_at(value, rest, condition));
    names.iter().filter_map(|name| value.get(name)).any(|value| match is_list {
        true => value.items().iter().any(check_value),
        false => check_value(value),
    })
}

/// Drops the values at the path.
fn drop_at(value: &mut Value, path: &str, replacement: Option<&str>) {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let mut buffer = [""];
    let (names, is_list, drop_empty) = parse_element(first, &mut buffer);
    for name in names {
        let Some(rest) = rest else {
            match replacement {
                Some(text) if value.get(name).is_some() => value.set(name, text),
                Some(_) => {}
                None => drop(value.remove(name)),
            }
            continue;
        };
        let Some(inner) = value.get_mut(name) else { continue };
        match (is_list, &mut *inner) {
            (true, Value::Array(items)) => items.iter_mut().for_each(|item| drop_at(item, rest, replacement)),
            (true, _) => {}
            (false, Value::Null) => {}
            (false, inner) => drop_at(inner, rest, replacement),
        }
        if drop_empty && inner.fields().is_some_and(|fields| fields.is_empty()) {
            value.remove(name);
        }
    }
}

#[cfg(test)]
mod tests;
