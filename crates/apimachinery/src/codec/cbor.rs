//! CBOR: the same objects as in JSON, as one binary item.
//!
//! Text and names are byte strings, binary data has the base64 tag, and a whole response has the self-described tag. Bodies are
//! checked against bounds before they are parsed: see [`crate::limits`].

mod half;
mod read;
mod typed;
mod wellformed;
mod write;

use std::fmt::Write as _;

use super::{Body, DecodeError, Decoded, complete_kind, or_any_version};
use crate::json;
use crate::schema::encode::EmptyLists;
use crate::schema::{GroupVersionKind, Registry, TypeId};
use crate::value::Value;

use read::ItemDecoder;
use write::Writer;

/// The self-described tag: before every response, and before every object in a watch event.
pub const PREFIX: [u8; 3] = [0xd9, 0xd9, 0xf7];

/// Decodes a body as kind `expected`. Missing kind and apiVersion are set.
pub fn decode_object(
    body: &[u8],
    expected: &GroupVersionKind,
    registry: &Registry,
) -> Result<Decoded, DecodeError> {
    let errors = Body { text: body, original: body, expected, registry };
    let ty = registry.lookup(expected).ok_or_else(|| errors.unregistered(expected))?;
    if let Ok(mut decoded) = decode_as(body, ty, registry) {
        if errors.is_custom() {
            return errors.check_custom(decoded);
        }
        if complete_kind(&mut decoded.value, expected) {
            return Ok(decoded);
        }
    }
    let actual = peek(body, registry).map_err(|message| {
        errors.unrecognized(&format!("unable to determine group/version/kind: {message}"))
    })?;
    errors.decode_as(errors.complete_with_expected(actual), |ty| decode_as(body, ty, registry))
}

/// Decodes a body of a kind that every group version has, such as DeleteOptions: its apiVersion may name any of them.
pub fn decode_any_version(
    body: &[u8],
    expected: &GroupVersionKind,
    registry: &Registry,
) -> Result<Decoded, DecodeError> {
    let decoded = decode_object(body, expected, registry);
    or_any_version(decoded, expected, registry, |ty| decode_as(body, ty, registry).ok())
}

/// Decodes a body as a type, ignoring the kind that it states. The error is the message.
pub fn decode_as(body: &[u8], ty: TypeId, registry: &Registry) -> Result<Decoded, String> {
    wellformed::check(body)?;
    typed::decode(registry, ty, body).map_err(|fault| fault.to_string())
}

/// Decodes any item without a schema. Tagged bytes become base64. The error is the message.
pub fn read(body: &[u8]) -> Result<Value, String> {
    wellformed::check(body)?;
    ItemDecoder::new(body).any().map_err(|fault| fault.to_string())
}

/// The kind that a body states; empty if it states none. The error is the message.
pub fn peek(body: &[u8], registry: &Registry) -> Result<GroupVersionKind, String> {
    let type_meta = decode_as(body, registry.type_meta(), registry)?;
    let api_version = type_meta.value.str("apiVersion");
    let (group, version) = match api_version.matches('/').count() {
        0 => ("", api_version),
        1 => api_version.split_once('/').unwrap_or_default(),
        // Unlike in JSON, an invalid apiVersion counts as absent here.
        _ => ("", ""),
    };
    Ok(GroupVersionKind::new(group, version, type_meta.value.str("kind")))
}

/// Encodes any value as a response without a schema: for values without binary data, such as a Status.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.append(&PREFIX);
    writer.any(value);
    writer.into_bytes()
}

/// [`encode`] from JSON text. The error is about the text.
pub fn from_json(text: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    Ok(encode(&json::read(text)?))
}

/// Encodes a typed object as a response.
pub fn encode_object(registry: &Registry, ty: TypeId, value: &Value, form: EmptyLists) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.append(&PREFIX);
    writer.typed(registry, ty, value, form);
    writer.into_bytes()
}

/// Encodes an object as a list item: without the tag, kind and apiVersion.
pub fn encode_item(registry: &Registry, ty: TypeId, value: &Value) -> Vec<u8> {
    let mut writer = Writer::new();
    match registry.structure(ty) {
        Some(structure) if structure.object => {
            writer.fields(registry, structure, value.fields(), EmptyLists::AsStored, 2);
        }
        _ => writer.typed(registry, ty, value, EmptyLists::AsStored),
    }
    writer.into_bytes()
}

/// The bytes before and after the items of a list, which follow each other without separators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFrame {
    /// From the tag to the number of items.
    pub head: Vec<u8>,
    /// The rest of the list.
    pub tail: Vec<u8>,
}

/// The frame of a list of `count` items.
pub fn list_frame(kind: &str, api_version: &str, metadata: &Value, count: usize) -> ListFrame {
    // Keys are sorted by length: items come before metadata, unlike in JSON.
    let mut head = Writer::new();
    head.append(&PREFIX);
    head.map(4);
    head.text("kind");
    head.text(kind);
    head.text("items");
    head.array(count);
    let mut tail = Writer::new();
    tail.text("metadata");
    match metadata {
        Value::Null => tail.map(0),
        metadata => tail.any(metadata),
    }
    tail.text("apiVersion");
    tail.text(api_version);
    ListFrame { head: head.into_bytes(), tail: tail.into_bytes() }
}

/// One watch event, for a CBOR sequence: `object` is an encoded object with or without its tag.
pub fn watch_event(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.append(&PREFIX);
    writer.map(2);
    writer.text("type");
    writer.text(kind);
    writer.text("object");
    if !object.starts_with(&PREFIX) {
        writer.append(&PREFIX);
    }
    writer.append(object);
    writer.into_bytes()
}

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
