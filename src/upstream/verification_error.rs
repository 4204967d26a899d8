//! What is wrong with the certificate of another server, in the reference's words.

use std::fmt::Display;
use std::net::IpAddr;

use openssl::nid::Nid;
use openssl::ssl::SslRef;
use openssl::x509::{GeneralNameRef, X509Ref};

/// Names of a certificate that an error lists; the reference's.
const NAMES_TOLD: usize = 100;

/// Why the handshake with the server of this name failed: why its certificate is not valid, or else `error`.
pub fn unproven(ssl: &SslRef, name: &str, error: &dyn Display) -> String {
    let verified = ssl.verify_result();
    let why = match verified.as_raw() {
        0 => return format!("tls: {error}"),
        // No issuer, or an untrusted one.
        2 | 18..=21 => "certificate signed by unknown authority".to_owned(),
        9 | 10 => "certificate has expired or is not yet valid".to_owned(),
        62..=64 => match ssl.peer_cert_chain().and_then(|shown| shown.get(0)) {
            Some(certificate) => other_names(certificate, name),
            None => format!("certificate is not valid for any names, but wanted to match {name}"),
        },
        _ => verified.error_string().to_owned(),
    };
    format!("tls: failed to verify certificate: x509: {why}")
}

/// How a certificate that does not contain this name is refused.
fn other_names(certificate: &X509Ref, name: &str) -> String {
    let alternatives = certificate.subject_alt_names();
    if alternatives.is_none() && common_names(certificate).last().is_some_and(|one| matches(&one, name)) {
        return "certificate relies on legacy Common Name field, use SANs instead".to_owned();
    }
    let is_address = name.parse::<IpAddr>().is_ok();
    let of_kind = |one: &GeneralNameRef| match is_address {
        true => one.ipaddress().and_then(address).map(|address| address.to_string()),
        false => one.dnsname().map(str::to_owned),
    };
    let told: Vec<String> = alternatives.iter().flatten().filter_map(of_kind).collect();
    match told.len() {
        0 if is_address => {
            format!("cannot validate certificate for {name} because it doesn't contain any IP SANs")
        }
        0 => format!("certificate is not valid for any names, but wanted to match {name}"),
        many if many >= NAMES_TOLD => {
            let kind = if is_address { "IP SANs" } else { "names" };
            format!("certificate is valid for {many} {kind}, but none matched {name}")
        }
        _ => format!("certificate is valid for {}, not {name}", told.join(", ")),
    }
}

fn common_names(certificate: &X509Ref) -> impl Iterator<Item = String> {
    let entries = certificate.subject_name().entries_by_nid(Nid::COMMONNAME);
    entries.filter_map(|entry| entry.data().to_string().ok())
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Whether a name with perhaps a wildcard as its first label is the name of this host.
fn matches(pattern: &str, host: &str) -> bool {
    let (pattern, host) = (pattern.to_ascii_lowercase(), host.to_ascii_lowercase());
    let (mut pattern, mut host) = (pattern.split('.'), host.trim_end_matches('.').split('.'));
    match (pattern.next(), host.next()) {
        (Some(wanted), Some(first)) if !wanted.is_empty() && !first.is_empty() => {
            (wanted == "*" || wanted == first) && pattern.eq(host)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use openssl::ssl::{HandshakeError, SslAcceptor, SslMethod};

    use super::super::client_tls::{TrustedCas, client, context};
    use super::*;
    use crate::pki::testing::with_names;

    /// What comes of a connection to `host`, which shows a certificate with these names that is trusted.
    fn shaken(host: &str, common_name: &str, names: &[&str]) -> Result<(), String> {
        let (certificate, key) = with_names(common_name, names);
        let (near, far) = UnixStream::pair().unwrap();
        let trusted = TrustedCas::Authorities(vec![certificate.clone()]);
        let server = std::thread::spawn(move || {
            let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls()).unwrap();
            acceptor.set_certificate(&certificate).unwrap();
            acceptor.set_private_key(&key).unwrap();
            let _hung_up = acceptor.build().accept(far);
        });
        let context = context(trusted, None).unwrap();
        let shaken = match client(&context, host, true).unwrap().connect(near) {
            Ok(_) => Ok(()),
            Err(HandshakeError::Failure(broken)) => Err(unproven(broken.ssl(), host, broken.error())),
            Err(other) => panic!("{other}"),
        };
        server.join().unwrap();
        shaken.map_err(|why| {
            why.strip_prefix("tls: failed to verify certificate: x509: ").unwrap_or(&why).to_owned()
        })
    }

    #[test]
    fn a_name_that_is_no_alternative_name_counts_for_nothing() {
        let legacy = "certificate relies on legacy Common Name field, use SANs instead";
        let many: Vec<String> = (0..NAMES_TOLD).map(|number| format!("h{number}.test")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for (host, common_name, names, wanted) in [
            ("a.test", "b.test", &["a.test"][..], Ok(())),
            ("x.a.test", "b.test", &["*.a.test"], Ok(())),
            ("10.0.0.1", "b.test", &["10.0.0.1"], Ok(())),
            ("fd00::1", "b.test", &["a.test", "fd00::1"], Ok(())),
            ("a.test", "A.test", &[], Err(legacy)),
            ("a.test", "*.test", &[], Err(legacy)),
            ("10.0.0.1", "10.0.0.1", &[], Err(legacy)),
            (
                "a.test",
                "b.test",
                &[],
                Err("certificate is not valid for any names, but wanted to match a.test"),
            ),
            ("a.test", "a.test", &["b.test", "10.0.0.1"], Err("certificate is valid for b.test, not a.test")),
            (
                "a.test",
                "x",
                &["b.test", "c.test"],
                Err("certificate is valid for b.test, c.test, not a.test"),
            ),
            ("ab.test", "x", &["a*.test"], Err("certificate is valid for a*.test, not ab.test")),
            ("a.test", "x", &many, Err("certificate is valid for 100 names, but none matched a.test")),
            (
                "10.0.0.1",
                "10.0.0.1",
                &["10.0.0.2", "fd00::1"],
                Err("certificate is valid for 10.0.0.2, fd00::1, not 10.0.0.1"),
            ),
            (
                "10.0.0.1",
                "x",
                &["a.test"],
                Err("cannot validate certificate for 10.0.0.1 because it doesn't contain any IP SANs"),
            ),
        ] {
            let wanted = wanted.map_err(str::to_owned);
            assert_eq!(shaken(host, common_name, names), wanted, "{host} {common_name} {names:?}");
        }
    }
}
