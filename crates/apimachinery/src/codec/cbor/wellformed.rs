//! The syntax of CBOR: heads, and checking that a body is one item within bounds. Messages are the reference's.

use std::borrow::Cow;
use std::fmt;

use super::half;
use crate::limits;

/// The eight major types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Major {
    Unsigned,
    Negative,
    Bytes,
    Text,
    Array,
    Map,
    Tag,
    Simple,
}

impl Major {
    fn from_byte(byte: u8) -> Major {
        match byte >> 5 {
            0 => Major::Unsigned,
            1 => Major::Negative,
            2 => Major::Bytes,
            3 => Major::Text,
            4 => Major::Array,
            5 => Major::Map,
            6 => Major::Tag,
            _ => Major::Simple,
        }
    }
}

impl fmt::Display for Major {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Major::Unsigned => "positive integer",
            Major::Negative => "negative integer",
            Major::Bytes => "byte string",
            Major::Text => "UTF-8 text string",
            Major::Array => "array",
            Major::Map => "map",
            Major::Tag => "tag",
            Major::Simple => "primitives",
        })
    }
}

/// The head of an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) major: Major,
    /// The low bits of the first byte: the width of the argument.
    pub(super) info: u8,
    /// The number itself, a length, a count or a tag. The bits of floats are ignored here.
    pub(super) argument: u64,
    /// The number of a float.
    pub(super) float: Option<f64>,
}

impl Head {
    /// Whether the length is indefinite, and a break ends the item.
    pub(super) fn is_indefinite(&self) -> bool {
        self.info == INDEFINITE
    }
}

const INDEFINITE: u8 = 31;
const BREAK: u8 = 0xff;

/// The remaining items of an array or entries of a map.
pub(super) enum Remaining {
    Exactly(u64),
    UntilBreak,
}

impl Remaining {
    pub(super) fn from_head(head: &Head) -> Remaining {
        if head.is_indefinite() { Remaining::UntilBreak } else { Remaining::Exactly(head.argument) }
    }

    /// Whether there is another part; consumes a break.
    pub(super) fn next(&mut self, reader: &mut Reader<'_>) -> bool {
        match self {
            Remaining::Exactly(0) => false,
            Remaining::Exactly(count) => {
                *count -= 1;
                true
            }
            Remaining::UntilBreak => match reader.peek() {
                None => false,
                Some(BREAK) => {
                    reader.position += 1;
                    false
                }
                Some(_) => true,
            },
        }
    }
}

/// A position in a body.
pub(super) struct Reader<'b> {
    bytes: &'b [u8],
    position: usize,
}

impl<'b> Reader<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Reader<'b> {
        Reader { bytes, position: 0 }
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.position).copied()
    }

    /// The major type of the next item.
    pub(super) fn major(&self) -> Major {
        self.peek().map_or(Major::Simple, Major::from_byte)
    }

    /// Whether the next item is null, or undefined, which counts as null for optional values.
    pub(super) fn is_null(&self) -> bool {
        matches!(self.peek(), Some(0xf6 | 0xf7))
    }

    /// Whether the next item is null and nothing else.
    pub(super) fn is_plain_null(&self) -> bool {
        self.peek() == Some(0xf6)
    }

    fn take(&mut self, length: u64) -> Result<&'b [u8], String> {
        let rest = self.bytes.get(self.position..).unwrap_or_default();
        let bytes =
            usize::try_from(length).ok().and_then(|length| rest.get(..length)).ok_or_else(unexpected_end)?;
        self.position += bytes.len();
        Ok(bytes)
    }

    /// The next head.
    pub(super) fn head(&mut self) -> Result<Head, String> {
        let first = self.take(1)?.first().copied().unwrap_or_default();
        let (major, info) = (Major::from_byte(first), first & 0x1f);
        let invalid = || Err(format!("cbor: invalid additional information {info} for type {major}"));
        let argument = match info {
            0..24 => u64::from(info),
            24..28 => {
                let bytes = self.take(1 << (info - 24))?;
                bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
            }
            INDEFINITE => match major {
                Major::Unsigned | Major::Negative | Major::Tag => return invalid(),
                Major::Simple => return Err("cbor: unexpected \"break\" code".to_owned()),
                Major::Bytes | Major::Text | Major::Array | Major::Map => 0,
            },
            _ => return invalid(),
        };
        let float = if major == Major::Simple { simple(info, argument)? } else { None };
        Ok(Head { major, info, argument, float })
    }

    /// The content of the string with this head, with its chunks joined.
    pub(super) fn string(&mut self, head: &Head) -> Result<Cow<'b, [u8]>, String> {
        if !head.is_indefinite() {
            return self.take(head.argument).map(Cow::Borrowed);
        }
        let mut joined = Vec::new();
        let mut remaining = Remaining::from_head(head);
        while remaining.next(self) {
            let chunk = self.head()?;
            let chunk = self.take(chunk.argument)?;
            if head.major == Major::Text && std::str::from_utf8(chunk).is_err() {
                while remaining.next(self) {
                    self.skip()?;
                }
                // No UTF-8 text contains this byte, so the whole string is refused like its chunk.
                return Ok(Cow::Borrowed(b"\xff"));
            }
            joined.extend_from_slice(chunk);
        }
        Ok(Cow::Owned(joined))
    }

    /// Skips one item of a checked body.
    pub(super) fn skip(&mut self) -> Result<(), String> {
        let mut head = self.head()?;
        while head.major == Major::Tag {
            head = self.head()?;
        }
        match head.major {
            Major::Bytes | Major::Text => {
                self.string(&head)?;
            }
            Major::Array | Major::Map => {
                let mut remaining = Remaining::from_head(&head);
                while remaining.next(self) {
                    self.skip()?;
                    if head.major == Major::Map {
                        self.skip()?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks one item with everything inside. The recursion is bounded by the nesting limit, and nothing is allocated for
    /// the lengths that heads claim.
    fn check(&mut self, depth: usize) -> Result<(), String> {
        let head = self.head()?;
        match head.major {
            Major::Bytes | Major::Text if head.is_indefinite() => self.check_chunks(head.major),
            Major::Bytes | Major::Text => {
                if head.argument > i64::MAX as u64 {
                    return Err(too_long(&head, "causing"));
                }
                self.take(head.argument).map(|_| ())
            }
            Major::Array | Major::Map => self.check_parts(&head, next_depth(depth)?),
            Major::Tag => self.check_tagged(head.argument, depth),
            Major::Unsigned | Major::Negative | Major::Simple => Ok(()),
        }
    }

    fn check_chunks(&mut self, major: Major) -> Result<(), String> {
        loop {
            match self.peek().ok_or_else(unexpected_end)? {
                BREAK => {
                    self.position += 1;
                    return Ok(());
                }
                byte if Major::from_byte(byte) != major => {
                    let actual = Major::from_byte(byte);
                    return Err(format!("cbor: wrong element type {actual} for indefinite-length {major}"));
                }
                byte if byte & 0x1f == INDEFINITE => {
                    return Err(format!("cbor: indefinite-length {major} chunk is not definite-length"));
                }
                _ => self.check(0)?,
            }
        }
    }

    fn check_parts(&mut self, head: &Head, depth: usize) -> Result<(), String> {
        let (limit, limit_error): (u64, fn() -> String) = if head.major == Major::Array {
            (limits::CBOR_ITEMS, || {
                format!("cbor: exceeded max number of elements {} for CBOR array", limits::CBOR_ITEMS)
            })
        } else {
            (limits::CBOR_PAIRS, || {
                format!("cbor: exceeded max number of key-value pairs {} for CBOR map", limits::CBOR_PAIRS)
            })
        };
        let each = if head.major == Major::Map { 2 } else { 1 };
        if !head.is_indefinite() {
            if head.argument > i64::MAX as u64 {
                return Err(too_long(head, "it would cause"));
            }
            if head.argument > limit {
                return Err(limit_error());
            }
            return (0..head.argument * each).try_for_each(|_| self.check(depth));
        }
        let mut count = 0;
        while self.peek().ok_or_else(unexpected_end)? != BREAK {
            self.check(depth)?;
            count += 1;
            if count % each == 0 && count / each > limit {
                return Err(limit_error());
            }
        }
        if count % each != 0 {
            return Err("cbor: unexpected \"break\" code".to_owned());
        }
        self.position += 1;
        Ok(())
    }

    fn check_tagged(&mut self, mut tag: u64, mut depth: usize) -> Result<(), String> {
        loop {
            let next = self.peek().ok_or_else(unexpected_end)?;
            if matches!(tag, 2 | 3) {
                return Err(unacceptable(Major::Tag, "bignum"));
            }
            if Major::from_byte(next) != Major::Tag {
                return self.check(depth);
            }
            tag = self.head()?.argument;
            depth = next_depth(depth)?;
        }
    }
}

/// Checks that a body is one item within bounds. The error is the message.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    if bytes.is_empty() {
        return Err("EOF".to_owned());
    }
    let mut reader = Reader::new(bytes);
    reader.check(0)?;
    match bytes.len() - reader.position {
        0 => Ok(()),
        extra => Err(format!("cbor: {extra} bytes of extraneous data starting at index {}", reader.position)),
    }
}

/// Checks the content of a known tag.
pub(super) fn check_content(tag: u64, next: Option<u8>) -> Result<(), String> {
    let major = next.map_or(Major::Simple, Major::from_byte);
    let expected = match tag {
        0 if major != Major::Text => "text string",
        1 if !matches!(major, Major::Unsigned | Major::Negative) && !matches!(next, Some(0xf9..=0xfb)) => {
            "integer or floating-point number"
        }
        _ => return Ok(()),
    };
    Err(format!("cbor: tag number {tag} must be followed by {expected}, got {major}"))
}

/// The error for an item that has no JSON equivalent.
pub(super) fn unacceptable(major: Major, reason: &str) -> String {
    format!("cbor: data item of cbor type {major} is not accepted by protocol: {reason}")
}

/// The number of a float; `None` for other simple values.
fn simple(info: u8, argument: u64) -> Result<Option<f64>, String> {
    let number = match info {
        24 if argument < 32 => {
            return Err(format!("cbor: invalid simple value {argument} for type {}", Major::Simple));
        }
        25 => half::from_bits(argument as u16),
        26 => f64::from(f32::from_bits(argument as u32)),
        27 => f64::from_bits(argument),
        _ => return Ok(None),
    };
    if number.is_nan() {
        return Err(unacceptable(Major::Simple, "floating-point NaN"));
    }
    if number.is_infinite() {
        return Err(unacceptable(Major::Simple, "floating-point infinity"));
    }
    Ok(Some(number))
}

fn next_depth(depth: usize) -> Result<usize, String> {
    if depth >= limits::CBOR_DEPTH {
        return Err(format!("cbor: exceeded max nested level {}", limits::CBOR_DEPTH));
    }
    Ok(depth + 1)
}

fn too_long(head: &Head, verb: &str) -> String {
    let Head { major, argument, .. } = head;
    format!("cbor: {major} length {argument} is too large, {verb} integer overflow")
}

fn unexpected_end() -> String {
    "unexpected EOF".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_cbor_has_the_reference_message() {
        for (bytes, message) in [
            (&b""[..], "EOF"),
            (b"\xff", "cbor: unexpected \"break\" code"),
            (b"\x18", "unexpected EOF"),
            (b"\x1c", "cbor: invalid additional information 28 for type positive integer"),
            (b"\xdf", "cbor: invalid additional information 31 for type tag"),
            (b"\xf8\x10", "cbor: invalid simple value 16 for type primitives"),
            (b"\x42a", "unexpected EOF"),
            (b"\x80\x80", "cbor: 1 bytes of extraneous data starting at index 1"),
            (
                b"\xf9\x7e\x00",
                "cbor: data item of cbor type primitives is not accepted by protocol: floating-point NaN",
            ),
            (
                b"\xfb\xff\xf0\x00\x00\x00\x00\x00\x00",
                "cbor: data item of cbor type primitives is not accepted by protocol: floating-point infinity",
            ),
            (b"\xc2\x41a", "cbor: data item of cbor type tag is not accepted by protocol: bignum"),
            (
                b"\x5f\x61a\xff",
                "cbor: wrong element type UTF-8 text string for indefinite-length byte string",
            ),
            (b"\x5f\x5f\xff\xff", "cbor: indefinite-length byte string chunk is not definite-length"),
            (b"\xbf\x41a\xff", "cbor: unexpected \"break\" code"),
            (b"\x9f\x01", "unexpected EOF"),
            (b"\x99\x04\x01", "cbor: exceeded max number of elements 1024 for CBOR array"),
            (b"\xb9\x04\x01", "cbor: exceeded max number of key-value pairs 1024 for CBOR map"),
            (
                b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff",
                "cbor: map length 18446744073709551615 is too large, it would cause integer overflow",
            ),
            (
                b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff",
                "cbor: byte string length 18446744073709551615 is too large, causing integer overflow",
            ),
        ] {
            assert_eq!(check(bytes).unwrap_err(), message, "{bytes:02x?}");
        }
        for valid in
            [&b"\xf6"[..], b"\xd9\xd9\xf7\xa0", b"\x5f\x41a\x41b\xff", b"\xbf\x41a\x01\xff", b"\x9f\xff"]
        {
            assert_eq!(check(valid), Ok(()), "{valid:02x?}");
        }
    }

    #[test]
    fn cbor_nesting_and_sizes_are_bounded() {
        let nested = |head: u8, levels: usize| {
            let mut bytes = vec![head; levels];
            bytes.push(0xf6);
            bytes
        };
        assert_eq!(check(&nested(0x81, 64)), Ok(()));
        assert_eq!(check(&nested(0x81, 65)).unwrap_err(), "cbor: exceeded max nested level 64");
        assert_eq!(check(&nested(0xc6, 65)), Ok(()), "the first of nested tags is no level");
        assert_eq!(check(&nested(0xc6, 66)).unwrap_err(), "cbor: exceeded max nested level 64");
        assert!(check(&nested(0x81, 1 << 20)).is_err());
        let mut indefinite = vec![0x9f];
        indefinite.extend(std::iter::repeat_n(0u8, 1025));
        indefinite.push(0xff);
        assert_eq!(
            check(&indefinite).unwrap_err(),
            "cbor: exceeded max number of elements 1024 for CBOR array"
        );
        // Nothing is allocated for a length that a head only claims.
        assert_eq!(check(b"\x5b\x10\x00\x00\x00\x00\x00\x00\x00").unwrap_err(), "unexpected EOF");
    }
}
