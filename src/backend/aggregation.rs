//! API aggregation: the registered APIServices (never older than the last acknowledged write), the discovery of their servers,
//! and calls to them.

mod client;
mod table;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pilothouse_actors::answer::Answer;
use pilothouse_api::aggregation::RegisteredVersion;
use pilothouse_api::aggregation::discovered::{DiscoveredVersion, STALE};
use pilothouse_api::aggregation::{ApiService, name_of};
use pilothouse_api::openapi::merged::ServedSpec;
use pilothouse_types::error::StoreError;
use pilothouse_types::lock::SharedLock;

use crate::auth::live_index::{LiveIndex, LiveIndexes};
use crate::limits::EXTENSION_DOCUMENTS_BYTES;
use crate::upstream::Upstream;

pub use client::{ExtensionRequest, ExtensionResponse, identity_headers};
pub use table::Table;

/// What the server of an APIService publishes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedDocuments {
    /// Its discovery document, and whether it is fresh.
    pub version: Option<Arc<DiscoveredVersion>>,
    /// Its OpenAPI v3 documents: path by name.
    pub openapi: BTreeMap<String, String>,
    /// The size of the OpenAPI v3 index.
    pub openapi_bytes: usize,
    /// The part of its OpenAPI v2 document about this version.
    pub described: Description,
    /// The size of its discovery document.
    pub bytes: usize,
    /// The ETag of the discovery document, for the next request.
    pub etag: String,
}

impl PublishedDocuments {
    fn size(&self) -> usize {
        self.bytes + self.openapi_bytes + self.described.content.bytes()
    }

    /// Drops parts that exceed `most` bytes. OpenAPI goes first and discovery last: without discovery no namespace could be
    /// deleted. Tags and digests stay, so that a part that does not fit is not fetched again and again.
    fn within(mut self, most: usize, name: &str) -> PublishedDocuments {
        type Drop = fn(&mut PublishedDocuments);
        let drops: [(&str, Drop); 3] = [
            ("OpenAPI v2", |told| told.described.content = Arc::default()),
            ("OpenAPI v3", |told| (told.openapi, told.openapi_bytes) = (BTreeMap::new(), 0)),
            ("discovery", |told| *told = PublishedDocuments::default()),
        ];
        for (what, drop) in drops {
            if self.size() <= most {
                break;
            }
            tracing::warn!(
                name,
                what,
                "the discovery or OpenAPI document of an aggregated API server is too large and is not cached"
            );
            drop(&mut self);
        }
        self
    }
}

/// The part of an OpenAPI v2 document about one version.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// The paths and definitions.
    pub content: Arc<ServedSpec>,
    /// The digest of the whole document and the name of the version.
    pub digest: Digest,
    /// Its ETag, for the next request.
    pub etag: String,
}

/// Identifies the content of a document.
pub type Digest = [u8; DIGEST_BYTES];
const DIGEST_BYTES: usize = 32;

impl PartialEq for Description {
    fn eq(&self, other: &Description) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Description {}

/// The group versions that extension API servers serve. Shared by all workers and loops.
pub struct Extensions {
    registrations: Arc<LiveIndex<Table>>,
    /// By the name of the APIService. A std lock, because it is held only for one lookup or change.
    told: SharedLock<BTreeMap<String, Arc<PublishedDocuments>>>,
    /// Counts the changes of `told`.
    changes: AtomicU64,
    upstream: Arc<Upstream>,
    /// Whether a service is called at one of its endpoints instead of its cluster IP.
    to_endpoints: bool,
}

impl Extensions {
    /// Reads all APIServices.
    pub async fn open(
        indexes: &LiveIndexes,
        upstream: Arc<Upstream>,
        to_endpoints: bool,
    ) -> Result<Extensions, StoreError> {
        let table = Table::new(upstream.pool().clone());
        Ok(Extensions {
            registrations: indexes.open([Table::TYPE], table).await?,
            told: SharedLock::default(),
            changes: AtomicU64::default(),
            upstream,
            to_endpoints,
        })
    }

    async fn try_look<T: 'static>(&self, look: impl Fn(&Table) -> T + 'static) -> Result<T, StoreError> {
        let looked = match self.registrations.look(look) {
            Answer::Now(looked) => looked,
            Answer::Later(looked) => looked.await,
        };
        looked.inspect_err(|error| {
            tracing::warn!(%error, "APIServices cannot be read; aggregated APIs are not served");
        })
    }

    async fn look<T: 'static>(&self, look: impl Fn(&Table) -> T + 'static) -> Option<T> {
        self.try_look(look).await.ok()
    }

    /// The APIService of a version, if an extension API server serves it.
    pub async fn find(&self, group: &str, version: &str) -> Result<Option<Arc<ApiService>>, StoreError> {
        if let Some(table) = self.registrations.fresh() {
            return Ok(if table.has_remotes() { table.remote(&name_of(group, version)) } else { None });
        }
        let name = name_of(group, version);
        self.try_look(move |table| table.remote(&name)).await
    }

    /// The APIService of this name.
    pub async fn named(&self, name: &str) -> Option<Arc<ApiService>> {
        let name = name.to_owned();
        self.look(move |table| table.get(&name)).await.flatten()
    }

    /// The names of the APIServices that a Service backs.
    pub fn behind(&self, namespace: &str, name: &str) -> Vec<String> {
        let table = self.registrations.fresh().unwrap_or_else(|| self.registrations.stale());
        table.behind(namespace, name)
    }

    /// The names of all APIServices that extension API servers serve.
    pub fn names(&self) -> Vec<String> {
        let table = self.registrations.fresh().unwrap_or_else(|| self.registrations.stale());
        table.remotes().filter(|known| !known.is_unreadable).map(|known| known.name.clone()).collect()
    }

    /// Identifies the current state of all APIServices and their discovery; `None` if they cannot be read. `is_ours` tells
    /// whether this server serves a version itself at its usual place. A state never recurs.
    pub async fn state(&self, is_ours: impl Fn(&ApiService) -> bool + 'static) -> Option<State> {
        let told = self.changes.load(Ordering::Acquire);
        self.look(move |table| State {
            registered: table.changes(),
            told,
            is_plain: table.all().all(|known| known.service.is_none() && is_ours(known)),
        })
        .await
    }

    /// All APIServices with their discovery; `None` if they cannot be read.
    pub async fn all(&self) -> Option<Vec<RegisteredVersion>> {
        let all = self.look(|table| table.all().cloned().collect::<Vec<_>>()).await?;
        let told = self.told.read();
        let other = |registration: Arc<ApiService>| {
            let found = registration.service.as_ref().map(|_| {
                let known = told.get(&registration.name).and_then(|told| told.version.clone());
                known.unwrap_or_else(|| Arc::new(DiscoveredVersion::bare(&registration.gv.version, STALE)))
            });
            RegisteredVersion { registration, found }
        };
        Some(all.into_iter().map(other).collect())
    }

    /// What the server of an APIService published.
    pub fn told(&self, name: &str) -> Option<Arc<PublishedDocuments>> {
        self.told.read().get(name).cloned()
    }

    /// The OpenAPI v2 parts of extension API servers, in order of precedence. `is_ours`: registrations that this server serves
    /// itself are skipped.
    pub async fn described(&self, is_ours: impl Fn(&ApiService) -> bool + 'static) -> Vec<Description> {
        let mut all = self
            .look(move |table| table.remotes().filter(|known| !is_ours(known)).cloned().collect::<Vec<_>>())
            .await
            .unwrap_or_default();
        all.sort_by_cached_key(|known| {
            let (first, then) = (Reverse(known.group_priority), Reverse(known.version_priority));
            (first, known.gv.group.clone(), then, known.name.clone())
        });
        let told = self.told.read();
        let described = all.iter().filter_map(|known| Some(told.get(&known.name)?.described.clone()));
        described.filter(|described| !described.content.is_empty()).collect()
    }

    /// The OpenAPI v3 documents of extension API servers: path by name.
    pub fn openapi(&self) -> BTreeMap<String, String> {
        let told = self.told.read();
        told.values().flat_map(|told| told.openapi.clone()).collect()
    }

    /// An APIService whose server has this OpenAPI v3 document.
    pub async fn describes(&self, document: &str) -> Option<Arc<ApiService>> {
        let names: BTreeSet<String> = {
            let told = self.told.read();
            let found = told.iter().filter(|(_, told)| told.openapi.contains_key(document));
            found.map(|(name, _)| name.clone()).collect()
        };
        if names.is_empty() {
            return None;
        }
        // One server may back several APIServices: prefer an available one.
        self.look(move |table| {
            let found = || table.remotes().filter(|known| names.contains(&known.name));
            found().find(|known| known.is_available).or_else(|| found().next()).cloned()
        })
        .await
        .flatten()
    }

    /// Replaces what a server published; `None` forgets it.
    pub fn keep(&self, name: &str, new: Option<PublishedDocuments>) {
        let mut told = self.told.write();
        let others: usize =
            told.iter().filter(|(known, _)| *known != name).map(|(_, told)| told.size()).sum();
        let new = new.map(|new| Arc::new(new.within(EXTENSION_DOCUMENTS_BYTES.saturating_sub(others), name)));
        let is_news = told.get(name) != new.as_ref();
        // Kept even if the content is the same, because tags may be new.
        match new {
            Some(new) => told.insert(name.to_owned(), new),
            None => told.remove(name),
        };
        if is_news {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// A state of all APIServices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    registered: u64,
    told: u64,
    /// Whether this server serves all registered versions itself.
    pub is_plain: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_is_too_little_room_what_a_server_serves_goes_last() {
        let document = br#"{"paths":{"/apis/g/v1/things":{"get":{}}}}"#;
        let content = Arc::new(ServedSpec::read(document, "g", "v1").unwrap());
        let described = Description { content, digest: [7; DIGEST_BYTES], etag: "tag".to_owned() };
        let told = PublishedDocuments {
            version: Some(Arc::new(DiscoveredVersion::bare("v1", STALE))),
            openapi: BTreeMap::from([("apis/g/v1".to_owned(), "/x".to_owned())]),
            openapi_bytes: 50,
            described,
            bytes: 100,
            etag: "e".to_owned(),
        };
        let size = told.size();
        assert!(size > 150);
        assert_eq!(told.clone().within(size, "v1.g").size(), size);
        let undescribed = told.clone().within(size - 1, "v1.g");
        assert_eq!(undescribed.size(), 150);
        assert_eq!(undescribed.described, told.described, "or it would be sent again every time");
        let served = told.clone().within(149, "v1.g");
        assert!(served.version.is_some() && served.openapi.is_empty());
        assert_eq!(told.within(99, "v1.g"), PublishedDocuments::default());
    }
}
