//! Addresses of webhooks of all kinds: a URL, or a service of the cluster.

mod service_address;

use hyper::Uri;
use pilothouse_actors::permit::Permit;
use pilothouse_admission::webhooks::ClientConfig;

use crate::webhook::cluster_webhooks::WebhookServer;

use self::service_address::ServicePort;
use super::Backend;

/// The address of a webhook.
#[derive(Debug)]
pub struct WebhookTarget {
    /// The host, port and TLS settings.
    pub place: WebhookServer,
    /// The name under which the operator's kubeconfig has its credentials.
    pub known_as: String,
    /// The path of requests.
    pub path: String,
    /// Whether the port is always part of the host.
    pub says_port: bool,
    /// The complete URL.
    pub url: String,
}

fn target(way: &ClientConfig, authority_pem: &[u8]) -> Result<WebhookTarget, String> {
    let unusable = |why: &str| format!("could not get REST client: {why}");
    let place = |secure, host: &str, port| WebhookServer {
        secure,
        host: host.to_owned(),
        port,
        authority_pem: authority_pem.to_vec(),
    };
    match way {
        ClientConfig::None => Err(unusable("webhook configuration must have either service or URL")),
        ClientConfig::Service { namespace, name, path, port } => {
            let host = format!("{name}.{namespace}.svc");
            let path = rooted(path);
            Ok(WebhookTarget {
                known_as: format!("{host}:{port}"),
                url: format!("https://{host}:{port}{path}"),
                place: place(true, &host, *port),
                path,
                says_port: true,
            })
        }
        ClientConfig::Url(url) => {
            let uri: Uri = url.parse().map_err(|error| unusable(&format!("Unparsable URL: {error}")))?;
            let host = uri.host().ok_or_else(|| unusable("the URL has no host"))?;
            let secure = uri.scheme_str() != Some("http");
            let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
            let path = rooted(uri.path());
            let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
            let scheme = if secure { "https" } else { "http" };
            Ok(WebhookTarget {
                known_as: format!("{host}:{}", uri.port_u16().unwrap_or(443)),
                url: format!("{scheme}://{authority}{path}"),
                place: place(secure, host.trim_matches(['[', ']']), port),
                path,
                says_port: uri.port_u16().is_some(),
            })
        }
    }
}

/// A path as the reference's client joins it: with a leading and without a trailing slash.
fn rooted(path: &str) -> String {
    format!("/{}", path.trim_matches('/'))
}

impl WebhookTarget {
    /// Resolves a client configuration. Errors are in the reference's words.
    pub fn of(way: &ClientConfig, authority_pem: &[u8]) -> Result<WebhookTarget, String> {
        target(way, authority_pem)
    }
}

/// The address to connect to, if it differs from the target: that of a service.
pub async fn connect_address(
    backend: &Backend,
    permit: &Permit,
    to_endpoints: bool,
    way: &ClientConfig,
) -> Result<Option<(String, u16)>, String> {
    match way {
        ClientConfig::Service { namespace, name, port, .. } => {
            let service = ServicePort { namespace, name, port: *port };
            service_address::service(backend, permit, to_endpoints, service).await.map(Some)
        }
        ClientConfig::Url(_) | ClientConfig::None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_a_url() {
        let (namespace, name, path) = ("n".to_owned(), "s".to_owned(), "p/q/".to_owned());
        let service = ClientConfig::Service { namespace, name, path, port: 443 };
        for (way, url, known_as, port) in [
            (service, "https://s.n.svc:443/p/q", "s.n.svc:443", 443),
            (ClientConfig::Url("https://h".into()), "https://h/", "h:443", 443),
            (ClientConfig::Url("https://h:8443/a/".into()), "https://h:8443/a", "h:8443", 8443),
            (ClientConfig::Url("https://[::1]:1/a".into()), "https://[::1]:1/a", "[::1]:1", 1),
        ] {
            let target = target(&way, b"pem").unwrap();
            assert_eq!(
                (target.url.as_str(), target.known_as.as_str(), target.place.port),
                (url, known_as, port)
            );
            assert!(!target.place.host.contains('[') && target.place.authority_pem == b"pem");
        }
        let wrong = target(&ClientConfig::None, b"").err().unwrap();
        assert!(wrong.ends_with("must have either service or URL"), "{wrong}");
    }
}
