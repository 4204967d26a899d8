//! Where a plugin is.

use std::fmt;
use std::path::PathBuf;

use hyper::http::Uri;

/// The address of a plugin, or of another server that speaks gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The path of a socket. That of an abstract one begins with a zero byte.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String, u16),
}

impl Address {
    /// The scheme and the authority of requests.
    pub(crate) fn origin(&self) -> Uri {
        let uri = match self {
            Address::Unix(_) => None,
            Address::Tcp(host, port) => format!("http://{}:{port}", bracketed(host)).parse().ok(),
        };
        uri.unwrap_or(Uri::from_static("http://localhost"))
    }
}

impl From<PathBuf> for Address {
    fn from(path: PathBuf) -> Address {
        Address::Unix(path)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Abstract sockets are written with an at sign.
            Address::Unix(path) => write!(f, "unix {}", path.display().to_string().replace('\0', "@")),
            Address::Tcp(host, port) => write!(f, "tcp {}:{port}", bracketed(host)),
        }
    }
}

/// A host as it stands before a port.
fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_displayed_as_they_are_dialed() {
        for (address, displayed, origin) in [
            (Address::from(PathBuf::from("\0a")), "unix @a", "http://localhost/"),
            (Address::Tcp("a.b".to_owned(), 4317), "tcp a.b:4317", "http://a.b:4317/"),
            (Address::Tcp("::1".to_owned(), 80), "tcp [::1]:80", "http://[::1]:80/"),
            (Address::Tcp("a b".to_owned(), 80), "tcp a b:80", "http://localhost/"),
        ] {
            assert_eq!(
                (address.to_string().as_str(), address.origin().to_string().as_str()),
                (displayed, origin)
            );
        }
    }
}
