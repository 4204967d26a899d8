//! The authorization webhook: a remote server gets a SubjectAccessReview and allows, denies or has no opinion. Responses are
//! cached for a while. If the call fails or its response is invalid, there is no opinion, and the caller gets the error.

mod match_request;

use std::sync::Arc;
use std::time::Duration;

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authorizer::Policy;
use pilothouse_actors::throttle::Throttle;
use pilothouse_admission::auth_expressions::Expression;
use pilothouse_admission::auth_expressions::match_conditions::{ConditionMatch, matched};
use pilothouse_apimachinery::well_known::AUTHORIZATION_GROUP;
use pilothouse_client::webhook::{Failure, Service, with_retries};
use pilothouse_types::authorization::{Action, Decision, ExplainedDecision, Grants, Selection, Target};
use pilothouse_types::bounded::ExpiringCache;
use pilothouse_types::clock::Clock;
use pilothouse_types::filter::{FieldRule, LabelRule};
use pilothouse_types::identity::Identity;
use pilothouse_types::lock::Lock;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use thiserror::Error;

use crate::limits::{WEBHOOK_CACHE_ENTRIES, WEBHOOK_CACHED_BYTES};
use crate::metrics::authorization_webhooks::{AuthorizationWebhookMeter, CallResult};

const KIND: &str = "SubjectAccessReview";

/// The settings of the webhook.
pub struct Settings {
    /// The version of SubjectAccessReview.
    pub version: String,
    /// How long allowing responses are cached.
    pub authorized_ttl: Duration,
    /// How long other responses are cached.
    pub unauthorized_ttl: Duration,
    /// The timeout of one call.
    pub timeout: Duration,
    /// Whether a failed call denies the request.
    pub denies_on_failure: bool,
    /// The webhook is called only if all these conditions hold.
    pub conditions: Vec<Expression>,
}

/// The answer of the remote server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct ReviewStatus {
    allowed: bool,
    denied: bool,
    reason: String,
}

/// Parses a review of this version. It may omit its kind and version, but they must match if present.
fn parse_response(body: &[u8], version: &str) -> Result<ReviewStatus, String> {
    let review: Json = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let has = |field: &str, value: &str| review[field].is_null() || review[field] == value;
    if !review.is_object()
        || !has("kind", KIND)
        || !has("apiVersion", &format!("{AUTHORIZATION_GROUP}/{version}"))
    {
        return Err(format!("it is not a {KIND} of {AUTHORIZATION_GROUP}/{version}"));
    }
    match &review["status"] {
        Json::Null => Ok(ReviewStatus::default()),
        status @ Json::Object(_) => ReviewStatus::deserialize(status).map_err(|error| error.to_string()),
        _ => Err("its status is not an object".to_owned()),
    }
}

/// Authorizes requests through the webhook.
pub struct WebhookAuthorizer(Arc<Inner>);

struct Inner {
    service: Service,
    settings: Settings,
    clock: Clock,
    meter: AuthorizationWebhookMeter,
    /// Cached responses by the `spec` of the review.
    cache: Lock<ExpiringCache<String, ReviewStatus, WEBHOOK_CACHE_ENTRIES>>,
    /// Limits log lines: while the webhook fails, each request would write one.
    failures: Throttle,
}

impl WebhookAuthorizer {
    /// An authorizer that calls this server.
    pub fn new(
        service: Service,
        settings: Settings,
        clock: Clock,
        meter: AuthorizationWebhookMeter,
    ) -> WebhookAuthorizer {
        let (cache, failures) = (Lock::default(), Throttle::default());
        WebhookAuthorizer(Arc::new(Inner { service, settings, clock, meter, cache, failures }))
    }
}

/// The `spec` of the review. It is also the cache key, because it contains everything that matters.
fn spec(version: &str, identity: &Identity, action: &Action, selection: &Selection) -> Json {
    let mut spec = json!({"user": identity.name});
    // The older version has another name for this field.
    let groups = if version == "v1beta1" { "group" } else { "groups" };
    if !identity.groups.is_empty() {
        spec[groups] = json!(identity.groups);
    }
    if !identity.uid.is_empty() {
        spec["uid"] = json!(identity.uid);
    }
    if !identity.extra.is_empty() {
        spec["extra"] = json!(identity.extra);
    }
    match &action.target {
        Target::Path(path) => spec["nonResourceAttributes"] = json!({"path": path, "verb": action.verb}),
        Target::Resource { group, version, resource, subresource, namespace, name } => {
            let mut attributes = json!({});
            let fields = [
                ("namespace", namespace),
                ("verb", &action.verb),
                ("group", group),
                ("version", version),
                ("resource", resource),
                ("subresource", subresource),
                ("name", name),
            ];
            for (field, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
                attributes[field] = json!(value);
            }
            if !selection.fields.is_empty() {
                let requirements: Vec<Json> = selection.fields.iter().map(field_requirement).collect();
                attributes["fieldSelector"] = json!({"requirements": requirements});
            }
            let labels: Vec<Json> = selection.labels.iter().filter_map(label_requirement).collect();
            if !labels.is_empty() {
                attributes["labelSelector"] = json!({"requirements": labels});
            }
            spec["resourceAttributes"] = attributes;
        }
    }
    spec
}

fn field_requirement(rule: &FieldRule) -> Json {
    match rule {
        FieldRule::Equals(key, value) => json!({"key": key, "operator": "In", "values": [value]}),
        FieldRule::Differs(key, value) => json!({"key": key, "operator": "NotIn", "values": [value]}),
    }
}

/// Numeric comparisons cannot be expressed; without them the review covers more objects, not fewer.
fn label_requirement(rule: &LabelRule) -> Option<Json> {
    Some(match rule {
        LabelRule::In(key, values) => json!({"key": key, "operator": "In", "values": values}),
        LabelRule::NotIn(key, values) => json!({"key": key, "operator": "NotIn", "values": values}),
        LabelRule::Exists(key) => json!({"key": key, "operator": "Exists"}),
        LabelRule::Absent(key) => json!({"key": key, "operator": "DoesNotExist"}),
        LabelRule::Above(..) | LabelRule::Below(..) => return None,
    })
}

fn verdict(status: ReviewStatus) -> ExplainedDecision {
    match (status.allowed, status.denied) {
        (true, true) => ExplainedDecision {
            decision: Decision::Denied(status.reason),
            allow_reason: None,
            error: Some("webhook subject access review returned both allow and deny response".to_owned()),
        },
        (false, true) => Decision::Denied(status.reason).into(),
        (true, false) => ExplainedDecision {
            decision: Decision::Allowed,
            allow_reason: Some(Arc::new(status.reason)),
            error: None,
        },
        (false, false) => Decision::NoOpinion(status.reason).into(),
    }
}

/// Why a call failed.
#[derive(Debug, Error)]
enum CallError {
    #[error("the authorization webhook cannot be called: {0}")]
    Call(Failure),
    #[error("the authorization webhook sent an invalid response: {0}")]
    InvalidResponse(String),
}

impl CallError {
    fn is_retryable(&self) -> bool {
        matches!(self, CallError::Call(failure @ Failure::Refused(_)) if failure.may_pass())
    }
}

impl Inner {
    fn cache_status(&self, key: String, status: &ReviewStatus) {
        let settings = &self.settings;
        let now = self.clock.now();
        let expiry =
            now.plus(if status.allowed { settings.authorized_ttl } else { settings.unauthorized_ttl });
        let evicted = self.cache.lock().insert(key, status.clone(), expiry, now);
        drop(evicted);
    }

    /// Makes one call and records it in the metrics.
    async fn call_once(&self, review: &str) -> Result<ReviewStatus, (CallResult, CallError)> {
        let start = self.clock.moment();
        let limit = self.settings.timeout;
        let response = tokio::time::timeout(limit, self.service.send(review.to_owned())).await;
        let status = match response.unwrap_or(Err(Failure::Slow(limit))) {
            Ok(body) => parse_response(&body, &self.settings.version)
                .map_err(|reason| (CallResult::Error, CallError::InvalidResponse(reason))),
            Err(failure @ (Failure::Slow(_) | Failure::Refused(504))) => {
                Err((CallResult::Timeout, CallError::Call(failure)))
            }
            Err(failure) => Err((CallResult::Error, CallError::Call(failure))),
        };
        let result = status.as_ref().map_or_else(|(result, _)| *result, |_| CallResult::Success);
        self.meter.count_call(result, self.clock.elapsed(start).as_secs_f64());
        status
    }

    async fn review(&self, spec: &Json) -> Result<ReviewStatus, String> {
        let version = &self.settings.version;
        let review = json!({
            "kind": KIND,
            "apiVersion": format!("{AUTHORIZATION_GROUP}/{version}"),
            "metadata": {"creationTimestamp": null},
            "spec": spec,
            "status": {"allowed": false},
        });
        let review = review.to_string();
        let response = with_retries(|| self.call_once(&review), |(_, error)| error.is_retryable()).await;
        response.map_err(|(result, error)| {
            if self.failures.allows(self.clock.moment()) {
                tracing::warn!(%error, webhook = self.meter.name(), "authorization webhook call failed");
            }
            if !self.settings.denies_on_failure {
                self.meter.count_fail_open(result);
            }
            error.to_string()
        })
    }

    /// The decision without a call, if the match conditions do not match or cannot be evaluated.
    fn skip_by_conditions(
        &self,
        identity: &Identity,
        action: &Action,
        selection: &Selection,
    ) -> Option<ExplainedDecision> {
        let conditions = &self.settings.conditions;
        if conditions.is_empty() {
            return None;
        }
        let start = self.clock.moment();
        let matched_conditions = matched(conditions, &match_request::request(identity, action, selection));
        let seconds = self.clock.elapsed(start).as_secs_f64();
        let failed = matches!(
            matched_conditions,
            ConditionMatch::Failed(_) | ConditionMatch::No { some_failed: true }
        );
        self.meter.count_match(seconds, matches!(matched_conditions, ConditionMatch::No { .. }), failed);
        match matched_conditions {
            ConditionMatch::Yes => None,
            ConditionMatch::No { .. } => Some(Decision::NoOpinion(String::new()).into()),
            ConditionMatch::Failed(reason) => {
                if self.failures.allows(self.clock.moment()) {
                    let webhook = self.meter.name();
                    tracing::warn!(%reason, webhook, "a match condition of an authorization webhook cannot be evaluated");
                }
                Some(self.on_failure(reason))
            }
        }
    }

    /// The decision after a failed call, by the failure policy.
    fn on_failure(&self, error: String) -> ExplainedDecision {
        let no_reason = String::new();
        let decision = match self.settings.denies_on_failure {
            true => Decision::Denied(no_reason),
            false => Decision::NoOpinion(no_reason),
        };
        ExplainedDecision { decision, allow_reason: None, error: Some(error) }
    }
}

impl Policy for WebhookAuthorizer {
    fn decide(&self, identity: &Identity, action: &Action) -> Answer<Decision> {
        self.judge(identity, action, &Selection::default()).map(|verdict| verdict.decision)
    }

    fn judge(
        &self,
        identity: &Identity,
        action: &Action,
        selection: &Selection,
    ) -> Answer<ExplainedDecision> {
        if let Some(verdict) = self.0.skip_by_conditions(identity, action, selection) {
            return Answer::Now(verdict);
        }
        let spec = spec(&self.0.settings.version, identity, action, selection);
        let key = spec.to_string();
        let cached = self.0.cache.lock().get(&key, self.0.clock.now()).cloned();
        if let Some(status) = cached {
            return Answer::Now(verdict(status));
        }
        let inner = Arc::clone(&self.0);
        // Clients choose all parts of the key: names, selectors, groups.
        let is_cacheable = key.len() < WEBHOOK_CACHED_BYTES;
        Answer::later(async move {
            match inner.review(&spec).await {
                Ok(status) => {
                    if is_cacheable && status.reason.len() < WEBHOOK_CACHED_BYTES {
                        inner.cache_status(key, &status);
                    }
                    verdict(status)
                }
                Err(error) => inner.on_failure(error),
            }
        })
    }

    fn grants(&self, _: &Identity, _: &str) -> Answer<Grants> {
        let errors = vec!["webhook authorizer does not support user rule resolution".to_owned()];
        Answer::Now(Grants { incomplete: true, errors, ..Grants::default() })
    }
}

#[cfg(test)]
mod tests;
