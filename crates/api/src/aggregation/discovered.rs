//! Parses the discovery documents of an extension API server defensively. Missing fields are empty, unknown ones are dropped.

use std::collections::BTreeMap;

use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::JSON;
use serde::{Deserialize, Deserializer, Serialize};

use crate::limits::EXTENSION_DOCUMENT_OBJECTS;

/// The freshness of a version whose last discovery succeeded.
pub const CURRENT: &str = "Current";
/// The freshness of a version whose discovery failed.
pub const STALE: &str = "Stale";

/// One version of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiscoveredVersion {
    /// Its name.
    pub version: String,
    /// Its resources.
    #[serde(deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<DiscoveredResource>,
    /// [`CURRENT`] or [`STALE`].
    pub freshness: String,
}

/// A resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiscoveredResource {
    /// Its plural.
    pub resource: String,
    /// The kind of its responses; empty if the server does not say. Old clients fail if the field is missing.
    #[serde(deserialize_with = "null_as_default")]
    pub response_kind: DiscoveredKind,
    /// `Namespaced` or `Cluster`.
    pub scope: String,
    /// Its singular.
    pub singular_resource: String,
    /// The verbs it supports.
    pub verbs: Option<Vec<String>>,
    /// Its short names.
    #[serde(deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
    pub short_names: Vec<String>,
    /// The categories that it is in.
    #[serde(deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// Its subresources.
    #[serde(deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
    pub subresources: Vec<DiscoveredSubresource>,
}

/// A subresource in aggregated discovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiscoveredSubresource {
    /// Its name, without the resource.
    pub subresource: String,
    /// The kind of its responses; empty if the server does not say.
    #[serde(deserialize_with = "null_as_default")]
    pub response_kind: DiscoveredKind,
    /// The kinds of its request bodies.
    #[serde(deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
    pub accepted_types: Vec<DiscoveredKind>,
    /// The verbs it supports.
    pub verbs: Option<Vec<String>>,
}

/// A kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiscoveredKind {
    /// Its group.
    pub group: String,
    /// Its version.
    pub version: String,
    /// Its name.
    pub kind: String,
}

fn null_as_empty<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    Option::<Vec<T>>::deserialize(from).map(Option::unwrap_or_default)
}

fn null_as_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

/// The discovery of an extension server, by group and version.
pub type Versions = BTreeMap<GroupVersion, DiscoveredVersion>;

impl DiscoveredVersion {
    /// A version without known resources.
    pub fn bare(version: &str, freshness: &str) -> DiscoveredVersion {
        DiscoveredVersion {
            version: version.to_owned(),
            resources: Vec::new(),
            freshness: freshness.to_owned(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Groups {
    #[serde(deserialize_with = "null_as_empty")]
    items: Vec<DiscoveredGroup>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DiscoveredGroup {
    metadata: GroupMetadata,
    #[serde(deserialize_with = "null_as_empty")]
    versions: Vec<DiscoveredVersion>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GroupMetadata {
    name: String,
}

/// Parses a document, unless it has so many objects that parsing would multiply its size in memory.
fn read<'t, T: Deserialize<'t>>(text: &'t [u8]) -> Option<T> {
    let objects = memchr::memchr_iter(b'{', text).count();
    if objects > EXTENSION_DOCUMENT_OBJECTS { None } else { serde_json::from_slice(text).ok() }
}

/// Whether this is the media type of an aggregated discovery document.
pub fn is_aggregated(content_type: &str) -> bool {
    let mut parts = content_type.split(';').map(str::trim);
    let has_parameter = |parameter: &str| content_type.split(';').any(|part| part.trim() == parameter);
    parts.next() == Some(JSON)
        && has_parameter("g=apidiscovery.k8s.io")
        && has_parameter("as=APIGroupDiscoveryList")
        && (has_parameter("v=v2") || has_parameter("v=v2beta1"))
}

/// Parses an aggregated discovery document. `None`: the text is not one.
pub fn read_all(text: &[u8]) -> Option<Versions> {
    let groups: Groups = read(text)?;
    let mut versions = Versions::new();
    for group in groups.items {
        for mut version in group.versions {
            CURRENT.clone_into(&mut version.freshness);
            versions.insert(GroupVersion::new(&group.metadata.name, &version.version), version);
        }
    }
    Some(versions)
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resources {
    #[serde(deserialize_with = "null_as_empty")]
    resources: Vec<ListedResource>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListedResource {
    name: String,
    singular_name: String,
    namespaced: bool,
    group: String,
    version: String,
    kind: String,
    verbs: Option<Vec<String>>,
    #[serde(deserialize_with = "null_as_empty")]
    short_names: Vec<String>,
    #[serde(deserialize_with = "null_as_empty")]
    categories: Vec<String>,
}

impl ListedResource {
    fn scope(&self) -> &'static str {
        if self.namespaced { "Namespaced" } else { "Cluster" }
    }

    fn kind(&self) -> DiscoveredKind {
        match self.kind.is_empty() {
            true => DiscoveredKind::default(),
            false => DiscoveredKind {
                group: self.group.clone(),
                version: self.version.clone(),
                kind: self.kind.clone(),
            },
        }
    }
}

/// Parses an APIResourceList, for servers without aggregated discovery. `None`: the text is not one.
pub fn read_one(version: &str, text: &[u8]) -> Option<DiscoveredVersion> {
    let list: Resources = read(text)?;
    let mut discovered = DiscoveredVersion::bare(version, CURRENT);
    for entry in list.resources.iter().filter(|entry| !entry.name.contains('/')) {
        discovered.resources.push(DiscoveredResource {
            resource: entry.name.clone(),
            response_kind: entry.kind(),
            scope: entry.scope().to_owned(),
            singular_resource: entry.singular_name.clone(),
            verbs: entry.verbs.clone(),
            short_names: entry.short_names.clone(),
            categories: entry.categories.clone(),
            subresources: Vec::new(),
        });
    }
    for entry in &list.resources {
        let Some((parent, subresource)) = entry.name.split_once('/') else { continue };
        let index =
            discovered.resources.iter().position(|resource| resource.resource == parent).unwrap_or_else(
                || {
                    discovered.resources.push(DiscoveredResource {
                        resource: parent.to_owned(),
                        scope: entry.scope().to_owned(),
                        ..DiscoveredResource::default()
                    });
                    discovered.resources.len() - 1
                },
            );
        let parent = discovered.resources.get_mut(index).filter(|parent| parent.scope == entry.scope())?;
        parent.subresources.push(DiscoveredSubresource {
            subresource: subresource.to_owned(),
            response_kind: entry.kind(),
            accepted_types: Vec::new(),
            verbs: entry.verbs.clone(),
        });
    }
    Some(discovered)
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OpenApiIndex {
    paths: BTreeMap<String, OpenApiDocument>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OpenApiDocument {
    #[serde(rename = "serverRelativeURL")]
    url: String,
}

/// Parses the index of OpenAPI v3: the URL of each document by its name. `None`: the text is not an index.
pub fn read_openapi_index(text: &[u8]) -> Option<BTreeMap<String, String>> {
    let index: OpenApiIndex = read(text)?;
    Some(index.paths.into_iter().map(|(name, document)| (name, document.url)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregated_discovery_is_recognized_by_its_media_type() {
        assert!(is_aggregated("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"));
        assert!(is_aggregated(
            "application/json; as=APIGroupDiscoveryList; v=v2beta1; g=apidiscovery.k8s.io"
        ));
        for other in
            ["application/json", "", "application/json;v=v2", "text/plain;g=apidiscovery.k8s.io;v=v2"]
        {
            assert!(!is_aggregated(other), "{other}");
        }
    }

    #[test]
    fn aggregated_discovery_is_read_by_version() {
        let text = br#"{"kind":"APIGroupDiscoveryList","items":[{"metadata":{"name":"m.io","creationTimestamp":null},"versions":[
            {"version":"v1","resources":[{"resource":"nodes","responseKind":null,"scope":"Cluster","singularResource":"node",
            "verbs":["get"],"subresources":[{"subresource":"x","verbs":null}]}],"freshness":"Stale"},{"version":"v2"}]}]}"#;
        let all = read_all(text).unwrap();
        assert_eq!(all.len(), 2);
        let first = serde_json::to_string(&all[&GroupVersion::new("m.io", "v1")]).unwrap();
        assert_eq!(
            first,
            r#"{"version":"v1","resources":[{"resource":"nodes","responseKind":{"group":"","version":"","kind":""},"scope":"Cluster","singularResource":"node","verbs":["get"],"subresources":[{"subresource":"x","responseKind":{"group":"","version":"","kind":""},"verbs":null}]}],"freshness":"Current"}"#
        );
        let bare = serde_json::to_string(&DiscoveredVersion::bare("v1", STALE)).unwrap();
        assert_eq!(bare, r#"{"version":"v1","freshness":"Stale"}"#);
        assert_eq!(read_all(b"nonsense"), None);
        assert_eq!(read_all(b"{}"), Some(Versions::new()));
    }

    #[test]
    fn resource_list_is_read_as_discovered_version() {
        let text = br#"{"kind":"APIResourceList","groupVersion":"m.io/v1","resources":[
            {"name":"pods/log","singularName":"","namespaced":true,"kind":"","verbs":["get"]},
            {"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get","list"],"shortNames":["po"]},
            {"name":"gone/status","singularName":"","namespaced":false,"kind":"Gone","verbs":["get"]}]}"#;
        let discovered = read_one("v1", text).unwrap();
        let names: Vec<&str> =
            discovered.resources.iter().map(|resource| resource.resource.as_str()).collect();
        assert_eq!(names, ["pods", "gone"]);
        assert_eq!(discovered.resources[0].subresources[0].subresource, "log");
        assert_eq!(discovered.resources[0].response_kind.kind, "Pod");
        assert_eq!(discovered.resources[1].scope, "Cluster");
        let mixed = br#"{"resources":[{"name":"a","namespaced":true},{"name":"a/b","namespaced":false}]}"#;
        assert_eq!(read_one("v1", mixed), None, "a subresource has the scope of its resource");
        assert_eq!(read_one("v1", b"nonsense"), None);
    }

    #[test]
    fn discovery_with_too_many_objects_is_refused() {
        let read_with = |resources: usize| {
            let resources = vec!["{}"; resources].join(",");
            read_all(
                format!(r#"{{"items":[{{"versions":[{{"version":"v1","resources":[{resources}]}}]}}]}}"#)
                    .as_bytes(),
            )
        };
        assert!(read_with(EXTENSION_DOCUMENT_OBJECTS / 2).is_some());
        assert_eq!(read_with(EXTENSION_DOCUMENT_OBJECTS), None);
    }

    #[test]
    fn openapi_index_maps_names_to_urls() {
        let text = br#"{"paths":{"apis/m.io/v1":{"serverRelativeURL":"/openapi/v3/apis/m.io/v1?hash=1"},"version":{}}}"#;
        let index = read_openapi_index(text).unwrap();
        assert_eq!(index["apis/m.io/v1"], "/openapi/v3/apis/m.io/v1?hash=1");
        assert_eq!(index["version"], "");
        assert_eq!(read_openapi_index(b"x"), None);
    }
}
