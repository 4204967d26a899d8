//! The names and addresses of this server.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use openssl::nid::Nid;
use openssl::x509::X509Ref;

use crate::config::Config;

/// The names that a serving certificate must cover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Host names.
    pub hosts: BTreeSet<String>,
    /// Addresses.
    pub addresses: BTreeSet<IpAddr>,
}

impl Names {
    /// The names of this host, and of the server inside its cluster.
    pub(super) fn from_config(config: &Config, bound: SocketAddr) -> Names {
        let cluster_names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ];
        let mut hosts: BTreeSet<String> = cluster_names.map(str::to_owned).into();
        let this_host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let host_names = this_host.into_iter().chain(config.serving.external_hostname.clone());
        hosts.extend(host_names.map(|name| name.to_ascii_lowercase()).filter(|name| is_host_name(name)));

        let mut addresses: BTreeSet<IpAddr> =
            [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), bound.ip(), config.advertised()].into();
        addresses.extend(config.api.service_cluster_ip_range.iter().map(|range| range.first_service()));
        addresses.extend(interface_addresses());
        if let Some(address) = config.serving.external_hostname.as_ref().and_then(|name| name.parse().ok()) {
            addresses.insert(address);
        }
        addresses.retain(|address| !address.is_unspecified());
        Names { hosts, addresses }
    }
}

/// The host names of a certificate. Addresses are left out, because SNI has none.
pub(super) fn certificate_names(certificate: &X509Ref) -> Vec<String> {
    let common = certificate.subject_name().entries_by_nid(Nid::COMMONNAME);
    let common = common.filter_map(|entry| entry.data().to_string().ok());
    let is_host = |name: &String| name == "*" || is_host_name(name.strip_prefix("*.").unwrap_or(name));
    let alternative = certificate.subject_alt_names();
    let hosts = alternative.iter().flatten().filter_map(|name| name.dnsname().map(str::to_owned));
    common.filter(is_host).chain(hosts).collect()
}

fn is_host_name(name: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(label) && name.parse::<IpAddr>().is_err()
}

/// The addresses of all interfaces, except for link-local ones.
fn interface_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            let v6 = || {
                let v6 = address.as_sockaddr_in6()?.ip();
                (!v6.is_unicast_link_local()).then_some(IpAddr::V6(v6))
            };
            v4.or_else(v6)
        })
        .collect()
}

/// The address that clients reach this server at: the advertised one, the bound one, or the first usable address of this host.
/// `None` without a network.
pub(crate) fn reachable_address(config: &Config) -> Option<IpAddr> {
    let is_reachable = |address: &IpAddr| !address.is_unspecified() && !address.is_loopback();
    let advertised = Some(config.advertised()).filter(is_reachable);
    advertised.or_else(|| {
        let mut addresses: Vec<IpAddr> = interface_addresses().into_iter().filter(is_reachable).collect();
        let service_range = config.api.service_cluster_ip_range.first();
        // Prefer the family of the service range.
        addresses.sort_by_key(|address| {
            service_range.is_some_and(|range| range.0.addr().is_ipv4() != address.is_ipv4())
        });
        addresses.into_iter().next()
    })
}

/// The URL for clients on this host.
pub(crate) fn url(bound: SocketAddr) -> String {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("https://{}", SocketAddr::new(ip, bound.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serving_names_cover_host_and_cluster() {
        let mut config = Config::default();
        config.serving.external_hostname = Some("API.example.org".to_owned());
        config.serving.advertise_address = Some("192.0.2.7".parse().unwrap());
        let names = Names::from_config(&config, "127.0.0.1:6443".parse().unwrap());
        for host in ["localhost", "kubernetes.default.svc.cluster.local", "api.example.org"] {
            assert!(names.hosts.contains(host), "{host}");
        }
        for address in ["127.0.0.1", "::1", "192.0.2.7", "10.0.0.1"] {
            assert!(names.addresses.contains(&address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn serving_names_of_wildcard_address_are_interface_addresses() {
        let names = Names::from_config(&Config::default(), "0.0.0.0:6443".parse().unwrap());
        assert!(!names.addresses.contains(&Ipv4Addr::UNSPECIFIED.into()));
        assert!(interface_addresses().iter().all(|address| names.addresses.contains(address)));
        assert!(interface_addresses().contains(&Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn server_url_uses_loopback_for_wildcard_address() {
        for (bound, url) in [
            ("0.0.0.0:6443", "https://127.0.0.1:6443"),
            ("[::]:80", "https://[::1]:80"),
            ("10.1.1.1:1", "https://10.1.1.1:1"),
        ] {
            assert_eq!(super::url(bound.parse().unwrap()), url);
        }
    }

    #[test]
    fn invalid_host_names_are_left_out() {
        assert!(is_host_name("node-1.example.org"));
        for name in ["", "a..b", "under_score", "10.0.0.1", &"x".repeat(64)] {
            assert!(!is_host_name(name), "{name}");
        }
    }
}
