//! Addresses of webhooks of all kinds: a URL, or a service of the cluster.

mod service_address;

use hyper::Uri;
use pilothouse_actors::permit::Permit;
use pilothouse_admission::webhooks::ClientConfig;
use pilothouse_client::webhook::cluster_webhooks::WebhookServer;
use pilothouse_types::host_port::HostPort;

use self::service_address::ServicePort;
use super::Backend;

/// The address of a webhook.
#[derive(Debug)]
pub struct WebhookTarget {
    /// The host, port and TLS settings.
    pub server: WebhookServer,
    /// The name of its credentials in the operator's kubeconfig.
    pub credentials_name: String,
    /// The path of requests.
    pub path: String,
    /// Whether the Host header includes the port.
    pub includes_port: bool,
    /// The complete URL.
    pub url: String,
}

fn target(config: &ClientConfig, authority_pem: &[u8]) -> Result<WebhookTarget, String> {
    let invalid = |reason: &str| format!("could not get REST client: {reason}");
    let server = |secure, host: &str, port: u16| WebhookServer {
        secure,
        address: HostPort::new(host, port),
        authority_pem: authority_pem.to_vec(),
    };
    match config {
        ClientConfig::None => Err(invalid("webhook configuration must have either service or URL")),
        ClientConfig::Service { namespace, name, path, port } => {
            let host = format!("{name}.{namespace}.svc");
            let path = normalize_path(path);
            Ok(WebhookTarget {
                credentials_name: format!("{host}:{port}"),
                url: format!("https://{host}:{port}{path}"),
                server: server(true, &host, *port),
                path,
                includes_port: true,
            })
        }
        ClientConfig::Url(url) => {
            let uri: Uri = url.parse().map_err(|error| invalid(&format!("Unparsable URL: {error}")))?;
            let host = uri.host().ok_or_else(|| invalid("the URL has no host"))?;
            let secure = uri.scheme_str() != Some("http");
            let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
            let path = normalize_path(uri.path());
            let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
            let scheme = if secure { "https" } else { "http" };
            Ok(WebhookTarget {
                credentials_name: format!("{host}:{}", uri.port_u16().unwrap_or(443)),
                url: format!("{scheme}://{authority}{path}"),
                server: server(secure, host, port),
                path,
                includes_port: uri.port_u16().is_some(),
            })
        }
    }
}

/// Normalizes a path as the reference's client does: with a leading and without a trailing slash.
fn normalize_path(path: &str) -> String {
    format!("/{}", path.trim_matches('/'))
}

impl WebhookTarget {
    /// Resolves a client configuration. Errors are in the reference's words.
    pub fn new(config: &ClientConfig, authority_pem: &[u8]) -> Result<WebhookTarget, String> {
        target(config, authority_pem)
    }
}

/// The address to connect to, if it is not the host of the URL: that of a service.
pub async fn connect_address(
    backend: &Backend,
    permit: &Permit,
    to_endpoints: bool,
    config: &ClientConfig,
) -> Result<Option<HostPort>, String> {
    match config {
        ClientConfig::Service { namespace, name, port, .. } => {
            let service = ServicePort { namespace, name, port: *port };
            let address = service_address::resolve(backend, permit, to_endpoints, service).await;
            address.map(|(host, port)| Some(HostPort { host, port }))
        }
        ClientConfig::Url(_) | ClientConfig::None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_target_has_url_and_credential_name() {
        let (namespace, name, path) = ("n".to_owned(), "s".to_owned(), "p/q/".to_owned());
        let service = ClientConfig::Service { namespace, name, path, port: 443 };
        for (config, url, credentials_name, port) in [
            (service, "https://s.n.svc:443/p/q", "s.n.svc:443", 443),
            (ClientConfig::Url("https://h".into()), "https://h/", "h:443", 443),
            (ClientConfig::Url("https://h:8443/a/".into()), "https://h:8443/a", "h:8443", 8443),
            (ClientConfig::Url("https://[::1]:1/a".into()), "https://[::1]:1/a", "[::1]:1", 1),
        ] {
            let target = target(&config, b"pem").unwrap();
            assert_eq!(
                (target.url.as_str(), target.credentials_name.as_str(), target.server.address.port),
                (url, credentials_name, port)
            );
            assert!(!target.server.address.host.contains('[') && target.server.authority_pem == b"pem");
        }
        let error = target(&ClientConfig::None, b"").err().unwrap();
        assert!(error.ends_with("must have either service or URL"), "{error}");
    }
}
