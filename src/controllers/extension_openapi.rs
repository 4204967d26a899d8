//! Fetches OpenAPI documents of extension API servers, when an APIService changes and periodically, so that requests for OpenAPI never
//! wait for them. Runs in every server, whichever controllers are enabled. Discovery has a controller of its own
//! (`extension_documents`), because a document may be large and its server slow.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use futures::{FutureExt as _, join};
use openssl::sha::Sha256;
use pilothouse_api::aggregation::discovered::read_openapi_index;
use pilothouse_api::aggregation::{OPENAPI_USER, STORE, Service};
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::JSON;
use pilothouse_types::identity::Identity;
use pilothouse_types::memory::OutOfMemory;
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::aggregation::{
    Description, Digest, DocumentIdentity, DocumentIndex, ExtensionRequest, ExtensionResponse, Extensions,
    FetchError,
};
use crate::limits::{
    EXTENSION_DISCOVERY_INTERVAL, EXTENSION_OPENAPI_BYTES, EXTENSION_OPENAPI_FETCHES,
    EXTENSION_OPENAPI_TIMEOUT,
};

use super::client::Client;
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// The name in health checks and metrics.
pub const NAME: &str = "apiservice-openapi";

/// Fetches the documents of OpenAPI.
pub struct ExtensionOpenApi {
    client: Client,
    extensions: Arc<Extensions>,
    /// By the name of the APIService: why its OpenAPI v2 document is left out, as the log was told.
    left_out: RefCell<BTreeMap<String, Omission>>,
    /// One document is read at a time: that takes a few times its length.
    reading: Semaphore,
}

/// Why an OpenAPI v2 document is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
enum Omission {
    #[error("the document is too large")]
    TooLarge,
    #[error("there is no memory for it at the moment")]
    OutOfMemory,
    #[error("it is not an OpenAPI document, or has too many parts")]
    Invalid,
}

impl From<OutOfMemory> for Omission {
    fn from(_: OutOfMemory) -> Omission {
        Omission::OutOfMemory
    }
}

/// The result of asking for a document.
enum Answered<T> {
    /// Another document, or a newer tag of the same.
    New(T),
    /// It is unchanged, or the server did not answer: the last document stays.
    Unchanged,
}

impl Controller for ExtensionOpenApi {
    type Key = String;

    fn needs_leader_election(&self) -> bool {
        false
    }

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[STORE])
    }

    fn workers(&self) -> usize {
        EXTENSION_OPENAPI_FETCHES
    }

    fn max_retry_delay(&self) -> Duration {
        EXTENSION_DISCOVERY_INTERVAL
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<String>) {
        queue.add(change.object.key.name().to_owned());
    }

    fn reconcile(self: Rc<Self>, name: String) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { Ok(self.read(&name).await) }.boxed_local()
    }
}

impl ExtensionOpenApi {
    /// Reads objects with this client.
    pub fn new(client: Client, extensions: Arc<Extensions>) -> ExtensionOpenApi {
        ExtensionOpenApi { client, extensions, left_out: RefCell::default(), reading: Semaphore::new(1) }
    }

    async fn read(&self, name: &str) -> Outcome {
        let registration = self.extensions.named(name).await.filter(|api_service| !api_service.is_unreadable);
        let Some((registration, service)) =
            registration.as_ref().and_then(|api_service| Some((api_service, api_service.service.as_ref()?)))
        else {
            self.left_out.borrow_mut().remove(name);
            self.extensions.unpublish(name);
            return Outcome::Done;
        };
        let previous = self.extensions.published(name).unwrap_or_default();
        let update_index = async {
            if let Answered::New(index) = self.index(service, &previous.openapi_v3).await {
                self.extensions.publish(name, |documents| documents.openapi_v3 = index);
            }
        };
        let update_description = async {
            match self.describe(&registration.gv, service, &previous.openapi_v2).await {
                Ok(Answered::Unchanged) => {}
                Ok(Answered::New(description)) => {
                    self.left_out.borrow_mut().remove(name);
                    self.extensions.publish(name, |documents| documents.openapi_v2 = description);
                }
                Err((omission, etag)) => {
                    self.log_omission(name, omission);
                    // With its tag, the same document is not sent again.
                    self.extensions.publish(name, |documents| documents.openapi_v2.etag = etag);
                }
            }
        };
        join!(update_index, update_description);
        Outcome::RequeueAfter(EXTENSION_DISCOVERY_INTERVAL)
    }

    /// Tells the log, unless it knows.
    fn log_omission(&self, name: &str, omission: Omission) {
        if self.left_out.borrow_mut().insert(name.to_owned(), omission) != Some(omission) {
            tracing::warn!(
                name,
                reason = %omission,
                "the OpenAPI v2 document of an aggregated API server is left out for now; it is asked for again"
            );
        }
    }

    async fn request(
        &self,
        service: &Service,
        path: &str,
        etag: &str,
    ) -> std::result::Result<ExtensionResponse, String> {
        let user = openapi_user();
        let request = ExtensionRequest {
            accept: JSON,
            if_none_match: etag,
            ..ExtensionRequest::get(path, &user, EXTENSION_OPENAPI_TIMEOUT)
        };
        self.extensions.send(self.client.backend(), service, &request).await
    }

    /// The list of its OpenAPI v3 documents.
    async fn index(&self, service: &Service, previous: &DocumentIndex) -> Answered<DocumentIndex> {
        const PATH: &str = "/openapi/v3";
        let response = match self.request(service, PATH, &previous.etag).await {
            Ok(response) => response,
            Err(error) => {
                log_failure(PATH, &error);
                return Answered::Unchanged;
            }
        };
        match response.status {
            200 => match read_openapi_index(&response.body) {
                Some(paths) => {
                    Answered::New(DocumentIndex { paths, bytes: response.body.len(), etag: response.etag })
                }
                None => Answered::Unchanged,
            },
            404 => Answered::New(DocumentIndex::default()),
            _ => Answered::Unchanged,
        }
    }

    /// The part of its OpenAPI v2 document about this version. The error is why it is left out, and the tag to ask with the next time.
    async fn describe(
        &self,
        gv: &GroupVersion,
        service: &Service,
        previous: &Description,
    ) -> std::result::Result<Answered<Description>, (Omission, String)> {
        const PATH: &str = "/openapi/v2";
        let user = openapi_user();
        let request = ExtensionRequest {
            accept: JSON,
            if_none_match: &previous.etag,
            max_bytes: EXTENSION_OPENAPI_BYTES,
            ..ExtensionRequest::get(PATH, &user, EXTENSION_OPENAPI_TIMEOUT)
        };
        let mut reservation = self.extensions.openapi_memory().empty_reservation();
        let backend = self.client.backend();
        let response = match self.extensions.fetch_large(backend, service, &request, &mut reservation).await {
            Ok(response) => response,
            Err(FetchError::Failed(error)) => {
                log_failure(PATH, &error);
                return Ok(Answered::Unchanged);
            }
            Err(FetchError::TooLarge { etag, .. }) => return Err((Omission::TooLarge, etag)),
            // Asked for again with the tag of what is kept.
            Err(FetchError::OutOfMemory(_)) => return Err((Omission::OutOfMemory, previous.etag.clone())),
        };
        match response.status {
            200 => {}
            404 => return Ok(Answered::New(Description::default())),
            _ => return Ok(Answered::Unchanged),
        }
        let ExtensionResponse { body, etag, .. } = response;
        let (gv, kept, new_etag) = (gv.clone(), previous.clone(), etag.clone());
        let Ok(_turn) = self.reading.acquire().await else { return Ok(Answered::Unchanged) };
        // The document may be megabytes large, and all controllers share this thread.
        let read = spawn_blocking(move || {
            let identity = DocumentIdentity { digest: digest(&gv, &body), etag: new_etag };
            Description::read(body, &gv, identity, &kept, reservation)
        })
        .await;
        match read {
            Ok(Ok(Some(description))) => Ok(Answered::New(description)),
            Ok(Ok(None)) => Err((Omission::Invalid, etag)),
            Ok(Err(OutOfMemory)) => Err((Omission::OutOfMemory, previous.etag.clone())),
            Err(_) => Ok(Answered::Unchanged),
        }
    }
}

/// Identifies a document and the version that is read of it, because versions share the document.
fn digest(gv: &GroupVersion, document: &[u8]) -> Digest {
    let mut digest = Sha256::new();
    for part in [gv.group.as_bytes(), b"/", gv.version.as_bytes(), b"\n", document] {
        digest.update(part);
    }
    digest.finish()
}

fn openapi_user() -> Identity {
    Identity { name: OPENAPI_USER.to_owned(), ..Identity::default() }
}

fn log_failure(path: &str, error: &str) {
    tracing::debug!(path, error, "a request for OpenAPI of an aggregated API server failed");
}
