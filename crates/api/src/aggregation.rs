//! API aggregation: what an APIService registers, whether its server is available, and what that server publishes.

pub mod availability;
pub mod contents;
pub mod discovered;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::MASTERS;
use pilothouse_types::identity::Identity;

use super::connect::ServerVerification;

/// A registered group version, and the discovery of its server.
#[derive(Clone, Debug)]
pub struct RegisteredVersion {
    /// The APIService.
    pub registration: Arc<ApiService>,
    /// The server's discovery; `None` if this server serves the version, or no server does.
    pub found: Option<Arc<discovered::DiscoveredVersion>>,
}

/// The store of APIServices.
pub const STORE: &str = "apiservices.apiregistration.k8s.io";
/// The user of this server's discovery requests to extension servers.
const DISCOVERY_USER: &str = "system:kube-aggregator";
/// The user of its requests for OpenAPI documents.
pub const OPENAPI_USER: &str = "system:aggregator";
/// The default port of an APIService's service.
const DEFAULT_PORT: u16 = 443;

/// The identity of this server's discovery requests to extension servers.
pub fn discovery_identity() -> Identity {
    Identity { name: DISCOVERY_USER.to_owned(), groups: vec![MASTERS.to_owned()], ..Identity::default() }
}

/// The contents of an APIService.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiService {
    /// Its name: version, dot, group.
    pub name: String,
    /// The group version that it registers.
    pub gv: GroupVersion,
    /// The order in discovery.
    pub priorities: Priorities,
    /// The service that serves it; `None` for this server.
    pub service: Option<Service>,
    /// Whether its Available condition is true.
    pub is_available: bool,
    /// Whether only its name is known, because the stored object cannot be decoded. Its version is then unavailable.
    pub is_unreadable: bool,
}

/// The priorities of an APIService.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Priorities {
    /// `groupPriorityMinimum`: the order of groups.
    pub group: i64,
    /// `versionPriority`: the order of versions within the group.
    pub version: i64,
}

/// The service of an extension API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// The namespace of the Service.
    pub namespace: String,
    /// The name of the Service.
    pub name: String,
    /// The port of the Service.
    pub port: u16,
    /// How the server's certificate is verified.
    pub peer: Arc<ServerVerification>,
}

/// The name of the APIService of a version.
pub fn api_service_name(group: &str, version: &str) -> String {
    format!("{version}.{group}")
}

impl ApiService {
    /// Parses an APIService.
    pub fn read(object: &Value) -> ApiService {
        let spec = object.get("spec").unwrap_or(&Value::Null);
        let number = |field: &str| spec.get(field).and_then(Value::as_int).unwrap_or(0);
        ApiService {
            name: meta::name(object).to_owned(),
            gv: GroupVersion::new(spec.str("group"), spec.str("version")),
            priorities: Priorities {
                group: number("groupPriorityMinimum"),
                version: number("versionPriority"),
            },
            service: spec
                .get("service")
                .filter(|service| !service.is_null())
                .map(|service| read_service(spec, service)),
            is_available: availability::is_available(object),
            is_unreadable: false,
        }
    }

    /// An APIService of which only the name is known. It is treated as one whose server is not available.
    pub fn unreadable(name: &str) -> ApiService {
        let (version, group) = name.split_once('.').unwrap_or((name, ""));
        ApiService {
            name: name.to_owned(),
            gv: GroupVersion::new(group, version),
            priorities: Priorities::default(),
            service: Some(read_service(&Value::Null, &Value::Null)),
            is_available: false,
            is_unreadable: true,
        }
    }

    /// The path of its discovery document.
    pub fn path(&self) -> String {
        match &*self.gv.group {
            "" => format!("/api/{}", self.gv.version),
            group => format!("/apis/{group}/{}", self.gv.version),
        }
    }
}

fn read_service(spec: &Value, service: &Value) -> Service {
    let (namespace, name) = (service.str("namespace").to_owned(), service.str("name").to_owned());
    let port = service.get("port").and_then(Value::as_int).and_then(|port| u16::try_from(port).ok());
    let insecure = spec.get("insecureSkipTLSVerify").and_then(Value::as_bool).unwrap_or(false);
    let peer = ServerVerification {
        server_name: format!("{name}.{namespace}.svc"),
        authority_pem: STANDARD.decode(spec.str("caBundle")).unwrap_or_default(),
        verifies: !insecure,
    };
    Service { namespace, name, port: port.unwrap_or(DEFAULT_PORT), peer: Arc::new(peer) }
}

/// The group and version of a discovery path: `/apis/GROUP/VERSION`, possibly with a final slash.
pub fn parse_discovery_path(path: &str) -> Option<(&str, &str)> {
    let rest = path.strip_prefix("/apis/")?;
    let (group, version) = rest.strip_suffix('/').unwrap_or(rest).split_once('/')?;
    (!group.is_empty() && !version.is_empty() && !version.contains('/')).then_some((group, version))
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;

    use super::*;

    fn value(text: &str) -> Value {
        json::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn api_service_names_the_server_of_its_version() {
        let local = ApiService::read(&value(
            r#"{"metadata":{"name":"v1.apps"},"spec":{"group":"apps","version":"v1","groupPriorityMinimum":17800,"versionPriority":15}}"#,
        ));
        assert_eq!((local.name.as_str(), local.path().as_str()), ("v1.apps", "/apis/apps/v1"));
        assert_eq!(local.priorities, Priorities { group: 17_800, version: 15 });
        assert!(local.service.is_none() && !local.is_available);
        let remote = ApiService::read(&value(
            r#"{"metadata":{"name":"v1.x"},"spec":{"group":"x","version":"v1","caBundle":"cGVt","service":{"namespace":"n","name":"s"}},
                "status":{"conditions":[{"type":"Available","status":"True"}]}}"#,
        ));
        let service = remote.service.unwrap();
        assert_eq!((service.name.as_str(), service.port), ("s", 443));
        assert!(remote.is_available && service.peer.verifies);
        assert_eq!(
            (service.peer.server_name.as_str(), &*service.peer.authority_pem),
            ("s.n.svc", &b"pem"[..])
        );
    }

    #[test]
    fn discovery_path_names_group_and_version() {
        for (path, expected) in [
            ("/apis/a/v1", Some(("a", "v1"))),
            ("/apis/a/v1/", Some(("a", "v1"))),
            ("/apis/a", None),
            ("/apis/a/", None),
            ("/apis/a/v1/pods", None),
            ("/api/v1", None),
            ("/apis//v1", None),
        ] {
            assert_eq!(parse_discovery_path(path), expected, "{path}");
        }
    }
}
