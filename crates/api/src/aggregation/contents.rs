//! Namespaced objects of extension API servers: which resources can be deleted, and how many objects are left.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilothouse_apimachinery::version::{self, GroupVersion};
use serde::Deserialize;

use super::ApiService;
use super::RegisteredVersion;
use super::discovered::{DiscoveredResource, STALE};

/// The page size of a list: beyond it only the count matters.
pub const LIST_LIMIT: usize = 500;

/// A namespaced resource of an extension server that supports deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletable {
    /// The APIService that serves it.
    pub registration: Arc<ApiService>,
    /// Its plural name.
    pub resource: String,
    /// Whether it supports deletecollection.
    pub at_once: bool,
    /// Whether it supports list.
    pub listable: bool,
}

impl Deletable {
    /// The path of its objects in a namespace.
    pub fn path(&self, namespace: &str) -> String {
        format!("{}/namespaces/{namespace}/{}", self.registration.path(), self.resource)
    }

    /// Its name in conditions.
    pub fn name(&self) -> String {
        format!("{}.{}", self.resource, self.registration.gv.group)
    }
}

/// The namespaced resources of extension servers, each once, in the preferred version; and the versions whose resources are
/// unknown. `is_builtin` tells which versions this server serves itself, whatever their APIService says.
pub fn deletable(
    others: &[RegisteredVersion],
    is_builtin: impl Fn(&GroupVersion) -> bool,
) -> (Vec<Deletable>, BTreeSet<String>) {
    let mut remote: Vec<_> = others
        .iter()
        .filter_map(|other| Some((&other.registration, other.found.as_deref()?)))
        .filter(|(registration, _)| !is_builtin(&registration.gv))
        .collect();
    remote.sort_by(|(a, _), (b, _)| {
        let by_priority = Reverse(a.priorities.version).cmp(&Reverse(b.priorities.version));
        by_priority.then_with(|| version::preferred_first(&a.gv.version, &b.gv.version))
    });
    let mut unknown = BTreeSet::new();
    let mut deletable: BTreeMap<(&str, &str), Deletable> = BTreeMap::new();
    for (registration, version) in remote {
        if version.freshness == STALE {
            unknown.insert(format!("{}/{}", registration.gv.group, registration.gv.version));
        }
        for resource in version.resources.iter().filter(|resource| resource.scope == "Namespaced") {
            let has_verb = |verb: &str| supports(resource, verb);
            if has_verb("delete") {
                let key = (&*registration.gv.group, resource.resource.as_str());
                deletable.entry(key).or_insert_with(|| Deletable {
                    registration: registration.clone(),
                    resource: resource.resource.clone(),
                    at_once: has_verb("deletecollection"),
                    listable: has_verb("list"),
                });
            }
        }
    }
    (deletable.into_values().collect(), unknown)
}

fn supports(resource: &DiscoveredResource, verb: &str) -> bool {
    resource.verbs.iter().flatten().any(|supported| supported == verb)
}

/// The remaining objects of a resource in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemainingObjects {
    /// The names of some of them.
    pub names: Vec<String>,
    /// How many there are.
    pub count: usize,
    /// How many of the listed objects have each finalizer.
    pub finalizers: BTreeMap<String, usize>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct List {
    metadata: ListMetadata,
    items: Option<Vec<Item>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMetadata {
    #[serde(rename = "continue")]
    continue_token: Option<String>,
    remaining_item_count: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Item {
    metadata: ItemMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ItemMetadata {
    name: String,
    finalizers: Option<Vec<String>>,
}

impl RemainingObjects {
    /// Parses the response of a list. `None`: the text is not a list.
    pub fn read(text: &[u8]) -> Option<RemainingObjects> {
        let list: List = serde_json::from_slice(text).ok()?;
        let items = list.items.unwrap_or_default();
        let has_more = list.metadata.continue_token.is_some_and(|continue_token| !continue_token.is_empty());
        // A server that omits `remainingItemCount` has at least one more object.
        let remaining = if has_more { list.metadata.remaining_item_count.unwrap_or(1) } else { 0 };
        let mut objects =
            RemainingObjects { count: items.len().saturating_add(remaining), ..RemainingObjects::default() };
        for Item { metadata } in items {
            for finalizer in metadata.finalizers.unwrap_or_default() {
                *objects.finalizers.entry(finalizer).or_default() += 1;
            }
            objects.names.push(metadata.name);
        }
        Some(objects)
    }
}

#[cfg(test)]
mod tests {
    use super::super::discovered::read_one;
    use super::super::{Priorities, api_service_name};
    use super::*;

    fn other(group: &str, version: &str, priority: i64, resources: Option<&str>) -> RegisteredVersion {
        let registration = ApiService {
            name: api_service_name(group, version),
            gv: GroupVersion::new(group, version),
            priorities: Priorities { group: 1, version: priority },
            service: None,
            is_available: true,
            is_unreadable: false,
        };
        let found = match resources {
            Some(resources) => read_one(version, format!(r#"{{"resources":{resources}}}"#).as_bytes()),
            None => Some(super::super::discovered::DiscoveredVersion::bare(version, STALE)),
        };
        RegisteredVersion { registration: Arc::new(registration), found: found.map(Arc::new) }
    }

    #[test]
    fn resources_are_deletable_once_in_their_preferred_version() {
        let things = r#"[{"name":"things","namespaced":true,"verbs":["delete","list","deletecollection"]},
            {"name":"things/status","namespaced":true,"verbs":["get","delete"]},
            {"name":"wide","namespaced":false,"verbs":["delete","list"]},
            {"name":"shown","namespaced":true,"verbs":["get","list"]}]"#;
        let old = r#"[{"name":"things","namespaced":true,"verbs":["delete"]},{"name":"older","namespaced":true,"verbs":["delete"]}]"#;
        let others = [
            other("x.io", "v1", 10, Some(old)),
            other("x.io", "v2", 20, Some(things)),
            other("down.io", "v1", 1, None),
            other("apps", "v1", 1, Some(things)),
        ];
        let (resources, unknown) = deletable(&others, |gv| &*gv.group == "apps");
        let summaries: Vec<_> = resources
            .iter()
            .map(|resource| (resource.path("n"), resource.name(), resource.at_once, resource.listable))
            .collect();
        let text = |text: &str| text.to_owned();
        assert_eq!(
            summaries,
            [
                (text("/apis/x.io/v1/namespaces/n/older"), text("older.x.io"), false, false),
                (text("/apis/x.io/v2/namespaces/n/things"), text("things.x.io"), true, true),
            ]
        );
        assert_eq!(unknown, BTreeSet::from([text("down.io/v1")]));
    }

    #[test]
    fn remaining_objects_and_finalizers_are_counted() {
        let remaining = RemainingObjects::read(
            br#"{"metadata":{"continue":"c","remainingItemCount":3},"items":[{"metadata":{"name":"a","finalizers":["f","g"]}},
                {"metadata":{"name":"b","finalizers":["f"]}},{"metadata":{"name":"c"}}]}"#,
        );
        let remaining = remaining.unwrap();
        assert_eq!((remaining.count, remaining.names.len()), (6, 3));
        assert_eq!(remaining.finalizers, BTreeMap::from([("f".to_owned(), 2), ("g".to_owned(), 1)]));
        assert_eq!(RemainingObjects::read(br#"{"items":null}"#), Some(RemainingObjects::default()));
        assert_eq!(RemainingObjects::read(br#"{"metadata":{"continue":"c"},"items":[]}"#).unwrap().count, 1);
        assert_eq!(RemainingObjects::read(b"x"), None);
    }
}
