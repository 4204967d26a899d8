//! The authorization webhook: a remote server gets a SubjectAccessReview and allows, denies or has no opinion. Answers are cached
//! for a while. If the call fails or its answer is invalid, there is no opinion, and the caller gets the error.

mod match_request;

use std::sync::Arc;
use std::time::Duration;

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authorizer::Policy;
use pilothouse_actors::throttle::Throttle;
use pilothouse_admission::auth_expressions::Expression;
use pilothouse_admission::auth_expressions::match_conditions::{Matched, matched};
use pilothouse_apimachinery::well_known::AUTHORIZATION_GROUP;
use pilothouse_types::authorization::{Action, Decision, ExplainedDecision, Grants, Selection, Target};
use pilothouse_types::clock::Clock;
use pilothouse_types::filter::{FieldRule, LabelRule};
use pilothouse_types::identity::Identity;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use thiserror::Error;

use super::expiring_cache::ExpiringCache;
use crate::limits::WEBHOOK_CACHED_BYTES;
use crate::metrics::authorization_webhooks::{AuthorizationWebhookMeter, CallResult};
use crate::webhook::{Failure, Service, patiently};

const KIND: &str = "SubjectAccessReview";

/// The settings of the webhook.
pub struct Settings {
    /// The version of SubjectAccessReview.
    pub version: String,
    /// How long an allowing answer is cached.
    pub allowed_for: Duration,
    /// How long other answers are cached.
    pub refused_for: Duration,
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

/// Parses an answer to a review of this version. It may omit its kind and version, but they must not be wrong.
fn read(answer: &[u8], version: &str) -> Result<ReviewStatus, String> {
    let review: Json = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    let is = |field: &str, wanted: &str| review[field].is_null() || review[field] == wanted;
    if !review.is_object()
        || !is("kind", KIND)
        || !is("apiVersion", &format!("{AUTHORIZATION_GROUP}/{version}"))
    {
        return Err(format!("it is no {KIND} of {AUTHORIZATION_GROUP}/{version}"));
    }
    match &review["status"] {
        Json::Null => Ok(ReviewStatus::default()),
        status @ Json::Object(_) => ReviewStatus::deserialize(status).map_err(|error| error.to_string()),
        _ => Err("its status is no object".to_owned()),
    }
}

/// The authorizer.
pub struct WebhookAuthorizer(Arc<Inner>);

struct Inner {
    service: Service,
    settings: Settings,
    clock: Clock,
    meter: AuthorizationWebhookMeter,
    /// Cached answers by question.
    cache: ExpiringCache<String, ReviewStatus>,
    /// Limits log lines: with a dead webhook, each request of anybody would write one.
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
        let (cache, failures) = (ExpiringCache::default(), Throttle::default());
        WebhookAuthorizer(Arc::new(Inner { service, settings, clock, meter, cache, failures }))
    }
}

/// The `spec` of the review. It is also the cache key, because it contains everything that matters.
fn spec(version: &str, who: &Identity, action: &Action, selection: &Selection) -> Json {
    let mut spec = json!({"user": who.name});
    // The older version has another name for this field.
    let groups = if version == "v1beta1" { "group" } else { "groups" };
    if !who.groups.is_empty() {
        spec[groups] = json!(who.groups);
    }
    if !who.uid.is_empty() {
        spec["uid"] = json!(who.uid);
    }
    if !who.extra.is_empty() {
        spec["extra"] = json!(who.extra);
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
                let all: Vec<Json> = selection.fields.iter().map(field_requirement).collect();
                attributes["fieldSelector"] = json!({"requirements": all});
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

/// Numeric comparisons cannot be expressed; without them the question covers more objects, not fewer.
fn label_requirement(rule: &LabelRule) -> Option<Json> {
    Some(match rule {
        LabelRule::In(key, values) => json!({"key": key, "operator": "In", "values": values}),
        LabelRule::NotIn(key, values) => json!({"key": key, "operator": "NotIn", "values": values}),
        LabelRule::Exists(key) => json!({"key": key, "operator": "Exists"}),
        LabelRule::Absent(key) => json!({"key": key, "operator": "DoesNotExist"}),
        LabelRule::Above(..) | LabelRule::Below(..) => return None,
    })
}

fn verdict(said: ReviewStatus) -> ExplainedDecision {
    match (said.allowed, said.denied) {
        (true, true) => ExplainedDecision {
            decision: Decision::Denied(said.reason),
            grounds: None,
            error: Some("webhook subject access review returned both allow and deny response".to_owned()),
        },
        (false, true) => Decision::Denied(said.reason).into(),
        (true, false) => ExplainedDecision {
            decision: Decision::Allowed,
            grounds: Some(Arc::new(said.reason)),
            error: None,
        },
        (false, false) => Decision::NoOpinion(said.reason).into(),
    }
}

/// Why a call failed.
#[derive(Debug, Error)]
enum Trouble {
    #[error("the authorization webhook cannot be called: {0}")]
    Silence(Failure),
    #[error("the authorization webhook sent an invalid response: {0}")]
    Nonsense(String),
}

impl Trouble {
    fn may_pass(&self) -> bool {
        matches!(self, Trouble::Silence(failure @ Failure::Refused(_)) if failure.may_pass())
    }
}

impl Inner {
    fn remember(&self, key: String, said: &ReviewStatus) {
        let settings = &self.settings;
        let now = self.clock.now();
        let until = now.plus(if said.allowed { settings.allowed_for } else { settings.refused_for });
        self.cache.put(key, said.clone(), until, now);
    }

    /// Makes one call and counts it.
    async fn ask_once(&self, review: &str) -> Result<ReviewStatus, (CallResult, Trouble)> {
        let began = self.clock.moment();
        let limit = self.settings.timeout;
        let asked = tokio::time::timeout(limit, self.service.ask(review.to_owned())).await;
        let said = match asked.unwrap_or(Err(Failure::Slow(limit))) {
            Ok(answer) => read(&answer, &self.settings.version)
                .map_err(|why| (CallResult::Error, Trouble::Nonsense(why))),
            Err(failure @ (Failure::Slow(_) | Failure::Refused(504))) => {
                Err((CallResult::Timeout, Trouble::Silence(failure)))
            }
            Err(failure) => Err((CallResult::Error, Trouble::Silence(failure))),
        };
        let round = said.as_ref().map_or_else(|(round, _)| *round, |_| CallResult::Success);
        self.meter.asked(round, self.clock.elapsed(began).as_secs_f64());
        said
    }

    async fn ask(&self, spec: &Json) -> Result<ReviewStatus, String> {
        let version = &self.settings.version;
        let review = json!({
            "kind": KIND,
            "apiVersion": format!("{AUTHORIZATION_GROUP}/{version}"),
            "metadata": {"creationTimestamp": null},
            "spec": spec,
            "status": {"allowed": false},
        });
        let review = review.to_string();
        let asked = patiently(|| self.ask_once(&review), |(_, trouble)| trouble.may_pass()).await;
        asked.map_err(|(round, trouble)| {
            if self.failures.allows(self.clock.moment()) {
                tracing::warn!(%trouble, webhook = self.meter.name(), "authorization webhook call failed");
            }
            if !self.settings.denies_on_failure {
                self.meter.left_open(round);
            }
            trouble.to_string()
        })
    }

    /// The verdict without a call: the conditions do not match, or could not be evaluated.
    fn passes_over(
        &self,
        who: &Identity,
        action: &Action,
        selection: &Selection,
    ) -> Option<ExplainedDecision> {
        let conditions = &self.settings.conditions;
        if conditions.is_empty() {
            return None;
        }
        let began = self.clock.moment();
        let found = matched(conditions, &match_request::request(who, action, selection));
        let seconds = self.clock.elapsed(began).as_secs_f64();
        let failed = matches!(found, Matched::Failed(_) | Matched::No { some_failed: true });
        self.meter.matched(seconds, matches!(found, Matched::No { .. }), failed);
        match found {
            Matched::Yes => None,
            Matched::No { .. } => Some(Decision::NoOpinion(String::new()).into()),
            Matched::Failed(why) => {
                if self.failures.allows(self.clock.moment()) {
                    let webhook = self.meter.name();
                    tracing::warn!(%why, webhook, "a match condition of an authorization webhook cannot be evaluated");
                }
                Some(self.unknown(why))
            }
        }
    }

    /// The verdict after a failed call.
    fn unknown(&self, error: String) -> ExplainedDecision {
        let nothing = String::new();
        let decision = match self.settings.denies_on_failure {
            true => Decision::Denied(nothing),
            false => Decision::NoOpinion(nothing),
        };
        ExplainedDecision { decision, grounds: None, error: Some(error) }
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
        if let Some(verdict) = self.0.passes_over(identity, action, selection) {
            return Answer::Now(verdict);
        }
        let spec = spec(&self.0.settings.version, identity, action, selection);
        let key = spec.to_string();
        if let Some(said) = self.0.cache.get(&key, self.0.clock.now()) {
            return Answer::Now(verdict(said));
        }
        let inner = Arc::clone(&self.0);
        // Clients choose all parts of the key: names, selectors, groups.
        let keeps = key.len() < WEBHOOK_CACHED_BYTES;
        Answer::later(async move {
            match inner.ask(&spec).await {
                Ok(said) => {
                    if keeps && said.reason.len() < WEBHOOK_CACHED_BYTES {
                        inner.remember(key, &said);
                    }
                    verdict(said)
                }
                Err(error) => inner.unknown(error),
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
