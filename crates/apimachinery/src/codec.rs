//! Encodings: JSON, YAML, Protobuf and CBOR.

pub mod cbor;
pub mod decoded_bytes;
pub mod indent;
pub mod legacy;
pub mod protobuf;
pub mod raw_fields;
pub mod syntax;
pub mod transcode;
pub mod yaml;
mod yaml_fault;
pub mod yaml_list;
mod yaml_plain;
mod yaml_read;
mod yaml_style;
mod yaml_tree;
mod yaml_write;

use super::field::quoted;
use super::media::Encoding;
use super::schema::decode::{self, DecodeFailure};
use super::schema::{GroupVersionKind, Registry, TypeId};
use super::value::Value;
use super::well_known;
use crate::json;

pub use super::schema::decode::Decoded;
pub use super::schema::encode::{Encoded, encode, encode_draft};
pub use crate::json::to_json;
pub use decoded_bytes::{SET_ITEM_BYTES, decoded_bytes_bound};
pub use indent::pretty;

/// The error for custom resources in Protobuf.
pub const NO_PROTOBUF: &str = "object *unstructured.Unstructured does not implement the protobuf marshalling interface and \
                               cannot be encoded to a protobuf message";

/// The error for any invalid body of the scale subresource of a custom resource: Scale is not in the scheme of custom resources.
pub const NO_CUSTOM_SCALE: &str = "no kind is registered for the type v1.Scale in scheme \
                                   \"k8s.io/apiextensions-apiserver/pkg/apiserver/customresource_handler.go:725\"";

/// The number of body bytes that a message quotes.
const SUMMARY_BYTES: usize = 30;

/// A decoding error with a complete message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DecodeError {
    /// The message for the client.
    pub message: String,
    /// The cause alone, for callers that embed it in a message of their own.
    pub detail: String,
}

impl DecodeError {
    fn new(message: String) -> DecodeError {
        DecodeError { detail: message.clone(), message }
    }

    fn because(message: String, detail: &str) -> DecodeError {
        DecodeError { message, detail: detail.to_owned() }
    }
}

/// Decodes a body as kind `expected`. Missing kind and apiVersion are set.
pub fn decode_object(
    body: &[u8],
    expected: &GroupVersionKind,
    registry: &Registry,
) -> Result<Decoded, DecodeError> {
    let body = Body { text: body, original: body, expected, registry };
    let ty = registry.lookup(expected).ok_or_else(|| body.unregistered(expected))?;
    if !syntax::may_be_deep(body.text)
        && let Ok(mut decoded) = decode::decode(registry, ty, body.text)
    {
        if body.is_custom() {
            return body.check_custom(decoded);
        }
        if !has_kind_in_other_case(&decoded.strict) && complete_kind(&mut decoded.value, expected) {
            return Ok(decoded);
        }
    }
    body.decode_stepwise()
}

/// Decodes a body of a kind that every group version has, such as DeleteOptions: its apiVersion may name any of them.
pub fn decode_any_version(
    body: &[u8],
    expected: &GroupVersionKind,
    registry: &Registry,
) -> Result<Decoded, DecodeError> {
    let decoded = decode_object(body, expected, registry);
    or_any_version(decoded, expected, registry, |ty| decode::decode(registry, ty, body).ok())
}

/// The decoded object, or a second attempt that ignores the apiVersion: the kind must match.
fn or_any_version(
    decoded: Result<Decoded, DecodeError>,
    expected: &GroupVersionKind,
    registry: &Registry,
    decode_again: impl FnOnce(TypeId) -> Option<Decoded>,
) -> Result<Decoded, DecodeError> {
    decoded.or_else(|error| {
        let decoded = registry.lookup(expected).and_then(decode_again);
        decoded.filter(|decoded| decoded.value.str("kind") == expected.kind).ok_or(error)
    })
}

/// Decodes a body that was converted to JSON. Messages quote the original body.
pub fn decode_converted(
    json: &[u8],
    original: &[u8],
    expected: &GroupVersionKind,
    registry: &Registry,
) -> Result<Decoded, DecodeError> {
    decode_object(json, expected, registry)
        .or_else(|_| Body { text: json, original, expected, registry }.decode_stepwise())
}

/// The error for unknown and duplicate fields in strict mode.
pub fn strict_refusal(expected: &GroupVersionKind, strict: &[String]) -> DecodeError {
    let GroupVersionKind { kind, version, .. } = expected;
    let list = strict.join(", ");
    DecodeError::new(format!(
        "{kind} in version \"{version}\" cannot be handled as a {kind}: strict decoding error: {list}"
    ))
}

/// The error for a body that cannot be decoded as a kind.
pub fn not_handled(expected: &GroupVersionKind, detail: &str) -> String {
    let GroupVersionKind { kind, version, .. } = expected;
    format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {detail}")
}

/// Encodes a JSON document in another encoding. Protobuf only supports kinds of the API.
pub fn encode_document(registry: &Registry, encoding: Encoding, json: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let invalid = |error: String| DecodeError::new(error);
    match encoding {
        Encoding::Json => Ok(json.to_vec()),
        Encoding::Yaml => {
            let value = json::read(json).map_err(|error| invalid(error.to_string()))?;
            Ok(yaml::to_yaml(value))
        }
        Encoding::Protobuf => {
            let type_meta = decode::decode(registry, registry.type_meta(), json);
            let type_meta = type_meta.map_err(|_| invalid("the document has no kind".to_owned()))?.value;
            let api_version = type_meta.str("apiVersion");
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            let kind = GroupVersionKind::new(group, version, type_meta.str("kind"));
            // Discovery documents have kinds without a version.
            let ty = registry.lookup(&kind).or_else(|| registry.meta(&kind.kind));
            let ty = ty.ok_or_else(|| invalid(format!("no kind {kind}")))?;
            let decoded = decode::decode(registry, ty, json);
            let value = decoded.map_err(|_| invalid(format!("no {kind} in the document")))?.value;
            Ok(protobuf::encode_object(registry, ty, &value))
        }
        Encoding::Cbor => cbor::from_json(json).map_err(|error| invalid(error.to_string())),
    }
}

/// Decodes a stored object. `None` if it is corrupt.
pub fn decode_stored(bytes: &[u8], ty: TypeId, registry: &Registry) -> Option<Value> {
    decode::decode(registry, ty, bytes).ok().map(|decoded| decoded.value)
}

/// Sets kind and apiVersion; false if the body states another kind.
fn complete_kind(value: &mut Value, expected: &GroupVersionKind) -> bool {
    let api_version = expected.api_version();
    let agrees = |stated: &str, expected: &str| stated.is_empty() || stated == expected;
    let same_version = agrees(value.str("apiVersion"), &api_version) || is_unversioned(expected);
    if !same_version || !agrees(value.str("kind"), &expected.kind) {
        return false;
    }
    set_kind(value, expected);
    true
}

/// Whether a body has a field that equals kind or apiVersion except for case. As a field it is unknown, but the reference's
/// detection of the kind accepts it.
fn has_kind_in_other_case(strict: &[String]) -> bool {
    strict.iter().any(|finding| {
        let name = finding.strip_prefix("unknown field \"").and_then(|name| name.strip_suffix('"'));
        name.is_some_and(|name| ["kind", "apiVersion"].iter().any(|field| field.eq_ignore_ascii_case(name)))
    })
}

/// The text of the last field whose name matches, ignoring case.
fn text_ignoring_case<'v>(object: &'v Value, name: &str) -> &'v str {
    let mut fields = object.fields().into_iter().flatten();
    let field = fields.rfind(|(key, value)| key.eq_ignore_ascii_case(name) && value.as_str().is_some());
    field.and_then(|(_, value)| value.as_str()).unwrap_or_default()
}

fn set_kind(value: &mut Value, kind: &GroupVersionKind) {
    value.set("kind", kind.kind.as_str());
    value.set("apiVersion", kind.api_version());
}

/// Request options are the same in every group version, also in an unknown one: clients use that of the request's object.
fn is_unversioned(expected: &GroupVersionKind) -> bool {
    expected.group == well_known::META_GROUP
}

/// A body that the fast path could not decode: decoded step by step, to report errors in the order of the reference.
struct Body<'a> {
    text: &'a [u8],
    /// The body before its conversion to JSON: messages quote it.
    original: &'a [u8],
    expected: &'a GroupVersionKind,
    registry: &'a Registry,
}

impl Body<'_> {
    fn decode_stepwise(&self) -> Result<Decoded, DecodeError> {
        if let Err(message) = syntax::check(self.text) {
            return Err(self.unrecognized(&format!("couldn't get version/kind; json parse error: {message}")));
        }
        // The text is valid JSON, so parts that the tokenizer rejects are repaired.
        let repaired = syntax::repair(self.text);
        let actual = self.stated_kind(&repaired)?;
        if self.is_custom() {
            if self.is_kindless(&repaired) {
                return Err(self.kindless());
            }
            let decoded = decode::decode(self.registry, self.registry.free_object(), &repaired);
            return self.check_custom(decoded.map_err(|failure| self.custom_error(&actual, failure))?);
        }
        self.decode_as(actual, |ty| {
            decode::decode(self.registry, ty, &repaired).map_err(|failure| match failure {
                DecodeFailure::Type(message) => message,
                DecodeFailure::Tokens => "exceeded max depth".to_owned(),
            })
        })
    }

    /// Whether the kind is a custom resource, which is decoded without a type.
    fn is_custom(&self) -> bool {
        self.registry.lookup(self.expected) == Some(self.registry.free_object())
    }

    fn custom_error(&self, actual: &GroupVersionKind, failure: DecodeFailure) -> DecodeError {
        match failure {
            // The metadata of custom objects is decoded separately.
            DecodeFailure::Type(message) => {
                let message = message.replace("ObjectMeta.metadata.", "ObjectMeta.");
                self.not_handled(actual, &message.replace("struct field .metadata of", "value of"))
            }
            DecodeFailure::Tokens => self.not_handled(actual, "exceeded max depth"),
        }
    }

    /// Whether a body states no kind, valid otherwise or not.
    fn is_kindless(&self, text: &[u8]) -> bool {
        let decoded = decode::decode(self.registry, self.registry.type_meta(), text);
        decoded.is_ok_and(|decoded| decoded.value.str("kind").is_empty())
    }

    fn kindless(&self) -> DecodeError {
        let body = String::from_utf8_lossy(self.original);
        self.unrecognized(&format!("Object 'Kind' is missing in '{body}'"))
    }

    /// Checks that a custom object states its kind and the expected apiVersion; validation checks the kind.
    fn check_custom(&self, mut decoded: Decoded) -> Result<Decoded, DecodeError> {
        if decoded.value.str("kind").is_empty() {
            return Err(self.kindless());
        }
        let api_version = decoded.value.str("apiVersion");
        if api_version != self.expected.api_version() {
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            return Err(self.version_differs(&GroupVersionKind::new(group, version, "")));
        }
        decoded.strict.sort_by_key(|finding| !finding.starts_with("duplicate"));
        Ok(decoded)
    }

    /// Decodes a body as kind `actual` and compares that with the expected one.
    fn decode_as(
        &self,
        mut actual: GroupVersionKind,
        decode: impl FnOnce(TypeId) -> Result<Decoded, String>,
    ) -> Result<Decoded, DecodeError> {
        if is_unversioned(self.expected) && actual.kind == self.expected.kind {
            actual.clone_from(self.expected);
        }
        let Some(ty) = self.registry.lookup(&actual) else {
            if actual.version.is_empty() {
                let body = String::from_utf8_lossy(self.original);
                return Err(self.not_handled(&actual, &format!("Object 'apiVersion' is missing in '{body}'")));
            }
            let is_known = legacy::is_known(&actual) || legacy::is_everywhere(&actual.kind);
            return Err(match (is_known, actual.kind == self.expected.kind) {
                (true, true) => self.version_differs(&actual),
                (true, false) => self.inconvertible(&actual),
                (false, _) => self.unregistered(&actual),
            });
        };
        let mut decoded = decode(ty).map_err(|message| self.not_handled(&actual, &message))?;
        if actual == *self.expected {
            // The apiVersion may be spelled differently (`/v1`).
            set_kind(&mut decoded.value, self.expected);
            return Ok(decoded);
        }
        if actual.kind == self.expected.kind && legacy::is_same_family(&actual.group, &self.expected.group) {
            return Err(self.version_differs(&actual));
        }
        Err(self.inconvertible(&actual))
    }

    fn inconvertible(&self, actual: &GroupVersionKind) -> DecodeError {
        let version = if legacy::is_everywhere(&actual.kind) { "v1" } else { &actual.version };
        let from = format!("{version}.{}", actual.kind);
        let to = format!("{}.{}", self.registry.family(&self.expected.group), self.expected.kind);
        self.not_handled(actual, &format!("converting ({from}) to ({to}): unknown conversion"))
    }

    /// The kind that the body states, completed by the expected one.
    fn stated_kind(&self, text: &[u8]) -> Result<GroupVersionKind, DecodeError> {
        let type_meta =
            decode::decode(self.registry, self.registry.type_meta(), text).map_err(|failure| {
                let message = match failure {
                    DecodeFailure::Type(message) => message,
                    DecodeFailure::Tokens => "exceeded max depth".to_owned(),
                };
                self.unrecognized(&format!("couldn't get version/kind; json parse error: {message}"))
            })?;
        let in_other_case =
            has_kind_in_other_case(&type_meta.strict).then(|| json::read(text).unwrap_or_default());
        let stated = |name| match type_meta.value.str(name) {
            "" => in_other_case.as_ref().map_or("", |object| text_ignoring_case(object, name)),
            exact => exact,
        };
        let api_version = stated("apiVersion");
        let (group, version) = match api_version.matches('/').count() {
            0 => ("", api_version),
            1 => api_version.split_once('/').unwrap_or_default(),
            _ => {
                let message = format!("unexpected GroupVersion string: {api_version}");
                return Err(self.unrecognized(&message));
            }
        };
        Ok(self.complete_with_expected(GroupVersionKind::new(group, version, stated("kind"))))
    }

    /// A kind, completed by the expected one.
    fn complete_with_expected(&self, mut actual: GroupVersionKind) -> GroupVersionKind {
        if actual.kind.is_empty() {
            actual.kind.clone_from(&self.expected.kind);
        }
        if actual.version.is_empty() && (actual.group.is_empty() || actual.group == self.expected.group) {
            actual.group.clone_from(&self.expected.group);
            actual.version.clone_from(&self.expected.version);
        }
        actual
    }

    fn unregistered(&self, actual: &GroupVersionKind) -> DecodeError {
        let scheme = legacy::scheme(&self.expected.group);
        let (kind, api_version) = (quoted(&actual.kind), quoted(&actual.api_version()));
        self.not_handled(
            actual,
            &format!("no kind {kind} is registered for version {api_version} in scheme \"{scheme}\""),
        )
    }

    fn version_differs(&self, actual: &GroupVersionKind) -> DecodeError {
        let (actual, expected) = (actual.api_version(), self.expected.api_version());
        DecodeError::new(format!(
            "the API version in the data ({actual}) does not match the expected API version ({expected})"
        ))
    }

    fn not_handled(&self, actual: &GroupVersionKind, detail: &str) -> DecodeError {
        let GroupVersionKind { kind, version, .. } = actual;
        let expected = &self.expected.kind;
        let message =
            format!("{kind} in version {} cannot be handled as a {expected}: {detail}", quoted(version));
        DecodeError::because(message, detail)
    }

    fn unrecognized(&self, detail: &str) -> DecodeError {
        let expected = &self.expected.kind;
        let summary = summary(self.original);
        let message =
            format!("the object provided is unrecognized (must be of type {expected}): {detail} ({summary})");
        DecodeError::because(message, detail)
    }
}

/// The beginning of a body: as text if it looks like JSON, else in hexadecimal.
fn summary(body: &[u8]) -> String {
    let head = body.get(..SUMMARY_BYTES).unwrap_or(body);
    let mut summary = match body.first() {
        None => return "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(head).into_owned(),
        Some(_) => cbor::hex(head),
    };
    if body.len() > SUMMARY_BYTES {
        summary.push_str(" ...");
    }
    summary
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
