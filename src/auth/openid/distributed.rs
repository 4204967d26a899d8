//! Distributed claims: the groups of a user that are not in the token but at an endpoint that the token names.
//!
//! The provider has signed the address of the endpoint, and the endpoint answers with a signed token of its own. Its issuer is the
//! provider, or one at the host of the endpoint, whose keys are then kept here like those of the provider. Any other issuer is named by
//! the endpoint alone: if it were asked for its keys, an endpoint could have this server call every address that it reaches.
//! Everything runs within the request that presents the token. Only https is spoken, and redirects are not followed, so that an access
//! token reaches nobody but the endpoint.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pilothouse_client::kubeconfig::Credentials;
use pilothouse_client::upstream::pool::Pool;
use pilothouse_client::webhook::{Service, TrustAnchors};
use pilothouse_types::clock::{Clock, Moment, Timestamp};
use pilothouse_types::lock::Lock;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::provider::{Provider, is_same_origin};
use super::rules::{ClaimMapping, Claims};
use super::{Keys, SignatureError, verify_signature};
use crate::auth::jwt::Token;
use crate::limits::{
    OIDC_CLAIM_BYTES, OIDC_CLAIM_CALLS, OIDC_CLAIM_ISSUERS, OIDC_CLAIM_TIMEOUT, OIDC_CLAIM_WAITING,
};

/// Where the value of a distributed claim is.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct ClaimSource {
    pub(super) endpoint: Option<String>,
    access_token: Option<String>,
}

/// The value of a distributed claim.
pub(super) struct ResolvedClaim {
    pub(super) value: Value,
    /// When the token that contains it expires.
    pub(super) expiry: Timestamp,
}

/// Why there is no value.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum ResolveError {
    /// The endpoint, or the issuer of its response, is the reason: asking again would have the same result for now.
    #[error("{0}")]
    Failed(String),
    /// It was never this token's turn.
    #[error("{0}")]
    Busy(String),
}

/// Fetches distributed claims for the tokens of one provider.
pub struct ClaimResolver {
    /// The connections of this server.
    pool: Arc<Pool>,
    /// The keys of the provider itself, which may also issue the claims.
    own_keys: Arc<Keys>,
    /// The CAs to verify endpoints and issuers with: those of the provider.
    anchors: TrustAnchors,
    clock: Clock,
    /// Issuers of claims other than the provider, with the time of their last use. A std mutex: held for one lookup or one change.
    issuers: Lock<Vec<(Arc<ClaimIssuer>, Moment)>>,
    /// Bounds the calls, and the tokens that wait for one.
    calls: Semaphore,
    waiting: Semaphore,
}

/// An issuer of claims, and the task that fetches its keys. The task ends on drop.
struct ClaimIssuer {
    name: String,
    keys: Arc<Keys>,
    /// Whether they have verified a claim.
    has_verified: AtomicBool,
    _task: AbortOnDropHandle<()>,
}

/// The keys of the issuer of a claim, which stay up to date as long as this lives.
struct IssuerKeys {
    keys: Arc<Keys>,
    /// `None` for the provider.
    issuer: Option<Arc<ClaimIssuer>>,
}

impl From<Arc<ClaimIssuer>> for IssuerKeys {
    fn from(issuer: Arc<ClaimIssuer>) -> IssuerKeys {
        IssuerKeys { keys: Arc::clone(&issuer.keys), issuer: Some(issuer) }
    }
}

impl ClaimResolver {
    /// A resolver for the provider with these keys and CAs.
    pub(super) fn new(
        own_keys: Arc<Keys>,
        anchors: TrustAnchors,
        clock: Clock,
        pool: Arc<Pool>,
    ) -> ClaimResolver {
        ClaimResolver {
            pool,
            own_keys,
            anchors,
            clock,
            issuers: Lock::default(),
            calls: Semaphore::new(OIDC_CLAIM_CALLS),
            waiting: Semaphore::new(OIDC_CLAIM_WAITING),
        }
    }

    /// Fetches a claim and verifies it. `is_settled` is evaluated when it is the token's turn: it tells that another request with the
    /// same token has done the work, and then nothing is fetched.
    pub(super) async fn resolve(
        &self,
        rules: &ClaimMapping,
        claim: &str,
        source: &ClaimSource,
        is_settled: impl Fn() -> bool,
    ) -> Result<Option<ResolvedClaim>, ResolveError> {
        let has_begun = Cell::new(false);
        let resolve_in_turn = async {
            let busy = || ResolveError::Busy("too many tokens wait for their claims".to_owned());
            let _waiting = self.waiting.try_acquire().map_err(|_| busy())?;
            let _call = self.calls.acquire().await.map_err(|_| busy())?;
            if is_settled() {
                return Ok(None);
            }
            has_begun.set(true);
            self.fetch_and_verify(rules, claim, source).await.map(Some).map_err(ResolveError::Failed)
        };
        timeout(OIDC_CLAIM_TIMEOUT, resolve_in_turn).await.unwrap_or_else(|_| {
            let reason = format!("no result within {OIDC_CLAIM_TIMEOUT:?}");
            Err(if has_begun.get() { ResolveError::Failed(reason) } else { ResolveError::Busy(reason) })
        })
    }

    async fn fetch_and_verify(
        &self,
        rules: &ClaimMapping,
        claim: &str,
        source: &ClaimSource,
    ) -> Result<ResolvedClaim, String> {
        let endpoint = source.endpoint.as_deref().unwrap_or_default();
        let body = self.fetch(source).await;
        let body = body.map_err(|reason| format!("while getting distributed claim {claim:?}: {reason}"))?;
        let unreadable = || {
            format!(
                "getting untrusted issuer from endpoint {endpoint} failed for claim {claim:?}: malformed token"
            )
        };
        let text = std::str::from_utf8(&body).map_err(|_| unreadable())?.trim();
        let token = Token::parse(text).ok_or_else(unreadable)?;
        let claims = Claims::parse(&token).ok_or_else(unreadable)?;
        let invalid = |reason: String| format!("verify distributed claim token: {reason}");
        let expiry = rules.check(&token, &claims, self.clock.now()).map_err(invalid)?;
        let IssuerKeys { keys, issuer } = self.keys_of_issuer(rules, claims.issuer(), endpoint)?;
        if let Err(first_error) = verify_signature(&keys, &token) {
            keys.refetch().await.map_err(|reason| invalid(format!("{first_error}: {reason}")))?;
            verify_signature(&keys, &token).map_err(|error| match error {
                SignatureError::NoKeys => {
                    format!("verifier not initialized for issuer: {:?}", claims.issuer())
                }
                SignatureError::Mismatch => invalid(error.to_string()),
            })?;
        }
        if let Some(issuer) = issuer {
            self.keep_verified(issuer);
        }
        let value = claims.get(claim).cloned().ok_or_else(|| {
            format!("jwt returned by distributed claim endpoint {endpoint:?} did not contain claim: {claim}")
        })?;
        Ok(ResolvedClaim { value, expiry })
    }

    async fn fetch(&self, source: &ClaimSource) -> Result<Vec<u8>, String> {
        let endpoint = source.endpoint.clone().unwrap_or_default();
        // Over plain HTTP an attacker on the path could read the access token.
        if !endpoint.starts_with("https://") {
            return Err(format!("the endpoint {endpoint:?} is not an https URL"));
        }
        let credentials = match source.access_token.as_deref() {
            None | Some("") => Credentials::None,
            Some(token) => Credentials::Token(token.to_owned()),
        };
        let service = Service::for_open_id(&self.anchors, &endpoint, credentials, &self.pool);
        let service = service.map_err(|failure| failure.to_string())?;
        let response = service.get(OIDC_CLAIM_BYTES, OIDC_CLAIM_TIMEOUT).await;
        response.map_err(|failure| format!("error while getting distributed claim JWT: {failure}"))
    }

    /// The keys of an issuer, which may still be fetched.
    fn keys_of_issuer(
        &self,
        rules: &ClaimMapping,
        issuer: &str,
        endpoint: &str,
    ) -> Result<IssuerKeys, String> {
        if rules.is_issuer(issuer) {
            return Ok(IssuerKeys { keys: Arc::clone(&self.own_keys), issuer: None });
        }
        let untrusted = |reason: &str| format!("verifying untrusted issuer {issuer} failed: {reason}");
        // Also for issuers whose keys are known: one endpoint must not speak for the issuer of another.
        if !is_same_origin(issuer, endpoint) {
            return Err(untrusted("it is neither the provider nor at the https host of the endpoint"));
        }
        let mut issuers = self.issuers.lock();
        let known = issuers.iter_mut().find(|(known, _)| known.name == issuer);
        if let Some((known, used)) = known {
            *used = self.clock.moment();
            return Ok(Arc::clone(known).into());
        }
        let keys = Arc::new(Keys::new(self.clock.clone()));
        let (issuer_rules, anchors) = (rules.for_issuer(issuer), self.anchors.clone());
        let provider = Provider::new(&issuer_rules, anchors, Arc::clone(&keys), &self.pool);
        let provider = provider.map_err(|reason| untrusted(&reason))?.bound_to_host();
        let added = Arc::new(ClaimIssuer {
            name: issuer.to_owned(),
            keys,
            has_verified: AtomicBool::new(false),
            _task: AbortOnDropHandle::new(actix::spawn(provider.run())),
        });
        // An issuer that may prove worthless takes no place of one that has verified claims.
        let (has_room, evicted) = make_room(&mut issuers, |issuer| !issuer.has_verified());
        if has_room {
            issuers.push((Arc::clone(&added), self.clock.moment()));
        }
        drop(issuers);
        drop(evicted);
        Ok(added.into())
    }

    /// Keeps an issuer that has verified a claim.
    fn keep_verified(&self, issuer: Arc<ClaimIssuer>) {
        if issuer.has_verified.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut issuers = self.issuers.lock();
        if issuers.iter().any(|(known, _)| known.name == issuer.name) {
            return;
        }
        let (_, evicted) = make_room(&mut issuers, |_| true);
        issuers.push((issuer, self.clock.moment()));
        drop(issuers);
        drop(evicted);
    }
}

impl ClaimIssuer {
    fn has_verified(&self) -> bool {
        self.has_verified.load(Ordering::Relaxed)
    }
}

/// Whether there is room for another issuer, and the issuer that made room for it: of those that may go, one that has verified nothing,
/// or else the one that was used longest ago.
fn make_room(
    issuers: &mut Vec<(Arc<ClaimIssuer>, Moment)>,
    may_go: impl Fn(&ClaimIssuer) -> bool,
) -> (bool, Option<Arc<ClaimIssuer>>) {
    if issuers.len() < OIDC_CLAIM_ISSUERS {
        return (true, None);
    }
    let candidates = issuers.iter().enumerate().filter(|(_, (issuer, _))| may_go(issuer));
    let first = candidates.min_by_key(|(_, (issuer, used))| (issuer.has_verified(), *used));
    let evicted = first.map(|(index, _)| index).map(|index| issuers.swap_remove(index).0);
    (evicted.is_some(), evicted)
}

#[cfg(test)]
mod tests;
