//! Parses the response of an admission webhook, with the reference's errors.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_apimachinery::codec::syntax;
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::status::{Cause, Details, Status};
use pilothouse_apimachinery::value::Value;

use super::{REVIEW_GROUP, REVIEW_KIND, ReviewVersion};
use crate::limits::HOOK_WARNINGS;

/// How much of an invalid response a message shows; the reference's value.
const SHOWN_BYTES: usize = 2_048;
/// The largest valid HTTP status code.
const LAST_CODE: i64 = 999;

/// The response of a webhook.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmissionResponse {
    /// Whether the request is allowed.
    pub allowed: bool,
    /// A JSON Patch of the object, if any.
    pub patch: Option<Vec<u8>>,
    /// The status of a denial.
    pub status: Option<Value>,
    /// Warnings for the client.
    pub warnings: Vec<String>,
    /// Audit annotations.
    pub annotations: Vec<(String, String)>,
}

/// Why a response is unusable, and the code for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidResponse {
    /// The reason, which other messages wrap.
    pub why: String,
    /// The code for metrics.
    pub code: u16,
}

fn nonsense(why: &str) -> InvalidResponse {
    InvalidResponse { why: format!("failed to call webhook: {why}"), code: 400 }
}

fn invalid(why: &str) -> InvalidResponse {
    InvalidResponse { why: format!("received invalid webhook response: {why}"), code: 503 }
}

/// Parses the response to a request of this version and uid. `mutating`: whether it may contain a patch.
pub fn read(
    body: &[u8],
    version: ReviewVersion,
    uid: &str,
    mutating: bool,
) -> Result<AdmissionResponse, InvalidResponse> {
    let review = parsed(body, version)?;
    let Some(response) = review.get("response") else {
        return Err(invalid("webhook response was absent"));
    };
    let patch = bytes(response, "patch")?;
    let patch_type = response.get("patchType").map(|given| given.as_str().unwrap_or_default());
    if version == ReviewVersion::V1 {
        verify(&review, response, uid)?;
        verify_patch(patch.is_some(), patch_type, mutating)?;
    }
    let texts = |value: &Value| value.as_str().map(str::to_owned);
    let warnings = response.get("warnings").map(Value::items).unwrap_or_default();
    let annotations = response.get("auditAnnotations").and_then(Value::fields).into_iter().flatten();
    Ok(AdmissionResponse {
        allowed: response.get("allowed").and_then(Value::as_bool) == Some(true),
        patch: patch.filter(|_| mutating),
        status: response.get("status").cloned(),
        warnings: warnings.iter().filter_map(texts).take(HOOK_WARNINGS).collect(),
        annotations: annotations.filter_map(|(key, value)| Some((key.clone(), texts(value)?))).collect(),
    })
}

/// The review, with all fields type-checked.
fn parsed(body: &[u8], version: ReviewVersion) -> Result<Value, InvalidResponse> {
    let unread = |why: String| nonsense(&format!("couldn't get version/kind; json parse error: {why}"));
    syntax::check(body).map_err(unread)?;
    let review = json::read(body).map_err(|error| nonsense(&error.to_string()))?;
    let Some(_) = review.fields() else {
        let found = review.json_word();
        return Err(unread(format!(
            "json: cannot unmarshal {found} into Go value of type struct {{ APIVersion string \
             \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}"
        )));
    };
    let (api_version, kind) = (review.str("apiVersion"), review.str("kind"));
    let wanted = format!("{REVIEW_GROUP}/{}", version.word());
    let is = |said: &str, wanted: &str| said.is_empty() || said == wanted;
    // A Status is recognized as such, whatever was requested.
    if !is(kind, REVIEW_KIND) || !is(api_version, &wanted) {
        if (kind, api_version) == ("Status", "v1") {
            return Err(nonsense(review.str("message")));
        }
        return Err(nonsense(&format!(
            "no kind {} is registered for version {} in scheme \"pkg/runtime/scheme.go\"",
            quoted(kind),
            quoted(api_version)
        )));
    }
    for (path, wanted) in FIELDS {
        match review.at(path) {
            Some(found) if !wanted.fits(found) => {
                let (holder, field) = (path.len().saturating_sub(1), path.join("."));
                let holder = if holder == 0 { REVIEW_KIND } else { "AdmissionResponse" };
                return Err(nonsense(&format!(
                    "json: cannot unmarshal {} into Go struct field {holder}.{field} of type {}",
                    found.json_word(),
                    wanted.word()
                )));
            }
            _ => {}
        }
    }
    Ok(review)
}

/// The type of a field.
#[derive(Clone, Copy)]
enum Type {
    Response,
    Text,
    Uid,
    Language,
    Bool,
    Bytes,
    Status,
    Texts,
    Pairs,
}

const FIELDS: [(&[&str], Type); 10] = [
    (&["kind"], Type::Text),
    (&["apiVersion"], Type::Text),
    (&["response"], Type::Response),
    (&["response", "uid"], Type::Uid),
    (&["response", "allowed"], Type::Bool),
    (&["response", "status"], Type::Status),
    (&["response", "patch"], Type::Bytes),
    (&["response", "patchType"], Type::Language),
    (&["response", "auditAnnotations"], Type::Pairs),
    (&["response", "warnings"], Type::Texts),
];

impl Type {
    fn fits(self, value: &Value) -> bool {
        let text = |value: &Value| value.as_str().is_some();
        match self {
            Type::Response | Type::Status => value.fields().is_some(),
            Type::Text | Type::Uid | Type::Language | Type::Bytes => text(value),
            Type::Bool => value.as_bool().is_some(),
            Type::Texts => matches!(value, Value::Array(items) if items.iter().all(text)),
            Type::Pairs => value.fields().is_some_and(|fields| fields.values().all(text)),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Type::Response => "v1.AdmissionResponse",
            Type::Text => "string",
            Type::Uid => "types.UID",
            Type::Language => "v1.PatchType",
            Type::Bool => "bool",
            Type::Bytes => "[]uint8",
            Type::Status => "v1.Status",
            Type::Texts => "[]string",
            Type::Pairs => "map[string]string",
        }
    }
}

fn bytes(response: &Value, field: &str) -> Result<Option<Vec<u8>>, InvalidResponse> {
    let text = response.str(field);
    let decoded =
        STANDARD.decode(text).map_err(|error| nonsense(&format!("illegal base64 data: {error}")))?;
    Ok(Some(decoded).filter(|bytes| !bytes.is_empty()))
}

/// Checks that the response belongs to the request. v1beta1 responses need not state a uid.
fn verify(review: &Value, response: &Value, uid: &str) -> Result<(), InvalidResponse> {
    let said = response.str("uid");
    if said != uid {
        return Err(invalid(&format!("expected response.uid={}, got {}", quoted(uid), quoted(said))));
    }
    let (api_version, kind) = (review.str("apiVersion"), review.str("kind"));
    if api_version.is_empty() || kind.is_empty() {
        let said = match api_version {
            "" => "/".to_owned(),
            api_version => api_version.to_owned(),
        };
        return Err(invalid(&format!(
            "expected webhook response of {REVIEW_GROUP}/v1, Kind={REVIEW_KIND}, got {said}, Kind={kind}"
        )));
    }
    Ok(())
}

fn verify_patch(patch: bool, patch_type: Option<&str>, mutating: bool) -> Result<(), InvalidResponse> {
    let wrong = match (mutating, patch, patch_type) {
        (true, true, None) => "webhook returned response.patch but not response.patchType",
        (true, false, Some(_)) => "webhook returned response.patchType but not response.patch",
        (true, true, Some("")) => "webhook returned invalid response.patchType of \"\"",
        (true, true, Some("JSONPatch")) | (true | false, false, None) => return Ok(()),
        (true, true, Some(other)) => {
            let code = 400;
            return Err(InvalidResponse { why: format!("unsupported patch type {}", quoted(other)), code });
        }
        (false, true, _) => "validating webhook may not return response.patch",
        (false, false, Some(_)) => "validating webhook may not return response.patchType",
    };
    Err(invalid(wrong))
}

/// The error for a response with a failure code. `is_text`: whether its body is human-readable.
pub fn refused(code: u16, is_text: bool, body: &[u8]) -> InvalidResponse {
    if let Some(status) = failure(body) {
        let said = status.get("code").and_then(Value::as_int).and_then(|code| u16::try_from(code).ok());
        return InvalidResponse {
            why: format!("failed to call webhook: {}", status.str("message")),
            code: said.unwrap_or_default(),
        };
    }
    let body = body.get(..SHOWN_BYTES).unwrap_or(body);
    let text = String::from_utf8_lossy(body);
    let said = if is_text { text.trim() } else { "unknown" };
    let why = match code {
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 | 415 => said.to_owned(),
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        406 if matches!(said, "" | "unknown") => {
            "the server was unable to respond with a content type that the client supports".to_owned()
        }
        406 => said.to_owned(),
        409 => "the server reported a conflict".to_owned(),
        422 => "the server rejected our request due to an error in our request".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => "the server was unable to return a response in the time allotted, but may still be processing the \
                request"
            .to_owned(),
        500.. => {
            format!("an error on the server ({}) has prevented the request from succeeding", quoted(said))
        }
        _ => format!("the server responded with the status code {code} but did not return more information"),
    };
    InvalidResponse { why: format!("failed to call webhook: {why}"), code }
}

/// A Status in the body that reports a failure.
fn failure(body: &[u8]) -> Option<Value> {
    syntax::check(body).ok()?;
    let status = json::read(body).ok()?;
    let is = |field: &str, wanted: &str| status.str(field) == wanted;
    (is("kind", "Status") && is("apiVersion", "v1") && is("status", "Failure")).then_some(status)
}

/// The denial of a webhook of this name, for the client.
pub fn denial(name: &str, said: Option<&Value>) -> Box<Status> {
    let nothing = Value::object();
    let said = said.unwrap_or(&nothing);
    let mut message = format!("admission webhook {} denied the request", quoted(name));
    // Writing into a string cannot fail.
    let _ = match (said.str("message"), said.str("reason")) {
        ("", "") => write!(message, " without explanation"),
        ("", reason) => write!(message, ": {reason}"),
        (why, _) => write!(message, ": {why}"),
    };
    let code = said.get("code").and_then(Value::as_int).unwrap_or_default().clamp(400, LAST_CODE);
    Status::foreign(u16::try_from(code).unwrap_or(400), said.str("reason"), message, details(said))
}

fn details(said: &Value) -> Option<Details> {
    let details = said.get("details")?;
    let text = |field: &str| details.str(field).to_owned();
    let causes = details.get("causes").map(Value::items).unwrap_or_default();
    let seconds = details.get("retryAfterSeconds").and_then(Value::as_int).unwrap_or_default();
    Some(Details {
        name: text("name"),
        group: text("group"),
        kind: text("kind"),
        uid: text("uid"),
        causes: causes
            .iter()
            .map(|cause| Cause {
                reason: cause.str("reason").to_owned(),
                message: cause.str("message").to_owned(),
                field: cause.str("field").to_owned(),
            })
            .collect(),
        retry_after_seconds: u32::try_from(seconds).unwrap_or_default(),
        go_on: String::new(),
    })
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
