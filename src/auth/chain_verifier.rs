//! Verifies client certificates against CAs that can be replaced at run time.
//!
//! The TLS layer accepts any certificate, so that a bad one gets a 401 with a Status and not a broken handshake. It is verified
//! here, once per certificate and not once per request: checking a signature costs as much as ten requests.
//!
//! Each CA that may have issued a certificate is tried by itself. A renewed CA has the name of its predecessor, and both are
//! trusted for a while; OpenSSL would take one of them by its name, and refuse what only the other one proves.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use openssl::asn1::Asn1Time;
use openssl::error::ErrorStack;
use openssl::stack::Stack;
use openssl::x509::store::{X509Store, X509StoreBuilder};
use openssl::x509::verify::{X509VerifyFlags, X509VerifyParam};
use openssl::x509::{X509, X509PurposeId, X509Ref, X509StoreContext, X509VerifyResult};
use pilothouse_actors::clock::{Clock, Timestamp};
use pilothouse_actors::lock::Lock;

use crate::signatures;

/// The number of cached certificates. A full cache is cleared: certificates in use are verified again.
const REMEMBERED: usize = 1_024;

/// Verifies certificate chains and caches the results.
pub struct ChainVerifier<T> {
    authorities: ArcSwap<Vec<X509>>,
    clock: Clock,
    remembered: Lock<HashMap<Vec<u8>, Remembered<T>>>,
}

struct Remembered<T> {
    read: T,
    valid_until: Timestamp,
}

impl<T: Clone> ChainVerifier<T> {
    /// Trusts these CAs (PEM, one or more).
    pub fn new(authorities_pem: &[u8], clock: Clock) -> Result<ChainVerifier<T>, ErrorStack> {
        let authorities = ArcSwap::from_pointee(X509::stack_from_pem(authorities_pem)?);
        Ok(ChainVerifier { authorities, clock, remembered: Lock::default() })
    }

    /// Replaces the trusted CAs. Existing connections are verified again.
    pub fn trust(&self, authorities_pem: &[u8]) -> Result<(), ErrorStack> {
        self.authorities.store(Arc::new(X509::stack_from_pem(authorities_pem)?));
        self.remembered.lock().clear();
        Ok(())
    }

    /// Verifies a chain. Answers the result of `read` on its first certificate and until when it is valid, or the error.
    pub fn check(
        &self,
        chain: &[Vec<u8>],
        read: impl FnOnce(&X509) -> Result<T, String>,
    ) -> Result<(T, Timestamp), String> {
        let Some((leaf, rest)) = chain.split_first() else {
            return Err("there is no certificate".to_owned());
        };
        let now = self.clock.now();
        if let Some(known) = self.remembered.lock().get(leaf).filter(|known| now < known.valid_until) {
            return Ok((known.read.clone(), known.valid_until));
        }
        let authorities = self.authorities.load_full();
        let (certificate, seconds) = verify(leaf, rest, &authorities, now)
            .unwrap_or_else(|error| Err(format!("the client certificate cannot be read: {error}")))?;
        let read = read(&certificate)?;
        let valid_until = now.plus(Duration::from_secs(seconds));
        self.remember(leaf, &read, &authorities, valid_until);
        Ok((read, valid_until))
    }

    fn remember(&self, leaf: &[u8], read: &T, by: &Arc<Vec<X509>>, valid_until: Timestamp) {
        let mut remembered = self.remembered.lock();
        // A result under replaced CAs must not enter the cache after that was cleared.
        if !Arc::ptr_eq(&self.authorities.load(), by) {
            return;
        }
        if remembered.len() >= REMEMBERED {
            remembered.clear();
        }
        remembered.insert(leaf.to_vec(), Remembered { read: read.clone(), valid_until });
    }
}

/// The first certificate of a valid chain, and for how many seconds it stays valid.
fn verify(
    leaf: &[u8],
    rest: &[Vec<u8>],
    authorities: &[X509],
    now: Timestamp,
) -> Result<Result<(X509, u64), String>, ErrorStack> {
    let certificate = X509::from_der(leaf)?;
    let mut intermediates = Stack::new()?;
    for der in rest {
        intermediates.push(X509::from_der(der)?)?;
    }
    let mut refused = None;
    for authority in authorities {
        if !may_prove(authority, &certificate, &intermediates)? {
            continue;
        }
        match verify_by(Some(authority), &certificate, &intermediates, now)? {
            Ok(seconds) => return Ok(Ok((certificate, seconds))),
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    let refused = match refused {
        Some(why) => Err(why),
        None => verify_by(None, &certificate, &intermediates, now)?,
    };
    Ok(refused.map(|seconds| (certificate, seconds)))
}

/// Whether this CA may have issued the certificate or one of the intermediates, by its name, or is the certificate itself.
fn may_prove(authority: &X509, certificate: &X509, intermediates: &Stack<X509>) -> Result<bool, ErrorStack> {
    for shown in std::iter::once(&**certificate).chain(intermediates) {
        if authority.subject_name().try_cmp(shown.issuer_name())?.is_eq() {
            return Ok(true);
        }
    }
    Ok(authority == certificate)
}

/// For how many seconds this CA proves a certificate with its intermediates, or why it does not. Nothing is proved without a CA.
fn verify_by(
    authority: Option<&X509>,
    certificate: &X509,
    intermediates: &Stack<X509>,
    now: Timestamp,
) -> Result<Result<u64, String>, ErrorStack> {
    const EXPIRED: &str = "the client certificate has expired or is not yet valid";
    let store = store(authority, now)?;
    let mut context = X509StoreContext::new()?;
    context.init(&store, certificate, intermediates, |context| {
        if !signatures::chain_holds(context)? {
            let error = context.error();
            return Ok(Err(if is_about_time(error) {
                EXPIRED.to_owned()
            } else {
                format!("the client certificate is not valid: {error}")
            }));
        }
        // All certificates of the chain up to the CA are valid now; the first to expire limits the result.
        let chain = context.chain().into_iter().flatten();
        let left = chain.map(|link| seconds_left(link, now)).min().flatten();
        Ok(left.ok_or_else(|| EXPIRED.to_owned()))
    })
}

/// Certificate not yet valid, certificate has expired.
fn is_about_time(error: X509VerifyResult) -> bool {
    matches!(error.as_raw(), 9 | 10)
}

/// What a chain is verified against.
fn store(authority: Option<&X509>, now: Timestamp) -> Result<X509Store, ErrorStack> {
    let mut store = X509StoreBuilder::new()?;
    store.set_purpose(X509PurposeId::SSL_CLIENT)?;
    let mut demands = X509VerifyParam::new()?;
    // Reject weak signatures: SHA-1, MD5, short keys.
    demands.set_auth_level(1);
    // Or else OpenSSL would read the system's clock.
    demands.set_time(now.unix_seconds());
    store.set_param(&demands)?;
    // A trusted certificate need not be a root.
    store.set_flags(X509VerifyFlags::PARTIAL_CHAIN)?;
    if let Some(authority) = authority {
        store.add_cert(authority.clone())?;
    }
    Ok(store.build())
}

/// The remaining validity of a certificate; `None` if it is not valid now.
fn seconds_left(certificate: &X509Ref, now: Timestamp) -> Option<u64> {
    let now = Asn1Time::from_unix(now.unix_seconds()).ok()?;
    let left = now.diff(certificate.not_after()).ok()?;
    let seconds = i64::from(left.days) * 86_400 + i64::from(left.secs);
    u64::try_from(seconds).ok().filter(|_| certificate.not_before() <= now)
}
