//! Fetches discovery and OpenAPI documents of extension API servers, when an APIService changes and periodically, so that
//! discovery requests never wait for them. Runs in every server, whichever loops are enabled.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use futures::{FutureExt as _, join};
use openssl::sha::Sha256;
use pilothouse_api::aggregation::discovered::{
    CURRENT, DiscoveredVersion, STALE, read_all, read_one, read_openapi_index,
};
use pilothouse_api::aggregation::{ApiService, READS_AS, STORE, Service, asker};
use pilothouse_api::openapi::merged::ServedSpec;
use pilothouse_apimachinery::well_known::JSON;
use pilothouse_types::identity::Identity;
use tokio::task::spawn_blocking;

use crate::backend::aggregation::{
    Description, ExtensionRequest, ExtensionResponse, Extensions, PublishedDocuments,
};
use crate::limits::{EXTENSION_DISCOVERY_TIMEOUT, EXTENSION_OPENAPI_TIMEOUT, EXTENSION_READ_EVERY};

use super::client::Client;
use super::queue::{Outcome, Queue};
use super::runner::{Controller, Follows, ObjectChange};

/// The name in health checks and metrics.
pub const NAME: &str = "apiservice-documents";
/// The media types of aggregated discovery.
const EVERYTHING: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                          application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// Fetches the documents.
pub struct ExtensionDocuments {
    /// Reads objects.
    pub client: Client,
    /// The registered APIServices, and where the documents are kept.
    pub extensions: Arc<Extensions>,
}

impl Controller for ExtensionDocuments {
    type Key = String;

    fn follows(&self) -> Follows {
        Follows::These(&[STORE])
    }

    fn longest_retry(&self) -> Duration {
        EXTENSION_READ_EVERY
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<String>) {
        queue.add(change.object.key.name().to_owned());
    }

    fn work(self: Rc<Self>, name: String) -> LocalBoxFuture<'static, Outcome> {
        async move { self.read(&name).await }.boxed_local()
    }
}

impl ExtensionDocuments {
    async fn read(&self, name: &str) -> Outcome {
        let registration = self.extensions.named(name).await.filter(|known| !known.is_unreadable);
        let Some((registration, service)) =
            registration.as_ref().and_then(|known| Some((known, known.service.as_ref()?)))
        else {
            self.extensions.keep(name, None);
            return Outcome::Done;
        };
        let before = self.extensions.told(name).unwrap_or_default();
        let mut told = self.discover(registration, service, &before).await;
        // Documents that cannot be fetched now keep their last version.
        (told.openapi, told.openapi_bytes) = (before.openapi.clone(), before.openapi_bytes);
        told.described = before.described.clone();
        // Discovery is published before the slow OpenAPI documents are fetched.
        self.extensions.keep(name, Some(told.clone()));
        let (openapi, described) =
            join!(self.openapi(service), self.describe(registration, service, &before.described));
        if let Some(openapi) = openapi {
            (told.openapi, told.openapi_bytes) = openapi;
        }
        if let Some(described) = described {
            told.described = described;
        }
        self.extensions.keep(name, Some(told));
        Outcome::After(EXTENSION_READ_EVERY)
    }

    async fn ask(&self, service: &Service, question: &ExtensionRequest<'_>) -> Option<ExtensionResponse> {
        let reply = self.extensions.ask(self.client.backend(), service, question).await;
        if let Err(why) = &reply {
            tracing::debug!(path = question.path, why, "discovery of an aggregated API server failed");
        }
        reply.ok()
    }

    async fn discover(
        &self,
        registration: &ApiService,
        service: &Service,
        before: &PublishedDocuments,
    ) -> PublishedDocuments {
        let user = asker();
        let version = &*registration.gv.version;
        let told = |version: DiscoveredVersion, etag: &str, bytes| PublishedDocuments {
            version: Some(Arc::new(version)),
            etag: etag.to_owned(),
            bytes,
            ..PublishedDocuments::default()
        };
        let stale = || told(DiscoveredVersion::bare(version, STALE), "", 0);
        let question = ExtensionRequest {
            accept: EVERYTHING,
            known: &before.etag,
            ..ExtensionRequest::get("/apis", &user, EXTENSION_DISCOVERY_TIMEOUT)
        };
        match self.ask(service, &question).await {
            None => return stale(),
            Some(reply) if reply.status == 503 => return stale(),
            Some(reply) if reply.status == 304 => return before.clone(),
            Some(reply) if reply.status == 200 && is_everything(&reply.content_type) => {
                let Some(mut all) = read_all(&reply.body) else { return stale() };
                let bytes = reply.body.len();
                // A server whose aggregated discovery lacks this version serves nothing in it.
                let found = all.remove(&registration.gv);
                return told(
                    found.unwrap_or_else(|| DiscoveredVersion::bare(version, CURRENT)),
                    &reply.etag,
                    bytes,
                );
            }
            Some(_) => {}
        }
        // Older servers have one document per version.
        let user = Identity { groups: Vec::new(), ..user };
        let path = registration.path();
        let question = ExtensionRequest {
            accept: JSON,
            ..ExtensionRequest::get(&path, &user, EXTENSION_DISCOVERY_TIMEOUT)
        };
        let one = self.ask(service, &question).await.filter(|reply| reply.status == 200);
        let found = one.and_then(|reply| Some((read_one(version, &reply.body)?, reply.body.len())));
        found.map_or_else(stale, |(found, bytes)| told(found, "", bytes))
    }

    /// The index of its OpenAPI v3 documents; `None` if the request fails.
    async fn openapi(&self, service: &Service) -> Option<(BTreeMap<String, String>, usize)> {
        let user = Identity { name: READS_AS.to_owned(), ..Identity::default() };
        let question = ExtensionRequest {
            accept: JSON,
            ..ExtensionRequest::get("/openapi/v3", &user, EXTENSION_OPENAPI_TIMEOUT)
        };
        let reply = self.ask(service, &question).await?;
        match reply.status {
            200 => Some((read_openapi_index(&reply.body)?, reply.body.len())),
            404 => Some((BTreeMap::new(), 0)),
            _ => None,
        }
    }

    /// The part of its OpenAPI v2 document about this version; `None` if it is unchanged or the request fails.
    async fn describe(
        &self,
        registration: &ApiService,
        service: &Service,
        before: &Description,
    ) -> Option<Description> {
        let user = Identity { name: READS_AS.to_owned(), ..Identity::default() };
        let question = ExtensionRequest {
            accept: JSON,
            known: &before.etag,
            ..ExtensionRequest::get("/openapi/v2", &user, EXTENSION_OPENAPI_TIMEOUT)
        };
        let reply = self.ask(service, &question).await?;
        match reply.status {
            200 => {
                // The digest includes the name, because versions share the document.
                let mut digest = Sha256::new();
                [registration.name.as_bytes(), &reply.body].iter().for_each(|text| digest.update(text));
                let digest = digest.finish();
                if digest == before.digest {
                    return Some(Description { etag: reply.etag, ..before.clone() });
                }
                let (gv, body) = (registration.gv.clone(), reply.body);
                // The document may have megabytes, and all loops share this thread.
                let reading = spawn_blocking(move || ServedSpec::read(&body, &gv.group, &gv.version));
                Some(Description { content: Arc::new(reading.await.ok()??), digest, etag: reply.etag })
            }
            404 => Some(Description::default()),
            _ => None,
        }
    }
}

/// Whether this is the media type of aggregated discovery.
fn is_everything(content_type: &str) -> bool {
    let mut parts = content_type.split(';').map(str::trim);
    let has = |wanted: &str| content_type.split(';').any(|part| part.trim() == wanted);
    parts.next() == Some(JSON)
        && has("g=apidiscovery.k8s.io")
        && has("as=APIGroupDiscoveryList")
        && (has("v=v2") || has("v=v2beta1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_with_everything_says_so() {
        assert!(is_everything("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"));
        assert!(is_everything(
            "application/json; as=APIGroupDiscoveryList; v=v2beta1; g=apidiscovery.k8s.io"
        ));
        for other in
            ["application/json", "", "application/json;v=v2", "text/plain;g=apidiscovery.k8s.io;v=v2"]
        {
            assert!(!is_everything(other), "{other}");
        }
    }
}
