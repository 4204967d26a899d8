//! A certificate authority of its own for every cluster.

use std::fs;
use std::path::{Path, PathBuf};

use openssl::asn1::Asn1Time;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509, X509Builder, X509NameBuilder};

use crate::settings::TlsFiles;

/// The files of an authority, of a server and of a client.
pub struct Certificates {
    /// The certificate of the authority.
    pub authority: PathBuf,
    /// The certificate for 127.0.0.1 and its key.
    pub server: (PathBuf, PathBuf),
    /// The certificate of a client and its key.
    pub client: (PathBuf, PathBuf),
}

impl Certificates {
    /// Makes new ones in this folder.
    pub fn create(folder: &Path) -> Certificates {
        let (authority, key) = issue("authority", 1, None, |builder| {
            builder.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
        });
        let issuer = Some((&authority, &key));
        let server = issue("server", 2, issuer, |builder| {
            let context = builder.x509v3_context(None, None);
            let names = SubjectAlternativeName::new().ip("127.0.0.1").build(&context).unwrap();
            builder.append_extension(names).unwrap();
        });
        let client = issue("client", 3, issuer, |_| {});
        let write = |name: &str, (certificate, key): &(X509, PKey<Private>)| {
            let paths = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
            fs::write(&paths.0, certificate.to_pem().unwrap()).unwrap();
            fs::write(&paths.1, key.private_key_to_pem_pkcs8().unwrap()).unwrap();
            paths
        };
        Certificates {
            server: write("server", &server),
            client: write("client", &client),
            authority: write("authority", &(authority, key)).0,
        }
    }

    /// The files of the client.
    pub fn client_files(&self) -> TlsFiles {
        TlsFiles {
            authority: Some(self.authority.clone()),
            identity: Some(self.client.clone()),
            server_name: None,
        }
    }
}

type Issuer<'i> = Option<(&'i X509, &'i PKey<Private>)>;

fn issue(
    name: &str,
    serial: u32,
    issuer: Issuer<'_>,
    extend: impl FnOnce(&mut X509Builder),
) -> (X509, PKey<Private>) {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut subject = X509NameBuilder::new().unwrap();
    subject.append_entry_by_text("CN", name).unwrap();
    let subject = subject.build();
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap();
    builder.set_serial_number(&BigNum::from_u32(serial).unwrap().to_asn1_integer().unwrap()).unwrap();
    builder.set_subject_name(&subject).unwrap();
    builder.set_issuer_name(issuer.map_or(&*subject, |(authority, _)| authority.subject_name())).unwrap();
    builder.set_not_before(&Asn1Time::from_unix(1_000_000_000).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::from_unix(4_000_000_000).unwrap()).unwrap();
    builder.set_pubkey(&key).unwrap();
    extend(&mut builder);
    builder.sign(issuer.map_or(&key, |(_, key)| key), MessageDigest::sha256()).unwrap();
    (builder.build(), key)
}
