//! How the cluster finds this server: the default ServiceCIDR, and the `kubernetes` service.

use std::net::IpAddr;

use pilothouse_api::catalog::Catalog;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::well_known::NETWORKING_GROUP;
use pilothouse_kinds::services::addresses::AddressRange;
use serde_json::Value as Json;
use serde_json::json;

use super::{ObjectAddress, Own, Verb};
use crate::backend::Backend;

/// The field manager of the ServiceCIDR's Ready condition.
const RANGE_KEEPER: &str = "kubernetes-service-cidr-controller";
/// The name of this server's service, endpoints and ServiceCIDR.
pub const KUBERNETES: &str = "kubernetes";

/// The addresses of this server for the cluster.
#[derive(Clone, Debug)]
pub struct KubernetesService {
    /// The ranges of cluster IPs.
    pub ranges: Vec<AddressRange>,
    /// The address that others can reach, if there is one.
    pub address: Option<IpAddr>,
    /// The port that the server listens on.
    pub port: u16,
}

/// Makes what the cluster needs to find this server, and puts right what names it wrongly. The first address of the
/// first range is this server's for good. What cannot be put right does not keep the rest.
pub async fn kubernetes(backend: &Backend, catalog: &Catalog, home: &KubernetesService) -> Result<()> {
    let own = Own::new(backend, catalog);
    let done = range(&own, home).await.and(own_service(&own, home).await);
    match home.address {
        Some(address) => {
            let listed = own_endpoints(&own, address, home.port).await;
            done.and(listed).and(own_slice(&own, address, home.port).await)
        }
        None => done,
    }
}

async fn own_service(own: &Own<'_>, home: &KubernetesService) -> Result<()> {
    let place = ObjectAddress { group: "", resource: "services", namespace: "default", name: KUBERNETES };
    if own.serves(place) && own.find(place).await?.is_none() {
        let address = home.ranges.first().and_then(|range| range.at(0));
        own.make(place, &service(address, home.port)).await?;
    }
    Ok(())
}

async fn own_endpoints(own: &Own<'_>, address: IpAddr, port: u16) -> Result<()> {
    let place = ObjectAddress { group: "", resource: "endpoints", namespace: "default", name: KUBERNETES };
    if own.serves(place) { own.keep(place, &endpoints(address, port), "subsets").await } else { Ok(()) }
}

async fn own_slice(own: &Own<'_>, address: IpAddr, port: u16) -> Result<()> {
    let (group, resource) = ("discovery.k8s.io", "endpointslices");
    let place = ObjectAddress { group, resource, namespace: "default", name: KUBERNETES };
    if own.serves(place) {
        let slice = slice(address, port);
        own.keep(place, &slice, "endpoints").await?;
        own.keep(place, &slice, "ports").await?;
    }
    Ok(())
}

async fn range(own: &Own<'_>, home: &KubernetesService) -> Result<()> {
    let place =
        ObjectAddress { group: NETWORKING_GROUP, resource: "servicecidrs", namespace: "", name: KUBERNETES };
    if !own.serves(place) {
        return Ok(());
    }
    let ranges: Vec<String> = home.ranges.iter().map(ToString::to_string).collect();
    let object = json!({"kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1",
        "metadata": {"name": KUBERNETES}, "spec": {"cidrs": ranges}});
    let found = match own.find(place).await? {
        Some(found) => found,
        None => {
            own.make(place, &object).await?;
            object
        }
    };
    let had = found["spec"]["cidrs"].as_array().cloned().unwrap_or_default();
    if json!(had) != json!(ranges) {
        let grows = had.len() == 1 && ranges.len() == 2 && had[0] == ranges[0];
        if grows {
            let mut found = found;
            found["spec"]["cidrs"] = json!(ranges);
            return own.call(place, Verb::Update, &found).await.map(drop);
        }
        tracing::warn!(?had, ?ranges, "the default ServiceCIDR differs from --service-cluster-ip-range");
        return Ok(());
    }
    let conditions = found["status"]["conditions"].as_array().map(Vec::len);
    if conditions.unwrap_or(0) > 0 || !found["metadata"]["deletionTimestamp"].is_null() {
        return Ok(());
    }
    let ready = json!({"kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": KUBERNETES},
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": own.backend.objects.now(),
            "message": "Kubernetes default Service CIDR is ready"}]}});
    let query = format!("fieldManager={RANGE_KEEPER}&force=true");
    own.ask(place, Verb::ApplyStatus, &query, ready.to_string().into()).await.map(drop)
}

fn service(address: Option<IpAddr>, port: u16) -> Json {
    json!({"kind": "Service", "apiVersion": "v1",
        "metadata": {"name": KUBERNETES, "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {"clusterIP": address.map(|address| address.to_string()), "ipFamilyPolicy": "SingleStack",
            "sessionAffinity": "None", "type": "ClusterIP",
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}]}})
}

fn endpoints(address: IpAddr, port: u16) -> Json {
    json!({"kind": "Endpoints", "apiVersion": "v1",
        "metadata": {"name": KUBERNETES, "namespace": "default",
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": [{"ip": address.to_string()}],
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}]})
}

fn slice(address: IpAddr, port: u16) -> Json {
    json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"name": KUBERNETES, "namespace": "default",
            "labels": {"kubernetes.io/service-name": KUBERNETES}},
        "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [address.to_string()], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}]})
}
