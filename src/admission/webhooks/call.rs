//! Calls one webhook: builds the AdmissionReview, sends it, and applies the response.

use pilothouse_admission::webhooks::response::{self, AdmissionResponse, InvalidResponse};
use pilothouse_admission::webhooks::webhook::SideEffects;
use pilothouse_admission::webhooks::{REVIEW_GROUP, REVIEW_KIND, ReviewVersion};
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::status::Status;
use pilothouse_apimachinery::value::Value;
use pilothouse_client::webhook::cluster_webhooks::WebhookResponse;

use crate::pki::random;

use super::super::attributes::{Options, options};
use super::subject::Subject;
use super::{Phase, Webhooks};
use crate::registry::webhook_address::WebhookTarget;
use crate::registry::webhook_call::{ReviewCall, check_status};

/// The result of a call that allows the request.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The patched object in the stored version, and whether it differs; `None` without a patch.
    pub patched: Option<(Value, bool)>,
    /// The patch itself, for the audit log.
    pub patch: Option<Vec<u8>>,
}

/// A call that failed or denied the request.
pub enum CallError {
    /// The call failed or its response is invalid. The code is only counted.
    Calling {
        /// The message.
        reason: String,
        /// The status code for metrics.
        code: u16,
    },
    /// The webhook denies the request.
    Denied(Box<Status>),
    /// An error of this server: the failurePolicy does not apply.
    Server(Box<Status>),
}

impl From<InvalidResponse> for CallError {
    fn from(response: InvalidResponse) -> CallError {
        CallError::Calling { reason: response.message, code: response.code }
    }
}

fn call_error(reason: impl Into<String>) -> CallError {
    CallError::Calling { reason: reason.into(), code: 400 }
}

fn exchange_error(reason: &str, code: u16) -> CallError {
    CallError::Calling { reason: format!("failed to call webhook: {reason}"), code }
}

/// The AdmissionReview request.
fn review_request(
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
    if options.value.is_null() {
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
        if options.is_dry_run {
            match hook.side_effects {
                SideEffects::None => {}
                SideEffects::Unspecified => return Err(call_error("Webhook SideEffects is nil")),
                SideEffects::Some => {
                    let name = quoted(&hook.name);
                    let reason = format!("admission webhook {name} does not support dry run");
                    return Err(CallError::Server(Status::bad_request(reason)));
                }
            }
        }
        let version = hook.version.ok_or_else(|| {
            call_error(
                "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, \
                 v1beta1)",
            )
        })?;
        let uid = random::uuid();
        let body = review_request(subject, object, &uid, version, &options);
        // Many calls with large bodies may wait for a slow webhook at the same time.
        let priority = subject.write.call.memory_priority();
        let _reservation =
            subject.write.backend.requests.reserve(body.len(), priority).map_err(CallError::Server)?;
        let target = WebhookTarget::new(&hook.client_config, &hook.authority_pem).map_err(call_error)?;
        let http_response = self.exchange(subject, &target, body).await?;
        subject.write.call.work().check_bytes(http_response.body.len()).map_err(CallError::Server)?;
        let response = read_response(&http_response, version, &uid, self.phase == Phase::Mutating)?;
        self.apply_response(subject, object, response).await
    }

    async fn exchange(
        &self,
        subject: &Subject<'_>,
        target: &WebhookTarget,
        body: Vec<u8>,
    ) -> Result<WebhookResponse, CallError> {
        let hook = subject.hook;
        // The client stops waiting at its deadline.
        let call = subject.write.call;
        let remaining =
            call.execution.deadline.map(|deadline| deadline.since(subject.write.backend.clock.moment()));
        let limit = remaining.map_or(hook.timeout, |remaining| remaining.min(hook.timeout));
        let review = ReviewCall { config: &hook.client_config, target, body, timeout: limit };
        let http_response = self.caller.post(subject.write.backend, call.permit(), review).await;
        http_response.map_err(|reason| exchange_error(&reason, 400))
    }

    async fn apply_response(
        &self,
        subject: &Subject<'_>,
        object: &Value,
        response: AdmissionResponse,
    ) -> Result<Outcome, CallError> {
        let hook = subject.hook;
        for (key, value) in response.annotations {
            subject.write.call.warnings.annotate(&format!("{}/{key}", hook.name), value);
        }
        for warning in response.warnings {
            subject.write.call.warnings.add(warning);
        }
        if !response.allowed {
            return Err(CallError::Denied(response::denial(&hook.name, response.status.as_ref())));
        }
        let Some(patch) = response.patch else { return Ok(Outcome::default()) };
        let patched = subject.patch_object(object, &patch).await.map_err(CallError::Server)?;
        let patch = patched.is_some().then_some(patch);
        Ok(Outcome { patched, patch })
    }
}

fn read_response(
    http_response: &WebhookResponse,
    version: ReviewVersion,
    uid: &str,
    mutating: bool,
) -> Result<AdmissionResponse, CallError> {
    check_status(http_response).map_err(|failure| exchange_error(&failure.message, failure.code))?;
    if http_response.body.is_empty() {
        let content_type = if http_response.content_type.is_empty() {
            "application/json"
        } else {
            &http_response.content_type
        };
        let reason = format!(
            "0-length response with status code: {} and content type: {content_type}",
            http_response.status
        );
        return Err(exchange_error(&reason, 400));
    }
    Ok(response::read(&http_response.body, version, uid, mutating)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_and_code(error: CallError) -> (String, u16) {
        match error {
            CallError::Calling { reason, code } => (reason, code),
            CallError::Denied(status) | CallError::Server(status) => (status.message.clone(), status.code),
        }
    }

    #[test]
    fn empty_webhook_response_is_call_error() {
        let http_response = WebhookResponse { status: 200, ..WebhookResponse::default() };
        let (reason, code) =
            message_and_code(read_response(&http_response, ReviewVersion::V1, "u", true).unwrap_err());
        assert_eq!(code, 400);
        assert!(
            reason.ends_with("0-length response with status code: 200 and content type: application/json"),
            "{reason}"
        );
    }
}
