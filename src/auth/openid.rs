//! Tokens of OpenID Connect providers.
//!
//! `rules` maps claims to users, without I/O. `keys` holds the provider's keys. `provider` is a task of its own that fetches them,
//! so that neither a worker nor an actor ever waits for the network: only the request whose token cannot be verified yet does.
//! This module is the verifier; `providers` has one per provider.

mod keys;
mod provider;
pub mod providers;
mod rules;

use std::sync::Arc;

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Verification, Verifier};
use pilothouse_types::bounded::ExpiringCache;
use pilothouse_types::clock::{Clock, Moment, Timestamp};
use pilothouse_types::identity::{Credentials, Identity};
use pilothouse_types::lock::Lock;

pub use self::keys::Keys;
pub use self::provider::Provider;
pub use self::rules::ClaimMapping;

use self::rules::Claims;
use super::jwt::Token;
use crate::limits::{OIDC_CACHED_TOKENS, OIDC_TOKEN_BYTES, OIDC_TOKEN_CACHE_TTL};
use crate::metrics::authentication::Latency;

/// Verifies the tokens of one provider.
pub struct OpenIdTokens(Arc<Shared>);

struct Shared {
    rules: ClaimMapping,
    keys: Arc<Keys>,
    clock: Clock,
    /// Measures how long a verification takes that is not cached.
    latency: Option<Latency>,
    /// By the digest of the token, so that memory holds no tokens. A std mutex: held for one lookup or one change.
    cache: Lock<ExpiringCache<[u8; 32], Arc<Identity>, OIDC_CACHED_TOKENS>>,
}

/// The result of examining a token.
enum Examination {
    /// A result that newer keys would not change.
    Verdict(Verification),
    /// None of the known keys matches its signature.
    UnknownKey(&'static str),
}

impl OpenIdTokens {
    /// A verifier for tokens that one of these keys signed.
    pub fn new(rules: ClaimMapping, keys: Arc<Keys>, clock: Clock) -> OpenIdTokens {
        OpenIdTokens(Arc::new(Shared { rules, keys, clock, latency: None, cache: Lock::default() }))
    }

    /// The issuer of the tokens.
    fn issuer(&self) -> &str {
        &self.0.rules.issuer
    }

    /// Whether tokens with this `iss` are for this verifier.
    fn is_issuer(&self, issuer: &str) -> bool {
        self.0.rules.is_issuer(issuer)
    }

    /// A verifier that measures its latency.
    pub fn timed(rules: ClaimMapping, keys: Arc<Keys>, clock: Clock, latency: Latency) -> OpenIdTokens {
        let (latency, cache) = (Some(latency), Lock::default());
        OpenIdTokens(Arc::new(Shared { rules, keys, clock, latency, cache }))
    }
}

impl Shared {
    /// The bearer of a cached token.
    fn cached_identity(&self, digest: &[u8; 32]) -> Option<Arc<Identity>> {
        self.cache.lock().get(digest, self.clock.now()).cloned()
    }

    /// Counts a verification, except for tokens of other issuers.
    fn record_latency(&self, start: Moment, verdict: Verification) -> Verification {
        if let Some(latency) = self.latency.as_ref().filter(|_| verdict != Verification::NoOpinion) {
            latency.count(matches!(verdict, Verification::Known(_)), self.clock.elapsed(start));
        }
        verdict
    }

    fn insert_cached(&self, digest: [u8; 32], identity: Arc<Identity>, expiry: Timestamp) {
        let evicted = self.cache.lock().insert(digest, identity, expiry, self.clock.now());
        drop(evicted);
    }

    /// Examines a token in kube-apiserver's order: cheap checks come before the signature, and the claims are used only after it.
    fn examine(&self, text: &str, digest: [u8; 32]) -> Examination {
        let no_opinion = || Examination::Verdict(Verification::NoOpinion);
        let Some(token) = Token::parse(text) else { return no_opinion() };
        let Some(claims) = Claims::parse(&token) else { return no_opinion() };
        if !self.rules.applies_to(&claims) {
            return no_opinion();
        }
        let refused = |reason: String| Examination::Verdict(Verification::Refused(reason));
        let now = self.clock.now();
        let token_expiry = match self.rules.check(&token, &claims, now) {
            Ok(expiry) => expiry,
            Err(reason) => return refused(format!("oidc: verify token: {reason}")),
        };
        let Some(key_set) = self.keys.key_set() else {
            return Examination::UnknownKey("oidc: authenticator not initialized");
        };
        // The claims parsed above may be used now: the signature covers the text that they were parsed from.
        if key_set.verify(&token).is_err() {
            return Examination::UnknownKey("oidc: verify token: failed to verify signature");
        }
        match self.rules.identity(&claims) {
            Ok(identity) => {
                let identity = Arc::new(identity);
                let expiry = now.plus(OIDC_TOKEN_CACHE_TTL).min(token_expiry);
                self.insert_cached(digest, Arc::clone(&identity), expiry);
                Examination::Verdict(Verification::Known(identity))
            }
            Err(reason) => {
                // The caller logs the refusal at a bounded rate, because a client may send such a token repeatedly.
                tracing::debug!(%reason, "a valid OpenID token cannot be mapped to a user");
                refused(reason)
            }
        }
    }
}

impl Verifier for OpenIdTokens {
    fn verify(&self, credentials: &Credentials) -> Answer<Verification> {
        let token = credentials.bearer.as_ref().filter(|token| token.len() <= OIDC_TOKEN_BYTES);
        let Some(token) = token else { return Answer::Now(Verification::NoOpinion) };
        let digest = crate::auth::digest(token.as_bytes());
        if let Some(identity) = self.0.cached_identity(&digest) {
            return Answer::Now(Verification::Known(identity));
        }
        let start = self.0.clock.moment();
        if let Examination::Verdict(verdict) = self.0.examine(token, digest) {
            return Answer::Now(self.0.record_latency(start, verdict));
        }
        let (shared, token) = (Arc::clone(&self.0), token.clone());
        Answer::later(async move {
            let verdict = match shared.keys.refetch().await {
                Err(reason) => Verification::Refused(format!("oidc: verify token: fetching keys: {reason}")),
                Ok(()) => match shared.examine(&token, digest) {
                    Examination::Verdict(verdict) => verdict,
                    Examination::UnknownKey(reason) => Verification::Refused(reason.to_owned()),
                },
            };
            shared.record_latency(start, verdict)
        })
    }
}

#[cfg(test)]
mod test_provider;
#[cfg(test)]
mod tests;
