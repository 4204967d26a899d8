//! Writes the wire format from end to beginning, so that the length of a message is known when it is written.

/// A message that grows at its front.
#[derive(Debug, Default)]
pub struct Writer {
    buffer: Vec<u8>,
    /// The start of the message; the space before is free.
    start: usize,
}

impl Writer {
    /// An empty message with space for `bytes`.
    pub fn with_capacity(bytes: usize) -> Writer {
        Writer { buffer: vec![0; bytes], start: bytes }
    }

    /// The length of the message.
    pub fn len(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Prepends bytes.
    pub fn raw(&mut self, bytes: &[u8]) {
        if self.start < bytes.len() {
            self.grow(bytes.len());
        }
        let end = self.start;
        self.start -= bytes.len();
        if let Some(target) = self.buffer.get_mut(self.start..end) {
            target.copy_from_slice(bytes);
        }
    }

    /// Prepends a varint.
    pub fn varint(&mut self, number: u64) {
        if number < 0x80 {
            return self.raw(&[number as u8]);
        }
        let mut bytes = [0; 10];
        let length = put_varint(&mut bytes, number);
        self.raw(bytes.get(..length).unwrap_or_default());
    }

    /// Prepends a number field.
    pub fn number(&mut self, field: u32, number: u64) {
        self.varint(number);
        self.varint(u64::from(field) << 3);
    }

    /// Prepends a field of eight bytes.
    pub fn eight(&mut self, field: u32, bytes: [u8; 8]) {
        self.raw(&bytes);
        self.varint(u64::from(field) << 3 | 1);
    }

    /// Prepends a field of bytes.
    pub fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.raw(bytes);
        self.header(field, bytes.len());
    }

    /// Prepends tag and length of the message that was begun at length `end`.
    pub fn close(&mut self, field: u32, end: usize) {
        self.header(field, self.len() - end);
    }

    /// The finished message.
    pub fn finish(self) -> Vec<u8> {
        // A copy of the right size: the message may be cached for long, and the buffer is several times larger.
        self.buffer.get(self.start..).unwrap_or_default().to_vec()
    }

    fn header(&mut self, field: u32, length: usize) {
        self.varint(length as u64);
        self.varint(u64::from(field) << 3 | 2);
    }

    /// Doubles the buffer, or grows it as needed, with the message at its end.
    fn grow(&mut self, needed: usize) {
        let length = self.len();
        let mut buffer = vec![0; (2 * self.buffer.len()).max(length + needed).max(64)];
        let start = buffer.len() - length;
        if let (Some(target), Some(old)) = (buffer.get_mut(start..), self.buffer.get(self.start..)) {
            target.copy_from_slice(old);
        }
        (self.buffer, self.start) = (buffer, start);
    }
}

/// Writes a varint at the beginning of `bytes`; returns its length.
pub fn put_varint(bytes: &mut [u8], mut number: u64) -> usize {
    let mut length = 0;
    for byte in bytes {
        length += 1;
        if number < 0x80 {
            *byte = number as u8;
            break;
        }
        *byte = number as u8 | 0x80;
        number >>= 7;
    }
    length
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::reader::{Reader, Tag, WireType};
    use super::*;

    #[test]
    fn message_grows_at_its_front() {
        let mut writer = Writer::with_capacity(0);
        writer.number(2, 300);
        let end = writer.len();
        writer.bytes(1, b"ab");
        writer.close(3, end);
        assert_eq!(writer.finish(), [0x1a, 4, 0x0a, 2, b'a', b'b', 0x10, 0xac, 2]);
    }

    proptest! {
        #[test]
        fn varint_fields_round_trip(numbers in proptest::collection::vec(any::<u64>(), 0..40), field in 1u32..1 << 29) {
            let mut writer = Writer::with_capacity(3);
            for number in numbers.iter().rev() {
                writer.number(field, *number);
            }
            let bytes = writer.finish();
            let mut reader = Reader::new(&bytes);
            for number in numbers {
                prop_assert_eq!(reader.tag("x"), Ok(Some(Tag { number: field, form: WireType::VARINT })));
                prop_assert_eq!(reader.varint(), Ok(number));
            }
            prop_assert!(reader.is_empty());
        }
    }
}
