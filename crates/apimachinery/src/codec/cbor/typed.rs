//! Decodes CBOR against a type: the counterpart of JSON decoding, with the same results.

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::read::{Fault, ItemDecoder, duplicate_key, integer};
use super::wellformed::{Head, Major, Remaining};
use crate::quantity::Quantity;
use crate::schema::decode::{Decoded, store, zero};
use crate::schema::{Field, Other, Registry, Scalar, Struct, Type, TypeId, base64 as lenient};
use crate::time;
use crate::value::{Fields, Value};

/// Decodes a checked body of type `ty`.
pub(super) fn decode(registry: &Registry, ty: TypeId, body: &[u8]) -> Result<Decoded, Fault> {
    let mut decoder = TypedDecoder { registry, decoder: ItemDecoder::new(body), unknown: None };
    let value = decoder.value(ty, false)?.unwrap_or_else(Value::object);
    let strict =
        decoder.unknown.map(|index| format!("cbor: found unknown field at map element index {index}"));
    Ok(Decoded { value, strict: strict.into_iter().collect() })
}

struct TypedDecoder<'r, 'b> {
    registry: &'r Registry,
    decoder: ItemDecoder<'b>,
    /// The index of the unknown field to report: the first one of a map, and outer maps before inner ones.
    unknown: Option<usize>,
}

/// A key that is not a field of the struct.
#[derive(PartialEq, Eq, Hash)]
enum UnknownKey {
    Text(Vec<u8>),
    Int(i64),
}

impl TypedDecoder<'_, '_> {
    /// The next item. `None` is null, which means absent.
    fn value(&mut self, ty: TypeId, pointer: bool) -> Result<Option<Value>, Fault> {
        if pointer && self.decoder.reader.is_null() {
            self.decoder.reader.skip()?;
            return Ok(None);
        }
        if let Type::Scalar(scalar) = self.registry.get(ty)
            && scalar.always_printed() | matches!(scalar, Scalar::RawJson | Scalar::Free)
        {
            // The reference decodes these separately, so outer tags have no effect.
            let outer = std::mem::take(&mut self.decoder.tagged_encodings);
            let value = self.self_contained(*scalar);
            self.decoder.tagged_encodings = outer;
            return value;
        }
        let outer = self.decoder.tagged_encodings.len();
        let value = self.decoder.tags().and_then(|_| self.untagged(ty));
        self.decoder.tagged_encodings.truncate(outer);
        value
    }

    fn untagged(&mut self, ty: TypeId) -> Result<Option<Value>, Fault> {
        let registry = self.registry;
        let head = self.decoder.reader.head()?;
        match (registry.get(ty), head.major) {
            (Type::Struct(structure), Major::Map) => self.fields(structure, &head).map(Some),
            (Type::List(list), Major::Array) => self.items(list.item, &head).map(Some),
            (Type::Map(map), Major::Map) => self.entries(map.value, &head).map(Some),
            (Type::Either(either), Major::Map) => match registry.get(either.object) {
                Type::Struct(structure) => self.fields(structure, &head).map(Some),
                _ => self.decoder.null_or_mismatch(&head, &registry.type_name(ty)),
            },
            (Type::Either(either), major) => match (either.other, major) {
                (Other::Bool, Major::Simple) if head.float.is_none() && matches!(head.info, 20 | 21) => {
                    Ok(Some(Value::Bool(head.info == 21)))
                }
                (Other::List(list), Major::Array) => match registry.get(list) {
                    Type::List(list) => self.items(list.item, &head).map(Some),
                    _ => self.decoder.null_or_mismatch(&head, &registry.type_name(ty)),
                },
                _ => self.decoder.null_or_mismatch(&head, &registry.type_name(ty)),
            },
            (Type::Struct(structure), Major::Array) => {
                self.decoder.null_or_mismatch::<Value>(&head, "").ok();
                let detail = "cannot decode CBOR array to struct without toarray option".to_owned();
                Err(Fault::mismatch_with_detail(head.major, struct_name(structure), detail))
            }
            (Type::Struct(structure), _) => self.decoder.null_or_mismatch(&head, &struct_name(structure)),
            (Type::Scalar(scalar), _) => self.scalar(*scalar, &head),
            _ => self.decoder.null_or_mismatch(&head, &registry.type_name(ty)),
        }
    }

    fn scalar(&mut self, scalar: Scalar, head: &Head) -> Result<Option<Value>, Fault> {
        let name = scalar.type_name();
        match (scalar, head.major) {
            (Scalar::String, Major::Bytes | Major::Text) => {
                self.decoder.text(head).map(|text| Some(text.into()))
            }
            (Scalar::Bytes, Major::Bytes) => self.bytes(head).map(Some),
            (Scalar::Bytes, Major::Array) => {
                let bytes = self.decoder.items(head, |items| {
                    let head = items.reader.head()?;
                    match head.major {
                        Major::Unsigned => u8::try_from(head.argument).map_err(|_| {
                            let detail = format!("{} overflows uint8", head.argument);
                            Fault::mismatch_with_detail(head.major, "uint8", detail)
                        }),
                        _ => items.null_or_mismatch(&head, "uint8").map(Option::unwrap_or_default),
                    }
                })?;
                Ok(Some(Value::String(STANDARD.encode(bytes))))
            }
            (Scalar::Int32 | Scalar::Int64, Major::Unsigned | Major::Negative) => {
                let overflown = if head.major == Major::Negative { "Go's int64" } else { name };
                let number = integer(head, name, overflown)?;
                if scalar == Scalar::Int32 && i32::try_from(number).is_err() {
                    let detail = format!("{number} overflows {name}");
                    return Err(Fault::mismatch_with_detail(head.major, name, detail));
                }
                Ok(Some(Value::Int(number)))
            }
            (Scalar::Double, Major::Unsigned) => Ok(Some(Value::Float(head.argument as f64))),
            (Scalar::Double, Major::Negative) => {
                integer(head, name, "Go's int64").map(|number| Some(Value::Float(number as f64)))
            }
            (Scalar::Double, Major::Simple) if head.float.is_some() => Ok(head.float.map(Value::Float)),
            (Scalar::Bool, Major::Simple) if head.float.is_none() && matches!(head.info, 20 | 21) => {
                Ok(Some(Value::Bool(head.info == 21)))
            }
            _ => self.decoder.null_or_mismatch(head, name),
        }
    }

    /// The base64 of bytes: tagged ones are the data itself, others are base64 already.
    fn bytes(&mut self, head: &Head) -> Result<Value, Fault> {
        let bytes = self.decoder.reader.string(head)?;
        if !self.decoder.tagged_encodings.is_empty() {
            return Ok(Value::String(STANDARD.encode(bytes)));
        }
        // Invalid UTF-8 is invalid base64, and each bad byte must stay one character for the position in the message.
        let text: String =
            bytes.iter().map(|byte| if byte.is_ascii() { char::from(*byte) } else { '\x01' }).collect();
        lenient::canonical(&text).map(|text| Value::String(text.into_owned())).map_err(|position| {
            let error = format!("illegal base64 data at input byte {position}");
            Fault::Other(format!("cbor: failed to decode base64 from byte string: {error}"))
        })
    }

    fn self_contained(&mut self, scalar: Scalar) -> Result<Option<Value>, Fault> {
        match scalar {
            Scalar::Raw | Scalar::RawJson | Scalar::Free => {
                if self.decoder.reader.is_plain_null() {
                    self.decoder.reader.skip()?;
                    return Ok(None);
                }
                let context = if scalar == Scalar::Raw {
                    "failed to transcode RawExtension to JSON"
                } else {
                    "failed to transcode FieldsV1 to JSON: metav1.FieldsV1 cbor invalid"
                };
                let value =
                    self.decoder.any().map_err(|fault| Fault::Other(format!("{context}: {fault}")))?;
                Ok(Some(normalize_floats(value)).filter(|value| !value.is_null()))
            }
            Scalar::IntOrString => self.int_or_string().map(Some),
            _ => {
                if self.decoder.reader.is_null() {
                    self.decoder.reader.skip()?;
                    return Ok(None);
                }
                match self.decoder.string()? {
                    Some(text) => parse_text(scalar, &text),
                    None => Ok(None),
                }
            }
        }
    }

    fn int_or_string(&mut self) -> Result<Value, Fault> {
        self.decoder.tags()?;
        let head = self.decoder.reader.head()?;
        match head.major {
            Major::Bytes | Major::Text => self.decoder.text(&head).map(Value::String),
            _ => match self.scalar(Scalar::Int32, &head)? {
                Some(number) => Ok(number),
                // Null is decoded as text, because that is tried first.
                None => Ok(Value::String(String::new())),
            },
        }
    }

    fn items(&mut self, ty: TypeId, head: &Head) -> Result<Value, Fault> {
        let mut items = Vec::new();
        let mut first_fault = None;
        let mut remaining = Remaining::from_head(head);
        while remaining.next(&mut self.decoder.reader) {
            match self.value(ty, false) {
                Ok(item) => items.push(item.unwrap_or_else(|| zero(self.registry, ty))),
                Err(error) => {
                    first_fault.get_or_insert(error);
                }
            }
        }
        first_fault.map_or(Ok(Value::Array(items.into())), Err)
    }

    fn entries(&mut self, ty: TypeId, head: &Head) -> Result<Value, Fault> {
        let mut entries = Fields::new();
        let mut first_fault = None;
        let mut remaining = Remaining::from_head(head);
        let mut index = 0;
        while remaining.next(&mut self.decoder.reader) {
            let entry = match self.decoder.string() {
                Ok(key) => self.value(ty, false).map(|value| (key.unwrap_or_default(), value)),
                Err(error) => {
                    self.decoder.reader.skip()?;
                    Err(error)
                }
            };
            match entry {
                Ok((key, _)) if entries.contains_key(&key) => {
                    self.decoder.skip_entries(remaining)?;
                    return Err(duplicate_key(&key, index));
                }
                Ok((key, value)) => {
                    entries.insert(key, value.unwrap_or_else(|| zero(self.registry, ty)));
                }
                Err(error) => {
                    first_fault.get_or_insert(error);
                }
            }
            index += 1;
        }
        first_fault.map_or(Ok(Value::Object(entries.into())), Err)
    }

    fn fields(&mut self, structure: &Struct, head: &Head) -> Result<Value, Fault> {
        let before = self.unknown.take();
        let mut fields = Fields::new();
        let mut seen = HashSet::new();
        let mut unknown_keys = HashSet::new();
        let (mut first_unknown, mut first_fault) = (None, None);
        let mut remaining = Remaining::from_head(head);
        let mut index = 0;
        while remaining.next(&mut self.decoder.reader) {
            let result = match self.key(structure) {
                Ok(Ok((position, field))) if seen.insert(position) => {
                    self.field(structure, field, &mut fields)
                }
                Ok(Ok((_, field))) => return self.duplicate_field(&field.name, index, remaining),
                Ok(Err(UnknownKey::Text(name))) if structure.open.is_some() => {
                    let name = String::from_utf8_lossy(&name).into_owned();
                    if fields.contains_key(&name) {
                        return self.duplicate_field(&name, index, remaining);
                    }
                    self.decoder.any().map(|value| drop(fields.insert(name, normalize_floats(value))))
                }
                Ok(Err(key)) => {
                    first_unknown.get_or_insert(index);
                    let name = match &key {
                        UnknownKey::Text(text) => String::from_utf8_lossy(text).into_owned(),
                        UnknownKey::Int(number) => number.to_string(),
                    };
                    if !unknown_keys.insert(key) {
                        return self.duplicate_field(&name, index, remaining);
                    }
                    self.decoder.reader.skip().map_err(Fault::Other)
                }
                Err(error) => {
                    self.decoder.reader.skip()?;
                    Err(error)
                }
            };
            if let Err(error) = result {
                first_fault.get_or_insert(error);
            }
            index += 1;
        }
        self.unknown = before.or(first_unknown).or(self.unknown);
        first_fault.map_or(Ok(Value::Object(fields.into())), Err)
    }

    fn field(&mut self, structure: &Struct, field: &Field, fields: &mut Fields) -> Result<(), Fault> {
        match self.value(field.ty, field.pointer) {
            Ok(value) => {
                store(self.registry, fields, field, value, false, false);
                Ok(())
            }
            Err(Fault::Type { actual, expected, detail, .. }) => {
                let field = Some(format!("{}.{}", struct_name(structure), field.name));
                Err(Fault::Type { actual, expected, field, detail })
            }
            Err(other) => Err(other),
        }
    }

    fn duplicate_field(&mut self, name: &str, index: usize, remaining: Remaining) -> Result<Value, Fault> {
        self.decoder.reader.skip()?;
        self.decoder.skip_entries(remaining)?;
        Err(duplicate_key(name, index))
    }

    /// The field of the next key, or a key without a field.
    fn key<'s>(&mut self, structure: &'s Struct) -> Result<Result<(usize, &'s Field), UnknownKey>, Fault> {
        let major = self.decoder.reader.major();
        if matches!(major, Major::Tag | Major::Array | Major::Map | Major::Simple) {
            self.decoder.reader.skip()?;
            let detail = format!("map key is of type {major} and cannot be used to match struct field name");
            return Err(Fault::mismatch_with_detail(major, "string", detail));
        }
        let head = self.decoder.reader.head()?;
        if matches!(major, Major::Unsigned | Major::Negative) {
            return integer(&head, "int64", "Go's int64").map(|number| Err(UnknownKey::Int(number)));
        }
        let bytes = self.decoder.reader.string(&head)?;
        match std::str::from_utf8(&bytes) {
            Err(_) if major == Major::Text => Err(Fault::Other("cbor: invalid UTF-8 string".to_owned())),
            Err(_) => Ok(Err(UnknownKey::Text(bytes.into_owned()))),
            Ok(name) => {
                let position = structure.position(name);
                let field = position.and_then(|position| Some((position, structure.fields.get(position)?)));
                Ok(field.ok_or_else(|| UnknownKey::Text(bytes.into_owned())))
            }
        }
    }
}

/// The type name in errors. Unlike in JSON, the struct with only kind and apiVersion has one here.
fn struct_name(structure: &Struct) -> String {
    if structure.name.is_empty() { "v1.TypeMeta".to_owned() } else { structure.type_name() }
}

/// A quantity or a time from its text.
fn parse_text(scalar: Scalar, text: &str) -> Result<Option<Value>, Fault> {
    let text = match scalar {
        Scalar::Quantity => Quantity::canonical(text.trim()).map(Some).map_err(str::to_owned),
        Scalar::Time => time::parse_seconds(text)
            .map(|seconds| (seconds != time::ZERO_SECONDS).then(|| time::format_seconds(seconds))),
        _ => time::parse_micros(text).map(|(seconds, micros)| {
            ((seconds, micros) != (time::ZERO_SECONDS, 0)).then(|| time::format_micros(seconds, micros))
        }),
    };
    text.map(|text| text.map(Value::String)).map_err(Fault::Other)
}

/// The value as it would be after a round trip through JSON, which does not distinguish 1.0 from 1.
fn normalize_floats(value: Value) -> Value {
    match value {
        Value::Float(number) if number.trunc() == number && (-INT_LIMIT..INT_LIMIT).contains(&number) => {
            Value::Int(number as i64)
        }
        Value::Array(items) => Value::Array(items.into_iter().map(normalize_floats).collect()),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(key, value)| (key, normalize_floats(value))).collect())
        }
        other => other,
    }
}

/// The smallest double above all 64-bit integers.
const INT_LIMIT: f64 = 9_223_372_036_854_775_808.0;
