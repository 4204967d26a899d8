//! Everything that etcd has at one revision. It is only read, so servers may go on with it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use pilothouse_etcd::messages::{KeyValue, RangeRequest};
use pilothouse_etcd::{Client, Error, Pages};
use pilothouse_etcd_layout::keys::{Location, Record};
use pilothouse_types::object::{Draft, Key, Revision, TypeName, UnreadableReason};
use tokio::task::spawn_blocking;

use super::{CopyError, quote};
use crate::convert::{from_etcd, to_etcd};
use crate::event_leases::EventLeases;
use crate::log::EtcdLog;
use crate::types::Types;
use crate::values::{DecodeError, Values};

/// What is said of a value that cannot be decoded.
const UNDECODABLE: &str =
    "its value in etcd is damaged, or of a kind or version that this release does not know";
/// Leases whose times are kept, so that etcd is not asked for each event.
const KNOWN_LEASES: usize = 65_536;

/// Everything in etcd at one revision. See the module documentation.
pub struct CopySource {
    client: Client,
    types: Arc<Types>,
    values: Arc<Values>,
    revision: Revision,
}

/// Some of the keys, in order.
#[derive(Clone, Debug, Default)]
pub struct CopyPage {
    /// What they are.
    pub entries: Vec<CopyEntry>,
    /// How many keys there are from the first of this page on.
    pub keys_left: u64,
}

/// What a key is.
#[derive(Clone, Debug)]
pub enum CopyEntry {
    /// An object.
    Object(CopyObject),
    /// A record by which servers agree. It has no meaning for other servers.
    Record,
    /// Something of a type that is not known, or of another program: its key.
    Foreign(String),
}

/// An object in etcd.
#[derive(Clone, Debug)]
pub struct CopyObject {
    /// Its type.
    pub type_name: TypeName,
    /// Its key.
    pub key: Key,
    /// When it was written last.
    pub revision: Revision,
    /// How many seconds it still lives; `None` if it does not expire.
    pub seconds_left: Option<u64>,
    /// The object, or why it cannot be read.
    pub draft: Result<Draft, String>,
}

impl EtcdLog {
    /// Everything in etcd as it is now. Fails if it is not whole.
    pub async fn copy_source(&self) -> Result<CopySource, CopyError> {
        let (client, types, values) = self.copy_parts();
        let key = types.record_key(&Record::UnfinishedCopy);
        let found = client.range(RangeRequest::key(key.clone())).await?;
        if !found.kvs.is_empty() {
            return Err(CopyError::Unfinished(key));
        }
        let revision = from_etcd(found.header.unwrap_or_default().revision);
        Ok(CopySource { client, types, values, revision })
    }
}

impl CopySource {
    /// The revision.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// All keys below the prefix.
    pub fn all(&self) -> CopyPages {
        self.pages(self.types.prefix())
    }

    /// The keys of a type; `None` if it is not known.
    pub fn of_type(&self, type_name: &TypeName) -> Option<CopyPages> {
        Some(self.pages(self.types.type_prefix(type_name)?))
    }

    fn pages(&self, prefix: String) -> CopyPages {
        let request = RangeRequest { revision: to_etcd(self.revision), ..RangeRequest::prefix(prefix) };
        CopyPages {
            pages: self.client.pages(request),
            client: self.client.clone(),
            types: Arc::clone(&self.types),
            values: Arc::clone(&self.values),
            lease_seconds: HashMap::new(),
        }
    }
}

/// Reads keys page by page.
pub struct CopyPages {
    pages: Pages,
    client: Client,
    types: Arc<Types>,
    values: Arc<Values>,
    /// How long leases still last; `None` for one that has ended.
    lease_seconds: HashMap<i64, Option<u64>>,
}

impl CopyPages {
    /// The next page; `None` after the last. Objects whose lease has ended meanwhile are left out.
    pub async fn next(&mut self) -> Result<Option<CopyPage>, CopyError> {
        let page = match self.pages.next().await {
            Ok(Some(page)) => page,
            Ok(None) => return Ok(None),
            Err(Error::Compacted(_)) => return Err(CopyError::Compacted),
            Err(error) => return Err(error.into()),
        };
        let keys_left = u64::try_from(page.count).unwrap_or(0);
        let (types, values) = (Arc::clone(&self.types), Arc::clone(&self.values));
        // It takes long, and the thread may have to wait for a KMS plugin.
        let decoded = spawn_blocking(move || -> Result<Vec<(CopyEntry, i64)>, CopyError> {
            page.kvs.into_iter().map(|entry| decode(&types, &values, &entry)).collect()
        });
        let decoded = decoded.await.map_err(|error| CopyError::KeyUnavailable(error.to_string()))??;
        self.ask_for_leases(decoded.iter().map(|(_, lease)| *lease)).await?;
        let entries = decoded.into_iter().filter_map(|(entry, lease)| self.with_time(entry, lease)).collect();
        Ok(Some(CopyPage { entries, keys_left }))
    }

    /// Asks etcd how long these leases still last, as far as that is not known.
    async fn ask_for_leases(&mut self, leases: impl Iterator<Item = i64>) -> Result<(), Error> {
        if self.lease_seconds.len() > KNOWN_LEASES {
            self.lease_seconds.clear();
        }
        let leases: BTreeSet<i64> = leases.filter(|lease| *lease != 0).collect();
        for lease in leases {
            if !self.lease_seconds.contains_key(&lease) {
                let answer = self.client.lease_time_to_live(lease, false).await?;
                self.lease_seconds.insert(lease, u64::try_from(answer.ttl).ok());
            }
        }
        Ok(())
    }

    /// The entry with the time that it still lives; `None` if its lease has ended.
    fn with_time(&self, mut entry: CopyEntry, lease: i64) -> Option<CopyEntry> {
        if let (CopyEntry::Object(object), true) = (&mut entry, lease != 0) {
            object.seconds_left = Some(self.lease_seconds.get(&lease).copied().flatten()?);
        }
        Some(entry)
    }
}

/// What a key is, and its lease, if that counts: that of an event.
fn decode(types: &Types, values: &Values, entry: &KeyValue) -> Result<(CopyEntry, i64), CopyError> {
    let (type_name, key) = match types.locate(&entry.key) {
        Some(Location::Object(type_name, key)) => (type_name, key),
        Some(Location::Record(_)) => return Ok((CopyEntry::Record, 0)),
        None => return Ok((CopyEntry::Foreign(quote(&entry.key)), 0)),
    };
    let draft = match values.decode(&type_name, &key, &entry.value) {
        Ok(decoded) => Ok(decoded.draft),
        Err(DecodeError::Unavailable(reason)) => return Err(CopyError::KeyUnavailable(reason)),
        Err(DecodeError::Impossible(UnreadableReason::Damaged)) => Err(UNDECODABLE.to_owned()),
        Err(DecodeError::Impossible(UnreadableReason::Undecryptable(reason))) => Err(reason),
    };
    let lease = if EventLeases::is_of_events(&type_name) { entry.lease } else { 0 };
    let revision = from_etcd(entry.mod_revision);
    Ok((CopyEntry::Object(CopyObject { type_name, key, revision, seconds_left: None, draft }), lease))
}
