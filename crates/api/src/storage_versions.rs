//! StorageVersions: which version of each built-in resource every API server writes, and whether all of them agree.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::preferred_first;

use crate::catalog::resource::Resource;

/// The condition that says whether all servers write the same version.
const ALL_EQUAL: &str = "AllEncodingVersionsEqual";
/// The core group in the names of StorageVersions, which must not begin with a dot.
const CORE: &str = "core";

/// The versions of one resource as this server knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceVersions {
    /// The name of the StorageVersion: group and resource.
    pub name: String,
    /// The version that it writes.
    pub encoding: String,
    /// The versions that it can read.
    pub decodable: Vec<String>,
    /// The versions that it serves.
    pub served: Vec<String>,
}

/// The versions of all stored resources among these, by name. Resources that share a store, as the events of two groups do, have
/// one entry, in the name of the first group.
pub fn resource_versions<'a>(
    resources: impl Iterator<Item = &'a Arc<Resource>>,
    registry: &Registry,
) -> Vec<ResourceVersions> {
    let mut by_store: BTreeMap<&str, Vec<&Arc<Resource>>> = BTreeMap::new();
    for resource in resources.filter(|resource| resource.custom.is_none()) {
        if let Some(stored) = resource.stored() {
            by_store.entry(stored.store.as_str()).or_default().push(resource);
        }
    }
    let mut known = KnownVersions::new();
    for (kind, _) in registry.kinds() {
        known
            .entry((kind.group.to_string(), kind.kind.to_string()))
            .or_default()
            .push(kind.version.to_string());
    }
    let mut versions: Vec<ResourceVersions> =
        by_store.into_values().filter_map(|resources| versions_of_store(resources, &known)).collect();
    versions.sort_by(|a, b| a.name.cmp(&b.name));
    versions
}

/// The versions of each kind that can be read, by group and kind.
type KnownVersions = BTreeMap<(String, String), Vec<String>>;

/// The versions of the resources of one store.
fn versions_of_store(mut resources: Vec<&Arc<Resource>>, known: &KnownVersions) -> Option<ResourceVersions> {
    resources.sort_by(|a, b| {
        a.gv.group.cmp(&b.gv.group).then_with(|| preferred_first(&a.gv.version, &b.gv.version))
    });
    let first = *resources.first()?;
    let (group, encoding) = (&*first.gv.group, first.stored()?.version.to_string());
    let mut known = known.get(&(group.to_owned(), first.kind.to_string())).cloned().unwrap_or_default();
    known.sort_by(|a, b| preferred_first(a, b));
    let prefix = if group.is_empty() { String::new() } else { format!("{group}/") };
    let mut decodable: Vec<String> = known.into_iter().map(|version| format!("{prefix}{version}")).collect();
    let all = resources.iter().map(|resource| resource.api_version.to_string());
    for version in all.chain([encoding.clone()]) {
        if !decodable.contains(&version) {
            decodable.push(version);
        }
    }
    let served = resources.iter().filter(|resource| *resource.gv.group == *group);
    Some(ResourceVersions {
        name: format!("{}.{}", if group.is_empty() { CORE } else { group }, first.plural),
        encoding,
        decodable,
        served: served.map(|resource| resource.api_version.to_string()).collect(),
    })
}

/// A StorageVersion without a status.
pub fn new_object(name: &str) -> Value {
    let mut object = Value::object();
    object.set("apiVersion", "internal.apiserver.k8s.io/v1alpha1");
    object.set("kind", "StorageVersion");
    object.entry("metadata").set("name", name);
    object.set("spec", Value::object());
    object
}

fn entries(object: &Value) -> &[Value] {
    object.get_path(&["status", "storageVersions"]).map(Value::items).unwrap_or_default()
}

/// The ids of the servers that a StorageVersion names.
pub fn servers(object: &Value) -> impl Iterator<Item = &str> {
    entries(object).iter().map(|entry| entry.str("apiServerID"))
}

/// Sets the entry of a server. Returns whether the object has changed.
pub fn set_server(object: &mut Value, server: &str, versions: &ResourceVersions, now: &str) -> bool {
    let mut entry = Value::object();
    entry.set("apiServerID", server);
    entry.set("encodingVersion", versions.encoding.as_str());
    entry.set("decodableVersions", versions.decodable.clone());
    entry.set("servedVersions", versions.served.clone());
    let mut all = entries(object).to_vec();
    match all.iter_mut().find(|entry| entry.str("apiServerID") == server) {
        Some(existing) => *existing = entry,
        None => all.push(entry),
    }
    replace_entries(object, all, now)
}

/// Keeps only the entries of these servers. Returns whether the object has changed.
pub fn retain_servers(object: &mut Value, is_alive: impl Fn(&str) -> bool, now: &str) -> bool {
    let mut all = entries(object).to_vec();
    let count = all.len();
    all.retain(|entry| is_alive(entry.str("apiServerID")));
    all.len() < count && replace_entries(object, all, now)
}

fn replace_entries(object: &mut Value, all: Vec<Value>, now: &str) -> bool {
    let before = object.get("status").cloned();
    object.entry("status").set("storageVersions", all);
    set_common_version(object, now);
    object.get("status") != before.as_ref()
}

/// Sets the version that all servers write, if it is the same one, and the condition that says so.
fn set_common_version(object: &mut Value, now: &str) {
    let first = entries(object).first().map(|entry| entry.str("encodingVersion").to_owned());
    let common =
        first.filter(|first| entries(object).iter().all(|entry| entry.str("encodingVersion") == first));
    let generation = meta::metadata(object).get("generation").and_then(Value::as_int).unwrap_or(0);
    let status = object.entry("status");
    let previous = status.remove("commonEncodingVersion");
    let has_changed = match (&previous, &common) {
        (Some(previous), Some(common)) => previous.as_str() != Some(common),
        _ => false,
    };
    let (word, reason, message) = match &common {
        Some(_) => ("True", "CommonEncodingVersionSet", "Common encoding version set"),
        None => ("False", "CommonEncodingVersionUnset", "Common encoding version unset"),
    };
    if let Some(common) = common {
        status.set("commonEncodingVersion", common);
    }
    let mut conditions = status.get("conditions").map(Value::items).unwrap_or_default().to_vec();
    let mut condition = Value::object();
    for (field, text) in [
        ("type", ALL_EQUAL),
        ("status", word),
        ("lastTransitionTime", now),
        ("reason", reason),
        ("message", message),
    ] {
        condition.set(field, text);
    }
    if generation != 0 {
        condition.set("observedGeneration", generation);
    }
    match conditions.iter_mut().find(|condition| condition.str("type") == ALL_EQUAL) {
        Some(existing) => {
            if existing.str("status") == word && !has_changed {
                meta::copy(&mut condition, existing, "lastTransitionTime");
            }
            *existing = condition;
        }
        None => conditions.push(condition),
    }
    status.set("conditions", conditions);
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;
    use crate::catalog::build::Builtin;
    use crate::catalog::runtime_config::RuntimeConfig;

    fn versions(encoding: &str) -> ResourceVersions {
        let all = vec![encoding.to_owned()];
        ResourceVersions {
            name: "g.things".to_owned(),
            encoding: encoding.to_owned(),
            decodable: all.clone(),
            served: all,
        }
    }

    #[test]
    fn every_store_of_built_in_resources_has_one_entry() {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let registry = Registry::builtin().unwrap();
        let all = resource_versions(catalog.resources(), &registry);
        let find = |name: &str| all.iter().find(|versions| versions.name == name);
        let strings = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let pods = find("core.pods").unwrap();
        assert_eq!((pods.encoding.as_str(), &pods.served), ("v1", &strings(&["v1"])));
        let events = find("core.events").unwrap();
        assert_eq!(events.encoding, "v1");
        assert_eq!(events.decodable, strings(&["v1", "events.k8s.io/v1"]));
        assert_eq!(events.served, strings(&["v1"]));
        assert_eq!(find("events.k8s.io.events"), None);
        let autoscalers = find("autoscaling.horizontalpodautoscalers").unwrap();
        assert_eq!(autoscalers.served, strings(&["autoscaling/v2", "autoscaling/v1"]));
        assert!(autoscalers.decodable.contains(&autoscalers.encoding));
        assert!(find("apiextensions.k8s.io.customresourcedefinitions").is_some());
        assert!(find("authorization.k8s.io.subjectaccessreviews").is_none(), "not stored");
        for versions in &all {
            assert!(versions.served.iter().all(|served| versions.decodable.contains(served)), "{versions:?}");
            assert!(versions.decodable.contains(&versions.encoding), "{versions:?}");
        }
        assert!(all.is_sorted_by(|a, b| a.name < b.name));
    }

    #[test]
    fn common_version_is_set_while_all_servers_agree() {
        let mut object = object(r#"{"metadata":{"generation":1}}"#);
        let state = |object: &Value| {
            let status = object.get("status").unwrap();
            let condition = &status.get("conditions").unwrap().items()[0];
            let common = status.get("commonEncodingVersion").and_then(Value::as_str).unwrap_or("-");
            format!("{common} {} {}", condition.str("status"), condition.str("lastTransitionTime"))
        };
        assert!(set_server(&mut object, "a", &versions("g/v1"), "1"));
        assert_eq!(state(&object), "g/v1 True 1");
        assert!(!set_server(&mut object, "a", &versions("g/v1"), "2"), "unchanged");
        assert_eq!(state(&object), "g/v1 True 1");
        assert!(set_server(&mut object, "b", &versions("g/v2"), "3"));
        assert_eq!(state(&object), "- False 3");
        assert_eq!(servers(&object).collect::<Vec<_>>(), ["a", "b"]);
        assert!(set_server(&mut object, "a", &versions("g/v2"), "4"));
        assert_eq!(state(&object), "g/v2 True 4");
        assert!(set_server(&mut object, "a", &versions("g/v3"), "5"));
        assert!(retain_servers(&mut object, |server| server == "a", "6"));
        assert_eq!(state(&object), "g/v3 True 6");
        assert!(set_server(&mut object, "a", &versions("g/v4"), "7"));
        assert_eq!(state(&object), "g/v4 True 7", "another common version is a transition");
        assert!(!retain_servers(&mut object, |server| server == "a", "8"));
        let condition = &object.get_path(&["status", "conditions"]).unwrap().items()[0];
        assert_eq!(condition.str("reason"), "CommonEncodingVersionSet");
        assert_eq!(condition.get("observedGeneration"), Some(&Value::Int(1)));
    }
}
