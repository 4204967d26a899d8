//! The lease by which others know that this API server is alive. Runs in every server that shares its store or publishes its storage
//! versions, whichever controllers are enabled. Otherwise one process owns the store, and nobody asks.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use openssl::sha::Sha256;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::PEER_ADDRESS;
use pilothouse_apimachinery::well_known::stores::LEASES;
use pilothouse_apimachinery::well_known::{HOSTNAME_LABEL, SERVER_NAME, SYSTEM_NAMESPACE};
use pilothouse_types::clock::{Clock, Timestamp};

use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};
use super::server_leases::IDENTITY_LABEL;
use crate::pki::random;

/// The name in health checks and metrics.
pub const NAME: &str = "apiserver-identity-lease";
/// How long the lease is valid, and how often it is renewed; the reference's values.
const LEASE_SECONDS: i64 = 3_600;
const RENEW_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes of the digest in the id of a server.
const DIGEST_BYTES: usize = 16;
/// The digits of base 32, in lower case.
const BASE_32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const BITS_PER_DIGIT: u32 = 5;

/// The identity of this server among API servers.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    /// The id of the server, the name of its lease. The same after a restart, and for all servers on a host: so they share the lease.
    pub id: Arc<str>,
    host: Arc<str>,
    /// One process, which is the holder of a lease that it creates.
    holder: Arc<str>,
    /// Where other API servers reach this one, if they do.
    peer_address: Option<SocketAddr>,
}

impl ServerIdentity {
    /// The identity of a process that serves on this host.
    pub fn for_this_host() -> ServerIdentity {
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let host = host.unwrap_or_default();
        let id = server_id(&host);
        let holder = format!("{id}_{}", random::uuid());
        ServerIdentity { id: id.into(), host: host.into(), holder: holder.into(), peer_address: None }
    }

    /// The same, reached by other API servers at this address.
    #[must_use]
    pub fn reached_at(self, peer_address: Option<SocketAddr>) -> ServerIdentity {
        ServerIdentity { peer_address, ..self }
    }

    /// Renews the lease. As in the reference, a lease that is there keeps its holder.
    fn renew(&self, lease: &mut Value, now: Timestamp) {
        let labels = lease.entry("metadata").entry("labels");
        labels.set(IDENTITY_LABEL.0, IDENTITY_LABEL.1);
        if !self.host.is_empty() {
            labels.set(HOSTNAME_LABEL, &*self.host);
        }
        if let Some(address) = self.peer_address {
            lease.entry("metadata").entry("annotations").set(PEER_ADDRESS, address.to_string());
        }
        lease.entry("spec").set("renewTime", time::format_micros(now.unix_seconds(), now.subsec_micros()));
    }

    fn new_lease(&self, now: Timestamp) -> Value {
        let mut lease = Value::object();
        lease.set("apiVersion", "coordination.k8s.io/v1");
        lease.set("kind", "Lease");
        lease.entry("metadata").set("name", &*self.id);
        lease.entry("metadata").set("namespace", SYSTEM_NAMESPACE);
        let spec = lease.entry("spec");
        spec.set("holderIdentity", &*self.holder);
        spec.set("leaseDurationSeconds", LEASE_SECONDS);
        self.renew(&mut lease, now);
        lease
    }
}

/// The id that the reference gives an API server on this host: a digest of the host and the name of the component, each preceded
/// by its length.
fn server_id(host: &str) -> String {
    let mut digest = Sha256::new();
    for part in [host, SERVER_NAME] {
        digest.update(&u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes());
        digest.update(part.as_bytes());
    }
    format!("apiserver-{}", base_32(&digest.finish()[..DIGEST_BYTES]))
}

/// Base 32 in lower case, without padding.
fn base_32(bytes: &[u8]) -> String {
    let mut text = String::new();
    let (mut pending, mut bits) = (0_u32, 0);
    let mut push = |digit: u32| {
        let index = usize::try_from(digit % 32).unwrap_or_default();
        text.push(char::from(BASE_32[index]));
    };
    for byte in bytes {
        pending = (pending << u8::BITS) | u32::from(*byte);
        bits += u8::BITS;
        while bits >= BITS_PER_DIGIT {
            bits -= BITS_PER_DIGIT;
            push(pending >> bits);
        }
        pending &= (1 << bits) - 1;
    }
    if bits > 0 {
        push(pending << (BITS_PER_DIGIT - bits));
    }
    text
}

/// Keeps the lease of this server.
pub struct IdentityLease {
    /// Reads and writes objects.
    pub client: Client,
    /// The source of time.
    pub clock: Clock,
    /// Whose lease it is.
    pub identity: ServerIdentity,
}

impl IdentityLease {
    async fn hold(&self) -> Result<Outcome> {
        let resource = self.client.resource(LEASES)?;
        let target = ObjectRef { resource: &resource, namespace: SYSTEM_NAMESPACE, name: &self.identity.id };
        let now = self.clock.now();
        let renew = |lease: &mut Value| {
            self.identity.renew(lease, now);
            true
        };
        self.client.ensure(target, || self.identity.new_lease(now), renew).await?;
        Ok(Outcome::RequeueAfter(RENEW_INTERVAL))
    }
}

impl Controller for IdentityLease {
    type Key = ();

    fn needs_leader_election(&self) -> bool {
        false
    }

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[LEASES])
    }

    fn max_retry_delay(&self) -> Duration {
        RENEW_INTERVAL
    }

    fn initial_keys(&self) -> Vec<()> {
        vec![()]
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<()>) {
        let key = &change.object.key;
        if change.is_deleted && key.namespace() == SYSTEM_NAMESPACE && *key.name() == *self.identity.id {
            queue.add(());
        }
    }

    fn reconcile(self: Rc<Self>, (): ()) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.hold().await }.boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(holder: &str) -> ServerIdentity {
        ServerIdentity {
            id: "apiserver-x".into(),
            host: "h".into(),
            holder: holder.into(),
            peer_address: None,
        }
    }

    #[test]
    fn base_32_is_that_of_rfc_4648_in_lower_case() {
        for (bytes, text) in [("", ""), ("f", "my"), ("fo", "mzxq"), ("foobar", "mzxw6ytboi")] {
            assert_eq!(base_32(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn server_id_is_that_of_the_reference() {
        assert_eq!(server_id("node-1"), "apiserver-lgabes5ywnaqeagh5dny4zlzs4");
        assert_eq!(server_id("").len(), server_id("node-1").len());
    }

    #[test]
    fn lease_names_the_component_and_the_host() {
        let lease = identity("apiserver-x_1").new_lease(Timestamp(1_700_000_000_000_001));
        let labels = lease.get_path(&["metadata", "labels"]).unwrap();
        assert_eq!((labels.str(IDENTITY_LABEL.0), labels.str(HOSTNAME_LABEL)), (SERVER_NAME, "h"));
        let spec = lease.get("spec").unwrap();
        assert_eq!(spec.str("renewTime"), "2023-11-14T22:13:20.000001Z");
        assert_eq!(spec.str("holderIdentity"), "apiserver-x_1");
        assert_eq!(lease.get_path(&["metadata", "annotations"]), None);
        let reached = identity("x").reached_at(Some(([10, 0, 0, 1], 7).into())).new_lease(Timestamp(1));
        let annotations = reached.get_path(&["metadata", "annotations"]).unwrap();
        assert_eq!(annotations.str(PEER_ADDRESS), "10.0.0.1:7");
    }

    #[test]
    fn renewal_keeps_the_holder() {
        let created = identity("apiserver-x_1").new_lease(Timestamp(1_700_000_000_000_001));
        let mut lease = created.clone();
        identity("apiserver-x_2").renew(&mut lease, Timestamp(1_700_000_010_000_000));
        assert_eq!(lease.get_path(&["spec", "renewTime"]), Some(&"2023-11-14T22:13:30.000000Z".into()));
        lease.entry("spec").set("renewTime", "2023-11-14T22:13:20.000001Z");
        assert_eq!(lease, created);
    }
}
