//! Reads a checked body: tags, strings, and values without a schema.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use super::wellformed::{self, Head, Left, Major, Reader};
use crate::time;
use crate::value::{Fields, Object, Value};

/// Why a value cannot be decoded.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fault {
    /// The item has the wrong type.
    Type {
        /// The type of the item.
        found: Major,
        /// The expected type.
        wanted: String,
        /// The outermost struct and its field.
        field: Option<String>,
        /// An additional message.
        more: Option<String>,
    },
    /// Any other error, with the whole message.
    Other(String),
}

impl Fault {
    pub(super) fn mismatch(found: Major, wanted: impl Into<String>) -> Fault {
        Fault::Type { found, wanted: wanted.into(), field: None, more: None }
    }

    pub(super) fn explained(found: Major, wanted: impl Into<String>, more: String) -> Fault {
        Fault::Type { found, wanted: wanted.into(), field: None, more: Some(more) }
    }
}

impl From<String> for Fault {
    fn from(message: String) -> Fault {
        Fault::Other(message)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (found, wanted, field, more) = match self {
            Fault::Other(message) => return f.write_str(message),
            Fault::Type { found, wanted, field, more } => (found, wanted, field, more),
        };
        write!(f, "cbor: cannot unmarshal {found} into Go ")?;
        match field {
            Some(field) => write!(f, "struct field {field} of type {wanted}")?,
            None => write!(f, "value of type {wanted}")?,
        }
        more.as_ref().map_or(Ok(()), |more| write!(f, " ({more})"))
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
    fn of(tag: u64) -> Option<TaggedEncoding> {
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

/// A walk over a body.
pub(super) struct Walk<'b> {
    pub(super) reader: Reader<'b>,
    /// The tags around the current item that tell the text encoding of its bytes; the last one counts.
    pub(super) later: Vec<TaggedEncoding>,
}

impl<'b> Walk<'b> {
    pub(super) fn new(body: &'b [u8]) -> Walk<'b> {
        Walk { reader: Reader::new(body), later: Vec::new() }
    }

    /// Skips the tags of the next item. Answers the tag that makes it a time. The caller must restore `later`.
    pub(super) fn tags(&mut self) -> Result<Option<u64>, Fault> {
        let mut instant = None;
        while self.reader.major() == Major::Tag {
            let tag = self.reader.head()?.argument;
            if let Err(message) = wellformed::check_content(tag, self.reader.peek()) {
                self.reader.skip()?;
                return Err(message.into());
            }
            instant = instant.or((tag < 2).then_some(tag));
            self.later.extend(TaggedEncoding::of(tag));
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
        Ok(match self.later.last() {
            Some(later) => later.text(&bytes),
            None => lossy(bytes),
        })
    }

    /// The next item as text. `None` is null.
    pub(super) fn string(&mut self) -> Result<Option<String>, Fault> {
        let outer = self.later.len();
        let text = self.tags().and_then(|_| {
            let head = self.reader.head()?;
            match head.major {
                Major::Bytes | Major::Text => self.text(&head).map(Some),
                _ => self.no_part(&head, "string"),
            }
        });
        self.later.truncate(outer);
        text
    }

    /// The error for an item of the wrong type. Null is accepted as nothing.
    pub(super) fn no_part<T>(&mut self, head: &Head, wanted: &str) -> Result<Option<T>, Fault> {
        let rest = self.rest(head);
        match head.major {
            Major::Simple if head.float.is_none() && head.info == 22 => rest.map(|()| None),
            Major::Simple if head.float.is_none() && !matches!(head.argument, 20 | 21) => {
                let what = format!("simple value {} is not recognized", head.argument);
                Err(wellformed::unacceptable(Major::Simple, &what).into())
            }
            major => Err(Fault::mismatch(major, wanted)),
        }
    }

    /// Skips the contents of a head that was read.
    fn rest(&mut self, head: &Head) -> Result<(), Fault> {
        match head.major {
            Major::Bytes | Major::Text => {
                self.reader.string(head)?;
            }
            Major::Array | Major::Map => {
                let mut left = Left::of(head);
                while left.next(&mut self.reader) {
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
        let outer = self.later.len();
        let value = self.tags().and_then(|instant| match instant {
            Some(tag) => self.instant(tag),
            None => self.untagged(),
        });
        self.later.truncate(outer);
        value
    }

    fn untagged(&mut self) -> Result<Value, Fault> {
        let head = self.reader.head()?;
        match head.major {
            Major::Unsigned | Major::Negative => integer(&head, "int64", "Go's int64").map(Value::Int),
            Major::Bytes | Major::Text => self.text(&head).map(Value::String),
            Major::Array => self.items(&head, Walk::any).map(Value::from),
            Major::Map => self.entries(&head, |walk| walk.any().map(Some)).map(Value::Object),
            Major::Simple => match (head.float, head.info) {
                (Some(number), _) => Ok(Value::Float(number)),
                (None, 20 | 21) => Ok(Value::Bool(head.info == 21)),
                _ => self.no_part(&head, "interface {}").map(Option::unwrap_or_default),
            },
            // Skipped just before.
            Major::Tag => Ok(Value::Null),
        }
    }

    /// The items of an array. The first error is reported after the last item, because an enclosing map may have a worse one.
    pub(super) fn items<T>(
        &mut self,
        head: &Head,
        mut item: impl FnMut(&mut Self) -> Result<T, Fault>,
    ) -> Result<Vec<T>, Fault> {
        let mut items = Vec::new();
        let mut fault = None;
        let mut left = Left::of(head);
        while left.next(&mut self.reader) {
            match item(self) {
                Ok(item) => items.push(item),
                Err(found) => {
                    fault.get_or_insert(found);
                }
            }
        }
        fault.map_or(Ok(items), Err)
    }

    /// The entries of a map whose keys are data.
    pub(super) fn entries(
        &mut self,
        head: &Head,
        mut value: impl FnMut(&mut Self) -> Result<Option<Value>, Fault>,
    ) -> Result<Object, Fault> {
        let mut entries = Fields::new();
        let mut fault = None;
        let mut left = Left::of(head);
        let mut index = 0;
        while left.next(&mut self.reader) {
            let entry = match self.string() {
                Ok(key) => value(self).map(|value| (key.unwrap_or_default(), value.unwrap_or_default())),
                Err(found) => {
                    self.reader.skip()?;
                    Err(found)
                }
            };
            match entry {
                Ok((key, _)) if entries.contains_key(&key) => {
                    self.pass(left)?;
                    return Err(twice(&key, index));
                }
                Ok((key, value)) => {
                    entries.insert(key, value);
                }
                Err(found) => {
                    fault.get_or_insert(found);
                }
            }
            index += 1;
        }
        fault.map_or(Ok(entries.into()), Err)
    }

    /// Skips the rest of a map.
    pub(super) fn pass(&mut self, mut left: Left) -> Result<(), Fault> {
        while left.next(&mut self.reader) {
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
                Err(why) => Err(Fault::Other(format!("cbor: cannot set {text} for time.Time: {why}"))),
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
            let why = "Time.MarshalText: year outside of range [0,9999]";
            return Err(Fault::Other(format!(
                "cbor: decoded time cannot be represented in RFC3339 format with sub-second precision: {why}"
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
pub(super) fn twice(key: &str, index: usize) -> Fault {
    Fault::Other(format!("cbor: found duplicate map key \"{key}\" at map element index {index}"))
}

/// The integer of a head. The error names the type that it overflows.
pub(super) fn integer(head: &Head, wanted: &str, overflown: &str) -> Result<i64, Fault> {
    let Ok(number) = i64::try_from(head.argument) else {
        let sign = if head.major == Major::Negative { "-" } else { "" };
        let size = u128::from(head.argument) + u128::from(head.major == Major::Negative);
        return Err(Fault::explained(head.major, wanted, format!("{sign}{size} overflows {overflown}")));
    };
    Ok(if head.major == Major::Negative { -1 - number } else { number })
}

/// Text from bytes; each invalid byte becomes U+FFFD.
fn lossy(bytes: Cow<'_, [u8]>) -> String {
    String::from_utf8(bytes.into_owned()).unwrap_or_else(|error| {
        error.as_bytes().utf8_chunks().fold(String::new(), |mut text, chunk| {
            text.push_str(chunk.valid());
            text.extend(std::iter::repeat_n('\u{fffd}', chunk.invalid().len()));
            text
        })
    })
}
