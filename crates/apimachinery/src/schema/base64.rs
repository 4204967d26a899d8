//! Base64 as Go decodes it: line breaks are skipped, and an error names the byte.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The canonical form of base64 text, or the position of the first invalid byte.
pub fn canonical(text: &str) -> Result<Cow<'_, str>, usize> {
    if STANDARD.decode(text).is_ok() {
        return Ok(Cow::Borrowed(text));
    }
    let bytes = decode_lenient(text.as_bytes())?;
    Ok(Cow::Owned(STANDARD.encode(bytes)))
}

/// Bytes as base64 text.
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn decode_lenient(text: &[u8]) -> Result<Vec<u8>, usize> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let mut quantum = 0u32;
    let mut filled = 0usize;
    for (index, &byte) in text.iter().enumerate() {
        match digit(byte) {
            _ if matches!(byte, b'\n' | b'\r') => {}
            Some(digit) => {
                quantum = quantum << 6 | digit;
                filled += 1;
                if filled == 4 {
                    out.extend_from_slice(&quantum.to_be_bytes()[1..]);
                    (quantum, filled) = (0, 0);
                }
            }
            None if byte == b'=' => {
                check_padding(text, index, filled)?;
                let tail = (quantum << (6 * (4 - filled))).to_be_bytes();
                out.extend_from_slice(&tail[1..filled]);
                return Ok(out);
            }
            None => return Err(index),
        }
    }
    if filled == 0 { Ok(out) } else { Err(text.len() - filled) }
}

/// Checks the padding, whose first `=` is at `start`, after `filled` digits of its group.
fn check_padding(text: &[u8], start: usize, filled: usize) -> Result<(), usize> {
    let next = |from: usize| {
        (from..text.len())
            .find(|&index| !matches!(text.get(index), Some(b'\n' | b'\r')))
            .unwrap_or(text.len())
    };
    let mut after = start + 1;
    match filled {
        3 => {}
        2 => {
            after = next(after);
            match text.get(after) {
                Some(b'=') => after += 1,
                Some(_) => return Err(after - 1),
                None => return Err(text.len()),
            }
        }
        _ => return Err(start),
    }
    let rest = next(after);
    if rest < text.len() { Err(rest) } else { Ok(()) }
}

fn digit(byte: u8) -> Option<u32> {
    Some(match byte {
        b'A'..=b'Z' => u32::from(byte - b'A'),
        b'a'..=b'z' => u32::from(byte - b'a') + 26,
        b'0'..=b'9' => u32::from(byte - b'0') + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn line_breaks_are_skipped_and_trailing_bits_cleared() {
        assert_eq!(canonical("aGVs\nbG8=\n").unwrap(), "aGVsbG8=");
        assert_eq!(canonical("aGVsbG9=").unwrap(), "aGVsbG8=");
        assert_eq!(canonical("aA=\n=").unwrap(), "aA==");
        assert_eq!(canonical("").unwrap(), "");
    }

    #[test]
    fn errors_have_the_position_of_the_byte() {
        assert_eq!(canonical("not base64!"), Err(3));
        assert_eq!(canonical("aGVsbG8"), Err(4));
        assert_eq!(canonical("a==="), Err(1));
        assert_eq!(canonical("aA=x"), Err(2));
        assert_eq!(canonical("aA=="), Ok("aA==".into()));
        assert_eq!(canonical("aA==aA=="), Err(4));
    }

    proptest! {
        #[test]
        fn canonical_base64_is_unchanged(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let text = STANDARD.encode(&bytes);
            prop_assert_eq!(canonical(&text).unwrap(), text.as_str());
            prop_assert_eq!(decode_lenient(text.as_bytes()), Ok(bytes));
        }
    }
}
