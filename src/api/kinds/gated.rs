//! Fields that are there only while a gate is open.
//!
//! Which they are says [`rows`], a table; this is the one pass that reads it. Where a feature is off its fields are dropped before
//! anything looks at them, so their rules need not ask. An object that made use of a feature before keeps it: a gate that was
//! closed must not change what is stored. What does not fit a row (items that go as a whole, fields that go with the value of
//! another) is a function beside its kind that asks the [`EnabledFeatures`].

pub(super) mod rows;

use super::{EnabledFeatures, Feature};
use crate::api::value::Value;

/// The lists of a pod that hold containers, and those of its status that tell of them.
const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];
const STATUSES: [&str; 3] = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];

/// Fields that go together when their feature is off.
///
/// Paths are names of fields with dots between them. `[]` after a name means each item of a list; `?` means that the field goes,
/// too, if dropping leaves nothing in it; `containers*` and `statuses*` are each item of each list of those.
#[derive(Clone, Copy, Debug)]
pub struct Gated {
    feature: Feature,
    fields: &'static [&'static str],
    /// Where an object that has something made use of the feature; the fields themselves if nothing else is said.
    used_at: Option<&'static [&'static str]>,
    /// What the fields become instead of absent, for those that cannot be absent again.
    instead: Option<&'static str>,
}

impl Gated {
    /// Fields that go where neither the feature is on nor one of them was there before.
    pub const fn by(feature: Feature, fields: &'static [&'static str]) -> Gated {
        Gated { feature, fields, used_at: None, instead: None }
    }

    /// The same, but other fields say whether the feature was in use. Without any it never was.
    pub const fn used_at(self, fields: &'static [&'static str]) -> Gated {
        Gated { used_at: Some(fields), ..self }
    }

    /// The same, but they become this word.
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
        // Looked at first: whatever is written to is copied, and hardly anybody makes use of what is off.
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

/// Takes the fields of features that are off out of what an object shall become, unless it made use of them before.
pub fn drop_disabled(rows: &[Gated], features: EnabledFeatures, new: &mut Value, old: Option<&Value>) {
    for row in rows.iter().filter(|row| !features.has(row.feature)) {
        row.drop_from(new, old);
    }
}

/// One step of a path: the names of fields that it stands for, whether they are lists, and whether they go when they are empty.
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

/// Whether something that is looked for stands at one of the places that a path means.
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

/// Drops what stands at the places that a path means.
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
