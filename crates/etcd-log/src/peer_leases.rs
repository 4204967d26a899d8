//! Where each server is reached by the others, if these have to pass requests on to it.

use pilothouse_actors::shared_log::SharedLogError;
use pilothouse_etcd_layout::endpoint_lease::{EndpointLease, Peer};
use pilothouse_etcd_layout::keys::Record;

use crate::leased_records::LeasedRecords;

/// How metrics call these records; the reference's name.
pub(crate) const RECORDS: &str = "apiServerPeerIPInfo";

/// Where a server is reached by the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerEndpoint {
    /// The id of the server.
    pub server: String,
    /// Its address.
    pub address: String,
    /// Its port.
    pub port: u16,
}

/// The record of this server, and those of the others. Cheap to clone.
#[derive(Clone)]
pub struct PeerLeases {
    records: LeasedRecords,
    own: PeerEndpoint,
}

impl PeerLeases {
    /// The record of this server says where it is reached.
    pub(crate) fn new(records: LeasedRecords, own: PeerEndpoint) -> PeerLeases {
        PeerLeases { records, own }
    }

    /// Where this server is reached.
    pub fn own(&self) -> &PeerEndpoint {
        &self.own
    }

    /// Says that this server is alive.
    pub async fn renew(&self) -> Result<(), SharedLogError> {
        let PeerEndpoint { server, address, port } = &self.own;
        let peer = Peer { server: server.clone(), port: *port };
        self.records.renew(&record(server), EndpointLease::new(address, Some(peer))).await
    }

    /// Where the server with this id is reached, if it is alive.
    pub async fn find(&self, server: &str) -> Result<Option<PeerEndpoint>, SharedLogError> {
        let Some(EndpointLease { address, peer: Some(peer), .. }) =
            self.records.read(&record(server)).await?
        else {
            return Ok(None);
        };
        // As in the reference, the label decides.
        let endpoint = PeerEndpoint { server: peer.server, address, port: peer.port };
        Ok((endpoint.server == server).then_some(endpoint))
    }

    /// Says that this server ends.
    pub async fn remove(&self) -> Result<(), SharedLogError> {
        self.records.remove(&record(&self.own.server)).await
    }
}

fn record(server: &str) -> Record {
    Record::PeerEndpointLease(server.to_owned())
}
