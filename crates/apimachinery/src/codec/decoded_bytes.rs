//! How much memory a body takes while it is processed, estimated before it is decoded.
//!
//! A body is decoded into a tree of values, and the tree has many times its size if it consists of small parts: an integer of one
//! digit takes two bytes of JSON and 24 bytes of memory, and 24 more while its list is built. On top of the tree come the managed
//! fields (as a set, and in their stored form), the defaults, and the JSON that is stored. Copies of the tree share
//! it, so their number does not count.
//!
//! The estimate charges each byte that can begin or separate parts with the most that such a part takes. It does not look for
//! strings, in which these bytes mean nothing: text is overestimated, and the scan is one lookup per byte. Nor does it know which
//! lists are sets, whose items are managed fields: [`SET_ITEM_BYTES`] comes on top once they are decoded.

use crate::limits::{OBJECT_PARTS, YAML_ALIAS_BYTES, YAML_NODES};
use crate::media::Encoding;

/// Bodies below this size are not scanned: [`SMALL_BODY_FACTOR`] times their size is little.
const MIN_SCANNED: usize = 4 << 10;

/// Bytes of memory for each byte of a small body, as if it were made of the most expensive parts.
const SMALL_BODY_FACTOR: usize = 128;

/// Bytes of memory for each object that is given defaults. There are at most [`OBJECT_PARTS`] of them.
const DEFAULTS: usize = 800;

/// Bytes of memory for each byte of text: in the tree, and in the stored JSON, which takes up to three times its size while it is
/// encoded.
const TEXT: u16 = 5;
/// For a character that is escaped as six bytes.
const ESCAPED: u16 = 6 * TEXT;
/// For a separator: one more item of a list.
const ITEM: u16 = 60;
/// For the first item, and the list itself.
const LIST: u16 = 136;
/// For an object without its fields.
const OBJECT: u16 = 72;
/// For a field: its place in the object, and in the managed fields.
const FIELD: u16 = 320;
/// Bytes that the managed field of an item of a set takes while a body is processed: an element in each of several field sets,
/// and an entry in the stored form. Measured: `tests/api/decoders.rs`.
pub const SET_ITEM_BYTES: usize = 512;
/// For one of the two quotes of a string.
const QUOTE: u16 = 16;
/// For a node of a YAML document, before it becomes a value.
const NODE: u16 = 240;

/// The memory for each byte of text alone.
const PLAIN: [u16; 256] = {
    let mut bytes = [TEXT; 256];
    bytes[b'<' as usize] = ESCAPED;
    bytes[b'>' as usize] = ESCAPED;
    bytes[b'&' as usize] = ESCAPED;
    bytes
};

/// The memory for each byte of a JSON text.
const JSON: [u16; 256] = {
    let mut bytes = PLAIN;
    bytes[b',' as usize] = ITEM + TEXT;
    bytes[b'[' as usize] = LIST + TEXT;
    bytes[b'{' as usize] = OBJECT + TEXT;
    bytes[b':' as usize] = FIELD + TEXT;
    bytes[b'"' as usize] = QUOTE + TEXT;
    bytes
};

/// The memory for each byte of a YAML text, which separates parts by lines and dashes as well.
const YAML: [u16; 256] = {
    let mut bytes = JSON;
    bytes[b',' as usize] += NODE;
    bytes[b':' as usize] += NODE;
    bytes[b'[' as usize] += NODE;
    bytes[b'{' as usize] += NODE;
    bytes[b'\n' as usize] = NODE + ITEM;
    bytes[b'-' as usize] = LIST + TEXT;
    bytes
};

/// The memory for each byte of a Protobuf message. Any byte may be a number of a packed list. A part of less than 32 bytes is
/// preceded by its length, which is no printable character.
const PROTOBUF: [u16; 256] = {
    let mut bytes = [36; 256];
    let mut control = 0;
    while control < 0x20 {
        bytes[control] = 160;
        control += 1;
    }
    bytes
};

/// An upper estimate of the memory that the processing of a body takes: all trees, sets and texts that live at once. The body
/// itself is not included, nor is the stored object that it changes; that one is JSON, and is estimated in the same way.
pub fn decoded_bytes_bound(encoding: Encoding, body: &[u8]) -> usize {
    if body.len() < MIN_SCANNED {
        return body.len() * SMALL_BODY_FACTOR;
    }
    match encoding {
        Encoding::Json => sum_weights(&JSON, body) + defaults(memchr::memchr_iter(b'{', body).count()),
        Encoding::Yaml => yaml(body),
        Encoding::Protobuf => {
            let messages = body.iter().filter(|byte| **byte < 0x20).count() / 2;
            sum_weights(&PROTOBUF, body) + defaults(messages)
        }
        Encoding::Cbor => cbor(body),
    }
}

/// The sum of the weights of all bytes.
fn sum_weights(weights: &[u16; 256], body: &[u8]) -> usize {
    body.iter().map(|byte| usize::from(weights[usize::from(*byte)])).sum()
}

/// The defaults of so many objects. A body with more is refused before any are set.
fn defaults(objects: usize) -> usize {
    objects.min(OBJECT_PARTS) * DEFAULTS
}

/// Objects of a YAML text begin with a bracket or with a key, so each key may be one. An alias adds at most the whole text before
/// it, up to a bound.
fn yaml(body: &[u8]) -> usize {
    let keys = memchr::memchr_iter(b':', body).count();
    let unexpanded = sum_weights(&YAML, body) + defaults(keys);
    if !anchor_names(body, b'&').any(|_| true) {
        return unexpanded;
    }
    let aliases = anchor_names(body, b'*').take(usize::BITS as usize).count() as u32;
    let expanded = unexpanded.saturating_mul(1_usize.checked_shl(aliases).unwrap_or(usize::MAX));
    let limit = YAML_NODES * usize::from(FIELD) + YAML_ALIAS_BYTES * usize::from(TEXT);
    expanded.min(unexpanded + limit)
}

/// The positions of `sign` where the name of an anchor or alias may follow.
fn anchor_names(body: &[u8], sign: u8) -> impl Iterator<Item = usize> {
    memchr::memchr_iter(sign, body).filter(|index| {
        let before = index.checked_sub(1).and_then(|before| body.get(before));
        let after = body.get(index + 1);
        before.is_none_or(|byte| {
            matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'[' | b'{' | b',' | b':' | b'-')
        }) && after.is_some_and(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    })
}

/// CBOR states the length of each part before it, so that text and other parts are distinguished. Each text may be a key.
fn cbor(body: &[u8]) -> usize {
    let (mut rest, mut weight, mut objects) = (body, 0, 0);
    while let Some((first, after)) = rest.split_first() {
        let width = match first & 31 {
            long @ 24..28 => 1 << (long - 24),
            _ => 0,
        };
        let Some((number, after)) = after.split_at_checked(width) else { break };
        weight += usize::from(ITEM);
        rest = after;
        match first >> 5 {
            2 | 3 => {
                let length = match first & 31 {
                    short @ ..24 => usize::from(short),
                    // Parts of a text of unknown length follow, each with its own.
                    _ => number.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte)),
                };
                let (text, after) = rest.split_at_checked(length).unwrap_or((rest, &[]));
                weight += usize::from(FIELD + 2 * QUOTE) + sum_weights(&PLAIN, text);
                rest = after;
            }
            4 => weight += usize::from(LIST),
            5 => {
                weight += usize::from(OBJECT);
                objects += 1;
            }
            _ => {}
        }
    }
    weight + defaults(objects)
}
