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
use crate::signatures;

/// How far certificates are backdated, so that peers with a slow clock accept them.
const BACKDATE: Duration = Duration::from_secs(300);
/// Shorter certificates get their full lifetime in addition to the backdating.
const SHORT: Duration = Duration::from_secs(8 * 3_600);
/// The object identifier of subject alternative names.
const ALTERNATIVES: [u8; 5] = [0x06, 0x03, 0x55, 0x1d, 0x11];

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
    pub mailboxes: usize,
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
    pub fn read(pem: &[u8]) -> Result<Request, String> {
        Request::parse(pem).map_err(|error| format!("unable to parse certificate request: {error}"))
    }

    fn parse(pem: &[u8]) -> Result<Request, String> {
        let broken = |error: ErrorStack| error.to_string();
        let request = X509Req::from_pem(pem).map_err(broken)?;
        let key = request.public_key().map_err(broken)?;
        if !signatures::request_is_by(&request, &key) {
            return Err("the signature is not that of its key".to_owned());
        }
        let texts = |nid| {
            let entries = request.subject_name().entries_by_nid(nid);
            entries.filter_map(|entry| entry.data().to_string().ok()).collect::<Vec<String>>()
        };
        let mut subject = Subject {
            name: texts(Nid::COMMONNAME).pop().unwrap_or_default(),
            groups: texts(Nid::ORGANIZATIONNAME),
            ..Subject::default()
        };
        let wanted = request.extensions().ok().into_iter().flatten();
        let alternatives = wanted.into_iter().find(is_alternatives);
        if let Some(wanted) = &alternatives {
            count(wanted, &mut subject).map_err(broken)?;
        }
        Ok(Request { request, alternatives, subject })
    }
}

fn is_alternatives(extension: &X509Extension) -> bool {
    let der = extension.to_der().unwrap_or_default();
    // A sequence, its length in one byte or more, then the object identifier.
    let length = der.get(1).copied().unwrap_or_default();
    let frame = if length < 0x80 { 2 } else { 2 + usize::from(length & 0x7f) };
    der.get(frame..).is_some_and(|body| body.starts_with(&ALTERNATIVES))
}

/// Counts the alternative names, which only a certificate can list.
fn count(alternatives: &X509Extension, subject: &mut Subject) -> Result<(), ErrorStack> {
    let mut draft = X509::builder()?;
    draft.append_extension2(alternatives)?;
    for name in draft.build().subject_alt_names().iter().flatten() {
        subject.hosts += usize::from(name.dnsname().is_some());
        subject.addresses += usize::from(name.ipaddress().is_some());
        subject.mailboxes += usize::from(name.email().is_some());
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
        let today = time(now).map_err(|error| error.to_string())?;
        if self.certificate.not_after() <= today {
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
        let life = if ttl < SHORT { ttl } else { ttl.saturating_sub(BACKDATE) };
        let (from, until) = (time(now.minus(BACKDATE))?, time(now.plus(life))?);
        draft.set_not_before(&from)?;
        // No certificate outlives its CA.
        if self.certificate.not_after() < until {
            draft.set_not_after(self.certificate.not_after())?;
        } else {
            draft.set_not_after(&until)?;
        }
        draft.append_extension(BasicConstraints::new().critical().build()?)?;
        append_usages(&mut draft, usages)?;
        let by = AuthorityKeyIdentifier::new()
            .keyid(true)
            .build(&draft.x509v3_context(Some(&self.certificate), None));
        // A CA without a key identifier gives none.
        if let Ok(by) = by {
            draft.append_extension(by)?;
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

fn time(at: Timestamp) -> Result<Asn1Time, ErrorStack> {
    Asn1Time::from_unix(at.unix_seconds())
}

/// The extended key usages in certificate order, with their object identifiers.
const EXTENDED: [(&str, &str); 13] = [
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

/// Adds a basic key usage; false if it is none.
fn plain_usage(plain: &mut KeyUsage, usage: &str) -> bool {
    match usage {
        "signing" | "digital signature" => plain.digital_signature(),
        "content commitment" => plain.non_repudiation(),
        "key encipherment" => plain.key_encipherment(),
        "key agreement" => plain.key_agreement(),
        "data encipherment" => plain.data_encipherment(),
        "cert sign" => plain.key_cert_sign(),
        "crl sign" => plain.crl_sign(),
        "encipher only" => plain.encipher_only(),
        "decipher only" => plain.decipher_only(),
        _ => return false,
    };
    true
}

fn is_known(usage: &str) -> bool {
    plain_usage(&mut KeyUsage::new(), usage) || EXTENDED.iter().any(|(name, _)| *name == usage)
}

fn append_usages(draft: &mut X509Builder, usages: &[&str]) -> Result<(), ErrorStack> {
    let mut plain = KeyUsage::new();
    // All are added, not only the first.
    let added = usages.iter().filter(|usage| plain_usage(&mut plain, usage)).count();
    if added > 0 {
        draft.append_extension(plain.critical().build()?)?;
    }
    let wanted = EXTENDED.iter().filter(|(name, _)| usages.contains(name));
    let mut numbers: Vec<&str> = wanted.map(|(_, number)| *number).collect();
    // Two names may mean the same usage.
    numbers.dedup();
    if !numbers.is_empty() {
        let mut extended = ExtendedKeyUsage::new();
        for number in numbers {
            extended.other(number);
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
            let mut all = Stack::new().unwrap();
            let names =
                SubjectAlternativeName::new().dns(host).ip("10.0.0.1").build(&builder.x509v3_context(None));
            all.push(names.unwrap()).unwrap();
            builder.add_extensions(&all).unwrap();
        }
        builder.sign(&key, MessageDigest::sha256()).unwrap();
        builder.build().to_pem().unwrap()
    }

    #[test]
    fn a_certificate_says_what_was_asked_and_granted() {
        let now = Timestamp(1_700_000_000_000_000);
        let authority = Authority::create(now).unwrap().identity().unwrap();
        let signer = Signer::new(&authority).unwrap();
        let asked = Request::read(&request("system:node:n", "system:nodes", Some("n.example"))).unwrap();
        let wanted = Subject {
            name: "system:node:n".to_owned(),
            groups: vec!["system:nodes".to_owned()],
            hosts: 1,
            addresses: 1,
            ..Subject::default()
        };
        assert_eq!(asked.subject, wanted);
        let pem = signer
            .sign(&asked, &["digital signature", "server auth"], Duration::from_secs(600), now)
            .unwrap();
        let made = X509::from_pem(&pem).unwrap();
        let trusted = X509::from_pem(&authority.certificates_pem).unwrap();
        assert!(signatures::certificate_is_by(&made, &trusted.public_key().unwrap()));
        assert_eq!(made.subject_alt_names().unwrap().len(), 2);
        assert!(made.not_after() == time(now.plus(Duration::from_secs(600))).unwrap());
        let text = String::from_utf8(made.to_text().unwrap()).unwrap();
        assert!(text.contains("TLS Web Server Authentication") && text.contains("CA:FALSE"), "{text}");
        let unknown = signer.sign(&asked, &["client auth", "x"], Duration::from_secs(600), now).unwrap_err();
        assert_eq!(unknown, "unrecognized usage values: [\"x\"]");
        let mail = ["s/mime", "email protection", "any"];
        let mail = signer.sign(&asked, &mail, Duration::from_secs(600), now).unwrap();
        let text = String::from_utf8(X509::from_pem(&mail).unwrap().to_text().unwrap()).unwrap();
        assert!(text.contains("Any Extended Key Usage, E-mail Protection\n"), "{text}");
        let late = now.plus(Duration::from_secs(u64::from(u32::MAX)));
        assert!(
            signer
                .sign(&asked, &["client auth"], Duration::from_secs(600), late)
                .unwrap_err()
                .contains("expired")
        );
        let ever = signer.sign(&asked, &["client auth"], Duration::from_secs(u32::MAX.into()), now).unwrap();
        assert!(X509::from_pem(&ever).unwrap().not_after() == trusted.not_after());
    }

    #[test]
    fn nonsense_is_no_request() {
        assert!(Request::read(b"x").is_err());
        let plain = Request::read(&request("n", "g", None)).unwrap();
        assert_eq!((plain.subject.hosts, plain.subject.addresses), (0, 0));
    }
}
