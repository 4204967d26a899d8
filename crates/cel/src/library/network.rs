//! Functions of IP addresses and CIDRs.

use std::net::IpAddr;

use pilothouse_apimachinery::field::quoted;

use super::super::eval::CallContext;
use super::super::value::{Fault, Outcome, Val};

/// `ip('10.0.0.1')`, `cidr('10.0.0.0/8')` and their member functions.
pub fn run<'v>(name: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    match (name, args) {
        ("ip", [Val::String(text)]) => address(text).map(Val::Ip),
        ("isIP", [Val::String(text)]) => Ok(Val::Bool(address(text).is_ok())),
        ("ip.isCanonical", [Val::String(text)]) => Ok(Val::Bool(address(text)?.to_string() == **text)),
        ("cidr", [Val::String(text)]) => range(text).map(|(address, bits)| Val::Cidr(address, bits)),
        ("isCIDR", [Val::String(text)]) => Ok(Val::Bool(range(text).is_ok())),
        ("containsIP", [Val::Cidr(own, bits), Val::Ip(other)]) => Ok(Val::Bool(holds((*own, *bits), *other))),
        ("containsIP", [Val::Cidr(own, bits), Val::String(text)]) => {
            Ok(Val::Bool(holds((*own, *bits), address(text)?)))
        }
        ("containsCIDR", [Val::Cidr(own, bits), Val::Cidr(other, other_bits)]) => {
            Ok(Val::Bool(bits <= other_bits && holds((*own, *bits), *other)))
        }
        ("containsCIDR", [Val::Cidr(own, bits), Val::String(text)]) => {
            let (other, other_bits) = range(text)?;
            Ok(Val::Bool(*bits <= other_bits && holds((*own, *bits), other)))
        }
        ("ip", [Val::Cidr(own, _)]) => Ok(Val::Ip(*own)),
        ("prefixLength", [Val::Cidr(_, bits)]) => Ok(Val::Int(i64::from(*bits))),
        ("masked", [Val::Cidr(own, bits)]) => Ok(Val::Cidr(masked(*own, *bits), *bits)),
        (name, [Val::Ip(own)]) => asked(name, *own),
        _ => Err(Fault::no_overload()),
    }
}

fn asked<'v>(name: &str, own: IpAddr) -> Outcome<'v> {
    let link_local = match own {
        IpAddr::V4(own) => own.is_link_local(),
        IpAddr::V6(own) => own.segments()[0] & 0xffc0 == 0xfe80,
    };
    let link_local_multicast = match own {
        IpAddr::V4(own) => own.octets()[..3] == [224, 0, 0],
        IpAddr::V6(own) => own.segments()[0] & 0xff0f == 0xff02,
    };
    Ok(Val::Bool(match name {
        "family" => return Ok(Val::Int(if own.is_ipv4() { 4 } else { 6 })),
        "isUnspecified" => own.is_unspecified(),
        "isLoopback" => own.is_loopback(),
        "isLinkLocalMulticast" => link_local_multicast,
        "isLinkLocalUnicast" => link_local,
        "isGlobalUnicast" => {
            let broadcast = matches!(own, IpAddr::V4(own) if own.is_broadcast());
            !(broadcast || own.is_unspecified() || own.is_loopback() || own.is_multicast() || link_local)
        }
        _ => return Err(Fault::no_overload()),
    }))
}

fn address(text: &str) -> Result<IpAddr, Fault> {
    if text.contains('%') && text.contains(':') {
        return Err(Fault::error(format!("IP address {} with zone value is not allowed", quoted(text))));
    }
    let own: IpAddr = text.parse().map_err(|_| {
        let shown = quoted(text);
        Fault::error(format!("IP Address {shown} parse error during conversion from string: ParseAddr({shown}): unable to parse IP"))
    })?;
    match own {
        IpAddr::V6(inner) if inner.to_ipv4_mapped().is_some() => {
            Err(Fault::error(format!("IPv4-mapped IPv6 address {} is not allowed", quoted(text))))
        }
        own => Ok(own),
    }
}

fn range(text: &str) -> Result<(IpAddr, u8), Fault> {
    const WHY: &str = "network address parse error during conversion from string";
    let wrong = |why: &str| Fault::error(format!("{WHY}: {WHY}: netip.ParsePrefix({}): {why}", quoted(text)));
    let (own, bits) = text.rsplit_once('/').ok_or_else(|| wrong("no '/'"))?;
    let own: IpAddr = own.parse().map_err(|_| wrong("unable to parse IP"))?;
    let digits = bits.bytes().all(|byte| byte.is_ascii_digit());
    if bits.is_empty() || !digits || (bits.len() > 1 && bits.starts_with('0')) {
        return Err(wrong(&format!("bad bits after slash: {}", quoted(bits))));
    }
    let most = if own.is_ipv4() { 32 } else { 128 };
    let bits = bits
        .parse::<u8>()
        .ok()
        .filter(|bits| *bits <= most)
        .ok_or_else(|| wrong("prefix length out of range"))?;
    match own {
        IpAddr::V6(inner) if inner.to_ipv4_mapped().is_some() => {
            Err(Fault::error(format!("{WHY}: IPv4-mapped IPv6 address {} is not allowed", quoted(text))))
        }
        own => Ok((own, bits)),
    }
}

fn masked(own: IpAddr, bits: u8) -> IpAddr {
    match own {
        IpAddr::V4(own) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            IpAddr::from((u32::from(own) & mask).to_be_bytes())
        }
        IpAddr::V6(own) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            IpAddr::from((u128::from(own) & mask).to_be_bytes())
        }
    }
}

fn holds((own, bits): (IpAddr, u8), other: IpAddr) -> bool {
    own.is_ipv4() == other.is_ipv4() && masked(own, bits) == masked(other, bits)
}
