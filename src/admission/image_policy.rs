//! ImagePolicyWebhook: a remote server decides which images pods may use.
//!
//! It is asked with the images of all containers of a new or changed pod, or with those of its ephemeral containers when these are
//! changed. Answers are remembered by the question, so that the pods of a workload cost one call. If the server cannot be asked, the
//! pod is refused, unless the configuration says otherwise.

mod config;

use std::collections::BTreeMap;
use std::sync::Arc;

use openssl::sha::sha256;
use pilothouse_apimachinery::names::qualified_name;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;
use pilothouse_client::upstream::pool::{Pool, Purpose};
use pilothouse_client::webhook::{Service, with_retries_after};
use pilothouse_types::bounded::ExpiringCache;
use pilothouse_types::lock::Lock;
use serde::Deserialize;
use serde_json::{Value as Json, json};

pub use self::config::Configuration;
use super::{Operation, Outcome, Plugin, Write};
use crate::limits::{IMAGE_REVIEWS, WEBHOOK_CACHED_BYTES};

const KIND: &str = "ImageReview";
const API_VERSION: &str = "imagepolicy.k8s.io/v1alpha1";
/// The prefix of the plug-in's audit annotations.
const AUDIT_PREFIX: &str = "imagepolicywebhook.image-policy.k8s.io/";
/// Annotations of a pod that contain this are shown to the remote server.
const ANNOTATION_MARK: &str = ".image-policy.k8s.io/";

/// The remote server and its remembered answers, shared by all workers.
pub struct Reviewer {
    service: Service,
    config: Configuration,
    /// By the digest of the question. A std mutex: held for one lookup or one change.
    cache: Lock<ExpiringCache<[u8; 32], ReviewStatus, IMAGE_REVIEWS>>,
}

/// The answer of the remote server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReviewStatus {
    allowed: bool,
    reason: String,
    audit_annotations: Option<BTreeMap<String, String>>,
}

impl ReviewStatus {
    /// Parses a review. It may omit its kind and version, but they must match if present.
    fn parse(body: &[u8]) -> std::result::Result<ReviewStatus, String> {
        let review: Json = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let has = |field: &str, value: &str| review[field].is_null() || review[field] == value;
        if !review.is_object() || !has("kind", KIND) || !has("apiVersion", API_VERSION) {
            return Err(format!("it is not an {KIND} of {API_VERSION}"));
        }
        match &review["status"] {
            Json::Null => Ok(ReviewStatus::default()),
            status => ReviewStatus::deserialize(status).map_err(|error| error.to_string()),
        }
    }

    /// The bytes that the remote server has chosen.
    fn size(&self) -> usize {
        let annotations = self.audit_annotations.iter().flatten();
        self.reason.len() + annotations.map(|(key, text)| key.len() + text.len()).sum::<usize>()
    }
}

impl Reviewer {
    /// A reviewer that calls the server of this configuration.
    pub fn new(config: Configuration, pool: &Arc<Pool>) -> std::result::Result<Reviewer, String> {
        let service = Service::with_purpose(Purpose::ImagePolicy, &config.access, pool);
        let service = service.map_err(|failure| failure.to_string())?;
        Ok(Reviewer { service, config, cache: Lock::default() })
    }

    /// The remembered or new answer to a question.
    async fn review(&self, write: &Write<'_>, spec: &Json) -> std::result::Result<ReviewStatus, String> {
        let clock = &write.backend.clock;
        let key = sha256(spec.to_string().as_bytes());
        let cached = self.cache.lock().get(&key, clock.now()).cloned();
        if let Some(status) = cached {
            return Ok(status);
        }
        let review = json!({
            "kind": KIND,
            "apiVersion": API_VERSION,
            "metadata": {"creationTimestamp": null},
            "spec": spec,
            "status": {"allowed": false},
        });
        let review = review.to_string();
        let call = || self.service.send(review.clone());
        let response = with_retries_after(self.config.retry_delay, call, |failure| failure.may_pass()).await;
        let response =
            response.map_err(|failure| format!("the image policy webhook cannot be called: {failure}"))?;
        let status = ReviewStatus::parse(&response)
            .map_err(|reason| format!("the image policy webhook sent an invalid response: {reason}"))?;
        if status.size() < WEBHOOK_CACHED_BYTES {
            let now = clock.now();
            let ttl = if status.allowed { self.config.allow_ttl } else { self.config.deny_ttl };
            let evicted = self.cache.lock().insert(key, status.clone(), now.plus(ttl), now);
            drop(evicted);
        }
        Ok(status)
    }
}

/// Refuses pods whose images the remote server does not allow.
pub struct ImagePolicyWebhook(pub Arc<Reviewer>);

impl Plugin for ImagePolicyWebhook {
    fn handles(&self, write: &Write<'_>) -> bool {
        matches!(write.operation, Operation::Create | Operation::Update)
            && (write.is_of("", "pods") || write.is_of_subresource("", "pods", "ephemeralcontainers"))
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, pod: &'a Value) -> Outcome<'a> {
        Box::pin(self.check(write, pod))
    }
}

impl ImagePolicyWebhook {
    async fn check(&self, write: &Write<'_>, pod: &Value) -> Result<()> {
        let spec = review_spec(pod, write.subresource(), write.call.namespace());
        let warnings = &write.call.warnings;
        let status = match self.0.review(write, &spec).await {
            Ok(status) => status,
            Err(reason) if self.0.config.default_allow => {
                tracing::warn!(%reason, "a pod is admitted although its images could not be reviewed");
                warnings.annotate(&format!("{AUDIT_PREFIX}failed-open"), "true".to_owned());
                return Ok(());
            }
            Err(reason) => {
                tracing::warn!(%reason, "a pod is refused because its images could not be reviewed");
                return Err(write.forbidden(pod, &reason));
            }
        };
        for (name, text) in status.audit_annotations.into_iter().flatten() {
            let key = format!("{AUDIT_PREFIX}{name}");
            match qualified_name(&key).as_slice() {
                [] => warnings.annotate(&key, text),
                _ => tracing::warn!(
                    key,
                    "the image policy webhook sent an audit annotation with an invalid name"
                ),
            }
        }
        match (status.allowed, status.reason.as_str()) {
            (true, _) => Ok(()),
            (false, "") => Err(write.forbidden(pod, "one or more images rejected by webhook backend")),
            (false, reason) => {
                let reason = format!("image policy webhook backend denied one or more images: {reason}");
                Err(write.forbidden(pod, &reason))
            }
        }
    }
}

/// The `spec` of the review, which decides about the answer. Empty parts are left out, as in the reference.
fn review_spec(pod: &Value, subresource: &str, namespace: &str) -> Json {
    let lists: &[&str] = match subresource {
        "" => &["containers", "initContainers"],
        _ => &["ephemeralContainers"],
    };
    let containers = lists.iter().filter_map(|list| pod.get_path(&["spec", list])).flat_map(Value::items);
    let containers: Vec<Json> = containers
        .map(|container| match container.str("image") {
            "" => json!({}),
            image => json!({"image": image}),
        })
        .collect();
    let annotations = pod.get_path(&["metadata", "annotations"]).and_then(Value::fields);
    let annotations: BTreeMap<&str, &str> = annotations
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.contains(ANNOTATION_MARK))
        .filter_map(|(key, text)| Some((key.as_str(), text.as_str()?)))
        .collect();
    let mut spec = json!({});
    if !containers.is_empty() {
        spec["containers"] = containers.into();
    }
    if !annotations.is_empty() {
        spec["annotations"] = json!(annotations);
    }
    if !namespace.is_empty() {
        spec["namespace"] = namespace.into();
    }
    spec
}

#[cfg(test)]
mod tests;
