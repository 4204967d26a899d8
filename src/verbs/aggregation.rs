//! Groups that other servers serve: which there are, never older than the last write that was answered, what their servers say of
//! themselves, and how those are asked.

mod ask;
mod table;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use actix::Addr;
use pilothouse_actors::answer::Answer;
use pilothouse_actors::directory::Directory;
use pilothouse_actors::error::StoreError;
use pilothouse_actors::lock::SharedLock;
use pilothouse_actors::object::TypeName;

use crate::api::aggregation::found::{FoundVersion, STALE};
use crate::api::aggregation::{Registration, STORE, name_of};
use crate::api::discovery::Other;
use crate::api::openapi::merged::Described;
use crate::auth::followed::Followed;
use crate::limits::EXTENSION_DOCUMENTS_BYTES;
use crate::upstream::Upstream;

pub use ask::{Question, Reply, identity_headers};
pub use table::Table;

/// What the server of a version says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// What it serves, and whether it said so lately.
    pub version: Option<Arc<FoundVersion>>,
    /// Its OpenAPI documents: where each stands, by its name.
    pub openapi: BTreeMap<String, String>,
    /// How large the document was that they were read from.
    pub openapi_bytes: usize,
    /// What its OpenAPI document of the second version says of this one.
    pub described: Description,
    /// How large that of what it serves was.
    pub bytes: usize,
    /// The tag of the document of discovery, for the next time.
    pub etag: String,
}

impl Told {
    fn size(&self) -> usize {
        self.bytes + self.openapi_bytes + self.described.content.bytes()
    }

    /// What of it fits into so many bytes. Descriptions go first and what it serves goes last: without that no namespace could
    /// be deleted. Tags and digests stay, so that what does not fit is not sent again and again.
    fn within(mut self, most: usize, name: &str) -> Told {
        type Drop = fn(&mut Told);
        let drops: [(&str, Drop); 3] = [
            ("OpenAPI v2", |told| told.described.content = Arc::default()),
            ("OpenAPI v3", |told| (told.openapi, told.openapi_bytes) = (BTreeMap::new(), 0)),
            ("discovery", |told| *told = Told::default()),
        ];
        for (what, drop) in drops {
            if self.size() <= most {
                break;
            }
            tracing::warn!(
                name,
                what,
                "the documents of extension servers are too large: of this one it is not kept"
            );
            drop(&mut self);
        }
        self
    }
}

/// What an OpenAPI document of the second version says of one version.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// What it says.
    pub content: Arc<Described>,
    /// The digest of the whole document and of the name of the version.
    pub digest: Digest,
    /// Its tag, for the next time.
    pub etag: String,
}

/// By which documents are known.
pub type Digest = [u8; DIGEST_BYTES];
const DIGEST_BYTES: usize = 32;

impl PartialEq for Description {
    fn eq(&self, other: &Description) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Description {}

/// The groups that other servers serve. One for all workers and loops.
pub struct Extensions {
    registrations: Arc<Followed<Table>>,
    /// By the name of the registration. A std lock: it is held for one look or one change.
    told: SharedLock<BTreeMap<String, Arc<Told>>>,
    /// How often that has changed.
    changes: AtomicU64,
    /// The way to them.
    upstream: Arc<Upstream>,
    /// Whether services are reached at their endpoints.
    to_endpoints: bool,
}

impl Extensions {
    /// Reads all registrations.
    pub async fn open(
        directory: Addr<Directory>,
        upstream: Arc<Upstream>,
        to_endpoints: bool,
    ) -> Result<Extensions, StoreError> {
        let registrations =
            Followed::open(directory, [TypeName::new(STORE)], Table::new(upstream.pool().clone())).await?;
        Ok(Extensions {
            registrations: Arc::new(registrations),
            told: SharedLock::default(),
            changes: AtomicU64::default(),
            upstream,
            to_endpoints,
        })
    }

    async fn look<T: 'static>(&self, look: impl Fn(&Table) -> T + 'static) -> Option<T> {
        let looked = match self.registrations.look(look) {
            Answer::Now(looked) => looked,
            Answer::Later(looked) => looked.await,
        };
        if let Err(error) = &looked {
            tracing::warn!(%error, "nobody knows which groups others serve");
        }
        looked.ok()
    }

    /// What is registered for a version, if somebody else serves it.
    pub async fn find(&self, group: &str, version: &str) -> Option<Arc<Registration>> {
        if let Some(table) = self.registrations.fresh() {
            return if table.has_remotes() { table.remote(&name_of(group, version)) } else { None };
        }
        let name = name_of(group, version);
        self.look(move |table| table.remote(&name)).await.flatten()
    }

    /// What is registered under a name.
    pub async fn named(&self, name: &str) -> Option<Arc<Registration>> {
        let name = name.to_owned();
        self.look(move |table| table.get(&name)).await.flatten()
    }

    /// The names of those that a service stands behind.
    pub fn behind(&self, namespace: &str, name: &str) -> Vec<String> {
        let table = self.registrations.fresh().unwrap_or_else(|| self.registrations.stale());
        table.behind(namespace, name)
    }

    /// The names of all that others serve.
    pub fn names(&self) -> Vec<String> {
        let table = self.registrations.fresh().unwrap_or_else(|| self.registrations.stale());
        table.remotes().map(|known| known.name.clone()).collect()
    }

    /// Which state of registrations and of what is told of them this is; `None`: nobody knows. `is_ours` says of one whether this
    /// server serves it, in its usual place. A state that was seen once never comes again.
    pub async fn state(&self, is_ours: impl Fn(&Registration) -> bool + 'static) -> Option<State> {
        let told = self.changes.load(Ordering::Acquire);
        self.look(move |table| State {
            registered: table.changes(),
            told,
            is_plain: table.all().all(|known| known.service.is_none() && is_ours(known)),
        })
        .await
    }

    /// All registrations, with what is told of them; `None`: nobody knows.
    pub async fn all(&self) -> Option<Vec<Other>> {
        let all = self.look(|table| table.all().cloned().collect::<Vec<_>>()).await?;
        let told = self.told.read();
        let other = |registration: Arc<Registration>| {
            let found = registration.service.as_ref().map(|_| {
                let known = told.get(&registration.name).and_then(|told| told.version.clone());
                known.unwrap_or_else(|| Arc::new(FoundVersion::bare(&registration.gv.version, STALE)))
            });
            Other { registration, found }
        };
        Some(all.into_iter().map(other).collect())
    }

    /// What the server of a version said of it.
    pub fn told(&self, name: &str) -> Option<Arc<Told>> {
        self.told.read().get(name).cloned()
    }

    /// What others say of the versions that they serve, in the order in which it counts. `is_ours`: what is said of this one does not.
    pub async fn described(&self, is_ours: impl Fn(&Registration) -> bool + 'static) -> Vec<Description> {
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

    /// The OpenAPI documents that others have, and where.
    pub fn openapi(&self) -> BTreeMap<String, String> {
        let told = self.told.read();
        told.values().flat_map(|told| told.openapi.clone()).collect()
    }

    /// Who has the OpenAPI document of this name.
    pub async fn describes(&self, document: &str) -> Option<Arc<Registration>> {
        let names: BTreeSet<String> = {
            let told = self.told.read();
            let found = told.iter().filter(|(_, told)| told.openapi.contains_key(document));
            found.map(|(name, _)| name.clone()).collect()
        };
        if names.is_empty() {
            return None;
        }
        // One server may stand behind several versions: then any of them that can be reached will do.
        self.look(move |table| {
            let found = || table.remotes().filter(|known| names.contains(&known.name));
            found().find(|known| known.is_available).or_else(|| found().next()).cloned()
        })
        .await
        .flatten()
    }

    /// Keeps what a server said, in the place of what it said before; `None`: it is forgotten.
    pub fn keep(&self, name: &str, new: Option<Told>) {
        let mut told = self.told.write();
        let others: usize =
            told.iter().filter(|(known, _)| *known != name).map(|(_, told)| told.size()).sum();
        let new = new.map(|new| Arc::new(new.within(EXTENSION_DOCUMENTS_BYTES.saturating_sub(others), name)));
        let is_news = told.get(name) != new.as_ref();
        // Kept in any case: tags may be new where nothing else is.
        match new {
            Some(new) => told.insert(name.to_owned(), new),
            None => told.remove(name),
        };
        if is_news {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// A state of registrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    registered: u64,
    told: u64,
    /// Whether this server serves all that is registered, as ever.
    pub is_plain: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_is_too_little_room_what_a_server_serves_goes_last() {
        let document = br#"{"paths":{"/apis/g/v1/things":{"get":{}}}}"#;
        let content = Arc::new(Described::read(document, "g", "v1").unwrap());
        let described = Description { content, digest: [7; DIGEST_BYTES], etag: "tag".to_owned() };
        let told = Told {
            version: Some(Arc::new(FoundVersion::bare("v1", STALE))),
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
        assert_eq!(told.within(99, "v1.g"), Told::default());
    }
}
