//! The proxies that the environment names: `HTTPS_PROXY`, `HTTP_PROXY` and the exceptions in `NO_PROXY`, by the reference's rules.
//!
//! A variable counts in capital letters before the same in small ones. This machine is never reached through a proxy. A value that
//! cannot be used is an error: direct connections might leave where the operator wants none to leave.

use std::env;
use std::net::IpAddr;

use ipnet::IpNet;
use pilothouse_types::host_port::HostPort;

use super::ProxyHop;
use crate::client_tls::{self, TlsIdentity, TlsPeer, TrustedCas};
use crate::kubeconfig::Proxy;
use crate::kubeconfig::proxy::ProxyProtocol;

/// The proxies of requests by their scheme, and the hosts that are reached without.
#[derive(Clone, Default)]
pub struct ProxyEnvironment {
    https: Option<ProxyHop>,
    http: Option<ProxyHop>,
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
    /// The proxies that the environment of this process names. The error names the variable, without its value, which may contain a
    /// password.
    pub fn from_env() -> Result<ProxyEnvironment, String> {
        ProxyEnvironment::read(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<ProxyEnvironment, String> {
        let first = |names: [&'static str; 2]| {
            let value = |name| variable(name).map(|value| (name, value));
            names.into_iter().filter_map(value).find(|(_, value)| !value.is_empty())
        };
        let proxy = |names: [&'static str; 2]| {
            let Some((name, text)) = first(names) else { return Ok(None) };
            let proxy = Proxy::parse_loosely(&text)
                .map_err(|_| format!("the environment variable {name} is not the URL of a proxy"))?;
            let hop = hop(proxy).map_err(|error| format!("the proxy of {name} cannot be used: {error}"))?;
            Ok::<_, String>(Some(hop))
        };
        let exceptions = first(["NO_PROXY", "no_proxy"]).map(|(_, text)| exceptions(&text));
        Ok(ProxyEnvironment {
            https: proxy(["HTTPS_PROXY", "https_proxy"])?,
            http: proxy(["HTTP_PROXY", "http_proxy"])?,
            exceptions: exceptions.unwrap_or_default(),
        })
    }

    /// The proxy of a request to this server, with TLS if `secure`.
    pub fn proxy(&self, secure: bool, server: &HostPort) -> Option<&ProxyHop> {
        let proxy = if secure { self.https.as_ref() } else { self.http.as_ref() }?;
        let host = server.host.trim().to_lowercase();
        let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
        if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
            return None;
        }
        let port = server.port.to_string();
        let is_excepted = self.exceptions.iter().any(|exception| exception.matches(&host, address, &port));
        (!is_excepted).then_some(proxy)
    }
}

/// A proxy with https is verified by the CAs of the system, whatever servers behind it are: one of them that is not verified, or has
/// a CA of its own, says nothing about the proxy.
fn hop(proxy: Proxy) -> Result<ProxyHop, openssl::error::ErrorStack> {
    let tls = match proxy.protocol {
        ProxyProtocol::Http | ProxyProtocol::Socks => None,
        ProxyProtocol::Https => Some(TlsPeer {
            context: client_tls::context(TrustedCas::Host, None)?,
            verifies: true,
            identity: TlsIdentity {
                server_name: proxy.address.host.clone(),
                authority: client_tls::authority(None, true),
                identity: client_tls::identity_digest(None),
            },
        }),
    };
    Ok(ProxyHop { proxy, tls })
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

    fn environment(variables: &[(&str, &str)]) -> Result<ProxyEnvironment, String> {
        ProxyEnvironment::read(|name| {
            let variable = variables.iter().find(|(known, _)| *known == name)?;
            Some(variable.1.to_owned())
        })
    }

    #[test]
    fn variables_name_proxies_by_scheme() {
        let of = |variables: &[(&str, &str)], secure| {
            let environment = environment(variables).unwrap();
            let hop = environment.proxy(secure, &HostPort::new("far.test", 443));
            hop.map(|hop| hop.proxy.address.to_string())
        };
        assert_eq!(of(&[], true), None);
        assert_eq!(of(&[("HTTPS_PROXY", "http://a:1"), ("https_proxy", "b:2")], true).unwrap(), "a:1");
        assert_eq!(of(&[("HTTPS_PROXY", ""), ("https_proxy", "b:2")], true).unwrap(), "b:2");
        assert_eq!(of(&[("HTTPS_PROXY", "http://a:1")], false), None);
        assert_eq!(of(&[("http_proxy", "c")], false).unwrap(), "c:80");
        assert_eq!(of(&[("HTTPS_PROXY", "https://d")], true).unwrap(), "d:443");
        assert_eq!(of(&[("HTTPS_PROXY", "socks5h://e")], true).unwrap(), "e:1080");
    }

    #[test]
    fn variable_that_names_no_proxy_is_an_error_without_its_value() {
        for (name, value) in [
            ("HTTPS_PROXY", "ftp://user:secret@f:1"),
            ("https_proxy", "http://user:secret@"),
            ("HTTP_PROXY", "http://user:secret@h:port"),
            ("http_proxy", "secret proxy"),
        ] {
            let error = environment(&[(name, value)]).err().expect(value);
            assert_eq!(error, format!("the environment variable {name} is not the URL of a proxy"));
        }
    }

    #[test]
    fn proxy_with_https_is_verified_by_the_authorities_of_the_system() {
        let environment = environment(&[("HTTP_PROXY", "https://p:1"), ("HTTPS_PROXY", "http://q")]).unwrap();
        let far = HostPort::new("far.test", 80);
        let tls = environment.proxy(false, &far).unwrap().tls.as_ref().unwrap();
        assert!(tls.verifies && tls.identity.server_name == "p");
        assert!(tls.identity.authority == client_tls::authority(None, true));
        assert!(environment.proxy(true, &far).unwrap().tls.is_none());
    }

    #[test]
    fn exceptions_are_reached_without_a_proxy() {
        let is_direct = |exceptions: &str, host: &str, port: u16| {
            let variables = [("HTTPS_PROXY", "http://a:1"), ("NO_PROXY", exceptions)];
            environment(&variables).unwrap().proxy(true, &HostPort::new(host, port)).is_none()
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
