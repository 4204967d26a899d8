//! connect: resolves the destination of a connecting subresource. The HTTP layer makes the connection, because it has the
//! client's.

use pilothouse_actors::permit::Permit;
use pilothouse_api::connect::location::{self, Candidate, KubeletRules, Target};
use pilothouse_api::connect::options::{LogOptions, PortForwardOptions, StreamOptions};
use pilothouse_api::connect::{AllowedAddresses, ConnectSubresource, Destination, Egress, Location, Trust};
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::status::{GroupResource, IgnoreErrors as _, Result, Status};
use pilothouse_apimachinery::stored_type::StoredType;
use pilothouse_apimachinery::value::Value;
use pilothouse_types::object::Key;

use crate::limits::SERVICE_CANDIDATES;
use crate::pki::random;

use crate::registry::{Backend, Call};

/// A request for a connecting subresource.
pub struct ConnectRequest<'a> {
    /// The subresource.
    pub subresource: ConnectSubresource,
    /// The plural of the resource that it belongs to.
    pub plural: &'a str,
    /// The namespace of the path, empty for nodes.
    pub namespace: &'a str,
    /// The name in the path. For proxies it contains a scheme and a port.
    pub name: &'a str,
    /// The query parameters.
    pub query: &'a Query<'a>,
    /// The path that the backend of a proxy gets.
    pub path: String,
}

/// The resolved destination.
#[derive(Debug, PartialEq, Eq)]
pub enum ConnectTarget {
    /// The pod has no node, so it has no log yet.
    NotScheduled,
    /// The log of a container.
    Log(Destination),
    /// Exec or attach.
    Streams(Destination, StreamOptions),
    /// Port-forward.
    Ports(Destination),
    /// An HTTP proxy.
    Proxy(Destination),
}

impl ConnectTarget {
    /// Sets the user on whose behalf the connection is made.
    pub fn on_behalf_of(mut self, user: &str) -> ConnectTarget {
        match &mut self {
            ConnectTarget::NotScheduled => {}
            ConnectTarget::Log(destination)
            | ConnectTarget::Streams(destination, _)
            | ConnectTarget::Ports(destination)
            | ConnectTarget::Proxy(destination) => {
                user.clone_into(&mut destination.user);
            }
        }
        self
    }
}

const PODS: StoredType = StoredType::v1("", "pods", "Pod");
const NODES: StoredType = StoredType::v1("", "nodes", "Node");
const SERVICES: StoredType = StoredType::v1("", "services", "Service");
const ENDPOINTS: StoredType = StoredType::v1("", "endpoints", "Endpoints");

/// Reads an object in order to resolve the destination. A missing one is reported as the requested resource, because the client
/// does not know the other.
async fn get(
    backend: &Backend,
    request: &ConnectRequest<'_>,
    stored_type: &StoredType,
    name: &str,
) -> Result<Value> {
    let is_cluster_scoped = *stored_type == NODES || request.namespace.is_empty();
    let key = if is_cluster_scoped { Key::cluster(name) } else { Key::namespaced(request.namespace, name) };
    let reported = GroupResource { group: "", resource: request.plural };
    // Without a permit: the number of client connections bounds these requests.
    backend.read_stored(stored_type, key, &Permit::none(), reported).await
}

/// Runs admission, with the options of the connection as the object.
pub async fn admit(backend: &Backend, call: &Call<'_>, request: &ConnectRequest<'_>) -> Result<()> {
    let mut options = Value::object();
    match request.subresource {
        // Logs are not subject to admission.
        ConnectSubresource::Log => return Ok(()),
        ConnectSubresource::Exec => put_streams(&mut options, &StreamOptions::exec(request.query)),
        ConnectSubresource::Attach => put_streams(&mut options, &StreamOptions::attach(request.query)),
        ConnectSubresource::PortForward => {
            let ports = PortForwardOptions::parse(request.query)?.ports;
            if !ports.is_empty() {
                let ports = ports.into_iter().map(|port| Value::from(i64::from(port)));
                options.set("ports", Value::Array(ports.collect()));
            }
        }
        ConnectSubresource::Proxy if request.path.is_empty() => {}
        ConnectSubresource::Proxy => options.set("path", request.path.as_str()),
    }
    backend.admission.connect(backend, call, options).await
}

fn put_streams(options: &mut Value, streams: &StreamOptions) {
    let flags = [
        ("stdin", streams.stdin),
        ("stdout", streams.stdout),
        ("stderr", streams.stderr),
        ("tty", streams.tty),
    ];
    flags.into_iter().filter(|(_, set)| *set).for_each(|(name, set)| options.set(name, set));
    if !streams.container.is_empty() {
        options.set("container", streams.container.as_str());
    }
    if !streams.command.is_empty() {
        let words = streams.command.iter().map(|word| Value::from(word.as_str()));
        options.set("command", Value::Array(words.collect()));
    }
}

/// Resolves the destination.
pub async fn resolve(
    backend: &Backend,
    rules: &KubeletRules,
    request: &ConnectRequest<'_>,
) -> Result<ConnectTarget> {
    match request.subresource {
        ConnectSubresource::Log => resolve_log(backend, rules, request).await,
        ConnectSubresource::Exec => {
            resolve_streams(backend, rules, request, "exec", StreamOptions::exec(request.query)).await
        }
        ConnectSubresource::Attach => {
            resolve_streams(backend, rules, request, "attach", StreamOptions::attach(request.query)).await
        }
        ConnectSubresource::PortForward => {
            let options = PortForwardOptions::parse(request.query)?;
            let pod = get(backend, request, &PODS, request.name).await?;
            let mut location = kubelet_of_pod(backend, rules, &pod, request).await?;
            location.path = format!("/portForward/{}/{}", request.namespace, request.name);
            location.query = options.to_query();
            Ok(ConnectTarget::Ports(kubelet(location, Trust::Kubelet)))
        }
        ConnectSubresource::Proxy => {
            let mut destination = match request.plural {
                "nodes" => resolve_node(backend, rules, request).await?,
                "services" => resolve_service(backend, request).await?,
                _ => resolve_pod(backend, request).await?,
            };
            destination.location.path.clone_from(&request.path);
            Ok(ConnectTarget::Proxy(destination))
        }
    }
}

fn kubelet(location: Location, trust: Trust) -> Destination {
    Destination {
        location,
        trust,
        reach: AllowedAddresses::Any,
        egress: Some(Egress::Cluster),
        has_no_deadline: false,
        user: String::new(),
    }
}

fn untrusted(location: Location) -> Destination {
    Destination { reach: AllowedAddresses::GlobalUnicast, ..kubelet(location, Trust::Unverified) }
}

async fn resolve_log(
    backend: &Backend,
    rules: &KubeletRules,
    request: &ConnectRequest<'_>,
) -> Result<ConnectTarget> {
    let supports_stream = backend.objects.features.has(Feature::PodLogsQuerySplitStreams);
    let options = LogOptions::parse(request.query, supports_stream)?;
    options.validate(request.name, supports_stream)?;
    let pod = get(backend, request, &PODS, request.name).await?;
    let container = location::container(&pod, &options.container)?;
    let Some(node) = location::node_name(&pod) else { return Ok(ConnectTarget::NotScheduled) };
    let node = get(backend, request, &NODES, node).await?;
    let mut location = location::kubelet(&node, rules)?;
    location.path = format!("/containerLogs/{}/{}/{container}", request.namespace, request.name);
    location.query = options.to_query();
    let trust = if options.skip_verification { Trust::KubeletUnverified } else { Trust::Kubelet };
    Ok(ConnectTarget::Log(Destination { has_no_deadline: options.follow, ..kubelet(location, trust) }))
}

async fn resolve_streams(
    backend: &Backend,
    rules: &KubeletRules,
    request: &ConnectRequest<'_>,
    endpoint: &str,
    options: StreamOptions,
) -> Result<ConnectTarget> {
    let pod = get(backend, request, &PODS, request.name).await?;
    let container = location::container(&pod, &options.container)?;
    let mut location = kubelet_of_pod(backend, rules, &pod, request).await?;
    location.path = format!("/{endpoint}/{}/{}/{container}", request.namespace, request.name);
    location.query = options.to_query();
    Ok(ConnectTarget::Streams(kubelet(location, Trust::Kubelet), options))
}

/// The kubelet of a pod; an error if the pod has no node.
async fn kubelet_of_pod(
    backend: &Backend,
    rules: &KubeletRules,
    pod: &Value,
    request: &ConnectRequest<'_>,
) -> Result<Location> {
    let Some(node) = location::node_name(pod) else {
        return Err(Status::bad_request(format!("pod {} does not have a host assigned", request.name)));
    };
    location::kubelet(&get(backend, request, &NODES, node).await?, rules)
}

async fn resolve_pod(backend: &Backend, request: &ConnectRequest<'_>) -> Result<Destination> {
    let target = Target::parse("pod", request.name)?;
    let object = get(backend, request, &PODS, target.name).await?;
    Ok(untrusted(location::pod(&target, &object)?))
}

async fn resolve_node(
    backend: &Backend,
    rules: &KubeletRules,
    request: &ConnectRequest<'_>,
) -> Result<Destination> {
    let target = Target::parse("node", request.name)?;
    let object = get(backend, request, &NODES, target.name).await?;
    let (location, is_kubelet) = location::node(&target, location::kubelet(&object, rules)?)?;
    let trust = if is_kubelet { Trust::Kubelet } else { Trust::Unverified };
    Ok(Destination { trust, ..untrusted(location) })
}

async fn resolve_service(backend: &Backend, request: &ConnectRequest<'_>) -> Result<Destination> {
    let target = Target::parse("service", request.name)?;
    let port_name = match target.port.parse::<i64>() {
        Ok(number) => {
            let service = get(backend, request, &SERVICES, target.name).await?;
            location::service_port(&service, target.name, number)?
        }
        Err(_) => target.port.to_owned(),
    };
    let endpoints = get(backend, request, &ENDPOINTS, target.name).await?;
    if endpoints.get("subsets").is_none_or(|subsets| subsets.items().is_empty()) {
        return Err(location::no_endpoints(target.name));
    }
    let seed = random::below(usize::from(u16::MAX));
    let candidates = location::candidates(&endpoints, request.namespace, &port_name, seed);
    for candidate in candidates.iter().take(SERVICE_CANDIDATES) {
        if let Some(location) = check_candidate(backend, request, &target, candidate).await? {
            return Ok(untrusted(location));
        }
    }
    Err(location::no_endpoints(request.name))
}

/// The address of a candidate endpoint, if its pod exists and has that address.
async fn check_candidate(
    backend: &Backend,
    request: &ConnectRequest<'_>,
    target: &Target<'_>,
    candidate: &Candidate,
) -> Result<Option<Location>> {
    let pod = get(backend, request, &PODS, &candidate.pod).await.ignore_not_found()?;
    Ok(pod.and_then(|pod| location::candidate(target, candidate, &pod)))
}
