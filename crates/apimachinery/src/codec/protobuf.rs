//! Protobuf: built-in kinds as messages, driven by the same types as the other encodings.
//!
//! A message does not name its type, so an object is wrapped into an envelope that begins with four magic bytes and names its
//! kind. Decoded values equal those of the object's JSON.

mod decode;
mod encode;
mod envelope;
mod reader;
mod scalars;
mod source;
mod tape;
mod writer;

use super::{Body, DecodeError, Decoded, or_any_version};
use crate::schema::{GroupVersionKind, Registry, TypeId};
use crate::value::Value;

pub use envelope::{Header, ListFields, list_envelope, watch_frame};

/// The magic bytes of every body.
pub const MAGIC: [u8; 4] = [0x6b, 0x38, 0x73, 0x00];

/// Decodes a body as kind `expected`. Missing kind and apiVersion are set. Unknown fields are dropped silently: Protobuf has no
/// strict mode.
pub fn decode_object(
    body: &[u8],
    expected: &GroupVersionKind,
    registry: &Registry,
) -> Result<Decoded, DecodeError> {
    let errors = Body { text: body, original: body, expected, registry };
    let envelope = envelope::open(body).map_err(|fault| errors.unrecognized(&fault.to_string()))?;
    let mut actual = kind_from_parts(&envelope.api_version, &envelope.kind);
    if actual.kind.is_empty() {
        actual.kind.clone_from(&expected.kind);
    }
    if actual.version.is_empty() {
        actual.group.clone_from(&expected.group);
        actual.version.clone_from(&expected.version);
    }
    errors.decode_as(actual, |ty| decode_message(envelope.raw, ty, registry))
}

/// Decodes a body of a kind that every group version has, such as DeleteOptions: its apiVersion may name any of them.
pub fn decode_any_version(
    body: &[u8],
    expected: &GroupVersionKind,
    registry: &Registry,
) -> Result<Decoded, DecodeError> {
    let decoded = decode_object(body, expected, registry);
    or_any_version(decoded, expected, registry, |ty| {
        let envelope = envelope::open(body).ok()?;
        let mut decoded = decode_message(envelope.raw, ty, registry).ok()?;
        decoded.value.set("kind", envelope.kind);
        decoded.value.set("apiVersion", envelope.api_version);
        Some(decoded)
    })
}

/// The kind that an envelope names; empty if it names none. `None` if there is no envelope.
pub fn peek(body: &[u8]) -> Option<GroupVersionKind> {
    envelope::open(body).ok().map(|envelope| kind_from_parts(&envelope.api_version, &envelope.kind))
}

/// Encodes an object in its envelope, which names the value's kind and apiVersion.
pub fn encode_object(registry: &Registry, ty: TypeId, value: &Value) -> Vec<u8> {
    envelope::enveloped(registry, ty, value)
}

/// Wraps a message into an envelope of this kind.
pub fn envelope(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let mut out = envelope::head(api_version, kind, message.len());
    out.reserve(message.len() + 4);
    out.extend_from_slice(message);
    out.extend_from_slice(&envelope::tail());
    out
}

/// The message alone: a list item.
pub fn message(registry: &Registry, ty: TypeId, value: &Value) -> Vec<u8> {
    let mut out = encode::writer();
    encode::write(&mut out, registry, ty, value);
    out.finish()
}

/// The message of a stored object, several times faster than through a value. `None` if it is corrupt.
pub fn transcode(registry: &Registry, ty: TypeId, json: &[u8]) -> Option<Vec<u8>> {
    let tape = tape::Tape::read(json)?;
    let mut out = encode::writer();
    encode::write(&mut out, registry, ty, tape.root());
    Some(out.finish())
}

fn decode_message(raw: &[u8], ty: TypeId, registry: &Registry) -> Result<Decoded, String> {
    let value = decode::read(registry, ty, raw).map_err(|fault| fault.to_string())?;
    Ok(Decoded { value, strict: Vec::new() })
}

/// The kind of an envelope. An invalid apiVersion counts as absent.
fn kind_from_parts(api_version: &str, kind: &str) -> GroupVersionKind {
    match api_version.split_once('/') {
        None => GroupVersionKind::new("", api_version, kind),
        Some((_, version)) if version.contains('/') => GroupVersionKind::new("", "", kind),
        Some((group, version)) => GroupVersionKind::new(group, version, kind),
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
