//! Resolves the destination of a connecting subresource: from pods, nodes, services and endpoints to a [`Location`].

use std::net::IpAddr;

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;

use super::Location;

/// The container lists of a pod, in the order in which messages name them.
const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

fn containers<'a>(pod: &'a Value, list: &str) -> &'a [Value] {
    pod.get_path(&["spec", list]).map(Value::items).unwrap_or_default()
}

/// The requested container, or the only one.
pub fn container(pod: &Value, requested: &str) -> Result<String> {
    let name = pod.get_path(&["metadata"]).map(|meta| meta.str("name")).unwrap_or_default();
    let mut all =
        CONTAINERS.iter().flat_map(|list| containers(pod, list)).map(|container| container.str("name"));
    if !requested.is_empty() {
        return match all.any(|name| name == requested) {
            true => Ok(requested.to_owned()),
            false => Err(Status::bad_request(format!("container {requested} is not valid for pod {name}"))),
        };
    }
    match containers(pod, "containers") {
        [only] => Ok(only.str("name").to_owned()),
        [] => Err(Status::bad_request(format!("a container name must be specified for pod {name}"))),
        _ => {
            let all: Vec<&str> = all.collect();
            let all = all.join(" ");
            Err(Status::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: [{all}]"
            )))
        }
    }
}

/// The node of a pod, if it has one.
pub fn node_name(pod: &Value) -> Option<&str> {
    pod.get_path(&["spec"]).map(|spec| spec.str("nodeName")).filter(|name| !name.is_empty())
}

/// How the address of a kubelet is chosen.
#[derive(Clone, Debug)]
pub struct KubeletRules {
    /// The address types in order of preference.
    pub address_types: Vec<String>,
    /// The default port of kubelets.
    pub port: u16,
}

/// The address of a node's kubelet.
pub fn kubelet(node: &Value, rules: &KubeletRules) -> Result<Location> {
    let addresses = node.get_path(&["status", "addresses"]).map(Value::items).unwrap_or_default();
    let of_type =
        |address_type: &String| addresses.iter().find(|address| address.str("type") == address_type);
    let Some(address) = rules.address_types.iter().find_map(of_type) else {
        let known: Vec<String> = addresses
            .iter()
            .map(|address| format!("{{{} {}}}", address.str("type"), address.str("address")))
            .collect();
        let known = known.join(" ");
        return Err(Status::unexplained(format!("no preferred addresses found; known addresses: [{known}]")));
    };
    let port =
        node.get_path(&["status", "daemonEndpoints", "kubeletEndpoint", "Port"]).and_then(Value::as_int);
    let port = port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
    let host = address.str("address").to_owned();
    Ok(Location { secure: true, host, port: port.unwrap_or(rules.port), ..Location::default() })
}

/// The name in a proxy path: `name`, `name:port` or `scheme:name:port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Whether TLS is used.
    pub secure: bool,
    /// The name of the object.
    pub name: &'a str,
    /// A number or a name; empty if not stated.
    pub port: &'a str,
}

impl<'a> Target<'a> {
    /// Parses a name; `kind` is for the message.
    pub fn parse(kind: &str, text: &'a str) -> Result<Target<'a>> {
        let invalid = || Status::bad_request(format!("invalid {kind} request {}", quoted(text)));
        let parts: Vec<&str> = text.splitn(4, ':').collect();
        let (scheme, name, port) = match *parts {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme, name, port] => (scheme, name, port),
            _ => return Err(invalid()),
        };
        if name.is_empty() || !matches!(scheme, "" | "http" | "https") {
            return Err(invalid());
        }
        Ok(Target { secure: scheme == "https", name, port })
    }

    /// The port as a number. An invalid one is a bad request.
    pub fn port_number(&self, kind: &str) -> Result<Option<u16>> {
        match self.port {
            "" => Ok(None),
            text => text.parse().ok().filter(|port| *port > 0).map(Some).ok_or_else(|| {
                Status::bad_request(format!("invalid {kind} request: {} is not a valid port", quoted(text)))
            }),
        }
    }

    fn location(&self, host: &str, port: Option<u16>) -> Location {
        let default = if self.secure { 443 } else { 80 };
        Location {
            secure: self.secure,
            host: host.to_owned(),
            port: port.unwrap_or(default),
            ..Location::default()
        }
    }
}

/// Whether an address is global unicast: neither loopback, multicast nor link-local.
pub fn is_global_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => {
            !(four.is_unspecified()
                || four.is_loopback()
                || four.is_broadcast()
                || four.is_multicast()
                || four.is_link_local())
        }
        IpAddr::V6(six) => match six.to_ipv4_mapped() {
            Some(four) => is_global_unicast(IpAddr::V4(four)),
            None => {
                !(six.is_unspecified()
                    || six.is_loopback()
                    || six.is_multicast()
                    || six.is_unicast_link_local())
            }
        },
    }
}

/// 400 for addresses that proxies must not reach.
pub fn not_allowed() -> Box<Status> {
    Status::bad_request("address not allowed")
}

fn allowed_address(address: &str) -> Result<String> {
    let parsed = names::parse_ip(address).filter(|address| is_global_unicast(*address));
    parsed.map(|address| address.to_string()).ok_or_else(not_allowed)
}

/// The address of a pod: at the requested port, or its first one.
pub fn pod(target: &Target<'_>, pod: &Value) -> Result<Location> {
    let first = || {
        let all = containers(pod, "containers");
        let ports =
            all.iter().find_map(|container| container.get("ports").and_then(|ports| ports.items().first()));
        ports.and_then(|port| port.get("containerPort")?.as_int()).and_then(|port| u16::try_from(port).ok())
    };
    let port = target.port_number("pod")?.or_else(first);
    Ok(target.location(&allowed_address(first_address(pod))?, port))
}

fn first_address(pod: &Value) -> &str {
    let addresses = pod.get_path(&["status", "podIPs"]).map(Value::items).unwrap_or_default();
    addresses.first().map(|address| address.str("ip")).unwrap_or_default()
}

/// The address of a node: its kubelet, unless the request names another port. The flag tells whether it is the kubelet.
pub fn node(target: &Target<'_>, kubelet: Location) -> Result<(Location, bool)> {
    match target.port_number("node")? {
        None => Ok((kubelet, true)),
        Some(port) if port == kubelet.port => Ok((kubelet, true)),
        other => Ok((target.location(&kubelet.host, other), false)),
    }
}

/// The name of a service's port with this number.
pub fn service_port(service: &Value, name: &str, number: i64) -> Result<String> {
    let ports = service.get_path(&["spec", "ports"]).map(Value::items).unwrap_or_default();
    let port = ports.iter().find(|port| port.get("port").and_then(Value::as_int) == Some(number));
    port.map(|port| port.str("name").to_owned()).ok_or_else(|| {
        Status::unavailable(format!("no service port {number} found for service {}", quoted(name)))
    })
}

/// An endpoint of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The pod that it refers to.
    pub pod: String,
    /// Its address.
    pub address: String,
    /// Its port.
    pub port: u16,
}

/// The ready endpoints of a service port, in an order that `seed` decides. Only pods of the same namespace count: an endpoint
/// with an arbitrary address must not lead anywhere.
pub fn candidates(endpoints: &Value, namespace: &str, port_name: &str, seed: usize) -> Vec<Candidate> {
    let subsets = endpoints.get("subsets").map(Value::items).unwrap_or_default();
    let mut candidates = Vec::new();
    for subset in rotated(subsets, seed) {
        let ports = subset.get("ports").map(Value::items).unwrap_or_default();
        let port = ports.iter().find(|port| port.str("name") == port_name);
        let port = port.and_then(|port| port.get("port")?.as_int()).and_then(|port| u16::try_from(port).ok());
        let Some(port) = port else { continue };
        let addresses = subset.get("addresses").map(Value::items).unwrap_or_default();
        for address in rotated(addresses, seed) {
            let Some(target) = address.get("targetRef").filter(|target| target.str("namespace") == namespace)
            else {
                continue;
            };
            let (pod, address) = (target.str("name").to_owned(), address.str("ip").to_owned());
            candidates.push(Candidate { pod, address, port });
        }
    }
    candidates
}

fn rotated(items: &[Value], seed: usize) -> impl Iterator<Item = &Value> {
    let start = if items.is_empty() { 0 } else { seed % items.len() };
    items[start..].iter().chain(&items[..start])
}

/// The address of an endpoint, if its pod really has that address.
pub fn candidate(target: &Target<'_>, candidate: &Candidate, pod: &Value) -> Option<Location> {
    let addresses = pod.get_path(&["status", "podIPs"]).map(Value::items).unwrap_or_default();
    let is_current = addresses.iter().any(|ip| ip.str("ip") == candidate.address);
    let address = allowed_address(&candidate.address).ok().filter(|_| is_current)?;
    Some(target.location(&address, Some(candidate.port)))
}

/// 503: the service has no endpoints.
pub fn no_endpoints(name: &str) -> Box<Status> {
    Status::unavailable(format!("no endpoints available for service {}", quoted(name)))
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json::read;

    use super::*;

    fn value(text: &str) -> Value {
        read(text.as_bytes()).unwrap()
    }

    #[test]
    fn container_is_the_requested_or_the_only_one() {
        let pod = |containers: &str| {
            let init = r#"[{"name":"i"}]"#;
            value(&format!(
                r#"{{"metadata":{{"name":"p"}},"spec":{{"initContainers":{init},"containers":{containers}}}}}"#
            ))
        };
        let one = pod(r#"[{"name":"a"}]"#);
        let two = pod(r#"[{"name":"a"},{"name":"b"}]"#);
        assert_eq!(container(&one, "").unwrap(), "a");
        assert_eq!(container(&two, "b").unwrap(), "b");
        assert_eq!(container(&two, "i").unwrap(), "i");
        let table = [
            (container(&two, "c"), "container c is not valid for pod p"),
            (container(&two, ""), "a container name must be specified for pod p, choose one of: [i a b]"),
            (container(&pod("[]"), ""), "a container name must be specified for pod p"),
        ];
        for (refused, message) in table {
            let status = refused.unwrap_err();
            assert_eq!((status.code, status.message.as_str()), (400, message));
        }
    }

    #[test]
    fn kubelet_address_is_of_the_most_preferred_type() {
        let rules = |types: &[&str]| KubeletRules {
            address_types: types.iter().map(|name| (*name).to_owned()).collect(),
            port: 10_250,
        };
        let node = value(
            r#"{"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.1"},{"type":"Hostname","address":"n"}],
                "daemonEndpoints":{"kubeletEndpoint":{"Port":1234}}}}"#,
        );
        let location = kubelet(&node, &rules(&["Hostname", "InternalIP"])).unwrap();
        assert_eq!((location.url(), location.secure), ("https://n:1234/".to_owned(), true));
        assert_eq!(kubelet(&node, &rules(&["InternalIP"])).unwrap().host, "10.0.0.1");
        let status = kubelet(&node, &rules(&["ExternalIP"])).unwrap_err();
        assert_eq!(
            (status.code, status.message.as_str()),
            (500, "no preferred addresses found; known addresses: [{InternalIP 10.0.0.1} {Hostname n}]")
        );
        let silent = value(r#"{"status":{"addresses":[{"type":"Hostname","address":"n"}]}}"#);
        assert_eq!(kubelet(&silent, &rules(&["Hostname"])).unwrap().port, 10_250);
        assert_eq!(
            kubelet(&value("{}"), &rules(&[])).unwrap_err().message,
            "no preferred addresses found; known addresses: []"
        );
    }

    #[test]
    fn proxy_target_has_optional_scheme_and_port() {
        let target = |secure, name, port| Ok(Target { secure, name, port });
        for (text, expected) in [
            ("p", target(false, "p", "")),
            ("p:8080", target(false, "p", "8080")),
            ("https:p:web", target(true, "p", "web")),
            ("http:p:", target(false, "p", "")),
        ] {
            assert_eq!(Target::parse("pod", text), expected, "{text}");
        }
        for text in ["", ":80", "ftp:p:80", "a:b:c:d", "http::80"] {
            let status = Target::parse("pod", text).unwrap_err();
            assert_eq!((status.code, status.message), (400, format!("invalid pod request \"{text}\"")));
        }
    }

    #[test]
    fn proxies_reach_only_global_unicast_addresses() {
        for (address, allowed) in [
            ("10.0.0.1", true),
            ("192.168.1.1", true),
            ("fd00::1", true),
            ("127.0.0.1", false),
            ("127.8.8.8", false),
            ("0.0.0.0", false),
            ("169.254.169.254", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("::1", false),
            ("::", false),
            ("fe80::1", false),
            ("ff02::1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:10.0.0.1", true),
        ] {
            assert_eq!(is_global_unicast(address.parse().unwrap()), allowed, "{address}");
        }
    }

    #[test]
    fn pod_location_defaults_to_first_container_port() {
        let listening = value(
            r#"{"spec":{"containers":[{"name":"a"},{"name":"b","ports":[{"containerPort":81},{"containerPort":82}]}]},
                "status":{"podIPs":[{"ip":"10.1.2.3"}]}}"#,
        );
        let url = |name| pod(&Target::parse("pod", name).unwrap(), &listening).map(|location| location.url());
        assert_eq!(url("p").unwrap(), "http://10.1.2.3:81/");
        assert_eq!(url("https:p:8443").unwrap(), "https://10.1.2.3:8443/");
        assert_eq!(url("p:web").unwrap_err().code, 400);
        let loopback = value(r#"{"status":{"podIPs":[{"ip":"127.0.0.1"}]}}"#);
        for unreachable in [loopback, value("{}")] {
            let status = pod(&Target::parse("pod", "p:80").unwrap(), &unreachable).unwrap_err();
            assert_eq!((status.code, status.message.as_str()), (400, "address not allowed"));
        }
    }

    #[test]
    fn service_candidates_are_ready_pods_of_its_namespace() {
        let endpoints = value(
            r#"{"subsets":[
                {"addresses":[{"ip":"10.0.0.9"},{"ip":"10.0.0.1","targetRef":{"namespace":"n","name":"a"}},
                    {"ip":"10.0.0.2","targetRef":{"namespace":"other","name":"b"}}],"ports":[{"name":"web","port":80}]},
                {"notReadyAddresses":[{"ip":"10.0.0.3"}],"ports":[{"name":"web","port":80}]},
                {"addresses":[{"ip":"10.0.0.4","targetRef":{"namespace":"n","name":"d"}}],"ports":[{"name":"web","port":81}]}]}"#,
        );
        for seed in 0..6 {
            let mut all = candidates(&endpoints, "n", "web", seed);
            all.sort_by(|a, b| a.pod.cmp(&b.pod));
            let pods: Vec<_> = all.iter().map(|endpoint| (endpoint.pod.as_str(), endpoint.port)).collect();
            assert_eq!(pods, [("a", 80), ("d", 81)]);
        }
        assert!(candidates(&endpoints, "n", "", 0).is_empty());
        let target = Target::parse("service", "s:web").unwrap();
        let endpoint = Candidate { pod: "a".to_owned(), address: "10.0.0.1".to_owned(), port: 80 };
        let real = value(r#"{"status":{"podIPs":[{"ip":"10.0.0.7"},{"ip":"10.0.0.1"}]}}"#);
        assert_eq!(candidate(&target, &endpoint, &real).unwrap().url(), "http://10.0.0.1:80/");
        assert_eq!(candidate(&target, &endpoint, &value("{}")), None);
        let service = value(r#"{"spec":{"ports":[{"port":80},{"name":"x","port":81}]}}"#);
        assert_eq!(service_port(&service, "s", 81).unwrap(), "x");
        let status = service_port(&service, "s", 82).unwrap_err();
        assert_eq!(
            (status.code, status.message.as_str()),
            (503, r#"no service port 82 found for service "s""#)
        );
    }

    #[test]
    fn node_location_is_its_kubelet_unless_port_is_requested() {
        let location = Location { secure: true, host: "n".to_owned(), port: 10_250, ..Location::default() };
        let resolved = |name| {
            let target = Target::parse("node", name).unwrap();
            node(&target, location.clone()).map(|(location, kubelet)| (location.url(), kubelet))
        };
        assert_eq!(resolved("n").unwrap(), ("https://n:10250/".to_owned(), true));
        assert_eq!(resolved("http:n:10250").unwrap(), ("https://n:10250/".to_owned(), true));
        assert_eq!(resolved("n:9100").unwrap(), ("http://n:9100/".to_owned(), false));
        assert_eq!(resolved("https:n:9100").unwrap(), ("https://n:9100/".to_owned(), false));
    }
}
