//! Verifies service account tokens.
//!
//! A signature is verified once per token and cached. Whether the service account and the bound objects still exist is checked
//! for every request, but needs a message only if an object of those types has changed. So a token is invalid as soon as the
//! deletion of its account, pod or Secret is answered. `remarks` makes warnings and audit annotations about valid tokens.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Verification, Verifier};
use pilothouse_types::authentication::Authenticated;
use pilothouse_types::bounded::BoundedCache;
use pilothouse_types::clock::Clock;
use pilothouse_types::identity::{Credentials, Identity};
use pilothouse_types::lock::Lock;
use pilothouse_types::object::Key;

use super::bound_objects::{self, BoundObjectsState};
use super::claims::Claims;
use super::external_signer::ExternalKeys;
use super::keys::Keys;
use super::legacy_use::{LAST_USED, LegacyTokenUse, LegacyUseSender, is_outdated};
use crate::auth::jwt::{NO_KEYS, Token};
use crate::auth::token_objects::{LatestRevisions, TokenObject, TokenObjects};
use crate::limits::{CACHED_TOKENS, TOKEN_BYTES};
use crate::metrics::Metrics;

/// The accepted tokens.
#[derive(Clone, Debug)]
pub struct VerifierSettings {
    /// The accepted issuers.
    pub issuers: Vec<String>,
    /// The accepted audiences.
    pub audiences: Vec<String>,
    /// Whether the objects of legacy tokens are looked up.
    pub lookup: bool,
}

/// Verifies service account tokens. Cheap to clone.
#[derive(Clone)]
pub struct ServiceAccountTokens(Arc<Shared>);

/// The keys that verify tokens.
#[derive(Clone)]
pub enum TrustedKeys {
    /// Those of this server, which never change.
    Own(Arc<Keys>),
    /// Those of an external signer.
    External(Arc<ExternalKeys>),
}

impl TrustedKeys {
    /// The keys as of now.
    fn current(&self) -> Arc<Keys> {
        match self {
            TrustedKeys::Own(keys) => Arc::clone(keys),
            TrustedKeys::External(keys) => keys.current(),
        }
    }
}

struct Shared {
    keys: TrustedKeys,
    settings: VerifierSettings,
    objects: Arc<TokenObjects>,
    clock: Clock,
    metrics: Arc<Metrics>,
    /// By the digest of the token, so that memory holds no tokens.
    cache: Lock<BoundedCache<[u8; 32], Arc<VerifiedToken>, CACHED_TOKENS>>,
    /// Receives the use of legacy tokens.
    use_reports: OnceLock<LegacyUseSender>,
}

/// A token with a valid signature.
struct VerifiedToken {
    /// The keys that verified it: with others it is verified again.
    keys: Arc<Keys>,
    claims: Claims,
    identity: Arc<Identity>,
    /// The latest revisions when all its objects were last found to exist.
    verified_revisions: Lock<Option<LatestRevisions>>,
    /// The day of that check, in days since the epoch: the Secret of a legacy token is checked on each day of use.
    verified_day: AtomicU64,
    /// Whether the account listed the Secret of a legacy token at that check.
    is_listed: AtomicBool,
    /// The day of the last log message that it should be replaced.
    logged_day: AtomicU64,
}

/// A valid token, and the requested audiences that it is valid for.
type AcceptedToken = (Arc<VerifiedToken>, Vec<String>);

/// Why a token is not accepted.
enum TokenError {
    /// It names a key that is not known; a newer one might be it.
    UnknownKey,
    Refused(String),
}

impl<T: Into<String>> From<T> for TokenError {
    fn from(reason: T) -> TokenError {
        TokenError::Refused(reason.into())
    }
}

impl ServiceAccountTokens {
    /// A verifier that trusts these keys.
    pub fn new(
        keys: TrustedKeys,
        settings: VerifierSettings,
        objects: Arc<TokenObjects>,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> ServiceAccountTokens {
        ServiceAccountTokens(Arc::new(Shared {
            keys,
            settings,
            objects,
            clock,
            metrics,
            cache: Lock::default(),
            use_reports: OnceLock::new(),
        }))
    }

    /// Reports the use of legacy tokens, once a day each.
    pub fn report_uses_to(&self, use_reports: LegacyUseSender) {
        let _already_set = self.0.use_reports.set(use_reports);
    }

    /// Verifies a token for one of `audiences`; for this server's own if empty. `None`: it is not a service account token of this
    /// cluster.
    pub fn examine(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Answer<Result<Option<Authenticated>, String>> {
        let (verified, audiences) = match (self.0.check(token, audiences), &self.0.keys) {
            (Ok(Some(accepted)), _) => accepted,
            (Ok(None), _) => return Answer::Now(Ok(None)),
            (Err(TokenError::Refused(reason)), _) => return Answer::Now(Err(reason)),
            (Err(TokenError::UnknownKey), TrustedKeys::Own(_)) => {
                return Answer::Now(Err(NO_KEYS.to_owned()));
            }
            (Err(TokenError::UnknownKey), TrustedKeys::External(keys)) => {
                let (shared, keys) = (Arc::clone(&self.0), Arc::clone(keys));
                let (token, audiences) = (token.to_owned(), audiences.to_vec());
                return Answer::later(async move {
                    keys.refetch().await;
                    shared.examine_again(&token, &audiences).await
                });
            }
        };
        let today = self.0.today();
        if !self.0.needs_lookup(&verified.claims)
            || verified.is_unchanged(&self.0.objects.latest_revisions(), today)
        {
            return Answer::Now(Ok(Some(self.0.authenticated(&verified, audiences))));
        }
        let shared = Arc::clone(&self.0);
        let token = if verified.claims.is_legacy() { token.to_owned() } else { String::new() };
        Answer::later(async move {
            shared.check_objects(&verified, &token).await?;
            Ok(Some(shared.authenticated(&verified, audiences)))
        })
    }
}

impl Shared {
    /// Examines a token after its key was fetched, if there is one.
    async fn examine_again(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<Authenticated>, String> {
        match self.check(token, audiences) {
            Ok(Some((verified, audiences))) => {
                if self.needs_lookup(&verified.claims) {
                    self.check_objects(&verified, token).await?;
                }
                Ok(Some(self.authenticated(&verified, audiences)))
            }
            Ok(None) => Ok(None),
            Err(TokenError::Refused(reason)) => Err(reason),
            Err(TokenError::UnknownKey) => Err(NO_KEYS.to_owned()),
        }
    }

    /// Makes all checks that need no other object.
    fn check(&self, token: &str, audiences: &[String]) -> Result<Option<AcceptedToken>, TokenError> {
        if token.len() > TOKEN_BYTES {
            return Ok(None);
        }
        let Some(verified) = self.verified(token)? else { return Ok(None) };
        let claims = &verified.claims;
        let own_audiences = &self.settings.audiences;
        if claims.audiences.is_empty() {
            self.metrics.tokens.legacy.inc();
        }
        let token_audiences = if claims.audiences.is_empty() { own_audiences } else { &claims.audiences };
        let requested = if audiences.is_empty() { own_audiences } else { audiences };
        let accepted: Vec<String> =
            requested.iter().filter(|name| token_audiences.contains(name)).cloned().collect();
        if accepted.is_empty() && !own_audiences.is_empty() {
            return Err(format!(
                "token audiences {} is invalid for the target audiences {}",
                quoted(token_audiences),
                quoted(requested)
            )
            .into());
        }
        if claims.is_legacy() {
            bound_objects::check_legacy(claims)?;
        } else {
            claims.check_time(self.clock.now())?;
        }
        Ok(Some((verified, accepted)))
    }

    /// The token, if its signature is valid.
    fn verified(&self, token: &str) -> Result<Option<Arc<VerifiedToken>>, TokenError> {
        let (digest, start) = (crate::auth::digest(token.as_bytes()), self.clock.moment());
        let keys = self.keys.current();
        let cached = self.cache.lock().get(&digest).cloned();
        if let Some(cached) = cached.filter(|cached| Arc::ptr_eq(&cached.keys, &keys)) {
            self.metrics.authentication.count_cache_lookup(true, self.clock.elapsed(start));
            return Ok(Some(cached));
        }
        let Some(token) = Token::parse(token) else { return Ok(None) };
        let Some(claims) = token.claims::<Claims>() else { return Ok(None) };
        // The issuer of legacy tokens issues no bound ones, unless it is configured.
        if !claims.is_legacy() && !self.settings.issuers.contains(&claims.issuer) {
            return Ok(None);
        }
        let fetch = self.metrics.authentication.fetch();
        let verified_signature = keys.verify(&token);
        self.metrics.authentication.count_cache_lookup(false, self.clock.elapsed(start));
        if !keys.has_candidate(&token) {
            return Err(TokenError::UnknownKey);
        }
        // The claims may be used now: the signature covers the text that they were parsed from.
        verified_signature?;
        fetch.count_success();
        let identity = Arc::new(claims.identity());
        let verified = Arc::new(VerifiedToken {
            keys,
            claims,
            identity,
            verified_revisions: Lock::default(),
            verified_day: AtomicU64::default(),
            is_listed: AtomicBool::default(),
            logged_day: AtomicU64::default(),
        });
        let evicted = self.cache.lock().insert(digest, Arc::clone(&verified));
        drop(evicted);
        Ok(Some(verified))
    }

    /// Whether the objects of such a token are checked.
    fn needs_lookup(&self, claims: &Claims) -> bool {
        self.settings.lookup || !claims.is_legacy()
    }

    /// Checks all objects of the token.
    async fn check_objects(&self, verified: &VerifiedToken, token: &str) -> Result<(), String> {
        // Before the check: objects that change during it are checked again.
        let (latest, today) = (self.objects.latest_revisions(), self.today());
        let state = match &verified.claims.bound {
            Some(bound) => bound_objects::check_bound(&self.objects, bound, self.clock.now()).await?,
            None if verified.claims.is_legacy() => {
                let used = |secret: &TokenObject| self.report_use(&verified.claims, secret);
                let is_listed =
                    bound_objects::check_legacy_objects(&self.objects, &verified.claims, token, used).await?;
                verified.is_listed.store(is_listed, Ordering::Relaxed);
                BoundObjectsState::Present
            }
            None => return Err("the token names no service account".to_owned()),
        };
        verified.verified_day.store(today, Ordering::Relaxed);
        *verified.verified_revisions.lock() = Some(latest).filter(|_| state == BoundObjectsState::Present);
        Ok(())
    }

    fn today(&self) -> u64 {
        self.clock.now().seconds() / 86_400
    }

    /// Reports the use of a legacy token, unless its Secret has today's label.
    fn report_use(&self, claims: &Claims, secret: &TokenObject) {
        if bound_objects::is_marked_invalid(secret) {
            self.metrics.tokens.invalidated.inc();
        }
        let label = secret.metadata.labels.get(LAST_USED).map(String::as_str);
        let Some(use_reports) = self.use_reports.get().filter(|_| is_outdated(label, self.clock.now()))
        else {
            return;
        };
        let used = LegacyTokenUse {
            secret: Key::namespaced(&claims.namespace, &claims.secret_name),
            uid: secret.metadata.uid.clone(),
        };
        let _repeated_by_the_next_request = use_reports.try_send(used);
    }
}

impl VerifiedToken {
    /// Whether no type of the token's objects has changed since the last successful check.
    fn is_unchanged(&self, now: &LatestRevisions, today: u64) -> bool {
        if self.claims.is_legacy() && self.verified_day.load(Ordering::Relaxed) != today {
            return false;
        }
        let previous = *self.verified_revisions.lock();
        let Some(previous) = previous else { return false };
        let depends = self.claims.object_kinds();
        now.iter()
            .zip(&previous)
            .zip(depends)
            .all(|((now, previous), depends)| !depends || (now.is_some() && now == previous))
    }
}

impl Claims {
    /// The types of the token's objects, in the order of [`crate::auth::token_objects::TokenObjectKind`].
    fn object_kinds(&self) -> [bool; crate::auth::token_objects::KINDS] {
        match &self.bound {
            None => [true, true, false, false],
            Some(bound) => [
                true,
                bound.secret.is_some(),
                bound.pod.is_some(),
                bound.node.is_some() && bound.pod.is_none(),
            ],
        }
    }
}

impl Verifier for ServiceAccountTokens {
    fn verify(&self, credentials: &Credentials) -> Answer<Verification> {
        let Some(token) = &credentials.bearer else {
            return Answer::Now(Verification::NoOpinion);
        };
        self.examine(token, &credentials.audiences).map(verdict)
    }
}

/// Strings in Go's list format.
fn quoted(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| format!("{text:?}")).collect();
    format!("[{}]", quoted.join(" "))
}

fn verdict(result: Result<Option<Authenticated>, String>) -> Verification {
    match result {
        Ok(Some(authenticated)) => Verification::KnownFor(authenticated),
        Ok(None) => Verification::NoOpinion,
        Err(reason) => Verification::Refused(reason),
    }
}

mod remarks;

#[cfg(test)]
mod tests;
