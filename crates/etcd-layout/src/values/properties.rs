//! Properties of the values of every stored type.

use std::sync::LazyLock;

use pilothouse_api::draft::builtin_draft;
use pilothouse_apimachinery::schema::{arbitrary, default, encode};
use pilothouse_apimachinery::testing::REGISTRY;
use pilothouse_kinds as kinds;
use proptest::prelude::*;
use proptest::sample::Index;

use super::testing::{codec, custom, stored_resources};
use super::*;

static RESOURCES: LazyLock<Vec<Arc<Resource>>> = LazyLock::new(stored_resources);
static CODECS: LazyLock<[ValueCodec; 3]> = LazyLock::new(|| MediaType::ALL.map(codec));
static CBOR_CODEC: LazyLock<ValueCodec> = LazyLock::new(|| {
    let options = ValueOptions { custom_cbor: true, ..ValueOptions::default() };
    ValueCodec::new(Arc::new(Registry::builtin().unwrap()), options, EnabledFeatures::RELEASE)
});
static KITES: LazyLock<Arc<Resource>> = LazyLock::new(|| custom("kites", "toys.example", "Namespaced"));

const KITE: &str = r#"{"apiVersion":"toys.example/v2","kind":"Kite","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","labels":{"b":"2"},"name":"a","namespace":"ns","uid":"u"},"spec":{"color":"red","size":2.5,"tail":{"b":[null,-7,1e300],"z":true}}}"#;

/// What the values of each encoding begin with.
const STARTS: [&[u8]; 5] = [b"", b"k8s\0", b"\xd9\xd9\xf7", b"{", b"kind: "];

/// An object as a create would store it.
fn stored_object(resource: &Resource, seed: u64) -> Draft {
    let stored = resource.stored().unwrap();
    let (group, kind) = (&*stored.version.group, &*resource.kind);
    let ty = REGISTRY.kind(group, &stored.version.version, kind).unwrap();
    let gvk = GroupVersionKind::new(group, &stored.version.version, kind);
    let mut value = arbitrary::of_kind(&REGISTRY, &gvk, ty, seed);
    value.entry("metadata").remove("selfLink");
    value.entry("metadata").remove("resourceVersion");
    if kind == "CustomResourceDefinition" {
        // v1beta1 has defaults for both, and cannot tell a webhook without fields from none.
        value.entry("spec").set("scope", "Cluster");
        value.entry("spec").remove("conversion");
    }
    value = without_separators(value);
    let rules = kinds::rules(group, kind);
    // What one default adds can have a default of its own, which a real object has got before it was stored.
    for _ in 0..3 {
        kinds::apply_defaults(rules, &mut value, EnabledFeatures::RELEASE);
        default::apply(&REGISTRY, ty, &mut value);
        rules.defaulting.apply_stored_defaults(&mut value);
        value = codec::decode_stored(&encode::encode(&REGISTRY, ty, &value), ty, &REGISTRY).unwrap();
    }
    builtin_draft(&REGISTRY, ty, (group, kind), Key::namespaced("ns", "a"), &value)
}

/// The value without the two characters that YAML takes for line breaks.
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

/// Changes a value as a faulty disk or program would.
fn damage(value: &mut Vec<u8>, damages: &[(Index, u8, u8)]) {
    for (position, byte, damage) in damages {
        let position = position.index(value.len() + 1);
        match damage {
            0 => value.truncate(position),
            1 => value.insert(position, *byte),
            _ if position < value.len() => value[position] = *byte,
            _ => {}
        }
    }
}

/// A few hundred cases run with every test run; `PILOTHOUSE_FUZZ_CASES` sets another number.
fn config() -> ProptestConfig {
    let configured = std::env::var("PILOTHOUSE_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(configured.unwrap_or(400)) }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn stored_objects_of_every_type_round_trip(
        resource in any::<Index>(),
        media in 0..MediaType::ALL.len(),
        seed in any::<u64>(),
    ) {
        let (resource, codec) = (&*RESOURCES[resource.index(RESOURCES.len())], &CODECS[media]);
        let draft = stored_object(resource, seed);
        let value = codec.encode(resource, &draft).unwrap();
        let decoded = codec.decode(resource, &draft.key, &value);
        let decoded = decoded.map_err(|error| TestCaseError::fail(error.to_string()))?;
        let text = |draft: &Draft| String::from_utf8(draft.bytes.to_vec()).unwrap();
        prop_assert_eq!(text(&decoded.draft), text(&draft));
        prop_assert_eq!(&decoded.draft, &draft, "offsets, labels, fields and no mark");
        prop_assert!(!decoded.is_stale);
        prop_assert_eq!(codec.encode(resource, &decoded.draft).unwrap(), value);
    }

    #[test]
    fn damaged_values_never_panic(
        resource in any::<Index>(),
        media in 0..MediaType::ALL.len(),
        seed in any::<u64>(),
        damages in proptest::collection::vec((any::<Index>(), any::<u8>(), 0..4u8), 1..8),
    ) {
        let (resource, codec) = (&*RESOURCES[resource.index(RESOURCES.len())], &CODECS[media]);
        let mut value = codec.encode(resource, &stored_object(resource, seed)).unwrap();
        damage(&mut value, &damages);
        for resource in [resource, &RESOURCES[0]] {
            if let Ok(decoded) = codec.decode(resource, &Key::cluster("a"), &value) {
                prop_assert!(codec.encode(resource, &decoded.draft).is_ok(), "what was read can be written");
            }
        }
    }

    #[test]
    fn damaged_custom_objects_never_panic(
        is_cbor in any::<bool>(),
        damages in proptest::collection::vec((any::<Index>(), any::<u8>(), 0..4u8), 0..8),
    ) {
        let codec = if is_cbor { &*CBOR_CODEC } else { &CODECS[0] };
        let key = Key::namespaced("ns", "a");
        let mut value = codec.encode(&KITES, &codec.decode(&KITES, &key, KITE.as_bytes()).unwrap().draft).unwrap();
        damage(&mut value, &damages);
        if let Ok(decoded) = codec.decode(&KITES, &key, &value) {
            let again = codec.encode(&KITES, &decoded.draft).unwrap();
            prop_assert_eq!(codec.decode(&KITES, &key, &again).unwrap().draft.bytes, decoded.draft.bytes);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        resource in any::<Index>(),
        start in proptest::sample::select(&STARTS[..]),
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let resource = &RESOURCES[resource.index(RESOURCES.len())];
        let _ = CODECS[0].decode(resource, &Key::cluster("a"), &[start, &bytes].concat());
    }
}
