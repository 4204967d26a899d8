//! Migrates a resource through the API: an apply without fields for each object. It changes nothing, and the server rewrites an
//! object that it would store in another way now.

use futures::StreamExt as _;
use hyper::Method;
use pilothouse_api::connect::url::{encode_query, escape_path};
use pilothouse_apimachinery::well_known::{APPLY_PATCH, JSON, METADATA_LIST};
use serde::Deserialize;
use serde_json::{Value, json};

use super::api::{Api, FIELD_MANAGER, Failure, parse, succeed};
use super::discovery::MigratedResource;
use super::warn_line;
use crate::limits::{MIGRATE_PAGE_OBJECTS, MIGRATE_REPORTED_FAILURES, MIGRATIONS_IN_FLIGHT};

#[derive(Debug, Deserialize)]
struct Page {
    #[serde(default)]
    metadata: ListMetadata,
    /// Null if there are none.
    items: Option<Vec<Item>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    #[serde(default, rename = "continue")]
    token: String,
    #[serde(default)]
    remaining_item_count: u64,
}

#[derive(Debug, Deserialize)]
struct Item {
    metadata: ItemMetadata,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ItemMetadata {
    name: String,
    #[serde(default)]
    namespace: String,
    uid: String,
    resource_version: String,
}

/// The objects so far.
#[derive(Debug, Default)]
struct Counts {
    current: u64,
    changed: u64,
    failed: usize,
}

/// Rewrites all objects of a resource.
pub(super) async fn migrate(api: &Api, resource: &MigratedResource) -> Result<String, Failure> {
    let mut counts = Counts::default();
    let mut token = String::new();
    loop {
        let page = list(api, resource, &token).await?;
        let items = page.items.unwrap_or_default();
        let mut results = futures::stream::iter(&items)
            .map(|item| rewrite(api, resource, item))
            .buffer_unordered(MIGRATIONS_IN_FLIGHT);
        while let Some(result) = results.next().await {
            count(&mut counts, resource, result);
        }
        token = page.metadata.token;
        if token.is_empty() {
            break;
        }
        let done = counts.current + counts.changed + counts.failed as u64;
        let left = page.metadata.remaining_item_count;
        warn_line(resource, &format!("{done} objects so far, about {left} left"));
    }
    let Counts { current, changed, failed } = counts;
    if failed > 0 {
        return Err(Failure::Failed(format!("{failed} objects could not be rewritten")));
    }
    Ok(format!("{} objects are current, {changed} of them written by others meanwhile", current + changed))
}

fn count(counts: &mut Counts, resource: &MigratedResource, result: Result<bool, Failure>) {
    match result {
        Ok(true) => counts.current += 1,
        Ok(false) => counts.changed += 1,
        Err(failure) => {
            counts.failed += 1;
            if counts.failed <= MIGRATE_REPORTED_FAILURES {
                warn_line(resource, &failure.to_string());
            }
        }
    }
}

/// Reads a page of the list of all objects.
async fn list(api: &Api, resource: &MigratedResource, token: &str) -> Result<Page, Failure> {
    let path = |token: &str| {
        let query = vec![("limit", MIGRATE_PAGE_OBJECTS.to_string()), ("continue", token.to_owned())];
        format!("{}/{}?{}", resource.version_path(), resource.plural, encode_query(query))
    };
    let first_path = path(token);
    let reply = api.send(Method::GET, &first_path, METADATA_LIST, None).await?;
    // The state of the list is too old. The rest of a newer one will do: what changed since is written anew anyway.
    if let (410, Some(token)) = (reply.status, reply.body["metadata"]["continue"].as_str()) {
        let path = path(token);
        let reply = api.send(Method::GET, &path, METADATA_LIST, None).await?;
        return parse(&path, succeed(Method::GET, &path, reply)?);
    }
    parse(&first_path, succeed(Method::GET, &first_path, reply)?)
}

/// The path of an object.
fn object_path(resource: &MigratedResource, item: &ItemMetadata) -> String {
    let (root, plural) = (resource.version_path(), &resource.plural);
    let name = escape_path(&item.name);
    match item.namespace.as_str() {
        "" => format!("{root}/{plural}/{name}"),
        namespace => format!("{root}/namespaces/{namespace}/{plural}/{name}"),
    }
}

/// Rewrites an object, if the server finds that it needs it. Returns whether it was still the listed one.
async fn rewrite(api: &Api, resource: &MigratedResource, Item { metadata }: &Item) -> Result<bool, Failure> {
    let object_path = object_path(resource, metadata);
    let path = format!("{object_path}?fieldManager={FIELD_MANAGER}");
    let body: Value = json!({"apiVersion": resource.api_version(), "kind": resource.kind,
        "metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version}});
    let reply = api.send(Method::PATCH, &path, JSON, Some((APPLY_PATCH, &body))).await?;
    let is_missing_or_changed = matches!(reply.status, 404 | 409);
    let result = succeed(Method::PATCH, &path, reply).map(|_| true);
    if !is_missing_or_changed {
        return result;
    }
    // It was deleted, or changed and thereby stored in the current version; or the status has another cause, such as an admission
    // webhook, and the object is still stored as it was.
    match api.get(&object_path, JSON).await? {
        Some(current) if is_listed(&current, metadata) => result,
        _ => Ok(false),
    }
}

/// Whether an object is still as it was listed.
fn is_listed(current: &Value, listed: &ItemMetadata) -> bool {
    let metadata = &current["metadata"];
    metadata["uid"] == *listed.uid && metadata["resourceVersion"] == *listed.resource_version
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(namespace: &str, name: &str) -> ItemMetadata {
        ItemMetadata {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            uid: "u".to_owned(),
            resource_version: "1".to_owned(),
        }
    }

    #[test]
    fn object_counts_as_changed_only_if_it_is_another_one_or_was_written() {
        let is_listed = |uid: &str, version: &str| {
            is_listed(&json!({"metadata": {"uid": uid, "resourceVersion": version}}), &item("n", "a"))
        };
        assert!(is_listed("u", "1"));
        assert!(!is_listed("u", "2"));
        assert!(!is_listed("v", "1"));
    }

    #[test]
    fn path_of_an_object_is_escaped() {
        let resource = |group: &str| MigratedResource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            plural: "things".to_owned(),
            kind: "Thing".to_owned(),
            has_chosen_version: false,
        };
        assert_eq!(object_path(&resource(""), &item("n", "a")), "/api/v1/namespaces/n/things/a");
        assert_eq!(
            object_path(&resource("g.io"), &item("", "system:a b")),
            "/apis/g.io/v1/things/system:a%20b"
        );
    }
}
