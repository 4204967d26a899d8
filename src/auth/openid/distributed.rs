//! Distributed claims: the groups of a user that are not in the token but at an endpoint that the token names.
//!
//! The provider has signed the address of the endpoint, and the endpoint answers with a signed token of its own. Its issuer may be
//! another one, whose keys are then kept here like those of the provider. Everything runs within the request that presents the token.
//! Only https is spoken, and redirects are not followed, so that an access token reaches nobody but the endpoint.

use std::sync::Arc;

use pilothouse_client::kubeconfig::{Access, Credentials};
use pilothouse_client::upstream::pool::{Pool, Purpose};
use pilothouse_client::webhook::Service;
use pilothouse_types::clock::{Clock, Moment, Timestamp};
use pilothouse_types::lock::Lock;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::provider::Provider;
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

/// Fetches distributed claims for the tokens of one provider.
pub struct ClaimResolver {
    /// The connections of this server.
    pool: Arc<Pool>,
    /// The keys of the provider itself, which may also issue the claims.
    own_keys: Arc<Keys>,
    /// The CAs to verify endpoints and issuers with, as PEM: those of the provider. `None` for those of the system.
    authority_pem: Option<Vec<u8>>,
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
    _task: AbortOnDropHandle<()>,
}

impl ClaimResolver {
    /// A resolver for the provider with these keys and CAs.
    pub(super) fn new(
        own_keys: Arc<Keys>,
        authority_pem: Option<Vec<u8>>,
        clock: Clock,
        pool: Arc<Pool>,
    ) -> ClaimResolver {
        ClaimResolver {
            pool,
            own_keys,
            authority_pem,
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
    ) -> Result<Option<ResolvedClaim>, String> {
        let resolve_in_turn = async {
            let _waiting =
                self.waiting.try_acquire().map_err(|_| "too many tokens wait for their claims".to_owned())?;
            let _call = self.calls.acquire().await.map_err(|error| error.to_string())?;
            match is_settled() {
                true => Ok(None),
                false => self.fetch_and_verify(rules, claim, source).await.map(Some),
            }
        };
        timeout(OIDC_CLAIM_TIMEOUT, resolve_in_turn)
            .await
            .unwrap_or_else(|_| Err(format!("no result within {OIDC_CLAIM_TIMEOUT:?}")))
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
        let keys = self.keys_of_issuer(rules, claims.issuer()).await?;
        if let Err(first_error) = verify_signature(&keys, &token) {
            keys.refetch().await.map_err(|reason| invalid(format!("{first_error}: {reason}")))?;
            verify_signature(&keys, &token).map_err(|error| match error {
                SignatureError::NoKeys => {
                    format!("verifier not initialized for issuer: {:?}", claims.issuer())
                }
                SignatureError::Mismatch => invalid(error.to_string()),
            })?;
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
        let access =
            Access { authority_pem: self.authority_pem.clone(), credentials, ..Access::to_server(endpoint) };
        // Reading the CAs of the system takes longer than a worker may be held.
        let pool = self.pool.clone();
        let service = spawn_blocking(move || Service::with_purpose(Purpose::OpenId, &access, &pool)).await;
        let service = service.map_err(|error| error.to_string())?.map_err(|failure| failure.to_string())?;
        let response = service.get(OIDC_CLAIM_BYTES, OIDC_CLAIM_TIMEOUT).await;
        response.map_err(|failure| format!("error while getting distributed claim JWT: {failure}"))
    }

    /// The keys of an issuer, which may still be fetched.
    async fn keys_of_issuer(&self, rules: &ClaimMapping, issuer: &str) -> Result<Arc<Keys>, String> {
        if rules.is_issuer(issuer) {
            return Ok(Arc::clone(&self.own_keys));
        }
        if let Some(keys) = self.known_keys(issuer) {
            return Ok(keys);
        }
        if !issuer.starts_with("https://") {
            return Err(format!("verifying untrusted issuer {issuer} failed: it is not an https URL"));
        }
        let keys = Arc::new(Keys::new(self.clock.clone()));
        let (issuer_rules, pem) = (rules.for_issuer(issuer), self.authority_pem.clone());
        let (provider_keys, pool) = (Arc::clone(&keys), self.pool.clone());
        let provider = spawn_blocking(move || Provider::new(&issuer_rules, pem, provider_keys, &pool)).await;
        let provider = provider
            .map_err(|error| error.to_string())?
            .map_err(|reason| format!("verifying untrusted issuer {issuer} failed: {reason}"))?;
        // Another request may have been faster.
        if let Some(keys) = self.known_keys(issuer) {
            return Ok(keys);
        }
        let added = Arc::new(ClaimIssuer {
            name: issuer.to_owned(),
            keys: Arc::clone(&keys),
            _task: AbortOnDropHandle::new(actix::spawn(provider.run())),
        });
        let removed = {
            let mut issuers = self.issuers.lock();
            let oldest =
                issuers.iter().enumerate().min_by_key(|(_, (_, used))| *used).map(|(index, _)| index);
            let removed = oldest.filter(|_| issuers.len() >= OIDC_CLAIM_ISSUERS);
            let removed = removed.map(|index| issuers.swap_remove(index));
            issuers.push((added, self.clock.moment()));
            removed
        };
        drop(removed);
        Ok(keys)
    }

    fn known_keys(&self, issuer: &str) -> Option<Arc<Keys>> {
        let mut issuers = self.issuers.lock();
        let (known, used) = issuers.iter_mut().find(|(known, _)| known.name == issuer)?;
        *used = self.clock.moment();
        Some(Arc::clone(&known.keys))
    }
}

#[cfg(test)]
mod tests;
