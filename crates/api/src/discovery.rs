//! Discovery documents. Each is written once per catalog and shared.

mod merged;

use std::collections::HashMap;
use std::sync::OnceLock;

use bytes::Bytes;
use openssl::sha::sha512;
use pilothouse_apimachinery::well_known::DISCOVERY_GROUP;
use serde::Serialize;

use self::merged::{MergedGroup, VersionSource};
use super::aggregation::RegisteredVersion;
use super::aggregation::discovered::{CURRENT, DiscoveredVersion, STALE};
use super::catalog::resource::{Resource, Subresource};
use super::catalog::{Catalog, Version};

pub use self::merged::default_priorities;

/// One document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The kind of the document.
    pub kind: &'static str,
    /// The JSON text, in the reference's field order.
    pub json: Bytes,
    /// The same with a line break at its end, as it is sent to clients. Both are slices of one buffer, which all responses share.
    pub line: Bytes,
    /// The quoted strong ETag, if the document supports conditional requests.
    pub etag: Option<String>,
}

impl Document {
    fn new(kind: &'static str, mut text: Vec<u8>, etag: Option<String>) -> Document {
        text.push(b'\n');
        let line = Bytes::from(text);
        Document { kind, json: line.slice(..line.len() - 1), line, etag }
    }

    /// An aggregated document that says that its version is v2beta1. Its ETag stays, as in the reference.
    fn in_beta_version(&self) -> Document {
        let api_version = |version: &str| format!("\"apiVersion\":\"{DISCOVERY_GROUP}/{version}\"");
        let text = String::from_utf8_lossy(&self.json);
        let text = text.replacen(&api_version("v2"), &api_version("v2beta1"), 1);
        Document::new(self.kind, text.into_bytes(), self.etag.clone())
    }
}

/// The documents of one catalog.
#[derive(Clone, Debug)]
pub struct Documents {
    /// `/api`.
    pub api: Document,
    /// `/apis`.
    pub apis: Document,
    /// `/api` as aggregated discovery.
    pub aggregated_api: Document,
    /// `/apis` as aggregated discovery.
    pub aggregated_apis: Document,
    /// The same two in the form that clients of older releases ask for, made when they are first asked for.
    beta: OnceLock<[Document; 2]>,
    /// By path, without a final slash: `/api/v1`, `/apis/apps`, `/apis/apps/v1`.
    by_path: HashMap<String, Document>,
    /// Paths of documents that extension API servers serve.
    extension_paths: Vec<String>,
}

impl Documents {
    /// Writes the documents of a catalog. `address`: host and port for clients outside of the cluster.
    pub fn new(catalog: &Catalog, address: &str) -> Documents {
        Documents::with_extensions(catalog, address, &[])
    }

    /// Writes the documents of a catalog and of extension API servers.
    pub fn with_extensions(catalog: &Catalog, address: &str, others: &[RegisteredVersion]) -> Documents {
        let (mut by_path, mut extension_paths) = (HashMap::new(), Vec::new());
        let groups = MergedGroup::all(catalog, others);
        for group in &groups {
            let prefix =
                if group.name.is_empty() { "/api".to_owned() } else { format!("/apis/{}", group.name) };
            if !group.name.is_empty() {
                by_path.insert(prefix.clone(), document("APIGroup", &ApiGroup::new(group, true)));
            }
            for version in &group.versions {
                let path = format!("{prefix}/{}", version.name);
                match version.source {
                    // From an incomplete list clients would conclude that objects of the missing resources are deleted.
                    VersionSource::Catalog(_) if version.is_stale => {}
                    VersionSource::Catalog(version) => {
                        let list = ApiResourceList::new(group.name, version);
                        by_path.insert(path, document("APIResourceList", &list));
                    }
                    VersionSource::Extension(_) => extension_paths.push(path),
                    VersionSource::None => {}
                }
            }
        }
        let (core, named): (Vec<&MergedGroup<'_>>, Vec<&MergedGroup<'_>>) =
            groups.iter().partition(|group| group.name.is_empty());
        let listed = merged::by_registration(&named);
        Documents {
            api: document("APIVersions", &ApiVersions::new(&core, address)),
            apis: document("APIGroupList", &ApiGroupList::new(&listed)),
            aggregated_api: document_with_etag("APIGroupDiscoveryList", &GroupDiscoveryList::new(&core)),
            aggregated_apis: document_with_etag("APIGroupDiscoveryList", &GroupDiscoveryList::new(&named)),
            beta: OnceLock::new(),
            by_path,
            extension_paths,
        }
    }

    /// The document at a path, which may end in a slash.
    pub fn get(&self, path: &str) -> Option<&Document> {
        match path.strip_suffix('/').unwrap_or(path) {
            "/api" => Some(&self.api),
            "/apis" => Some(&self.apis),
            path => self.by_path.get(path),
        }
    }

    /// All paths of documents.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        let all = self.by_path.keys().chain(&self.extension_paths);
        all.map(String::as_str).chain(["/api", "/apis", "/apis/"])
    }

    /// The aggregated document at a path.
    pub fn aggregated_at(&self, path: &str) -> Option<&Document> {
        match path.strip_suffix('/').unwrap_or(path) {
            "/api" => Some(&self.aggregated_api),
            "/apis" => Some(&self.aggregated_apis),
            _ => None,
        }
    }

    /// The aggregated document at a path, in version v2beta1, which has the same fields.
    pub fn beta_aggregated_at(&self, path: &str) -> Option<&Document> {
        let index = match path.strip_suffix('/').unwrap_or(path) {
            "/api" => 0,
            "/apis" => 1,
            _ => return None,
        };
        let both = || [&self.aggregated_api, &self.aggregated_apis].map(Document::in_beta_version);
        self.beta.get_or_init(both).get(index)
    }
}

#[expect(clippy::expect_used, reason = "serializing strings, numbers and lists of them cannot fail")]
fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("a document of plain fields")
}

fn document(kind: &'static str, value: &impl Serialize) -> Document {
    Document::new(kind, encode(value), None)
}

fn document_with_etag(kind: &'static str, value: &impl Serialize) -> Document {
    let json = encode(value);
    let digest: String = sha512(&json).iter().map(|byte| format!("{byte:02X}")).collect();
    Document::new(kind, json, Some(format!("\"{digest}\"")))
}

/// The field `groupVersion`.
fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// The verbs of a resource, in the reference's order.
fn verb_names(resource: &Resource) -> Vec<&'static str> {
    let Some(custom) = &resource.custom else {
        return resource.verbs.iter().map(|verb| verb.as_str()).collect();
    };
    if custom.is_terminating {
        return vec!["delete", "deletecollection", "get", "list", "watch"];
    }
    vec!["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]
}

fn names(list: &[std::sync::Arc<str>]) -> Vec<&str> {
    list.iter().map(|name| &**name).collect()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiVersions<'a> {
    kind: &'static str,
    versions: Vec<&'a str>,
    #[serde(rename = "serverAddressByClientCIDRs")]
    server_addresses: [ServerAddress<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ServerAddress<'a> {
    #[serde(rename = "clientCIDR")]
    client_cidr: &'static str,
    server_address: &'a str,
}

impl<'a> ApiVersions<'a> {
    fn new(core: &[&MergedGroup<'a>], address: &'a str) -> ApiVersions<'a> {
        ApiVersions {
            kind: "APIVersions",
            versions: core.iter().flat_map(|group| &group.versions).map(|version| version.name).collect(),
            server_addresses: [ServerAddress { client_cidr: "0.0.0.0/0", server_address: address }],
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiGroupList<'a> {
    kind: &'static str,
    api_version: &'static str,
    groups: Vec<ApiGroup<'a>>,
}

impl<'a> ApiGroupList<'a> {
    fn new(groups: &[&MergedGroup<'a>]) -> ApiGroupList<'a> {
        let groups = groups.iter().map(|group| ApiGroup::new(group, false)).collect();
        ApiGroupList { kind: "APIGroupList", api_version: "v1", groups }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiGroup<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    name: &'a str,
    versions: Vec<NamedVersion<'a>>,
    preferred_version: Option<NamedVersion<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NamedVersion<'a> {
    group_version: String,
    version: &'a str,
}

impl<'a> ApiGroup<'a> {
    /// `is_document`: whether the group is a document of its own, which has kind and apiVersion.
    fn new(group: &MergedGroup<'a>, is_document: bool) -> ApiGroup<'a> {
        let named = |version: &merged::VersionEntry<'a>| NamedVersion {
            group_version: group_version(group.name, version.name),
            version: version.name,
        };
        ApiGroup {
            kind: is_document.then_some("APIGroup"),
            api_version: is_document.then_some("v1"),
            name: group.name,
            versions: group.versions.iter().map(named).collect(),
            preferred_version: group.versions.first().map(named),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiResourceList<'a> {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    group_version: String,
    resources: Vec<ApiResource<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiResource<'a> {
    name: String,
    singular_name: &'a str,
    namespaced: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    version: &'a str,
    kind: &'a str,
    verbs: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    short_names: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    categories: Vec<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    storage_version_hash: &'a str,
}

impl<'a> ApiResourceList<'a> {
    fn new(group: &str, version: &'a Version) -> ApiResourceList<'a> {
        let mut resources = Vec::new();
        for resource in &version.resources {
            resources.push(ApiResource::new(resource));
            resources
                .extend(resource.subresources.iter().map(|sub| ApiResource::for_subresource(resource, sub)));
        }
        ApiResourceList {
            kind: "APIResourceList",
            // The core document never had an apiVersion, and clients' caches compare it byte by byte.
            api_version: (!group.is_empty()).then_some("v1"),
            group_version: group_version(group, &version.name),
            resources,
        }
    }
}

impl<'a> ApiResource<'a> {
    fn new(resource: &'a Resource) -> ApiResource<'a> {
        ApiResource {
            name: resource.plural.to_string(),
            singular_name: &resource.singular,
            namespaced: resource.namespaced,
            group: "",
            version: "",
            kind: &resource.kind,
            verbs: verb_names(resource),
            short_names: names(&resource.short_names),
            categories: names(&resource.categories),
            storage_version_hash: resource.stored().map_or("", |stored| &stored.hash),
        }
    }

    fn for_subresource(resource: &'a Resource, sub: &'a Subresource) -> ApiResource<'a> {
        // Only a kind of another group version states it.
        let (group, version): (&str, &str) =
            if sub.gv == resource.gv { ("", "") } else { (&sub.gv.group, &sub.gv.version) };
        ApiResource {
            name: format!("{}/{}", resource.plural, sub.name),
            singular_name: "",
            namespaced: resource.namespaced,
            group,
            version,
            kind: &sub.kind,
            verbs: sub.verbs.iter().map(|verb| verb.as_str()).collect(),
            short_names: Vec::new(),
            categories: Vec::new(),
            storage_version_hash: "",
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupDiscoveryList<'a> {
    kind: &'static str,
    api_version: String,
    metadata: Empty,
    items: Vec<GroupDiscovery<'a>>,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
struct GroupDiscovery<'a> {
    metadata: GroupMeta<'a>,
    versions: Vec<AnyVersion<'a>>,
}

/// A version of this server or of an extension API server.
#[derive(Serialize)]
#[serde(untagged)]
enum AnyVersion<'a> {
    Own(VersionDiscovery<'a>),
    Extension(&'a DiscoveredVersion),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupMeta<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    creation_timestamp: Option<()>,
}

#[derive(Serialize)]
struct VersionDiscovery<'a> {
    version: &'a str,
    resources: Vec<ResourceDiscovery<'a>>,
    freshness: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceDiscovery<'a> {
    resource: &'a str,
    response_kind: ResponseKind<'a>,
    scope: &'static str,
    singular_resource: &'a str,
    verbs: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    short_names: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    categories: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subresources: Vec<SubresourceDiscovery<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SubresourceDiscovery<'a> {
    subresource: &'a str,
    response_kind: ResponseKind<'a>,
    verbs: Vec<&'static str>,
}

#[derive(Serialize)]
struct ResponseKind<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
}

impl<'a> GroupDiscoveryList<'a> {
    fn new(groups: &[&MergedGroup<'a>]) -> GroupDiscoveryList<'a> {
        let version = |entry: &merged::VersionEntry<'a>| match entry.source {
            VersionSource::Catalog(version) => {
                let freshness = if entry.is_stale { STALE } else { CURRENT };
                Some(AnyVersion::Own(VersionDiscovery { freshness, ..VersionDiscovery::new(version) }))
            }
            VersionSource::Extension(version) => Some(AnyVersion::Extension(version)),
            VersionSource::None if entry.is_stale => {
                let (version, resources) = (entry.name, Vec::new());
                Some(AnyVersion::Own(VersionDiscovery { version, resources, freshness: STALE }))
            }
            VersionSource::None => None,
        };
        let items = groups.iter().map(|group| GroupDiscovery {
            metadata: GroupMeta { name: group.name, creation_timestamp: None },
            versions: group.versions.iter().filter_map(version).collect(),
        });
        // A registered group without any discovered version is omitted.
        let items = items.filter(|group| !group.versions.is_empty());
        GroupDiscoveryList {
            kind: "APIGroupDiscoveryList",
            api_version: format!("{DISCOVERY_GROUP}/v2"),
            metadata: Empty {},
            items: items.collect(),
        }
    }
}

impl<'a> VersionDiscovery<'a> {
    fn new(version: &'a Version) -> VersionDiscovery<'a> {
        let resources = version.resources.iter().map(|resource| ResourceDiscovery::new(resource));
        VersionDiscovery { version: &version.name, resources: resources.collect(), freshness: CURRENT }
    }
}

impl<'a> ResourceDiscovery<'a> {
    fn new(resource: &'a Resource) -> ResourceDiscovery<'a> {
        let listed = ApiResource::new(resource);
        let subresources = resource.subresources.iter().map(|sub| {
            let listed = ApiResource::for_subresource(resource, sub);
            let response_kind =
                ResponseKind { group: listed.group, version: listed.version, kind: listed.kind };
            SubresourceDiscovery { subresource: &sub.name, response_kind, verbs: listed.verbs }
        });
        ResourceDiscovery {
            resource: &resource.plural,
            response_kind: ResponseKind { group: "", version: "", kind: listed.kind },
            scope: if resource.namespaced { "Namespaced" } else { "Cluster" },
            singular_resource: listed.singular_name,
            verbs: listed.verbs,
            short_names: listed.short_names,
            categories: listed.categories,
            subresources: subresources.collect(),
        }
    }
}

#[cfg(test)]
mod tests;
