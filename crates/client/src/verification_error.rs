//! Errors of certificate verification, with the reference's texts.

use std::fmt::Display;
use std::net::IpAddr;

use openssl::nid::Nid;
use openssl::ssl::SslRef;
use openssl::x509::{GeneralNameRef, X509Ref};

/// Names of a certificate that an error lists; the reference's.
const MAX_NAMES: usize = 100;

/// Why the handshake with the server of this name failed: why its certificate is not valid, or else `error`.
pub fn verification_error(ssl: &SslRef, name: &str, error: &dyn Display) -> String {
    let result = ssl.verify_result();
    let reason = match result.as_raw() {
        0 => return format!("tls: {error}"),
        // No issuer, or an untrusted one.
        2 | 18..=21 => "certificate signed by unknown authority".to_owned(),
        9 | 10 => "certificate has expired or is not yet valid".to_owned(),
        62..=64 => match ssl.peer_cert_chain().and_then(|chain| chain.get(0)) {
            Some(certificate) => name_mismatch(certificate, name),
            None => format!("certificate is not valid for any names, but wanted to match {name}"),
        },
        _ => result.error_string().to_owned(),
    };
    format!("tls: failed to verify certificate: x509: {reason}")
}

/// How a certificate that does not contain this name is refused.
fn name_mismatch(certificate: &X509Ref, name: &str) -> String {
    let alternatives = certificate.subject_alt_names();
    if alternatives.is_none()
        && common_names(certificate).last().is_some_and(|common_name| matches(&common_name, name))
    {
        return "certificate relies on legacy Common Name field, use SANs instead".to_owned();
    }
    let is_address = name.parse::<IpAddr>().is_ok();
    let name_of_kind = |general_name: &GeneralNameRef| match is_address {
        true => general_name.ipaddress().and_then(address).map(|address| address.to_string()),
        false => general_name.dnsname().map(str::to_owned),
    };
    let names: Vec<String> = alternatives.iter().flatten().filter_map(name_of_kind).collect();
    match names.len() {
        0 if is_address => {
            format!("cannot validate certificate for {name} because it doesn't contain any IP SANs")
        }
        0 => format!("certificate is not valid for any names, but wanted to match {name}"),
        count if count >= MAX_NAMES => {
            let kind = if is_address { "IP SANs" } else { "names" };
            format!("certificate is valid for {count} {kind}, but none matched {name}")
        }
        _ => format!("certificate is valid for {}, not {name}", names.join(", ")),
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
        (Some(pattern_label), Some(host_label)) if !pattern_label.is_empty() && !host_label.is_empty() => {
            (pattern_label == "*" || pattern_label == host_label) && pattern.eq(host)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use openssl::ssl::{HandshakeError, SslAcceptor, SslMethod};

    use super::*;
    use crate::client_tls::{TrustedCas, client, context};
    use crate::testing::with_names;

    /// What comes of a connection to `host`, which shows a certificate with these names that is trusted.
    fn connect_to(host: &str, common_name: &str, names: &[&str]) -> Result<(), String> {
        let (certificate, key) = with_names(common_name, names);
        let (near, far) = UnixStream::pair().unwrap();
        let trusted = TrustedCas::Authorities(vec![certificate.clone()]);
        let server = std::thread::spawn(move || {
            let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls()).unwrap();
            acceptor.set_certificate(&certificate).unwrap();
            acceptor.set_private_key(&key).unwrap();
            let _closed = acceptor.build().accept(far);
        });
        let context = context(trusted, None).unwrap();
        let result = match client(&context, host, true).unwrap().connect(near) {
            Ok(_) => Ok(()),
            Err(HandshakeError::Failure(failure)) => {
                Err(verification_error(failure.ssl(), host, failure.error()))
            }
            Err(other) => panic!("{other}"),
        };
        server.join().unwrap();
        result.map_err(|error| {
            error.strip_prefix("tls: failed to verify certificate: x509: ").unwrap_or(&error).to_owned()
        })
    }

    #[test]
    fn only_subject_alternative_names_are_verified() {
        let legacy = "certificate relies on legacy Common Name field, use SANs instead";
        let many: Vec<String> = (0..MAX_NAMES).map(|number| format!("h{number}.test")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for (host, common_name, names, expected) in [
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
            let expected = expected.map_err(str::to_owned);
            assert_eq!(connect_to(host, common_name, names), expected, "{host} {common_name} {names:?}");
        }
    }
}
