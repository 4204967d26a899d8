//! The records of which node ports and cluster IPs are taken, as all servers of one etcd agree on them, in the form of the reference.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt as _};
use pilothouse_actors::shared_range::{RangeContent, RangeError, RangeRecord, RangeWrite, SharedRange};
use pilothouse_etcd::Client;
use pilothouse_etcd::messages::{
    Compare, KeyValue, PutRequest, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};
use pilothouse_etcd_layout::keys::Record;
use pilothouse_etcd_layout::range_allocation::RangeAllocation;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Revision, TypeName};
use tokio::task::spawn_blocking;

use crate::convert::{from_etcd, refusal, to_etcd};
use crate::limits::RANGE_CALL_TIMEOUT;
use crate::types::Types;
use crate::values::{Values, may_need_plugin};

/// The type by whose configuration the records are encrypted: that of Services, as in the reference.
const SERVICES: &str = "services";

/// One of the records. Cheap to clone.
#[derive(Clone)]
pub struct RangeAllocations {
    client: Client,
    values: Arc<Values>,
    key: Arc<str>,
}

impl RangeAllocations {
    /// This record in the cluster of the client.
    pub(crate) fn new(
        client: &Client,
        types: &Types,
        values: Arc<Values>,
        record: &Record,
    ) -> RangeAllocations {
        let client = client.with_timeout(RANGE_CALL_TIMEOUT);
        RangeAllocations { client, values, key: types.record_key(record).into() }
    }

    fn key(&self) -> Bytes {
        Bytes::copy_from_slice(self.key.as_bytes())
    }

    async fn decode(self, entry: Option<&KeyValue>) -> Result<Option<RangeRecord>, RangeError> {
        let Some(entry) = entry else { return Ok(None) };
        let (value, revision) = (entry.value.clone(), from_etcd(entry.mod_revision));
        let content = if may_need_plugin(&value) {
            // The plugin may take its time.
            let decoded = spawn_blocking(move || self.decode_value(&value)).await;
            decoded.map_err(|_| RangeError::Store(StoreError::Unavailable))?
        } else {
            self.decode_value(&value)
        };
        Ok(Some(RangeRecord { revision, content: content? }))
    }

    fn decode_value(&self, value: &[u8]) -> Result<RangeContent, RangeError> {
        let plain = self.values.decrypt_record(&TypeName::new(SERVICES), &self.key, value);
        let plain = plain.map_err(|reason| RangeError::Unreadable(reason.into()))?;
        let allocation = RangeAllocation::decode(self.values.codec(), &plain)
            .map_err(|error| RangeError::Unreadable(error.to_string().into()))?;
        Ok(RangeContent { range: allocation.range, allocated: allocation.allocated })
    }

    fn encode_value(&self, content: RangeContent) -> Result<Vec<u8>, RangeError> {
        let allocation = RangeAllocation { range: content.range, allocated: content.allocated };
        let failed = |reason: String| RangeError::Store(StoreError::NotEncrypted(reason));
        let plain = allocation
            .encode(self.values.codec())
            .map_err(|error| RangeError::Unencodable(error.to_string().into()))?;
        let encrypted = self.values.encrypt_record(&TypeName::new(SERVICES), &self.key, plain);
        encrypted.map_err(|error| failed(error.to_string()))
    }

    async fn read_record(self) -> Result<Option<RangeRecord>, RangeError> {
        let read = self.client.range(RangeRequest::key(self.key())).await;
        let read: RangeResponse = read.map_err(|error| RangeError::from(refusal(&error)))?;
        self.decode(read.kvs.first()).await
    }

    async fn write_record(self, expected: Option<Revision>, content: RangeContent) -> RangeWrite {
        let value = match self.encode_value(content) {
            Ok(value) => value,
            Err(error) => return RangeWrite::Failed(error),
        };
        let key = self.key();
        let condition = match expected {
            Some(revision) => Compare::mod_revision_is(key.clone(), to_etcd(revision)),
            None => Compare::is_absent(key.clone()),
        };
        let transaction = TxnRequest::when([condition])
            .and_then(PutRequest::new(key.clone(), value))
            .or_else(RangeRequest::key(key));
        let response: TxnResponse = match self.client.txn(transaction).await {
            Ok(response) => response,
            Err(error) if error.is_unknown_outcome() => return RangeWrite::Unknown,
            Err(error) => return RangeWrite::Failed(refusal(&error).into()),
        };
        if !response.succeeded {
            let current = response.range(0).and_then(|range| range.kvs.first());
            return match self.decode(current).await {
                Ok(current) => RangeWrite::Changed(current),
                Err(error) => RangeWrite::Failed(error),
            };
        }
        match response.header {
            Some(header) => RangeWrite::Written(from_etcd(header.revision)),
            // The next read tells.
            None => RangeWrite::Unknown,
        }
    }
}

impl SharedRange for RangeAllocations {
    fn read(&self) -> BoxFuture<'static, Result<Option<RangeRecord>, RangeError>> {
        self.clone().read_record().boxed()
    }

    fn write(&self, expected: Option<Revision>, content: RangeContent) -> BoxFuture<'static, RangeWrite> {
        self.clone().write_record(expected, content).boxed()
    }
}
