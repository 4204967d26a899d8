//! The served resources: looked up by every request, built once at start.
//!
//! A catalog is immutable. Custom resources make a new one with [`Catalog::with`], which is published behind an `Arc`; requests
//! in flight keep the one they began with.

pub mod backing;
pub mod build;
pub mod lifecycle;
pub mod resource;
pub mod runtime_config;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::version;
use resource::Resource;

use super::path::ResourcePath;

/// The priority of custom groups: after all built-in ones.
pub const CUSTOM_PRIORITY: u32 = 1_000;

/// The order of built-in groups in discovery; clients resolve ambiguous short names by this order.
const PRIORITIES: [(&str, u32); 23] = [
    ("apiregistration.k8s.io", 20_000),
    ("", 18_000),
    ("apps", 17_800),
    ("events.k8s.io", 17_750),
    ("authentication.k8s.io", 17_700),
    ("authorization.k8s.io", 17_600),
    ("autoscaling", 17_500),
    ("batch", 17_400),
    ("certificates.k8s.io", 17_300),
    ("networking.k8s.io", 17_200),
    ("policy", 17_100),
    ("rbac.authorization.k8s.io", 17_000),
    ("storage.k8s.io", 16_800),
    ("admissionregistration.k8s.io", 16_700),
    ("apiextensions.k8s.io", 16_700),
    ("scheduling.k8s.io", 16_600),
    ("coordination.k8s.io", 16_500),
    ("node.k8s.io", 16_300),
    ("discovery.k8s.io", 16_200),
    ("resource.k8s.io", 16_200),
    ("flowcontrol.apiserver.k8s.io", 16_100),
    ("internal.apiserver.k8s.io", 16_000),
    ("storagemigration.k8s.io", 15_800),
];

/// All served resources.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    groups: Vec<Group>,
    by_name: HashMap<Arc<str>, usize>,
    /// The names of definitions that cannot be read, plural and group. Their objects are stored, but cannot be
    /// served.
    unreadable: Arc<BTreeSet<String>>,
}

/// One group with its served versions.
#[derive(Clone, Debug)]
pub struct Group {
    /// The name, empty for the core group.
    pub name: Arc<str>,
    /// The served versions, the preferred one first.
    pub versions: Vec<Version>,
}

/// One served version of a group.
#[derive(Clone, Debug)]
pub struct Version {
    /// The name, such as `v1`.
    pub name: Arc<str>,
    /// Its resources, sorted by plural.
    pub resources: Vec<Arc<Resource>>,
    by_plural: HashMap<Arc<str>, Arc<Resource>>,
}

/// The resources of one group, while the catalog is built.
type ByVersion = HashMap<Arc<str>, Vec<Arc<Resource>>>;

impl Catalog {
    /// A catalog of these resources.
    pub fn new(resources: impl IntoIterator<Item = Arc<Resource>>) -> Catalog {
        let mut groups: HashMap<Arc<str>, ByVersion> = HashMap::new();
        for resource in resources {
            let version = groups.entry(resource.gv.group.clone()).or_default();
            version.entry(resource.gv.version.clone()).or_default().push(resource);
        }
        let mut groups: Vec<Group> =
            groups.into_iter().map(|(name, versions)| Group::new(name, versions)).collect();
        groups.sort_by(|a, b| priority(&b.name).cmp(&priority(&a.name)).then_with(|| a.name.cmp(&b.name)));
        let by_name = groups.iter().enumerate().map(|(index, group)| (group.name.clone(), index)).collect();
        Catalog { groups, by_name, unreadable: Arc::default() }
    }

    /// This catalog with custom resources. They cannot join a version that exists already, so that nobody can shadow built-in
    /// resources.
    pub fn with(&self, others: impl IntoIterator<Item = Arc<Resource>>) -> Catalog {
        let is_new = |resource: &Arc<Resource>| {
            let group = self.group(&resource.gv.group);
            group.and_then(|group| group.version(&resource.gv.version)).is_none()
        };
        Catalog::new(self.resources().cloned().chain(others.into_iter().filter(is_new)))
    }

    /// This catalog, which knows that these definitions cannot be read.
    #[must_use]
    pub fn with_unreadable(self, definitions: Arc<BTreeSet<String>>) -> Catalog {
        Catalog { unreadable: definitions, ..self }
    }

    /// The names of definitions that cannot be read.
    pub fn unreadable(&self) -> &Arc<BTreeSet<String>> {
        &self.unreadable
    }

    /// Whether a definition in this group cannot be read.
    pub fn has_unreadable(&self, group: &str) -> bool {
        let is_in = |name: &String| {
            name.split_once('.').is_some_and(|(_, definition_group)| definition_group == group)
        };
        self.unreadable.iter().any(is_in)
    }

    /// Refuses a request for a resource whose definition cannot be read. If it were unknown, clients would take its objects for
    /// removed.
    pub fn check_readable(&self, group: &str, plural: &str) -> Result<()> {
        if self.unreadable.is_empty() {
            return Ok(());
        }
        let name = format!("{plural}.{group}");
        if !self.unreadable.contains(&name) {
            return Ok(());
        }
        let resource = "customresourcedefinitions.apiextensions.k8s.io";
        Err(Status::unavailable(format!("{resource} {} cannot be read", quoted(&name))))
    }

    /// All groups in the order of discovery, including the core group.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter()
    }

    /// The group of this name, empty for the core group.
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.by_name.get(name).and_then(|index| self.groups.get(*index))
    }

    /// The resource `plural` of a group and version.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.group(group)?.version(version)?.by_plural.get(plural)
    }

    /// A resource in whichever version is served.
    pub fn find_in_any_version(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.group(group)?.versions.iter().find_map(|version| version.by_plural.get(plural))
    }

    /// The resource that a path names.
    pub fn resource_at(&self, path: &ResourcePath<'_>) -> Option<&Arc<Resource>> {
        self.find(path.group, path.version, path.resource)
    }

    /// Every resource of every version.
    pub fn resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.groups().flat_map(|group| &group.versions).flat_map(|version| &version.resources)
    }
}

impl Group {
    /// Whether it has built-in resources.
    pub fn is_builtin(&self) -> bool {
        self.versions.iter().flat_map(|version| &version.resources).any(|resource| resource.custom.is_none())
    }

    fn new(name: Arc<str>, versions: ByVersion) -> Group {
        let mut versions: Vec<Version> =
            versions.into_iter().map(|(name, resources)| Version::new(name, resources)).collect();
        versions.sort_by(|a, b| version::preferred_first(&a.name, &b.name));
        Group { name, versions }
    }

    /// The version of this name. A group has only a few, so scanning is faster than hashing.
    pub fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|version| *version.name == *name)
    }

    /// The preferred version.
    pub fn preferred(&self) -> Option<&Version> {
        self.versions.first()
    }
}

impl Version {
    fn new(name: Arc<str>, mut resources: Vec<Arc<Resource>>) -> Version {
        resources.sort_by(|a, b| a.plural.cmp(&b.plural));
        let by_plural =
            resources.iter().map(|resource| (resource.plural.clone(), resource.clone())).collect();
        Version { name, resources, by_plural }
    }
}

/// The position of a group in discovery.
pub fn priority(group: &str) -> u32 {
    PRIORITIES.iter().find(|(name, _)| *name == group).map_or(CUSTOM_PRIORITY, |(_, priority)| *priority)
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::query::Query;
    use pilothouse_apimachinery::version::GroupVersion;

    use super::build::Builtin;
    use super::runtime_config::RuntimeConfig;
    use super::*;
    use crate::path::Request;

    fn everything() -> Catalog {
        let config = RuntimeConfig::parse("api/all=true").unwrap();
        Builtin::load().unwrap().serve(&config).unwrap()
    }

    #[test]
    fn catalog_has_all_resources_of_release_1_33() {
        let catalog = everything();
        let versions: usize = catalog.groups().map(|group| group.versions.len()).sum();
        let subs: usize = catalog.resources().map(|resource| resource.subresources.len()).sum();
        assert_eq!((versions, catalog.resources().count(), subs), (35, 88, 51));
    }

    #[test]
    fn catalog_has_no_resources_removed_before_release_1_33() {
        let removed = [
            ("flowcontrol.apiserver.k8s.io", "v1beta3", ""),
            ("flowcontrol.apiserver.k8s.io", "v1beta2", ""),
            ("flowcontrol.apiserver.k8s.io", "v1beta1", ""),
            ("storage.k8s.io", "v1beta1", "csistoragecapacities"),
            ("autoscaling", "v2beta2", ""),
            ("autoscaling", "v2beta1", ""),
            ("batch", "v1beta1", ""),
            ("discovery.k8s.io", "v1beta1", ""),
            ("events.k8s.io", "v1beta1", ""),
            ("policy", "v1beta1", ""),
            ("node.k8s.io", "v1beta1", ""),
            ("admissionregistration.k8s.io", "v1beta1", "mutatingwebhookconfigurations"),
            ("admissionregistration.k8s.io", "v1beta1", "validatingwebhookconfigurations"),
            ("apiextensions.k8s.io", "v1beta1", ""),
            ("apiregistration.k8s.io", "v1beta1", ""),
            ("authentication.k8s.io", "v1beta1", ""),
            ("authorization.k8s.io", "v1beta1", ""),
            ("certificates.k8s.io", "v1beta1", "certificatesigningrequests"),
            ("coordination.k8s.io", "v1beta1", "leases"),
            ("networking.k8s.io", "v1beta1", "ingresses"),
            ("networking.k8s.io", "v1beta1", "ingressclasses"),
            ("rbac.authorization.k8s.io", "v1beta1", ""),
            ("scheduling.k8s.io", "v1beta1", ""),
            ("storage.k8s.io", "v1beta1", "csidrivers"),
            ("storage.k8s.io", "v1beta1", "csinodes"),
            ("storage.k8s.io", "v1beta1", "storageclasses"),
            ("storage.k8s.io", "v1beta1", "volumeattachments"),
            ("extensions", "v1beta1", ""),
            ("apps", "v1beta1", ""),
            ("apps", "v1beta2", ""),
        ];
        // Even with every known version enabled.
        let catalog = everything();
        for (group, version, plural) in removed {
            let served = catalog.group(group).and_then(|group| group.version(version));
            if plural.is_empty() {
                assert!(served.is_none(), "{group}/{version}");
            } else {
                assert!(catalog.find(group, version, plural).is_none(), "{group}/{version}/{plural}");
            }
        }
    }

    #[test]
    fn resource_is_found_in_any_version() {
        let catalog = everything();
        let find = |group, plural| {
            catalog.find_in_any_version(group, plural).map(|resource| resource.kind.to_string())
        };
        assert!(catalog.find("coordination.k8s.io", "v1", "leasecandidates").is_none());
        assert_eq!(find("coordination.k8s.io", "leasecandidates").as_deref(), Some("LeaseCandidate"));
        assert_eq!(find("coordination.k8s.io", "pods"), None);
        assert_eq!(find("nowhere", "pods"), None);
    }

    #[test]
    fn catalog_finds_resource_of_path() {
        let catalog = everything();
        let kind_at = |path| {
            let query = Query::default();
            let request = Request::parse("GET", path, &query).unwrap();
            catalog.resource_at(request.resource().unwrap()).map(|resource| resource.kind.to_string())
        };
        assert_eq!(kind_at("/api/v1/namespaces/n/pods/p/status").as_deref(), Some("Pod"));
        assert_eq!(kind_at("/apis/apps/v1/deployments").as_deref(), Some("Deployment"));
        assert_eq!(kind_at("/apis/apps/v2/deployments"), None);
        assert_eq!(kind_at("/api/v1/deployments"), None);
    }

    #[test]
    fn groups_are_in_discovery_order_with_custom_groups_last() {
        let catalog = everything();
        let config_maps = catalog.find("", "v1", "configmaps").unwrap();
        let custom = |group, version| {
            Arc::new(Resource { gv: GroupVersion::new(group, version), ..(**config_maps).clone() })
        };
        let more =
            catalog.with([custom("a.example.com", "v1"), custom("apps", "v1"), custom("apps", "v1alpha1")]);
        let names: Vec<&str> = more.groups().map(|group| &*group.name).collect();
        assert_eq!(names[..3], ["apiregistration.k8s.io", "", "apps"]);
        assert_eq!(names.last(), Some(&"a.example.com"));
        assert!(more.find("a.example.com", "v1", "configmaps").is_some());
        assert!(more.find("apps", "v1alpha1", "configmaps").is_some());
        assert!(
            more.find("apps", "v1", "configmaps").is_none(),
            "custom resources cannot shadow built-in versions"
        );
        assert!(catalog.group("a.example.com").is_none(), "the original catalog is unchanged");
        let resource: Vec<&str> =
            more.group("resource.k8s.io").unwrap().versions.iter().map(|version| &*version.name).collect();
        assert_eq!(resource, ["v1beta2", "v1beta1", "v1alpha3"]);
    }
}
