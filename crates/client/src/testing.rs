//! Self-signed certificates for tests.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected fails")]

use openssl::asn1::Asn1Time;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509, X509NameBuilder};

/// A self-signed certificate for this name or address, and its key.
pub fn self_signed(name: &str) -> (X509, PKey<Private>) {
    with_names(name, &[name])
}

/// A self-signed certificate with this Common Name and these alternative names, and its key.
pub fn with_names(common_name: &str, names: &[&str]) -> (X509, PKey<Private>) {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut subject = X509NameBuilder::new().unwrap();
    subject.append_entry_by_text("CN", common_name).unwrap();
    let subject = subject.build();
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap();
    builder.set_serial_number(&BigNum::from_u32(1).unwrap().to_asn1_integer().unwrap()).unwrap();
    builder.set_subject_name(&subject).unwrap();
    builder.set_issuer_name(&subject).unwrap();
    builder.set_not_before(&Asn1Time::from_unix(1_000_000_000).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::from_unix(4_000_000_000).unwrap()).unwrap();
    builder.set_pubkey(&key).unwrap();
    builder.append_extension(BasicConstraints::new().ca().build().unwrap()).unwrap();
    let mut alternatives = SubjectAlternativeName::new();
    for name in names {
        match name.parse::<std::net::IpAddr>() {
            Ok(_) => alternatives.ip(name),
            Err(_) => alternatives.dns(name),
        };
    }
    if !names.is_empty() {
        let alternatives = alternatives.build(&builder.x509v3_context(None, None)).unwrap();
        builder.append_extension(alternatives).unwrap();
    }
    builder.sign(&key, MessageDigest::sha256()).unwrap();
    (builder.build(), key)
}
