//! Tokens of OpenID Connect providers.
//!
//! `rules` maps claims to users, without I/O. `keys` holds the provider's keys. `provider` is a task of its own that fetches them,
//! so that neither a worker nor an actor ever waits for the network: only the request whose token cannot be verified yet does.
//! `distributed` fetches claims that are not in a token, within its request. This module is the verifier; `providers` has one per
//! provider.

mod distributed;
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
use thiserror::Error;

pub use self::keys::Keys;
pub use self::provider::Provider;
pub use self::rules::ClaimMapping;

use self::distributed::{ClaimResolver, ClaimSource, ResolveError};
use self::rules::Claims;
use super::jwt::Token;
use crate::limits::{
    OIDC_CACHED_FAILURES, OIDC_CACHED_TOKENS, OIDC_CLAIM_FAILURE_TTL, OIDC_TOKEN_BYTES, OIDC_TOKEN_CACHE_TTL,
    REFUSAL_CHARS,
};
use crate::metrics::authentication::Latency;

/// Verifies the tokens of one provider.
pub struct OpenIdTokens(Arc<Shared>);

struct Shared {
    rules: ClaimMapping,
    keys: Arc<Keys>,
    resolver: ClaimResolver,
    clock: Clock,
    /// Measures how long a verification takes that is not cached.
    latency: Option<Latency>,
    /// By the digest of the token, so that memory holds no tokens. A std mutex: held for one lookup or one change.
    cache: Lock<ExpiringCache<[u8; 32], Arc<Identity>, OIDC_CACHED_TOKENS>>,
    /// Why tokens were refused whose claims are elsewhere, by their digest: or else each request with such a token would make this
    /// server call an address that the token names.
    unresolved: Lock<ExpiringCache<[u8; 32], Arc<str>, OIDC_CACHED_FAILURES>>,
}

/// The result of examining a token.
enum Examination {
    /// A result that newer keys would not change.
    Verdict(Verification),
    /// None of the known keys matches its signature.
    UnknownKey(SignatureError),
    /// It is valid, and one of its claims is elsewhere.
    Distributed(Box<PendingClaim>),
}

/// A valid token whose groups are elsewhere.
struct PendingClaim {
    claims: Claims,
    /// The name of the claim, and where it is.
    name: String,
    source: ClaimSource,
    token_expiry: Timestamp,
}

/// Why a signature cannot be verified with the known keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
enum SignatureError {
    /// No keys were fetched yet.
    #[error("oidc: authenticator not initialized")]
    NoKeys,
    /// No key has made it.
    #[error("oidc: verify token: failed to verify signature")]
    Mismatch,
}

fn verify_signature(keys: &Keys, token: &Token<'_>) -> Result<(), SignatureError> {
    let key_set = keys.key_set().ok_or(SignatureError::NoKeys)?;
    key_set.verify(token).map_err(|_| SignatureError::Mismatch)
}

impl OpenIdTokens {
    /// A verifier for tokens that one of these keys signed. Endpoints of distributed claims are verified with these CAs. `latency`
    /// measures the verifications.
    pub fn new(
        rules: ClaimMapping,
        keys: Arc<Keys>,
        resolver: ClaimResolver,
        clock: Clock,
        latency: Option<Latency>,
    ) -> OpenIdTokens {
        OpenIdTokens(Arc::new(Shared {
            rules,
            keys,
            resolver,
            clock,
            latency,
            cache: Lock::default(),
            unresolved: Lock::default(),
        }))
    }

    /// The issuer of the tokens.
    fn issuer(&self) -> &str {
        &self.0.rules.issuer
    }

    /// Whether tokens with this `iss` are for this verifier.
    fn is_issuer(&self, issuer: &str) -> bool {
        self.0.rules.is_issuer(issuer)
    }
}

impl Shared {
    /// The bearer of a cached token.
    fn cached_identity(&self, digest: &[u8; 32]) -> Option<Arc<Identity>> {
        self.cache.lock().get(digest, self.clock.now()).cloned()
    }

    /// The remembered refusal of a token whose distributed claims failed.
    fn cached_refusal(&self, digest: &[u8; 32]) -> Option<Verification> {
        let reason = self.unresolved.lock().get(digest, self.clock.now()).cloned()?;
        Some(Verification::Refused(reason.to_string()))
    }

    /// Refuses a token, and remembers that for [`OIDC_CLAIM_FAILURE_TTL`].
    fn refuse_and_remember(&self, digest: [u8; 32], reason: String) -> Verification {
        let now = self.clock.now();
        let remembered = reason.chars().take(REFUSAL_CHARS).collect::<String>().into();
        let expiry = now.plus(OIDC_CLAIM_FAILURE_TTL);
        let evicted = self.unresolved.lock().insert(digest, remembered, expiry, now);
        drop(evicted);
        Verification::Refused(reason)
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
        if let Err(error) = verify_signature(&self.keys, &token) {
            return Examination::UnknownKey(error);
        }
        // The claims parsed above may be used now: the signature covers the text that they were parsed from.
        match self.rules.distributed_groups(&claims) {
            Ok(None) => Examination::Verdict(self.map_claims(&claims, digest, token_expiry)),
            Ok(Some((name, source))) => {
                Examination::Distributed(Box::new(PendingClaim { claims, name, source, token_expiry }))
            }
            Err(reason) => refused(format!("oidc: could not expand distributed claims: {reason}")),
        }
    }

    /// The user of a valid token, who is remembered until `expiry` at most.
    fn map_claims(&self, claims: &Claims, digest: [u8; 32], expiry: Timestamp) -> Verification {
        match self.rules.identity(claims) {
            Ok(identity) => {
                let identity = Arc::new(identity);
                let expiry = self.clock.now().plus(OIDC_TOKEN_CACHE_TTL).min(expiry);
                self.insert_cached(digest, Arc::clone(&identity), expiry);
                Verification::Known(identity)
            }
            Err(reason) => {
                // The caller logs the refusal at a bounded rate, because a client may send such a token repeatedly.
                tracing::debug!(%reason, "a valid OpenID token cannot be mapped to a user");
                Verification::Refused(reason)
            }
        }
    }

    /// Completes an examination that needs the network: newer keys, or a claim that is elsewhere.
    async fn complete(&self, mut examination: Examination, text: &str, digest: [u8; 32]) -> Verification {
        if matches!(examination, Examination::UnknownKey(_)) {
            if let Err(reason) = self.keys.refetch().await {
                return Verification::Refused(format!("oidc: verify token: fetching keys: {reason}"));
            }
            examination = self.examine(text, digest);
        }
        match examination {
            Examination::Verdict(verdict) => verdict,
            Examination::UnknownKey(error) => Verification::Refused(error.to_string()),
            Examination::Distributed(pending) => self.resolve(*pending, digest).await,
        }
    }

    async fn resolve(&self, pending: PendingClaim, digest: [u8; 32]) -> Verification {
        let PendingClaim { mut claims, name, source, token_expiry } = pending;
        let settled = || {
            let identity = self.cached_identity(&digest).map(Verification::Known);
            identity.or_else(|| self.cached_refusal(&digest))
        };
        let unexpanded = |reason: String| format!("oidc: could not expand distributed claims: {reason}");
        match self.resolver.resolve(&self.rules, &name, &source, || settled().is_some()).await {
            Ok(Some(resolved)) => {
                claims.insert(name, resolved.value);
                match self.map_claims(&claims, digest, token_expiry.min(resolved.expiry)) {
                    Verification::Refused(reason) => self.refuse_and_remember(digest, reason),
                    verdict => verdict,
                }
            }
            Ok(None) => settled()
                .unwrap_or_else(|| Verification::Refused("oidc: the token expired meanwhile".to_owned())),
            Err(ResolveError::Failed(reason)) => self.refuse_and_remember(digest, unexpanded(reason)),
            // Nothing is known about the token yet.
            Err(ResolveError::Busy(reason)) => Verification::Refused(unexpanded(reason)),
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
        if let Some(refusal) = self.0.cached_refusal(&digest) {
            return Answer::Now(refusal);
        }
        let start = self.0.clock.moment();
        let examination = match self.0.examine(token, digest) {
            Examination::Verdict(verdict) => return Answer::Now(self.0.record_latency(start, verdict)),
            examination => examination,
        };
        let (shared, token) = (Arc::clone(&self.0), token.clone());
        Answer::later(async move {
            let verdict = shared.complete(examination, &token, digest).await;
            shared.record_latency(start, verdict)
        })
    }
}

#[cfg(test)]
mod test_provider;
#[cfg(test)]
mod tests;
