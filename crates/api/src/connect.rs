//! Connecting subresources of pods, services and nodes: log, exec, attach, portforward and proxy. Parses their options, validates
//! them and determines the destination; `verbs::connect` and the HTTP edge do the rest.

pub mod exit_status;
pub mod links;
pub mod location;
pub mod options;
pub mod url;

use std::sync::Arc;

use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_types::host_port::HostPort;

use super::catalog::resource::Resource;

/// A connecting subresource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectSubresource {
    /// The log of a container.
    Log,
    /// A command in a container.
    Exec,
    /// The main process of a container.
    Attach,
    /// Ports of a pod.
    PortForward,
    /// HTTP to a pod, a service or a node.
    Proxy,
}

impl ConnectSubresource {
    /// The connecting subresource of this name, if it is one.
    pub fn for_resource(resource: &Resource, subresource: &str) -> Option<ConnectSubresource> {
        if !resource.gv.group.is_empty() {
            return None;
        }
        match (&*resource.plural, subresource) {
            ("pods", "log") => Some(ConnectSubresource::Log),
            ("pods", "exec") => Some(ConnectSubresource::Exec),
            ("pods", "attach") => Some(ConnectSubresource::Attach),
            ("pods", "portforward") => Some(ConnectSubresource::PortForward),
            ("pods" | "services" | "nodes", "proxy") => Some(ConnectSubresource::Proxy),
            _ => None,
        }
    }

    /// Whether it supports this HTTP method.
    pub fn allows(self, method: &str) -> bool {
        match self {
            ConnectSubresource::Log => method == "GET",
            ConnectSubresource::Exec | ConnectSubresource::Attach | ConnectSubresource::PortForward => {
                matches!(method, "GET" | "POST")
            }
            ConnectSubresource::Proxy => {
                matches!(method, "GET" | "POST" | "PUT" | "PATCH" | "DELETE" | "HEAD" | "OPTIONS")
            }
        }
    }
}

/// Refuses dry runs: effects at the other end cannot be undone.
pub fn refuse_dry_run(query: &Query<'_>) -> Result<()> {
    match query.get("dryRun") {
        Some(_) => Err(Status::bad_request("dryRun is not supported")),
        None => Ok(()),
    }
}

/// How the peer of a connection is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// A kubelet: its certificate is verified, and we present ours.
    Kubelet,
    /// A kubelet whose certificate the client asks not to verify.
    KubeletUnverified,
    /// Any other server: it is not verified, and we present no certificate.
    Unverified,
    /// An extension API server: we present the front proxy certificate, by which it trusts our identity headers.
    Extension(Arc<ServerVerification>),
}

/// How an extension API server is verified.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerVerification {
    /// The server name for SNI, which its certificate must contain.
    pub server_name: String,
    /// The CA bundle as PEM; empty for the CAs of the system.
    pub authority_pem: Vec<u8>,
    /// Whether its certificate is verified at all.
    pub verifies: bool,
}

/// The allowed addresses of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedAddresses {
    /// Any address: those of kubelets, which only nodes and administrators can set.
    Any,
    /// Global unicast addresses only. A client must not reach services that listen on this machine alone.
    GlobalUnicast,
}

/// What a connection is meant for, by which a proxy may be configured for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Egress {
    /// Servers of the control plane: webhooks of the operator, and those with a URL.
    ControlPlane,
    /// The storage of objects.
    Etcd,
    /// Nodes, pods and services.
    Cluster,
}

/// The destination of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The URL.
    pub location: Location,
    /// How the peer is verified.
    pub trust: Trust,
    /// The allowed addresses of the host.
    pub reach: AllowedAddresses,
    /// By what the way there is chosen; `None` for a direct one.
    pub egress: Option<Egress>,
    /// Whether the response has no deadline to begin: a followed log may be silent for days.
    pub has_no_deadline: bool,
    /// The user on whose behalf the connection is made; empty for the server itself.
    pub user: String,
}

/// A parsed URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Whether it uses TLS.
    pub secure: bool,
    /// A host name or an address, without brackets.
    pub host: String,
    /// The port number.
    pub port: u16,
    /// The unescaped path; may be empty.
    pub path: String,
    /// The escaped query string.
    pub query: String,
}

impl Location {
    /// Host and port as in a URL.
    pub fn authority(&self) -> String {
        self.host_port().to_string()
    }

    /// Host and port.
    pub fn host_port(&self) -> HostPort {
        HostPort { host: self.host.clone(), port: self.port }
    }

    /// Path and query as in a request line.
    pub fn target(&self) -> String {
        let mut target = url::escape_path(&self.path);
        if target.is_empty() {
            target.push('/');
        }
        if !self.query.is_empty() {
            target.push('?');
            target.push_str(&self.query);
        }
        target
    }

    /// The complete URL.
    pub fn url(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.target())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::build::Builtin;
    use crate::catalog::runtime_config::RuntimeConfig;
    use crate::path::CONNECT_SUBRESOURCES;

    #[test]
    fn connect_subresources_are_recognized() {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let connect =
            |plural, sub| ConnectSubresource::for_resource(catalog.find("", "v1", plural).unwrap(), sub);
        assert_eq!(connect("pods", "log"), Some(ConnectSubresource::Log));
        assert_eq!(connect("nodes", "proxy"), Some(ConnectSubresource::Proxy));
        assert_eq!(connect("services", "proxy"), Some(ConnectSubresource::Proxy));
        assert_eq!(connect("pods", "status"), None);
        assert_eq!(connect("nodes", "log"), None);
        for resource in ["pods", "services", "nodes"] {
            let resource = catalog.find("", "v1", resource).unwrap();
            for sub in resource.subresources.iter().filter(|sub| sub.kind.ends_with("Options")) {
                assert!(ConnectSubresource::for_resource(resource, &sub.name).is_some(), "{}", sub.name);
                assert!(CONNECT_SUBRESOURCES.contains(&&*sub.name), "{}", sub.name);
            }
        }
    }

    #[test]
    fn location_is_written_as_url() {
        let location = Location {
            secure: true,
            host: "fd00::1".to_owned(),
            port: 10_250,
            path: "/a b/c".to_owned(),
            query: "x=%20".to_owned(),
        };
        assert_eq!(location.url(), "https://[fd00::1]:10250/a%20b/c?x=%20");
        assert_eq!(Location { host: "h".to_owned(), port: 80, ..Location::default() }.url(), "http://h:80/");
    }
}
