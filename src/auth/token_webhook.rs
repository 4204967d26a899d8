//! The token webhook: a remote server gets a TokenReview and answers the user. Answers are cached for a while; concurrent
//! requests with the same token share one call. If the call fails or its answer is invalid, the token is refused.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use openssl::sha::Sha256;
use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Verification, Verifier};
use pilothouse_types::authentication::Authenticated;
use pilothouse_types::clock::Clock;
use pilothouse_types::identity::{Credentials, Identity};
use pilothouse_types::lock::Lock;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::OnceCell;

use super::expiring_cache::ExpiringCache;
use crate::limits::WEBHOOK_CACHED_BYTES;
use crate::metrics::Metrics;
use crate::webhook::Service;

const KIND: &str = "TokenReview";

/// The settings of the webhook.
pub struct Settings {
    /// The version of TokenReview.
    pub version: String,
    /// How long answers are cached.
    pub kept_for: Duration,
    /// The default audiences.
    pub audiences: Arc<[String]>,
}

/// The digest of a token and its audiences, so that memory holds no tokens.
type Digest = [u8; 32];

/// The answer about a token: a verdict to cache, or the error.
type ReviewOutcome = Result<Verification, String>;

/// The verifier.
pub struct WebhookTokenVerifier(Arc<Inner>);

struct Inner {
    service: Service,
    settings: Settings,
    metrics: Arc<Metrics>,
    clock: Clock,
    kept: ExpiringCache<Digest, Verification>,
    /// Calls in progress. At most one per request.
    open: Lock<HashMap<Digest, Arc<OnceCell<ReviewOutcome>>>>,
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
        let (kept, open) = (ExpiringCache::default(), Lock::default());
        WebhookTokenVerifier(Arc::new(Inner { service, settings, metrics, clock, kept, open }))
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
    async fn find_out(self: Arc<Inner>, token: String, wanted: Arc<[String]>, key: Digest) -> Verification {
        let cell = Arc::clone(self.open.lock().entry(key).or_default());
        let waiting = Waiting { inner: &self, key, cell };
        // If the caller goes away, the next waiter makes the call.
        let said = waiting.cell.get_or_init(|| self.ask(&token, &wanted, key)).await.clone();
        said.unwrap_or_else(Verification::Refused)
    }

    async fn ask(&self, token: &str, wanted: &[String], key: Digest) -> ReviewOutcome {
        let fetching = self.metrics.authentication.fetch();
        let version = &self.settings.version;
        let mut spec = json!({"token": token});
        if !wanted.is_empty() {
            spec["audiences"] = json!(wanted);
        }
        let review = json!({
            "kind": KIND,
            "apiVersion": format!("authentication.k8s.io/{version}"),
            "metadata": {"creationTimestamp": null},
            "spec": spec,
            "status": {"user": {}},
        });
        let answer = self.service.ask_patiently(&review.to_string()).await.map_err(|failure| {
            tracing::debug!(%failure, "token webhook call failed");
            format!("the token webhook cannot be called: {failure}")
        })?;
        let status = self.read(&answer).map_err(|why| {
            tracing::debug!(why, "the token webhook sent an invalid response");
            format!("the token webhook sent an invalid response: {why}")
        })?;
        fetching.succeeded();
        let verdict = self.weigh(status, wanted);
        // Errors may be transient. Long answers are not cached.
        if !matches!(verdict, Verification::Refused(_)) && answer.len() < WEBHOOK_CACHED_BYTES {
            let now = self.clock.now();
            self.kept.put(key, verdict.clone(), now.plus(self.settings.kept_for), now);
        }
        Ok(verdict)
    }

    fn read(&self, answer: &[u8]) -> Result<Status, String> {
        let review: Review = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
        let wanted = format!("authentication.k8s.io/{}", self.settings.version);
        if review.kind != KIND || review.api_version != wanted {
            return Err(format!("it is no {KIND} of {wanted}"));
        }
        if review.status.authenticated && review.status.user.username.is_empty() {
            return Err("somebody is known who has no name".to_owned());
        }
        Ok(review.status)
    }

    fn weigh(&self, status: Status, wanted: &[String]) -> Verification {
        // A server that ignores audiences accepts tokens for this server's own.
        let meant = status.audiences.filter(|all| !all.is_empty());
        let meant = meant.as_deref().unwrap_or(&self.settings.audiences);
        let common: Vec<String> = wanted.iter().filter(|name| meant.contains(name)).cloned().collect();
        if common.is_empty() && !wanted.is_empty() {
            return Verification::NoOpinion;
        }
        if !status.authenticated {
            let silent = status.error.is_empty();
            return if silent { Verification::NoOpinion } else { Verification::Refused(status.error) };
        }
        let identity = Identity {
            name: status.user.username,
            uid: status.user.uid,
            groups: status.user.groups.unwrap_or_default(),
            extra: status.user.extra.unwrap_or_default(),
        };
        Verification::KnownFor(Authenticated {
            identity: Arc::new(identity),
            audiences: common,
            remarks: Vec::new(),
        })
    }
}

/// A request that waits for an answer. The last one removes the entry, answered or not.
struct Waiting<'a> {
    inner: &'a Inner,
    key: Digest,
    cell: Arc<OnceCell<ReviewOutcome>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut open = self.inner.open.lock();
        // An answered entry is removed, so that later requests call again. A count of two means that only the map and this waiter
        // hold it.
        let is_ours = open.get(&self.key).is_some_and(|known| Arc::ptr_eq(known, &self.cell));
        if is_ours && (self.cell.initialized() || Arc::strong_count(&self.cell) == 2) {
            open.remove(&self.key);
        }
    }
}

impl Verifier for WebhookTokenVerifier {
    fn verify(&self, credentials: &Credentials) -> Answer<Verification> {
        let Some(token) = &credentials.bearer else {
            return Answer::Now(Verification::NoOpinion);
        };
        let asked = &credentials.audiences;
        let wanted = if asked.is_empty() { &self.0.settings.audiences } else { asked };
        let key = digest(token, wanted);
        let began = self.0.clock.moment();
        if let Some(verdict) = self.0.kept.get(&key, self.0.clock.now()) {
            self.0.metrics.authentication.looked_up(true, self.0.clock.elapsed(began));
            return Answer::Now(verdict);
        }
        let (inner, token, wanted) = (Arc::clone(&self.0), token.clone(), Arc::clone(wanted));
        Answer::later(async move {
            let verdict = Arc::clone(&inner).find_out(token, wanted, key).await;
            inner.metrics.authentication.looked_up(false, inner.clock.elapsed(began));
            verdict
        })
    }
}

#[cfg(test)]
mod tests;
