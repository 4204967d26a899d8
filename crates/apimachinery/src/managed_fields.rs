//! Server-side apply: field ownership in `metadata.managedFields`.
//!
//! Every write records its manager as the owner of the changed fields, taking them from other managers. Apply states the values
//! of fields, and reports conflicts with other owners.
//!
//! [`field_set`] has sets of fields and [`fields_v1`] their encoding in objects; [`mod@compare`] computes the difference of two
//! states; [`managers`] are the entries of an object; [`mod@apply`] merges a configuration into an object;
//! [`mod@apply_configuration`] does so without an owner, for policies; [`scale_view`] is about fields that can be written through
//! another kind.

mod applied_fields;
pub mod apply;
pub mod apply_configuration;
mod check;
pub mod compare;
mod converted_versions;
pub mod field_set;
pub mod fields_v1;
mod last_applied;
pub mod managers;
mod merge;
#[cfg(test)]
mod model;
mod owned_fields;
mod repeated_apply;
pub mod scale_view;
mod set_items;
mod shape;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use compare::Comparison;
use field_set::FieldSet;
use managers::{Manager, Managers, Operation};

use super::convert::ConversionTable;
use super::schema::{Registry, TypeId};
use super::value::{Object, Value};
use super::version::GroupVersion;

pub use converted_versions::ConvertedVersions;
pub use set_items::count_set_items;

/// The maximum length of a manager's name in bytes.
const NAME_BYTES: usize = 128;

/// The name of the manager: the stated one, or the first word of the user agent.
pub fn manager_name(stated: &str, user_agent: &str) -> String {
    if !stated.is_empty() {
        return stated.to_owned();
    }
    let program = user_agent.split('/').next().unwrap_or_default();
    let mut name = String::with_capacity(program.len().min(NAME_BYTES));
    for letter in program.chars().filter(|letter| !letter.is_control()) {
        if name.len() + letter.len_utf8() > NAME_BYTES {
            break;
        }
        name.push(letter);
    }
    if name.is_empty() { "unknown".to_owned() } else { name }
}

/// How values of one version become values of another.
#[derive(Clone, Copy, Debug)]
pub enum Conversion<'a> {
    /// By the functions of this table.
    Table(ConversionTable),
    /// By a webhook, which the caller asks for what is missing.
    Webhook(&'a ConvertedVersions),
}

/// The versions of one kind.
#[derive(Clone, Copy)]
pub struct Versions<'a> {
    /// All types.
    pub registry: &'a Registry,
    /// The kind.
    pub kind: &'a str,
    /// The version of the values.
    pub stored: &'a GroupVersion,
    /// How values of other versions are made.
    pub conversion: Conversion<'a>,
    /// Whether the kind is custom: its versions can have different fields, and a value need not fit all of them.
    pub is_custom: bool,
}

impl Versions<'_> {
    fn type_in(&self, version: &GroupVersion) -> Option<TypeId> {
        self.registry.described(&version.group, &version.version, self.kind)
    }

    /// Converts a value from the stored version.
    fn convert_to<'v>(&self, value: &'v Value, version: &GroupVersion) -> Option<Cow<'v, Value>> {
        self.convert(value, self.stored, version)
    }

    /// Converts a value between two versions.
    fn convert<'v>(
        &self,
        value: &'v Value,
        from: &GroupVersion,
        to: &GroupVersion,
    ) -> Option<Cow<'v, Value>> {
        if from == to {
            return Some(Cow::Borrowed(value));
        }
        let converted = match self.conversion {
            Conversion::Table(table) => table.convert(value.clone(), from, to, self.kind).ok(),
            Conversion::Webhook(versions) => versions.find(value, to),
        };
        converted.map(Cow::Owned)
    }

    /// The difference of two states in a version. `Ok(None)`: the kind has no such version.
    fn compare(&self, version: &GroupVersion, states: States<'_>) -> Result<Option<Comparison>, String> {
        let Some(ty) = self.type_in(version) else { return Ok(None) };
        let old = match states.old {
            Some(old) => match self.convert_to(old, version) {
                Some(old) => Some(old),
                None => return Ok(None),
            },
            None => None,
        };
        let Some(new) = self.convert_to(states.new, version) else { return Ok(None) };
        compare::compare(self.registry, ty, old.as_deref(), &new).map(Some)
    }

    /// [`Versions::compare`] for states that must fit the schema of the version.
    fn compare_fitting(
        &self,
        version: &GroupVersion,
        states: States<'_>,
    ) -> Result<Option<Comparison>, String> {
        if let Some(ty) = self.type_in(version).filter(|_| self.is_custom) {
            for state in states.old.into_iter().chain([states.new]) {
                if let Some(state) = self.convert_to(state, version) {
                    check::check_state(self.registry, ty, &state)?;
                }
            }
        }
        self.compare(version, states)
    }
}

/// Two states of an object in the stored version.
#[derive(Clone, Copy)]
struct States<'a> {
    /// `None` for a new object.
    old: Option<&'a Value>,
    new: &'a Value,
}

/// The differences of two states, by the versions of the managers. Each is computed once for all managers of a version.
struct Comparisons<'a> {
    versions: &'a Versions<'a>,
    states: States<'a>,
    /// The fields that the write cannot set, which have the same names in every version.
    reset: &'a FieldSet,
    /// The group of the request: entries of other groups are ignored.
    group: String,
    /// Whether the states must fit the schema of every version.
    must_fit: bool,
    cache: Vec<(String, Option<Comparison>)>,
}

impl<'a> Comparisons<'a> {
    /// `version` is the version of the request, and `comparison` the difference in it.
    fn new(
        versions: &'a Versions<'a>,
        version: &GroupVersion,
        states: States<'a>,
        comparison: Comparison,
        reset: &'a FieldSet,
    ) -> Comparisons<'a> {
        Comparisons {
            versions,
            states,
            reset,
            group: version.group.to_string(),
            must_fit: false,
            cache: vec![(version.to_string(), Some(comparison.without(reset)))],
        }
    }

    /// Requires the states to fit the schema of every version.
    fn must_fit(self) -> Comparisons<'a> {
        Comparisons { must_fit: true, ..self }
    }

    /// The comparison in a version. `Ok(None)`: the kind has no such version.
    fn for_version(&mut self, api_version: &str) -> Result<Option<&Comparison>, String> {
        let index = match self.cache.iter().position(|(version, _)| version == api_version) {
            Some(index) => index,
            None => {
                let version = GroupVersion::parse(api_version);
                let known_version = version.filter(|version| {
                    *version.group == *self.group && self.versions.type_in(version).is_some()
                });
                // Unknown versions are not cached: entries may name any number of them.
                let Some(version) = known_version else { return Ok(None) };
                let comparison = if self.must_fit {
                    self.versions.compare_fitting(&version, self.states)?
                } else {
                    self.versions.compare(&version, self.states)?
                };
                let comparison = comparison.map(|comparison| comparison.without(self.reset));
                self.cache.push((api_version.to_owned(), comparison));
                self.cache.len() - 1
            }
        };
        Ok(self.cache.get(index).and_then(|(_, comparison)| comparison.as_ref()))
    }
}

/// The properties of a write that determine field ownership.
#[derive(Clone, Copy)]
pub struct Write<'a> {
    /// The manager: see [`manager_name`].
    pub manager: &'a str,
    /// The version of the request.
    pub version: &'a GroupVersion,
    /// The written subresource, empty for the object itself.
    pub subresource: &'a str,
    /// The current time.
    pub now: &'a str,
    /// The fields that this write cannot set, because the kind restores them.
    pub reset: &'a [&'a [&'a str]],
}

impl Write<'_> {
    fn manager(&self, operation: Operation) -> Manager {
        Manager {
            name: self.manager.to_owned(),
            operation,
            api_version: self.version.to_string(),
            subresource: self.subresource.to_owned(),
            time: None,
            fields: FieldSet::default(),
        }
    }
}

/// Updates managedFields after a create or update. Both states are in the stored version; `old` is `None` for a new object.
///
/// A state with duplicate list keys gets no owners: validation will refuse it. Nor does a custom resource that does not fit the
/// schemas of its version and of those of its managers, which can have other fields.
pub fn record(versions: &Versions<'_>, write: &Write<'_>, old: Option<&Value>, new: &mut Value) {
    let managers = previous_managers(old, new, write.subresource);
    if let Some(meta) = new.get_mut("metadata") {
        meta.remove("managedFields");
    }
    // An object without any managers stays so until the first apply.
    if managers.is_empty() && old.is_some() {
        return;
    }
    if let Ok(managers) = updated_managers(versions, write, States { old, new }, managers) {
        managers.store(new);
    }
}

/// The managers before the write: those in the request, if valid, or else the stored ones.
fn previous_managers(old: Option<&Value>, new: &Value, subresource: &str) -> Managers {
    let entries = |object: &Value| object.get_path(&["metadata", "managedFields"]).cloned();
    let stored = || {
        let entries = old.and_then(entries);
        entries.and_then(|entries| Managers::read(entries.items())).unwrap_or_default()
    };
    // Entries in the body of a subresource are ignored.
    if !subresource.is_empty() {
        return stored();
    }
    let stated = entries(new);
    if managers::is_reset(stated.as_ref()) {
        return Managers::default();
    }
    let stated = stated.and_then(|entries| Managers::read(entries.items()));
    stated.filter(|managers| !managers.is_empty()).unwrap_or_else(stored)
}

/// The managers after the write.
fn updated_managers(
    versions: &Versions<'_>,
    write: &Write<'_>,
    states: States<'_>,
    mut managers: Managers,
) -> Result<Managers, String> {
    let comparison = versions.compare_fitting(write.version, states)?.unwrap_or_default();
    let reset = FieldSet::from_paths(write.reset);
    let comparison = comparison.without(&reset);
    let mut manager = write.manager(Operation::Update);
    manager.fields = comparison.set();
    remove_from_others(
        &mut Comparisons::new(versions, write.version, states, comparison, &reset).must_fit(),
        &mut managers,
    )?;
    if !manager.fields.is_empty() {
        if let Some(previous) = managers.take(&manager) {
            manager.fields = manager.fields.union(&previous.fields);
        }
        manager.time = Some(write.now.to_owned());
        managers.0.push(manager);
    }
    managers.cap();
    Ok(managers)
}

/// Removes changed and removed fields from all other managers.
fn remove_from_others(comparisons: &mut Comparisons<'_>, managers: &mut Managers) -> Result<(), String> {
    let mut error = None;
    managers.0.retain_mut(|manager| {
        let comparison = match comparisons.for_version(&manager.api_version) {
            Ok(Some(comparison)) => comparison,
            // Entries of a version that no longer exists are dropped.
            Ok(None) => return false,
            Err(message) => {
                error = Some(message);
                return true;
            }
        };
        let changed = [&comparison.added, &comparison.modified, &comparison.removed];
        for fields in changed.into_iter().filter(|fields| !fields.is_empty()) {
            manager.fields = manager.fields.difference(fields);
        }
        !manager.fields.is_empty()
    });
    error.map_or(Ok(()), Err)
}

/// Restores the times of managers if only they differ: then the write changes nothing.
pub fn keep_times(old: &Value, new: &mut Value) {
    let path = &["metadata", "managedFields"];
    let (Some(before), Some(after)) = (old.get_path(path), new.get_path(path)) else { return };
    if before != after
        && is_equal_except_times(before.items(), after.items())
        && is_equal_except_managers(old, new)
    {
        let before = before.clone();
        new.entry("metadata").set("managedFields", before);
    }
}

/// Whether two lists of managers differ only in times and in the order that follows from them. Otherwise a no-op write after
/// another apply would count as a change.
fn is_equal_except_times(left: &[Value], right: &[Value]) -> bool {
    // An entry that lost its time has changed.
    let is_equal = |(left, right): (&Value, &Value)| {
        is_equal_except(left, right, "time") && left.get("time").is_some() == right.get("time").is_some()
    };
    left.len() == right.len() && sorted_by_name(left).into_iter().zip(sorted_by_name(right)).all(is_equal)
}

fn sorted_by_name(owners: &[Value]) -> Vec<&Value> {
    let mut owners: Vec<&Value> = owners.iter().collect();
    let parts = ["operation", "manager", "apiVersion", "subresource"];
    owners.sort_by(|left, right| parts.map(|part| left.str(part)).cmp(&parts.map(|part| right.str(part))));
    owners
}

/// Whether two objects differ only in managedFields.
fn is_equal_except_managers(left: &Value, right: &Value) -> bool {
    let is_metadata_equal = match (left.get("metadata"), right.get("metadata")) {
        (Some(left), Some(right)) => is_equal_except(left, right, "managedFields"),
        (left, right) => left == right,
    };
    is_metadata_equal && is_equal_except(left, right, "metadata")
}

/// Whether two objects are equal except for one field.
fn is_equal_except(left: &Value, right: &Value, field: &str) -> bool {
    let (Some(left), Some(right)) = (left.fields(), right.fields()) else { return left == right };
    let count = |fields: &Object| fields.len() - usize::from(fields.contains_key(field));
    let is_equal = |(name, value): (&String, &Value)| name == field || right.get(name) == Some(value);
    count(left) == count(right) && left.iter().all(is_equal)
}
