//! Fields that are there only while a gate is open.
//!
//! Which they are says [`rows`], a table; this is the one pass that reads it. Where a feature is off its fields are dropped before
//! anything looks at them, so their rules need not ask. An object that made use of a feature before keeps it: a gate that was
//! closed must not change what is stored. What does not fit a row (items that go as a whole, fields that go with the value of
//! another) is a function beside its kind that asks the [`EnabledFeatures`].

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
    instead: Option<&'static str>,
}

impl Gated {
    /// Fields that are dropped if the feature is disabled and the old object had none of them.
    pub const fn by(feature: Feature, fields: &'static [&'static str]) -> Gated {
        Gated { feature, fields, used_at: None, instead: None }
    }

    /// The same, but other fields tell whether the old object used the feature; an empty list means never.
    pub const fn used_at(self, fields: &'static [&'static str]) -> Gated {
        Gated { used_at: Some(fields), ..self }
    }

    /// The same, but the fields get this value instead.
    pub const fn becoming(self, word: &'static str) -> Gated {
        Gated { instead: Some(word), ..self }
    }

    fn is_used(&self, object: &Value, fields: &[&str]) -> bool {
        let says = |value: &Value| match value {
            Value::Null => false,
            Value::Array(items) => !items.is_empty(),
            Value::String(text) => self.instead != Some(text.as_str()),
            _ => true,
        };
        fields.iter().any(|path| any(object, path, &says))
    }

    fn drop_from(&self, new: &mut Value, old: Option<&Value>) {
        // Checked first, because writing copies shared parts, and fields of disabled features are rare.
        if !self.fields.iter().any(|path| any(new, path, &|value| !value.is_null())) {
            return;
        }
        if old.is_some_and(|old| self.is_used(old, self.used_at.unwrap_or(self.fields))) {
            return;
        }
        for path in self.fields {
            drop_at(new, path, self.instead);
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
fn step<'a>(word: &'a str, one: &'a mut [&'a str; 1]) -> (&'a [&'a str], bool, bool) {
    let (word, emptied) = word.strip_suffix('?').map_or((word, false), |word| (word, true));
    match word {
        "containers*" => (&CONTAINERS, true, emptied),
        "statuses*" => (&STATUSES, true, emptied),
        _ => {
            let (name, listed) = word.strip_suffix("[]").map_or((word, false), |name| (name, true));
            *one = [name];
            (one, listed, emptied)
        }
    }
}

/// Whether a value at the path satisfies a condition.
fn any(value: &Value, path: &str, found: &dyn Fn(&Value) -> bool) -> bool {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let mut one = [""];
    let (names, listed, _) = step(first, &mut one);
    let below = |value: &Value| rest.map_or_else(|| found(value), |rest| any(value, rest, found));
    names.iter().filter_map(|name| value.get(name)).any(|value| match listed {
        true => value.items().iter().any(below),
        false => below(value),
    })
}

/// Drops the values at the path.
fn drop_at(value: &mut Value, path: &str, instead: Option<&str>) {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let mut one = [""];
    let (names, listed, goes_empty) = step(first, &mut one);
    for name in names {
        let Some(rest) = rest else {
            match instead {
                Some(word) if value.get(name).is_some() => value.set(name, word),
                Some(_) => {}
                None => drop(value.remove(name)),
            }
            continue;
        };
        let Some(inner) = value.get_mut(name) else { continue };
        match (listed, &mut *inner) {
            (true, Value::Array(items)) => items.iter_mut().for_each(|item| drop_at(item, rest, instead)),
            (true, _) => {}
            (false, Value::Null) => {}
            (false, inner) => drop_at(inner, rest, instead),
        }
        if goes_empty && inner.fields().is_some_and(|fields| fields.is_empty()) {
            value.remove(name);
        }
    }
}

#[cfg(test)]
mod tests;
