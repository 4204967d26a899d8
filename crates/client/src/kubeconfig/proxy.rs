//! A proxy between this server and another one.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use pilothouse_types::host_port::HostPort;

/// The protocol of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyProtocol {
    /// HTTP CONNECT, or plain HTTP with the whole URL.
    Http,
    /// The same over TLS.
    Https,
    /// SOCKS version 5.
    Socks,
}

/// A proxy to connect through.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Proxy {
    /// The protocol.
    pub protocol: ProxyProtocol,
    /// Where it is.
    pub address: HostPort,
    /// The user name and password.
    pub user: Option<(String, String)>,
}

impl Proxy {
    /// Parses the URL of a proxy in a kubeconfig.
    pub fn parse(url: &str) -> Result<Proxy, String> {
        Proxy::parse_url(url).map_err(|reason| format!("proxy-url: {reason}"))
    }

    /// Parses a proxy of the environment, which needs no scheme.
    pub fn parse_loosely(text: &str) -> Result<Proxy, String> {
        if !text.contains("://") {
            return Proxy::parse_url(&format!("http://{text}"));
        }
        match text.strip_prefix("socks5h://") {
            // Names are resolved by the proxy in any case.
            Some(rest) => Proxy::parse_url(&format!("socks5://{rest}")),
            None => Proxy::parse_url(text),
        }
    }

    fn parse_url(url: &str) -> Result<Proxy, String> {
        let uri: Uri = url.parse().map_err(|_| format!("could not parse: {url}"))?;
        let (protocol, default_port) = match uri.scheme_str() {
            Some("http") => (ProxyProtocol::Http, 80),
            Some("https") => (ProxyProtocol::Https, 443),
            Some("socks5") => (ProxyProtocol::Socks, 1_080),
            other => {
                let scheme = other.unwrap_or_default();
                return Err(format!("unsupported scheme {scheme:?}, must be http, https, or socks5"));
            }
        };
        let authority = uri.authority().ok_or("there is no host")?;
        let user = authority.as_str().rsplit_once('@').map(|(user, _)| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            let unescape = |text: &str| {
                pilothouse_apimachinery::query::unescape(text, false)
                    .map_or_else(|| text.to_owned(), Into::into)
            };
            (unescape(name), unescape(password))
        });
        let host_and_port = authority.as_str().rsplit('@').next().unwrap_or_default();
        let port = match host_and_port.strip_prefix(authority.host()).unwrap_or_default() {
            "" | ":" => default_port,
            _ => authority.port_u16().ok_or("the port is invalid")?,
        };
        let address = HostPort::new(authority.host(), port);
        if address.host.is_empty() {
            return Err("there is no host".to_owned());
        }
        Ok(Proxy { protocol, address, user })
    }

    /// Whether it speaks HTTP.
    pub fn is_http(&self) -> bool {
        matches!(self.protocol, ProxyProtocol::Http | ProxyProtocol::Https)
    }

    /// The Proxy-Authorization header.
    pub fn header(&self) -> Option<String> {
        let (name, password) = self.user.as_ref()?;
        Some(format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))))
    }
}
