//! Verifies client certificates against CAs that can be replaced at run time.
//!
//! The TLS layer accepts any certificate, so that a bad one gets a 401 with a Status and not a broken handshake. It is verified
//! here, once per chain and not once per request: checking a signature costs as much as ten requests. That holds for refused
//! chains, too, or else anybody without a trusted certificate could make every request of theirs that expensive.
//!
//! Each CA that may have issued a certificate is tried by itself. A renewed CA has the name of its predecessor, and both are
//! trusted for a while; OpenSSL would pick one of them by its name, and refuse certificates of the other.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use openssl::asn1::{Asn1Time, Asn1TimeRef};
use openssl::error::ErrorStack;
use openssl::sha::Sha256;
use openssl::stack::Stack;
use openssl::x509::store::{X509Store, X509StoreBuilder};
use openssl::x509::verify::{X509VerifyFlags, X509VerifyParam};
use openssl::x509::{X509, X509PurposeId, X509Ref, X509StoreContext, X509VerifyResult};
use pilothouse_types::bounded::BoundedCache;
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::lock::Lock;

use crate::limits::{CACHED_CERTIFICATES, REFUSED_CERTIFICATE_CACHE_TTL};
use crate::pki::signatures;

/// Verifies certificate chains and caches the results.
pub struct ChainVerifier<T> {
    authorities: ArcSwap<Vec<X509>>,
    clock: Clock,
    cache: Lock<ResultCache<T>>,
    /// The chains that were verified, so that tests can tell a cached result from a new one.
    #[cfg(test)]
    verifications: std::sync::atomic::AtomicUsize,
}

/// The digest of a chain: clients may send long chains, and cache keys have to stay short.
type ChainDigest = [u8; 32];

/// Verification results. Refused chains have a table of their own, so that a flood of them evicts no valid one.
struct ResultCache<T> {
    valid: ChainCache<T>,
    refused: ChainCache<String>,
}

type ChainCache<T> = BoundedCache<ChainDigest, CachedResult<T>, CACHED_CERTIFICATES>;

/// A result and the period for which it holds. It does not hold before `since` either: if the clock is set back, certificates
/// that had expired may be valid again.
struct CachedResult<T> {
    result: T,
    since: Timestamp,
    until: Timestamp,
}

impl<T: Clone> CachedResult<T> {
    /// The result and its expiry, if it holds at this time.
    fn holding_at(&self, now: Timestamp) -> Option<(T, Timestamp)> {
        (self.since <= now && now < self.until).then(|| (self.result.clone(), self.until))
    }
}

fn digest(chain: &[Vec<u8>]) -> ChainDigest {
    let mut hash = Sha256::new();
    for certificate in chain {
        // With its length, so that no other division of the same bytes has the same digest.
        hash.update(&certificate.len().to_be_bytes());
        hash.update(certificate);
    }
    hash.finish()
}

impl<T: Clone> ChainVerifier<T> {
    /// Trusts these CAs (PEM, one or more).
    pub fn new(authorities_pem: &[u8], clock: Clock) -> Result<ChainVerifier<T>, ErrorStack> {
        let authorities = ArcSwap::from_pointee(X509::stack_from_pem(authorities_pem)?);
        let cache = Lock::new(ResultCache { valid: ChainCache::default(), refused: ChainCache::default() });
        Ok(ChainVerifier {
            authorities,
            clock,
            cache,
            #[cfg(test)]
            verifications: std::sync::atomic::AtomicUsize::default(),
        })
    }

    /// Replaces the trusted CAs. Existing connections are verified again.
    pub fn trust(&self, authorities_pem: &[u8]) -> Result<(), ErrorStack> {
        self.authorities.store(Arc::new(X509::stack_from_pem(authorities_pem)?));
        let mut cache = self.cache.lock();
        let evicted = (cache.valid.clear(), cache.refused.clear());
        drop(cache);
        drop(evicted);
        Ok(())
    }

    /// Verifies a chain. Returns the result of `read` on its first certificate and until when it is valid, or the error.
    pub fn check(
        &self,
        chain: &[Vec<u8>],
        read: impl FnOnce(&X509) -> Result<T, String>,
    ) -> Result<(T, Timestamp), String> {
        let Some((leaf, rest)) = chain.split_first() else {
            return Err("there is no certificate".to_owned());
        };
        let (now, chain) = (self.clock.now(), digest(chain));
        if let Some(cached) = self.cached(&chain, now) {
            return cached;
        }
        #[cfg(test)]
        self.verifications.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let authorities = self.authorities.load_full();
        let verified = verify(leaf, rest, &authorities, now)
            .unwrap_or_else(|error| Err(format!("the client certificate cannot be read: {error}")));
        let result = verified
            .and_then(|(certificate, seconds)| Ok((read(&certificate)?, seconds_later(now, seconds))));
        let until = match &result {
            Ok((_, until)) => *until,
            Err(_) => refused_until(leaf, rest, &authorities, now),
        };
        self.cache_result(chain, &result, now, until, &authorities);
        result
    }

    /// The cached result.
    fn cached(&self, chain: &ChainDigest, now: Timestamp) -> Option<Result<(T, Timestamp), String>> {
        let cache = self.cache.lock();
        if let Some(valid) = cache.valid.get(chain).and_then(|cached| cached.holding_at(now)) {
            return Some(Ok(valid));
        }
        cache.refused.get(chain)?.holding_at(now).map(|(reason, _)| Err(reason))
    }

    fn cache_result(
        &self,
        chain: ChainDigest,
        result: &Result<(T, Timestamp), String>,
        since: Timestamp,
        until: Timestamp,
        verified_with: &Arc<Vec<X509>>,
    ) {
        let mut cache = self.cache.lock();
        // A result under replaced CAs must not enter the cache after that was cleared.
        if !Arc::ptr_eq(&self.authorities.load(), verified_with) {
            return;
        }
        match result {
            Ok((read, _)) => {
                let evicted = cache.valid.insert(chain, CachedResult { result: read.clone(), since, until });
                drop(cache);
                drop(evicted);
            }
            Err(reason) => {
                let result = reason.clone();
                let evicted = cache.refused.insert(chain, CachedResult { result, since, until });
                drop(cache);
                drop(evicted);
            }
        }
    }

    /// How many refused chains are cached.
    #[cfg(test)]
    pub(super) fn refused(&self) -> usize {
        self.cache.lock().refused.len()
    }

    /// How many chains were verified so far.
    #[cfg(test)]
    pub(super) fn verifications(&self) -> usize {
        self.verifications.load(std::sync::atomic::Ordering::SeqCst)
    }
}

/// Until when a refused chain stays refused by these CAs: at most until the next of all certificates involved becomes valid.
fn refused_until(leaf: &[u8], rest: &[Vec<u8>], authorities: &[X509], now: Timestamp) -> Timestamp {
    let chain = std::iter::once(leaf).chain(rest.iter().map(Vec::as_slice));
    let certificates: Vec<X509> = chain.filter_map(|der| X509::from_der(der).ok()).collect();
    let starts =
        certificates.iter().chain(authorities).filter_map(|certificate| seconds_to_start(certificate, now));
    let first = starts.min().map(|seconds| seconds_later(now, seconds));
    let last = now.plus(REFUSED_CERTIFICATE_CACHE_TTL);
    first.map_or(last, |first| first.min(last))
}

/// The time `seconds` later, in whole seconds: validity periods of certificates have no fractions.
fn seconds_later(now: Timestamp, seconds: u64) -> Timestamp {
    Timestamp::default().plus(Duration::from_secs(now.seconds().saturating_add(seconds)))
}

/// The seconds until a certificate becomes valid; `None` if its validity has begun.
fn seconds_to_start(certificate: &X509Ref, now: Timestamp) -> Option<u64> {
    let now = Asn1Time::from_unix(now.unix_seconds()).ok()?;
    seconds_between(&now, certificate.not_before()).filter(|seconds| *seconds > 0)
}

/// The seconds from one time to a later one; `None` if it is earlier.
fn seconds_between(from: &Asn1TimeRef, to: &Asn1TimeRef) -> Option<u64> {
    let time = from.diff(to).ok()?;
    u64::try_from(i64::from(time.days) * 86_400 + i64::from(time.secs)).ok()
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
    let mut first_refusal = None;
    for authority in authorities {
        if !may_have_issued(authority, &certificate, &intermediates)? {
            continue;
        }
        match verify_against(Some(authority), &certificate, &intermediates, now)? {
            Ok(seconds) => return Ok(Ok((certificate, seconds))),
            Err(reason) => first_refusal = first_refusal.or(Some(reason)),
        }
    }
    let result = match first_refusal {
        Some(reason) => Err(reason),
        None => verify_against(None, &certificate, &intermediates, now)?,
    };
    Ok(result.map(|seconds| (certificate, seconds)))
}

/// Whether this CA may have issued the certificate or one of the intermediates, by its name, or is the certificate itself.
fn may_have_issued(authority: &X509, leaf: &X509, intermediates: &Stack<X509>) -> Result<bool, ErrorStack> {
    for certificate in std::iter::once(&**leaf).chain(intermediates) {
        if authority.subject_name().try_cmp(certificate.issuer_name())?.is_eq() {
            return Ok(true);
        }
    }
    Ok(authority == leaf)
}

/// Verifies a certificate with its intermediates against this CA. Returns for how many seconds it stays valid, or why it is not.
/// Without a CA the verification fails.
fn verify_against(
    authority: Option<&X509>,
    certificate: &X509,
    intermediates: &Stack<X509>,
    now: Timestamp,
) -> Result<Result<u64, String>, ErrorStack> {
    const EXPIRED: &str = "the client certificate has expired or is not yet valid";
    let store = store(authority, now)?;
    let mut context = X509StoreContext::new()?;
    context.init(&store, certificate, intermediates, |context| {
        if !signatures::is_chain_valid(context)? {
            let error = context.error();
            return Ok(Err(if is_validity_error(error) {
                EXPIRED.to_owned()
            } else {
                format!("the client certificate is not valid: {error}")
            }));
        }
        // All certificates of the chain up to the CA are valid now; the first to expire limits the result.
        let chain = context.chain().into_iter().flatten();
        let remaining = chain.map(|link| seconds_left(link, now)).min().flatten();
        Ok(remaining.ok_or_else(|| EXPIRED.to_owned()))
    })
}

/// Certificate not yet valid, certificate has expired.
fn is_validity_error(error: X509VerifyResult) -> bool {
    matches!(error.as_raw(), 9 | 10)
}

/// The trust store and parameters that a chain is verified with.
fn store(authority: Option<&X509>, now: Timestamp) -> Result<X509Store, ErrorStack> {
    let mut store = X509StoreBuilder::new()?;
    store.set_purpose(X509PurposeId::SSL_CLIENT)?;
    let mut parameters = X509VerifyParam::new()?;
    // Reject weak signatures: SHA-1, MD5, short keys.
    parameters.set_auth_level(1);
    // Or else OpenSSL would read the system's clock.
    parameters.set_time(now.unix_seconds());
    store.set_param(&parameters)?;
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
    seconds_between(&now, certificate.not_after()).filter(|_| certificate.not_before() <= now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_chain_result_holds_only_within_its_period() {
        let cached = CachedResult { result: (), since: Timestamp(10), until: Timestamp(20) };
        let holds = |now| cached.holding_at(Timestamp(now)).is_some();
        assert!(holds(10) && holds(19) && !holds(20) && !holds(9), "the clock may be set back");
    }

    #[test]
    fn chain_digest_depends_on_every_certificate_and_its_bounds() {
        let chains: [&[Vec<u8>]; 5] =
            [&[], &[vec![]], &[vec![1, 2]], &[vec![1], vec![2]], &[vec![1, 2], vec![]]];
        for (index, chain) in chains.iter().enumerate() {
            for (other_index, other) in chains.iter().enumerate() {
                assert_eq!(digest(chain) == digest(other), index == other_index);
            }
        }
    }
}
