//! Records that servers keep about themselves, in the form of the reference: each under a lease that its server renews, so that it goes
//! away with the server.

use std::sync::Arc;

use pilothouse_actors::shared_log::SharedLogError;
use pilothouse_etcd::messages::{DeleteRangeRequest, KeyValue, LeaseGrantRequest, PutRequest, RangeRequest};
use pilothouse_etcd::{Client, Error};
use pilothouse_etcd_layout::endpoint_lease::EndpointLease;
use pilothouse_etcd_layout::keys::Record;

use crate::convert::{refusal, unavailable};
use crate::limits::{ENDPOINT_LEASE_SECONDS, RECORD_READ_TIMEOUT};
use crate::meter::{Meter, Operation};
use crate::types::Types;
use crate::values::Values;

/// The records of one kind. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LeasedRecords {
    client: Client,
    types: Arc<Types>,
    values: Arc<Values>,
    meter: Meter,
    /// How metrics call them; the reference's name.
    resource: &'static str,
}

impl LeasedRecords {
    pub(crate) fn new(
        client: Client,
        types: Arc<Types>,
        values: Arc<Values>,
        meter: Meter,
        resource: &'static str,
    ) -> LeasedRecords {
        LeasedRecords { client, types, values, meter, resource }
    }

    /// Writes a record of this server, or renews it.
    pub(crate) async fn renew(&self, record: &Record, content: EndpointLease) -> Result<(), SharedLogError> {
        let (key, codec) = (self.types.record_key(record), self.values.codec());
        let grant = LeaseGrantRequest { ttl: ENDPOINT_LEASE_SECONDS, id: 0 };
        let lease = self.client.lease_grant(grant).await.map_err(|error| refusal(&error))?.id;
        let stored = self.client.range(RangeRequest::key(key.clone()));
        let stored = self.measure(Operation::Get, stored).await?;
        // A record that cannot be read is replaced.
        let stored = stored.kvs.first().and_then(|entry| self.decode(entry));
        let content = stored.iter().fold(content, |content, stored| content.renewing(stored));
        let value = content.encode(codec).map_err(|error| unavailable(&error.to_string()))?;
        let put = PutRequest { lease, ..PutRequest::new(key, value) };
        self.measure(Operation::Update, self.client.put(put)).await.map(drop)
    }

    /// All records whose keys begin like this, without those that cannot be read.
    pub(crate) async fn list(&self, prefix: String) -> Result<Vec<EndpointLease>, SharedLogError> {
        let all = self.client.range(RangeRequest::prefix(prefix));
        let all = self.measure(Operation::List, all).await?;
        Ok(all.kvs.iter().filter_map(|entry| self.decode(entry)).collect())
    }

    /// One record; `None` if there is none, or it cannot be read. A request may wait for it.
    pub(crate) async fn read(&self, record: &Record) -> Result<Option<EndpointLease>, SharedLogError> {
        let client = self.client.with_timeout(RECORD_READ_TIMEOUT);
        let stored = client.range(RangeRequest::key(self.types.record_key(record)));
        let stored = self.measure(Operation::Get, stored).await?;
        Ok(stored.kvs.first().and_then(|entry| self.decode(entry)))
    }

    /// Removes a record.
    pub(crate) async fn remove(&self, record: &Record) -> Result<(), SharedLogError> {
        let removed = self.client.delete_range(DeleteRangeRequest::key(self.types.record_key(record)));
        self.measure(Operation::Delete, removed).await.map(drop)
    }

    fn decode(&self, entry: &KeyValue) -> Option<EndpointLease> {
        EndpointLease::decode(self.values.codec(), &entry.value).ok()?
    }

    async fn measure<T>(
        &self,
        operation: Operation,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, SharedLogError> {
        self.meter.measure(operation, self.resource, request).await.map_err(|error| refusal(&error))
    }
}
