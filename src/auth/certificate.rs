//! Client certificates: the common name is the user, each organisation a group.
//!
//! The TLS layer takes any certificate, so that a bad one is a 401 with a Status and not a broken handshake. It is
//! verified here, once per certificate and not once per request: a signature check costs as much as ten requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use openssl::asn1::Asn1Time;
use openssl::error::ErrorStack;
use openssl::nid::Nid;
use openssl::stack::Stack;
use openssl::x509::store::{X509Store, X509StoreBuilder};
use openssl::x509::verify::X509VerifyFlags;
use openssl::x509::{X509, X509PurposeId, X509Ref, X509StoreContext};
use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Verdict, Verifier};
use pilothouse_actors::clock::{Clock, Timestamp};
use pilothouse_actors::identity::{Credentials, Identity};

/// Certificates remembered. When it is full it starts anew: whoever is still there is verified again.
const REMEMBERED: usize = 1_024;

/// Verifies client certificates against the client CA.
pub struct CertificateVerifier {
    authorities: ArcSwap<X509Store>,
    clock: Clock,
    remembered: Mutex<HashMap<Vec<u8>, Remembered>>,
}

struct Remembered {
    identity: Arc<Identity>,
    valid_until: Timestamp,
}

impl CertificateVerifier {
    /// A verifier that trusts these authorities (PEM, one or more).
    pub fn new(authorities_pem: &[u8], clock: Clock) -> Result<CertificateVerifier, ErrorStack> {
        let authorities = ArcSwap::from_pointee(CertificateVerifier::store(authorities_pem)?);
        Ok(CertificateVerifier { authorities, clock, remembered: Mutex::default() })
    }

    /// Trusts these authorities from now on, and no others. Whoever is connected is verified again.
    pub fn trust(&self, authorities_pem: &[u8]) -> Result<(), ErrorStack> {
        self.authorities.store(Arc::new(CertificateVerifier::store(authorities_pem)?));
        self.remembered().clear();
        Ok(())
    }

    fn store(authorities_pem: &[u8]) -> Result<X509Store, ErrorStack> {
        let mut store = X509StoreBuilder::new()?;
        store.set_purpose(X509PurposeId::SSL_CLIENT)?;
        // The time is ours to check: OpenSSL would read the system's clock.
        // And an authority need not be a root: what the file names is trusted.
        store.set_flags(X509VerifyFlags::NO_CHECK_TIME | X509VerifyFlags::PARTIAL_CHAIN)?;
        for authority in X509::stack_from_pem(authorities_pem)? {
            store.add_cert(authority)?;
        }
        Ok(store.build())
    }

    fn identify(&self, chain: &[Vec<u8>]) -> Result<Verdict, ErrorStack> {
        let Some((leaf, rest)) = chain.split_first() else {
            return Ok(Verdict::NoOpinion);
        };
        let now = self.clock.now();
        if let Some(known) = self.remembered().get(leaf).filter(|known| now < known.valid_until) {
            return Ok(Verdict::Known(known.identity.clone()));
        }
        let certificate = X509::from_der(leaf)?;
        let mut intermediates = Stack::new()?;
        for der in rest {
            intermediates.push(X509::from_der(der)?)?;
        }
        let mut context = X509StoreContext::new()?;
        let authorities = self.authorities.load_full();
        let verified = context.init(&authorities, &certificate, &intermediates, |context| {
            if !context.verify_cert()? {
                return Ok(Err(format!("the client certificate is not valid: {}", context.error())));
            }
            // The chain that was found, up to the authority: each link must hold today, and ends with the first to end.
            let chain = context.chain().into_iter().flatten();
            let left = chain.map(|link| seconds_left(link, now)).min().flatten();
            Ok(left.ok_or_else(|| "the client certificate has expired or is not yet valid".to_owned()))
        })?;
        let seconds = match verified {
            Ok(seconds) => seconds,
            Err(why) => return Ok(Verdict::Refused(why)),
        };
        let Some(identity) = subject(&certificate) else {
            return Ok(Verdict::NoOpinion);
        };
        let identity = Arc::new(identity);
        self.remember(leaf, &identity, &authorities, now.plus(Duration::from_secs(seconds)));
        Ok(Verdict::Known(identity))
    }

    fn remembered(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Remembered>> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, leaf: &[u8], identity: &Arc<Identity>, by: &Arc<X509Store>, valid_until: Timestamp) {
        let mut remembered = self.remembered();
        // Whoever was verified by authorities that are trusted no more is not remembered after all were forgotten.
        if !Arc::ptr_eq(&self.authorities.load(), by) {
            return;
        }
        if remembered.len() >= REMEMBERED {
            remembered.clear();
        }
        remembered.insert(leaf.to_vec(), Remembered { identity: identity.clone(), valid_until });
    }
}

/// How long a certificate holds from now on; `None` if it does not hold now.
fn seconds_left(certificate: &X509Ref, now: Timestamp) -> Option<u64> {
    let now = Asn1Time::from_unix(i64::try_from(now.seconds()).ok()?).ok()?;
    let left = now.diff(certificate.not_after()).ok()?;
    let seconds = i64::from(left.days) * 86_400 + i64::from(left.secs);
    u64::try_from(seconds).ok().filter(|_| certificate.not_before() <= now)
}

fn subject(certificate: &X509) -> Option<Identity> {
    let entries = |nid| {
        let values = certificate.subject_name().entries_by_nid(nid);
        values.filter_map(|entry| entry.data().to_string().ok()).collect::<Vec<_>>()
    };
    let name = entries(Nid::COMMONNAME).into_iter().next().filter(|name| !name.is_empty())?;
    Some(Identity {
        name,
        uid: String::new(),
        groups: entries(Nid::ORGANIZATIONNAME),
        extra: std::collections::BTreeMap::default(),
    })
}

impl Verifier for CertificateVerifier {
    fn verify(&self, credentials: &Credentials) -> Answer<Verdict> {
        let verdict = self.identify(credentials.certificates.as_deref().unwrap_or_default());
        Answer::Now(verdict.unwrap_or_else(|error| {
            Verdict::Refused(format!("the client certificate cannot be read: {error}"))
        }))
    }
}
