//! Converts one object between encodings, by its type alone: without defaults and validation.
//!
//! The result equals decoding into the types of the API and encoding again. So unknown fields are dropped, an empty list differs
//! from an absent one only where the field can express both, and the text is canonical.

use super::{Decoded, cbor, decode_object, protobuf, syntax, yaml};
use crate::json;
use crate::schema::encode::{EmptyLists, encode_as};
use crate::schema::{GroupVersionKind, Registry};
use crate::value::Value;

/// The encoding of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Protobuf in its envelope.
    Protobuf,
    /// CBOR.
    Cbor,
}

/// Converts one object of the kind that it states. An unknown kind is converted without a type, which Protobuf does not support.
/// The error is the message.
pub fn transcode(registry: &Registry, from: Encoding, to: Encoding, input: &[u8]) -> Result<Vec<u8>, String> {
    let kind = kind_of(from, input)?;
    let Some(ty) = registry.lookup(&kind) else {
        if from == Encoding::Protobuf || to == Encoding::Protobuf {
            let (kind, version) = (&kind.kind, kind.api_version());
            return Err(format!(
                "no kind \"{kind}\" is registered for version \"{version}\", and Protobuf has only registered kinds"
            ));
        }
        return decode_untyped(from, input).map(|value| encode_untyped(to, value));
    };
    let mut value = decode_typed(registry, from, input, &kind)?.value;
    if !registry.structure(ty).is_some_and(|structure| structure.object) {
        value.remove("kind");
        value.remove("apiVersion");
    }
    match to {
        Encoding::Json | Encoding::Yaml => {
            let mut text = encode_as(registry, ty, &value, EmptyLists::Exact);
            if to == Encoding::Yaml {
                return Ok(yaml::to_yaml(json::read(&text).map_err(|error| error.to_string())?));
            }
            text.push(b'\n');
            Ok(text)
        }
        Encoding::Protobuf => Ok(protobuf::encode_object(registry, ty, &value)),
        Encoding::Cbor => Ok(cbor::encode_object(registry, ty, &value, EmptyLists::Exact)),
    }
}

/// The kind that an object states. A watch event states none, and is recognized by its two fields.
fn kind_of(from: Encoding, input: &[u8]) -> Result<GroupVersionKind, String> {
    let kind = if from == Encoding::Protobuf {
        let kind = protobuf::peek(input).ok_or("the input is no object in a Protobuf envelope")?;
        if kind == GroupVersionKind::default() { watch_event() } else { kind }
    } else {
        let value @ Value::Object(_) = decode_untyped(from, input)? else {
            return Err("the input is no object".to_owned());
        };
        if value.fields().is_some_and(|fields| fields.keys().eq(["object", "type"])) {
            return Ok(watch_event());
        }
        let (kind, api_version) = (value.str("kind"), value.str("apiVersion"));
        match api_version.matches('/').count() {
            0 => GroupVersionKind::new("", api_version, kind),
            1 => {
                let (group, version) = api_version.split_once('/').unwrap_or_default();
                GroupVersionKind::new(group, version, kind)
            }
            _ => return Err(format!("unexpected GroupVersion string: {api_version}")),
        }
    };
    if kind.kind.is_empty() {
        return Err("Object 'Kind' is missing".to_owned());
    }
    if kind.version.is_empty() {
        return Err("Object 'apiVersion' is missing".to_owned());
    }
    Ok(kind)
}

fn watch_event() -> GroupVersionKind {
    GroupVersionKind::new("", "v1", "WatchEvent")
}

/// Decodes without a schema.
fn decode_untyped(from: Encoding, input: &[u8]) -> Result<Value, String> {
    match from {
        Encoding::Json => {
            syntax::check(input)?;
            json::read(&syntax::repair(input)).map_err(|error| error.to_string())
        }
        Encoding::Yaml => yaml::read(input).map_err(|message| yaml::with_prefix(&message)),
        Encoding::Cbor => cbor::read(input),
        // Never called: Protobuf needs a type.
        Encoding::Protobuf => Err("Protobuf cannot be read without a type".to_owned()),
    }
}

/// Encodes without a schema.
fn encode_untyped(to: Encoding, value: Value) -> Vec<u8> {
    match to {
        Encoding::Yaml => yaml::to_yaml(value),
        Encoding::Cbor => cbor::encode(&value),
        Encoding::Json | Encoding::Protobuf => {
            let mut text = json::to_json(&value);
            text.push(b'\n');
            text
        }
    }
}

fn decode_typed(
    registry: &Registry,
    from: Encoding,
    input: &[u8],
    kind: &GroupVersionKind,
) -> Result<Decoded, String> {
    let decoded = match from {
        Encoding::Json => decode_object(input, kind, registry),
        Encoding::Yaml => yaml::decode_object(input, kind, registry),
        Encoding::Cbor => cbor::decode_object(input, kind, registry),
        Encoding::Protobuf => protobuf::decode_object(input, kind, registry),
    };
    decoded.map_err(|error| error.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(from: Encoding, to: Encoding, input: &[u8]) -> Result<Vec<u8>, String> {
        transcode(&Registry::complete().unwrap(), from, to, input)
    }

    fn json(input: &str) -> String {
        String::from_utf8(convert(Encoding::Json, Encoding::Json, input.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn transcode_drops_unknown_fields_and_keeps_empty_lists_where_they_show() {
        assert_eq!(
            json(r#" {"apiVersion":"v1","kind":"Endpoints","subsets":[],"extra":1} "#),
            "{\"kind\":\"Endpoints\",\"apiVersion\":\"v1\",\"metadata\":{\"creationTimestamp\":null}}\n"
        );
        let role = |rules: &str| {
            json(&format!(r#"{{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","rules":{rules}}}"#))
        };
        assert!(role("[]").ends_with("\"rules\":[]}\n"), "an empty list differs from an absent one");
        assert!(role("null").ends_with("\"rules\":null}\n"));
        assert!(json(r#"{"apiVersion":"v1","kind":"PodList"}"#).ends_with("\"items\":null}\n"));
        assert_eq!(
            json(r#"{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":0}"#),
            "{\"kind\":\"DeleteOptions\",\"apiVersion\":\"v1\",\"gracePeriodSeconds\":0}\n"
        );
    }

    #[test]
    fn unknown_kind_is_transcoded_without_a_type() {
        let body = br#"{"kind":"Boat","apiVersion":"sea.example/v1","spec":{"b":[1,2.5,null],"a":"<"}}"#;
        let sorted = "{\"apiVersion\":\"sea.example/v1\",\"kind\":\"Boat\",\"spec\":{\"a\":\"\\u003c\",\"b\":[1,2.5,null]}}\n";
        for through in [Encoding::Json, Encoding::Yaml, Encoding::Cbor] {
            let converted = convert(Encoding::Json, through, body).unwrap();
            let back = convert(through, Encoding::Json, &converted).unwrap();
            assert_eq!(String::from_utf8(back).unwrap(), sorted, "{through:?}");
        }
        let error = convert(Encoding::Json, Encoding::Protobuf, body).unwrap_err();
        assert!(
            error.starts_with("no kind \"Boat\" is registered for version \"sea.example/v1\""),
            "{error}"
        );
    }

    #[test]
    fn watch_event_is_recognized_by_its_fields() {
        let event = br#"{"object":{"b":1,"a":2},"type":"ADDED"}"#;
        for through in [Encoding::Json, Encoding::Yaml, Encoding::Protobuf, Encoding::Cbor] {
            let converted = convert(Encoding::Json, through, event).unwrap();
            let back = convert(through, Encoding::Json, &converted).unwrap();
            let line = "{\"type\":\"ADDED\",\"object\":{\"a\":2,\"b\":1}}\n";
            assert_eq!(String::from_utf8(back).unwrap(), line, "{through:?}");
        }
    }

    #[test]
    fn input_without_kind_is_refused() {
        for (from, body, expected) in [
            (Encoding::Json, &b"{}"[..], "Object 'Kind' is missing"),
            (Encoding::Json, br#"{"kind":"Pod"}"#, "Object 'apiVersion' is missing"),
            (Encoding::Json, b"[]", "the input is no object"),
            (Encoding::Json, b"", "unexpected end of JSON input"),
            (Encoding::Yaml, b"kind: Pod\napiVersion: a/b/c\n", "unexpected GroupVersion string: a/b/c"),
            (Encoding::Cbor, b"\xff", "cbor: unexpected \"break\" code"),
            (Encoding::Protobuf, b"{}", "the input is no object in a Protobuf envelope"),
        ] {
            assert_eq!(convert(from, Encoding::Yaml, body).unwrap_err(), expected);
        }
    }
}
