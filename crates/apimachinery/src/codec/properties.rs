//! Properties of all decoders: no input panics, and encodings are equivalent.
//!
//! A few hundred cases run with every test run; `PILOTHOUSE_FUZZ_CASES` sets another number.

use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::Index;

use super::transcode::{Encoding, transcode};
use super::*;
use crate::schema::arbitrary;
use crate::schema::encode::{EmptyLists, encode_as};

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::builtin().unwrap());

const ENCODINGS: [Encoding; 4] = [Encoding::Json, Encoding::Yaml, Encoding::Protobuf, Encoding::Cbor];

fn config(cases: u32) -> ProptestConfig {
    let configured = std::env::var("PILOTHOUSE_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(configured.unwrap_or(cases)) }
}

fn encode_in(encoding: Encoding, ty: TypeId, value: &Value) -> Vec<u8> {
    let json = encode_as(&REGISTRY, ty, value, EmptyLists::Exact);
    transcode(&REGISTRY, Encoding::Json, encoding, &json).unwrap()
}

/// Passes a body to every decoder, also to those of other encodings.
fn decode_with_all(body: &[u8]) {
    for name in ["Pod", "Secret", "Status", "DeleteOptions"] {
        let expected = GroupVersionKind::new("", "v1", name);
        for decode in [decode_object, yaml::decode_object, protobuf::decode_object, cbor::decode_object] {
            if let Err(error) = decode(body, &expected, &REGISTRY) {
                assert!(!error.message.is_empty() && error.message.len() < 10_000 + body.len() * 8);
            }
        }
        let _ = decode_any_version(body, &expected, &REGISTRY);
        let _ = protobuf::decode_any_version(body, &expected, &REGISTRY);
        let _ = cbor::decode_any_version(body, &expected, &REGISTRY);
    }
    let _ = json::read(body);
    let _ = yaml::read(body);
    let _ = cbor::read(body);
    for from in ENCODINGS {
        for to in ENCODINGS {
            let _ = transcode(&REGISTRY, from, to, body);
        }
    }
}

/// The value without the two characters that are line breaks for the YAML writer, as in YAML 1.1, but not for the reader.
fn without_separators(value: Value) -> Value {
    let replaced = |text: String| text.replace(['\u{2028}', '\u{2029}'], "?");
    match value {
        Value::String(text) => Value::String(replaced(text)),
        Value::Array(items) => Value::Array(items.into_iter().map(without_separators).collect()),
        Value::Object(fields) => Value::Object(
            fields.into_iter().map(|(key, value)| (replaced(key), without_separators(value))).collect(),
        ),
        other => other,
    }
}

/// A mutation, as by a broken client or connection.
#[derive(Clone, Debug)]
enum Damage {
    Flip(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
    /// A part of the body is repeated elsewhere.
    Repeat(Index, Index, Index),
    Drop(Index, Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(position, bits)| Damage::Flip(position, bits)),
        1 => any::<Index>().prop_map(Damage::Cut),
        1 => (any::<Index>(), proptest::collection::vec(any::<u8>(), 1..9))
            .prop_map(|(position, bytes)| Damage::Insert(position, bytes)),
        1 => (any::<Index>(), any::<Index>(), any::<Index>())
            .prop_map(|(from, to, position)| Damage::Repeat(from, to, position)),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Damage::Drop(from, to)),
    ]
}

fn apply_damage(body: &mut Vec<u8>, damage: &Damage) {
    let length = body.len() + 1;
    let range = |from: &Index, to: &Index| {
        let (from, to) = (from.index(length), to.index(length));
        from.min(to)..from.max(to)
    };
    match damage {
        Damage::Flip(position, bits) if !body.is_empty() => {
            let position = position.index(body.len());
            body[position] ^= bits;
        }
        Damage::Flip(..) => {}
        Damage::Cut(position) => body.truncate(position.index(length)),
        Damage::Insert(position, bytes) => {
            let position = position.index(length);
            body.splice(position..position, bytes.iter().copied());
        }
        Damage::Repeat(from, to, position) => {
            let part = body[range(from, to)].to_vec();
            let position = position.index(length);
            body.splice(position..position, part);
        }
        Damage::Drop(from, to) => {
            body.drain(range(from, to));
        }
    }
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn decoders_never_panic_on_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        decode_with_all(&bytes);
    }

    #[test]
    fn decoders_never_panic_on_damaged_bodies(
        (_, ty, value) in arbitrary::object(&REGISTRY),
        encoding in proptest::sample::select(&ENCODINGS[..]),
        damages in proptest::collection::vec(damage(), 1..6),
    ) {
        let mut body = encode_in(encoding, ty, &value);
        // Small bodies are mutated at interesting places more often, and cover the grammar.
        prop_assume!(body.len() < 20_000);
        for damage in &damages {
            apply_damage(&mut body, damage);
        }
        decode_with_all(&body);
    }

    #[test]
    fn all_encodings_decode_to_the_same_value((kind, ty, value) in arbitrary::object(&REGISTRY)) {
        let value = without_separators(value);
        let json = encode_in(Encoding::Json, ty, &value);
        for from in ENCODINGS {
            let body = encode_in(from, ty, &value);
            let decoded = match from {
                Encoding::Yaml => yaml::decode_object(&body, &kind, &REGISTRY),
                Encoding::Protobuf => protobuf::decode_object(&body, &kind, &REGISTRY),
                Encoding::Cbor => cbor::decode_object(&body, &kind, &REGISTRY),
                Encoding::Json => decode_object(&body, &kind, &REGISTRY),
            };
            let decoded = decoded.map_err(|error| TestCaseError::fail(format!("{from:?}: {}", error.message)))?;
            prop_assert_eq!(&decoded.value, &value, "{:?}", from);
            prop_assert_eq!(decoded.strict, Vec::<String>::new(), "{:?}", from);
            for to in ENCODINGS {
                let converted = transcode(&REGISTRY, from, to, &body).map_err(TestCaseError::fail)?;
                prop_assert_eq!(&converted, &encode_in(to, ty, &value), "{:?} to {:?}", from, to);
                let back = transcode(&REGISTRY, to, Encoding::Json, &converted).map_err(TestCaseError::fail)?;
                prop_assert_eq!(&back, &json, "{:?} to {:?} and back", from, to);
            }
        }
    }
}
