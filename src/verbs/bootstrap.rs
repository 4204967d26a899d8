//! What exists from the first start: the system namespaces, the range of service addresses, and the service under which
//! the cluster reaches this server.

use std::net::IpAddr;

use bytes::Bytes;
use pilothouse_actors::identity::Identity;
use pilothouse_actors::permit::Permit;
use serde_json::{Value as Json, json};

use crate::api::catalog::Catalog;
use crate::api::form::Form;
use crate::api::media::Encoding;
use crate::api::query::Query;
use crate::api::services::addresses::AddressRange;
use crate::api::status::{Result, Status};
use crate::api::words::{MASTERS, NAMESPACES, SYSTEM_NAMESPACES};

use super::{Backend, Call, Reply, Warnings, create, get, update};

const NETWORKING: &str = "networking.k8s.io";
/// The name of the service of this server and of everything that belongs to it.
const KUBERNETES: &str = "kubernetes";

/// Where the cluster finds this server.
#[derive(Clone, Debug)]
pub struct Home {
    /// The addresses that services get.
    pub ranges: Vec<AddressRange>,
    /// Where others reach this server, if they can.
    pub address: Option<IpAddr>,
    /// The port it serves.
    pub port: u16,
}

/// The server as a client of itself.
struct Own<'a> {
    backend: &'a Backend,
    catalog: &'a Catalog,
    user: Identity,
}

/// One object of a resource.
#[derive(Clone, Copy)]
struct Place<'a> {
    group: &'a str,
    resource: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl<'a> Own<'a> {
    fn new(backend: &'a Backend, catalog: &'a Catalog) -> Own<'a> {
        let user = Identity {
            name: "system:apiserver".to_owned(),
            groups: vec![MASTERS.to_owned()],
            ..Identity::default()
        };
        Own { backend, catalog, user }
    }

    /// Whether the resource is served: flags can turn it off.
    fn serves(&self, place: Place<'_>) -> bool {
        self.catalog.find(place.group, "v1", place.resource).is_some()
    }

    async fn call(&self, place: Place<'_>, verb: Verb, body: &Json) -> Result<Reply> {
        let resource = self.catalog.find(place.group, "v1", place.resource);
        let resource = resource.ok_or_else(Status::no_such_resource)?;
        let call = Call {
            resource,
            stored: resource.stored.as_ref().ok_or_else(Status::no_such_resource)?,
            namespace: place.namespace,
            name: if verb == Verb::Create { "" } else { place.name },
            subresource: if verb == Verb::UpdateStatus { "status" } else { "" },
            query: &Query::parse(""),
            body: Bytes::from(body.to_string()),
            encoding: Encoding::Json,
            form: Form::PLAIN,
            warnings: &Warnings::default(),
            user: &self.user,
            permit: Permit::none(),
        };
        match verb {
            Verb::Create => create::create(self.backend, &call).await,
            Verb::Get => get::get(self.backend, &call).await,
            Verb::Update | Verb::UpdateStatus => update::update(self.backend, &call).await,
        }
    }

    /// The object, if it is there.
    async fn find(&self, place: Place<'_>) -> Result<Option<Json>> {
        match self.call(place, Verb::Get, &Json::Null).await {
            Ok(Reply::Object(_, bytes)) => Ok(serde_json::from_slice(&bytes).ok()),
            Ok(_) => Ok(None),
            Err(status) if status.code == 404 => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Makes the object unless it is there. Answers whether it was made.
    async fn make(&self, place: Place<'_>, body: &Json) -> Result<bool> {
        match self.call(place, Verb::Create, body).await {
            Ok(_) => {
                tracing::info!(resource = place.resource, name = place.name, "made");
                Ok(true)
            }
            Err(status) if status.reason == "AlreadyExists" => Ok(false),
            Err(status) => Err(status),
        }
    }

    /// Makes the object, or gives its `field` the value that it should have.
    async fn keep(&self, place: Place<'_>, body: &Json, field: &str) -> Result<()> {
        let Some(mut found) = self.find(place).await? else { return self.make(place, body).await.map(drop) };
        if found[field] == body[field] {
            return Ok(());
        }
        found[field] = body[field].clone();
        self.call(place, Verb::Update, &found).await.map(drop)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Create,
    Get,
    Update,
    UpdateStatus,
}

/// Makes the system namespaces that are not there.
pub async fn namespaces(backend: &Backend, catalog: &Catalog) -> Result<()> {
    let own = Own::new(backend, catalog);
    for name in SYSTEM_NAMESPACES {
        let place = Place { group: "", resource: NAMESPACES, namespace: "", name };
        own.make(place, &json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}}))
            .await?;
    }
    Ok(())
}

/// Makes what the cluster needs to find this server, and puts right what names it wrongly. The first address of the
/// first range is this server's for good.
pub async fn kubernetes(backend: &Backend, catalog: &Catalog, home: &Home) -> Result<()> {
    let own = Own::new(backend, catalog);
    range(&own, home).await?;
    let place = Place { group: "", resource: "services", namespace: "default", name: KUBERNETES };
    if own.serves(place) && own.find(place).await?.is_none() {
        let address = home.ranges.first().and_then(|range| range.at(0));
        own.make(place, &service(address, home.port)).await?;
    }
    let Some(address) = home.address else { return Ok(()) };
    let place = Place { resource: "endpoints", ..place };
    if own.serves(place) {
        own.keep(place, &endpoints(address, home.port), "subsets").await?;
    }
    let place = Place { group: "discovery.k8s.io", resource: "endpointslices", ..place };
    if own.serves(place) {
        let slice = slice(address, home.port);
        own.keep(place, &slice, "endpoints").await?;
        own.keep(place, &slice, "ports").await?;
    }
    Ok(())
}

async fn range(own: &Own<'_>, home: &Home) -> Result<()> {
    let place = Place { group: NETWORKING, resource: "servicecidrs", namespace: "", name: KUBERNETES };
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
        tracing::warn!(
            ?had,
            ?ranges,
            "the object of the service addresses names other ranges than the flags"
        );
        return Ok(());
    }
    let conditions = found["status"]["conditions"].as_array().map(Vec::len);
    if conditions.unwrap_or(0) > 0 || !found["metadata"]["deletionTimestamp"].is_null() {
        return Ok(());
    }
    let mut ready = found;
    ready["status"] = json!({"conditions": [{"type": "Ready", "status": "True", "reason": "",
        "lastTransitionTime": own.backend.now(), "message": "Kubernetes default Service CIDR is ready"}]});
    own.call(place, Verb::UpdateStatus, &ready).await.map(drop)
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
