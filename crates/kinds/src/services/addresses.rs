//! Ranges of cluster IPs, and the order in which free addresses are searched.
//!
//! The lower band of a range is for addresses that clients choose. The server allocates from the upper band, and from the lower
//! band only when the upper one is full, so that a chosen address is rarely in use.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use pilothouse_apimachinery::names;

/// The maximum number of host bits of a range: a search must be able to count them.
const MAX_BITS: u8 = 64;
/// The lower band is this fraction of the range.
const LOWER_BAND_FRACTION: u64 = 16;
/// The minimum size of the lower band. A range of no more addresses has none.
const MIN_LOWER_BAND: u64 = 16;
/// The maximum size of the lower band.
const MAX_LOWER_BAND: u64 = 256;

/// An IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Version 4.
    V4,
    /// Version 6.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn from_address(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// Parses the family in a service.
    pub fn parse(text: &str) -> Option<Family> {
        match text {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            _ => None,
        }
    }

    /// The name in a service.
    pub fn as_str(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }

    /// The other one.
    pub fn other(self) -> Family {
        match self {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        }
    }
}

/// The canonical text of an address.
pub fn canonical(text: &str) -> Option<String> {
    parse(text).map(|address| address.to_string())
}

/// Parses an address; an IPv4-mapped IPv6 address is an IPv4 address.
pub fn parse(text: &str) -> Option<IpAddr> {
    names::parse_ip(text).map(|address| address.to_canonical())
}

/// A range of cluster IPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange(IpNet);

impl AddressRange {
    /// The range of this network; `None` if it is too large to search.
    pub fn new(network: IpNet) -> Option<AddressRange> {
        let range = AddressRange(network.trunc());
        (range.host_bits() <= MAX_BITS).then_some(range)
    }

    /// Parses a CIDR.
    pub fn parse(text: &str) -> Option<AddressRange> {
        names::parse_cidr(text).and_then(AddressRange::new)
    }

    /// The family of its addresses.
    pub fn family(&self) -> Family {
        Family::from_address(self.network())
    }

    /// The network address, which no service gets.
    pub fn network(&self) -> IpAddr {
        self.0.network()
    }

    fn host_bits(&self) -> u8 {
        self.0.max_prefix_len() - self.0.prefix_len()
    }

    /// The number of usable addresses: without the network address, and without the IPv4 broadcast address.
    pub fn size(&self) -> u64 {
        let total = 1u128 << self.host_bits();
        let reserved = if self.network().is_ipv4() { 2 } else { 1 };
        u64::try_from(total.saturating_sub(reserved)).unwrap_or(u64::MAX)
    }

    /// The address number `offset`, from 0.
    pub fn address_at(&self, offset: u64) -> Option<IpAddr> {
        (offset < self.size()).then(|| plus(self.network(), 1 + u128::from(offset)))
    }

    /// The number of a usable address; see [`AddressRange::address_at`].
    pub fn offset_of(&self, address: IpAddr) -> Option<u64> {
        if !self.contains(address) {
            return None;
        }
        let distance = match (address, self.network()) {
            (IpAddr::V4(address), IpAddr::V4(network)) => {
                u128::from(address.to_bits()).checked_sub(u128::from(network.to_bits()))
            }
            (IpAddr::V6(address), IpAddr::V6(network)) => address.to_bits().checked_sub(network.to_bits()),
            _ => None,
        };
        u64::try_from(distance?.checked_sub(1)?).ok().filter(|offset| *offset < self.size())
    }

    /// Whether services may have this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let is_broadcast = address.is_ipv4() && address == self.0.broadcast();
        self.0.contains(&address) && address != self.network() && !is_broadcast
    }

    /// The size of the lower band.
    pub fn lower_band(&self) -> u64 {
        let total = u64::try_from(1u128 << self.host_bits()).unwrap_or(u64::MAX);
        lower_band(total, LOWER_BAND_FRACTION, MIN_LOWER_BAND, MAX_LOWER_BAND).min(self.size())
    }

    /// All addresses in search order. `random` returns a number below its argument.
    pub fn candidates(&self, random: &mut dyn FnMut(u64) -> u64) -> impl Iterator<Item = IpAddr> + use<> {
        let (range, lower, size) = (*self, self.lower_band(), self.size());
        let bands = [rotated(lower, size - lower, random), rotated(0, lower, random)];
        bands.into_iter().flatten().filter_map(move |offset| range.address_at(offset))
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The size of the lower band of `size` addresses.
fn lower_band(size: u64, fraction: u64, min: u64, max: u64) -> u64 {
    if size <= min { 0 } else { (size / fraction).clamp(min, max) }
}

/// `count` numbers from `first` on, cyclically from a random start.
fn rotated(first: u64, count: u64, random: &mut dyn FnMut(u64) -> u64) -> impl Iterator<Item = u64> + use<> {
    let start = if count == 0 { 0 } else { random(count) % count };
    (start..count).chain(0..start).map(move |offset| first + offset)
}

/// The address that follows after this many others, or the last one.
fn plus(first: IpAddr, count: u128) -> IpAddr {
    match first {
        IpAddr::V4(first) => {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            IpAddr::V4(Ipv4Addr::from_bits(first.to_bits().saturating_add(count)))
        }
        IpAddr::V6(first) => IpAddr::V6(Ipv6Addr::from_bits(first.to_bits().saturating_add(count))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn range(text: &str) -> AddressRange {
        AddressRange::parse(text).unwrap()
    }

    fn network(address: impl Into<IpAddr>, prefix: u8) -> AddressRange {
        AddressRange::new(IpNet::new(address.into(), prefix).unwrap()).unwrap()
    }

    #[test]
    fn canonical_name_ignores_the_spelling() {
        assert_eq!(canonical("::ffff:10.96.0.7").as_deref(), Some("10.96.0.7"));
        assert_eq!(canonical("010.96.0.7").as_deref(), Some("10.96.0.7"));
        assert_eq!(canonical("FD00::0:1").as_deref(), Some("fd00::1"));
        assert_eq!(parse("::ffff:10.96.0.7").map(Family::from_address), Some(Family::V4));
    }

    #[test]
    fn address_range_excludes_network_and_broadcast() {
        let table = [
            ("10.96.0.0/16", "10.96.0.1", 65_534, 256),
            ("10.0.0.0/24", "10.0.0.1", 254, 16),
            ("10.0.0.7/28", "10.0.0.1", 14, 0),
            ("10.0.0.0/27", "10.0.0.1", 30, 16),
            ("fd00::/108", "fd00::1", (1 << 20) - 1, 256),
            ("fd00::/64", "fd00::1", u64::MAX, 256),
        ];
        for (text, first, size, lower) in table {
            let range = range(text);
            assert_eq!(range.address_at(0).unwrap().to_string(), first, "{text}");
            assert_eq!((range.size(), range.lower_band()), (size, lower), "{text}");
            assert!(
                range.contains(range.address_at(0).unwrap()) && !range.contains(range.network()),
                "{text}"
            );
            assert!(
                range.contains(range.address_at(size - 1).unwrap()) && range.address_at(size).is_none(),
                "{text}"
            );
        }
        assert!(!range("10.0.0.0/24").contains("10.0.0.255".parse().unwrap()));
        assert!(range("fd00::/120").contains("fd00::ff".parse().unwrap()));
        assert_eq!(range("10.0.0.1/32").size(), 0);
        assert_eq!(AddressRange::parse("fd00::/63"), None);
        assert_eq!(AddressRange::parse("10.0.0.0/33"), None);
        assert_eq!(range("10.96.3.9/16").to_string(), "10.96.0.0/16");
    }

    #[test]
    fn candidates_start_with_the_upper_band() {
        let range = range("10.0.0.0/24");
        let order: Vec<IpAddr> = range.candidates(&mut |bound| bound / 2).collect();
        let is_lower = |address: &IpAddr| *address < range.address_at(16).unwrap();
        assert!(!order[..238].iter().any(is_lower) && order[238..].iter().all(is_lower));
        assert_eq!(range.candidates(&mut |_| 0).next(), range.address_at(16));
    }

    #[test]
    fn name_is_canonical_or_none() {
        assert_eq!(canonical("010.0.0.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(canonical("FD00:0::1").as_deref(), Some("fd00::1"));
        assert_eq!(canonical("None"), None);
    }

    proptest! {
        #[test]
        fn candidates_contain_every_address_once(start: u32, prefix in 20u8..=32, seed: u64) {
            let range = network(Ipv4Addr::from_bits(start), prefix);
            let order: Vec<IpAddr> = range.candidates(&mut |bound| seed % bound.max(1)).collect();
            let distinct: BTreeSet<&IpAddr> = order.iter().collect();
            prop_assert_eq!(order.len() as u64, range.size());
            prop_assert_eq!(distinct.len(), order.len());
            prop_assert!(order.iter().all(|address| range.contains(*address)));
        }

        #[test]
        fn every_offset_is_in_the_range(start: u128, prefix in 64u8..=128, offset: u64) {
            let range = network(Ipv6Addr::from_bits(start), prefix);
            match range.address_at(offset) {
                Some(address) => prop_assert!(range.contains(address)),
                None => prop_assert!(offset >= range.size()),
            }
        }
    }
}
