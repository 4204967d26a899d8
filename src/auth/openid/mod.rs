//! Tokens of OpenID Connect providers.
//!
//! `rules` maps claims to users; it is pure. `keys` holds the provider's keys. `provider` is a task of its own that fetches them,
//! so that neither a worker nor an actor ever waits for the network: only the request whose token cannot be verified yet does.
//! This module is the verifier; `providers` has one per provider.

mod keys;
mod provider;
pub mod providers;
mod rules;

use std::collections::HashMap;
use std::sync::Arc;

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Verification, Verifier};
use pilothouse_types::clock::{Clock, Moment, Timestamp};
use pilothouse_types::identity::{Credentials, Identity};
use pilothouse_types::lock::Lock;

pub use self::keys::Keys;
pub use self::provider::Provider;
pub use self::rules::ClaimMapping;

use self::rules::Claims;
use super::jwt::Token;
use crate::limits::{OIDC_TOKEN_BYTES, OIDC_TOKEN_REMEMBERED, OIDC_TOKENS_REMEMBERED};
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
    remembered: Lock<HashMap<[u8; 32], Remembered>>,
}

/// The bearer of a verified token, and until when it is cached.
struct Remembered {
    identity: Arc<Identity>,
    until: Timestamp,
}

/// The result of examining a token.
enum Found {
    /// A result that newer keys would not change.
    Verdict(Verification),
    /// No known key has signed it.
    Unsigned(&'static str),
}

impl OpenIdTokens {
    /// A verifier for tokens that one of these keys signed.
    pub fn new(rules: ClaimMapping, keys: Arc<Keys>, clock: Clock) -> OpenIdTokens {
        OpenIdTokens(Arc::new(Shared { rules, keys, clock, latency: None, remembered: Lock::default() }))
    }

    /// The issuer of the tokens.
    fn issuer(&self) -> &str {
        &self.0.rules.issuer
    }

    /// Whether tokens with this `iss` are for this verifier.
    fn is_by(&self, issuer: &str) -> bool {
        self.0.rules.is_by(issuer)
    }

    /// A verifier that measures its latency.
    pub fn timed(rules: ClaimMapping, keys: Arc<Keys>, clock: Clock, latency: Latency) -> OpenIdTokens {
        let (latency, remembered) = (Some(latency), Lock::default());
        OpenIdTokens(Arc::new(Shared { rules, keys, clock, latency, remembered }))
    }
}

impl Shared {
    /// The bearer of a cached token.
    fn recall(&self, digest: &[u8; 32]) -> Option<Arc<Identity>> {
        let now = self.clock.now();
        self.remembered
            .lock()
            .get(digest)
            .filter(|kept| now < kept.until)
            .map(|kept| Arc::clone(&kept.identity))
    }

    /// Counts a verification, except for tokens of other issuers.
    fn looked(&self, began: Moment, verdict: Verification) -> Verification {
        if let Some(latency) = self.latency.as_ref().filter(|_| verdict != Verification::NoOpinion) {
            latency.count(matches!(verdict, Verification::Known(_)), self.clock.elapsed(began));
        }
        verdict
    }

    fn remember(&self, digest: [u8; 32], kept: Remembered) {
        let now = self.clock.now();
        let mut remembered = self.remembered.lock();
        if remembered.len() >= OIDC_TOKENS_REMEMBERED {
            remembered.retain(|_, kept| now < kept.until);
        }
        if remembered.len() >= OIDC_TOKENS_REMEMBERED {
            remembered.clear();
        }
        remembered.insert(digest, kept);
    }

    /// Examines a token in the reference's order: cheap checks come before the signature, and the claims are used only after it.
    fn examine(&self, text: &str, digest: [u8; 32]) -> Found {
        let nobodys = || Found::Verdict(Verification::NoOpinion);
        let Some(token) = Token::parse(text) else { return nobodys() };
        let Some(claims) = Claims::of(&token) else { return nobodys() };
        if !self.rules.concern(&claims) {
            return nobodys();
        }
        let refused = |why: String| Found::Verdict(Verification::Refused(why));
        let now = self.clock.now();
        let ends = match self.rules.check(&token, &claims, now) {
            Ok(ends) => ends,
            Err(why) => return refused(format!("oidc: verify token: {why}")),
        };
        let Some(ring) = self.keys.ring() else {
            return Found::Unsigned("oidc: authenticator not initialized");
        };
        // The claims parsed above may be used now: the signature covers the text that they were parsed from.
        if ring.signed(&token).is_err() {
            return Found::Unsigned("oidc: verify token: failed to verify signature");
        }
        match self.rules.identity(&claims) {
            Ok(identity) => {
                let identity = Arc::new(identity);
                let until = now.plus(OIDC_TOKEN_REMEMBERED).min(ends);
                self.remember(digest, Remembered { identity: Arc::clone(&identity), until });
                Found::Verdict(Verification::Known(identity))
            }
            Err(why) => {
                // The caller logs the refusal at a bounded rate, because a client may send such a token repeatedly.
                tracing::debug!(%why, "a valid OpenID token cannot be mapped to a user");
                refused(why)
            }
        }
    }
}

impl Verifier for OpenIdTokens {
    fn verify(&self, credentials: &Credentials) -> Answer<Verification> {
        let token = credentials.bearer.as_ref().filter(|token| token.len() <= OIDC_TOKEN_BYTES);
        let Some(token) = token else { return Answer::Now(Verification::NoOpinion) };
        let digest = crate::auth::digest(token.as_bytes());
        if let Some(identity) = self.0.recall(&digest) {
            return Answer::Now(Verification::Known(identity));
        }
        let began = self.0.clock.moment();
        if let Found::Verdict(verdict) = self.0.examine(token, digest) {
            return Answer::Now(self.0.looked(began, verdict));
        }
        let (shared, token) = (Arc::clone(&self.0), token.clone());
        Answer::later(async move {
            let verdict = match shared.keys.fresher().await {
                Err(why) => Verification::Refused(format!("oidc: verify token: fetching keys: {why}")),
                Ok(()) => match shared.examine(&token, digest) {
                    Found::Verdict(verdict) => verdict,
                    Found::Unsigned(why) => Verification::Refused(why.to_owned()),
                },
            };
            shared.looked(began, verdict)
        })
    }
}

#[cfg(test)]
mod test_provider;
#[cfg(test)]
mod tests;
