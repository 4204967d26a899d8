//! Which cluster IPs and node ports are taken, as all servers of one etcd agree on them.
//!
//! The record is a RangeAllocation of the core group: the text of the range, and a bitmap with one bit for each item. The bitmap is one
//! large number, its bytes in big-endian order without leading zeros: bit 0 is the lowest bit of the last byte.

use pilothouse_apimachinery::schema::GroupVersionKind;
use pilothouse_apimachinery::value::Value;

use crate::limits::RANGE_ITEMS;
use crate::values::{ValueCodec, ValueError, bytes_field, set_bytes_field};

/// Allocated items of a range, such as node ports by their distance from the first one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bitmap {
    /// Bit `i` is bit `i % 8` of byte `i / 8`.
    bytes: Vec<u8>,
}

impl Bitmap {
    /// Reads the number; `None` if it has more bits than any range has items.
    pub fn from_number(number: &[u8]) -> Option<Bitmap> {
        let start = number.iter().position(|byte| *byte != 0).unwrap_or(number.len());
        let bytes: Vec<u8> = number.iter().skip(start).rev().copied().collect();
        (bytes.len() <= RANGE_ITEMS / 8).then_some(Bitmap { bytes })
    }

    /// The number, without leading zeros.
    pub fn to_number(&self) -> Vec<u8> {
        let zeros = self.bytes.iter().rev().take_while(|byte| **byte == 0).count();
        self.bytes.iter().rev().skip(zeros).copied().collect()
    }

    /// Whether an item is allocated.
    pub fn contains(&self, item: usize) -> bool {
        self.bytes.get(item / 8).is_some_and(|byte| byte >> (item % 8) & 1 == 1)
    }

    /// Allocates an item. Returns whether it was free; false as well for items beyond every range.
    pub fn insert(&mut self, item: usize) -> bool {
        if item >= RANGE_ITEMS || self.contains(item) {
            return false;
        }
        if self.bytes.len() <= item / 8 {
            self.bytes.resize(item / 8 + 1, 0);
        }
        if let Some(byte) = self.bytes.get_mut(item / 8) {
            *byte |= 1 << (item % 8);
        }
        true
    }

    /// Releases an item. Returns whether it was allocated.
    pub fn remove(&mut self, item: usize) -> bool {
        let is_allocated = self.contains(item);
        if let Some(byte) = self.bytes.get_mut(item / 8) {
            *byte &= !(1 << (item % 8));
        }
        is_allocated
    }

    /// The allocated items, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.bytes.len() * 8).filter(|item| self.contains(*item))
    }

    /// The number of allocated items.
    pub fn len(&self) -> usize {
        self.bytes.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    /// Whether nothing is allocated.
    pub fn is_empty(&self) -> bool {
        self.bytes.iter().all(|byte| *byte == 0)
    }
}

impl FromIterator<usize> for Bitmap {
    fn from_iter<I: IntoIterator<Item = usize>>(items: I) -> Bitmap {
        let mut bitmap = Bitmap::default();
        for item in items {
            bitmap.insert(item);
        }
        bitmap
    }
}

/// The record of one range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeAllocation {
    /// The text of the range: `30000-32767`, `10.0.0.0/16`. A server whose flags say something else must not use the record.
    pub range: String,
    /// What is taken.
    pub allocated: Bitmap,
}

fn kind() -> GroupVersionKind {
    GroupVersionKind::new("", "v1", "RangeAllocation")
}

impl RangeAllocation {
    /// The bytes of the record.
    pub fn encode(&self, codec: &ValueCodec) -> Result<Vec<u8>, ValueError> {
        let mut value = Value::object();
        value.set("range", self.range.as_str());
        set_bytes_field(&mut value, "data", &self.allocated.to_number());
        codec.encode_record(&kind(), value)
    }

    /// Reads the bytes of the record.
    pub fn decode(codec: &ValueCodec, bytes: &[u8]) -> Result<RangeAllocation, ValueError> {
        let value = codec.decode_record(&kind(), bytes)?;
        let number =
            bytes_field(&value, "data").ok_or_else(|| ValueError::malformed("data is not base64"))?;
        let allocated = Bitmap::from_number(&number)
            .ok_or_else(|| ValueError::malformed("data has more items than any range"))?;
        Ok(RangeAllocation { range: value.str("range").to_owned(), allocated })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::media::MediaType;
    use crate::values::testing::codec;

    #[test]
    fn bitmap_is_a_number_in_big_endian_order() {
        for (items, number) in [
            (&[][..], &[][..]),
            (&[0], &[1]),
            (&[7], &[0x80]),
            (&[8], &[1, 0]),
            (&[0, 9, 17], &[2, 2, 1]),
            (&[2767], &[&[0x80][..], &[0; 345]].concat()),
        ] {
            let bitmap: Bitmap = items.iter().copied().collect();
            assert_eq!(bitmap.to_number(), number);
            assert_eq!(Bitmap::from_number(number), Some(bitmap.clone()));
            assert_eq!((bitmap.iter().collect::<Vec<_>>(), bitmap.len()), (items.to_vec(), items.len()));
            assert_eq!(bitmap.is_empty(), items.is_empty());
        }
        assert_eq!(Bitmap::from_number(&[0, 0, 1]).unwrap().to_number(), [1]);
    }

    #[test]
    fn bitmap_is_bounded() {
        let mut bitmap = Bitmap::default();
        assert!(bitmap.insert(RANGE_ITEMS - 1) && !bitmap.insert(RANGE_ITEMS) && !bitmap.insert(usize::MAX));
        assert!(!bitmap.contains(usize::MAX) && !bitmap.remove(usize::MAX));
        assert_eq!(Bitmap::from_number(&bitmap.to_number()).unwrap(), bitmap);
        assert_eq!(Bitmap::from_number(&vec![1; RANGE_ITEMS / 8 + 1]), None);
    }

    #[test]
    fn released_items_leave_no_zeros() {
        let mut bitmap: Bitmap = [3, 900].into_iter().collect();
        assert!(bitmap.remove(900) && !bitmap.remove(900) && !bitmap.insert(3));
        assert_eq!(bitmap.to_number(), [8]);
    }

    #[test]
    fn record_has_the_bytes_of_the_reference() {
        let allocation =
            RangeAllocation { range: "30000-32767".to_owned(), allocated: [0, 9].into_iter().collect() };
        let bytes = allocation.encode(&codec(MediaType::Protobuf)).unwrap();
        // Metadata without values: every text, the generation and the time of creation are written.
        let metadata = [0x0a, 0, 0x12, 0, 0x1a, 0, 0x22, 0, 0x2a, 0, 0x32, 0, 0x38, 0, 0x42, 0];
        let message = [&[0x0a, 16][..], &metadata, b"\x12\x0b30000-32767\x1a\x02\x02\x01"].concat();
        let head = b"k8s\0\x0a\x15\x0a\x02v1\x12\x0fRangeAllocation\x12\x23";
        assert_eq!(bytes, [&head[..], &message, b"\x1a\x00\x22\x00"].concat());
        let json = allocation.encode(&codec(MediaType::Json)).unwrap();
        let text = r#"{"kind":"RangeAllocation","apiVersion":"v1","metadata":{"creationTimestamp":null},"range":"30000-32767","data":"AgE="}"#;
        assert_eq!(String::from_utf8(json).unwrap(), format!("{text}\n"));
    }

    proptest! {
        #[test]
        fn record_round_trips(
            range in "[ -~]{0,20}",
            items in proptest::collection::btree_set(0usize..70_000, 0..40),
            media in proptest::sample::select(&MediaType::ALL[..]),
        ) {
            let allocation = RangeAllocation { range, allocated: items.iter().copied().collect() };
            prop_assert_eq!(allocation.allocated.iter().collect::<Vec<_>>(), items.into_iter().collect::<Vec<_>>());
            let codec = codec(media);
            let bytes = allocation.encode(&codec).unwrap();
            prop_assert_eq!(RangeAllocation::decode(&codec, &bytes), Ok(allocation));
        }

        #[test]
        fn numbers_round_trip(number in proptest::collection::vec(any::<u8>(), 0..40)) {
            let bitmap = Bitmap::from_number(&number).unwrap();
            let first = number.iter().position(|byte| *byte != 0).unwrap_or(number.len());
            prop_assert_eq!(bitmap.to_number(), &number[first..]);
            prop_assert_eq!(bitmap.len(), bitmap.iter().count());
        }
    }
}
