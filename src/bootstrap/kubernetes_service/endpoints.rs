//! The endpoints of the `kubernetes` service: which servers the cluster finds.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pilothouse_actors::shared_log::SharedLogError;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_etcd_log::EndpointLeases;
use serde_json::Value as Json;
use serde_json::json;
use tokio::sync::Mutex;

use super::{KUBERNETES, ObjectAddress, OwnClient};
use crate::bootstrap::Verb;

/// How often a server that ends tries again to take itself out if another one writes at the same moment.
const LEAVE_ATTEMPTS: usize = 5;

const ENDPOINTS: ObjectAddress<'static> =
    ObjectAddress { group: "", resource: "endpoints", namespace: "default", name: KUBERNETES };
const SLICE: ObjectAddress<'static> = ObjectAddress {
    group: "discovery.k8s.io",
    resource: "endpointslices",
    namespace: "default",
    name: KUBERNETES,
};

/// How servers agree on the endpoints: `--endpoint-reconciler-type`.
#[derive(Clone, Debug)]
pub enum EndpointReconciler {
    /// Each keeps a record that expires with it; `None` if this server shares its store with nobody.
    Lease(Option<EndpointLeases>),
    /// Each adds itself, and removes addresses behind its own if there are more than so many.
    MasterCount(usize),
    /// Somebody else maintains them.
    None,
}

/// The endpoint of this server among those of all servers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OwnEndpoint {
    reconciler: EndpointReconciler,
    /// The address that others can reach, if there is one.
    address: Option<IpAddr>,
    /// The port that the server listens on.
    port: u16,
    /// Held while the endpoints are read and written.
    turn: Arc<Mutex<()>>,
    /// Set when the server ends, so that it does not add itself again.
    is_leaving: Arc<AtomicBool>,
}

impl OwnEndpoint {
    /// The endpoint of a server with this address.
    pub fn new(reconciler: EndpointReconciler, address: Option<IpAddr>, port: u16) -> OwnEndpoint {
        OwnEndpoint { reconciler, address, port, turn: Arc::default(), is_leaving: Arc::default() }
    }

    /// The port that the server listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Lets the endpoints name this server, and the others that are alive.
    pub(super) async fn reconcile(&self, client: &OwnClient<'_>) -> Result<()> {
        let _turn = self.turn.lock().await;
        let Some(own) = self.address.filter(|_| !self.is_leaving.load(Ordering::Acquire)) else {
            return Ok(());
        };
        match &self.reconciler {
            EndpointReconciler::None => Ok(()),
            EndpointReconciler::Lease(None) => write(client, &[own], self.port).await,
            EndpointReconciler::Lease(Some(leases)) => {
                leases.renew().await.map_err(|error| unavailable(&error))?;
                let addresses = self.live(leases).await?;
                // Without any, something is wrong with the records: nobody should be taken out for that.
                if addresses.is_empty() { Ok(()) } else { write(client, &addresses, self.port).await }
            }
            EndpointReconciler::MasterCount(count) => {
                let current = Current::read(client).await?;
                let addresses = current.with(&own.to_string(), *count);
                current.replace(client, &addresses, self.port).await
            }
        }
    }

    /// Takes this server out of the endpoints, because it ends.
    pub(super) async fn leave(&self, client: &OwnClient<'_>) -> Result<()> {
        self.is_leaving.store(true, Ordering::Release);
        let _turn = self.turn.lock().await;
        let Some(own) = self.address else { return Ok(()) };
        if let EndpointReconciler::Lease(Some(leases)) = &self.reconciler {
            leases.remove().await.map_err(|error| unavailable(&error))?;
        }
        let mut result = Ok(());
        for _attempt in 0..LEAVE_ATTEMPTS {
            result = self.leave_once(client, own).await;
            match &result {
                Err(status) if status.is_conflict() => {}
                _ => break,
            }
        }
        result
    }

    async fn leave_once(&self, client: &OwnClient<'_>, own: IpAddr) -> Result<()> {
        match &self.reconciler {
            // Alone, it is there again when it starts again.
            EndpointReconciler::None | EndpointReconciler::Lease(None) => Ok(()),
            EndpointReconciler::Lease(Some(leases)) => {
                write(client, &self.live(leases).await?, self.port).await
            }
            EndpointReconciler::MasterCount(_) => {
                let current = Current::read(client).await?;
                let Some(addresses) = current.without(&own.to_string()) else { return Ok(()) };
                current.replace(client, &addresses, self.port).await
            }
        }
    }

    /// The addresses of the servers that keep a record. As in the reference: in the order of their texts, and of one family, because a
    /// slice has one.
    async fn live(&self, leases: &EndpointLeases) -> Result<Vec<IpAddr>> {
        let addresses: Vec<String> =
            leases.list().await.map_err(|error| unavailable(&error))?.into_iter().collect();
        let mut addresses = parse(&addresses);
        addresses.retain(|address| self.address.is_none_or(|own| own.is_ipv4() == address.is_ipv4()));
        Ok(addresses)
    }
}

fn unavailable(error: &SharedLogError) -> Box<Status> {
    Status::unavailable(error.to_string())
}

fn parse(addresses: &[String]) -> Vec<IpAddr> {
    addresses.iter().filter_map(|address| address.parse().ok()).collect()
}

/// The endpoints as they are.
struct Current {
    /// `None` if there is no such object.
    object: Option<Json>,
}

impl Current {
    async fn read(client: &OwnClient<'_>) -> Result<Current> {
        if !client.serves(ENDPOINTS) {
            return Ok(Current { object: None });
        }
        Ok(Current { object: client.find(ENDPOINTS).await? })
    }

    /// The only subset. Others were not made by servers.
    fn subset(&self) -> Option<&Json> {
        match self.object.as_ref()?["subsets"].as_array()?.as_slice() {
            [subset] => Some(subset),
            _ => None,
        }
    }

    /// Gives them these addresses, unless another server has changed them meanwhile. If there are others, they keep their port.
    async fn replace(self, client: &OwnClient<'_>, addresses: &[String], own_port: u16) -> Result<()> {
        let port = self.port().filter(|_| addresses.len() > 1).unwrap_or(own_port);
        let is_changed = self.addresses() != addresses || self.port() != Some(port);
        let addresses = parse(addresses);
        let wanted = endpoints(&addresses, port);
        match self.object {
            _ if !client.serves(ENDPOINTS) => {}
            None => drop(client.create(ENDPOINTS, &wanted).await?),
            Some(mut object) if is_changed => {
                object["subsets"] = wanted["subsets"].clone();
                client.call(ENDPOINTS, Verb::Update, &object).await?;
            }
            Some(_) => {}
        }
        write_slice(client, &addresses, port).await
    }

    fn addresses(&self) -> Vec<String> {
        let addresses = self.subset().and_then(|subset| subset["addresses"].as_array());
        let texts = addresses.into_iter().flatten().filter_map(|address| address["ip"].as_str());
        texts.map(str::to_owned).collect()
    }

    /// The port that they have.
    fn port(&self) -> Option<u16> {
        self.subset().and_then(|subset| u16::try_from(subset["ports"][0]["port"].as_u64()?).ok())
    }

    /// The addresses with this one. If there are more than `count`, those after it go, in the order of their texts, and then those
    /// before it: servers that agree on the count agree on the result in the end.
    fn with(&self, own: &str, count: usize) -> Vec<String> {
        let mut addresses = self.addresses();
        if addresses.len() <= count && addresses.iter().any(|address| address == own) {
            return addresses;
        }
        addresses.push(own.to_owned());
        addresses.sort_unstable();
        addresses.dedup();
        let surplus = addresses.len().saturating_sub(count.max(1));
        let place = addresses.iter().position(|address| address == own).unwrap_or_default();
        let after = surplus.min(addresses.len() - place - 1);
        addresses.drain(place + 1..=place + after);
        addresses.drain(..surplus - after);
        addresses
    }

    /// The addresses without this one; `None` if it is not among them.
    fn without(&self, own: &str) -> Option<Vec<String>> {
        let mut addresses = self.addresses();
        let count = addresses.len();
        addresses.retain(|address| address != own);
        (addresses.len() < count).then_some(addresses)
    }
}

/// Writes the endpoints in both forms.
async fn write(client: &OwnClient<'_>, addresses: &[IpAddr], port: u16) -> Result<()> {
    let mut result = Ok(());
    if client.serves(ENDPOINTS) {
        result = client.restore(ENDPOINTS, &endpoints(addresses, port), "subsets").await;
    }
    result.and(write_slice(client, addresses, port).await)
}

async fn write_slice(client: &OwnClient<'_>, addresses: &[IpAddr], port: u16) -> Result<()> {
    if !client.serves(SLICE) {
        return Ok(());
    }
    let slice = slice(addresses, port);
    let stored = client.find(SLICE).await?;
    if stored.is_some_and(|stored| stored["addressType"] != slice["addressType"]) && !addresses.is_empty() {
        // The family of a slice cannot be changed.
        client.call(SLICE, Verb::Delete, &Json::Null).await?;
    }
    client.restore(SLICE, &slice, "endpoints").await?;
    client.restore(SLICE, &slice, "ports").await
}

fn endpoints(addresses: &[IpAddr], port: u16) -> Json {
    let texts: Vec<Json> = addresses.iter().map(|address| json!({"ip": address.to_string()})).collect();
    let subset = json!({"addresses": texts, "ports": [{"name": "https", "port": port, "protocol": "TCP"}]});
    json!({"kind": "Endpoints", "apiVersion": "v1",
        "metadata": {"name": KUBERNETES, "namespace": "default",
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": if addresses.is_empty() { Json::Null } else { json!([subset]) }})
}

fn slice(addresses: &[IpAddr], port: u16) -> Json {
    let is_ipv4 = addresses.first().is_none_or(IpAddr::is_ipv4);
    let endpoint =
        |address: &IpAddr| json!({"addresses": [address.to_string()], "conditions": {"ready": true}});
    let endpoints: Vec<Json> = addresses.iter().map(endpoint).collect();
    json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"name": KUBERNETES, "namespace": "default",
            "labels": {"kubernetes.io/service-name": KUBERNETES}},
        "addressType": if is_ipv4 { "IPv4" } else { "IPv6" },
        "endpoints": endpoints,
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}]})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn current(addresses: &[&str]) -> Current {
        let addresses: Vec<Json> = addresses.iter().map(|address| json!({"ip": address})).collect();
        Current { object: Some(json!({"subsets": [{"addresses": addresses, "ports": [{"port": 7}]}]})) }
    }

    /// For each line: the addresses, that of the server, the count, and the addresses after it.
    #[test]
    fn server_adds_itself_and_removes_the_surplus_behind_it() {
        for (addresses, own, count, expected) in [
            (&["1", "2"][..], "2", 2, &["1", "2"][..]),
            (&["2", "1"], "2", 3, &["2", "1"]),
            (&["1"], "2", 2, &["1", "2"]),
            (&[], "2", 1, &["2"]),
            (&["1", "3", "5"], "2", 3, &["1", "2", "5"]),
            (&["1", "3", "5"], "2", 2, &["1", "2"]),
            (&["1", "3", "5"], "2", 1, &["2"]),
            (&["1", "3", "5"], "9", 2, &["5", "9"]),
            (&["1", "2", "3"], "2", 2, &["1", "2"]),
        ] {
            assert_eq!(current(addresses).with(own, count), expected, "{addresses:?} {own} {count}");
        }
        assert_eq!(Current { object: None }.with("2", 1), ["2"]);
        // Two subsets were not made by servers.
        let subset = json!({"addresses": [{"ip": "1"}]});
        let two = Current { object: Some(json!({"subsets": [subset, subset]})) };
        assert_eq!((two.with("2", 5), two.port()), (vec!["2".to_owned()], None));
    }

    #[test]
    fn server_that_ends_removes_only_itself() {
        assert_eq!(current(&["1", "2"]).without("2"), Some(vec!["1".to_owned()]));
        assert_eq!(current(&["2"]).without("2"), Some(vec![]));
        assert_eq!(current(&["1"]).without("2"), None);
        assert_eq!(current(&["1"]).port(), Some(7));
        assert_eq!(endpoints(&[], 1)["subsets"], Json::Null);
    }
}
