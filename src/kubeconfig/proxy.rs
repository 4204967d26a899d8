//! A proxy that stands between this server and the one it asks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;

/// How a proxy is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Manner {
    /// HTTP: it is asked to connect.
    Http,
    /// SOCKS, version 5.
    Socks,
}

/// A proxy.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Proxy {
    /// How it is spoken to.
    pub manner: Manner,
    /// Where it is.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The name and the password that it asks for.
    pub user: Option<(String, String)>,
}

impl Proxy {
    /// Reads the URL of a proxy.
    pub fn parse(url: &str) -> Result<Proxy, String> {
        let wrong = |why: &str| format!("proxy-url: {why}");
        let uri: Uri = url.parse().map_err(|error| wrong(&format!("{error}")))?;
        let (manner, usual) = match uri.scheme_str() {
            Some("http") => (Manner::Http, 80),
            Some("socks5") => (Manner::Socks, 1_080),
            // TLS to the proxy itself would have to be set up somewhere, and nothing says how.
            other => return Err(wrong(&format!("{} is neither http nor socks5", other.unwrap_or("it")))),
        };
        let authority = uri.authority().ok_or_else(|| wrong("there is no host"))?;
        let user = authority.as_str().rsplit_once('@').map(|(user, _)| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            let plain = |text: &str| {
                crate::api::query::unescape(text, false).map_or_else(|| text.to_owned(), Into::into)
            };
            (plain(name), plain(password))
        });
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        Ok(Proxy { manner, host, port: authority.port_u16().unwrap_or(usual), user })
    }

    /// The header that shows the name and the password to an HTTP proxy.
    pub fn header(&self) -> Option<String> {
        let (name, password) = self.user.as_ref()?;
        Some(format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))))
    }
}
