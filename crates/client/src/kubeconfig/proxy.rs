//! A proxy between this server and another one.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;

/// The protocol of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyProtocol {
    /// HTTP CONNECT.
    Http,
    /// SOCKS version 5.
    Socks,
}

/// A proxy to connect through.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Proxy {
    /// The protocol.
    pub protocol: ProxyProtocol,
    /// The host of the proxy.
    pub host: String,
    /// The port of the proxy.
    pub port: u16,
    /// The user name and password.
    pub user: Option<(String, String)>,
}

impl Proxy {
    /// Parses the URL of a proxy.
    pub fn parse(url: &str) -> Result<Proxy, String> {
        let describe = |reason: &str| format!("proxy-url: {reason}");
        let uri: Uri = url.parse().map_err(|error| describe(&format!("{error}")))?;
        let (protocol, default_port) = match uri.scheme_str() {
            Some("http") => (ProxyProtocol::Http, 80),
            Some("socks5") => (ProxyProtocol::Socks, 1_080),
            // TLS to the proxy itself is not supported: a kubeconfig has no settings for it.
            other => return Err(describe(&format!("{} is neither http nor socks5", other.unwrap_or("it")))),
        };
        let authority = uri.authority().ok_or_else(|| describe("there is no host"))?;
        let user = authority.as_str().rsplit_once('@').map(|(user, _)| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            let unescape = |text: &str| {
                pilothouse_apimachinery::query::unescape(text, false)
                    .map_or_else(|| text.to_owned(), Into::into)
            };
            (unescape(name), unescape(password))
        });
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        Ok(Proxy { protocol, host, port: authority.port_u16().unwrap_or(default_port), user })
    }

    /// The Proxy-Authorization header.
    pub fn header(&self) -> Option<String> {
        let (name, password) = self.user.as_ref()?;
        Some(format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))))
    }
}
