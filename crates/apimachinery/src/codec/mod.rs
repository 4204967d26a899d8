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
use super::schema::decode::{self, Refused};
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

/// The error for any wrong body of the scale of a custom resource: it has another scheme than its object.
pub const NO_CUSTOM_SCALE: &str = "no kind is registered for the type v1.Scale in scheme \
                                   \"k8s.io/apiextensions-apiserver/pkg/apiserver/customresource_handler.go:725\"";

/// The number of body bytes that a message shows.
const SUMMARY_BYTES: usize = 30;

/// A decoding error with a complete message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DecodeError {
    /// The message for the client.
    pub message: String,
    /// The message without its surroundings, for other messages.
    pub why: String,
}

impl DecodeError {
    fn new(message: String) -> DecodeError {
        DecodeError { why: message.clone(), message }
    }

    fn because(message: String, why: &str) -> DecodeError {
        DecodeError { message, why: why.to_owned() }
    }
}

/// Decodes a body as kind `expected`. Missing kind and apiVersion are set.
pub fn decode_object(
    body: &[u8],
    expected: &GroupVersionKind,
    registry: &Registry,
) -> Result<Decoded, DecodeError> {
    let body = Body { text: body, shown: body, expected, registry };
    let ty = registry.lookup(expected).ok_or_else(|| body.unregistered(expected))?;
    if !syntax::may_be_deep(body.text)
        && let Ok(mut decoded) = decode::decode(registry, ty, body.text)
    {
        if body.is_free() {
            return body.freed(decoded);
        }
        if !misspells_kind(&decoded.strict) && named(&mut decoded.value, expected) {
            return Ok(decoded);
        }
    }
    body.examined()
}

/// Decodes a body of a kind that every group version has, such as DeleteOptions: its apiVersion may name any of them.
pub fn decode_any_version(
    body: &[u8],
    expected: &GroupVersionKind,
    registry: &Registry,
) -> Result<Decoded, DecodeError> {
    let own = decode_object(body, expected, registry);
    or_any_version(own, expected, registry, |ty| decode::decode(registry, ty, body).ok())
}

/// The decoded object, or a second attempt that ignores the apiVersion: the kind must match.
fn or_any_version(
    own: Result<Decoded, DecodeError>,
    expected: &GroupVersionKind,
    registry: &Registry,
    again: impl FnOnce(TypeId) -> Option<Decoded>,
) -> Result<Decoded, DecodeError> {
    own.or_else(|refused| {
        let decoded = registry.lookup(expected).and_then(again);
        decoded.filter(|decoded| decoded.value.str("kind") == expected.kind).ok_or(refused)
    })
}

/// Decodes a body that was converted to JSON. Messages show the original body.
pub fn decode_converted(
    json: &[u8],
    shown: &[u8],
    expected: &GroupVersionKind,
    registry: &Registry,
) -> Result<Decoded, DecodeError> {
    decode_object(json, expected, registry)
        .or_else(|_| Body { text: json, shown, expected, registry }.examined())
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
pub fn not_handled(expected: &GroupVersionKind, why: &str) -> String {
    let GroupVersionKind { kind, version, .. } = expected;
    format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {why}")
}

/// Encodes a JSON document in another encoding. Protobuf only supports kinds of the API.
pub fn encode_document(registry: &Registry, encoding: Encoding, json: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let broken = |error: String| DecodeError::new(error);
    match encoding {
        Encoding::Json => Ok(json.to_vec()),
        Encoding::Yaml => {
            let value = json::read(json).map_err(|error| broken(error.to_string()))?;
            Ok(yaml::to_yaml(value))
        }
        Encoding::Protobuf => {
            let found = decode::decode(registry, registry.type_meta(), json);
            let found = found.map_err(|_| broken("the document has no kind".to_owned()))?.value;
            let (group, version) =
                found.str("apiVersion").split_once('/').unwrap_or(("", found.str("apiVersion")));
            let kind = GroupVersionKind::new(group, version, found.str("kind"));
            // Discovery documents have kinds without a version.
            let ty = registry.lookup(&kind).or_else(|| registry.meta(&kind.kind));
            let ty = ty.ok_or_else(|| broken(format!("no kind {kind}")))?;
            let read = decode::decode(registry, ty, json);
            let value = read.map_err(|_| broken(format!("no {kind} in the document")))?.value;
            Ok(protobuf::encode_object(registry, ty, &value))
        }
        Encoding::Cbor => cbor::from_json(json).map_err(|error| broken(error.to_string())),
    }
}

/// Decodes a stored object. `None` if it is corrupt.
pub fn decode_stored(bytes: &[u8], ty: TypeId, registry: &Registry) -> Option<Value> {
    decode::decode(registry, ty, bytes).ok().map(|decoded| decoded.value)
}

/// Sets kind and apiVersion; false if the body states another kind.
fn named(value: &mut Value, expected: &GroupVersionKind) -> bool {
    let api_version = expected.api_version();
    let agrees = |said: &str, wanted: &str| said.is_empty() || said == wanted;
    let same_version = agrees(value.str("apiVersion"), &api_version) || is_unversioned(expected);
    if !same_version || !agrees(value.str("kind"), &expected.kind) {
        return false;
    }
    name(value, expected);
    true
}

/// Whether a body has a field that equals kind or apiVersion except for case. As a field it is unknown, but the reference's
/// detection of the kind accepts it.
fn misspells_kind(strict: &[String]) -> bool {
    strict.iter().any(|finding| {
        let name = finding.strip_prefix("unknown field \"").and_then(|name| name.strip_suffix('"'));
        name.is_some_and(|name| ["kind", "apiVersion"].iter().any(|own| own.eq_ignore_ascii_case(name)))
    })
}

/// The text of a field, ignoring case.
fn folded<'v>(object: &'v Value, name: &str) -> &'v str {
    let mut fields = object.fields().into_iter().flatten();
    let found = fields.rfind(|(key, value)| key.eq_ignore_ascii_case(name) && value.as_str().is_some());
    found.and_then(|(_, value)| value.as_str()).unwrap_or_default()
}

fn name(value: &mut Value, kind: &GroupVersionKind) {
    value.set("kind", kind.kind.as_str());
    value.set("apiVersion", kind.api_version());
}

/// Request options are the same in every group version, also in an unknown one: clients use that of the request's object.
fn is_unversioned(expected: &GroupVersionKind) -> bool {
    expected.group == well_known::META_GROUP
}

/// A body that could not be decoded at once: examined step by step, in the reference's order of errors.
struct Body<'a> {
    text: &'a [u8],
    shown: &'a [u8],
    expected: &'a GroupVersionKind,
    registry: &'a Registry,
}

impl Body<'_> {
    fn examined(&self) -> Result<Decoded, DecodeError> {
        if let Err(message) = syntax::check(self.text) {
            return Err(self.unrecognized(&format!("couldn't get version/kind; json parse error: {message}")));
        }
        // The text is valid JSON, so parts that the tokenizer rejects are repaired.
        let repaired = syntax::repair(self.text);
        let actual = self.interpreted(&repaired)?;
        if self.is_free() {
            if self.is_kindless(&repaired) {
                return Err(self.kindless());
            }
            let read = decode::decode(self.registry, self.registry.free_object(), &repaired);
            return self.freed(read.map_err(|refused| self.misread(&actual, refused))?);
        }
        self.judged(actual, |ty| {
            decode::decode(self.registry, ty, &repaired).map_err(|refused| match refused {
                Refused::Type(message) => message,
                Refused::Tokens => "exceeded max depth".to_owned(),
            })
        })
    }

    /// Whether the kind is a custom resource and decoded without a type.
    fn is_free(&self) -> bool {
        self.registry.lookup(self.expected) == Some(self.registry.free_object())
    }

    fn misread(&self, actual: &GroupVersionKind, refused: Refused) -> DecodeError {
        match refused {
            // The metadata of custom objects is decoded separately.
            Refused::Type(message) => {
                let message = message.replace("ObjectMeta.metadata.", "ObjectMeta.");
                self.not_handled(actual, &message.replace("struct field .metadata of", "value of"))
            }
            Refused::Tokens => self.not_handled(actual, "exceeded max depth"),
        }
    }

    /// Whether a body states no kind, whatever else is wrong with it.
    fn is_kindless(&self, text: &[u8]) -> bool {
        let read = decode::decode(self.registry, self.registry.type_meta(), text);
        read.is_ok_and(|read| read.value.str("kind").is_empty())
    }

    fn kindless(&self) -> DecodeError {
        let body = String::from_utf8_lossy(self.shown);
        self.unrecognized(&format!("Object 'Kind' is missing in '{body}'"))
    }

    /// Checks a custom object. It must state kind and apiVersion; validation checks whether they are right.
    fn freed(&self, mut decoded: Decoded) -> Result<Decoded, DecodeError> {
        if decoded.value.str("kind").is_empty() {
            return Err(self.kindless());
        }
        let said = decoded.value.str("apiVersion");
        if said != self.expected.api_version() {
            let (group, version) = said.split_once('/').unwrap_or(("", said));
            return Err(self.version_differs(&GroupVersionKind::new(group, version, "")));
        }
        decoded.strict.sort_by_key(|finding| !finding.starts_with("duplicate"));
        Ok(decoded)
    }

    /// Decodes a body as kind `actual` and compares that with the expected one.
    fn judged(
        &self,
        mut actual: GroupVersionKind,
        read: impl FnOnce(TypeId) -> Result<Decoded, String>,
    ) -> Result<Decoded, DecodeError> {
        if is_unversioned(self.expected) && actual.kind == self.expected.kind {
            actual.clone_from(self.expected);
        }
        let Some(ty) = self.registry.lookup(&actual) else {
            if actual.version.is_empty() {
                let body = String::from_utf8_lossy(self.shown);
                return Err(self.not_handled(&actual, &format!("Object 'apiVersion' is missing in '{body}'")));
            }
            let is_known = legacy::is_known(&actual) || legacy::is_everywhere(&actual.kind);
            return Err(match (is_known, actual.kind == self.expected.kind) {
                (true, true) => self.version_differs(&actual),
                (true, false) => self.inconvertible(&actual),
                (false, _) => self.unregistered(&actual),
            });
        };
        let mut decoded = read(ty).map_err(|message| self.not_handled(&actual, &message))?;
        if actual == *self.expected {
            // It may be written differently (`/v1`).
            name(&mut decoded.value, self.expected);
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
    fn interpreted(&self, text: &[u8]) -> Result<GroupVersionKind, DecodeError> {
        let found = decode::decode(self.registry, self.registry.type_meta(), text).map_err(|refused| {
            let message = match refused {
                Refused::Type(message) => message,
                Refused::Tokens => "exceeded max depth".to_owned(),
            };
            self.unrecognized(&format!("couldn't get version/kind; json parse error: {message}"))
        })?;
        let spelled = misspells_kind(&found.strict).then(|| json::read(text).unwrap_or_default());
        let said = |name| match found.value.str(name) {
            "" => spelled.as_ref().map_or("", |object| folded(object, name)),
            exact => exact,
        };
        let api_version = said("apiVersion");
        let (group, version) = match api_version.matches('/').count() {
            0 => ("", api_version),
            1 => api_version.split_once('/').unwrap_or_default(),
            _ => {
                let message = format!("unexpected GroupVersion string: {api_version}");
                return Err(self.unrecognized(&message));
            }
        };
        Ok(self.completed(GroupVersionKind::new(group, version, said("kind"))))
    }

    /// The stated kind, completed by the expected one.
    fn completed(&self, mut actual: GroupVersionKind) -> GroupVersionKind {
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

    fn not_handled(&self, actual: &GroupVersionKind, why: &str) -> DecodeError {
        let GroupVersionKind { kind, version, .. } = actual;
        let wanted = &self.expected.kind;
        let message = format!("{kind} in version {} cannot be handled as a {wanted}: {why}", quoted(version));
        DecodeError::because(message, why)
    }

    fn unrecognized(&self, why: &str) -> DecodeError {
        let wanted = &self.expected.kind;
        let summary = summary(self.shown);
        let message =
            format!("the object provided is unrecognized (must be of type {wanted}): {why} ({summary})");
        DecodeError::because(message, why)
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
