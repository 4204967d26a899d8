//! API aggregation: the registered APIServices (never older than the last acknowledged write), the discovery of their servers,
//! and calls to them.

mod client;
mod published;
mod table;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pilothouse_actors::answer::Answer;
use pilothouse_api::aggregation::RegisteredVersion;
use pilothouse_api::aggregation::discovered::{DiscoveredVersion, STALE};
use pilothouse_api::aggregation::{ApiService, api_service_name};
use pilothouse_client::upstream::Upstream;
use pilothouse_types::error::StoreError;
use pilothouse_types::lock::SharedLock;
use pilothouse_types::memory::MemoryBudget;

use crate::limits::EXTENSION_DOCUMENTS_BYTES;
use crate::live_index::{LiveIndex, LiveIndexes};

pub use client::{ExtensionRequest, ExtensionResponse, FetchError, fetch, identity_headers};
pub use published::{Description, Digest, Discovery, DocumentIdentity, DocumentIndex, PublishedDocuments};
pub use table::Table;

/// The group versions that aggregated API servers serve. Shared by all workers and controllers.
pub struct Extensions {
    registrations: Arc<LiveIndex<Table>>,
    /// By the name of the APIService. Held only for one lookup or change.
    published: SharedLock<BTreeMap<String, Arc<PublishedDocuments>>>,
    /// Counts the changes of `published`.
    changes: AtomicU64,
    /// The memory of their OpenAPI v2 documents.
    openapi_memory: MemoryBudget,
    upstream: Arc<Upstream>,
    /// Whether a service is called at one of its endpoints instead of its cluster IP.
    to_endpoints: bool,
}

impl Extensions {
    /// Reads all APIServices.
    pub async fn open(
        indexes: &LiveIndexes,
        upstream: Arc<Upstream>,
        openapi_memory: MemoryBudget,
        to_endpoints: bool,
    ) -> Result<Extensions, StoreError> {
        let table = Table::new(upstream.pool().clone());
        Ok(Extensions {
            registrations: indexes.open([Table::TYPE], table).await?,
            published: SharedLock::default(),
            changes: AtomicU64::default(),
            openapi_memory,
            upstream,
            to_endpoints,
        })
    }

    /// The memory of the OpenAPI v2 documents of all servers.
    pub fn openapi_memory(&self) -> &MemoryBudget {
        &self.openapi_memory
    }

    async fn try_lookup<T: 'static>(&self, read: impl Fn(&Table) -> T + 'static) -> Result<T, StoreError> {
        let result = match self.registrations.query(read) {
            Answer::Now(result) => result,
            Answer::Later(result) => result.await,
        };
        result.inspect_err(|error| {
            tracing::warn!(%error, "APIServices cannot be read; aggregated APIs are not served");
        })
    }

    async fn lookup<T: 'static>(&self, read: impl Fn(&Table) -> T + 'static) -> Option<T> {
        self.try_lookup(read).await.ok()
    }

    /// The APIService of a version, if an extension API server serves it.
    pub async fn find(&self, group: &str, version: &str) -> Result<Option<Arc<ApiService>>, StoreError> {
        if let Some(table) = self.registrations.fresh() {
            return Ok(if table.has_remotes() {
                table.remote(&api_service_name(group, version))
            } else {
                None
            });
        }
        let name = api_service_name(group, version);
        self.try_lookup(move |table| table.remote(&name)).await
    }

    /// The APIService of this name.
    pub async fn named(&self, name: &str) -> Option<Arc<ApiService>> {
        let name = name.to_owned();
        self.lookup(move |table| table.get(&name)).await.flatten()
    }

    /// The names of the APIServices that a Service backs.
    pub fn backed_by(&self, namespace: &str, name: &str) -> Vec<String> {
        let table = self.registrations.fresh().unwrap_or_else(|| self.registrations.stale());
        table.backed_by(namespace, name)
    }

    /// The names of all APIServices that extension API servers serve.
    pub fn names(&self) -> Vec<String> {
        let table = self.registrations.fresh().unwrap_or_else(|| self.registrations.stale());
        table.remotes().filter(|service| !service.is_unreadable).map(|service| service.name.clone()).collect()
    }

    /// Identifies the current state of all APIServices and their discovery; `None` if they cannot be read. `is_ours` tells
    /// whether this server serves a version itself under its usual path. A state never recurs.
    pub async fn state(&self, is_ours: impl Fn(&ApiService) -> bool + 'static) -> Option<State> {
        let published = self.changes.load(Ordering::Acquire);
        self.lookup(move |table| State {
            registered: table.changes(),
            published,
            is_plain: table.all().all(|registered| registered.service.is_none() && is_ours(registered)),
        })
        .await
    }

    /// All APIServices with their discovery; `None` if they cannot be read.
    pub async fn all(&self) -> Option<Vec<RegisteredVersion>> {
        let all = self.lookup(|table| table.all().cloned().collect::<Vec<_>>()).await?;
        let published = self.published.read();
        let other = |registration: Arc<ApiService>| {
            let version = registration.service.as_ref().map(|_| {
                let version = published
                    .get(&registration.name)
                    .and_then(|documents| documents.discovery.version.clone());
                version.unwrap_or_else(|| Arc::new(DiscoveredVersion::bare(&registration.gv.version, STALE)))
            });
            RegisteredVersion { registration, found: version }
        };
        Some(all.into_iter().map(other).collect())
    }

    /// The documents that the server of an APIService published.
    pub fn published(&self, name: &str) -> Option<Arc<PublishedDocuments>> {
        self.published.read().get(name).cloned()
    }

    /// The OpenAPI v2 parts of extension API servers, in order of precedence. `is_ours`: registrations that this server serves
    /// itself are skipped.
    pub async fn openapi_v2(&self, is_ours: impl Fn(&ApiService) -> bool + 'static) -> Vec<Description> {
        let mut services = self
            .lookup(move |table| {
                table.remotes().filter(|service| !is_ours(service)).cloned().collect::<Vec<_>>()
            })
            .await
            .unwrap_or_default();
        services.sort_by_cached_key(|service| {
            let ApiService { gv, priorities, name, .. } = &**service;
            (Reverse(priorities.group), gv.group.clone(), Reverse(priorities.version), name.clone())
        });
        let published = self.published.read();
        let described =
            services.iter().filter_map(|service| Some(published.get(&service.name)?.openapi_v2.clone()));
        described.filter(|described| !described.content.is_empty()).collect()
    }

    /// The OpenAPI v3 documents of extension API servers: path by name.
    pub fn openapi(&self) -> BTreeMap<String, String> {
        let published = self.published.read();
        published.values().flat_map(|documents| documents.openapi_v3.paths.clone()).collect()
    }

    /// An APIService whose server has this OpenAPI v3 document.
    pub async fn find_by_openapi_document(&self, document: &str) -> Option<Arc<ApiService>> {
        let names: BTreeSet<String> = {
            let published = self.published.read();
            let with_document =
                published.iter().filter(|(_, documents)| documents.openapi_v3.paths.contains_key(document));
            with_document.map(|(name, _)| name.clone()).collect()
        };
        if names.is_empty() {
            return None;
        }
        // One server may back several APIServices: prefer an available one.
        self.lookup(move |table| {
            let candidates = || table.remotes().filter(|service| names.contains(&service.name));
            candidates().find(|service| service.is_available).or_else(|| candidates().next()).cloned()
        })
        .await
        .flatten()
    }

    /// Changes the documents of a server.
    pub fn publish(&self, name: &str, change: impl FnOnce(&mut PublishedDocuments)) {
        let mut published = self.published.write();
        let mut new = published.get(name).map(|documents| (**documents).clone()).unwrap_or_default();
        change(&mut new);
        let others: usize =
            published.iter().filter(|(other, _)| *other != name).map(|(_, documents)| documents.size()).sum();
        let new = Arc::new(new.truncate_to(EXTENSION_DOCUMENTS_BYTES.saturating_sub(others), name));
        // Replaced even if the content is the same, because ETags may be new.
        let previous = published.insert(name.to_owned(), Arc::clone(&new));
        drop(published);
        if previous.as_ref() != Some(&new) {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Removes the documents of a server.
    pub fn unpublish(&self, name: &str) {
        let removed = self.published.write().remove(name);
        if removed.is_some() {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// A state of all APIServices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    registered: u64,
    published: u64,
    /// Whether this server serves all registered versions itself.
    pub is_plain: bool,
}
