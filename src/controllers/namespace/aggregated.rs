//! Deletes objects of extension API servers in a terminating namespace, and counts what is left.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use hyper::Method;
use pilothouse_api::aggregation::contents::{Deletable, LIST_LIMIT, RemainingObjects, deletable};
use pilothouse_apimachinery::well_known::{JSON, METADATA_LIST};
use serde::Deserialize;
use tokio::time::timeout;

use crate::aggregation::{ExtensionRequest, ExtensionResponse, Extensions};
use crate::limits::{
    DELETIONS_IN_FLIGHT, EXTENSION_CLEARING_TIMEOUT, EXTENSION_DELETION_TIMEOUT, EXTENSION_LIST_BYTES,
};
use crate::registry::Warnings;
use crate::registry::loopback::Response;

use super::super::client::Client;

/// The options of every deletion: dependents are deleted in the background.
const OPTIONS: &[u8] = br#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}"#;
/// Characters of an error message that the namespace's condition repeats.
const MAX_MESSAGE_CHARS: usize = 1_024;

/// The status code of a request to an extension server that does not answer.
const UNREACHABLE: u16 = 503;

/// Calls extension API servers for the namespace controller.
pub struct AggregatedResources {
    /// Makes the requests.
    pub client: Client,
    /// The registered APIServices.
    pub extensions: Arc<Extensions>,
}

impl AggregatedResources {
    /// Their namespaced resources, and the versions whose discovery failed; `None` if the APIServices cannot be read.
    pub async fn resources(&self) -> Option<(Vec<Deletable>, BTreeSet<String>)> {
        let builtin = self.client.resource_index();
        let api_services = self.extensions.all().await?;
        Some(deletable(&api_services, |gv| builtin.has_builtin(&gv.group, &gv.version)))
    }

    /// Deletes the objects of a resource, and returns what is left.
    pub async fn clear(&self, resource: &Deletable, namespace: &str) -> Result<RemainingObjects, String> {
        timeout(EXTENSION_CLEARING_TIMEOUT, self.clear_without_timeout(resource, namespace))
            .await
            .unwrap_or_else(|_| Err(format!("the server of {} takes too long", resource.name())))
    }

    async fn clear_without_timeout(
        &self,
        resource: &Deletable,
        namespace: &str,
    ) -> Result<RemainingObjects, String> {
        let path = resource.path(namespace);
        let is_collection_deleted = resource.at_once
            && match self.delete(resource, &path).await? {
                response if is_success(&response) => true,
                // Discovery lists deletecollection, but the server does not support it.
                response if matches!(response.status, 404 | 405) => false,
                response => return Err(refusal_message(&response, "deletecollection", resource)),
            };
        if !is_collection_deleted {
            let names = self.remaining(resource, &path).await?.names;
            let deletions = names.iter().map(async |name| {
                let response = self.delete(resource, &format!("{path}/{name}")).await?;
                let is_deleted = is_success(&response) || matches!(response.status, 404 | 405);
                if is_deleted { Ok(()) } else { Err(refusal_message(&response, "delete", resource)) }
            });
            stream::iter(deletions).buffer_unordered(DELETIONS_IN_FLIGHT).try_collect::<()>().await?;
        }
        self.remaining(resource, &path).await
    }

    async fn remaining(&self, resource: &Deletable, path: &str) -> Result<RemainingObjects, String> {
        if !resource.listable {
            return Ok(RemainingObjects::default());
        }
        let query = format!("limit={LIST_LIMIT}");
        let request = ExtensionRequest { query: &query, accept: METADATA_LIST, ..self.get_request(path) };
        let response = self.request(resource, &request).await?;
        match response.status {
            404 | 405 => Ok(RemainingObjects::default()),
            _ if is_success(&response) => RemainingObjects::read(&response.body)
                .ok_or_else(|| format!("no list of {}", resource.name())),
            _ => Err(refusal_message(&response, "list", resource)),
        }
    }

    async fn delete(&self, resource: &Deletable, path: &str) -> Result<ExtensionResponse, String> {
        let request = ExtensionRequest {
            method: Method::DELETE,
            accept: JSON,
            body: OPTIONS,
            ..self.get_request(path)
        };
        self.request(resource, &request).await
    }

    fn get_request<'q>(&'q self, path: &'q str) -> ExtensionRequest<'q> {
        ExtensionRequest {
            max_bytes: EXTENSION_LIST_BYTES,
            ..ExtensionRequest::get(path, self.client.user(), EXTENSION_DELETION_TIMEOUT)
        }
    }

    async fn request(
        &self,
        resource: &Deletable,
        request: &ExtensionRequest<'_>,
    ) -> Result<ExtensionResponse, String> {
        let service =
            resource.registration.service.as_ref().ok_or("the APIService has no service any more")?;
        let warnings = Warnings::default();
        let method = if request.method == Method::DELETE { "DELETE" } else { "GET" };
        let admitted = self.client.admit(method, request.path, request.query, &warnings).await;
        let admitted = admitted.map_err(|status| status.message)?;
        let response = self.extensions.send(self.client.backend(), service, request).await;
        let code = response.as_ref().map_or(UNREACHABLE, |response| response.status);
        admitted.end(&warnings, Response::Code(code)).await;
        response
    }
}

fn is_success(response: &ExtensionResponse) -> bool {
    (200..300).contains(&response.status)
}

/// The message of a refusal.
fn refusal_message(response: &ExtensionResponse, verb: &str, resource: &Deletable) -> String {
    let message = serde_json::from_slice::<StatusMessage>(&response.body).unwrap_or_default().message;
    match message
        .char_indices()
        .nth(MAX_MESSAGE_CHARS)
        .map_or(message.as_str(), |(end, _)| message.get(..end).unwrap_or_default())
    {
        "" => format!("the server answered {} ({verb} {})", response.status, resource.name()),
        message => message.to_owned(),
    }
}

/// The relevant part of a Status.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StatusMessage {
    message: String,
}
