//! All CustomResourceDefinitions, and the consequences of changes. Pure. The work depends only on the number of changed
//! definitions and of those with disputed names.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom::definition::{DefinedResources, digest, resources, store_named};
use pilothouse_api::custom::openapi::published;
use pilothouse_api::openapi;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_kinds::definition::status::{self, AcceptedNames};
use pilothouse_types::clock::Clock;
use pilothouse_types::object::{Revision, TypeName};

use super::{Completion, Defined};

/// Ordinals of resources wrap around after this one: cached forms of objects are numbered by them, several per ordinal.
const LAST_ORDINAL: u32 = 10_000_000;

/// One definition.
pub(super) struct Definition {
    revision: Revision,
    /// As it is stored, or is about to be.
    value: Arc<Value>,
    /// The inputs from which its resources were built; `None` if they were not built yet.
    inputs: Option<ResourceInputs>,
    resources: Vec<Arc<Resource>>,
    /// The resource for deleting its objects; `None` before the definition is established.
    stored: Option<Arc<Resource>>,
    /// Its OpenAPI schemas.
    openapi_schemas: Vec<Arc<openapi::CustomSchema>>,
}

/// Counters of the work so far, for tests: the cost of a change must not depend on unchanged definitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkCounts {
    /// Definitions whose names were settled.
    pub(super) settled: usize,
    /// Definitions whose resources were made.
    pub(super) made: usize,
}

/// All definitions. The set moves into each round and back.
#[derive(Default)]
pub(super) struct DefinitionSet {
    definitions: BTreeMap<String, Definition>,
    /// The revision up to which the history of definitions is processed; `None` before the first round.
    pub(super) cursor: Option<Revision>,
    /// Definitions to read again regardless of the history: a write to them may have failed.
    pub(super) must_reread: BTreeSet<String>,
    /// Definitions that cannot be read.
    unreadable: BTreeMap<String, Revision>,
    /// The accepted names of each group.
    groups: BTreeMap<String, AcceptedNames>,
    /// Definitions with unaccepted names, by group.
    disputed: BTreeMap<String, BTreeSet<String>>,
    /// Definitions whose names have to be settled.
    unsettled: BTreeSet<String>,
    /// Definitions whose resources may have to be rebuilt.
    touched: BTreeSet<String>,
    /// Definitions that are being deleted and wait for their objects.
    terminating: BTreeSet<String>,
    /// The number of resources of each version.
    versions: BTreeMap<GroupVersion, usize>,
    /// Whether the definitions differ from the published ones.
    is_changed: bool,
    /// The stores whose resources differ from the published ones.
    changed: BTreeSet<TypeName>,
    /// The stores of definitions that were removed since the last two ticks of the release timer, the latest last. Their watches
    /// still send the last deletions: a store that was released at once would take the history from them.
    recently_removed: [BTreeSet<TypeName>; 2],
    /// The stores of removed definitions, until they are released.
    pub(super) unreleased: BTreeSet<TypeName>,
    /// Definitions whose types the shared log must know before they are served.
    pub(super) new_types: BTreeSet<String>,
    /// Released stores, until a check whether they stay released.
    pub(super) released: BTreeSet<TypeName>,
    /// The versions that have APIServices; `None` before the first round.
    pub(super) registered: Option<BTreeSet<GroupVersion>>,
    pub(super) first_ordinal: u32,
    next_ordinal: u32,
    pub(super) work_counts: WorkCounts,
}

impl DefinitionSet {
    pub(super) fn new(first_ordinal: u32) -> DefinitionSet {
        DefinitionSet { first_ordinal, next_ordinal: first_ordinal, ..DefinitionSet::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.definitions.is_empty() && self.unreadable.is_empty()
    }

    /// All definitions, readable or not.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.definitions.keys().chain(self.unreadable.keys())
    }

    /// The definitions that are not served because they cannot be read.
    pub(super) fn unreadable(&self) -> BTreeSet<String> {
        let is_unknown = |name: &&String| !self.definitions.contains_key(*name);
        self.unreadable.keys().filter(is_unknown).cloned().collect()
    }

    /// Whether a definition of this group cannot be read: its names are taken, but unknown except for the plural.
    pub(super) fn has_unreadable(&self, group: &str) -> bool {
        let is_in = |name: &String| name.split_once('.').is_some_and(|(_, name_group)| name_group == group);
        self.unreadable.keys().any(is_in)
    }

    /// Whether this version of a definition is processed already, or corrupt.
    pub(super) fn is_current(&self, name: &str, revision: Revision) -> bool {
        let known = self.definitions.get(name).map(|known| known.revision);
        !self.must_reread.contains(name)
            && (known == Some(revision) || self.unreadable.get(name) == Some(&revision))
    }

    /// The definitions that are being deleted and wait for their objects.
    pub(super) fn terminating(&self) -> &BTreeSet<String> {
        &self.terminating
    }

    /// The resource for deleting the objects of a definition; `None` if it was never established.
    pub(super) fn stored(&self, name: &str) -> Option<Arc<Resource>> {
        self.definitions.get(name)?.stored.clone()
    }

    pub(super) fn value(&self, name: &str) -> Option<Arc<Value>> {
        self.definitions.get(name).map(|definition| definition.value.clone())
    }

    /// All served versions.
    pub(super) fn versions(&self) -> BTreeSet<GroupVersion> {
        self.versions.keys().cloned().collect()
    }

    /// Adds a new or changed definition.
    pub(super) fn put(&mut self, name: &str, revision: Revision, value: Value) {
        self.must_reread.remove(name);
        self.forget_unreadable(name);
        let store = store_named(name);
        let [earlier, latest] = &mut self.recently_removed;
        for stores in [earlier, latest, &mut self.unreleased, &mut self.released] {
            stores.remove(&store);
        }
        let value = Arc::new(value);
        let previous = match self.definitions.get_mut(name) {
            Some(definition) => {
                definition.revision = revision;
                Some(std::mem::replace(&mut definition.value, value.clone()))
            }
            None => {
                let definition = Definition {
                    revision,
                    value: value.clone(),
                    inputs: None,
                    resources: Vec::new(),
                    stored: None,
                    openapi_schemas: Vec::new(),
                };
                self.definitions.insert(name.to_owned(), definition);
                None
            }
        };
        self.replace_names(previous.as_deref(), Some(&value));
        self.unsettled.insert(name.to_owned());
    }

    /// Notes that a definition cannot be read. If it could be before, that state stays in force, because its objects still exist;
    /// otherwise nothing of it is served, and its names stay reserved.
    pub(super) fn mark_unreadable(&mut self, name: &str, revision: Revision) {
        self.must_reread.remove(name);
        self.is_changed |= !self.definitions.contains_key(name);
        self.unreadable.insert(name.to_owned(), revision);
    }

    /// A definition was removed or can be read again. Names that it may have had are settled again.
    fn forget_unreadable(&mut self, name: &str) {
        if self.unreadable.remove(name).is_some() {
            self.is_changed = true;
            let group = name.split_once('.').map_or("", |(_, group)| group);
            self.unsettled.extend(self.disputed.get(group).into_iter().flatten().cloned());
        }
    }

    /// Forgets a removed definition.
    pub(super) fn remove(&mut self, name: &str) {
        self.must_reread.remove(name);
        self.forget_unreadable(name);
        let Some(definition) = self.definitions.remove(name) else { return };
        for set in [&mut self.unsettled, &mut self.touched, &mut self.terminating] {
            set.remove(name);
        }
        self.note_dispute(name, &definition.value, false);
        self.replace_names(Some(&definition.value), None);
        let store = store_named(name);
        if !definition.resources.is_empty() {
            self.count(&definition.resources, &[]);
            self.is_changed = true;
            self.changed.insert(store.clone());
        }
        self.recently_removed[1].insert(store);
    }

    /// A tick of the release timer: stores that were removed before the last tick may be released, and released ones are checked.
    pub(super) fn tick_releases(&mut self) {
        let [earlier, latest] = std::mem::take(&mut self.recently_removed);
        self.recently_removed = [latest, BTreeSet::new()];
        self.unreleased.extend(earlier);
        self.unreleased.append(&mut self.released);
    }

    /// Whether there are stores of removed definitions to release or to check.
    pub(super) fn has_stores_to_release(&self) -> bool {
        let [earlier, latest] = &self.recently_removed;
        [earlier, latest, &self.unreleased, &self.released].into_iter().any(|stores| !stores.is_empty())
    }

    /// Settles names: accepted names stay, and of the other definitions the oldest come first. Returns the definitions whose
    /// status must be written.
    pub(super) fn settle_names(&mut self, now: &str) -> Vec<String> {
        let mut changed = BTreeSet::new();
        // Names that become free here may be disputed by others.
        while !self.unsettled.is_empty() {
            let mut in_order: Vec<(String, String)> = std::mem::take(&mut self.unsettled)
                .into_iter()
                .filter_map(|name| {
                    let value = &self.definitions.get(&name)?.value;
                    Some((meta::metadata(value).str("creationTimestamp").to_owned(), name))
                })
                .collect();
            in_order.sort();
            for (_, name) in in_order {
                if self.settle_names_of(&name, now) {
                    changed.insert(name);
                }
            }
        }
        changed.into_iter().collect()
    }

    fn settle_names_of(&mut self, name: &str, now: &str) -> bool {
        let Some(previous) = self.value(name) else { return false };
        // Names may be those of a definition that cannot be read.
        let is_unknown = self.has_unreadable(&group_of(&previous));
        let Some(definition) = self.definitions.get_mut(name) else { return false };
        self.work_counts.settled += 1;
        let accepted = &*self.groups.entry(group_of(&previous)).or_default();
        let accepted = Some(accepted).filter(|_| !is_unknown);
        let mut value = Value::clone(&previous);
        let changed = status::update_status(&mut value, accepted, now);
        if changed {
            definition.value = Arc::new(value);
        }
        let value = definition.value.clone();
        if changed {
            self.replace_names(Some(&previous), Some(&value));
        }
        self.note_dispute(name, &value, !status::is_true(&value, status::NAMES_ACCEPTED));
        let is_terminating = status::has_cleanup_finalizer(&value);
        if is_terminating {
            self.terminating.insert(name.to_owned())
        } else {
            self.terminating.remove(name)
        };
        self.touched.insert(name.to_owned());
        changed
    }

    /// Makes the resources of definitions whose relevant parts have changed. Returns how long that took for each that has rules to
    /// compile.
    pub(super) fn build_resources(&mut self, registry: &Arc<Registry>, clock: &Clock) -> Vec<Duration> {
        let mut compilations = Vec::new();
        for name in std::mem::take(&mut self.touched) {
            let Some(definition) = self.definitions.get_mut(&name) else { continue };
            let inputs = ResourceInputs::new(&definition.value);
            if definition.inputs == Some(inputs) {
                continue;
            }
            self.work_counts.made += 1;
            let previous = definition.inputs.replace(inputs);
            let is_same_resource = previous
                .is_some_and(|previous| (previous.spec, previous.names) == (inputs.spec, inputs.names));
            // A resource that only terminates from now on is still the same to those who watch it.
            let same_resource = definition.stored.as_ref().filter(|_| is_same_resource);
            let same_ordinals =
                same_resource.and_then(|resource| Some(resource.custom.as_ref()?.ordinals.clone()));
            let (first_ordinal, next_ordinal) = (self.first_ordinal, &mut self.next_ordinal);
            let began = clock.moment();
            let built = if status::is_true(&definition.value, status::ESTABLISHED) {
                definition.openapi_schemas = published(&definition.value).into_iter().map(Arc::new).collect();
                resources(&definition.value, registry, |count| {
                    same_ordinals.unwrap_or_else(|| next_ordinals(first_ordinal, next_ordinal, count))
                })
            } else {
                definition.openapi_schemas.clear();
                DefinedResources::default()
            };
            if built.served.iter().any(has_rules) {
                compilations.push(clock.elapsed(began));
            }
            definition.stored = built.stored;
            if definition.stored.is_some() {
                self.new_types.insert(name.clone());
            }
            let previous = std::mem::replace(&mut definition.resources, built.served);
            let after = definition.resources.clone();
            self.is_changed |= !previous.is_empty() || !after.is_empty();
            if !previous.is_empty() && (!is_same_resource || after.is_empty()) {
                self.changed.insert(store_named(&name));
            }
            self.count(&previous, &after);
        }
        compilations
    }

    /// All defined resources, if they have changed since the last call. `written`: closed once the status of definitions is
    /// written.
    pub(super) fn take_changes(&mut self, written: Completion) -> Option<Defined> {
        if !std::mem::take(&mut self.is_changed) {
            return None;
        }
        let served = || self.definitions.values().filter(|definition| !definition.resources.is_empty());
        Some(Defined {
            resources: served().flat_map(|definition| definition.resources.iter().cloned()).collect(),
            described: served().flat_map(|definition| definition.openapi_schemas.iter().cloned()).collect(),
            unreadable: Arc::new(self.unreadable()),
            changed: std::mem::take(&mut self.changed).into_iter().collect(),
            written,
        })
    }

    /// Updates the number of resources of each version.
    fn count(&mut self, removed: &[Arc<Resource>], added: &[Arc<Resource>]) {
        for resource in added {
            *self.versions.entry(resource.gv.clone()).or_default() += 1;
        }
        for resource in removed {
            if let Some(count) = self.versions.get_mut(&resource.gv) {
                *count -= 1;
                if *count == 0 {
                    self.versions.remove(&resource.gv);
                }
            }
        }
    }

    /// Notes the accepted names of a definition. If one becomes free, the disputing definitions are settled again.
    fn replace_names(&mut self, previous: Option<&Value>, current: Option<&Value>) {
        let names = |value: &Value| value.get_path(&["status", "acceptedNames"]).cloned().unwrap_or_default();
        if let Some(previous) = previous {
            let group = group_of(previous);
            let accepted = self.groups.entry(group.clone()).or_default();
            accepted.remove(previous);
            if current.map(names).unwrap_or_default() != names(previous)
                && let Some(disputed) = self.disputed.get(&group)
            {
                self.unsettled.extend(disputed.iter().cloned());
            }
        }
        if let Some(current) = current {
            self.groups.entry(group_of(current)).or_default().add(current);
        }
        if let Some(group) = previous.map(group_of)
            && self.groups.get(&group).is_some_and(AcceptedNames::is_empty)
        {
            self.groups.remove(&group);
        }
    }

    fn note_dispute(&mut self, name: &str, value: &Value, is_disputed: bool) {
        let group = group_of(value);
        let disputed = self.disputed.entry(group.clone()).or_default();
        if is_disputed {
            disputed.insert(name.to_owned())
        } else {
            disputed.remove(name)
        };
        if disputed.is_empty() {
            self.disputed.remove(&group);
        }
    }
}

/// A range of consecutive ordinals.
fn next_ordinals(first: u32, next: &mut u32, count: u32) -> RangeInclusive<u32> {
    if next.saturating_add(count) > LAST_ORDINAL {
        *next = first;
    }
    let begin = *next;
    *next += count;
    begin..=(*next - 1).max(begin)
}

fn group_of(value: &Value) -> String {
    value.get("spec").map_or("", |spec| spec.str("group")).to_owned()
}

/// The inputs of a definition's resources: they are rebuilt when these change. Digests, because the schemas are large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ResourceInputs {
    spec: [u8; 32],
    names: [u8; 32],
    is_established: bool,
    is_terminating: bool,
}

impl ResourceInputs {
    fn new(definition: &Value) -> ResourceInputs {
        let digest = |path: &[&str]| digest(definition.get_path(path).unwrap_or(&Value::Null));
        ResourceInputs {
            spec: digest(&["spec"]),
            names: digest(&["status", "acceptedNames"]),
            is_established: status::is_true(definition, status::ESTABLISHED),
            is_terminating: status::is_true(definition, status::TERMINATING),
        }
    }
}

/// Whether objects of a resource are validated by rules.
fn has_rules(resource: &Arc<Resource>) -> bool {
    resource.custom.as_ref().is_some_and(|custom| custom.rules.is_some())
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
