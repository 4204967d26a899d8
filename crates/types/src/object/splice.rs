//! Replaces a part of bytes that are shared.

use bytes::{Bytes, BytesMut};

/// The same bytes with `new` in place of the `old_length` bytes at `offset`.
pub(super) fn splice(bytes: &Bytes, offset: usize, old_length: usize, new: &[u8]) -> Bytes {
    let offset = offset.min(bytes.len());
    let rest = (offset + old_length).min(bytes.len());
    let mut spliced = BytesMut::with_capacity(bytes.len() - (rest - offset) + new.len());
    spliced.extend_from_slice(&bytes[..offset]);
    spliced.extend_from_slice(new);
    spliced.extend_from_slice(&bytes[rest..]);
    spliced.freeze()
}
