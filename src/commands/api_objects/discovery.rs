//! The resources of a server, from its discovery.

use std::collections::{BTreeMap, BTreeSet};

use hyper::Method;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::API_SERVICES_PATH;

use super::requests::{Error, Requests};
use crate::commands::object_stream::resource::Resource;
use crate::limits;

/// Discovery in one document per root, in either of its versions; the second is that of servers before 1.30.
const DISCOVERY_FORMS: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// A group and a version of it.
type GroupVersionName = (String, String);

/// A resource and what can be done with it.
struct Discovered {
    resource: Resource,
    verbs: BTreeSet<String>,
}

/// The resources whose objects can be listed and created, each in the version that its group prefers.
pub(super) async fn exportable(requests: &Requests) -> Result<Vec<Resource>, String> {
    let aggregated = aggregated_versions(requests).await?;
    let mut by_name: BTreeMap<String, Resource> = BTreeMap::new();
    for document in documents(requests).await? {
        for Discovered { resource, verbs } in parse(&document, &aggregated)? {
            // What cannot be listed is not stored, and what cannot be created (componentstatuses) cannot be imported.
            if ["list", "create"].iter().all(|verb| verbs.contains(*verb)) {
                // The versions of a group come in the order of preference.
                by_name.entry(resource.full_name()).or_insert(resource);
            }
        }
    }
    // The events of both groups are the same objects.
    if by_name.contains_key("events") {
        by_name.remove("events.events.k8s.io");
    }
    Ok(by_name.into_values().collect())
}

/// The resources whose objects can be created, in all versions.
pub(super) async fn importable(requests: &Requests) -> Result<Vec<Resource>, String> {
    let mut resources = Vec::new();
    for document in documents(requests).await? {
        // A version that is missing because its server cannot be reached fails only for objects of it.
        for Discovered { resource, verbs } in parse_lenient(&document) {
            if verbs.contains("create") {
                resources.push(resource);
            }
        }
    }
    Ok(resources)
}

async fn documents(requests: &Requests) -> Result<Vec<Value>, String> {
    let mut documents = Vec::new();
    for root in ["/api", "/apis"] {
        let bound = limits::DISCOVERY_BYTES;
        let response = requests.send_accepting(DISCOVERY_FORMS, Method::GET, root, None, bound).await;
        let response = response.map_err(|error| format!("discovery: {error}"))?;
        let document = json::read(&response.body).map_err(|error| format!("discovery: {error}"))?;
        if document.str("kind") != "APIGroupDiscoveryList" {
            return Err("the server has no aggregated discovery, which Kubernetes has since 1.26".to_owned());
        }
        documents.push(document);
    }
    Ok(documents)
}

/// The versions that other servers have, behind this one.
async fn aggregated_versions(requests: &Requests) -> Result<BTreeSet<GroupVersionName>, String> {
    let list = match requests.send(Method::GET, API_SERVICES_PATH, None, limits::DISCOVERY_BYTES).await {
        Ok(response) => json::read(&response.body).map_err(|error| format!("APIServices: {error}"))?,
        // A server without aggregation.
        Err(Error::Status { code: 404, .. }) => return Ok(BTreeSet::new()),
        Err(error) => return Err(format!("APIServices: {error}")),
    };
    let items = list.get("items").map(Value::items).unwrap_or_default();
    let remote =
        items.iter().filter_map(|item| item.get("spec")).filter(|spec| spec.get("service").is_some());
    Ok(remote.map(|spec| (spec.str("group").to_owned(), spec.str("version").to_owned())).collect())
}

/// The resources of a document. An error says what is missing in it.
fn parse(document: &Value, aggregated: &BTreeSet<GroupVersionName>) -> Result<Vec<Discovered>, String> {
    let mut discovered = Vec::new();
    for (group, version) in versions(document) {
        let name = version.str("version");
        let is_aggregated = aggregated.contains(&(group.to_owned(), name.to_owned()));
        if version.str("freshness") == "Stale" && !is_aggregated {
            return Err(format!("the server does not know all resources of {group}/{name} at the moment"));
        }
        discovered.extend(resources_of(group, version, is_aggregated));
    }
    Ok(discovered)
}

fn parse_lenient(document: &Value) -> Vec<Discovered> {
    versions(document).flat_map(|(group, version)| resources_of(group, version, false)).collect()
}

/// Every version in a document, with its group.
fn versions(document: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let groups = document.get("items").map(Value::items).unwrap_or_default();
    groups.iter().flat_map(|group| {
        let name = group.get("metadata").map(|metadata| metadata.str("name")).unwrap_or_default();
        group.get("versions").map(Value::items).unwrap_or_default().iter().map(move |version| (name, version))
    })
}

fn resources_of<'a>(
    group: &'a str,
    version: &'a Value,
    is_aggregated: bool,
) -> impl Iterator<Item = Discovered> + use<'a> {
    let resources = version.get("resources").map(Value::items).unwrap_or_default();
    resources.iter().map(move |resource| {
        let subresources = resource.get("subresources").map(Value::items).unwrap_or_default();
        let is_status = |subresource: &Value| {
            subresource.str("subresource") == "status"
                && subresource.sorted_strings("verbs").contains(&"update")
        };
        let kind = resource.get("responseKind").map(|kind| kind.str("kind")).unwrap_or_default();
        Discovered {
            resource: Resource {
                group: group.to_owned(),
                version: version.str("version").to_owned(),
                name: resource.str("resource").to_owned(),
                kind: kind.to_owned(),
                is_namespaced: resource.str("scope") == "Namespaced",
                has_status: subresources.iter().any(is_status),
                is_aggregated,
            },
            verbs: resource.sorted_strings("verbs").into_iter().map(str::to_owned).collect(),
        }
    })
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec::yaml;

    use super::*;

    const DOCUMENT: &str = "
items:
- metadata: {name: apps}
  versions:
  - version: v1
    freshness: Current
    resources:
    - resource: deployments
      responseKind: {group: apps, version: v1, kind: Deployment}
      scope: Namespaced
      verbs: [create, list]
      subresources: [{subresource: scale, verbs: [update]}, {subresource: status, verbs: [get, update]}]
- metadata: {name: metrics.k8s.io}
  versions:
  - version: v1
    freshness: Stale
";

    #[test]
    fn resources_are_read_from_discovery() {
        let document = yaml::read(DOCUMENT.as_bytes()).unwrap();
        let aggregated = [("metrics.k8s.io".to_owned(), "v1".to_owned())].into();
        let discovered = parse(&document, &aggregated).unwrap();
        assert_eq!(discovered.len(), 1);
        let Discovered { resource, verbs } = &discovered[0];
        assert_eq!(
            (resource.full_name().as_str(), resource.kind.as_str()),
            ("deployments.apps", "Deployment")
        );
        assert!(resource.is_namespaced && resource.has_status && !resource.is_aggregated);
        assert!(verbs.contains("list"));
    }

    #[test]
    fn incomplete_discovery_of_stored_resources_is_an_error() {
        let document = yaml::read(DOCUMENT.as_bytes()).unwrap();
        assert!(parse(&document, &BTreeSet::new()).is_err());
    }
}
