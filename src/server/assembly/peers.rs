//! The other API servers on the same etcd (gate UnknownVersionInteroperabilityProxy): where they reach this one, and whether requests are
//! passed on to them.

use std::net::SocketAddr;
use std::sync::Arc;

use pilothouse_api::gates::UNKNOWN_VERSION_INTEROPERABILITY_PROXY;
use pilothouse_client::upstream::Upstream;
use pilothouse_etcd_log::{EtcdLog, PeerEndpoint, PeerLeases};
use pilothouse_types::object::TypeName;

use super::etcd_overrides::PEER_RECORDS;
use crate::config::Config;
use crate::controllers::server_identity::ServerIdentity;
use crate::peers::Peers;
use crate::pki::{self, host};
use crate::server::application::{StartContext, StartError};

/// Where the other servers reach this one; `None` if they need not, or cannot.
pub(super) fn own_address(context: &StartContext) -> Option<SocketAddr> {
    let config = &context.config;
    if !config.gates().enabled(UNKNOWN_VERSION_INTEROPERABILITY_PROXY) || config.etcd().is_none() {
        return None;
    }
    let usual = || Some((host::reachable_address(config)?, context.address.port()));
    config.peers.advertised().or_else(usual).map(SocketAddr::from)
}

/// The records by which servers reach each other, if this one keeps one.
pub(super) fn records(
    context: &StartContext,
    logs: &[EtcdLog],
    identity: Option<&ServerIdentity>,
) -> Option<PeerLeases> {
    let log = logs.iter().find(|log| log.has(&TypeName::new(PEER_RECORDS)));
    let found = log.zip(own_address(context)).zip(identity);
    let Some(((log, address), identity)) = found else {
        if context.config.gates().enabled(UNKNOWN_VERSION_INTEROPERABILITY_PROXY) {
            tracing::warn!(
                "the gate {UNKNOWN_VERSION_INTEROPERABILITY_PROXY} has no effect: it needs etcd, an address and the gate APIServerIdentity"
            );
        }
        return None;
    };
    let (server, port) = (identity.id.to_string(), address.port());
    Some(log.peer_leases(PeerEndpoint { server, address: address.ip().to_string(), port }))
}

/// The servers to which requests are passed on, if that is configured.
pub(super) fn open(
    config: &Config,
    records: Option<&PeerLeases>,
    upstream: &Arc<Upstream>,
) -> Result<Option<Arc<Peers>>, StartError> {
    let Some((records, file)) = records.zip(config.peers.peer_ca_file.as_deref()) else { return Ok(None) };
    let authority_pem = pki::read_bundle(file).map_err(|error| StartError::flag("--peer-ca-file")(&error))?;
    Ok(Some(Arc::new(Peers::new(records.clone(), upstream.clone(), authority_pem))))
}
