//! Host and port of a server.

use std::borrow::Cow;
use std::fmt;

/// Where a server listens. Displayed as in a URL, with an IPv6 address in brackets.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl HostPort {
    /// This host, which may be written with brackets, and this port.
    pub fn new(host: &str, port: u16) -> HostPort {
        HostPort { host: host.trim_matches(['[', ']']).to_owned(), port }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", bracketed(&self.host), self.port)
    }
}

/// A host as it stands before a port.
pub fn bracketed(host: &str) -> Cow<'_, str> {
    if host.contains(':') { Cow::Owned(format!("[{host}]")) } else { Cow::Borrowed(host) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_ipv6_have_brackets_before_a_port() {
        for (host, displayed) in
            [("a.test", "a.test:80"), ("10.0.0.1", "10.0.0.1:80"), ("::1", "[::1]:80"), ("[::1]", "[::1]:80")]
        {
            assert_eq!(HostPort::new(host, 80).to_string(), displayed);
        }
    }
}
