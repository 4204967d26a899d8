//! Reads a checked body: tags, strings, and values without a schema.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use super::wellformed::{self, Head, Major, Reader, Remaining};
use crate::time;
use crate::value::{Fields, Object, Value};

/// The reason why a value cannot be decoded.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fault {
    /// The item has the wrong type.
    Type {
        /// The type of the item.
        actual: Major,
        /// The expected type.
        expected: String,
        /// The outermost struct and its field.
        field: Option<String>,
        /// An additional message.
        detail: Option<String>,
    },
    /// Any other error, with the whole message.
    Other(String),
}

impl Fault {
    pub(super) fn mismatch(actual: Major, expected: impl Into<String>) -> Fault {
        Fault::Type { actual, expected: expected.into(), field: None, detail: None }
    }

    pub(super) fn mismatch_with_detail(actual: Major, expected: impl Into<String>, detail: String) -> Fault {
        Fault::Type { actual, expected: expected.into(), field: None, detail: Some(detail) }
    }
}

impl From<String> for Fault {
    fn from(message: String) -> Fault {
        Fault::Other(message)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (actual, expected, field, detail) = match self {
            Fault::Other(message) => return f.write_str(message),
            Fault::Type { actual, expected, field, detail } => (actual, expected, field, detail),
        };
        write!(f, "cbor: cannot unmarshal {actual} into Go ")?;
        match field {
            Some(field) => write!(f, "struct field {field} of type {expected}")?,
            None => write!(f, "value of type {expected}")?,
        }
        detail.as_ref().map_or(Ok(()), |detail| write!(f, " ({detail})"))
    }
}

/// The encoding of tagged bytes as text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TaggedEncoding {
    Base64Url,
    Base64,
    Hex,
}

impl TaggedEncoding {
    fn from_tag(tag: u64) -> Option<TaggedEncoding> {
        match tag {
            21 => Some(TaggedEncoding::Base64Url),
            22 => Some(TaggedEncoding::Base64),
            23 => Some(TaggedEncoding::Hex),
            _ => None,
        }
    }

    fn text(self, bytes: &[u8]) -> String {
        match self {
            TaggedEncoding::Base64Url => URL_SAFE_NO_PAD.encode(bytes),
            TaggedEncoding::Base64 => STANDARD.encode(bytes),
            TaggedEncoding::Hex => super::hex(bytes),
        }
    }
}

/// Decodes the items of a body.
pub(super) struct ItemDecoder<'b> {
    pub(super) reader: Reader<'b>,
    /// The tags around the current item that determine the text encoding of its bytes; the last one counts.
    pub(super) tagged_encodings: Vec<TaggedEncoding>,
}

impl<'b> ItemDecoder<'b> {
    pub(super) fn new(body: &'b [u8]) -> ItemDecoder<'b> {
        ItemDecoder { reader: Reader::new(body), tagged_encodings: Vec::new() }
    }

    /// Skips the tags of the next item. Returns the tag that makes it a time. The caller must restore `tagged_encodings`.
    pub(super) fn tags(&mut self) -> Result<Option<u64>, Fault> {
        let mut instant = None;
        while self.reader.major() == Major::Tag {
            let tag = self.reader.head()?.argument;
            if let Err(message) = wellformed::check_content(tag, self.reader.peek()) {
                self.reader.skip()?;
                return Err(message.into());
            }
            instant = instant.or((tag < 2).then_some(tag));
            self.tagged_encodings.extend(TaggedEncoding::from_tag(tag));
        }
        Ok(instant)
    }

    /// The text of a string with this head. Invalid UTF-8 is replaced, as in JSON.
    pub(super) fn text(&mut self, head: &Head) -> Result<String, Fault> {
        let bytes = self.reader.string(head)?;
        if head.major == Major::Text {
            let text = String::from_utf8(bytes.into_owned());
            return text.map_err(|_| Fault::Other("cbor: invalid UTF-8 string".to_owned()));
        }
        Ok(match self.tagged_encodings.last() {
            Some(encoding) => encoding.text(&bytes),
            None => from_utf8_lossy(bytes),
        })
    }

    /// The next item as text. `None` is null.
    pub(super) fn string(&mut self) -> Result<Option<String>, Fault> {
        let outer = self.tagged_encodings.len();
        let text = self.tags().and_then(|_| {
            let head = self.reader.head()?;
            match head.major {
                Major::Bytes | Major::Text => self.text(&head).map(Some),
                _ => self.null_or_mismatch(&head, "string"),
            }
        });
        self.tagged_encodings.truncate(outer);
        text
    }

    /// The error for an item of the wrong type. Null is accepted as nothing.
    pub(super) fn null_or_mismatch<T>(&mut self, head: &Head, expected: &str) -> Result<Option<T>, Fault> {
        let skipped = self.skip_content(head);
        match head.major {
            Major::Simple if head.float.is_none() && head.info == 22 => skipped.map(|()| None),
            Major::Simple if head.float.is_none() && !matches!(head.argument, 20 | 21) => {
                let reason = format!("simple value {} is not recognized", head.argument);
                Err(wellformed::unacceptable(Major::Simple, &reason).into())
            }
            major => Err(Fault::mismatch(major, expected)),
        }
    }

    /// Skips the content of the item with this head.
    fn skip_content(&mut self, head: &Head) -> Result<(), Fault> {
        match head.major {
            Major::Bytes | Major::Text => {
                self.reader.string(head)?;
            }
            Major::Array | Major::Map => {
                let mut remaining = Remaining::from_head(head);
                while remaining.next(&mut self.reader) {
                    self.reader.skip()?;
                    if head.major == Major::Map {
                        self.reader.skip()?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The next item of any type.
    pub(super) fn any(&mut self) -> Result<Value, Fault> {
        let outer = self.tagged_encodings.len();
        let value = self.tags().and_then(|instant| match instant {
            Some(tag) => self.instant(tag),
            None => self.untagged(),
        });
        self.tagged_encodings.truncate(outer);
        value
    }

    fn untagged(&mut self) -> Result<Value, Fault> {
        let head = self.reader.head()?;
        match head.major {
            Major::Unsigned | Major::Negative => integer(&head, "int64", "Go's int64").map(Value::Int),
            Major::Bytes | Major::Text => self.text(&head).map(Value::String),
            Major::Array => self.items(&head, ItemDecoder::any).map(Value::from),
            Major::Map => self.entries(&head, |decoder| decoder.any().map(Some)).map(Value::Object),
            Major::Simple => match (head.float, head.info) {
                (Some(number), _) => Ok(Value::Float(number)),
                (None, 20 | 21) => Ok(Value::Bool(head.info == 21)),
                _ => self.null_or_mismatch(&head, "interface {}").map(Option::unwrap_or_default),
            },
            // Skipped just before.
            Major::Tag => Ok(Value::Null),
        }
    }

    /// The items of an array. The first error is reported after the last item, because an error in an enclosing map takes
    /// precedence.
    pub(super) fn items<T>(
        &mut self,
        head: &Head,
        mut item: impl FnMut(&mut Self) -> Result<T, Fault>,
    ) -> Result<Vec<T>, Fault> {
        let mut items = Vec::new();
        let mut first_fault = None;
        let mut remaining = Remaining::from_head(head);
        while remaining.next(&mut self.reader) {
            match item(self) {
                Ok(item) => items.push(item),
                Err(error) => {
                    first_fault.get_or_insert(error);
                }
            }
        }
        first_fault.map_or(Ok(items), Err)
    }

    /// The entries of a map whose keys are data.
    pub(super) fn entries(
        &mut self,
        head: &Head,
        mut value: impl FnMut(&mut Self) -> Result<Option<Value>, Fault>,
    ) -> Result<Object, Fault> {
        let mut entries = Fields::new();
        let mut first_fault = None;
        let mut remaining = Remaining::from_head(head);
        let mut index = 0;
        while remaining.next(&mut self.reader) {
            let entry = match self.string() {
                Ok(key) => value(self).map(|value| (key.unwrap_or_default(), value.unwrap_or_default())),
                Err(error) => {
                    self.reader.skip()?;
                    Err(error)
                }
            };
            match entry {
                Ok((key, _)) if entries.contains_key(&key) => {
                    self.skip_entries(remaining)?;
                    return Err(duplicate_key(&key, index));
                }
                Ok((key, value)) => {
                    entries.insert(key, value);
                }
                Err(error) => {
                    first_fault.get_or_insert(error);
                }
            }
            index += 1;
        }
        first_fault.map_or(Ok(entries.into()), Err)
    }

    /// Skips the remaining entries of a map.
    pub(super) fn skip_entries(&mut self, mut remaining: Remaining) -> Result<(), Fault> {
        while remaining.next(&mut self.reader) {
            self.reader.skip()?;
            self.reader.skip()?;
        }
        Ok(())
    }

    fn instant(&mut self, tag: u64) -> Result<Value, Fault> {
        let head = self.reader.head()?;
        if tag == 0 {
            let text = self.text(&head)?;
            return match time::parse_seconds(&text) {
                Ok(_) => Ok(Value::String(text)),
                Err(error) => Err(Fault::Other(format!("cbor: cannot set {text} for time.Time: {error}"))),
            };
        }
        let (seconds, nanos) = match head.float {
            Some(number) => {
                let whole = number.trunc();
                let nanos = ((number - whole) * 1e9) as i64;
                (
                    (whole as i64).saturating_add(nanos.div_euclid(1_000_000_000)),
                    nanos.rem_euclid(1_000_000_000),
                )
            }
            None => (integer(&head, "time.Time", "Go's int64")?, 0),
        };
        if !(time::ZERO_SECONDS..YEAR_10000).contains(&seconds) {
            let error = "Time.MarshalText: year outside of range [0,9999]";
            return Err(Fault::Other(format!(
                "cbor: decoded time cannot be represented in RFC3339 format with sub-second precision: {error}"
            )));
        }
        let mut text = time::format_seconds(seconds);
        if nanos > 0 {
            text.pop();
            let fraction = format!("{nanos:09}");
            text = format!("{text}.{}Z", fraction.trim_end_matches('0'));
        }
        Ok(Value::String(text))
    }
}

/// Unix seconds of the first time with a five-digit year.
const YEAR_10000: i64 = 253_402_300_800;

/// The error for a duplicate key.
pub(super) fn duplicate_key(key: &str, index: usize) -> Fault {
    Fault::Other(format!("cbor: found duplicate map key \"{key}\" at map element index {index}"))
}

/// The integer of a head. The error names the type that it overflows.
pub(super) fn integer(head: &Head, expected: &str, type_name: &str) -> Result<i64, Fault> {
    let Ok(number) = i64::try_from(head.argument) else {
        let sign = if head.major == Major::Negative { "-" } else { "" };
        let size = u128::from(head.argument) + u128::from(head.major == Major::Negative);
        return Err(Fault::mismatch_with_detail(
            head.major,
            expected,
            format!("{sign}{size} overflows {type_name}"),
        ));
    };
    Ok(if head.major == Major::Negative { -1 - number } else { number })
}

/// Text from bytes; each invalid byte becomes U+FFFD.
fn from_utf8_lossy(bytes: Cow<'_, [u8]>) -> String {
    String::from_utf8(bytes.into_owned()).unwrap_or_else(|error| {
        error.as_bytes().utf8_chunks().fold(String::new(), |mut text, chunk| {
            text.push_str(chunk.valid());
            text.extend(std::iter::repeat_n('\u{fffd}', chunk.invalid().len()));
            text
        })
    })
}
