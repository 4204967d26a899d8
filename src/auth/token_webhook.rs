//! The token webhook: a remote server gets a TokenReview and returns the user. Responses are cached for a while; concurrent
//! requests with the same token share one call. If the call fails or its response is invalid, the token is refused.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use openssl::sha::Sha256;
use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Verification, Verifier};
use pilothouse_client::webhook::Service;
use pilothouse_types::authentication::Authenticated;
use pilothouse_types::bounded::ExpiringCache;
use pilothouse_types::clock::Clock;
use pilothouse_types::identity::{Credentials, Identity};
use pilothouse_types::lock::Lock;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::OnceCell;

use crate::limits::{WEBHOOK_CACHE_ENTRIES, WEBHOOK_CACHED_BYTES};
use crate::metrics::Metrics;

const KIND: &str = "TokenReview";

/// The settings of the webhook.
pub struct Settings {
    /// The version of TokenReview.
    pub version: String,
    /// How long responses are cached.
    pub cache_ttl: Duration,
    /// The default audiences.
    pub audiences: Arc<[String]>,
}

/// The digest of a token and its audiences, so that memory holds no tokens.
type Digest = [u8; 32];

/// The result of a review: a verification that may be cached, or the error.
type ReviewOutcome = Result<Verification, String>;

/// Verifies bearer tokens through the webhook.
pub struct WebhookTokenVerifier(Arc<Inner>);

struct Inner {
    service: Service,
    settings: Settings,
    metrics: Arc<Metrics>,
    clock: Clock,
    cache: Lock<ExpiringCache<Digest, Verification, WEBHOOK_CACHE_ENTRIES>>,
    /// Calls in progress. At most one per request.
    calls: Lock<HashMap<Digest, Arc<OnceCell<ReviewOutcome>>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    kind: String,
    api_version: String,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    authenticated: bool,
    user: User,
    audiences: Option<Vec<String>>,
    error: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
    uid: String,
    groups: Option<Vec<String>>,
    extra: Option<BTreeMap<String, Vec<String>>>,
}

impl WebhookTokenVerifier {
    /// A verifier that calls this server.
    pub fn new(
        service: Service,
        settings: Settings,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> WebhookTokenVerifier {
        let (cache, calls) = (Lock::default(), Lock::default());
        WebhookTokenVerifier(Arc::new(Inner { service, settings, metrics, clock, cache, calls }))
    }
}

fn digest(token: &str, audiences: &[String]) -> Digest {
    let mut digest = Sha256::new();
    // With their lengths, so that different inputs never have the same digest.
    for text in std::iter::once(token).chain(audiences.iter().map(String::as_str)) {
        digest.update(&text.len().to_be_bytes());
        digest.update(text.as_bytes());
    }
    digest.finish()
}

impl Inner {
    /// Makes the call, or waits for one with the same token.
    async fn review(self: Arc<Inner>, token: String, audiences: Arc<[String]>, key: Digest) -> Verification {
        let cell = Arc::clone(self.calls.lock().entry(key).or_default());
        let waiting = Waiting { inner: &self, key, cell };
        // If the caller goes away, the next waiter makes the call.
        let outcome = waiting.cell.get_or_init(|| self.call(&token, &audiences, key)).await.clone();
        outcome.unwrap_or_else(Verification::Refused)
    }

    async fn call(&self, token: &str, audiences: &[String], key: Digest) -> ReviewOutcome {
        let fetching = self.metrics.authentication.fetch();
        let version = &self.settings.version;
        let mut spec = json!({"token": token});
        if !audiences.is_empty() {
            spec["audiences"] = json!(audiences);
        }
        let review = json!({
            "kind": KIND,
            "apiVersion": format!("authentication.k8s.io/{version}"),
            "metadata": {"creationTimestamp": null},
            "spec": spec,
            "status": {"user": {}},
        });
        let response = self.service.call_with_retries(&review.to_string()).await.map_err(|failure| {
            tracing::debug!(%failure, "token webhook call failed");
            format!("the token webhook cannot be called: {failure}")
        })?;
        let status = self.parse(&response).map_err(|reason| {
            tracing::debug!(reason, "the token webhook sent an invalid response");
            format!("the token webhook sent an invalid response: {reason}")
        })?;
        fetching.count_success();
        let verification = self.verdict(status, audiences);
        // Errors may be transient. Long responses are not cached.
        if !matches!(verification, Verification::Refused(_)) && response.len() < WEBHOOK_CACHED_BYTES {
            let now = self.clock.now();
            let expiry = now.plus(self.settings.cache_ttl);
            let evicted = self.cache.lock().insert(key, verification.clone(), expiry, now);
            drop(evicted);
        }
        Ok(verification)
    }

    fn parse(&self, response: &[u8]) -> Result<Status, String> {
        let review: Review = serde_json::from_slice(response).map_err(|error| error.to_string())?;
        let api_version = format!("authentication.k8s.io/{}", self.settings.version);
        if review.kind != KIND || review.api_version != api_version {
            return Err(format!("it is not a {KIND} of {api_version}"));
        }
        if review.status.authenticated && review.status.user.username.is_empty() {
            return Err("an authenticated user has no name".to_owned());
        }
        Ok(review.status)
    }

    fn verdict(&self, status: Status, audiences: &[String]) -> Verification {
        // A server that ignores audiences accepts tokens for this server's own.
        let accepted = status.audiences.filter(|all| !all.is_empty());
        let accepted = accepted.as_deref().unwrap_or(&self.settings.audiences);
        let shared: Vec<String> = audiences.iter().filter(|name| accepted.contains(name)).cloned().collect();
        if shared.is_empty() && !audiences.is_empty() {
            return Verification::NoOpinion;
        }
        if !status.authenticated {
            let has_no_error = status.error.is_empty();
            return if has_no_error { Verification::NoOpinion } else { Verification::Refused(status.error) };
        }
        let identity = Identity {
            name: status.user.username,
            uid: status.user.uid,
            groups: status.user.groups.unwrap_or_default(),
            extra: status.user.extra.unwrap_or_default(),
        };
        Verification::KnownFor(Authenticated {
            identity: Arc::new(identity),
            audiences: shared,
            remarks: Vec::new(),
        })
    }
}

/// A request that waits for a response. The last one removes the entry, with or without a response.
struct Waiting<'a> {
    inner: &'a Inner,
    key: Digest,
    cell: Arc<OnceCell<ReviewOutcome>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut calls = self.inner.calls.lock();
        // An entry with a response is removed, so that later requests call again. A count of two means that only the map and this waiter
        // hold it.
        let is_ours = calls.get(&self.key).is_some_and(|cell| Arc::ptr_eq(cell, &self.cell));
        if is_ours && (self.cell.initialized() || Arc::strong_count(&self.cell) == 2) {
            calls.remove(&self.key);
        }
    }
}

impl Verifier for WebhookTokenVerifier {
    fn verify(&self, credentials: &Credentials) -> Answer<Verification> {
        let Some(token) = &credentials.bearer else {
            return Answer::Now(Verification::NoOpinion);
        };
        let requested = &credentials.audiences;
        let audiences = if requested.is_empty() { &self.0.settings.audiences } else { requested };
        let key = digest(token, audiences);
        let start = self.0.clock.moment();
        let cached = self.0.cache.lock().get(&key, self.0.clock.now()).cloned();
        if let Some(verdict) = cached {
            self.0.metrics.authentication.count_cache_lookup(true, self.0.clock.elapsed(start));
            return Answer::Now(verdict);
        }
        let (inner, token, audiences) = (Arc::clone(&self.0), token.clone(), Arc::clone(audiences));
        Answer::later(async move {
            let verdict = Arc::clone(&inner).review(token, audiences, key).await;
            inner.metrics.authentication.count_cache_lookup(false, inner.clock.elapsed(start));
            verdict
        })
    }
}

#[cfg(test)]
mod tests;
