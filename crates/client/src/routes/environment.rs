//! The proxies that the environment names: `HTTPS_PROXY`, `HTTP_PROXY` and the exceptions in `NO_PROXY`, by the reference's rules.
//!
//! A variable counts in capital letters before the same in small ones. This machine is never reached through a proxy.

use std::env;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::kubeconfig::Proxy;

/// The proxies of requests by their scheme, and the hosts that are reached without.
#[derive(Clone, Default)]
pub struct ProxyEnvironment {
    https: Option<Proxy>,
    http: Option<Proxy>,
    exceptions: Vec<Exception>,
}

/// Hosts that are reached without a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Exception {
    /// All.
    All,
    /// Addresses.
    Network(IpNet),
    /// One address, on all ports or one.
    Address(IpAddr, Option<String>),
    /// The names that end with a suffix, which begins with a dot, on all ports or one.
    Domain {
        suffix: String,
        /// Whether the name without the dot is one of them.
        includes_itself: bool,
        port: Option<String>,
    },
}

impl ProxyEnvironment {
    /// The proxies that the environment of this process names.
    pub fn of_process() -> ProxyEnvironment {
        ProxyEnvironment::read(|name| env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> ProxyEnvironment {
        let first = |names: [&str; 2]| {
            names.into_iter().find_map(|name| variable(name).filter(|value| !value.is_empty()))
        };
        let proxy = |names: [&'static str; 2]| {
            let text = first(names)?;
            let parsed = Proxy::parse_loosely(&text);
            if parsed.is_err() {
                // Without the value, which may contain a password.
                tracing::warn!(
                    variable = names[0],
                    "its value is no URL of a proxy, so connections are direct"
                );
            }
            parsed.ok()
        };
        ProxyEnvironment {
            https: proxy(["HTTPS_PROXY", "https_proxy"]),
            http: proxy(["HTTP_PROXY", "http_proxy"]),
            exceptions: exceptions(&first(["NO_PROXY", "no_proxy"]).unwrap_or_default()),
        }
    }

    /// The proxy of a request to this host and port, with TLS if `secure`.
    pub fn proxy(&self, secure: bool, host: &str, port: u16) -> Option<&Proxy> {
        let proxy = if secure { self.https.as_ref() } else { self.http.as_ref() }?;
        let host = host.trim().to_lowercase();
        let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
        if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
            return None;
        }
        let port = port.to_string();
        let is_excepted = self.exceptions.iter().any(|exception| exception.matches(&host, address, &port));
        (!is_excepted).then_some(proxy)
    }
}

impl Exception {
    fn matches(&self, host: &str, address: Option<IpAddr>, port: &str) -> bool {
        let is_port = |expected: &Option<String>| expected.as_ref().is_none_or(|expected| expected == port);
        match self {
            Exception::All => true,
            Exception::Network(network) => address.is_some_and(|address| network.contains(&address)),
            Exception::Address(expected, expected_port) => {
                address == Some(*expected) && is_port(expected_port)
            }
            Exception::Domain { suffix, includes_itself, port: expected_port } => {
                let is_itself = *includes_itself && suffix.strip_prefix('.') == Some(host);
                (host.ends_with(suffix.as_str()) || is_itself) && is_port(expected_port)
            }
        }
    }
}

fn exceptions(text: &str) -> Vec<Exception> {
    let mut exceptions = Vec::new();
    for entry in text.split(',').map(|entry| entry.trim().to_lowercase()) {
        match entry.as_str() {
            "" => {}
            "*" => return vec![Exception::All],
            entry => exceptions.extend(exception(entry)),
        }
    }
    exceptions
}

fn exception(entry: &str) -> Option<Exception> {
    if let Ok(network) = entry.parse::<IpNet>() {
        return Some(Exception::Network(network));
    }
    let (host, port) = match split_port(entry) {
        Some((host, port)) => (host, Some(port.to_owned()).filter(|port| !port.is_empty())),
        None => (entry, None),
    };
    if let Ok(address) = host.parse::<IpAddr>() {
        return Some(Exception::Address(address.to_canonical(), port));
    }
    let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
    match host.chars().next()? {
        '.' => Some(Exception::Domain { suffix: host.to_owned(), includes_itself: false, port }),
        _ => Some(Exception::Domain { suffix: format!(".{host}"), includes_itself: true, port }),
    }
}

/// The host, without brackets, and the port of `host:port`.
fn split_port(entry: &str) -> Option<(&str, &str)> {
    let (host, port) = entry.rsplit_once(':')?;
    match host.strip_prefix('[') {
        Some(host) => Some((host.strip_suffix(']')?, port)),
        None => Some((host, port)).filter(|(host, _)| !host.contains(':')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> ProxyEnvironment {
        ProxyEnvironment::read(|name| {
            let variable = variables.iter().find(|(known, _)| *known == name)?;
            Some(variable.1.to_owned())
        })
    }

    #[test]
    fn variables_name_proxies_by_scheme() {
        let of = |variables: &[(&str, &str)], secure| {
            let environment = environment(variables);
            environment.proxy(secure, "far.test", 443).map(|proxy| format!("{}:{}", proxy.host, proxy.port))
        };
        assert_eq!(of(&[], true), None);
        assert_eq!(of(&[("HTTPS_PROXY", "http://a:1"), ("https_proxy", "b:2")], true).unwrap(), "a:1");
        assert_eq!(of(&[("HTTPS_PROXY", ""), ("https_proxy", "b:2")], true).unwrap(), "b:2");
        assert_eq!(of(&[("HTTPS_PROXY", "http://a:1")], false), None);
        assert_eq!(of(&[("http_proxy", "c")], false).unwrap(), "c:80");
        assert_eq!(of(&[("HTTPS_PROXY", "https://d")], true).unwrap(), "d:443");
        assert_eq!(of(&[("HTTPS_PROXY", "socks5h://e")], true).unwrap(), "e:1080");
        assert_eq!(of(&[("HTTPS_PROXY", "ftp://f:1")], true), None, "it cannot be used");
    }

    #[test]
    fn exceptions_are_reached_without_a_proxy() {
        let is_direct = |exceptions: &str, host: &str, port: u16| {
            let variables = [("HTTPS_PROXY", "http://a:1"), ("NO_PROXY", exceptions)];
            environment(&variables).proxy(true, host, port).is_none()
        };
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(is_direct("", host, 443), "{host}");
        }
        for (exceptions, host) in [
            ("*", "far.test"),
            ("x, *", "10.0.0.1"),
            ("10.0.0.0/8", "10.1.2.3"),
            ("10.0.0.0/8", "::ffff:10.1.2.3"),
            ("fd00::/8", "fd00::1"),
            ("10.1.2.3", "10.1.2.3"),
            ("10.1.2.3:443", "10.1.2.3"),
            ("[fd00::1]:443", "fd00::1"),
            ("fd00::1", "fd00::1"),
            ("far.test", "far.test"),
            ("far.test", "a.FAR.test"),
            (" Far.Test:443 ", "far.test"),
            (".far.test", "a.far.test"),
            ("*.far.test", "a.b.far.test"),
            (".svc,.cluster.local", "hook.default.svc"),
        ] {
            assert!(is_direct(exceptions, host, 443), "{exceptions}: {host}");
        }
        for (exceptions, host) in [
            ("", "far.test"),
            (",", "far.test"),
            ("10.0.0.0/8", "11.0.0.1"),
            ("10.0.0.0/8", "ten.test"),
            ("10.1.2.3:80", "10.1.2.3"),
            ("far.test", "notfar.test"),
            ("far.test:80", "far.test"),
            (".far.test", "far.test"),
            ("*.far.test", "far.test"),
            ("[fd00::1", "fd00::1"),
        ] {
            assert!(!is_direct(exceptions, host, 443), "{exceptions}: {host}");
        }
    }
}
