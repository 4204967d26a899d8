//! Ends of ranges. A range reaches from its key to its end, without the end.

use bytes::Bytes;

/// The end of a range that has none: all keys from the first one on.
pub const FROM_KEY: Bytes = Bytes::from_static(&[0]);

/// The end of the range of all keys with this prefix.
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let Some(last) = prefix.iter().rposition(|byte| *byte < u8::MAX) else {
        // No key that does not begin with the prefix follows it.
        return FROM_KEY;
    };
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    end.into()
}

/// The first key after this one.
pub fn after(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}
