//! Calls one webhook: builds the AdmissionReview, sends it, and applies the response.

use bytes::Bytes;
use pilothouse_admission::webhooks::response::{self, AdmissionResponse, InvalidResponse};
use pilothouse_admission::webhooks::webhook::SideEffects;
use pilothouse_admission::webhooks::{REVIEW_GROUP, REVIEW_KIND, ReviewVersion};
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::status::Status;
use pilothouse_apimachinery::value::Value;
use tokio::time::timeout;

use crate::limits::HOOK_ANSWER_BYTES;
use crate::random;
use crate::webhook::cluster_webhooks::{WebhookRequest, WebhookResponse, seconds};

use super::super::super::webhook_address::{self, WebhookTarget};
use super::super::attributes::{Options, options};
use super::subject::Subject;
use super::{Phase, Webhooks};

/// The result of a call that allows the request.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The patched object in the stored version, and whether it differs; `None` without a patch.
    pub patched: Option<(Value, bool)>,
    /// The patch itself, for the audit log.
    pub patch: Option<Vec<u8>>,
}

/// Why a request does not simply go on.
pub enum CallError {
    /// The call failed or its response is invalid. The code is only counted.
    Calling {
        /// The reason.
        why: String,
        /// The status code for metrics.
        code: u16,
    },
    /// The webhook denies the request.
    Denied(Box<Status>),
    /// An error of this server: the failurePolicy does not apply.
    Server(Box<Status>),
}

impl From<InvalidResponse> for CallError {
    fn from(unusable: InvalidResponse) -> CallError {
        CallError::Calling { why: unusable.why, code: unusable.code }
    }
}

fn calling(why: impl Into<String>) -> CallError {
    CallError::Calling { why: why.into(), code: 400 }
}

/// The AdmissionReview request.
fn question(
    subject: &Subject<'_>,
    object: &Value,
    uid: &str,
    version: ReviewVersion,
    options: &Options,
) -> Vec<u8> {
    let mut request = subject.request(object, options);
    request.set("uid", uid);
    request.set("object", subject.states.0.clone());
    request.set("oldObject", subject.states.1.clone());
    if options.said.is_null() {
        request.set("options", Value::Null);
    }
    let mut review = Value::object();
    review.set("kind", REVIEW_KIND);
    review.set("apiVersion", format!("{REVIEW_GROUP}/{}", version.word()));
    review.set("request", request);
    json::to_json(&review)
}

impl Webhooks {
    /// Calls the webhook and applies its response.
    pub(super) async fn call(&self, subject: &Subject<'_>, object: &Value) -> Result<Outcome, CallError> {
        let hook = subject.hook;
        let options = options(subject.write);
        if options.is_trial {
            match hook.side_effects {
                SideEffects::None => {}
                SideEffects::Unsaid => return Err(calling("Webhook SideEffects is nil")),
                SideEffects::Some => {
                    let name = quoted(&hook.name);
                    let why = format!("admission webhook {name} does not support dry run");
                    return Err(CallError::Server(Status::bad_request(why)));
                }
            }
        }
        let version = hook.version.ok_or_else(|| {
            calling(
                "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, \
                 v1beta1)",
            )
        })?;
        let uid = random::uuid();
        let body = question(subject, object, &uid, version, &options);
        // The webhook may take its time, and many may wait for it with large bodies.
        let claim = subject.write.call.claim();
        let _copy = subject.write.backend.requests.reserve(body.len(), claim).map_err(CallError::Server)?;
        let target = WebhookTarget::of(&hook.way, &hook.authority_pem).map_err(calling)?;
        let reply = self.exchange(subject, &target, body).await?;
        subject.write.call.work.check_bytes(reply.body.len()).map_err(CallError::Server)?;
        let said = read(&reply, version, &uid, self.phase == Phase::Mutating)?;
        self.heed(subject, object, said).await
    }

    async fn exchange(
        &self,
        subject: &Subject<'_>,
        target: &WebhookTarget,
        body: Vec<u8>,
    ) -> Result<WebhookResponse, CallError> {
        let hook = subject.hook;
        // Nobody waits longer than the client does.
        let call = subject.write.call;
        let left = call.ends.map(|ends| ends.since(subject.write.backend.clock.moment()));
        let within = left.map_or(hook.timeout, |left| left.min(hook.timeout));
        let parameter = format!("timeout={}", seconds(within));
        let asked = async {
            let _place = self.places.acquire().await.map_err(|error| error.to_string())?;
            let write = subject.write;
            let at = webhook_address::connect_address(
                write.backend,
                &write.call.permit,
                self.settings.to_endpoints,
                &hook.way,
            )
            .await?;
            let question = WebhookRequest {
                target: format!("{}?{parameter}", target.path),
                body: Bytes::from(body),
                says_port: target.says_port,
                most: HOOK_ANSWER_BYTES,
            };
            self.peers.ask(&target.place, || self.users.of(&target.known_as), at, &question).await
        };
        let reply = timeout(within, asked).await;
        let reply = reply.unwrap_or_else(|_| Err("context deadline exceeded".to_owned()));
        reply.map_err(|why| {
            let url = quoted(&format!("{}?{parameter}", target.url));
            calling(format!("failed to call webhook: Post {url}: {why}"))
        })
    }

    async fn heed(
        &self,
        subject: &Subject<'_>,
        object: &Value,
        said: AdmissionResponse,
    ) -> Result<Outcome, CallError> {
        let hook = subject.hook;
        for (key, value) in said.annotations {
            subject.write.call.warnings.note(&format!("{}/{key}", hook.name), value);
        }
        for warning in said.warnings {
            subject.write.call.warnings.add(warning);
        }
        if !said.allowed {
            return Err(CallError::Denied(response::denial(&hook.name, said.status.as_ref())));
        }
        let Some(patch) = said.patch else { return Ok(Outcome::default()) };
        let patched = subject.patched(object, &patch).await.map_err(CallError::Server)?;
        let patch = patched.is_some().then_some(patch);
        Ok(Outcome { patched, patch })
    }
}

fn read(
    reply: &WebhookResponse,
    version: ReviewVersion,
    uid: &str,
    mutating: bool,
) -> Result<AdmissionResponse, CallError> {
    let is_text = reply.content_type.is_empty() || reply.content_type.starts_with("text/");
    if !(200..=206).contains(&reply.status) {
        return Err(response::refused(reply.status, is_text, &reply.body).into());
    }
    if reply.body.is_empty() {
        let sort = if reply.content_type.is_empty() { "application/json" } else { &reply.content_type };
        return Err(calling(format!(
            "failed to call webhook: 0-length response with status code: {} and content type: {sort}",
            reply.status
        )));
    }
    Ok(response::read(&reply.body, version, uid, mutating)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(trouble: CallError) -> (String, u16) {
        match trouble {
            CallError::Calling { why, code } => (why, code),
            CallError::Denied(status) | CallError::Server(status) => (status.message.clone(), status.code),
        }
    }

    #[test]
    fn an_empty_answer_is_none() {
        let reply = WebhookResponse { status: 200, ..WebhookResponse::default() };
        let (why, code) = told(read(&reply, ReviewVersion::V1, "u", true).unwrap_err());
        assert_eq!(code, 400);
        assert!(
            why.ends_with("0-length response with status code: 200 and content type: application/json"),
            "{why}"
        );
    }
}
