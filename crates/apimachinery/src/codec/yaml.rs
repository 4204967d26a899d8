//! YAML bodies: parsed by the YAML 1.1 rules of the reference, and converted to JSON for decoding.

use serde::de::DeserializeSeed;

use super::yaml_fault;
use super::yaml_read::{ParsedDocument, UNSUPPORTED_KEY, UNSUPPORTED_VALUE, parse_document};
pub use super::yaml_write::to_yaml;
use super::{DecodeError, Decoded, decode_converted, summary};
use crate::json;
use crate::limits;
use crate::schema::{GroupVersionKind, Registry};
use crate::value::Value;

/// Decodes a YAML body as kind `expected`.
pub fn decode_object(
    body: &[u8],
    expected: &GroupVersionKind,
    registry: &Registry,
) -> Result<Decoded, DecodeError> {
    let ParsedDocument { value, duplicate_keys } = parse(body).map_err(|message| {
        let (expected, summary, message) = (&expected.kind, summary(body), with_prefix(&message));
        DecodeError::new(format!(
            "the object provided is unrecognized (must be of type {expected}): {message} ({summary})"
        ))
    })?;
    let text = json::to_json(&value);
    // Dropped before the text is decoded: two trees of one body would take twice the memory.
    drop(value);
    let mut decoded = decode_converted(&text, body, expected, registry)?;
    if let Some(message) = duplicate_keys_message(&duplicate_keys) {
        decoded.strict.insert(0, message);
    }
    Ok(decoded)
}

/// The message about duplicate keys.
fn duplicate_keys_message(duplicate_keys: &[(usize, String)]) -> Option<String> {
    let lines =
        duplicate_keys.iter().map(|(line, key)| format!("\n  line {line}: key {key} already set in map"));
    (!duplicate_keys.is_empty()).then(|| format!("yaml: unmarshal errors:{}", lines.collect::<String>()))
}

/// Parses a YAML document, with a message if it has duplicate keys.
pub fn read_strict(body: &[u8]) -> Result<(Value, Option<String>), String> {
    parse(body)
        .map(|ParsedDocument { value, duplicate_keys }| (value, duplicate_keys_message(&duplicate_keys)))
}

/// Parses a YAML document.
pub fn read(body: &[u8]) -> Result<Value, String> {
    parse(body).map(|document| document.value)
}

/// The message with its prefix: errors about values that JSON cannot express come from another library.
pub fn with_prefix(message: &str) -> String {
    let is_json_error = [UNSUPPORTED_KEY, UNSUPPORTED_VALUE].iter().any(|prefix| message.starts_with(prefix));
    if is_json_error { message.to_owned() } else { format!("yaml: {message}") }
}

fn parse(body: &[u8]) -> Result<ParsedDocument, String> {
    let text = std::str::from_utf8(body).map_err(|_| "control characters are not allowed".to_owned())?;
    if text.len() > limits::BODY_BYTES {
        return Err(format!("document is larger than {} bytes", limits::BODY_BYTES));
    }
    let empty = ParsedDocument { value: Value::Null, duplicate_keys: Vec::new() };
    if let Some(value) = read_json(text) {
        return Ok(ParsedDocument { value, ..empty });
    }
    if let Some(fault) = yaml_fault::find(text) {
        return Err(fault);
    }
    if text.lines().all(is_blank) { Ok(empty) } else { parse_document(text) }
}

/// Parses a document that is JSON, as most programs send it, ten times faster than YAML. `None` if it is no valid JSON: then YAML
/// reports the error.
fn read_json(text: &str) -> Option<Value> {
    if !text.trim_start().starts_with('{') {
        return None;
    }
    // Some escapes are valid in only one of the two.
    let is_ambiguous = |next: Option<&u8>| matches!(next, Some(b'/' | b'u'));
    if memchr::memchr_iter(b'\\', text.as_bytes()).any(|index| is_ambiguous(text.as_bytes().get(index + 1))) {
        return None;
    }
    let mut detector = DuplicateKeyDetector(false);
    let mut tokens = serde_json::Deserializer::from_str(text);
    let value = json::Any(&mut detector).deserialize(&mut tokens).ok()?;
    if tokens.end().is_err() {
        // Text after the document is ignored, unless the document turns out to be a key.
        let mut documents =
            serde_json::Deserializer::from_str(text).into_iter::<&serde_json::value::RawValue>();
        documents.next()?.ok()?;
        text.get(documents.byte_offset()..).filter(|rest| !rest.trim_start().starts_with(':'))?;
    }
    (!detector.0).then_some(value)
}

/// Records whether there is a duplicate key.
struct DuplicateKeyDetector(bool);

impl json::ParseObserver for DuplicateKeyDetector {
    type Mark = ();

    fn enter_field(&mut self, _: &str, is_duplicate: impl FnOnce() -> bool) {
        self.0 = self.0 || is_duplicate();
    }

    fn leave_field(&mut self, (): (), _: &str) {}

    fn enter_item(&mut self, _: usize) {}

    fn leave_item(&mut self, (): (), _: usize) {}
}

/// Whether a line is empty: a document of such lines is null.
fn is_blank(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#') || line == "---"
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn as_json(text: &str) -> String {
        String::from_utf8(json::to_json(&read(text.as_bytes()).unwrap())).unwrap()
    }

    #[test]
    fn scalars_and_merges_follow_yaml_1_1() {
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
    fn yaml_bodies_are_decoded_like_json() {
        let registry = Registry::builtin().unwrap();
        let kind = GroupVersionKind::new("", "v1", "ConfigMap");
        let decoded =
            decode_object(b"kind: ConfigMap\nmetadata:\n  name: a\n  name: b\nfoo: 1\n", &kind, &registry)
                .unwrap();
        assert_eq!(decoded.value.get_path(&["metadata", "name"]).and_then(Value::as_str), Some("b"));
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
        let duplicate_keys = decode_object(
            b"kind: ConfigMap\nmetadata:\n  name: a\n  name: b\ndata:\n  x: y\n  x: z\n  x: z\n",
            &kind,
            &registry,
        );
        let lines = "yaml: unmarshal errors:\n  line 4: key \"name\" already set in map\n  line 7: key \"x\" already set in map\n  \
                     line 8: key \"x\" already set in map";
        assert_eq!(duplicate_keys.unwrap().strict, [lines]);
        let first = decode_object(b"data: {a: b}\n---\ndata: 2\n", &kind, &registry).unwrap();
        assert_eq!(first.value.get_path(&["data", "a"]).and_then(Value::as_str), Some("b"));
    }

    #[test]
    fn yaml_bombs_are_refused() {
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
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn parsing_arbitrary_yaml_never_panics(text in "[a-z0-9:\\-\\[\\]{}&*!|>'\"#%@,? \n]{0,60}") {
            let _ = read(text.as_bytes());
        }

        #[test]
        fn parsing_yaml_indicators_never_panics(
            text in r#"([-:,?&*!|>'"%@`\[\]{}#\\ \t\r\n.]|\\[xuUnN0 ]|[\x00-\x1f\x7f\u{85}\u{2028}\u{feff}a]|---|\.\.\.){0,60}"#,
        ) {
            let _ = read(text.as_bytes());
        }
    }

    #[test]
    fn only_the_first_document_is_parsed() {
        for text in ["a: 1\n---\nb: 2\n", "---\na: 1\n--- x\n", "# c\n---\na: 1\n...\n- [", "a: 1\n"] {
            assert_eq!(as_json(text), r#"{"a":1}"#, "{text:?}");
        }
        assert_eq!(as_json("a: |\n  ---\n"), r#"{"a":"---\n"}"#, "an indented mark is text");
        assert!(read(br#"{"a":1} and more"#).is_ok());
        assert!(read(br#"{"a":1}}"#).is_ok());
    }
}
