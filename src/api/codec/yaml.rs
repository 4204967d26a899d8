//! YAML bodies, read with the habits of YAML 1.1 that the ecosystem has, and turned into JSON for the one decoder.

use std::collections::btree_map::Entry;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Options;
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};

use super::{DecodeError, Decoded, decode_converted, json, summary};
use crate::api::limits;
use crate::api::schema::{GroupVersionKind, Registry};
use crate::api::value::{Fields, Value};

use super::yaml_twice::Twice;
use super::yaml_words::{first_document, is_foreign, told};
pub use super::yaml_write::to_yaml;

/// Reads a YAML body that must hold an object of kind `expected`.
pub fn decode_object(
    body: &[u8],
    expected: &GroupVersionKind,
    registry: &Registry,
) -> Result<Decoded, DecodeError> {
    let (value, twice) = parse(body).map_err(|why| {
        let (wanted, summary) = (&expected.kind, summary(body));
        DecodeError::new(format!(
            "the object provided is unrecognized (must be of type {wanted}): yaml: {why} ({summary})"
        ))
    })?;
    let mut decoded = decode_converted(&json::to_json(&value), body, expected, registry)?;
    if let Some(key) = twice {
        decoded.strict.insert(0, repeated(body, &key));
    }
    Ok(decoded)
}

/// What is wrong about keys that stand twice, of which `key` is the first.
fn repeated(body: &[u8], key: &str) -> String {
    let mut all = repeats(body).unwrap_or_default();
    if all.is_empty() {
        all.push((0, key.to_owned()));
    }
    let mut text = "yaml: unmarshal errors:".to_owned();
    for (line, key) in all {
        let key = crate::api::field::quoted(&key);
        text.push_str(&format!("\n  line {line}: key {key} already set in map"));
    }
    text
}

/// Reads a YAML document into a value, and says what is wrong if a key stands twice in it.
pub fn read_strict(body: &[u8]) -> Result<(Value, Option<String>), String> {
    let (value, twice) = parse(body)?;
    Ok((value, twice.map(|key| repeated(body, &key))))
}

/// Reads a YAML document into a value.
pub fn read(body: &[u8]) -> Result<Value, String> {
    parse(body).map(|(value, _)| value)
}

/// The value, and the first key that stands twice.
fn parse(body: &[u8]) -> Result<(Value, Option<String>), String> {
    let text = std::str::from_utf8(body).map_err(|_| "control characters are not allowed".to_owned())?;
    if text.len() > limits::BODY_BYTES {
        return Err(format!("document is larger than {} bytes", limits::BODY_BYTES));
    }
    let Some(first) = text.lines().find(|line| !is_blank(line)) else {
        return Ok((Value::Null, None));
    };
    if first.starts_with('\t') {
        return Err("found character that cannot start any token".to_owned());
    }
    if let Some(value) = read_json(text) {
        return Ok((value, None));
    }
    if is_foreign(text) {
        return Err("found incompatible YAML document".to_owned());
    }
    let text = first_document(text);
    let mut twice = None;
    let seed = Any { twice: &mut twice };
    let options = options(DuplicateKeyPolicy::LastWins);
    let value = serde_saphyr::with_deserializer_from_str_with_options(text, options, |document| {
        seed.deserialize(document)
    });
    let value = value.map_err(|error| message(text, &error))?;
    Ok((value, twice))
}

/// A document that is JSON, as most programs send it, means the same as JSON, which is read in a tenth of the time. `None` if it
/// is none, or not without faults: those are told in the words of YAML.
fn read_json(text: &str) -> Option<Value> {
    if !text.trim_start().starts_with('{') {
        return None;
    }
    let mut twice = None;
    let mut tokens = serde_json::Deserializer::from_str(text);
    let value = Any { twice: &mut twice }.deserialize(&mut tokens).ok()?;
    if tokens.end().is_err() {
        // What follows a document is not read, unless the document turns out to be a key.
        let mut documents =
            serde_json::Deserializer::from_str(text).into_iter::<&serde_json::value::RawValue>();
        documents.next()?.ok()?;
        text.get(documents.byte_offset()..).filter(|rest| !rest.trim_start().starts_with(':'))?;
    }
    twice.is_none().then_some(value)
}

/// The keys that stand twice: the same document once more, with its places.
fn repeats(body: &[u8]) -> Option<Vec<(u64, String)>> {
    let text = first_document(std::str::from_utf8(body).ok()?);
    let options = options(DuplicateKeyPolicy::LastWins);
    let all = serde_saphyr::with_deserializer_from_str_with_options(text, options, |document| {
        Twice::deserialize(document).map(|twice| twice.0)
    });
    all.ok()
}

/// A key as JSON has it; `None` for what cannot be one.
pub(super) fn key_text(key: Value) -> Option<String> {
    match key {
        Value::String(text) => Some(text),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Int(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn options(duplicate_keys: DuplicateKeyPolicy) -> Options {
    let budget = serde_saphyr::budget! {
        max_depth: limits::YAML_DEPTH,
        flow_nesting_limit: limits::YAML_DEPTH,
        max_nodes: limits::YAML_NODES,
        max_aliases: limits::YAML_ALIASES,
        max_anchors: limits::YAML_ANCHORS,
        max_documents: 1,
        max_total_scalar_bytes: limits::BODY_BYTES,
    };
    let alias_limits = serde_saphyr::alias_limits! {
        max_total_replayed_events: limits::YAML_NODES,
        max_replay_stack_depth: limits::YAML_DEPTH,
        max_alias_expansions_per_anchor: limits::YAML_ALIASES,
    };
    serde_saphyr::options! {
        budget: budget,
        alias_limits: alias_limits,
        duplicate_keys: duplicate_keys,
        legacy_octal_numbers: true,
        non_finite_float_policy: NonFiniteFloatPolicy::Reject,
        ignore_binary_tag_for_string: true,
        with_snippet: false,
    }
}

/// Whether a line says nothing: a document of such lines reads as null.
fn is_blank(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#') || line == "---"
}

/// The parser's report on one line, with the place before what is wrong there.
fn message(text: &str, error: &serde_saphyr::Error) -> String {
    let report = error.to_string();
    let report = report.lines().next().unwrap_or_default();
    let what = report.rsplit_once(" at line ").map_or(report, |(what, _)| what);
    told(text, what, error.location().map(|location| location.line()))
}

/// Reads any value, and remembers the first key that stands twice.
struct Any<'t> {
    twice: &'t mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Any<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, document: D) -> Result<Value, D::Error> {
        document.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Any<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: serde::de::Error>(self, truth: bool) -> Result<Value, E> {
        json::Any(&mut json::Silent).visit_bool(truth)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Value, E> {
        json::Any(&mut json::Silent).visit_i64(number)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Value, E> {
        json::Any(&mut json::Silent).visit_u64(number)
    }

    fn visit_i128<E: serde::de::Error>(self, number: i128) -> Result<Value, E> {
        Ok(i64::try_from(number).map_or(Value::Float(number as f64), Value::Int))
    }

    fn visit_u128<E: serde::de::Error>(self, number: u128) -> Result<Value, E> {
        Ok(i64::try_from(number).map_or(Value::Float(number as f64), Value::Int))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Value, E> {
        json::Any(&mut json::Silent).visit_f64(number)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        json::Any(&mut json::Silent).visit_str(text)
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Value, E> {
        json::Any(&mut json::Silent).visit_string(text)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, document: D) -> Result<Value, D::Error> {
        document.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(Any { twice: &mut *self.twice })? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut all = Fields::new();
        while let Some(key) = entries.next_key_seed(json::Any(&mut json::Silent))? {
            let key = key_text(key).ok_or_else(|| serde::de::Error::custom("Unsupported map key"))?;
            let value = entries.next_value_seed(Any { twice: &mut *self.twice })?;
            match all.entry(key) {
                Entry::Vacant(free) => {
                    free.insert(value);
                }
                Entry::Occupied(mut taken) => {
                    self.twice.get_or_insert_with(|| taken.key().clone());
                    taken.insert(value);
                }
            }
        }
        Ok(Value::Object(all.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn as_json(text: &str) -> String {
        String::from_utf8(json::to_json(&read(text.as_bytes()).unwrap())).unwrap()
    }

    #[test]
    fn yaml_1_1_is_what_people_write() {
        assert_eq!(
            as_json("a: yes\nb: 010\nc: 0x1F\nd: 1_000\ne: ~\nf: 'yes'"),
            r#"{"a":true,"b":8,"c":31,"d":1000,"e":null,"f":"yes"}"#
        );
        assert_eq!(as_json("1: a\ntrue: b\n"), r#"{"1":"a","true":"b"}"#);
        assert_eq!(
            as_json("a: &x {k: v}\nb:\n  <<: *x\n  l: w\n"),
            r#"{"a":{"k":"v"},"b":{"k":"v","l":"w"}}"#
        );
        assert_eq!(
            as_json("a: 2024-01-01\nb: 1.5\nc: |\n  x\n  y\n"),
            r#"{"a":"2024-01-01","b":1.5,"c":"x\ny\n"}"#
        );
        assert_eq!(as_json("# nothing\n---\n"), "null");
    }

    #[test]
    fn bodies_are_decoded_like_json() {
        let registry = Registry::builtin().unwrap();
        let kind = GroupVersionKind::new("", "v1", "ConfigMap");
        let decoded =
            decode_object(b"kind: ConfigMap\nmetadata:\n  name: a\n  name: b\nfoo: 1\n", &kind, &registry)
                .unwrap();
        assert_eq!(decoded.value.at(&["metadata", "name"]).and_then(Value::as_str), Some("b"));
        assert_eq!(
            decoded.strict,
            ["yaml: unmarshal errors:\n  line 4: key \"name\" already set in map", r#"unknown field "foo""#]
        );
        let error = decode_object(b"data: {a: 1}", &kind, &registry).unwrap_err();
        assert!(
            error
                .message
                .ends_with("cannot unmarshal number into Go struct field ConfigMap.data of type string")
        );
        let error = decode_object(b"a: [", &kind, &registry).unwrap_err();
        assert!(
            error
                .message
                .starts_with("the object provided is unrecognized (must be of type ConfigMap): yaml: ")
        );
        let error = decode_object(b"\tbad", &kind, &registry).unwrap_err();
        assert!(error.message.ends_with("yaml: found character that cannot start any token (09626164)"));
        assert_eq!(read(b"a: 1\n- b").unwrap_err(), "line 1: did not find expected key");
        let twice = decode_object(
            b"kind: ConfigMap\nmetadata:\n  name: a\n  name: b\ndata:\n  x: y\n  x: z\n  x: z\n",
            &kind,
            &registry,
        );
        let lines = "yaml: unmarshal errors:\n  line 4: key \"name\" already set in map\n  line 7: key \"x\" already set in map\n  \
                     line 8: key \"x\" already set in map";
        assert_eq!(twice.unwrap().strict, [lines]);
        let first = decode_object(b"data: {a: b}\n---\ndata: 2\n", &kind, &registry).unwrap();
        assert_eq!(first.value.at(&["data", "a"]).and_then(Value::as_str), Some("b"));
    }

    #[test]
    fn bombs_are_refused() {
        let mut laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..9 {
            let before = level - 1;
            let many = vec![format!("*a{before}"); 10].join(",");
            laughs.push_str(&format!("a{level}: &a{level} [{many}]\n"));
        }
        assert!(read(laughs.as_bytes()).is_err());
        assert!(read("[".repeat(10_000).as_bytes()).is_err());
        assert!(read(b"\xff").is_err());
        assert!(read(b"a: .nan").is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_text_panics(text in "[a-z0-9:\\-\\[\\]{}&*!|>'\"#%@,? \n]{0,60}") {
            let _ = read(text.as_bytes());
        }
    }
}
