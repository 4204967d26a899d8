//! Finds the resources to migrate.

use std::collections::BTreeSet;
use std::fmt;

use pilothouse_apimachinery::well_known::{AGGREGATED_DISCOVERY, API_SERVICES_PATH};
use serde::Deserialize;

use super::api::{Api, Failure, parse};

/// Where the groups are listed.
const ROOTS: [&str; 2] = ["/api", "/apis"];
/// The group version and the resource of migrations.
pub(super) const MIGRATIONS: (&str, &str, &str) =
    ("storagemigration.k8s.io", "v1alpha1", "storageversionmigrations");

/// A resource in the version in which its objects are rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MigratedResource {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) plural: String,
    pub(super) kind: String,
    /// Whether the operator has chosen the version.
    pub(super) has_chosen_version: bool,
}

impl fmt::Display for MigratedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.plural)?;
        if self.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.group) }
    }
}

impl MigratedResource {
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The path of the group version.
    pub(super) fn version_path(&self) -> String {
        match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }
}

#[derive(Debug, Deserialize)]
struct GroupList {
    #[serde(default)]
    items: Vec<Group>,
}

#[derive(Debug, Deserialize)]
struct Group {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Debug, Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
}

#[derive(Debug, Deserialize)]
struct Version {
    version: String,
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    resource: String,
    #[serde(default)]
    response_kind: Kind,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Kind {
    #[serde(default)]
    kind: String,
}

impl Resource {
    /// Whether its objects can be listed and rewritten.
    fn is_migratable(&self) -> bool {
        ["list", "patch"].iter().all(|verb| self.verbs.iter().any(|supported| supported == verb))
    }
}

/// What the server serves.
#[derive(Debug)]
pub(super) struct Discovery {
    groups: Vec<Group>,
}

impl Discovery {
    pub(super) async fn read(api: &Api) -> Result<Discovery, Failure> {
        let mut groups = Vec::new();
        for root in ROOTS {
            let Some(document) = api.get(root, AGGREGATED_DISCOVERY).await? else { continue };
            groups.extend(parse::<GroupList>(root, document)?.items);
        }
        Ok(Discovery { groups })
    }

    /// All resources that can be migrated, in the preferred version of each.
    fn resources(&self) -> impl Iterator<Item = (&Group, MigratedResource)> {
        self.groups.iter().flat_map(|group| {
            let mut seen = BTreeSet::new();
            let versions = group.versions.iter();
            let all =
                versions.flat_map(|version| version.resources.iter().map(move |found| (version, found)));
            let first = all.filter(move |(_, resource)| seen.insert(resource.resource.clone()));
            let migratable = first.filter(|(_, resource)| resource.is_migratable());
            migratable.map(move |(version, resource)| (group, migrated(group, version, resource)))
        })
    }

    /// The resource of this name: plural, plural and group, or plural, version and group.
    pub(super) fn find(&self, name: &str) -> Result<MigratedResource, Failure> {
        let (plural, rest) = name.split_once('.').unwrap_or((name, ""));
        let by_group = |wanted: &str| {
            self.resources().find(|(group, found)| group.metadata.name == wanted && found.plural == plural)
        };
        if rest.is_empty() {
            return self.find_plural(plural);
        }
        if let Some((_, resource)) = by_group(rest) {
            return Ok(resource);
        }
        let unknown = || Failure::Unknown(name.to_owned());
        let (version, group) = rest.split_once('.').unwrap_or((rest, ""));
        let (_, mut resource) = by_group(group).ok_or_else(unknown)?;
        if !self.set_version(&mut resource, version) {
            return Err(unknown());
        }
        resource.has_chosen_version = true;
        Ok(resource)
    }

    /// The resource with this plural. Without a group it is that of the core group, or the only one.
    fn find_plural(&self, plural: &str) -> Result<MigratedResource, Failure> {
        let mut all: Vec<MigratedResource> = self
            .resources()
            .map(|(_, resource)| resource)
            .filter(|resource| resource.plural == plural)
            .collect();
        if let Some(core) = all.iter().find(|resource| resource.group.is_empty()) {
            return Ok(core.clone());
        }
        match all.len() {
            0 => Err(Failure::Unknown(plural.to_owned())),
            1 => Ok(all.remove(0)),
            _ => {
                let groups = all.into_iter().map(|resource| resource.group).collect();
                Err(Failure::Ambiguous { name: plural.to_owned(), groups })
            }
        }
    }

    /// Lets a resource be migrated in this version, if it is served. Returns whether it is.
    pub(super) fn set_version(&self, resource: &mut MigratedResource, version: &str) -> bool {
        let versions = self.groups.iter().filter(|group| group.metadata.name == resource.group);
        let is_served = versions
            .flat_map(|group| &group.versions)
            .filter(|found| found.version == version)
            .flat_map(|found| &found.resources)
            .any(|found| found.resource == resource.plural && found.is_migratable());
        if is_served {
            version.clone_into(&mut resource.version);
        }
        is_served
    }

    /// All resources that this server stores itself.
    pub(super) async fn all(&self, api: &Api) -> Result<Vec<MigratedResource>, Failure> {
        let registered = api.get_json(API_SERVICES_PATH).await?;
        let mut foreign = BTreeSet::new();
        for service in registered["items"].as_array().into_iter().flatten() {
            if service["spec"]["service"].is_object() {
                foreign.insert(service["spec"]["group"].as_str().unwrap_or_default().to_owned());
            }
        }
        let own = self.resources().filter(|(group, _)| !foreign.contains(&group.metadata.name));
        Ok(own.map(|(_, resource)| resource).collect())
    }

    /// Whether the server serves StorageVersionMigrations.
    pub(super) fn serves_migrations(&self) -> bool {
        let (group, version, plural) = MIGRATIONS;
        let groups = self.groups.iter().filter(|found| found.metadata.name == group);
        let versions = groups.flat_map(|group| &group.versions).filter(|found| found.version == version);
        versions.flat_map(|version| &version.resources).any(|found| found.resource == plural)
    }
}

fn migrated(group: &Group, version: &Version, resource: &Resource) -> MigratedResource {
    MigratedResource {
        group: group.metadata.name.clone(),
        version: version.version.clone(),
        plural: resource.resource.clone(),
        kind: resource.response_kind.kind.clone(),
        has_chosen_version: false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn discovery() -> Discovery {
        let resource = |name: &str, kind: &str, verbs: &[&str]| json!({"resource": name, "responseKind": {"kind": kind}, "verbs": verbs});
        let stored = ["create", "list", "patch"];
        let documents = [
            json!({"items": [{"metadata": {}, "versions": [{"version": "v1", "resources": [
                resource("pods", "Pod", &stored), resource("bindings", "Binding", &["create"]),
                resource("events", "Event", &stored)]}]}]}),
            json!({"items": [
                {"metadata": {"name": "toys.example"}, "versions": [
                    {"version": "v2", "resources": [resource("kites", "Kite", &stored)]},
                    {"version": "v1", "resources": [resource("kites", "Kite", &stored), resource("tops", "Top", &stored)]}]},
                {"metadata": {"name": "events.k8s.io"}, "versions": [
                    {"version": "v1", "resources": [resource("events", "Event", &stored)]}]},
                {"metadata": {"name": "other.example"}, "versions": [
                    {"version": "v1", "resources": [resource("tops", "Top", &stored)]}]}]}),
        ];
        let groups = documents.into_iter().flat_map(|list| parse::<GroupList>("", list).unwrap().items);
        Discovery { groups: groups.collect() }
    }

    #[test]
    fn resource_is_found_by_plural_group_and_version() {
        let discovery = discovery();
        let found = |name: &str| discovery.find(name).map(|found| format!("{found} {}", found.api_version()));
        assert_eq!(found("pods").unwrap(), "pods v1");
        assert_eq!(found("kites").unwrap(), "kites.toys.example toys.example/v2");
        assert_eq!(found("kites.toys.example").unwrap(), "kites.toys.example toys.example/v2");
        assert_eq!(found("kites.v1.toys.example").unwrap(), "kites.toys.example toys.example/v1");
        assert_eq!(found("events").unwrap(), "events v1", "the core group comes first");
        assert_eq!(found("events.events.k8s.io").unwrap(), "events.events.k8s.io events.k8s.io/v1");
        assert_eq!(found("pods.v1").unwrap(), "pods v1");
        for name in ["bindings", "kite", "kites.v3.toys.example", "pods.apps"] {
            assert!(matches!(discovery.find(name), Err(Failure::Unknown(_))), "{name}");
        }
        let ambiguous = discovery.find("tops").err().unwrap().to_string();
        assert_eq!(ambiguous, "several groups have a resource \"tops\": toys.example, other.example");
        assert!(!discovery.serves_migrations());
    }
}
