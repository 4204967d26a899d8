//! Functions of IP addresses and CIDRs.

use std::net::IpAddr;

use ipnet::IpNet;
use pilothouse_apimachinery::field::quoted;

use super::context::CallContext;
use crate::value::{Fault, Outcome, Val};

/// `ip('10.0.0.1')`, `cidr('10.0.0.0/8')` and their member functions.
pub fn run<'v>(name: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    match (name, args) {
        ("ip", [Val::String(text)]) => parse_address(text).map(Val::Ip),
        ("isIP", [Val::String(text)]) => Ok(Val::Bool(parse_address(text).is_ok())),
        ("ip.isCanonical", [Val::String(text)]) => Ok(Val::Bool(parse_address(text)?.to_string() == **text)),
        ("cidr", [Val::String(text)]) => parse_cidr(text).map(|(address, bits)| Val::Cidr(address, bits)),
        ("isCIDR", [Val::String(text)]) => Ok(Val::Bool(parse_cidr(text).is_ok())),
        ("containsIP", [Val::Cidr(address, bits), Val::Ip(other)]) => {
            Ok(Val::Bool(contains(*address, *bits, *other)))
        }
        ("containsIP", [Val::Cidr(address, bits), Val::String(text)]) => {
            Ok(Val::Bool(contains(*address, *bits, parse_address(text)?)))
        }
        ("containsCIDR", [Val::Cidr(address, bits), Val::Cidr(other, other_bits)]) => {
            Ok(Val::Bool(bits <= other_bits && contains(*address, *bits, *other)))
        }
        ("containsCIDR", [Val::Cidr(address, bits), Val::String(text)]) => {
            let (other, other_bits) = parse_cidr(text)?;
            Ok(Val::Bool(*bits <= other_bits && contains(*address, *bits, other)))
        }
        ("ip", [Val::Cidr(address, _)]) => Ok(Val::Ip(*address)),
        ("prefixLength", [Val::Cidr(_, bits)]) => Ok(Val::Int(i64::from(*bits))),
        ("masked", [Val::Cidr(address, bits)]) => Ok(Val::Cidr(mask_address(*address, *bits), *bits)),
        (name, [Val::Ip(address)]) => address_function(name, *address),
        _ => Err(Fault::no_overload()),
    }
}

fn address_function<'v>(name: &str, address: IpAddr) -> Outcome<'v> {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.segments()[0] & 0xffc0 == 0xfe80,
    };
    let link_local_multicast = match address {
        IpAddr::V4(address) => address.octets()[..3] == [224, 0, 0],
        IpAddr::V6(address) => address.segments()[0] & 0xff0f == 0xff02,
    };
    Ok(Val::Bool(match name {
        "family" => return Ok(Val::Int(if address.is_ipv4() { 4 } else { 6 })),
        "isUnspecified" => address.is_unspecified(),
        "isLoopback" => address.is_loopback(),
        "isLinkLocalMulticast" => link_local_multicast,
        "isLinkLocalUnicast" => link_local,
        "isGlobalUnicast" => {
            let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
            !(broadcast
                || address.is_unspecified()
                || address.is_loopback()
                || address.is_multicast()
                || link_local)
        }
        _ => return Err(Fault::no_overload()),
    }))
}

fn parse_address(text: &str) -> Result<IpAddr, Fault> {
    if text.contains('%') && text.contains(':') {
        return Err(Fault::error(format!("IP address {} with zone value is not allowed", quoted(text))));
    }
    let address: IpAddr = text.parse().map_err(|_| {
        let quoted_text = quoted(text);
        Fault::error(format!("IP Address {quoted_text} parse error during conversion from string: ParseAddr({quoted_text}): unable to parse IP"))
    })?;
    match address {
        IpAddr::V6(inner) if inner.to_ipv4_mapped().is_some() => {
            Err(Fault::error(format!("IPv4-mapped IPv6 address {} is not allowed", quoted(text))))
        }
        address => Ok(address),
    }
}

fn parse_cidr(text: &str) -> Result<(IpAddr, u8), Fault> {
    const PREFIX: &str = "network address parse error during conversion from string";
    let error = |reason: &str| {
        Fault::error(format!("{PREFIX}: {PREFIX}: netip.ParsePrefix({}): {reason}", quoted(text)))
    };
    let (address, bits) = text.rsplit_once('/').ok_or_else(|| error("no '/'"))?;
    let address: IpAddr = address.parse().map_err(|_| error("unable to parse IP"))?;
    let is_numeric = bits.bytes().all(|byte| byte.is_ascii_digit());
    if bits.is_empty() || !is_numeric || (bits.len() > 1 && bits.starts_with('0')) {
        return Err(error(&format!("bad bits after slash: {}", quoted(bits))));
    }
    let max_bits = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits
        .parse::<u8>()
        .ok()
        .filter(|bits| *bits <= max_bits)
        .ok_or_else(|| error("prefix length out of range"))?;
    match address {
        IpAddr::V6(inner) if inner.to_ipv4_mapped().is_some() => {
            Err(Fault::error(format!("{PREFIX}: IPv4-mapped IPv6 address {} is not allowed", quoted(text))))
        }
        address => Ok((address, bits)),
    }
}

fn mask_address(address: IpAddr, bits: u8) -> IpAddr {
    IpNet::new(address, bits).map_or(address, |range| range.network())
}

/// Whether an address is in the network of so many bits.
fn contains(network: IpAddr, bits: u8, address: IpAddr) -> bool {
    IpNet::new(network, bits).is_ok_and(|range| range.contains(&address))
}
