//! Where a plugin is.

use std::fmt;
use std::path::PathBuf;

use hyper::http::Uri;
use pilothouse_types::host_port::HostPort;

/// The address of a plugin, or of another server that speaks gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The path of a socket. That of an abstract one begins with a zero byte.
    Unix(PathBuf),
    /// Host and port.
    Tcp(HostPort),
}

impl Address {
    /// The scheme and the authority of requests.
    pub(crate) fn origin(&self) -> Uri {
        let uri = match self {
            Address::Unix(_) => None,
            Address::Tcp(address) => format!("http://{address}").parse().ok(),
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
            Address::Tcp(address) => write!(f, "tcp {address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_displayed_as_they_are_dialed() {
        let tcp = |host, port| Address::Tcp(HostPort::new(host, port));
        for (address, displayed, origin) in [
            (Address::from(PathBuf::from("\0a")), "unix @a", "http://localhost/"),
            (tcp("a.b", 4317), "tcp a.b:4317", "http://a.b:4317/"),
            (tcp("::1", 80), "tcp [::1]:80", "http://[::1]:80/"),
            (tcp("a b", 80), "tcp a b:80", "http://localhost/"),
        ] {
            assert_eq!(
                (address.to_string().as_str(), address.origin().to_string().as_str()),
                (displayed, origin)
            );
        }
    }
}
