//! Deletes objects of extension API servers in a terminating namespace, and counts what is left.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use hyper::Method;
use pilothouse_api::aggregation::contents::{Deletable, LISTED, RemainingObjects, deletable};
use pilothouse_apimachinery::well_known::JSON;
use serde::Deserialize;
use tokio::time::timeout;

use crate::backend::Warnings;
use crate::backend::aggregation::{ExtensionRequest, ExtensionResponse, Extensions};
use crate::backend::loopback::Response;
use crate::limits::{
    DELETIONS_IN_FLIGHT, EXTENSION_CLEARING_TIMEOUT, EXTENSION_DELETION_TIMEOUT, EXTENSION_LIST_BYTES,
};

use super::super::client::Client;

/// The options of every deletion: dependents are deleted in the background.
const OPTIONS: &[u8] = br#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}"#;
/// Only the metadata of objects is needed.
const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// Characters of an error message that the namespace's condition repeats.
const SAID: usize = 1_024;

/// The code of a request to an extension server that does not answer.
const UNREACHABLE: u16 = 503;

/// Calls extension API servers for the namespace loop.
pub struct AggregatedResources {
    /// Makes the requests.
    pub client: Client,
    /// The registered APIServices.
    pub extensions: Arc<Extensions>,
}

impl AggregatedResources {
    /// Their namespaced resources, and the versions whose discovery failed; `None` if the APIServices cannot be read.
    pub async fn resources(&self) -> Option<(Vec<Deletable>, BTreeSet<String>)> {
        let known = self.client.known();
        let all = self.extensions.all().await?;
        Some(deletable(&all, |gv| known.has_builtin(&gv.group, &gv.version)))
    }

    /// Deletes the objects of a resource, and answers what is left.
    pub async fn clear(&self, resource: &Deletable, namespace: &str) -> Result<RemainingObjects, String> {
        timeout(EXTENSION_CLEARING_TIMEOUT, self.clear_slowly(resource, namespace))
            .await
            .unwrap_or_else(|_| Err(format!("the server of {} takes too long", resource.name())))
    }

    async fn clear_slowly(&self, resource: &Deletable, namespace: &str) -> Result<RemainingObjects, String> {
        let path = resource.path(namespace);
        let at_once = resource.at_once
            && match self.delete(resource, &path).await? {
                reply if is_fine(&reply) => true,
                // Discovery lists deletecollection, but the server does not support it.
                reply if matches!(reply.status, 404 | 405) => false,
                reply => return Err(refused(&reply, "deletecollection", resource)),
            };
        if !at_once {
            let names = self.left(resource, &path).await?.names;
            let deletions = names.iter().map(async |name| {
                let reply = self.delete(resource, &format!("{path}/{name}")).await?;
                let is_gone = is_fine(&reply) || matches!(reply.status, 404 | 405);
                if is_gone { Ok(()) } else { Err(refused(&reply, "delete", resource)) }
            });
            stream::iter(deletions).buffer_unordered(DELETIONS_IN_FLIGHT).try_collect::<()>().await?;
        }
        self.left(resource, &path).await
    }

    async fn left(&self, resource: &Deletable, path: &str) -> Result<RemainingObjects, String> {
        if !resource.listable {
            return Ok(RemainingObjects::default());
        }
        let query = format!("limit={LISTED}");
        let question = ExtensionRequest { query: &query, accept: METADATA_LIST, ..self.question(path) };
        let reply = self.ask(resource, &question).await?;
        match reply.status {
            404 | 405 => Ok(RemainingObjects::default()),
            _ if is_fine(&reply) => {
                RemainingObjects::read(&reply.body).ok_or_else(|| format!("no list of {}", resource.name()))
            }
            _ => Err(refused(&reply, "list", resource)),
        }
    }

    async fn delete(&self, resource: &Deletable, path: &str) -> Result<ExtensionResponse, String> {
        let question =
            ExtensionRequest { method: Method::DELETE, accept: JSON, body: OPTIONS, ..self.question(path) };
        self.ask(resource, &question).await
    }

    fn question<'q>(&'q self, path: &'q str) -> ExtensionRequest<'q> {
        ExtensionRequest {
            most: EXTENSION_LIST_BYTES,
            ..ExtensionRequest::get(path, self.client.user(), EXTENSION_DELETION_TIMEOUT)
        }
    }

    async fn ask(
        &self,
        resource: &Deletable,
        question: &ExtensionRequest<'_>,
    ) -> Result<ExtensionResponse, String> {
        let service = resource.registration.service.as_ref().ok_or("nobody serves it any more")?;
        let warnings = Warnings::default();
        let method = if question.method == Method::DELETE { "DELETE" } else { "GET" };
        let admitted = self.client.admit(method, (question.path, question.query), &warnings).await;
        let admitted = admitted.map_err(|status| status.message)?;
        let reply = self.extensions.ask(self.client.backend(), service, question).await;
        let code = reply.as_ref().map_or(UNREACHABLE, |reply| reply.status);
        admitted.end(&warnings, Response::Code(code)).await;
        reply
    }
}

fn is_fine(reply: &ExtensionResponse) -> bool {
    (200..300).contains(&reply.status)
}

/// The message of a refusal.
fn refused(reply: &ExtensionResponse, verb: &str, resource: &Deletable) -> String {
    let said = serde_json::from_slice::<Said>(&reply.body).unwrap_or_default().message;
    match said.char_indices().nth(SAID).map_or(said.as_str(), |(end, _)| said.get(..end).unwrap_or_default())
    {
        "" => format!("the server answered {} ({verb} {})", reply.status, resource.name()),
        said => said.to_owned(),
    }
}

/// The relevant part of a Status.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Said {
    message: String,
}
