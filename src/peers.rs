//! The other API servers on the same etcd (peers): what each of them serves, and where it is reached. A request for a resource that this
//! server does not serve is passed on to one that does, with the user in headers: a peer trusts these because of the certificate that
//! this server has as the front proxy of extension API servers.

mod discovery;
mod own_record;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use futures::future::join_all;
use pilothouse_api::connect::{AllowedAddresses, Destination, Location, ServerVerification, Trust};
use pilothouse_client::upstream::pool::KeepAliveHandle;
use pilothouse_client::upstream::{self, Upstream};
use pilothouse_etcd_log::{PeerEndpoint, PeerLeases};
use pilothouse_types::lock::SharedLock;

use self::discovery::Discovery;

pub use self::own_record::OwnRecord;

/// The name that the certificate of every API server is valid for.
const SERVER_NAME: &str = "kubernetes.default.svc";

/// The peers. Shared by all workers and controllers.
pub struct Peers {
    records: PeerLeases,
    upstream: Arc<Upstream>,
    trust: ArcSwap<TrustedCas>,
    /// By the id of the server. Held only for one lookup or change.
    served: SharedLock<BTreeMap<String, Arc<Discovery>>>,
    /// Counts requests, so that peers get them in turns.
    turn: AtomicUsize,
}

/// By which the certificates of peers are verified.
struct TrustedCas {
    verification: Arc<ServerVerification>,
    /// Keeps connections to them.
    _keep_alive: [KeepAliveHandle; 2],
}

impl TrustedCas {
    fn new(upstream: &Upstream, authority_pem: Vec<u8>) -> TrustedCas {
        let verification =
            ServerVerification { server_name: SERVER_NAME.to_owned(), authority_pem, verifies: true };
        let keep_alive = upstream::keep_alive(upstream.pool(), &verification);
        TrustedCas { verification: Arc::new(verification), _keep_alive: keep_alive }
    }
}

impl Peers {
    /// Peers with these records, whose certificates are from these CAs (PEM). There must be one: none would mean those of the system.
    pub fn new(records: PeerLeases, upstream: Arc<Upstream>, authority_pem: Vec<u8>) -> Peers {
        let trust = ArcSwap::from_pointee(TrustedCas::new(&upstream, authority_pem));
        Peers { records, upstream, trust, served: SharedLock::default(), turn: AtomicUsize::default() }
    }

    /// Replaces the trusted CAs.
    pub fn trust(&self, authority_pem: Vec<u8>) {
        self.trust.store(Arc::new(TrustedCas::new(&self.upstream, authority_pem)));
    }

    /// Whether this is the id of this server.
    pub fn is_own(&self, server: &str) -> bool {
        self.records.own().server == server
    }

    /// The connections to peers.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// The ids of the peers that serve a resource.
    pub fn serving(&self, group: &str, version: &str, resource: &str) -> Vec<String> {
        let served = self.served.read();
        let serving = served.iter().filter(|(_, discovery)| discovery.has(group, version, resource));
        serving.map(|(server, _)| server.clone()).collect()
    }

    /// Where one of these servers is reached, each in its turn; `None` if nobody knows of any of them that it is alive.
    pub async fn find_live(&self, servers: &[String]) -> Option<PeerEndpoint> {
        let found = join_all(servers.iter().map(|server| self.find(server))).await;
        let live: Vec<PeerEndpoint> = found.into_iter().flatten().collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(live.len())?;
        live.into_iter().nth(turn)
    }

    async fn find(&self, server: &str) -> Option<PeerEndpoint> {
        let found = self.records.find(server).await;
        found.unwrap_or_else(|error| {
            tracing::debug!(server, %error, "the address of an API server cannot be read");
            None
        })
    }

    /// The destination of a request to a peer on behalf of this user; empty for this server itself. `path` is unescaped.
    pub fn destination(&self, peer: &PeerEndpoint, path: &str, query: &str, user: &str) -> Destination {
        Destination {
            location: Location {
                secure: true,
                host: peer.address.clone(),
                port: peer.port,
                path: path.to_owned(),
                query: query.to_owned(),
            },
            trust: Trust::Extension(self.trust.load().verification.clone()),
            // Only API servers write these records.
            reach: AllowedAddresses::Any,
            egress: None,
            has_no_deadline: false,
            user: user.to_owned(),
        }
    }
}
