//! connect: resolves where a connecting subresource leads. The HTTP edge makes the connection, because it has the client's end.

use pilothouse_actors::permit::Permit;
use pilothouse_api::connect::location::{self, Candidate, KubeletRules, Target};
use pilothouse_api::connect::options::{LogOptions, PortForwardOptions, StreamOptions};
use pilothouse_api::connect::{AllowedAddresses, ConnectSubresource, Destination, Location, Trust};
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::status::{GroupResource, IgnoreErrors as _, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_types::object::{Key, TypeName};

use crate::limits::SERVICE_CANDIDATES;
use crate::random;

use crate::backend::{Backend, Call};

/// A request for a connecting subresource.
pub struct ConnectRequest<'a> {
    /// The subresource.
    pub way: ConnectSubresource,
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
    Nowhere,
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
    pub fn by(mut self, asker: &str) -> ConnectTarget {
        match &mut self {
            ConnectTarget::Nowhere => {}
            ConnectTarget::Log(to)
            | ConnectTarget::Streams(to, _)
            | ConnectTarget::Ports(to)
            | ConnectTarget::Proxy(to) => {
                asker.clone_into(&mut to.asker);
            }
        }
        self
    }
}

/// A kind that is read to resolve the destination.
struct Source {
    resource: &'static str,
    kind: &'static str,
}

const PODS: Source = Source { resource: "pods", kind: "Pod" };
const NODES: Source = Source { resource: "nodes", kind: "Node" };
const SERVICES: Source = Source { resource: "services", kind: "Service" };
const ENDPOINTS: Source = Source { resource: "endpoints", kind: "Endpoints" };

impl Source {
    /// Reads an object. A missing one is reported as the requested resource, because the client knows no other.
    async fn get(&self, backend: &Backend, asked: &ConnectRequest<'_>, name: &str) -> Result<Value> {
        let namespace = if self.is_of_cluster() { "" } else { asked.namespace };
        let key = if namespace.is_empty() { Key::cluster(name) } else { Key::namespaced(namespace, name) };
        // Without a permit: the number of client connections bounds these requests.
        let found = backend.stores.get(&TypeName::new(self.resource), key, &Permit::none()).await;
        let of = GroupResource { group: "", resource: asked.plural };
        let object = found.map_err(|error| Status::from_store(&error, of, name))?;
        backend.objects.load_kind(&GroupVersion::new("", "v1"), self.kind, &object)
    }

    fn is_of_cluster(&self) -> bool {
        self.resource == NODES.resource
    }
}

/// Runs admission, with the options of the connection as the object.
pub async fn admit(backend: &Backend, call: &Call<'_>, asked: &ConnectRequest<'_>) -> Result<()> {
    let mut options = Value::object();
    match asked.way {
        // Reading a log passes no admission.
        ConnectSubresource::Log => return Ok(()),
        ConnectSubresource::Exec => put_streams(&mut options, &StreamOptions::exec(asked.query)),
        ConnectSubresource::Attach => put_streams(&mut options, &StreamOptions::attach(asked.query)),
        ConnectSubresource::PortForward => {
            let ports = PortForwardOptions::parse(asked.query)?.ports;
            if !ports.is_empty() {
                let ports = ports.into_iter().map(|port| Value::from(i64::from(port)));
                options.set("ports", Value::Array(ports.collect()));
            }
        }
        ConnectSubresource::Proxy if asked.path.is_empty() => {}
        ConnectSubresource::Proxy => options.set("path", asked.path.as_str()),
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
    asked: &ConnectRequest<'_>,
) -> Result<ConnectTarget> {
    match asked.way {
        ConnectSubresource::Log => log(backend, rules, asked).await,
        ConnectSubresource::Exec => {
            streams(backend, rules, asked, "exec", StreamOptions::exec(asked.query)).await
        }
        ConnectSubresource::Attach => {
            streams(backend, rules, asked, "attach", StreamOptions::attach(asked.query)).await
        }
        ConnectSubresource::PortForward => {
            let options = PortForwardOptions::parse(asked.query)?;
            let pod = PODS.get(backend, asked, asked.name).await?;
            let mut location = assigned(backend, rules, &pod, asked).await?;
            location.path = format!("/portForward/{}/{}", asked.namespace, asked.name);
            location.query = options.to_query();
            Ok(ConnectTarget::Ports(kubelet(location, Trust::Kubelet)))
        }
        ConnectSubresource::Proxy => {
            let mut destination = match asked.plural {
                "nodes" => node(backend, rules, asked).await?,
                "services" => service(backend, asked).await?,
                _ => pod(backend, asked).await?,
            };
            destination.location.path.clone_from(&asked.path);
            Ok(ConnectTarget::Proxy(destination))
        }
    }
}

fn kubelet(location: Location, trust: Trust) -> Destination {
    Destination { location, trust, reach: AllowedAddresses::Any, is_patient: false, asker: String::new() }
}

fn anybody(location: Location) -> Destination {
    Destination { reach: AllowedAddresses::GlobalUnicast, ..kubelet(location, Trust::Nobody) }
}

async fn log(backend: &Backend, rules: &KubeletRules, asked: &ConnectRequest<'_>) -> Result<ConnectTarget> {
    let splits = backend.objects.features.has(Feature::PodLogsQuerySplitStreams);
    let options = LogOptions::parse(asked.query, splits)?;
    options.validate(asked.name, splits)?;
    let pod = PODS.get(backend, asked, asked.name).await?;
    let container = location::container(&pod, &options.container)?;
    let Some(node) = location::node_name(&pod) else { return Ok(ConnectTarget::Nowhere) };
    let node = NODES.get(backend, asked, node).await?;
    let mut location = location::kubelet(&node, rules)?;
    location.path = format!("/containerLogs/{}/{}/{container}", asked.namespace, asked.name);
    location.query = options.to_query();
    let trust = if options.skip_verification { Trust::KubeletUnverified } else { Trust::Kubelet };
    Ok(ConnectTarget::Log(Destination { is_patient: options.follow, ..kubelet(location, trust) }))
}

async fn streams(
    backend: &Backend,
    rules: &KubeletRules,
    asked: &ConnectRequest<'_>,
    what: &str,
    options: StreamOptions,
) -> Result<ConnectTarget> {
    let pod = PODS.get(backend, asked, asked.name).await?;
    let container = location::container(&pod, &options.container)?;
    let mut location = assigned(backend, rules, &pod, asked).await?;
    location.path = format!("/{what}/{}/{}/{container}", asked.namespace, asked.name);
    location.query = options.to_query();
    Ok(ConnectTarget::Streams(kubelet(location, Trust::Kubelet), options))
}

/// The kubelet of a pod; an error if the pod has no node.
async fn assigned(
    backend: &Backend,
    rules: &KubeletRules,
    pod: &Value,
    asked: &ConnectRequest<'_>,
) -> Result<Location> {
    let Some(node) = location::node_name(pod) else {
        return Err(Status::bad_request(format!("pod {} does not have a host assigned", asked.name)));
    };
    location::kubelet(&NODES.get(backend, asked, node).await?, rules)
}

async fn pod(backend: &Backend, asked: &ConnectRequest<'_>) -> Result<Destination> {
    let target = Target::parse("pod", asked.name)?;
    let found = PODS.get(backend, asked, target.name).await?;
    Ok(anybody(location::pod(&target, &found)?))
}

async fn node(backend: &Backend, rules: &KubeletRules, asked: &ConnectRequest<'_>) -> Result<Destination> {
    let target = Target::parse("node", asked.name)?;
    let found = NODES.get(backend, asked, target.name).await?;
    let (location, is_kubelet) = location::node(&target, location::kubelet(&found, rules)?)?;
    let trust = if is_kubelet { Trust::Kubelet } else { Trust::Nobody };
    Ok(Destination { trust, ..anybody(location) })
}

async fn service(backend: &Backend, asked: &ConnectRequest<'_>) -> Result<Destination> {
    let target = Target::parse("service", asked.name)?;
    let port_name = match target.port.parse::<i64>() {
        Ok(number) => {
            let service = SERVICES.get(backend, asked, target.name).await?;
            location::service_port(&service, target.name, number)?
        }
        Err(_) => target.port.to_owned(),
    };
    let endpoints = ENDPOINTS.get(backend, asked, target.name).await?;
    if endpoints.get("subsets").is_none_or(|subsets| subsets.items().is_empty()) {
        return Err(location::no_endpoints(target.name));
    }
    let seed = random::below(usize::from(u16::MAX));
    let candidates = location::candidates(&endpoints, asked.namespace, &port_name, seed);
    for candidate in candidates.iter().take(SERVICE_CANDIDATES) {
        if let Some(location) = confirmed(backend, asked, &target, candidate).await? {
            return Ok(anybody(location));
        }
    }
    Err(location::no_endpoints(asked.name))
}

/// The address of a candidate endpoint, if its pod exists and has that address.
async fn confirmed(
    backend: &Backend,
    asked: &ConnectRequest<'_>,
    target: &Target<'_>,
    candidate: &Candidate,
) -> Result<Option<Location>> {
    let pod = PODS.get(backend, asked, &candidate.pod).await.ignore_not_found()?;
    Ok(pod.and_then(|pod| location::candidate(target, candidate, &pod)))
}
