//! The source addresses of a request: those that proxies report, and last the peer of the connection, which cannot be forged.

use std::net::IpAddr;

/// The addresses, from the farthest to the nearest. `forwarded`: X-Forwarded-For; `real`: X-Real-Ip; `peer`: the connection's
/// peer.
pub fn sources(forwarded: &str, real: &str, peer: Option<IpAddr>) -> Vec<String> {
    let address = |text: &str| text.trim().parse::<IpAddr>().ok().map(|address| address.to_canonical());
    let mut addresses: Vec<IpAddr> = forwarded.split(',').filter_map(address).collect();
    addresses.extend(address(real).filter(|real| !addresses.contains(real)));
    addresses.extend(peer.map(|peer| peer.to_canonical()).filter(|peer| addresses.last() != Some(peer)));
    addresses.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_addresses_end_with_the_peer_without_repetition() {
        let peer = Some("10.0.0.9".parse().unwrap());
        for (forwarded, real, expected) in [
            ("", "", &["10.0.0.9"][..]),
            ("1.1.1.1, 2.2.2.2", "", &["1.1.1.1", "2.2.2.2", "10.0.0.9"]),
            ("1.1.1.1,nonsense", "3.3.3.3", &["1.1.1.1", "3.3.3.3", "10.0.0.9"]),
            ("1.1.1.1", "1.1.1.1", &["1.1.1.1", "10.0.0.9"]),
            ("10.0.0.9", "", &["10.0.0.9"]),
            ("10.0.0.9,1.1.1.1", "", &["10.0.0.9", "1.1.1.1", "10.0.0.9"]),
            ("::ffff:1.2.3.4", "::1", &["1.2.3.4", "::1", "10.0.0.9"]),
        ] {
            assert_eq!(sources(forwarded, real, peer), expected, "{forwarded} {real}");
        }
    }
}
