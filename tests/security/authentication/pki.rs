//! CAs and certificates of the tests.

use std::fs;
use std::path::Path;

use openssl::asn1::Asn1Time;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::{BasicConstraints, ExtendedKeyUsage};
use openssl::x509::{X509, X509Builder, X509NameBuilder};

use crate::support::{Client, Server};

/// The purpose of a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Authority,
    Client,
    Server,
    /// A client certificate that has expired.
    Expired,
}

/// A key and its certificate.
pub struct CertifiedKey {
    key: PKey<Private>,
    certificate: X509,
}

impl CertifiedKey {
    pub fn new(subject: &[(&str, &str)], purpose: Purpose, issuer: Option<&CertifiedKey>) -> CertifiedKey {
        let curve = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        let key = PKey::from_ec_key(EcKey::generate(&curve).unwrap()).unwrap();
        let mut name = X509NameBuilder::new().unwrap();
        for (field, value) in subject {
            name.append_entry_by_text(field, value).unwrap();
        }
        let name = name.build();
        let mut builder = X509Builder::new().unwrap();
        builder.set_version(2).unwrap();
        let mut serial = [0; 8];
        openssl::rand::rand_bytes(&mut serial).unwrap();
        let serial = BigNum::from_slice(&serial).unwrap().to_asn1_integer().unwrap();
        builder.set_serial_number(&serial).unwrap();
        builder.set_subject_name(&name).unwrap();
        builder.set_issuer_name(issuer.map_or(&name, |issuer| issuer.certificate.subject_name())).unwrap();
        let end = if purpose == Purpose::Expired { 1_000_000_100 } else { 4_000_000_000 };
        builder.set_not_before(&Asn1Time::from_unix(1_000_000_000).unwrap()).unwrap();
        builder.set_not_after(&Asn1Time::from_unix(end).unwrap()).unwrap();
        builder.set_pubkey(&key).unwrap();
        let extension = match purpose {
            Purpose::Authority => BasicConstraints::new().critical().ca().build(),
            Purpose::Client | Purpose::Expired => ExtendedKeyUsage::new().client_auth().build(),
            Purpose::Server => ExtendedKeyUsage::new().server_auth().build(),
        };
        builder.append_extension(extension.unwrap()).unwrap();
        builder.sign(issuer.map_or(&key, |issuer| &issuer.key), MessageDigest::sha256()).unwrap();
        CertifiedKey { key, certificate: builder.build() }
    }

    pub fn authority(name: &str) -> CertifiedKey {
        CertifiedKey::new(&[("CN", name)], Purpose::Authority, None)
    }

    pub fn pem(&self) -> Vec<u8> {
        self.certificate.to_pem().unwrap()
    }

    pub fn key_pem(&self) -> Vec<u8> {
        self.key.private_key_to_pem_pkcs8().unwrap()
    }

    /// A client that presents this certificate and its intermediates.
    pub fn client(&self, server: &Server, intermediates: &[&CertifiedKey]) -> Client {
        let mut chain = self.pem();
        intermediates.iter().for_each(|intermediate| chain.extend(intermediate.pem()));
        server.client_with_certificate(&chain, &self.key_pem())
    }

    /// Writes the certificate to a file and returns its path.
    pub fn write_pem(&self, path: &Path) -> String {
        fs::write(path, self.pem()).unwrap();
        path.to_str().unwrap().to_owned()
    }
}
