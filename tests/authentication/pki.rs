//! Authorities and certificates for the tests.

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

use super::support::{Client, Server};

/// What a certificate is good for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Authority,
    Client,
    Server,
    /// A client's, but its time is over.
    Expired,
}

/// Somebody with a key, and the certificate of it.
pub struct Party {
    key: PKey<Private>,
    certificate: X509,
}

impl Party {
    pub fn new(subject: &[(&str, &str)], purpose: Use, issuer: Option<&Party>) -> Party {
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
        let end = if purpose == Use::Expired { 1_000_000_100 } else { 4_000_000_000 };
        builder.set_not_before(&Asn1Time::from_unix(1_000_000_000).unwrap()).unwrap();
        builder.set_not_after(&Asn1Time::from_unix(end).unwrap()).unwrap();
        builder.set_pubkey(&key).unwrap();
        let extension = match purpose {
            Use::Authority => BasicConstraints::new().critical().ca().build(),
            Use::Client | Use::Expired => ExtendedKeyUsage::new().client_auth().build(),
            Use::Server => ExtendedKeyUsage::new().server_auth().build(),
        };
        builder.append_extension(extension.unwrap()).unwrap();
        builder.sign(issuer.map_or(&key, |issuer| &issuer.key), MessageDigest::sha256()).unwrap();
        Party { key, certificate: builder.build() }
    }

    pub fn authority(name: &str) -> Party {
        Party::new(&[("CN", name)], Use::Authority, None)
    }

    pub fn pem(&self) -> Vec<u8> {
        self.certificate.to_pem().unwrap()
    }

    pub fn key_pem(&self) -> Vec<u8> {
        self.key.private_key_to_pem_pkcs8().unwrap()
    }

    /// A client of the server that shows this certificate, and these behind it.
    pub fn at(&self, server: &Server, behind: &[&Party]) -> Client {
        let mut chain = self.pem();
        behind.iter().for_each(|party| chain.extend(party.pem()));
        server.by(&chain, &self.key_pem())
    }

    /// Writes the certificate to a file and answers its path.
    pub fn written(&self, path: &Path) -> String {
        fs::write(path, self.pem()).unwrap();
        path.to_str().unwrap().to_owned()
    }
}
