//! Which servers are alive, and their addresses: the endpoints of the Service `kubernetes`. Each server keeps a record under a lease
//! that it renews, in the form of the reference.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use pilothouse_actors::shared_log::SharedLogError;
use pilothouse_etcd::messages::{DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest};
use pilothouse_etcd::{Client, Error};
use pilothouse_etcd_layout::endpoint_lease::EndpointLease;
use pilothouse_etcd_layout::keys::Record;

use crate::convert::{refusal, unavailable};
use crate::limits::ENDPOINT_LEASE_SECONDS;
use crate::meter::{Meter, Operation};
use crate::types::Types;
use crate::values::Values;

/// How metrics call these records; the reference's name.
const RECORDS: &str = "apiServerIPInfo";

/// The record of this server, and those of the others. Cheap to clone.
#[derive(Clone)]
pub struct EndpointLeases {
    client: Client,
    types: Arc<Types>,
    values: Arc<Values>,
    meter: Meter,
    address: String,
}

impl fmt::Debug for EndpointLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointLeases").field("address", &self.address).finish_non_exhaustive()
    }
}

impl EndpointLeases {
    /// The record of the server with this address.
    pub(crate) fn new(
        client: Client,
        types: Arc<Types>,
        values: Arc<Values>,
        meter: Meter,
        address: String,
    ) -> EndpointLeases {
        EndpointLeases { client, types, values, meter, address }
    }

    /// Says that this server is alive.
    pub async fn renew(&self) -> Result<(), SharedLogError> {
        let (key, codec) = (self.key(), self.values.codec());
        let grant = LeaseGrantRequest { ttl: ENDPOINT_LEASE_SECONDS, id: 0 };
        let lease = self.client.lease_grant(grant).await.map_err(|error| refusal(&error))?.id;
        let stored = self.client.range(RangeRequest::key(key.clone()));
        let stored = self.measure(Operation::Get, stored).await?;
        // A record that cannot be read is replaced.
        let stored = stored.kvs.first().and_then(|entry| EndpointLease::decode(codec, &entry.value).ok()?);
        let record = EndpointLease::new(&self.address, None);
        let record = stored.iter().fold(record, |record, stored| record.renewing(stored));
        let value = record.encode(codec).map_err(|error| unavailable(&error.to_string()))?;
        let put = PutRequest { lease, ..PutRequest::new(key, value) };
        self.measure(Operation::Update, self.client.put(put)).await.map(drop)
    }

    /// The addresses of all servers that are alive, in order.
    pub async fn list(&self) -> Result<BTreeSet<String>, SharedLogError> {
        let codec = self.values.codec();
        let all = RangeRequest::prefix(self.types.endpoint_leases_prefix());
        let all = self.measure(Operation::List, self.client.range(all)).await?;
        let records = all.kvs.iter().filter_map(|entry| EndpointLease::decode(codec, &entry.value).ok()?);
        Ok(records.map(|record| record.address).collect())
    }

    /// Says that this server ends.
    pub async fn remove(&self) -> Result<(), SharedLogError> {
        let removed = self.client.delete_range(DeleteRangeRequest::key(self.key()));
        self.measure(Operation::Delete, removed).await.map(drop)
    }

    async fn measure<T>(
        &self,
        operation: Operation,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, SharedLogError> {
        self.meter.measure(operation, RECORDS, request).await.map_err(|error| refusal(&error))
    }

    fn key(&self) -> String {
        self.types.record_key(&Record::EndpointLease(self.address.clone()))
    }
}
