//! The server's own CA. Its keys are ECDSA on P-256: generated in well under a millisecond. That of the administrator's kubeconfig is
//! another matter: see `rsa_keys.rs`.

use std::net::IpAddr;
use std::time::Duration;

use openssl::asn1::Asn1Time;
use openssl::bn::{BigNum, MsbOption};
use openssl::ec::{EcGroup, EcKey};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::{
    AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, SubjectAlternativeName,
    SubjectKeyIdentifier,
};
use openssl::x509::{X509, X509Builder, X509Name, X509NameRef};
use pilothouse_apimachinery::well_known::SERVER_NAME;
use pilothouse_types::clock::Timestamp;

use super::Identity;
use super::host::Names;
use super::signatures;
use crate::limits;

pub(super) const AUTHORITY_NAME: &str = "pilothouse-ca";

/// The purpose of a certificate.
pub(super) enum Purpose<'a> {
    /// A server with these names.
    Serving(&'a Names),
    /// A client with this user name and group.
    Client { user: &'a str, group: &'a str },
}

/// A CA with its key.
pub(super) struct Authority {
    certificate: X509,
    key: PKey<Private>,
}

impl Authority {
    pub(super) fn new(certificate: X509, key: PKey<Private>) -> Authority {
        Authority { certificate, key }
    }

    /// Creates a new CA.
    pub(super) fn create(now: Timestamp) -> Result<Authority, ErrorStack> {
        let key = new_key()?;
        let subject = name(AUTHORITY_NAME, None)?;
        let mut draft = draft(&subject, &subject, &key, now, limits::CA_LIFETIME)?;
        draft.append_extension(BasicConstraints::new().critical().ca().build()?)?;
        let usage = KeyUsage::new().critical().digital_signature().key_cert_sign().crl_sign().build()?;
        draft.append_extension(usage)?;
        let subject_id = SubjectKeyIdentifier::new().build(&draft.x509v3_context(None, None))?;
        draft.append_extension(subject_id)?;
        draft.sign(&key, MessageDigest::sha256())?;
        Ok(Authority { certificate: draft.build(), key })
    }

    /// The CA's certificate and key.
    pub(super) fn identity(&self) -> Result<Identity, ErrorStack> {
        let key_pem = self.key.private_key_to_pem_pkcs8()?;
        Ok(Identity { certificates_pem: self.certificate_pem()?, key_pem })
    }

    pub(super) fn certificate(&self) -> X509 {
        self.certificate.clone()
    }

    pub(super) fn certificate_pem(&self) -> Result<Vec<u8>, ErrorStack> {
        self.certificate.to_pem()
    }

    /// Issues a certificate for a new key.
    pub(super) fn issue(&self, purpose: &Purpose<'_>, now: Timestamp) -> Result<Identity, ErrorStack> {
        self.issue_for(&new_key()?, purpose, now)
    }

    /// Issues a certificate for a key.
    pub(super) fn issue_for(
        &self,
        key: &PKey<Private>,
        purpose: &Purpose<'_>,
        now: Timestamp,
    ) -> Result<Identity, ErrorStack> {
        let subject = match purpose {
            Purpose::Serving(_) => name(SERVER_NAME, None)?,
            Purpose::Client { user, group } => name(user, Some(group))?,
        };
        let issuer = self.certificate.subject_name();
        let mut draft = draft(&subject, issuer, key, now, limits::CERTIFICATE_LIFETIME)?;
        draft.append_extension(BasicConstraints::new().critical().build()?)?;
        draft.append_extension(KeyUsage::new().critical().digital_signature().key_encipherment().build()?)?;
        let mut usage = ExtendedKeyUsage::new();
        match purpose {
            Purpose::Serving(_) => usage.server_auth(),
            Purpose::Client { .. } => usage.client_auth(),
        };
        draft.append_extension(usage.build()?)?;
        let authority_id = AuthorityKeyIdentifier::new()
            .keyid(true)
            .build(&draft.x509v3_context(Some(&self.certificate), None));
        // A CA without a key identifier has none to refer to.
        if let Ok(authority_id) = authority_id {
            draft.append_extension(authority_id)?;
        }
        if let Purpose::Serving(names) = purpose {
            let mut alternatives = SubjectAlternativeName::new();
            for host in &names.hosts {
                alternatives.dns(host);
            }
            for address in &names.addresses {
                alternatives.ip(&address.to_string());
            }
            let alternatives = alternatives.build(&draft.x509v3_context(Some(&self.certificate), None))?;
            draft.append_extension(alternatives)?;
        }
        draft.sign(&self.key, MessageDigest::sha256())?;
        let certificates_pem = draft.build().to_pem()?;
        Ok(Identity { certificates_pem, key_pem: key_pem(key)? })
    }

    /// Whether the issuer name is that of this CA, or of an earlier one of this server.
    pub(super) fn has_issuer_name(&self, certificate: &X509) -> bool {
        let (issuer, subject) = (certificate.issuer_name(), self.certificate.subject_name());
        issuer.try_cmp(subject).is_ok_and(|order| order.is_eq())
    }

    /// Whether this CA issued the certificate.
    pub(super) fn has_issued(&self, certificate: &X509) -> bool {
        self.certificate.public_key().is_ok_and(|key| signatures::certificate_is_signed_by(certificate, &key))
    }
}

/// A key as a file has it. RSA keys have the form of their own that kubeadm writes: some clients read no other.
fn key_pem(key: &PKey<Private>) -> Result<Vec<u8>, ErrorStack> {
    match key.rsa() {
        Ok(rsa) => rsa.private_key_to_pem(),
        Err(_) => key.private_key_to_pem_pkcs8(),
    }
}

/// Generates a key.
pub(super) fn new_key() -> Result<PKey<Private>, ErrorStack> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
    PKey::from_ec_key(EcKey::generate(&group)?)
}

fn name(common_name: &str, organisation: Option<&str>) -> Result<X509Name, ErrorStack> {
    let mut name = X509Name::builder()?;
    if let Some(organisation) = organisation {
        name.append_entry_by_nid(Nid::ORGANIZATIONNAME, organisation)?;
    }
    name.append_entry_by_nid(Nid::COMMONNAME, common_name)?;
    Ok(name.build())
}

fn draft(
    subject: &X509NameRef,
    issuer: &X509NameRef,
    key: &PKey<Private>,
    now: Timestamp,
    lifetime: Duration,
) -> Result<X509Builder, ErrorStack> {
    let mut draft = X509::builder()?;
    draft.set_version(2)?;
    let mut serial = BigNum::new()?;
    serial.rand(127, MsbOption::MAYBE_ZERO, false)?;
    let serial = serial.to_asn1_integer()?;
    draft.set_serial_number(&serial)?;
    draft.set_subject_name(subject)?;
    draft.set_issuer_name(issuer)?;
    let (not_before, not_after) = (time(now.minus(limits::CERTIFICATE_BACKDATE))?, time(now.plus(lifetime))?);
    draft.set_not_before(&not_before)?;
    draft.set_not_after(&not_after)?;
    draft.set_pubkey(key)?;
    Ok(draft)
}

fn time(timestamp: Timestamp) -> Result<Asn1Time, ErrorStack> {
    Asn1Time::from_unix(timestamp.unix_seconds())
}

/// Whether the certificate is valid now and for a while.
pub(super) fn is_valid_with_margin(certificate: &X509, now: Timestamp) -> Result<bool, ErrorStack> {
    let minimal_expiry = time(now.plus(limits::CERTIFICATE_MARGIN))?;
    Ok(certificate.not_after() > minimal_expiry && certificate.not_before() <= time(now)?)
}

/// Whether a certificate covers these names and is valid for a while.
pub(super) fn is_valid_for_names(
    certificate: &X509,
    names: &Names,
    now: Timestamp,
) -> Result<bool, ErrorStack> {
    let covered_names = covered_names(certificate);
    let covers_all =
        names.hosts.is_subset(&covered_names.hosts) && names.addresses.is_subset(&covered_names.addresses);
    Ok(covers_all && is_valid_with_margin(certificate, now)?)
}

/// The names that a certificate covers.
fn covered_names(certificate: &X509) -> Names {
    let mut names = Names::default();
    for alternative in certificate.subject_alt_names().iter().flatten() {
        if let Some(host) = alternative.dnsname() {
            names.hosts.insert(host.to_owned());
        }
        if let Some(bytes) = alternative.ipaddress() {
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
            names.addresses.extend(address);
        }
    }
    names
}
