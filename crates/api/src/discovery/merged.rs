//! The groups of discovery: those of the catalog and those of extension API servers, in the order of their priorities.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pilothouse_apimachinery::version;

use crate::aggregation::discovered::DiscoveredVersion;
use crate::aggregation::{Priorities, RegisteredVersion, api_service_name};
use crate::bootstrap::api_services::{CUSTOM_VERSION_PRIORITY, version_priority};
use crate::catalog::{self, Catalog, Version};

/// The source of a version's resources.
#[derive(Clone, Copy)]
pub enum VersionSource<'a> {
    /// This server's catalog.
    Catalog(&'a Version),
    /// An extension server's discovery.
    Extension(&'a DiscoveredVersion),
    /// None: the APIService is local, but this server does not serve the version.
    None,
}

/// One version of a group.
#[derive(Clone, Copy)]
pub struct VersionEntry<'a> {
    /// Its name.
    pub name: &'a str,
    priorities: Priorities,
    /// The source of its resources.
    pub source: VersionSource<'a>,
    /// Whether resources may be missing, because a definition of the group cannot be read.
    pub is_stale: bool,
}

/// One API group.
pub struct MergedGroup<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its versions, the preferred one first.
    pub versions: Vec<VersionEntry<'a>>,
}

/// The priorities of a version that this server serves, unless its APIService says otherwise.
pub fn default_priorities(group: &str, version: &str) -> Priorities {
    Priorities {
        group: i64::from(catalog::priority(group)),
        version: version_priority(group, version).unwrap_or(CUSTOM_VERSION_PRIORITY),
    }
}

impl<'a> MergedGroup<'a> {
    /// The groups of the catalog and of the registered versions, in order of priority.
    pub fn all(catalog: &'a Catalog, others: &'a [RegisteredVersion]) -> Vec<MergedGroup<'a>> {
        let mut groups: BTreeMap<&'a str, MergedGroup<'a>> = BTreeMap::new();
        for group in catalog.groups() {
            let new_entry = |version: &'a Version| VersionEntry {
                name: &version.name,
                priorities: default_priorities(&group.name, &version.name),
                source: VersionSource::Catalog(version),
                is_stale: false,
            };
            let versions = group.versions.iter().map(new_entry).collect();
            groups.insert(&group.name, MergedGroup { name: &group.name, versions });
        }
        for other in others.iter().filter(|other| !other.registration.gv.group.is_empty()) {
            let registration = &*other.registration;
            let gv = &registration.gv;
            let source = other.found.as_deref().map_or(VersionSource::None, VersionSource::Extension);
            let priorities = registration.priorities;
            let merged = groups.entry(&gv.group);
            let merged = merged.or_insert_with(|| MergedGroup { name: &gv.group, versions: Vec::new() });
            match merged.versions.iter_mut().find(|entry| entry.name == &*gv.version) {
                // A local APIService of a version we serve can change only its priorities.
                Some(entry) if matches!(source, VersionSource::None) => entry.priorities = priorities,
                Some(entry) if is_builtin(entry) => {}
                Some(entry) => (entry.source, entry.priorities) = (source, priorities),
                None => merged.versions.push(VersionEntry {
                    name: &gv.version,
                    priorities,
                    source,
                    is_stale: false,
                }),
            }
        }
        let mut groups: Vec<MergedGroup<'a>> = groups.into_values().collect();
        for group in &mut groups {
            if catalog.has_unreadable(group.name) {
                group.versions.iter_mut().for_each(|entry| entry.is_stale = !is_builtin(entry));
            }
            group.versions.sort_by(|a, b| {
                b.priorities
                    .version
                    .cmp(&a.priorities.version)
                    .then_with(|| version::preferred_first(a.name, b.name))
            });
        }
        groups.sort_by_key(|group| (Reverse(group.group_priority()), group.name));
        groups
    }

    /// The highest priority that a version gives the group.
    fn group_priority(&self) -> i64 {
        self.versions.iter().map(|entry| entry.priorities.group).max().unwrap_or(0)
    }

    /// The name of the APIService that gives the group its priority; of several the first.
    fn priority_source(&self) -> Option<String> {
        let group_priority = self.group_priority();
        let best = self.versions.iter().filter(|entry| entry.priorities.group == group_priority);
        best.map(|entry| api_service_name(self.name, entry.name)).min()
    }
}

/// An APIService cannot take over a built-in version.
fn is_builtin(entry: &VersionEntry<'_>) -> bool {
    let VersionSource::Catalog(version) = entry.source else { return false };
    version.resources.iter().any(|resource| resource.custom.is_none())
}

/// The groups in the order of the unaggregated list: APIService names decide between equal priorities.
pub fn by_registration<'m, 'a>(groups: &[&'m MergedGroup<'a>]) -> Vec<&'m MergedGroup<'a>> {
    let mut groups = groups.to_vec();
    groups.sort_by_cached_key(|group| (Reverse(group.group_priority()), group.priority_source()));
    groups
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilothouse_apimachinery::version::GroupVersion;

    use super::*;
    use crate::aggregation::ApiService;
    use crate::aggregation::discovered::{CURRENT, STALE};
    use crate::catalog::build::Builtin;
    use crate::catalog::resource::Resource;
    use crate::catalog::runtime_config::RuntimeConfig;
    use crate::discovery::{Document, Documents};

    fn priorities(group: i64, version: i64) -> Priorities {
        Priorities { group, version }
    }

    fn other(
        group: &str,
        version: &str,
        priorities: Priorities,
        freshness: Option<&str>,
    ) -> RegisteredVersion {
        let registration = ApiService {
            name: api_service_name(group, version),
            gv: GroupVersion::new(group, version),
            priorities,
            service: None,
            is_available: true,
            is_unreadable: false,
        };
        let found = freshness.map(|freshness| Arc::new(DiscoveredVersion::bare(version, freshness)));
        RegisteredVersion { registration: Arc::new(registration), found }
    }

    fn json(document: Option<&Document>) -> serde_json::Value {
        serde_json::from_slice(&document.expect("a document").json).unwrap()
    }

    fn names(list: &serde_json::Value, pointer: &str) -> Vec<String> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|item| item.pointer(pointer).unwrap().as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn registered_versions_are_ordered_by_their_priorities() {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let others = [
            other("metrics.k8s.io", "v1beta1", priorities(100, 100), Some(CURRENT)),
            other("early.io", "v1", priorities(17_900, 1), Some(STALE)),
            other("early.io", "v2", priorities(10, 2), Some(CURRENT)),
            other("apps", "v1", priorities(17_800, 15), None),
            other("apps", "v9", priorities(5, 5), Some(CURRENT)),
            other("policy", "v1", priorities(5, 5), Some(CURRENT)),
            other("only.io", "v1", priorities(50, 5), None),
        ];
        let documents = Documents::with_extensions(&catalog, "a", &others);
        let listed = names(&json(documents.get("/apis"))["groups"], "/name");
        assert_eq!(listed[..3], ["apiregistration.k8s.io", "early.io", "apps"]);
        assert_eq!(listed[listed.len() - 2..], ["metrics.k8s.io", "only.io"]);
        let aggregated = json(documents.aggregated_at("/apis"));
        let groups = names(&aggregated["items"], "/metadata/name");
        assert_eq!(groups[..3], ["apiregistration.k8s.io", "early.io", "apps"]);
        assert_eq!(
            groups.last().unwrap(),
            "metrics.k8s.io",
            "a registered version without discovery is omitted"
        );
        let early = &aggregated["items"][1]["versions"];
        assert_eq!(names(early, "/version"), ["v2", "v1"]);
        assert_eq!(names(early, "/freshness"), ["Current", "Stale"]);
        let apps = json(documents.get("/apis/apps"));
        assert_eq!(names(&apps["versions"], "/version"), ["v1", "v9"]);
        assert_eq!(apps["preferredVersion"]["version"], "v1");
        let policy =
            aggregated["items"].as_array().unwrap().iter().find(|item| item["metadata"]["name"] == "policy");
        assert!(
            !policy.unwrap()["versions"][0]["resources"].is_null(),
            "an APIService cannot replace a built-in version"
        );
        assert!(documents.get("/apis/metrics.k8s.io/v1beta1").is_none(), "the extension server serves it");
        assert!(documents.paths().any(|path| path == "/apis/metrics.k8s.io/v1beta1"));
    }

    #[test]
    fn groups_of_equal_priority_are_ordered_by_api_service_name() {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let maps = catalog.find("", "v1", "configmaps").unwrap();
        let custom =
            |group, version| Arc::new(Resource { gv: GroupVersion::new(group, version), ..(**maps).clone() });
        let catalog = catalog.with([custom("a.io", "v2"), custom("b.io", "v1")]);
        let documents = Documents::new(&catalog, "a");
        let listed = names(&json(documents.get("/apis"))["groups"], "/name");
        assert_eq!(listed[listed.len() - 2..], ["b.io", "a.io"]);
        let aggregated = names(&json(documents.aggregated_at("/apis"))["items"], "/metadata/name");
        assert_eq!(aggregated[aggregated.len() - 2..], ["a.io", "b.io"]);
    }
}
