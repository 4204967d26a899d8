//! Which cluster IPs and node ports are taken, as all servers of one etcd agree on them.
//!
//! The record is a RangeAllocation of the core group: the text of the range, and a bitmap with one bit for each item. The bitmap is one
//! large number, its bytes in big-endian order without leading zeros: bit 0 is the lowest bit of the last byte.

use pilothouse_apimachinery::schema::GroupVersionKind;
use pilothouse_apimachinery::value::Value;
pub use pilothouse_types::bitmap::Bitmap;

use crate::values::{ValueCodec, ValueError, bytes_field, set_bytes_field};

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
    }
}
