//! One object from one encoding to another, by its type alone: nothing is defaulted and nothing is validated.
//!
//! What comes out is what decoding into the types of the API and encoding again gives. So fields that the type does
//! not have are gone, an empty list is told from none only where the field shows both, and the text is canonical.

use super::{Decoded, cbor, decode_object, json, syntax, yaml};
use crate::api::schema::encode::{Form, encode_as};
use crate::api::schema::{GroupVersionKind, Registry, TypeId};
use crate::api::value::Value;

/// How an object is written.
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

/// Converts one object. Its own kind and apiVersion say what it is; one of a kind that nobody knows is converted as it
/// is, which Protobuf cannot. The error is the message.
pub fn transcode(registry: &Registry, from: Encoding, to: Encoding, input: &[u8]) -> Result<Vec<u8>, String> {
    let kind = kind_of(from, input)?;
    let Some(ty) = registry.lookup(&kind) else {
        if from == Encoding::Protobuf || to == Encoding::Protobuf {
            let (kind, version) = (&kind.kind, kind.api_version());
            return Err(format!(
                "no kind \"{kind}\" is registered for version \"{version}\", and Protobuf has only registered kinds"
            ));
        }
        return read(from, input).map(|value| written(to, &value));
    };
    let value = decoded(registry, from, input, &kind)?.value;
    match to {
        Encoding::Json | Encoding::Yaml => {
            let mut text = encode_as(registry, ty, &value, Form::Exact);
            if to == Encoding::Yaml {
                return Ok(yaml::to_yaml(&json::read(&text).map_err(|error| error.to_string())?));
            }
            text.push(b'\n');
            Ok(text)
        }
        Encoding::Protobuf => to_protobuf(registry, ty, &value),
        Encoding::Cbor => Ok(cbor::encode_object(registry, ty, &value, Form::Exact)),
    }
}

/// The kind that an object says it is.
fn kind_of(from: Encoding, input: &[u8]) -> Result<GroupVersionKind, String> {
    if from == Encoding::Protobuf {
        return protobuf_kind(input);
    }
    let value = match read(from, input)? {
        value @ Value::Object(_) => value,
        _ => return Err("the input is no object".to_owned()),
    };
    let (kind, api_version) = (value.str("kind"), value.str("apiVersion"));
    if kind.is_empty() {
        return Err("Object 'Kind' is missing".to_owned());
    }
    if api_version.is_empty() {
        return Err("Object 'apiVersion' is missing".to_owned());
    }
    match api_version.matches('/').count() {
        0 => Ok(GroupVersionKind::new("", api_version, kind)),
        1 => {
            let (group, version) = api_version.split_once('/').unwrap_or_default();
            Ok(GroupVersionKind::new(group, version, kind))
        }
        _ => Err(format!("unexpected GroupVersion string: {api_version}")),
    }
}

/// Reads without a schema.
fn read(from: Encoding, input: &[u8]) -> Result<Value, String> {
    match from {
        Encoding::Json => {
            syntax::check(input)?;
            json::read(&syntax::repair(input)).map_err(|error| error.to_string())
        }
        Encoding::Yaml => yaml::read(input).map_err(|why| format!("yaml: {why}")),
        Encoding::Cbor => cbor::read(input),
        Encoding::Protobuf => Err(NO_PROTOBUF.to_owned()),
    }
}

/// Writes without a schema.
fn written(to: Encoding, value: &Value) -> Vec<u8> {
    match to {
        Encoding::Yaml => yaml::to_yaml(value),
        Encoding::Cbor => cbor::encode(value),
        Encoding::Json | Encoding::Protobuf => {
            let mut text = json::to_json(value);
            text.push(b'\n');
            text
        }
    }
}

fn decoded(
    registry: &Registry,
    from: Encoding,
    input: &[u8],
    kind: &GroupVersionKind,
) -> Result<Decoded, String> {
    let decoded = match from {
        Encoding::Json => decode_object(input, kind, registry),
        Encoding::Yaml => yaml::decode_object(input, kind, registry),
        Encoding::Cbor => cbor::decode_object(input, kind, registry),
        Encoding::Protobuf => return Err(NO_PROTOBUF.to_owned()),
    };
    decoded.map_err(|error| error.message)
}

const NO_PROTOBUF: &str = "Protobuf is not built in yet";

fn protobuf_kind(_input: &[u8]) -> Result<GroupVersionKind, String> {
    Err(NO_PROTOBUF.to_owned())
}

fn to_protobuf(_registry: &Registry, _ty: TypeId, _value: &Value) -> Result<Vec<u8>, String> {
    Err(NO_PROTOBUF.to_owned())
}
