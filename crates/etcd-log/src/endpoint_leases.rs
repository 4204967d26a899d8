//! Which servers are alive, and their addresses: the endpoints of the Service `kubernetes`.

use std::collections::BTreeSet;
use std::fmt;

use pilothouse_actors::shared_log::SharedLogError;
use pilothouse_etcd_layout::endpoint_lease::EndpointLease;
use pilothouse_etcd_layout::keys::Record;

use crate::leased_records::LeasedRecords;

/// How metrics call these records; the reference's name.
pub(crate) const RECORDS: &str = "apiServerIPInfo";

/// The record of this server, and those of the others. Cheap to clone.
#[derive(Clone)]
pub struct EndpointLeases {
    records: LeasedRecords,
    /// What the keys of all of them begin with.
    prefix: String,
    address: String,
}

impl fmt::Debug for EndpointLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointLeases").field("address", &self.address).finish_non_exhaustive()
    }
}

impl EndpointLeases {
    /// The record of the server with this address.
    pub(crate) fn new(records: LeasedRecords, prefix: String, address: String) -> EndpointLeases {
        EndpointLeases { records, prefix, address }
    }

    /// Says that this server is alive.
    pub async fn renew(&self) -> Result<(), SharedLogError> {
        self.records.renew(&self.record(), EndpointLease::new(&self.address, None)).await
    }

    /// The addresses of all servers that are alive, in order.
    pub async fn list(&self) -> Result<BTreeSet<String>, SharedLogError> {
        let all = self.records.list(self.prefix.clone()).await?;
        Ok(all.into_iter().map(|record| record.address).collect())
    }

    /// Says that this server ends.
    pub async fn remove(&self) -> Result<(), SharedLogError> {
        self.records.remove(&self.record()).await
    }

    fn record(&self) -> Record {
        Record::EndpointLease(self.address.clone())
    }
}
