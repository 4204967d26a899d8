//! The objects of a running server, over its API: a source of exports and a destination of imports.

mod discovery;
mod paths;
mod requests;

use std::cell::Cell;

use bytes::Bytes;
use hyper::Method;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::{JSON, MERGE_PATCH, NAMESPACES};
use pilothouse_client::api_server::{ApiResponse, ApiServer, Failure};
use serde::Deserialize;
use serde_json::value::RawValue;

use self::paths::{Query, collection_path, object_path};
use self::requests::{Error, Requests};
use super::object_stream::resource::Resource;
use super::object_stream::{Destination, Listing, Page, Refusal, Source, Stored};
use crate::limits;

/// The field manager of imported objects.
const FIELD_MANAGER: &str = "pilothouse-import";

/// The objects of a server.
pub(super) struct ApiObjects {
    requests: Requests,
    /// Whether writes are only checked.
    is_dry_run: bool,
    /// The number of objects that the next page is asked for: fewer if they are large.
    page_objects: Cell<u32>,
}

impl ApiObjects {
    /// The objects of this server. With `is_dry_run`, the server checks all writes and carries none out.
    pub(super) fn new(server: ApiServer, is_dry_run: bool) -> ApiObjects {
        let page_objects = Cell::new(limits::EXPORT_PAGE_OBJECTS);
        ApiObjects { requests: Requests::new(server), is_dry_run, page_objects }
    }

    fn write_query(&self) -> Query {
        let mut query = Query::default();
        query.add("fieldManager", FIELD_MANAGER);
        // A field that the server does not know is reported, and the rest of the object is imported.
        query.add("fieldValidation", "Warn");
        if self.is_dry_run {
            query.add("dryRun", "All");
        }
        query
    }

    async fn write(
        &self,
        method: Method,
        path: &str,
        media_type: &str,
        body: &Value,
    ) -> Result<Stored, Refusal> {
        let target = self.write_query().append_to(path);
        let body = Some((media_type, Bytes::from(json::to_json(body))));
        let response = self.requests.send(method, &target, body, limits::IMPORT_RESPONSE_BYTES).await;
        let response = response.map_err(into_refusal)?;
        Ok(Stored { object: parse_object(&response)?, warnings: response.warnings })
    }
}

fn into_refusal(error: Error) -> Refusal {
    match error {
        Error::Status { code: 409, reason, message } if reason == "AlreadyExists" => {
            Refusal::AlreadyExists(message)
        }
        Error::Status { code: 409, message, .. } => Refusal::Conflict(message),
        Error::Status { code: 404, message, .. } => Refusal::NotFound(message),
        error => Refusal::Other(error.to_string()),
    }
}

fn parse_object(response: &ApiResponse) -> Result<Value, Refusal> {
    json::read(&response.body).map_err(|error| Refusal::Other(format!("the response is no JSON: {error}")))
}

/// A list, whose items are parsed one by one.
#[derive(Deserialize)]
struct ApiList<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
struct ListMeta {
    #[serde(default, rename = "continue")]
    token: String,
}

impl Source for ApiObjects {
    async fn resources(&self) -> Result<Vec<Resource>, String> {
        discovery::exportable(&self.requests).await
    }

    async fn list(&self, listing: &Listing<'_>, token: Option<&str>) -> Result<Page, String> {
        if token.is_none() {
            self.page_objects.set(limits::EXPORT_PAGE_OBJECTS);
        }
        let mut token = token.map(str::to_owned);
        let mut is_inconsistent = false;
        let response = loop {
            let page_objects = self.page_objects.get();
            let target = list_target(listing, page_objects, token.as_deref());
            let max_bytes =
                if page_objects > 1 { limits::EXPORT_PAGE_BYTES } else { limits::EXPORT_OBJECT_BYTES };
            match self.requests.send(Method::GET, &target, None, max_bytes).await {
                Ok(response) => break response,
                Err(Error::Transport(Failure::TooLong)) if page_objects > 1 => {
                    self.page_objects.set(page_objects / 2);
                }
                // The rest of the list is only available in its current state: with the token of the error, the list goes on with
                // that.
                Err(Error::Expired { next: Some(next), .. }) if !is_inconsistent => {
                    (token, is_inconsistent) = (Some(next), true);
                }
                Err(error) => return Err(format!("{}: {error}", listing.resource.full_name())),
            }
        };
        if response.body.len() < limits::EXPORT_PAGE_BYTES / 4 {
            self.page_objects.set((self.page_objects.get() * 2).min(limits::EXPORT_PAGE_OBJECTS));
        }
        let list: ApiList<'_> = serde_json::from_slice(&response.body)
            .map_err(|error| format!("{}: no list: {error}", listing.resource.full_name()))?;
        let api_version = listing.resource.api_version();
        let parse_item = |item: &RawValue| {
            let mut object = json::read(item.get().as_bytes()).map_err(|error| error.to_string())?;
            object.set("apiVersion", api_version.as_str());
            object.set("kind", listing.resource.kind.as_str());
            Ok(object)
        };
        let objects = list.items.unwrap_or_default().into_iter().map(parse_item);
        Ok(Page {
            objects: objects.collect::<Result<_, String>>()?,
            next: Some(list.metadata.token).filter(|token| !token.is_empty()),
            is_inconsistent,
        })
    }
}

fn list_target(listing: &Listing<'_>, limit: u32, token: Option<&str>) -> String {
    let mut query = Query::default();
    query.add("limit", &limit.to_string());
    if let Some(token) = token {
        query.add("continue", token);
    }
    if let Some(labels) = listing.selection.labels() {
        query.add("labelSelector", labels);
    }
    let mut namespace = listing.namespace.unwrap_or_default();
    if listing.resource.is("", NAMESPACES) && !namespace.is_empty() {
        query.add("fieldSelector", &format!("metadata.name={namespace}"));
        namespace = "";
    }
    query.append_to(&collection_path(listing.resource, namespace))
}

impl Destination for ApiObjects {
    async fn resources(&self) -> Result<Vec<Resource>, String> {
        discovery::importable(&self.requests).await
    }

    async fn create(&self, resource: &Resource, object: &Value) -> Result<Stored, Refusal> {
        let path = collection_path(resource, super::object_stream::resource::namespace(object));
        self.write(Method::POST, &path, JSON, object).await
    }

    async fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Value, Refusal> {
        let path = object_path(resource, namespace, name, "");
        let response = self.requests.send(Method::GET, &path, None, limits::IMPORT_RESPONSE_BYTES).await;
        parse_object(&response.map_err(into_refusal)?)
    }

    async fn replace(&self, resource: &Resource, object: &Value) -> Result<Stored, Refusal> {
        self.write(Method::PUT, &paths::path_of(resource, object, ""), JSON, object).await
    }

    async fn replace_status(&self, resource: &Resource, object: &Value) -> Result<Stored, Refusal> {
        self.write(Method::PUT, &paths::path_of(resource, object, "status"), JSON, object).await
    }

    async fn patch(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<(), Refusal> {
        let path = object_path(resource, namespace, name, "");
        self.write(Method::PATCH, &path, MERGE_PATCH, patch).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::object_stream::selection::Selection;

    #[test]
    fn lists_of_one_namespace_are_asked_for() {
        let mut resource = Resource {
            group: "apps".to_owned(),
            version: "v1".to_owned(),
            name: "deployments".to_owned(),
            kind: "Deployment".to_owned(),
            is_namespaced: true,
            has_status: true,
            is_aggregated: false,
        };
        let selection = Selection::default();
        let listing = Listing { resource: &resource, namespace: Some("a"), selection: &selection };
        assert_eq!(
            list_target(&listing, 5, Some("t/+=")),
            "/apis/apps/v1/namespaces/a/deployments?limit=5&continue=t%2F%2B%3D"
        );
        (resource.group, resource.name, resource.is_namespaced) =
            (String::new(), NAMESPACES.to_owned(), false);
        let listing = Listing { resource: &resource, namespace: Some("a"), selection: &selection };
        assert_eq!(
            list_target(&listing, 5, None),
            "/api/v1/namespaces?limit=5&fieldSelector=metadata.name%3Da"
        );
    }

    #[test]
    fn statuses_become_refusals() {
        let status =
            |code, reason: &str| Error::Status { code, reason: reason.to_owned(), message: "m".to_owned() };
        assert_eq!(into_refusal(status(409, "AlreadyExists")), Refusal::AlreadyExists("m".to_owned()));
        assert_eq!(into_refusal(status(409, "Conflict")), Refusal::Conflict("m".to_owned()));
        assert_eq!(into_refusal(status(404, "NotFound")), Refusal::NotFound("m".to_owned()));
        assert_eq!(into_refusal(status(422, "Invalid")), Refusal::Other("m".to_owned()));
    }
}
