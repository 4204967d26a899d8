//! How the cluster finds this server: the default ServiceCIDR, and the `kubernetes` service.

mod endpoints;

use std::net::IpAddr;

use pilothouse_api::catalog::Catalog;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::well_known::NETWORKING_GROUP;
use pilothouse_kinds::services::addresses::AddressRange;
use serde_json::Value as Json;
use serde_json::json;

pub use self::endpoints::{EndpointReconciler, OwnEndpoint};
use super::{ObjectAddress, OwnClient, Verb};
use crate::registry::Backend;

/// The field manager of the ServiceCIDR's Ready condition.
const FIELD_MANAGER: &str = "kubernetes-service-cidr-controller";
/// The name of this server's service, endpoints and ServiceCIDR.
pub const KUBERNETES: &str = "kubernetes";

/// The addresses of this server for the cluster.
#[derive(Clone, Debug)]
pub struct KubernetesService {
    /// The ranges of cluster IPs.
    pub ranges: Vec<AddressRange>,
    /// Whether a ServiceCIDR object says what the ranges are.
    pub has_range_object: bool,
    /// The node port of the service, if it is made; `None` if it has none.
    pub node_port: Option<u16>,
    /// This server among its endpoints.
    pub endpoint: OwnEndpoint,
}

/// Creates the objects by which the cluster finds this server, and corrects existing ones. The first address of the first
/// range is reserved for this server. A failed step does not stop the others.
pub async fn kubernetes(
    backend: &Backend,
    catalog: &Catalog,
    service_config: &KubernetesService,
) -> Result<()> {
    let cidr = default_service_cidr(backend, catalog, service_config).await;
    cidr.and(service_and_endpoints(backend, catalog, service_config).await)
}

/// Restores the default ServiceCIDR.
pub async fn default_service_cidr(
    backend: &Backend,
    catalog: &Catalog,
    service_config: &KubernetesService,
) -> Result<()> {
    ensure_service_cidr(&OwnClient::new(backend, catalog), service_config).await
}

/// Restores the service and its endpoints.
pub async fn service_and_endpoints(
    backend: &Backend,
    catalog: &Catalog,
    service_config: &KubernetesService,
) -> Result<()> {
    let client = OwnClient::new(backend, catalog);
    let service = ensure_service(&client, service_config).await;
    service.and(service_config.endpoint.reconcile(&client).await)
}

/// Takes this server out of the endpoints, because it ends.
pub async fn leave(backend: &Backend, catalog: &Catalog, service_config: &KubernetesService) -> Result<()> {
    service_config.endpoint.leave(&OwnClient::new(backend, catalog)).await
}

async fn ensure_service(client: &OwnClient<'_>, service_config: &KubernetesService) -> Result<()> {
    let object_address =
        ObjectAddress { group: "", resource: "services", namespace: "default", name: KUBERNETES };
    if client.serves(object_address) && client.find(object_address).await?.is_none() {
        let address = service_config.ranges.first().and_then(|range| range.address_at(0));
        client.create(object_address, &service(address, service_config)).await?;
    }
    Ok(())
}

async fn ensure_service_cidr(client: &OwnClient<'_>, service_config: &KubernetesService) -> Result<()> {
    let object_address =
        ObjectAddress { group: NETWORKING_GROUP, resource: "servicecidrs", namespace: "", name: KUBERNETES };
    if !service_config.has_range_object || !client.serves(object_address) {
        return Ok(());
    }
    let ranges: Vec<String> = service_config.ranges.iter().map(ToString::to_string).collect();
    let object = json!({"kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1",
        "metadata": {"name": KUBERNETES}, "spec": {"cidrs": ranges}});
    let current = match client.find(object_address).await? {
        Some(current) => current,
        None => {
            client.create(object_address, &object).await?;
            object
        }
    };
    let current_ranges = current["spec"]["cidrs"].as_array().cloned().unwrap_or_default();
    if json!(current_ranges) != json!(ranges) {
        let grows = current_ranges.len() == 1 && ranges.len() == 2 && current_ranges[0] == ranges[0];
        if grows {
            let mut current = current;
            current["spec"]["cidrs"] = json!(ranges);
            return client.call(object_address, Verb::Update, &current).await.map(drop);
        }
        tracing::warn!(had = ?current_ranges, ?ranges, "the default ServiceCIDR differs from --service-cluster-ip-range");
        return Ok(());
    }
    let conditions = current["status"]["conditions"].as_array().map(Vec::len);
    if conditions.unwrap_or(0) > 0 || !current["metadata"]["deletionTimestamp"].is_null() {
        return Ok(());
    }
    let ready = json!({"kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": KUBERNETES},
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": client.backend.objects.now(),
            "message": "Kubernetes default Service CIDR is ready"}]}});
    let query = format!("fieldManager={FIELD_MANAGER}&force=true");
    client.request(object_address, Verb::ApplyStatus, &query, ready.to_string().into()).await.map(drop)
}

fn service(address: Option<IpAddr>, service_config: &KubernetesService) -> Json {
    let mut port = json!({"name": "https", "protocol": "TCP", "port": 443, "targetPort": service_config.endpoint.port()});
    let kind = match service_config.node_port {
        Some(node_port) => {
            port["nodePort"] = json!(node_port);
            "NodePort"
        }
        None => "ClusterIP",
    };
    json!({"kind": "Service", "apiVersion": "v1",
        "metadata": {"name": KUBERNETES, "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {"clusterIP": address.map(|address| address.to_string()), "ipFamilyPolicy": "SingleStack",
            "sessionAffinity": "None", "type": kind, "ports": [port]}})
}
