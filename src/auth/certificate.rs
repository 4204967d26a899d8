//! Client certificates: the common name is the user, each organization a group.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use openssl::error::ErrorStack;
use openssl::nid::Nid;
use openssl::sha::sha256;
use openssl::x509::{X509, X509NameEntryRef};
use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Verification, Verifier};
use pilothouse_apimachinery::well_known::CREDENTIAL_ID;
use pilothouse_types::clock::Clock;
use pilothouse_types::identity::{Credentials, Identity};
use prometheus::Histogram;

use super::chain_verifier::ChainVerifier;

/// The subject attribute with the user's UID, as in kube-apiserver.
const UID: &str = "1.3.6.1.4.1.57683.2";

/// Verifies client certificates against the client CA.
pub struct CertificateVerifier {
    /// The verified identities; `None` for certificates without a name.
    chains: ChainVerifier<Option<Arc<Identity>>>,
    /// Whether the UID attribute is read.
    reads_uid: bool,
    /// Observes the seconds until a certificate expires.
    remaining_validity: Histogram,
    clock: Clock,
}

impl CertificateVerifier {
    /// A verifier that trusts these CAs (PEM, one or more).
    pub fn new(
        authorities_pem: &[u8],
        reads_uid: bool,
        remaining_validity: Histogram,
        clock: Clock,
    ) -> Result<CertificateVerifier, ErrorStack> {
        let chains = ChainVerifier::new(authorities_pem, clock.clone())?;
        Ok(CertificateVerifier { chains, reads_uid, remaining_validity, clock })
    }

    /// Replaces the trusted CAs. Existing connections are verified again.
    pub fn trust(&self, authorities_pem: &[u8]) -> Result<(), ErrorStack> {
        self.chains.trust(authorities_pem)
    }
}

/// The text of an attribute.
fn text(entry: &X509NameEntryRef) -> Option<String> {
    entry.data().to_string().ok()
}

/// The common name; the last one if there are several, as in kube-apiserver.
pub fn common_name(certificate: &X509) -> String {
    let last = certificate.subject_name().entries_by_nid(Nid::COMMONNAME).last();
    last.and_then(text).unwrap_or_default()
}

/// The identity in the subject of a certificate; `None` without a common name.
fn subject(certificate: &X509, reads_uid: bool) -> Result<Option<Identity>, String> {
    let name = common_name(certificate);
    if name.is_empty() {
        return Ok(None);
    }
    let groups = certificate.subject_name().entries_by_nid(Nid::ORGANIZATIONNAME).filter_map(text).collect();
    let der = certificate.to_der().map_err(|error| error.to_string())?;
    let mut digest = String::from("X509SHA256=");
    for byte in sha256(&der) {
        // Writing to a string cannot fail.
        let _ = write!(digest, "{byte:02x}");
    }
    Ok(Some(Identity {
        name,
        uid: if reads_uid { uid(certificate)? } else { String::new() },
        groups,
        extra: BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![digest])]),
    }))
}

/// The UID of a subject; empty if there is none.
fn uid(certificate: &X509) -> Result<String, String> {
    let is_uid = |entry: &&X509NameEntryRef| entry.object().to_string() == UID;
    let mut uids = certificate.subject_name().entries().filter(is_uid);
    let Some(first) = uids.next() else { return Ok(String::new()) };
    if uids.next().is_some() {
        return Err("the client certificate has more than one UID".to_owned());
    }
    let uid = text(first).ok_or("the UID of the client certificate is not text")?;
    if uid.is_empty() { Err("the UID of the client certificate is empty".to_owned()) } else { Ok(uid) }
}

impl Verifier for CertificateVerifier {
    fn verify(&self, credentials: &Credentials) -> Answer<Verification> {
        let Some(chain) = credentials.certificates.as_deref().filter(|chain| !chain.is_empty()) else {
            return Answer::Now(Verification::NoOpinion);
        };
        let read = |certificate: &X509| Ok(subject(certificate, self.reads_uid)?.map(Arc::new));
        Answer::Now(match self.chains.check(chain, read) {
            Ok((Some(identity), until)) => {
                self.remaining_validity.observe(until.since(self.clock.now()).as_secs_f64());
                Verification::Known(identity)
            }
            Ok((None, _)) => Verification::NoOpinion,
            Err(reason) => Verification::Refused(reason),
        })
    }
}

#[cfg(test)]
pub(super) mod tests;
