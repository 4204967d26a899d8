//! The state of one HTTP worker thread, and the state that all workers share.

use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix_web::http::header::{HeaderValue, InvalidHeaderValue};
use arc_swap::{ArcSwap, Guard};
use pilothouse_actors::throttle::Throttle;
use pilothouse_api::aggregation::RegisteredVersion;
use pilothouse_api::catalog::Catalog;
use pilothouse_api::discovery::Documents;
use pilothouse_api::release::Release;
use pilothouse_etcd_log::EtcdLog;
use pilothouse_traces::{SpanExport, Tracing};
use pilothouse_types::memory::MemoryLedger;
use tokio::sync::watch;

use crate::activity::ActivityRegistry;
use crate::apiextensions::served_revision::ServedRevision;
use crate::audit::Audit;
use crate::auth::front_proxy::Headers;
use crate::auth::service_account::metadata::PublishedMetadata;
use crate::backups::Backups;
use crate::config::allowed_origin::AllowedOrigin;
use crate::flowcontrol::RequestLimiter;
use crate::flowcontrol::heavy_pool::HeavyPool;
use crate::flowcontrol::heavy_pool::costly_calls::CostlyCalls;
use crate::http::connections::Connections;
use crate::log_files::LogFiles;
use crate::metrics::Metrics;
use crate::metrics::requests::Meter;
use crate::peers::Peers;
use crate::profiles::Profiles;
use crate::registry::Backend;
use crate::registry::services::Services;
use crate::verbs::WatchDeps;

use super::connect::ConnectDeps;
use super::connect::aggregated::Aggregation;
use super::debug_pages::DebugPages;
use super::health::Health;
use super::merged_discovery::MergedDocuments;
use super::openapi::OpenApi;
use super::shutdown::Shutdown;

/// The state of one worker thread. Everything in it is reached without crossing a thread.
pub struct Worker {
    /// Stores, schemas and admission, for the verbs.
    pub backend: Rc<Backend>,
    /// The additional parts that watches need.
    pub watching: WatchDeps,
    /// The state that all workers share.
    pub shared: Arc<Shared>,
    /// Counts the requests of this worker.
    pub meter: Meter,
    /// The allocator of cluster IPs and node ports, which metrics ask how many are taken.
    pub services: Services,
    /// Limits log lines about rejected credentials.
    pub refusals: Throttle,
}

/// The state that all workers of a server share.
pub struct Shared {
    /// The catalog and its documents. Replaced as a whole when CustomResourceDefinitions change.
    pub served: ArcSwap<Served>,
    /// Up to where CustomResourceDefinitions are served.
    pub served_definitions: ServedRevision,
    /// How many requests are served at the same time, and for how long.
    pub limits: RequestLimits,
    /// Tells clients to try another server when this one ends; `None` if it does not.
    pub shutdown: Option<Shutdown>,
    /// What happens to requests that take much work.
    pub heavy: HeavyWork,
    /// The state that the health checks probe.
    pub health: Health,
    /// The metrics of the whole server.
    pub metrics: Arc<Metrics>,
    /// What the whole server uses, which metrics report.
    pub usage: Usage,
    /// Settings of the authentication of clients.
    pub authentication: AuthenticationSettings,
    /// The form of responses.
    pub responses: ResponseSettings,
    /// Documents about this server.
    pub documents: ServerDocuments,
    /// Pages for operators.
    pub debug: DebugSettings,
    /// Connections to kubelets, pods and services.
    pub connect: Arc<ConnectDeps>,
    /// Extension API servers.
    pub aggregation: Aggregation,
    /// The other API servers on the same etcd, if requests are passed on to them.
    pub peers: Option<Arc<Peers>>,
    /// Backups of everything that is stored.
    pub backups: Arc<Backups>,
    /// The audit policy and backends, if configured.
    pub audit: Option<Arc<Audit>>,
    /// The traces of requests.
    pub traces: Traces,
}

/// The traces of requests.
pub struct Traces {
    /// What happens to them.
    pub tracing: Tracing,
    /// Where their spans go, if they are recorded.
    pub export: Option<SpanExport>,
}

/// How many requests are served at the same time, and for how long.
pub struct RequestLimits {
    /// Limits concurrent requests: API Priority and Fairness, or plain limits.
    pub limiter: RequestLimiter,
    /// The timeout of requests other than watches and connections.
    pub request_timeout: Duration,
}

/// What happens to requests that take much work.
pub struct HeavyWork {
    /// The threads for heavy work.
    pub pool: Arc<HeavyPool<Backend>>,
    /// Calls that need such a thread, though their requests are small.
    pub costly_calls: CostlyCalls,
}

/// What the whole server uses.
pub struct Usage {
    /// The memory of all budgets.
    pub memory: MemoryLedger,
    /// The open connections of clients.
    pub connections: Connections,
    /// The clusters of etcd that have the objects.
    pub etcd: Vec<EtcdLog>,
}

/// Settings of the authentication of clients.
pub struct AuthenticationSettings {
    /// The header names in which a front proxy passes identities.
    pub front_headers: Option<Headers>,
    /// The paths that accept anonymous requests; `None` means all, if anonymous access is enabled.
    pub anonymous_paths: Option<Vec<String>>,
    /// Whether HTTP/2 connections of unauthenticated clients end after one request.
    pub closes_unauthenticated: bool,
}

/// The form of responses.
pub struct ResponseSettings {
    /// Which optional encodings are enabled.
    pub encoding: Encodings,
    /// The Strict-Transport-Security header.
    pub transport_security: Option<HeaderValue>,
    /// The origins whose pages in browsers may call.
    pub allowed_origins: Vec<AllowedOrigin>,
}

/// Documents about this server.
pub struct ServerDocuments {
    /// The release that this server reports.
    pub release: Release,
    /// The issuer's metadata and public keys, if this server publishes them.
    pub token_metadata: Option<PublishedMetadata>,
    /// Discovery documents that include the group versions of extension API servers.
    pub merged: MergedDocuments,
    /// Whether aggregated discovery is also served in its beta version.
    pub serves_beta_discovery: bool,
}

/// Pages for operators.
pub struct DebugSettings {
    /// Whether profiles are served, and /debug/flags may change the log level.
    pub profiling: bool,
    /// What actors, queues and threads do.
    pub activity: ActivityRegistry,
    /// Where processor time and memory go.
    pub profiles: Arc<Profiles>,
    /// /statusz and /flagz, if they are served.
    pub pages: DebugPages,
    /// The log files of this host, if they are served.
    pub logs: Option<LogFiles>,
}

/// The Strict-Transport-Security header.
pub fn transport_security(directives: &[String]) -> Result<Option<HeaderValue>, InvalidHeaderValue> {
    (!directives.is_empty()).then(|| HeaderValue::try_from(directives.join("; "))).transpose()
}

/// Which optional encodings are enabled.
#[derive(Clone, Copy, Debug)]
pub struct Encodings {
    /// Whether CBOR is served and accepted.
    pub cbor: bool,
    /// Whether large responses are compressed.
    pub gzip: bool,
}

/// The catalog and its documents, always of the same version.
pub struct Served {
    /// All resources that this server serves.
    pub catalog: Catalog,
    /// The OpenAPI documents.
    pub openapi: OpenApi,
    /// Host and port for clients outside of the cluster.
    address: Arc<str>,
    /// The discovery documents, made on first use: during a burst of new definitions most catalogs never need theirs.
    documents: OnceLock<Arc<Documents>>,
    /// Closed once the status of the CustomResourceDefinitions reports that they are served.
    definitions_written: Option<watch::Receiver<()>>,
}

impl Served {
    /// Serves a catalog. `address`: host and port for clients outside of the cluster.
    pub fn new(catalog: Catalog, address: Arc<str>, openapi: OpenApi) -> Served {
        Served { catalog, openapi, address, documents: OnceLock::new(), definitions_written: None }
    }

    /// The same, while the status of the definitions is not written yet.
    #[must_use]
    pub fn awaiting_definitions(self, definitions_written: watch::Receiver<()>) -> Served {
        Served { definitions_written: Some(definitions_written), ..self }
    }

    /// Waits until the status of the definitions is written. A client that finds a kind in discovery may update its definition
    /// next, and would get a conflict.
    pub async fn wait_for_definitions(&self) {
        if let Some(mut definitions_written) = self.definitions_written.clone() {
            // Nothing is ever sent: this ends with an error when the channel closes.
            let _closed = definitions_written.changed().await;
        }
    }

    /// The discovery documents.
    pub fn documents(&self) -> &Arc<Documents> {
        self.documents.get_or_init(|| Arc::new(Documents::new(&self.catalog, &self.address)))
    }

    /// The discovery documents, if they were made.
    pub fn built_documents(&self) -> Option<&Arc<Documents>> {
        self.documents.get()
    }

    /// The discovery documents, including group versions of extension API servers.
    pub fn documents_with(&self, others: &[RegisteredVersion]) -> Documents {
        Documents::with_extensions(&self.catalog, &self.address, others)
    }

    /// Whether this server serves a group version itself.
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
    /// The catalog and documents as of now.
    pub fn served(&self) -> Guard<Arc<Served>> {
        self.shared.served.load()
    }
}
