//! The address of a member.

use std::path::PathBuf;

use hyper::http::Uri;

/// Where a member is reached, and how.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The address as the operator wrote it.
    pub url: String,
    /// Where the socket is.
    pub address: Address,
    /// Whether the connection is encrypted.
    pub is_secure: bool,
    /// The name that the certificate must contain, if the settings name no other.
    pub host: String,
    /// What requests name as their target.
    pub origin: Uri,
}

/// Where the socket of a member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// On the network.
    Tcp(String, u16),
    /// On this machine.
    Unix(PathBuf),
}

impl Endpoint {
    /// Reads an address.
    pub fn parse(url: &str) -> Result<Endpoint, String> {
        let invalid = |reason: &str| format!("{url:?} is no address of etcd: {reason}");
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("it has no scheme"))?;
        let is_secure = match scheme {
            "http" | "unix" => false,
            "https" | "unixs" => true,
            _ => return Err(invalid("its scheme is none of http, https, unix, unixs")),
        };
        if scheme.starts_with("unix") {
            if rest.is_empty() {
                return Err(invalid("it has no path"));
            }
            let address = Address::Unix(PathBuf::from(rest));
            let host = "localhost".to_owned();
            let origin = origin(is_secure, &host).ok_or_else(|| invalid("it cannot be used"))?;
            return Ok(Endpoint { url: url.to_owned(), address, is_secure, host, origin });
        }
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let parsed: Uri = authority.parse().map_err(|_| invalid("it has more than a host and a port"))?;
        let parsed = parsed.authority().ok_or_else(|| invalid("it has more than a host and a port"))?;
        if parsed.as_str() != authority || authority.contains('@') {
            return Err(invalid("it has more than a host and a port"));
        }
        let port = parsed.port_u16().ok_or_else(|| invalid("it has no port"))?;
        let host = parsed.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(invalid("it has no host"));
        }
        let origin = origin(is_secure, authority).ok_or_else(|| invalid("it cannot be used"))?;
        let address = Address::Tcp(host.clone(), port);
        Ok(Endpoint { url: url.to_owned(), address, is_secure, host, origin })
    }
}

fn origin(is_secure: bool, authority: &str) -> Option<Uri> {
    let scheme = if is_secure { "https" } else { "http" };
    Uri::builder().scheme(scheme).authority(authority).path_and_query("/").build().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_host_port_and_security() {
        let parse = |url: &str| {
            Endpoint::parse(url).map(|endpoint| (endpoint.address, endpoint.is_secure, endpoint.host))
        };
        let tcp = |host: &str, port| Address::Tcp(host.to_owned(), port);
        for (url, address, is_secure, host) in [
            ("http://127.0.0.1:2379", tcp("127.0.0.1", 2379), false, "127.0.0.1"),
            ("https://etcd-1.example:2379/", tcp("etcd-1.example", 2379), true, "etcd-1.example"),
            ("https://[::1]:2379", tcp("::1", 2379), true, "::1"),
            ("unix:///run/etcd.sock", Address::Unix("/run/etcd.sock".into()), false, "localhost"),
            ("unixs://etcd.sock:0", Address::Unix("etcd.sock:0".into()), true, "localhost"),
        ] {
            assert_eq!(parse(url), Ok((address, is_secure, host.to_owned())), "{url}");
        }
    }

    #[test]
    fn other_addresses_are_refused_with_the_reason() {
        for (url, reason) in [
            ("127.0.0.1:2379", "no scheme"),
            ("ftp://127.0.0.1:2379", "scheme is none of"),
            ("http://127.0.0.1", "no port"),
            ("http://:2379", "is no address"),
            ("http://127.0.0.1:2379/path", "more than"),
            ("http://user@127.0.0.1:2379", "more than"),
            ("http://", "is no address"),
            ("unix://", "no path"),
            ("", "no scheme"),
        ] {
            let error = Endpoint::parse(url).map(|endpoint| endpoint.url).unwrap_err();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }
}
