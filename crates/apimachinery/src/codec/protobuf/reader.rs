//! Reads the wire format: numbers, lengths and tags, with the reference's error messages.

use std::borrow::Cow;
use std::fmt;

/// A decoding error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(Cow<'static, str>);

impl Fault {
    /// An error with a message of its own.
    pub fn new(message: String) -> Fault {
        Fault(message.into())
    }

    /// A value with the wrong wire type.
    pub fn wire_type(actual: WireType, field: &str) -> Fault {
        Fault::new(format!("proto: wrong wireType = {} for field {field}", actual.0))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const END: Fault = Fault(Cow::Borrowed("unexpected EOF"));
const OVERFLOW: Fault = Fault(Cow::Borrowed("proto: integer overflow"));
const NEGATIVE: Fault = Fault(Cow::Borrowed("proto: negative length found during unmarshaling"));
const UNEXPECTED_GROUP_END: Fault = Fault(Cow::Borrowed("proto: unexpected end of group"));

/// The wire type of a value: the three low bits of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireType(u8);

impl WireType {
    /// A number of one to ten bytes.
    pub const VARINT: WireType = WireType(0);
    /// Eight bytes.
    pub const EIGHT: WireType = WireType(1);
    /// A length, and as many bytes.
    pub const BYTES: WireType = WireType(2);
    const GROUP: WireType = WireType(3);
    const GROUP_END: WireType = WireType(4);
    const FOUR: WireType = WireType(5);
}

/// The number of a field and the wire type of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The field number, never zero.
    pub number: u32,
    /// The wire type.
    pub form: WireType,
}

/// The rest of a message. Results are slices of it, so a length allocates nothing.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads a message.
    pub fn new(message: &'a [u8]) -> Reader<'a> {
        Reader { rest: message }
    }

    /// The tag of the next field; `None` at the end. `name` is that of the message, for errors.
    pub fn tag(&mut self, name: &str) -> Result<Option<Tag>, Fault> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let wire = self.varint()?;
        let form = WireType((wire & 7) as u8);
        if form == WireType::GROUP_END {
            return Err(Fault::new(format!("proto: {name}: wiretype end group for non-group")));
        }
        // The number is a signed 32-bit integer; higher bits are ignored.
        let number = (wire >> 3) as u32 as i32;
        match u32::try_from(number) {
            Ok(number) if number > 0 => Ok(Some(Tag { number, form })),
            _ => Err(Fault::new(format!("proto: {name}: illegal tag {number} (wire type {wire})"))),
        }
    }

    /// A varint. Bits beyond the sixty-fourth are lost.
    pub fn varint(&mut self) -> Result<u64, Fault> {
        let mut number = 0;
        for (index, &byte) in self.rest.iter().enumerate().take(10) {
            number |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                self.rest = self.rest.get(index + 1..).unwrap_or_default();
                return Ok(number);
            }
        }
        Err(if self.rest.len() < 10 { END } else { OVERFLOW })
    }

    /// Eight bytes.
    pub fn eight(&mut self) -> Result<[u8; 8], Fault> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(END)?;
        self.rest = rest;
        Ok(*head)
    }

    /// A length, and as many bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8], Fault> {
        let length = i64::try_from(self.varint()?).map_err(|_| NEGATIVE)?;
        self.take(usize::try_from(length).map_err(|_| END)?)
    }

    /// Skips the value of an unknown field. A group ends with its own tag; nested groups are counted without recursion, so that
    /// depth costs nothing.
    pub fn skip(&mut self, form: WireType) -> Result<(), Fault> {
        let mut form = form;
        let mut open = 0u32;
        loop {
            match form {
                WireType::VARINT => self.varint().map(drop)?,
                WireType::EIGHT => self.eight().map(drop)?,
                WireType::BYTES => self.bytes().map(drop)?,
                WireType::FOUR => self.take(4).map(drop)?,
                WireType::GROUP => open += 1,
                WireType::GROUP_END => open = open.checked_sub(1).ok_or(UNEXPECTED_GROUP_END)?,
                WireType(other) => return Err(Fault::new(format!("proto: illegal wireType {other}"))),
            }
            if open == 0 {
                return Ok(());
            }
            form = WireType((self.varint()? & 7) as u8);
        }
    }

    /// Whether the message ends here.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Fault> {
        let (head, rest) = self.rest.split_at_checked(length).ok_or(END)?;
        self.rest = rest;
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_message<T>(result: Result<T, Fault>) -> Result<T, String> {
        result.map_err(|fault| fault.to_string())
    }

    #[test]
    fn varints_have_at_most_ten_bytes() {
        let read = |bytes: &[u8]| with_message(Reader::new(bytes).varint());
        assert_eq!(read(&[0xac, 2]), Ok(300));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]), Ok(u64::MAX));
        assert_eq!(read(&[0xff; 9]), Err("unexpected EOF".to_owned()));
        assert_eq!(read(&[0xff; 12]), Err("proto: integer overflow".to_owned()));
        assert_eq!(read(&[]), Err("unexpected EOF".to_owned()));
    }

    #[test]
    fn lengths_stay_within_the_message() {
        let read = |bytes: &'static [u8]| with_message(Reader::new(bytes).bytes());
        assert_eq!(read(&[2, 7, 8, 9]), Ok(&[7, 8][..]));
        assert_eq!(read(&[3, 7, 8]), Err("unexpected EOF".to_owned()));
        let negative = "proto: negative length found during unmarshaling".to_owned();
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]), Err(negative));
        let huge = read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
        assert_eq!(huge, Err("unexpected EOF".to_owned()));
    }

    #[test]
    fn illegal_tags_are_refused() {
        let read = |bytes: &[u8]| with_message(Reader::new(bytes).tag("Pod"));
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[0x0a]), Ok(Some(Tag { number: 1, form: WireType::BYTES })));
        assert_eq!(read(&[0]), Err("proto: Pod: illegal tag 0 (wire type 0)".to_owned()));
        assert_eq!(read(&[0x0c]), Err("proto: Pod: wiretype end group for non-group".to_owned()));
    }

    #[test]
    fn values_of_all_wire_types_are_skipped() {
        let skip = |form: u8, bytes: &[u8]| {
            let mut reader = Reader::new(bytes);
            with_message(reader.skip(WireType(form)).map(|()| reader.rest.len()))
        };
        assert_eq!(skip(0, &[0xff, 1, 9]), Ok(1));
        assert_eq!(skip(1, &[0; 9]), Ok(1));
        assert_eq!(skip(2, &[1, 0, 9]), Ok(1));
        assert_eq!(skip(5, &[0; 5]), Ok(1));
        assert_eq!(skip(3, &[0x13, 0x08, 0x01, 0x14, 0x0c, 9]), Ok(1));
        assert_eq!(skip(3, &[0x13, 0x14]), Err("unexpected EOF".to_owned()));
        assert_eq!(skip(4, &[]), Err("proto: unexpected end of group".to_owned()));
        assert_eq!(skip(6, &[1]), Err("proto: illegal wireType 6".to_owned()));
        assert_eq!(skip(5, &[0; 3]), Err("unexpected EOF".to_owned()));
        let deep = vec![0x0b; 1 << 20];
        assert_eq!(skip(3, &deep), Err("unexpected EOF".to_owned()));
    }
}
