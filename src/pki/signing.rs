//! Signs certificate requests.

use std::time::Duration;

use openssl::asn1::Asn1Time;
use openssl::bn::{BigNum, MsbOption};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{Id, PKey, Private};
use openssl::x509::extension::{AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage};
use openssl::x509::{X509, X509Builder, X509Extension, X509Req};
use pilothouse_types::clock::Timestamp;

use super::{Identity, PkiError};
use crate::pki::signatures;

/// How far certificates are backdated, so that peers with a slow clock accept them.
const BACKDATE: Duration = Duration::from_secs(300);
/// Certificates with a shorter lifetime get it in full, in addition to the backdating.
const SHORT_LIVED: Duration = Duration::from_secs(8 * 3_600);
/// The object identifier of subject alternative names.
const SUBJECT_ALT_NAME_OID: [u8; 5] = [0x06, 0x03, 0x55, 0x1d, 0x11];

/// The subject of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The common name.
    pub name: String,
    /// The organisations.
    pub groups: Vec<String>,
    /// The number of requested DNS names, IP addresses, email addresses and URIs.
    pub hosts: usize,
    /// See `hosts`.
    pub addresses: usize,
    /// See `hosts`.
    pub emails: usize,
    /// See `hosts`.
    pub uris: usize,
}

/// A certificate request with a verified signature.
pub struct Request {
    request: X509Req,
    alternatives: Option<X509Extension>,
    /// The subject of the request.
    pub subject: Subject,
}

impl Request {
    /// Parses a request in PEM.
    pub fn from_pem(pem: &[u8]) -> Result<Request, String> {
        Request::parse(pem).map_err(|error| format!("unable to parse certificate request: {error}"))
    }

    fn parse(pem: &[u8]) -> Result<Request, String> {
        let describe = |error: ErrorStack| error.to_string();
        let request = X509Req::from_pem(pem).map_err(describe)?;
        let key = request.public_key().map_err(describe)?;
        if !signatures::request_is_signed_by(&request, &key) {
            return Err("the signature is not that of its key".to_owned());
        }
        let entry_texts = |nid| {
            let entries = request.subject_name().entries_by_nid(nid);
            entries.filter_map(|entry| entry.data().to_string().ok()).collect::<Vec<String>>()
        };
        let mut subject = Subject {
            name: entry_texts(Nid::COMMONNAME).pop().unwrap_or_default(),
            groups: entry_texts(Nid::ORGANIZATIONNAME),
            ..Subject::default()
        };
        let extensions = request.extensions().ok().into_iter().flatten();
        let alternatives = extensions.into_iter().find(is_subject_alt_name);
        if let Some(names) = &alternatives {
            count_alternatives(names, &mut subject).map_err(describe)?;
        }
        Ok(Request { request, alternatives, subject })
    }
}

fn is_subject_alt_name(extension: &X509Extension) -> bool {
    let der = extension.to_der().unwrap_or_default();
    // A sequence, its length in one byte or more, then the object identifier.
    let length = der.get(1).copied().unwrap_or_default();
    let header_length = if length < 0x80 { 2 } else { 2 + usize::from(length & 0x7f) };
    der.get(header_length..).is_some_and(|body| body.starts_with(&SUBJECT_ALT_NAME_OID))
}

/// Counts the alternative names, which only a certificate can list.
fn count_alternatives(alternatives: &X509Extension, subject: &mut Subject) -> Result<(), ErrorStack> {
    let mut draft = X509::builder()?;
    draft.append_extension2(alternatives)?;
    for name in draft.build().subject_alt_names().iter().flatten() {
        subject.hosts += usize::from(name.dnsname().is_some());
        subject.addresses += usize::from(name.ipaddress().is_some());
        subject.emails += usize::from(name.email().is_some());
        subject.uris += usize::from(name.uri().is_some());
    }
    Ok(())
}

/// A CA that signs requests.
pub struct Signer {
    certificate: X509,
    key: PKey<Private>,
}

impl PartialEq for Signer {
    fn eq(&self, other: &Signer) -> bool {
        self.certificate == other.certificate && self.key.public_eq(&other.key)
    }
}

impl Signer {
    /// A CA from its certificate and key.
    pub fn new(identity: &Identity) -> Result<Signer, PkiError> {
        let certificate = X509::from_pem(&identity.certificates_pem)?;
        let key = PKey::private_key_from_pem(&identity.key_pem)?;
        Ok(Signer { certificate, key })
    }

    /// Signs a request: the certificate has its subject and alternative names and the granted usages, and nothing else from the
    /// request.
    pub fn sign(
        &self,
        request: &Request,
        usages: &[&str],
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Vec<u8>, String> {
        let unknown: Vec<&&str> = usages.iter().filter(|usage| !is_known(usage)).collect();
        if !unknown.is_empty() {
            return Err(format!("unrecognized usage values: {unknown:?}"));
        }
        let current_time = time(now).map_err(|error| error.to_string())?;
        if self.certificate.not_after() <= current_time {
            return Err(format!("the signer has expired: NotAfter={}", self.certificate.not_after()));
        }
        self.issue(request, usages, ttl, now).map_err(|error| error.to_string())
    }

    fn issue(
        &self,
        request: &Request,
        usages: &[&str],
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Vec<u8>, ErrorStack> {
        let mut draft = X509::builder()?;
        draft.set_version(2)?;
        let mut serial = BigNum::new()?;
        serial.rand(127, MsbOption::MAYBE_ZERO, false)?;
        draft.set_serial_number(&*serial.to_asn1_integer()?)?;
        draft.set_subject_name(request.request.subject_name())?;
        draft.set_issuer_name(self.certificate.subject_name())?;
        draft.set_pubkey(&*request.request.public_key()?)?;
        let lifetime = if ttl < SHORT_LIVED { ttl } else { ttl.saturating_sub(BACKDATE) };
        let (not_before, not_after) = (time(now.minus(BACKDATE))?, time(now.plus(lifetime))?);
        draft.set_not_before(&not_before)?;
        // No certificate outlives its CA.
        if self.certificate.not_after() < not_after {
            draft.set_not_after(self.certificate.not_after())?;
        } else {
            draft.set_not_after(&not_after)?;
        }
        draft.append_extension(BasicConstraints::new().critical().build()?)?;
        append_usages(&mut draft, usages)?;
        let authority_id = AuthorityKeyIdentifier::new()
            .keyid(true)
            .build(&draft.x509v3_context(Some(&self.certificate), None));
        // A CA without a key identifier has none to refer to.
        if let Ok(authority_id) = authority_id {
            draft.append_extension(authority_id)?;
        }
        if let Some(alternatives) = &request.alternatives {
            draft.append_extension2(alternatives)?;
        }
        let digest = match self.key.id() {
            Id::ED25519 | Id::ED448 => MessageDigest::null(),
            _ => MessageDigest::sha256(),
        };
        draft.sign(&self.key, digest)?;
        draft.build().to_pem()
    }
}

fn time(timestamp: Timestamp) -> Result<Asn1Time, ErrorStack> {
    Asn1Time::from_unix(timestamp.unix_seconds())
}

/// The extended key usages in certificate order, with their object identifiers.
const EXTENDED_KEY_USAGES: [(&str, &str); 13] = [
    ("any", "2.5.29.37.0"),
    ("server auth", "1.3.6.1.5.5.7.3.1"),
    ("client auth", "1.3.6.1.5.5.7.3.2"),
    ("code signing", "1.3.6.1.5.5.7.3.3"),
    ("email protection", "1.3.6.1.5.5.7.3.4"),
    ("s/mime", "1.3.6.1.5.5.7.3.4"),
    ("ipsec end system", "1.3.6.1.5.5.7.3.5"),
    ("ipsec tunnel", "1.3.6.1.5.5.7.3.6"),
    ("ipsec user", "1.3.6.1.5.5.7.3.7"),
    ("timestamping", "1.3.6.1.5.5.7.3.8"),
    ("ocsp signing", "1.3.6.1.5.5.7.3.9"),
    ("microsoft sgc", "1.3.6.1.4.1.311.10.3.3"),
    ("netscape sgc", "2.16.840.1.113730.4.1"),
];

/// Adds a basic key usage; false for other usages.
fn add_key_usage(key_usage: &mut KeyUsage, usage: &str) -> bool {
    match usage {
        "signing" | "digital signature" => key_usage.digital_signature(),
        "content commitment" => key_usage.non_repudiation(),
        "key encipherment" => key_usage.key_encipherment(),
        "key agreement" => key_usage.key_agreement(),
        "data encipherment" => key_usage.data_encipherment(),
        "cert sign" => key_usage.key_cert_sign(),
        "crl sign" => key_usage.crl_sign(),
        "encipher only" => key_usage.encipher_only(),
        "decipher only" => key_usage.decipher_only(),
        _ => return false,
    };
    true
}

fn is_known(usage: &str) -> bool {
    add_key_usage(&mut KeyUsage::new(), usage) || EXTENDED_KEY_USAGES.iter().any(|(name, _)| *name == usage)
}

fn append_usages(draft: &mut X509Builder, usages: &[&str]) -> Result<(), ErrorStack> {
    let mut key_usage = KeyUsage::new();
    // `count_alternatives` adds all of them, not only the first.
    let added = usages.iter().filter(|usage| add_key_usage(&mut key_usage, usage)).count();
    if added > 0 {
        draft.append_extension(key_usage.critical().build()?)?;
    }
    let granted = EXTENDED_KEY_USAGES.iter().filter(|(name, _)| usages.contains(name));
    let mut oids: Vec<&str> = granted.map(|(_, oid)| *oid).collect();
    // Two names may mean the same usage.
    oids.dedup();
    if !oids.is_empty() {
        let mut extended = ExtendedKeyUsage::new();
        for oid in oids {
            extended.other(oid);
        }
        draft.append_extension(extended.build()?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use openssl::stack::Stack;
    use openssl::x509::extension::SubjectAlternativeName;
    use openssl::x509::{X509NameBuilder, X509ReqBuilder};

    use super::super::authority::{Authority, new_key};
    use super::*;

    fn request(name: &str, group: &str, host: Option<&str>) -> Vec<u8> {
        let key = new_key().unwrap();
        let mut subject = X509NameBuilder::new().unwrap();
        subject.append_entry_by_nid(Nid::ORGANIZATIONNAME, group).unwrap();
        subject.append_entry_by_nid(Nid::COMMONNAME, name).unwrap();
        let mut builder = X509ReqBuilder::new().unwrap();
        builder.set_subject_name(&subject.build()).unwrap();
        builder.set_pubkey(&key).unwrap();
        if let Some(host) = host {
            let mut extensions = Stack::new().unwrap();
            let names =
                SubjectAlternativeName::new().dns(host).ip("10.0.0.1").build(&builder.x509v3_context(None));
            extensions.push(names.unwrap()).unwrap();
            builder.add_extensions(&extensions).unwrap();
        }
        builder.sign(&key, MessageDigest::sha256()).unwrap();
        builder.build().to_pem().unwrap()
    }

    #[test]
    fn signed_certificate_has_requested_subject_and_granted_usages() {
        let now = Timestamp(1_700_000_000_000_000);
        let authority = Authority::create(now).unwrap().identity().unwrap();
        let signer = Signer::new(&authority).unwrap();
        let request_with_names =
            Request::from_pem(&request("system:node:n", "system:nodes", Some("n.example"))).unwrap();
        let expected = Subject {
            name: "system:node:n".to_owned(),
            groups: vec!["system:nodes".to_owned()],
            hosts: 1,
            addresses: 1,
            ..Subject::default()
        };
        assert_eq!(request_with_names.subject, expected);
        let pem = signer
            .sign(&request_with_names, &["digital signature", "server auth"], Duration::from_secs(600), now)
            .unwrap();
        let certificate = X509::from_pem(&pem).unwrap();
        let trusted = X509::from_pem(&authority.certificates_pem).unwrap();
        assert!(signatures::certificate_is_signed_by(&certificate, &trusted.public_key().unwrap()));
        assert_eq!(certificate.subject_alt_names().unwrap().len(), 2);
        assert!(certificate.not_after() == time(now.plus(Duration::from_secs(600))).unwrap());
        let text = String::from_utf8(certificate.to_text().unwrap()).unwrap();
        assert!(text.contains("TLS Web Server Authentication") && text.contains("CA:FALSE"), "{text}");
        let unknown = signer
            .sign(&request_with_names, &["client auth", "x"], Duration::from_secs(600), now)
            .unwrap_err();
        assert_eq!(unknown, "unrecognized usage values: [\"x\"]");
        let mail = ["s/mime", "email protection", "any"];
        let mail = signer.sign(&request_with_names, &mail, Duration::from_secs(600), now).unwrap();
        let text = String::from_utf8(X509::from_pem(&mail).unwrap().to_text().unwrap()).unwrap();
        assert!(text.contains("Any Extended Key Usage, E-mail Protection\n"), "{text}");
        let late = now.plus(Duration::from_secs(u64::from(u32::MAX)));
        assert!(
            signer
                .sign(&request_with_names, &["client auth"], Duration::from_secs(600), late)
                .unwrap_err()
                .contains("expired")
        );
        let unlimited = signer
            .sign(&request_with_names, &["client auth"], Duration::from_secs(u32::MAX.into()), now)
            .unwrap();
        assert!(X509::from_pem(&unlimited).unwrap().not_after() == trusted.not_after());
    }

    #[test]
    fn malformed_certificate_request_is_refused() {
        assert!(Request::from_pem(b"x").is_err());
        let without_names = Request::from_pem(&request("n", "g", None)).unwrap();
        assert_eq!((without_names.subject.hosts, without_names.subject.addresses), (0, 0));
    }
}
