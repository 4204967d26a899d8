//! Verifies service account tokens.
//!
//! A signature is verified once per token and cached. Whether the service account and the bound objects still exist is checked
//! for every request, but needs a message only if an object of those types has changed. So a token is invalid as soon as the
//! deletion of its account, pod or Secret is answered. `remarks` makes warnings and annotations about valid tokens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Verification, Verifier};
use pilothouse_types::authentication::Authenticated;
use pilothouse_types::clock::Clock;
use pilothouse_types::identity::{Credentials, Identity};
use pilothouse_types::lock::Lock;
use pilothouse_types::object::Key;

use super::bound_objects::{self, BoundObjectsState};
use super::claims::Claims;
use super::keys::Keys;
use super::legacy_use::{LAST_USED, LegacyTokenUse, LegacyUseSender, is_outdated};
use crate::auth::jwt::Token;
use crate::auth::token_objects::{Facts, LatestRevisions, TokenObjects};
use crate::limits::{TOKEN_BYTES, TOKENS_REMEMBERED};
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

struct Shared {
    keys: Arc<Keys>,
    rules: VerifierSettings,
    objects: Arc<TokenObjects>,
    clock: Clock,
    metrics: Arc<Metrics>,
    /// By the digest of the token, so that memory holds no tokens.
    remembered: Lock<HashMap<[u8; 32], Arc<Signed>>>,
    /// Where the use of legacy tokens is reported.
    uses: OnceLock<LegacyUseSender>,
}

/// A token with a valid signature.
struct Signed {
    claims: Claims,
    identity: Arc<Identity>,
    /// The newest revisions when all its objects were last found to exist.
    firm_at: Lock<Option<LatestRevisions>>,
    /// The day of that check since the epoch: the Secret of a legacy token is checked on each day of use.
    firm_on: AtomicU64,
    /// Whether the account listed the Secret of a legacy token then.
    listed: AtomicBool,
    /// The day of the last log message that it should be replaced.
    told_on: AtomicU64,
}

/// A valid token, and the requested audiences that it is valid for.
type Checked = (Arc<Signed>, Vec<String>);

impl ServiceAccountTokens {
    /// A verifier that trusts these keys.
    pub fn new(
        keys: Arc<Keys>,
        rules: VerifierSettings,
        objects: Arc<TokenObjects>,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> ServiceAccountTokens {
        ServiceAccountTokens(Arc::new(Shared {
            keys,
            rules,
            objects,
            clock,
            metrics,
            remembered: Lock::default(),
            uses: OnceLock::new(),
        }))
    }

    /// Reports the use of legacy tokens, once a day each.
    pub fn tell(&self, uses: LegacyUseSender) {
        let _already_told = self.0.uses.set(uses);
    }

    /// Verifies a token for one of `audiences`; for this server's own if empty. `None`: it is not a service account token of this
    /// cluster.
    pub fn examine(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Answer<Result<Option<Authenticated>, String>> {
        let (signed, audiences) = match self.0.check(token, audiences) {
            Ok(Some(found)) => found,
            Ok(None) => return Answer::Now(Ok(None)),
            Err(why) => return Answer::Now(Err(why)),
        };
        let today = self.0.today();
        if !self.0.must_look(&signed.claims) || signed.is_firm(&self.0.objects.heads(), today) {
            return Answer::Now(Ok(Some(self.0.bearer(&signed, audiences))));
        }
        let shared = Arc::clone(&self.0);
        let token = if signed.claims.is_legacy() { token.to_owned() } else { String::new() };
        Answer::later(async move {
            shared.look(&signed, &token).await?;
            Ok(Some(shared.bearer(&signed, audiences)))
        })
    }
}

impl Shared {
    /// All checks that need no other object.
    fn check(&self, token: &str, audiences: &[String]) -> Result<Option<Checked>, String> {
        if token.len() > TOKEN_BYTES {
            return Ok(None);
        }
        let Some(signed) = self.signed(token)? else { return Ok(None) };
        let claims = &signed.claims;
        let ours = &self.rules.audiences;
        if claims.audiences.is_empty() {
            self.metrics.tokens.legacy.inc();
        }
        let of_token = if claims.audiences.is_empty() { ours } else { &claims.audiences };
        let wanted = if audiences.is_empty() { ours } else { audiences };
        let common: Vec<String> = wanted.iter().filter(|name| of_token.contains(name)).cloned().collect();
        if common.is_empty() && !ours.is_empty() {
            return Err(format!(
                "token audiences {} is invalid for the target audiences {}",
                quoted(of_token),
                quoted(wanted)
            ));
        }
        if claims.is_legacy() {
            bound_objects::check_legacy(claims)?;
        } else {
            claims.check_time(self.clock.now())?;
        }
        Ok(Some((signed, common)))
    }

    /// The token, if its signature is valid.
    fn signed(&self, token: &str) -> Result<Option<Arc<Signed>>, String> {
        let (digest, began) = (crate::auth::digest(token.as_bytes()), self.clock.moment());
        let known = self.remembered.lock().get(&digest).cloned();
        if let Some(known) = known {
            self.metrics.authentication.looked_up(true, self.clock.elapsed(began));
            return Ok(Some(known));
        }
        let Some(token) = Token::parse(token) else { return Ok(None) };
        let Some(claims) = token.claims::<Claims>() else { return Ok(None) };
        // The issuer of legacy tokens issues no bound ones, unless it is configured.
        if !claims.is_legacy() && !self.rules.issuers.contains(&claims.issuer) {
            return Ok(None);
        }
        let fetch = self.metrics.authentication.fetch();
        let checked = self.keys.signed(&token);
        self.metrics.authentication.looked_up(false, self.clock.elapsed(began));
        // The claims may be used now: the signature covers the text that they were parsed from.
        checked?;
        fetch.succeeded();
        let identity = Arc::new(claims.identity());
        let signed = Arc::new(Signed {
            claims,
            identity,
            firm_at: Lock::default(),
            firm_on: AtomicU64::default(),
            listed: AtomicBool::default(),
            told_on: AtomicU64::default(),
        });
        let mut remembered = self.remembered.lock();
        let forgotten = match remembered.len() >= TOKENS_REMEMBERED {
            true => std::mem::take(&mut *remembered),
            false => HashMap::new(),
        };
        remembered.insert(digest, Arc::clone(&signed));
        // Freeing thousands of entries takes a while, so it happens outside of the lock.
        drop(remembered);
        drop(forgotten);
        Ok(Some(signed))
    }

    fn must_look(&self, claims: &Claims) -> bool {
        self.rules.lookup || !claims.is_legacy()
    }

    /// Checks all objects of the token.
    async fn look(&self, signed: &Signed, token: &str) -> Result<(), String> {
        // Before the check: objects that change during it are checked again.
        let (heads, today) = (self.objects.heads(), self.today());
        let found = match &signed.claims.bound {
            Some(bound) => bound_objects::of_bound(&self.objects, bound, self.clock.now()).await?,
            None if signed.claims.is_legacy() => {
                let used = |secret: &Facts| self.tell_of(&signed.claims, secret);
                let listed = bound_objects::of_legacy(&self.objects, &signed.claims, token, used).await?;
                signed.listed.store(listed, Ordering::Relaxed);
                BoundObjectsState::Firm
            }
            None => return Err("the token names no service account".to_owned()),
        };
        signed.firm_on.store(today, Ordering::Relaxed);
        *signed.firm_at.lock() = Some(heads).filter(|_| found == BoundObjectsState::Firm);
        Ok(())
    }

    fn today(&self) -> u64 {
        self.clock.now().seconds() / 86_400
    }

    /// Reports the use of a legacy token, unless its Secret has today's label.
    fn tell_of(&self, claims: &Claims, secret: &Facts) {
        if bound_objects::is_marked_invalid(secret) {
            self.metrics.tokens.invalidated.inc();
        }
        let label = secret.metadata.labels.get(LAST_USED).map(String::as_str);
        let Some(uses) = self.uses.get().filter(|_| is_outdated(label, self.clock.now())) else { return };
        let used = LegacyTokenUse {
            secret: Key::namespaced(&claims.namespace, &claims.secret_name),
            uid: secret.metadata.uid.clone(),
        };
        let _said_again_by_the_next_request = uses.try_send(used);
    }
}

impl Signed {
    /// Whether no type of the token's objects has changed since the last successful check.
    fn is_firm(&self, now: &LatestRevisions, today: u64) -> bool {
        if self.claims.is_legacy() && self.firm_on.load(Ordering::Relaxed) != today {
            return false;
        }
        let then = *self.firm_at.lock();
        let Some(then) = then else { return false };
        let uses = self.claims.kinds();
        now.iter().zip(&then).zip(uses).all(|((now, then), used)| !used || (now.is_some() && now == then))
    }
}

impl Claims {
    /// The types of the token's objects, in the order of [`crate::auth::token_objects::TokenObjectKind`].
    fn kinds(&self) -> [bool; crate::auth::token_objects::KINDS] {
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
    let all: Vec<String> = texts.iter().map(|text| format!("{text:?}")).collect();
    format!("[{}]", all.join(" "))
}

fn verdict(found: Result<Option<Authenticated>, String>) -> Verification {
    match found {
        Ok(Some(bearer)) => Verification::KnownFor(bearer),
        Ok(None) => Verification::NoOpinion,
        Err(why) => Verification::Refused(why),
    }
}

mod remarks;

#[cfg(test)]
mod tests;
