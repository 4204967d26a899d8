//! What one HTTP worker thread has: its own set of actors, and the state that all workers share.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix::Addr;
use actix_web::http::header::{HeaderValue, InvalidHeaderValue};
use arc_swap::{ArcSwap, Guard};
use pilothouse_actors::authenticator::Authenticator;
use pilothouse_actors::authorizer::Authorizer;
use pilothouse_actors::clock::Timestamp;
use tokio::sync::watch;

use crate::api::catalog::Catalog;
use crate::api::discovery::{Documents, Other};
use crate::api::release::Release;
use crate::auth::front_proxy::Headers;
use crate::auth::service_account::metadata::Metadata;
use crate::flows::Room;
use crate::metrics::Metrics;
use crate::metrics::requests::Meter;
use crate::verbs::aggregation::Extensions;
use crate::verbs::{Backend, Watching};

use super::audit::Audit;
use super::connect::Connecting;
use super::connect::extension::Manners;
use super::health::Health;
use super::merged::MergedDocuments;
use super::openapi::OpenApi;

/// The state of one worker thread. Everything in it is reached without crossing a thread.
pub struct Worker {
    /// What verbs use.
    pub backend: Rc<Backend>,
    /// What watches need besides.
    pub watching: Watching,
    /// Says who is asking.
    pub authenticator: Addr<Authenticator>,
    /// Says whether they may.
    pub authorizer: Addr<Authorizer>,
    /// What all workers share.
    pub shared: Arc<Shared>,
    /// Counts the requests of this worker.
    pub meter: Meter,
    /// Until when the log is told of no further credentials that are not accepted.
    pub quiet_until: Cell<Timestamp>,
}

/// The state that all workers of a server share.
pub struct Shared {
    /// What is served. Replaced as a whole when types come and go.
    pub served: ArcSwap<Served>,
    /// What decides who is let in.
    pub room: Room,
    /// What the health endpoints look at.
    pub health: Health,
    /// What the gates say of encodings.
    pub encoding: Encodings,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What ways out of this server need.
    pub connecting: Arc<Connecting>,
    /// Which release this server says it is.
    pub release: Release,
    /// What others verify tokens of service accounts with.
    pub token_metadata: Option<Metadata>,
    /// Whether flags can be changed while the server runs.
    pub changes_flags: bool,
    /// The headers in which a proxy says who is asking.
    pub front_headers: Option<Headers>,
    /// The paths where requests without credentials get in; `None`: everywhere, if anywhere.
    pub anonymous_paths: Option<Vec<String>>,
    /// The groups that other servers serve.
    pub extensions: Arc<Extensions>,
    /// How those are dealt with.
    pub manners: Manners,
    /// The discovery documents in which those groups stand.
    pub merged: MergedDocuments,
    /// What is written down of requests, if anything is.
    pub audit: Option<Audit>,
    /// How long a request may take that has an end of its own.
    pub request_timeout: Duration,
    /// What browsers are told about speaking HTTPS alone.
    pub transport_security: Option<HeaderValue>,
    /// Whether HTTP/2 connections of those whom nobody knows end after their first request.
    pub closes_unknown: bool,
}

/// The header by which browsers learn to speak HTTPS alone.
pub fn transport_security(directives: &[String]) -> Result<Option<HeaderValue>, InvalidHeaderValue> {
    (!directives.is_empty()).then(|| HeaderValue::try_from(directives.join("; "))).transpose()
}

/// What the gates say of encodings.
#[derive(Clone, Copy, Debug)]
pub struct Encodings {
    /// Whether CBOR is spoken.
    pub cbor: bool,
    /// Whether large answers are compressed.
    pub gzip: bool,
}

/// The catalog and the documents that describe it: always of one version.
pub struct Served {
    /// Every resource.
    pub catalog: Catalog,
    /// The OpenAPI documents.
    pub openapi: OpenApi,
    /// Where clients of any network reach the server, as host and port.
    address: Arc<str>,
    /// The discovery documents, once somebody has asked: while many definitions are made nobody does for each.
    documents: OnceLock<Arc<Documents>>,
    /// Closed once the definitions of what is served say so, too.
    written: Option<watch::Receiver<()>>,
}

impl Served {
    /// What a catalog means. `address`: where clients of any network reach the server, as host and port.
    pub fn new(catalog: Catalog, address: Arc<str>, openapi: OpenApi) -> Served {
        Served { catalog, openapi, address, documents: OnceLock::new(), written: None }
    }

    /// The same, while definitions do not say yet that this is served.
    #[must_use]
    pub fn pending(self, written: watch::Receiver<()>) -> Served {
        Served { written: Some(written), ..self }
    }

    /// Waits until the definitions of what is served say so. Whoever finds a kind in discovery reads and writes its definition next,
    /// and would be told that somebody else has changed it.
    pub async fn is_written(&self) {
        if let Some(mut written) = self.written.clone() {
            // Nothing is ever sent: this ends with an error when the channel closes.
            let _closed = written.changed().await;
        }
    }

    /// The discovery documents.
    pub fn documents(&self) -> &Arc<Documents> {
        self.documents.get_or_init(|| Arc::new(Documents::new(&self.catalog, &self.address)))
    }

    /// The same, with versions that others serve among them.
    pub fn documents_with(&self, others: &[Other]) -> Documents {
        Documents::with(&self.catalog, &self.address, others)
    }

    /// Whether a version is served here.
    pub fn serves(&self, group: &str, version: &str) -> bool {
        self.catalog.group(group).is_some_and(|group| group.version(version).is_some())
    }
}

impl AsRef<Catalog> for Served {
    fn as_ref(&self) -> &Catalog {
        &self.catalog
    }
}

impl Worker {
    /// What is served right now.
    pub fn served(&self) -> Guard<Arc<Served>> {
        self.shared.served.load()
    }
}
