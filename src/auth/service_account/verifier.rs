//! Verifies the tokens of service accounts.
//!
//! A signature is checked once per token and remembered. Whether the account and what else a token hangs on are still there
//! is looked up for every request, but costs a message only if something of those types has changed since: so a token is worth
//! nothing from the moment on in which the deletion of its account, pod or secret is answered. `remarks` says of those that
//! are good what their bearers should know.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Bearer, Verdict, Verifier};
use pilothouse_actors::clock::Clock;
use pilothouse_actors::identity::{Credentials, Identity};
use pilothouse_actors::lock::Lock;
use pilothouse_actors::object::Key;

use super::claims::{Claims, LEGACY_ISSUER};
use super::keys::Keys;
use super::standing::{self, Standing};
use super::used::{LAST_USED, Used, Uses, is_outdated};
use crate::auth::jwt::Token;
use crate::auth::objects::{Facts, Heads, Objects};
use crate::limits::{TOKEN_BYTES, TOKENS_REMEMBERED};
use crate::metrics::Metrics;

/// Which tokens are accepted.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Who may have made them.
    pub issuers: Vec<String>,
    /// What they must be meant for.
    pub audiences: Vec<String>,
    /// Whether tokens that lie in secrets are looked up.
    pub lookup: bool,
}

/// Knows the tokens of service accounts. Cheap to clone.
#[derive(Clone)]
pub struct ServiceAccountTokens(Arc<Shared>);

struct Shared {
    keys: Arc<Keys>,
    rules: Rules,
    objects: Arc<Objects>,
    clock: Clock,
    metrics: Arc<Metrics>,
    /// By the digest of the token: memory shall not hold what opens doors.
    remembered: Lock<HashMap<[u8; 32], Arc<Signed>>>,
    /// Who wants to know which tokens of secrets are used.
    uses: OnceLock<Uses>,
}

/// A token that somebody signed who may.
struct Signed {
    claims: Claims,
    identity: Arc<Identity>,
    /// How far the types had come when everything it hangs on was last found in place.
    firm_at: Lock<Option<Heads>>,
    /// The day of that, since the epoch: a token of a secret is looked at on each day on which it is used.
    firm_on: AtomicU64,
    /// Whether the account listed the secret then that the token lies in.
    listed: AtomicBool,
    /// The day on which the log was last told that it should be replaced.
    told_on: AtomicU64,
}

/// A token that is good by itself, and which of the wanted audiences it is meant for.
type Checked = (Arc<Signed>, Vec<String>);

impl ServiceAccountTokens {
    /// A verifier that trusts these keys.
    pub fn new(
        keys: Arc<Keys>,
        rules: Rules,
        objects: Arc<Objects>,
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

    /// Tells of tokens that lie in secrets and are used, once a day each.
    pub fn tell(&self, uses: Uses) {
        let _already_told = self.0.uses.set(uses);
    }

    /// Says who bears a token that must be meant for one of `audiences`; those of this server if there are none. `None`: it
    /// is not a token of service accounts of this cluster at all.
    pub fn examine(&self, token: &str, audiences: &[String]) -> Answer<Result<Option<Bearer>, String>> {
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
    /// Everything that needs no other object.
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
            standing::check_legacy(claims)?;
        } else {
            claims.check_time(self.clock.now())?;
        }
        Ok(Some((signed, common)))
    }

    /// The token, if its signature is good.
    fn signed(&self, token: &str) -> Result<Option<Arc<Signed>>, String> {
        let (digest, began) = (crate::auth::digest(token.as_bytes()), self.clock.now());
        let known = self.remembered.lock().get(&digest).cloned();
        if let Some(known) = known {
            self.metrics.authentication.looked_up(true, began, self.clock.now());
            return Ok(Some(known));
        }
        let Some(token) = Token::parse(token) else { return Ok(None) };
        let Some(claims) = token.claims::<Claims>() else { return Ok(None) };
        if claims.issuer != LEGACY_ISSUER && !self.rules.issuers.contains(&claims.issuer) {
            return Ok(None);
        }
        let fetch = self.metrics.authentication.fetch();
        let checked = self.keys.signed(&token);
        self.metrics.authentication.looked_up(false, began, self.clock.now());
        // From here on the claims count: the signature is one of the very text they were read from.
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
        // Thousands of them take a while to let go, and others look for theirs.
        drop(remembered);
        drop(forgotten);
        Ok(Some(signed))
    }

    fn must_look(&self, claims: &Claims) -> bool {
        self.rules.lookup || !claims.is_legacy()
    }

    /// Looks at everything that the token hangs on.
    async fn look(&self, signed: &Signed, token: &str) -> Result<(), String> {
        // Before the look: what changes while we look is looked at again.
        let (heads, today) = (self.objects.heads(), self.today());
        let found = match &signed.claims.bound {
            Some(bound) => standing::of_bound(&self.objects, bound, self.clock.now()).await?,
            None if signed.claims.is_legacy() => {
                let used = |secret: &Facts| self.tell_of(&signed.claims, secret);
                let listed = standing::of_legacy(&self.objects, &signed.claims, token, used).await?;
                signed.listed.store(listed, Ordering::Relaxed);
                Standing::Firm
            }
            None => return Err("the token names no service account".to_owned()),
        };
        signed.firm_on.store(today, Ordering::Relaxed);
        *signed.firm_at.lock() = Some(heads).filter(|_| found == Standing::Firm);
        Ok(())
    }

    fn today(&self) -> u64 {
        self.clock.now().seconds() / 86_400
    }

    /// Says that the token of a secret is used, if the secret does not say so for today.
    fn tell_of(&self, claims: &Claims, secret: &Facts) {
        if standing::is_marked_invalid(secret) {
            self.metrics.tokens.invalidated.inc();
        }
        let label = secret.metadata.labels.get(LAST_USED).map(String::as_str);
        let Some(uses) = self.uses.get().filter(|_| is_outdated(label, self.clock.now())) else { return };
        let used = Used {
            secret: Key::namespaced(&claims.namespace, &claims.secret_name),
            uid: secret.metadata.uid.clone(),
        };
        let _said_again_by_the_next_request = uses.try_send(used);
    }
}

impl Signed {
    /// Whether nothing of the types that the token hangs on has changed since all was found in place.
    fn is_firm(&self, now: &Heads, today: u64) -> bool {
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
    /// Which types the token hangs on, in the order of [`crate::auth::objects::Kind`].
    fn kinds(&self) -> [bool; crate::auth::objects::KINDS] {
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
    fn verify(&self, credentials: &Credentials) -> Answer<Verdict> {
        let Some(token) = &credentials.bearer else {
            return Answer::Now(Verdict::NoOpinion);
        };
        self.examine(token, &credentials.audiences).map(verdict)
    }
}

/// Texts as the reference lists them.
fn quoted(texts: &[String]) -> String {
    let all: Vec<String> = texts.iter().map(|text| format!("{text:?}")).collect();
    format!("[{}]", all.join(" "))
}

fn verdict(found: Result<Option<Bearer>, String>) -> Verdict {
    match found {
        Ok(Some(bearer)) => Verdict::KnownFor(bearer),
        Ok(None) => Verdict::NoOpinion,
        Err(why) => Verdict::Refused(why),
    }
}

mod remarks;

#[cfg(test)]
mod tests;
