//! What stands below pods, services and nodes and leads out of this server: logs, commands, ports, and whatever speaks
//! HTTP behind them. Here is what a request for it asks, whether it makes sense, and where it leads; who goes there is
//! somebody else.

pub mod links;
pub mod options;
pub mod place;
pub mod url;
pub mod verdict;

use std::sync::Arc;

use super::catalog::resource::Resource;
use super::query::Query;
use super::status::{Result, Status};

/// A way out of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What a container has written.
    Log,
    /// A command that runs in a container.
    Exec,
    /// The process that a container is.
    Attach,
    /// Ports of a pod.
    PortForward,
    /// HTTP behind a pod, a service or a node.
    Proxy,
}

/// The names of all ways in paths. Requests for them last as long as both ends like: they count as no requests in flight.
pub const WAYS: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

impl Way {
    /// The way that this sub-resource is, if it is one.
    pub fn of(resource: &Resource, subresource: &str) -> Option<Way> {
        if !resource.gv.group.is_empty() {
            return None;
        }
        match (&*resource.plural, subresource) {
            ("pods", "log") => Some(Way::Log),
            ("pods", "exec") => Some(Way::Exec),
            ("pods", "attach") => Some(Way::Attach),
            ("pods", "portforward") => Some(Way::PortForward),
            ("pods" | "services" | "nodes", "proxy") => Some(Way::Proxy),
            _ => None,
        }
    }

    /// Whether the way can be gone with this HTTP method.
    pub fn allows(self, method: &str) -> bool {
        match self {
            Way::Log => method == "GET",
            Way::Exec | Way::Attach | Way::PortForward => matches!(method, "GET" | "POST"),
            Way::Proxy => {
                matches!(method, "GET" | "POST" | "PUT" | "PATCH" | "DELETE" | "HEAD" | "OPTIONS")
            }
        }
    }
}

/// Refuses to pretend: what happens at the other end cannot be taken back.
pub fn refuse_dry_run(query: &Query<'_>) -> Result<()> {
    match query.get("dryRun") {
        Some(_) => Err(Status::bad_request("dryRun is not supported")),
        None => Ok(()),
    }
}

/// How the other end of a connection is made sure of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// A kubelet: its certificate is verified, and it is shown ours.
    Kubelet,
    /// A kubelet whose certificate the client does not want verified.
    KubeletUnverified,
    /// Anybody: nothing is verified, and nobody is shown our certificate.
    Nobody,
    /// A server that extends this API: it is shown the certificate by which it knows us as the one who speaks for others.
    Extension(Arc<Peer>),
}

/// How a server that extends this API is made sure of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The name that it is asked by, and that its certificate must have.
    pub server_name: String,
    /// Whom it must be known to, in PEM; empty: to whom the system believes.
    pub authority_pem: Vec<u8>,
    /// Whether it has to prove anything.
    pub verifies: bool,
}

/// Which addresses may be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Any: the kubelet's own, which only nodes and their keepers can set.
    Any,
    /// Those of other machines. A client must not reach through to what listens on this machine alone.
    GlobalUnicast,
}

/// Where a request leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Where.
    pub location: Location,
    /// How the other end is made sure of.
    pub trust: Trust,
    /// Which addresses the host may have.
    pub reach: Reach,
    /// Whether the answer may begin whenever it likes: a log that is followed may be silent for days.
    pub is_patient: bool,
    /// On whose behalf; empty: on that of the server.
    pub asker: String,
}

/// A URL, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Whether it is spoken to through TLS.
    pub secure: bool,
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path as it is meant, without escapes; may be empty.
    pub path: String,
    /// What follows the question mark, with its escapes.
    pub query: String,
}

impl Location {
    /// Host and port as they stand in a URL.
    pub fn authority(&self) -> String {
        let Location { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Path and query as they stand in a request.
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

    /// All of it.
    pub fn url(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.target())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::catalog::build::Builtin;
    use crate::api::catalog::runtime_config::RuntimeConfig;

    #[test]
    fn every_way_is_found_and_nothing_else() {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let way = |plural, sub| Way::of(catalog.find("", "v1", plural).unwrap(), sub);
        assert_eq!(way("pods", "log"), Some(Way::Log));
        assert_eq!(way("nodes", "proxy"), Some(Way::Proxy));
        assert_eq!(way("services", "proxy"), Some(Way::Proxy));
        assert_eq!(way("pods", "status"), None);
        assert_eq!(way("nodes", "log"), None);
        for resource in ["pods", "services", "nodes"] {
            let resource = catalog.find("", "v1", resource).unwrap();
            for sub in resource.subresources.iter().filter(|sub| sub.kind.ends_with("Options")) {
                assert!(Way::of(resource, &sub.name).is_some(), "{}", sub.name);
                assert!(WAYS.contains(&&*sub.name), "{}", sub.name);
            }
        }
    }

    #[test]
    fn a_location_is_a_url_again() {
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
