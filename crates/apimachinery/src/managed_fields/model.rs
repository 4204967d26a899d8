//! Compares apply and update with a simple model of paths, values and owners.
//!
//! A Service has every shape: a map (labels), a set (finalizers), a list with keys (ports), an atomic map and an atomic list
//! (selector, externalIPs), and a scalar (sessionAffinity).

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use proptest::prelude::*;

use super::apply::{apply, apply_fully};
use super::{Conversion, Versions, Write, record};
use crate::convert::ConversionTable;
use crate::json;
use crate::schema::Registry;
use crate::value::Value;
use crate::version::GroupVersion;

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::builtin().unwrap());

/// The values of a manifest by path.
type PathValues = BTreeMap<String, String>;

#[derive(Clone, Debug)]
struct Manifest {
    labels: BTreeMap<String, String>,
    finalizers: BTreeSet<String>,
    ports: BTreeMap<i64, Option<String>>,
    selector: BTreeMap<String, String>,
    external: Vec<String>,
    affinity: Option<String>,
}

fn manifest() -> impl Strategy<Value = Manifest> {
    use proptest::collection::{btree_map, btree_set, vec};
    (
        btree_map("[ab]", "[12]", 0..3),
        btree_set("x/[ab]", 0..3),
        btree_map(80i64..83, proptest::option::of("[pq]"), 0..3),
        btree_map("[ab]", "[12]", 0..2),
        vec("[12]", 0..2),
        proptest::option::of("ClientIP|None"),
    )
        .prop_map(|(mut labels, finalizers, ports, selector, external, affinity)| {
            // In every manifest, so that the object always has a manager: the case without any is different.
            labels.insert("base".to_owned(), "1".to_owned());
            Manifest { labels, finalizers, ports, selector, external, affinity }
        })
}

impl Manifest {
    /// The values of the manifest by path.
    fn path_values(&self) -> PathValues {
        let mut values = PathValues::new();
        let mut put = |path: String, value: &str| values.insert(path, value.to_owned());
        self.labels.iter().for_each(|(key, value)| drop(put(format!("labels/{key}"), value)));
        self.finalizers.iter().for_each(|item| drop(put(format!("finalizers/{item}"), "")));
        for (port, name) in &self.ports {
            put(format!("ports/{port}"), "");
            put(format!("ports/{port}/port"), &port.to_string());
            name.iter().for_each(|name| drop(put(format!("ports/{port}/name"), name)));
        }
        let text = |value: &Value| String::from_utf8(json::to_json(value)).unwrap();
        let (selector, external) = (self.selector(), self.external());
        selector.iter().for_each(|all| drop(put("selector".to_owned(), &text(all))));
        external.iter().for_each(|all| drop(put("externalIPs".to_owned(), &text(all))));
        self.affinity.iter().for_each(|affinity| drop(put("sessionAffinity".to_owned(), affinity)));
        values
    }

    fn selector(&self) -> Option<Value> {
        let mut all = Value::object();
        self.selector.iter().for_each(|(key, value)| all.set(key, value.as_str()));
        (!self.selector.is_empty()).then_some(all)
    }

    fn external(&self) -> Option<Value> {
        let all = self.external.iter().map(|item| item.as_str().into()).collect();
        (!self.external.is_empty()).then_some(Value::Array(all))
    }

    /// The manifest itself. Empty containers are omitted: stated ones have owners of their own.
    fn object(&self) -> Value {
        let mut object = Value::object();
        object.set("apiVersion", "v1");
        object.set("kind", "Service");
        object.entry("metadata").set("name", "s");
        for (key, value) in &self.labels {
            object.entry("metadata").entry("labels").set(key, value.as_str());
        }
        if !self.finalizers.is_empty() {
            let all = self.finalizers.iter().map(|item| item.as_str().into()).collect();
            object.entry("metadata").set("finalizers", Value::Array(all));
        }
        let ports = self.ports.iter().map(|(port, name)| {
            let mut item = Value::object();
            item.set("port", *port);
            name.iter().for_each(|name| item.set("name", name.as_str()));
            item
        });
        if !self.ports.is_empty() {
            object.entry("spec").set("ports", Value::Array(ports.collect()));
        }
        self.selector().into_iter().for_each(|all| object.entry("spec").set("selector", all));
        self.external().into_iter().for_each(|all| object.entry("spec").set("externalIPs", all));
        self.affinity.iter().for_each(|affinity| {
            object.entry("spec").set("sessionAffinity", affinity.as_str());
        });
        object
    }
}

/// The values of an object by path.
fn path_values(object: &Value) -> PathValues {
    let mut values = PathValues::new();
    let get = |path: &[&str]| object.get_path(path).cloned().unwrap_or_default();
    for (key, value) in get(&["metadata", "labels"]).fields().into_iter().flatten() {
        values.insert(format!("labels/{key}"), value.as_str().unwrap().to_owned());
    }
    for item in get(&["metadata", "finalizers"]).items() {
        values.insert(format!("finalizers/{}", item.as_str().unwrap()), String::new());
    }
    for item in get(&["spec", "ports"]).items() {
        let port = item.get("port").and_then(Value::as_int).unwrap();
        values.insert(format!("ports/{port}"), String::new());
        values.insert(format!("ports/{port}/port"), port.to_string());
        if let Some(name) = item.get("name").and_then(Value::as_str) {
            values.insert(format!("ports/{port}/name"), name.to_owned());
        }
    }
    for field in ["selector", "externalIPs"] {
        let value = get(&["spec", field]);
        if !value.is_null()
            && (!value.items().is_empty() || value.fields().is_some_and(|all| !all.is_empty()))
        {
            values.insert(field.to_owned(), String::from_utf8(json::to_json(&value)).unwrap());
        }
    }
    if let Some(affinity) = object.get_path(&["spec", "sessionAffinity"]).and_then(Value::as_str) {
        values.insert("sessionAffinity".to_owned(), affinity.to_owned());
    }
    values
}

/// The fields of each manager, as the model sees them.
fn owners(object: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let entries = object.get_path(&["metadata", "managedFields"]).map(Value::items).unwrap_or_default();
    let owned_by = |entry: &Value| {
        let fields = entry.get("fieldsV1").unwrap();
        let under =
            |path: &[&str]| fields.get_path(path).and_then(Value::fields).cloned().unwrap_or_default();
        let mut owned = BTreeSet::new();
        for (key, _) in under(&["f:metadata", "f:labels"]).iter().filter(|(key, _)| *key != ".") {
            owned.insert(format!("labels/{}", key.strip_prefix("f:").unwrap()));
        }
        for (key, _) in under(&["f:metadata", "f:finalizers"]).iter().filter(|(key, _)| *key != ".") {
            owned.insert(format!("finalizers/{}", key.strip_prefix("v:").unwrap().trim_matches('"')));
        }
        for (key, below) in under(&["f:spec", "f:ports"]).iter().filter(|(key, _)| *key != ".") {
            let keys = json::read(key.strip_prefix("k:").unwrap().as_bytes()).unwrap();
            let port = keys.get("port").and_then(Value::as_int).unwrap();
            for (field, _) in below.fields().into_iter().flatten() {
                match field.strip_prefix("f:") {
                    // The protocol is a key with a default that no manifest states: updates show it.
                    Some("protocol" | "targetPort") => {}
                    Some(field) => drop(owned.insert(format!("ports/{port}/{field}"))),
                    None => drop(owned.insert(format!("ports/{port}"))),
                }
            }
        }
        for field in ["selector", "externalIPs", "sessionAffinity"] {
            if fields.get_path(&["f:spec", &format!("f:{field}")]).is_some() {
                owned.insert(field.to_owned());
            }
        }
        (format!("{} {}", entry.str("manager"), entry.str("operation")), owned)
    };
    entries.iter().map(owned_by).filter(|(_, owned)| !owned.is_empty()).collect()
}

/// The lists that can be empty. Their existence has owners, too: managers that updated an object without such a list.
const LISTS: [&str; 2] = ["finalizers", "ports"];

fn lists(values: &PathValues) -> BTreeSet<&'static str> {
    LISTS.into_iter().filter(|list| values.keys().any(|path| path.starts_with(&format!("{list}/")))).collect()
}

/// The expected state, computed path by path.
#[derive(Default)]
struct Model {
    values: PathValues,
    owners: BTreeMap<String, BTreeSet<String>>,
    /// The owners of lists' existence. An apply that removes the last item leaves them an empty list, which is not stored.
    lists: BTreeMap<String, BTreeSet<&'static str>>,
}

impl Model {
    fn is_owned_by_other(&self, manager: &str, path: &str) -> bool {
        self.owners.iter().any(|(other, owned)| other != manager && owned.contains(path))
    }

    /// The number of conflicts.
    fn conflicts(&self, manager: &str, config: &PathValues) -> usize {
        let changed = config.iter().filter(|(path, value)| self.values.get(*path) != Some(value));
        let others = |path: &str| {
            self.owners.iter().filter(|(other, owned)| *other != manager && owned.contains(path)).count()
        };
        let added = &lists(config) - &lists(&self.values);
        let list_owners = |list: &str| self.lists.values().filter(|owned| owned.contains(list)).count();
        changed.map(|(path, _)| others(path)).chain(added.into_iter().map(list_owners)).sum()
    }

    fn apply(&mut self, manager: &str, config: &PathValues) {
        let added = &lists(config) - &lists(&self.values);
        self.lists.values_mut().for_each(|owned| owned.retain(|list| !added.contains(list)));
        let before = self.owners.remove(manager).unwrap_or_default();
        for path in before.into_iter().filter(|path| !config.contains_key(path)) {
            if !self.is_owned_by_other(manager, &path) {
                // An item is removed with all its fields, also those of other managers.
                let is_removed = |other: &String| *other == path || other.starts_with(&format!("{path}/"));
                self.values.retain(|other, _| !is_removed(other));
                self.owners.values_mut().for_each(|owned| owned.retain(|other| !is_removed(other)));
            }
        }
        for (path, value) in config {
            if self.values.insert(path.clone(), value.clone()).as_ref() != Some(value) {
                self.disown(path);
            }
        }
        self.owners.insert(manager.to_owned(), config.keys().cloned().collect());
        self.owners.retain(|_, owned| !owned.is_empty());
    }

    fn update(&mut self, manager: &str, state: &PathValues) {
        let (old, new) = (lists(&self.values), lists(state));
        let differ = &old ^ &new;
        self.lists.values_mut().for_each(|owned| owned.retain(|list| !differ.contains(list)));
        self.lists.entry(manager.to_owned()).or_default().extend(&new - &old);
        let removed: Vec<String> =
            self.values.keys().filter(|path| !state.contains_key(*path)).cloned().collect();
        removed.iter().for_each(|path| self.disown(path));
        let changed: Vec<String> = state
            .iter()
            .filter(|(path, value)| self.values.get(*path) != Some(value))
            .map(|(path, _)| path.clone())
            .collect();
        changed.iter().for_each(|path| self.disown(path));
        self.owners.entry(manager.to_owned()).or_default().extend(changed);
        self.values = state.clone();
        self.owners.retain(|_, owned| !owned.is_empty());
    }

    fn disown(&mut self, path: &str) {
        self.owners.values_mut().for_each(|owned| owned.retain(|other| other != path));
    }
}

/// One write: the manager, whether it applies, whether by force, and the manifest.
type Step = (usize, bool, bool, Manifest);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn apply_and_update_agree_with_the_model(
        steps in proptest::collection::vec((0usize..3, proptest::bool::weighted(0.8), any::<bool>(), manifest()), 1..8),
    ) {
        let version = GroupVersion::parse("v1").unwrap();
        let versions = Versions { registry: &REGISTRY, kind: "Service", stored: &version, conversion: Conversion::Table(ConversionTable::EMPTY), is_custom: false };
        let (mut live, mut model): (Option<Value>, Model) = (None, Model::default());
        let steps: Vec<Step> = steps;
        for (index, (manager, applies, force, manifest)) in steps.into_iter().enumerate() {
            let (name, now) = (format!("m{manager}"), index.to_string());
            let write = Write { manager: &name, version: &version, subresource: "", now: &now, reset: &[] };
            let values = manifest.path_values();
            if !applies {
                let mut new = manifest.object();
                record(&versions, &write, live.as_ref(), &mut new);
                model.update(&format!("{name} Update"), &values);
                live = Some(new);
            } else {
                let me = format!("{name} Apply");
                let conflicts = model.conflicts(&me, &values);
                let applied = apply(&versions, &write, live.as_ref(), &manifest.object(), force);
                if conflicts > 0 && !force {
                    let message = applied.map(drop).unwrap_err().message;
                    let number = format!("Apply failed with {conflicts} conflict");
                    prop_assert!(message.starts_with(&number), "{number}: {message}");
                    continue;
                }
                let applied = applied.map_err(|status| TestCaseError::fail(status.message))?;
                let is_unchanged = applied.object.is_none();
                let object = applied.onto(live.as_ref());
                // The converse does not hold: an apply of a list in another order changes it.
                let same = live.as_ref().is_some_and(|live| path_values(live) == path_values(&object));
                prop_assert!(same || !is_unchanged);
                if let Some(live) = &live {
                    let body = manifest.object();
                    let full = apply_fully(&versions, &write, live, &body, force).unwrap().onto(Some(live));
                    prop_assert_eq!(&object, &full);
                }
                model.apply(&me, &values);
                // A repetition changes nothing, not even times.
                let again = apply(&versions, &write, Some(&object), &manifest.object(), false).unwrap();
                prop_assert!(again.object.is_none() && again.managers.is_none());
                let full = apply_fully(&versions, &write, &object, &manifest.object(), false).unwrap();
                prop_assert_eq!(&full.onto(Some(&object)), &object);
                live = Some(object);
            }
            let object = live.as_ref().unwrap();
            prop_assert_eq!(&path_values(object), &model.values);
            prop_assert_eq!(&owners(object), &model.owners);
        }
    }
}
