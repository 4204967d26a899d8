//! The etcd that gets a copy.
//!
//! A mark below the prefix says that the copy is not finished. It is the first key, written only where there is no other, and the last
//! that goes. Servers do not start as long as it is there. Every write compares it, so one copy at a time writes.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use pilothouse_etcd::messages::{
    CompactionRequest, Compare, CompareResult, CompareValue, DeleteRangeRequest, KeyValue, PutRequest,
    RangeRequest, TxnRequest, TxnResponse, after, prefix_end,
};
use pilothouse_etcd::{Client, Error};
use pilothouse_etcd_layout::keys::{Location, Record};
use pilothouse_types::object::{Key, Revision, TypeName};
use tokio::sync::Mutex;

use super::leases::CopyLeases;
use super::{CopyError, quote};
use crate::convert::{from_etcd, to_etcd};
use crate::limits::{COPY_ATTEMPTS, COPY_RAISE_REVISIONS, COPY_RAISES_IN_FLIGHT};
use crate::log::EtcdLog;
use crate::types::Types;

/// The etcd that gets a copy. See the module documentation.
pub struct CopyTarget {
    client: Client,
    types: Arc<Types>,
    mark_key: Bytes,
    /// The value of the mark, which no other run has.
    mark: Bytes,
    leases: Mutex<CopyLeases>,
}

/// What became of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyWrite {
    /// It is in etcd.
    Written,
    /// It has expired meanwhile.
    Expired,
    /// etcd has no place for it: why.
    Refused(String),
}

impl EtcdLog {
    /// Begins a copy into this etcd, which has nothing below the prefix, or an unfinished copy: that is removed. Returns also how many
    /// keys were removed.
    pub async fn copy_target(&self) -> Result<(CopyTarget, u64), CopyError> {
        let (client, types, _) = self.copy_parts();
        let mark_key = Bytes::from(types.record_key(&Record::UnfinishedCopy));
        let number = RandomState::new().hash_one(std::process::id());
        let mark = Bytes::from(format!("unfinished copy {number:016x}"));
        let target = CopyTarget { client, types, mark_key, mark, leases: Mutex::default() };
        let removed = target.begin().await?;
        Ok((target, removed))
    }
}

impl CopyTarget {
    async fn begin(&self) -> Result<u64, CopyError> {
        let Some((key, count)) = self.first_key().await? else {
            // Also if a server begins at this moment.
            let prefix = Bytes::from(self.types.prefix());
            let absent = Compare::new(prefix.clone(), CompareResult::Equal, CompareValue::CreateRevision(0));
            let empty = Compare { range_end: prefix_end(&prefix), ..absent };
            return match self.client.txn(self.with_mark(empty)).await?.succeeded {
                true => Ok(0),
                false => Err(CopyError::Disturbed(prefix_text(&self.types))),
            };
        };
        let present = self.client.range(RangeRequest::key(self.mark_key.clone())).await?.kvs.pop();
        let Some(KeyValue { value, .. }) = present else {
            return Err(CopyError::NotEmpty { prefix: prefix_text(&self.types), count, key });
        };
        self.check_remains().await?;
        let is_still = Compare::new(self.mark_key.clone(), CompareResult::Equal, CompareValue::Value(value));
        if !self.client.txn(self.with_mark(is_still)).await?.succeeded {
            return Err(self.taken_over());
        }
        self.remove_remains().await
    }

    /// Writes the mark under this condition.
    fn with_mark(&self, condition: Compare) -> TxnRequest {
        TxnRequest::when([condition]).and_then(PutRequest::new(self.mark_key.clone(), self.mark.clone()))
    }

    /// The mark is still that of this run.
    fn is_own(&self) -> Compare {
        let mark = CompareValue::Value(self.mark.clone());
        Compare::new(self.mark_key.clone(), CompareResult::Equal, mark)
    }

    fn taken_over(&self) -> CopyError {
        CopyError::Disturbed(quote(&self.mark_key))
    }

    /// A key below the prefix, and how many there are.
    async fn first_key(&self) -> Result<Option<(String, i64)>, Error> {
        let request = RangeRequest { limit: 1, keys_only: true, ..RangeRequest::prefix(self.types.prefix()) };
        let found = self.client.range(request).await?;
        Ok(found.kvs.first().map(|first| (quote(&first.key), found.count)))
    }

    /// Fails if what is there does not come from a copy alone. A server would have changed something, or written that it is alive.
    async fn check_remains(&self) -> Result<(), CopyError> {
        let request = RangeRequest { keys_only: true, ..RangeRequest::prefix(self.types.prefix()) };
        let mut pages = self.client.pages(request);
        while let Some(page) = pages.next().await? {
            let is_copied = |entry: &&KeyValue| {
                let is_object = matches!(self.types.locate(&entry.key), Some(Location::Object(..)));
                // The types of custom objects are known, because their definitions are read before.
                entry.key == self.mark_key || is_object && entry.version == 1
            };
            if let Some(other) = page.kvs.iter().find(|entry| !is_copied(entry)) {
                return Err(CopyError::Changed(quote(&other.key)));
            }
        }
        Ok(())
    }

    /// Removes everything but the mark, a page at a time, because etcd does nothing else while it removes a range.
    async fn remove_remains(&self) -> Result<u64, CopyError> {
        let prefix = Bytes::from(self.types.prefix());
        let end = prefix_end(&prefix);
        let mut removed = 0;
        for (key, range_end) in [(prefix, self.mark_key.clone()), (after(&self.mark_key), end)] {
            let request = RangeRequest { key, range_end, keys_only: true, ..RangeRequest::default() };
            let mut pages = self.client.pages(request);
            while let Some(page) = pages.next().await? {
                let (Some(first), Some(last)) = (page.kvs.first(), page.kvs.last()) else { continue };
                let range = DeleteRangeRequest {
                    key: first.key.clone(),
                    range_end: after(&last.key),
                    prev_kv: false,
                };
                let transaction = TxnRequest::when([self.is_own()]).and_then(range);
                if !self.client.txn(transaction).await?.succeeded {
                    return Err(self.taken_over());
                }
                removed += page.kvs.len() as u64;
            }
        }
        Ok(removed)
    }

    /// Writes an object in its stored form. With `seconds_left`, it expires then.
    pub async fn write(
        &self,
        type_name: &TypeName,
        key: &Key,
        value: Bytes,
        seconds_left: Option<u64>,
    ) -> Result<CopyWrite, CopyError> {
        let Some(etcd_key) = self.types.etcd_key(type_name, key).map(Bytes::from) else {
            return Ok(CopyWrite::Refused("etcd has no key for it".to_owned()));
        };
        let lease = match seconds_left {
            None => 0,
            Some(seconds) => self.leases.lock().await.lease(&self.client, seconds).await?,
        };
        let put = PutRequest { lease, ..PutRequest::new(etcd_key.clone(), value.clone()) };
        let transaction = TxnRequest::when([self.is_own(), Compare::is_absent(etcd_key.clone())])
            .and_then(put)
            .or_else(RangeRequest::key(etcd_key.clone()));
        match self.repeated(transaction).await {
            Ok(response) if response.succeeded => Ok(CopyWrite::Written),
            Ok(response) => {
                let present = response.range(0).and_then(|range| range.kvs.first());
                match present.is_some_and(|present| present.value == value) {
                    // By an attempt whose answer was lost.
                    true => Ok(CopyWrite::Written),
                    false => Err(CopyError::Disturbed(quote(&etcd_key))),
                }
            }
            Err(Error::LeaseNotFound) => {
                self.leases.lock().await.lost(lease);
                Ok(CopyWrite::Expired)
            }
            Err(error @ Error::RequestTooLarge(_)) => Ok(CopyWrite::Refused(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    /// Carries out a transaction that may be repeated, also if nobody knows whether it was carried out.
    async fn repeated(&self, transaction: TxnRequest) -> Result<TxnResponse, Error> {
        let mut attempts = 1;
        loop {
            match self.client.txn(transaction.clone()).await {
                Err(error) if error.is_unknown_outcome() && attempts < COPY_ATTEMPTS => attempts += 1,
                answer => return answer,
            }
        }
    }

    /// The revision of etcd, and how many keys there are below the prefix.
    async fn state(&self) -> Result<(Revision, u64), Error> {
        let request = RangeRequest { count_only: true, ..RangeRequest::prefix(self.types.prefix()) };
        let found = self.client.range(request).await?;
        let revision = from_etcd(found.header.unwrap_or_default().revision);
        Ok((revision, u64::try_from(found.count).unwrap_or(0)))
    }

    /// How far the revision of etcd is from being above this one.
    pub async fn revisions_missing(&self, highest: Revision) -> Result<u64, CopyError> {
        let (revision, _) = self.state().await?;
        Ok(highest.next().0.saturating_sub(revision.0))
    }

    /// Raises the revision of etcd above this one, if few enough are missing, by writing the mark so often. Returns how many are still
    /// missing.
    pub async fn raise_above(&self, highest: Revision) -> Result<u64, CopyError> {
        loop {
            let missing = self.revisions_missing(highest).await?;
            if missing == 0 || missing > COPY_RAISE_REVISIONS {
                return Ok(missing);
            }
            let mut writes = stream::iter(0..missing)
                .map(|_| self.repeated(self.with_mark(self.is_own())))
                .buffer_unordered(COPY_RAISES_IN_FLIGHT);
            while let Some(response) = writes.next().await {
                if !response?.succeeded {
                    return Err(self.taken_over());
                }
            }
        }
    }

    /// Closes the history and removes the mark: the copy is finished, and has as many keys as were written at most. Returns the revision
    /// below which nobody can continue.
    pub async fn finish(self, written: u64) -> Result<Revision, CopyError> {
        let (revision, keys) = self.state().await?;
        // Fewer, if some have expired.
        if keys > written.saturating_add(1) {
            return Err(CopyError::Disturbed(prefix_text(&self.types)));
        }
        // Otherwise clients with a revision of the old server would continue in the middle of the copy.
        let request = CompactionRequest { revision: to_etcd(revision), ..CompactionRequest::default() };
        match self.client.compact(request).await {
            Ok(_) | Err(Error::Compacted(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let last = TxnRequest::when([self.is_own()])
            .and_then(DeleteRangeRequest::key(self.mark_key.clone()))
            .or_else(RangeRequest::key(self.mark_key.clone()));
        let response = self.repeated(last).await?;
        // Gone by an attempt whose answer was lost.
        let is_gone = || response.range(0).is_some_and(|range| range.kvs.is_empty());
        if response.succeeded || is_gone() { Ok(revision) } else { Err(self.taken_over()) }
    }
}

/// What all keys begin with.
fn prefix_text(types: &Types) -> String {
    quote(types.prefix().as_bytes())
}
