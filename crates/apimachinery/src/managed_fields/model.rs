//! Compares apply and update with a simple model of paths, values and owners.
//!
//! A Service has every shape: a map (labels), a set (finalizers), a list with keys (ports), an atomic map and an atomic list
//! (selector, externalIPs), and a scalar (sessionAffinity).

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use proptest::prelude::*;

use super::apply::{apply, apply_fully};
use super::{Versions, Write, record};
use crate::json;
use crate::schema::Registry;
use crate::value::Value;
use crate::version::GroupVersion;

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::builtin().unwrap());

/// The values of a manifest by path.
type Said = BTreeMap<String, String>;

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
    /// Its values, as the model sees them.
    fn said(&self) -> Said {
        let mut said = Said::new();
        let mut put = |path: String, value: &str| said.insert(path, value.to_owned());
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
        said
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

/// The values of an object, as the model sees them.
fn flattened(object: &Value) -> Said {
    let mut said = Said::new();
    let at = |path: &[&str]| object.at(path).cloned().unwrap_or_default();
    for (key, value) in at(&["metadata", "labels"]).fields().into_iter().flatten() {
        said.insert(format!("labels/{key}"), value.as_str().unwrap().to_owned());
    }
    for item in at(&["metadata", "finalizers"]).items() {
        said.insert(format!("finalizers/{}", item.as_str().unwrap()), String::new());
    }
    for item in at(&["spec", "ports"]).items() {
        let port = item.get("port").and_then(Value::as_int).unwrap();
        said.insert(format!("ports/{port}"), String::new());
        said.insert(format!("ports/{port}/port"), port.to_string());
        if let Some(name) = item.get("name").and_then(Value::as_str) {
            said.insert(format!("ports/{port}/name"), name.to_owned());
        }
    }
    for whole in ["selector", "externalIPs"] {
        let value = at(&["spec", whole]);
        if !value.is_null()
            && (!value.items().is_empty() || value.fields().is_some_and(|all| !all.is_empty()))
        {
            said.insert(whole.to_owned(), String::from_utf8(json::to_json(&value)).unwrap());
        }
    }
    if let Some(affinity) = object.at(&["spec", "sessionAffinity"]).and_then(Value::as_str) {
        said.insert("sessionAffinity".to_owned(), affinity.to_owned());
    }
    said
}

/// The fields of each manager, as the model sees them.
fn owners(object: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let entries = object.at(&["metadata", "managedFields"]).map(Value::items).unwrap_or_default();
    let of = |entry: &Value| {
        let fields = entry.get("fieldsV1").unwrap();
        let under = |path: &[&str]| fields.at(path).and_then(Value::fields).cloned().unwrap_or_default();
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
        for whole in ["selector", "externalIPs", "sessionAffinity"] {
            if fields.at(&["f:spec", &format!("f:{whole}")]).is_some() {
                owned.insert(whole.to_owned());
            }
        }
        (format!("{} {}", entry.str("manager"), entry.str("operation")), owned)
    };
    entries.iter().map(of).filter(|(_, owned)| !owned.is_empty()).collect()
}

/// The lists that can be empty. Their existence has owners, too: managers that updated an object without such a list.
const LISTS: [&str; 2] = ["finalizers", "ports"];

fn lists(said: &Said) -> BTreeSet<&'static str> {
    LISTS.into_iter().filter(|list| said.keys().any(|path| path.starts_with(&format!("{list}/")))).collect()
}

/// The expected state, computed path by path.
#[derive(Default)]
struct Model {
    said: Said,
    owners: BTreeMap<String, BTreeSet<String>>,
    /// The owners of lists' existence. An apply that removes the last item leaves them an empty list, which is not stored.
    lists: BTreeMap<String, BTreeSet<&'static str>>,
}

impl Model {
    fn is_others(&self, who: &str, path: &str) -> bool {
        self.owners.iter().any(|(other, owned)| other != who && owned.contains(path))
    }

    /// The number of conflicts.
    fn conflicts(&self, who: &str, config: &Said) -> usize {
        let changed = config.iter().filter(|(path, value)| self.said.get(*path) != Some(value));
        let others = |path: &str| {
            self.owners.iter().filter(|(other, owned)| *other != who && owned.contains(path)).count()
        };
        let come = &lists(config) - &lists(&self.said);
        let of_lists = |list: &str| self.lists.values().filter(|owned| owned.contains(list)).count();
        changed.map(|(path, _)| others(path)).chain(come.into_iter().map(of_lists)).sum()
    }

    fn apply(&mut self, who: &str, config: &Said) {
        let come = &lists(config) - &lists(&self.said);
        self.lists.values_mut().for_each(|owned| owned.retain(|list| !come.contains(list)));
        let before = self.owners.remove(who).unwrap_or_default();
        for path in before.into_iter().filter(|path| !config.contains_key(path)) {
            if !self.is_others(who, &path) {
                // An item is removed with all its fields, whoever set them.
                let gone = |known: &String| *known == path || known.starts_with(&format!("{path}/"));
                self.said.retain(|known, _| !gone(known));
                self.owners.values_mut().for_each(|owned| owned.retain(|known| !gone(known)));
            }
        }
        for (path, value) in config {
            if self.said.insert(path.clone(), value.clone()).as_ref() != Some(value) {
                self.take(path);
            }
        }
        self.owners.insert(who.to_owned(), config.keys().cloned().collect());
        self.owners.retain(|_, owned| !owned.is_empty());
    }

    fn update(&mut self, who: &str, state: &Said) {
        let (old, new) = (lists(&self.said), lists(state));
        let differ = &old ^ &new;
        self.lists.values_mut().for_each(|owned| owned.retain(|list| !differ.contains(list)));
        self.lists.entry(who.to_owned()).or_default().extend(&new - &old);
        let gone: Vec<String> = self.said.keys().filter(|path| !state.contains_key(*path)).cloned().collect();
        gone.iter().for_each(|path| self.take(path));
        let changed: Vec<String> = state
            .iter()
            .filter(|(path, value)| self.said.get(*path) != Some(value))
            .map(|(path, _)| path.clone())
            .collect();
        changed.iter().for_each(|path| self.take(path));
        self.owners.entry(who.to_owned()).or_default().extend(changed);
        self.said = state.clone();
        self.owners.retain(|_, owned| !owned.is_empty());
    }

    fn take(&mut self, path: &str) {
        self.owners.values_mut().for_each(|owned| owned.retain(|known| known != path));
    }
}

/// One write: the manager, whether it applies, whether by force, and the manifest.
type Step = (usize, bool, bool, Manifest);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn writes_in_any_order_agree_with_the_model(
        steps in proptest::collection::vec((0usize..3, proptest::bool::weighted(0.8), any::<bool>(), manifest()), 1..8),
    ) {
        let version = GroupVersion::parse("v1").unwrap();
        let versions = Versions { registry: &REGISTRY, kind: "Service", stored: &version, elsewhere: None, is_custom: false };
        let (mut live, mut model): (Option<Value>, Model) = (None, Model::default());
        let steps: Vec<Step> = steps;
        for (at, (who, applies, force, manifest)) in steps.into_iter().enumerate() {
            let (name, now) = (format!("m{who}"), at.to_string());
            let write = Write { manager: &name, version: &version, subresource: "", now: &now, reset: &[] };
            let said = manifest.said();
            if !applies {
                let mut new = manifest.object();
                record(&versions, &write, live.as_ref(), &mut new);
                model.update(&format!("{name} Update"), &said);
                live = Some(new);
            } else {
                let me = format!("{name} Apply");
                let contested = model.conflicts(&me, &said);
                let applied = apply(&versions, &write, live.as_ref(), &manifest.object(), force);
                if contested > 0 && !force {
                    let told = applied.map(drop).unwrap_err().message;
                    let number = format!("Apply failed with {contested} conflict");
                    prop_assert!(told.starts_with(&number), "{number}: {told}");
                    continue;
                }
                let applied = applied.map_err(|status| TestCaseError::fail(status.message))?;
                let is_there = applied.object.is_none();
                let object = applied.onto(live.as_ref());
                // Not the other way round: an apply of a list in another order changes it.
                let same = live.as_ref().is_some_and(|live| flattened(live) == flattened(&object));
                prop_assert!(same || !is_there);
                if let Some(live) = &live {
                    let body = manifest.object();
                    let at_length = apply_fully(&versions, &write, live, &body, force).unwrap().onto(Some(live));
                    prop_assert_eq!(&object, &at_length);
                }
                model.apply(&me, &said);
                // A repetition changes nothing, not even times.
                let again = apply(&versions, &write, Some(&object), &manifest.object(), false).unwrap();
                prop_assert!(again.object.is_none() && again.managers.is_none());
                let at_length = apply_fully(&versions, &write, &object, &manifest.object(), false).unwrap();
                prop_assert_eq!(&at_length.onto(Some(&object)), &object);
                live = Some(object);
            }
            let object = live.as_ref().unwrap();
            prop_assert_eq!(&flattened(object), &model.said);
            prop_assert_eq!(&owners(object), &model.owners);
        }
    }
}
