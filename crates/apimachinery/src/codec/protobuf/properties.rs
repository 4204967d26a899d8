//! Properties of every kind and every body.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::codec;
use crate::schema::arbitrary;

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::complete().unwrap());

/// Compares two values by their JSON: whole objects are too long to read.
fn assert_same_json(left: &Value, right: &Value) -> Result<(), TestCaseError> {
    let (left, right) = (codec::to_json(left), codec::to_json(right));
    prop_assert_eq!(String::from_utf8_lossy(&left), String::from_utf8_lossy(&right));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn protobuf_objects_round_trip((kind, ty, value) in arbitrary::object(&REGISTRY)) {
        let body = encode_object(&REGISTRY, ty, &value);
        let decoded = decode_object(&body, &kind, &REGISTRY).unwrap();
        assert_same_json(&decoded.value, &value)?;
        prop_assert_eq!(&decoded.value, &value);
        // Encoding reproduces the input.
        prop_assert_eq!(encode_object(&REGISTRY, ty, &decoded.value), body);
    }

    #[test]
    fn transcoded_message_equals_encoded_message((_, ty, value) in arbitrary::object(&REGISTRY)) {
        let stored = codec::encode(&REGISTRY, ty, &value);
        prop_assert_eq!(transcode(&REGISTRY, ty, &stored).unwrap(), message(&REGISTRY, ty, &value));
        let message = transcode(&REGISTRY, ty, &stored).unwrap();
        let enveloped = envelope(value.str("apiVersion"), value.str("kind"), &message);
        prop_assert_eq!(enveloped, encode_object(&REGISTRY, ty, &value));
    }

    #[test]
    fn decoded_protobuf_round_trips_through_json(
        (kind, ty, value) in arbitrary::object(&REGISTRY),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut body = encode_object(&REGISTRY, ty, &value);
        for (index, byte) in changes {
            let index = index.index(body.len());
            body[index] = byte;
        }
        if let Some(cut) = cut {
            body.truncate(cut.index(body.len()));
        }
        if let Ok(decoded) = decode_object(&body, &kind, &REGISTRY) {
            let text = codec::encode(&REGISTRY, ty, &decoded.value);
            let again = codec::decode_object(&text, &kind, &REGISTRY).unwrap();
            assert_same_json(&again.value, &decoded.value)?;
        }
    }

    #[test]
    fn protobuf_decoders_never_panic(
        (kind, _, _) in arbitrary::object(&REGISTRY),
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = decode_object(&bytes, &kind, &REGISTRY);
        let body = [&MAGIC[..], &bytes].concat();
        let _ = decode_object(&body, &kind, &REGISTRY);
        let mut body = envelope::head(&kind.api_version(), &kind.kind, bytes.len());
        body.extend_from_slice(&bytes);
        let _ = decode_object(&body, &kind, &REGISTRY);
        let _ = decode_any_version(&body, &kind, &REGISTRY);
    }
}
