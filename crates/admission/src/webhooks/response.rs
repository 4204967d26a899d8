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
const MAX_RENDERED_BYTES: usize = 2_048;
/// The largest valid HTTP status code.
const MAX_CODE: i64 = 999;

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
    pub message: String,
    /// The code for metrics.
    pub code: u16,
}

fn call_error(reason: &str) -> InvalidResponse {
    InvalidResponse { message: format!("failed to call webhook: {reason}"), code: 400 }
}

fn invalid_response(reason: &str) -> InvalidResponse {
    InvalidResponse { message: format!("received invalid webhook response: {reason}"), code: 503 }
}

/// Parses the response to a request of this version and uid. `mutating`: whether it may contain a patch.
pub fn read(
    body: &[u8],
    version: ReviewVersion,
    uid: &str,
    mutating: bool,
) -> Result<AdmissionResponse, InvalidResponse> {
    let review = parse_review(body, version)?;
    let Some(response) = review.get("response") else {
        return Err(invalid_response("webhook response was absent"));
    };
    let patch = decode_base64(response, "patch")?;
    let patch_type = response.get("patchType").map(|patch_type| patch_type.as_str().unwrap_or_default());
    if version == ReviewVersion::V1 {
        verify_review(&review, response, uid)?;
        verify_patch(patch.is_some(), patch_type, mutating)?;
    }
    let to_string = |value: &Value| value.as_str().map(str::to_owned);
    let warnings = response.get("warnings").map(Value::items).unwrap_or_default();
    let annotations = response.get("auditAnnotations").and_then(Value::fields).into_iter().flatten();
    Ok(AdmissionResponse {
        allowed: response.get("allowed").and_then(Value::as_bool) == Some(true),
        patch: patch.filter(|_| mutating),
        status: response.get("status").cloned(),
        warnings: warnings.iter().filter_map(to_string).take(HOOK_WARNINGS).collect(),
        annotations: annotations.filter_map(|(key, value)| Some((key.clone(), to_string(value)?))).collect(),
    })
}

/// The review, with all fields type-checked.
fn parse_review(body: &[u8], version: ReviewVersion) -> Result<Value, InvalidResponse> {
    let parse_error =
        |reason: String| call_error(&format!("couldn't get version/kind; json parse error: {reason}"));
    syntax::check(body).map_err(parse_error)?;
    let review = json::read(body).map_err(|error| call_error(&error.to_string()))?;
    let Some(_) = review.fields() else {
        let actual = review.json_word();
        return Err(parse_error(format!(
            "json: cannot unmarshal {actual} into Go value of type struct {{ APIVersion string \
             \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}"
        )));
    };
    let (api_version, kind) = (review.str("apiVersion"), review.str("kind"));
    let expected = format!("{REVIEW_GROUP}/{}", version.word());
    let matches = |value: &str, expected: &str| value.is_empty() || value == expected;
    // A Status is recognized as such, whatever was requested.
    if !matches(kind, REVIEW_KIND) || !matches(api_version, &expected) {
        if (kind, api_version) == ("Status", "v1") {
            return Err(call_error(review.str("message")));
        }
        return Err(call_error(&format!(
            "no kind {} is registered for version {} in scheme \"pkg/runtime/scheme.go\"",
            quoted(kind),
            quoted(api_version)
        )));
    }
    for (path, expected) in FIELDS {
        match review.get_path(path) {
            Some(actual) if !expected.fits(actual) => {
                let (parent, field) = (path.len().saturating_sub(1), path.join("."));
                let parent = if parent == 0 { REVIEW_KIND } else { "AdmissionResponse" };
                return Err(call_error(&format!(
                    "json: cannot unmarshal {} into Go struct field {parent}.{field} of type {}",
                    actual.json_word(),
                    expected.word()
                )));
            }
            _ => {}
        }
    }
    Ok(review)
}

/// The type of a field.
#[derive(Clone, Copy)]
enum FieldType {
    Response,
    String,
    Uid,
    PatchType,
    Bool,
    Bytes,
    Status,
    Strings,
    StringMap,
}

const FIELDS: [(&[&str], FieldType); 10] = [
    (&["kind"], FieldType::String),
    (&["apiVersion"], FieldType::String),
    (&["response"], FieldType::Response),
    (&["response", "uid"], FieldType::Uid),
    (&["response", "allowed"], FieldType::Bool),
    (&["response", "status"], FieldType::Status),
    (&["response", "patch"], FieldType::Bytes),
    (&["response", "patchType"], FieldType::PatchType),
    (&["response", "auditAnnotations"], FieldType::StringMap),
    (&["response", "warnings"], FieldType::Strings),
];

impl FieldType {
    fn fits(self, value: &Value) -> bool {
        let text = |value: &Value| value.as_str().is_some();
        match self {
            FieldType::Response | FieldType::Status => value.fields().is_some(),
            FieldType::String | FieldType::Uid | FieldType::PatchType | FieldType::Bytes => text(value),
            FieldType::Bool => value.as_bool().is_some(),
            FieldType::Strings => matches!(value, Value::Array(items) if items.iter().all(text)),
            FieldType::StringMap => value.fields().is_some_and(|fields| fields.values().all(text)),
        }
    }

    fn word(self) -> &'static str {
        match self {
            FieldType::Response => "v1.AdmissionResponse",
            FieldType::String => "string",
            FieldType::Uid => "types.UID",
            FieldType::PatchType => "v1.PatchType",
            FieldType::Bool => "bool",
            FieldType::Bytes => "[]uint8",
            FieldType::Status => "v1.Status",
            FieldType::Strings => "[]string",
            FieldType::StringMap => "map[string]string",
        }
    }
}

fn decode_base64(response: &Value, field: &str) -> Result<Option<Vec<u8>>, InvalidResponse> {
    let text = response.str(field);
    let decoded =
        STANDARD.decode(text).map_err(|error| call_error(&format!("illegal base64 data: {error}")))?;
    Ok(Some(decoded).filter(|bytes| !bytes.is_empty()))
}

/// Checks that the response belongs to the request. v1beta1 responses need not state a uid.
fn verify_review(review: &Value, response: &Value, uid: &str) -> Result<(), InvalidResponse> {
    let actual = response.str("uid");
    if actual != uid {
        return Err(invalid_response(&format!(
            "expected response.uid={}, got {}",
            quoted(uid),
            quoted(actual)
        )));
    }
    let (api_version, kind) = (review.str("apiVersion"), review.str("kind"));
    if api_version.is_empty() || kind.is_empty() {
        let actual = match api_version {
            "" => "/".to_owned(),
            api_version => api_version.to_owned(),
        };
        return Err(invalid_response(&format!(
            "expected webhook response of {REVIEW_GROUP}/v1, Kind={REVIEW_KIND}, got {actual}, Kind={kind}"
        )));
    }
    Ok(())
}

fn verify_patch(patch: bool, patch_type: Option<&str>, mutating: bool) -> Result<(), InvalidResponse> {
    let reason = match (mutating, patch, patch_type) {
        (true, true, None) => "webhook returned response.patch but not response.patchType",
        (true, false, Some(_)) => "webhook returned response.patchType but not response.patch",
        (true, true, Some("")) => "webhook returned invalid response.patchType of \"\"",
        (true, true, Some("JSONPatch")) | (true | false, false, None) => return Ok(()),
        (true, true, Some(other)) => {
            let code = 400;
            return Err(InvalidResponse {
                message: format!("unsupported patch type {}", quoted(other)),
                code,
            });
        }
        (false, true, _) => "validating webhook may not return response.patch",
        (false, false, Some(_)) => "validating webhook may not return response.patchType",
    };
    Err(invalid_response(reason))
}

/// The error for a response with a failure code. `is_text`: whether its body is human-readable.
pub fn from_http_error(code: u16, is_text: bool, body: &[u8]) -> InvalidResponse {
    if let Some(status) = failure_status(body) {
        let status_code =
            status.get("code").and_then(Value::as_int).and_then(|code| u16::try_from(code).ok());
        return InvalidResponse {
            message: status.str("message").to_owned(),
            code: status_code.unwrap_or_default(),
        };
    }
    let body = body.get(..MAX_RENDERED_BYTES).unwrap_or(body);
    let text = String::from_utf8_lossy(body);
    let message = if is_text { text.trim() } else { "unknown" };
    let reason = match code {
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 | 415 => message.to_owned(),
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        406 if matches!(message, "" | "unknown") => {
            "the server was unable to respond with a content type that the client supports".to_owned()
        }
        406 => message.to_owned(),
        409 => "the server reported a conflict".to_owned(),
        422 => "the server rejected our request due to an error in our request".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => "the server was unable to return a response in the time allotted, but may still be processing the \
                request"
            .to_owned(),
        500.. => {
            format!("an error on the server ({}) has prevented the request from succeeding", quoted(message))
        }
        _ => format!("the server responded with the status code {code} but did not return more information"),
    };
    InvalidResponse { message: reason, code }
}

/// A Status in the body that reports a failure.
fn failure_status(body: &[u8]) -> Option<Value> {
    syntax::check(body).ok()?;
    let status = json::read(body).ok()?;
    let has = |field: &str, expected: &str| status.str(field) == expected;
    (has("kind", "Status") && has("apiVersion", "v1") && has("status", "Failure")).then_some(status)
}

/// The denial of a webhook of this name, for the client.
pub fn denial(name: &str, status: Option<&Value>) -> Box<Status> {
    let empty = Value::object();
    let status = status.unwrap_or(&empty);
    let mut message = format!("admission webhook {} denied the request", quoted(name));
    // Writing into a string cannot fail.
    let _ = match (status.str("message"), status.str("reason")) {
        ("", "") => write!(message, " without explanation"),
        ("", reason) => write!(message, ": {reason}"),
        (explanation, _) => write!(message, ": {explanation}"),
    };
    let code = status.get("code").and_then(Value::as_int).unwrap_or_default().clamp(400, MAX_CODE);
    Status::from_webhook(u16::try_from(code).unwrap_or(400), status.str("reason"), message, details(status))
}

fn details(status: &Value) -> Option<Details> {
    let details = status.get("details")?;
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
        continue_token: String::new(),
    })
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
