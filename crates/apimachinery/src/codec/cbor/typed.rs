//! Decodes CBOR against a type: the counterpart of JSON decoding, with the same results.

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::read::{Fault, Walk, integer, twice};
use super::wellformed::{Head, Left, Major};
use crate::quantity::Quantity;
use crate::schema::decode::{Decoded, store, zero};
use crate::schema::{Field, Other, Registry, Scalar, Struct, Type, TypeId, base64 as lenient};
use crate::time;
use crate::value::{Fields, Value};

/// Decodes a checked body of type `ty`.
pub(super) fn decode(registry: &Registry, ty: TypeId, body: &[u8]) -> Result<Decoded, Fault> {
    let mut typed = Typed { registry, walk: Walk::new(body), unknown: None };
    let value = typed.value(ty, false)?.unwrap_or_else(Value::object);
    let strict = typed.unknown.map(|index| format!("cbor: found unknown field at map element index {index}"));
    Ok(Decoded { value, strict: strict.into_iter().collect() })
}

struct Typed<'r, 'b> {
    registry: &'r Registry,
    walk: Walk<'b>,
    /// The index of the unknown field to report: the first one of a map, and outer maps before inner ones.
    unknown: Option<usize>,
}

/// A key that is no field.
#[derive(PartialEq, Eq, Hash)]
enum Stray {
    Text(Vec<u8>),
    Int(i64),
}

impl Typed<'_, '_> {
    /// The next item. `None` is null, which means absent.
    fn value(&mut self, ty: TypeId, pointer: bool) -> Result<Option<Value>, Fault> {
        if pointer && self.walk.reader.is_null() {
            self.walk.reader.skip()?;
            return Ok(None);
        }
        if let Type::Scalar(scalar) = self.registry.get(ty)
            && scalar.always_printed() | matches!(scalar, Scalar::RawJson | Scalar::Free)
        {
            // The reference decodes these separately, so outer tags have no effect.
            let outer = std::mem::take(&mut self.walk.later);
            let value = self.enclosed(*scalar);
            self.walk.later = outer;
            return value;
        }
        let outer = self.walk.later.len();
        let value = self.walk.tags().and_then(|_| self.untagged(ty));
        self.walk.later.truncate(outer);
        value
    }

    fn untagged(&mut self, ty: TypeId) -> Result<Option<Value>, Fault> {
        let registry = self.registry;
        let head = self.walk.reader.head()?;
        match (registry.get(ty), head.major) {
            (Type::Struct(structure), Major::Map) => self.fields(structure, &head).map(Some),
            (Type::List(list), Major::Array) => self.items(list.item, &head).map(Some),
            (Type::Map(map), Major::Map) => self.entries(map.value, &head).map(Some),
            (Type::Either(either), Major::Map) => match registry.get(either.object) {
                Type::Struct(structure) => self.fields(structure, &head).map(Some),
                _ => self.walk.no_part(&head, &registry.type_name(ty)),
            },
            (Type::Either(either), major) => match (either.other, major) {
                (Other::Bool, Major::Simple) if head.float.is_none() && matches!(head.info, 20 | 21) => {
                    Ok(Some(Value::Bool(head.info == 21)))
                }
                (Other::List(list), Major::Array) => match registry.get(list) {
                    Type::List(list) => self.items(list.item, &head).map(Some),
                    _ => self.walk.no_part(&head, &registry.type_name(ty)),
                },
                _ => self.walk.no_part(&head, &registry.type_name(ty)),
            },
            (Type::Struct(structure), Major::Array) => {
                self.walk.no_part::<Value>(&head, "").ok();
                let more = "cannot decode CBOR array to struct without toarray option".to_owned();
                Err(Fault::explained(head.major, struct_name(structure), more))
            }
            (Type::Struct(structure), _) => self.walk.no_part(&head, &struct_name(structure)),
            (Type::Scalar(scalar), _) => self.scalar(*scalar, &head),
            _ => self.walk.no_part(&head, &registry.type_name(ty)),
        }
    }

    fn scalar(&mut self, scalar: Scalar, head: &Head) -> Result<Option<Value>, Fault> {
        let name = scalar.type_name();
        match (scalar, head.major) {
            (Scalar::String, Major::Bytes | Major::Text) => {
                self.walk.text(head).map(|text| Some(text.into()))
            }
            (Scalar::Bytes, Major::Bytes) => self.bytes(head).map(Some),
            (Scalar::Bytes, Major::Array) => {
                let bytes = self.walk.items(head, |walk| {
                    let head = walk.reader.head()?;
                    match head.major {
                        Major::Unsigned => u8::try_from(head.argument).map_err(|_| {
                            let more = format!("{} overflows uint8", head.argument);
                            Fault::explained(head.major, "uint8", more)
                        }),
                        _ => walk.no_part(&head, "uint8").map(Option::unwrap_or_default),
                    }
                })?;
                Ok(Some(Value::String(STANDARD.encode(bytes))))
            }
            (Scalar::Int32 | Scalar::Int64, Major::Unsigned | Major::Negative) => {
                let most = if head.major == Major::Negative { "Go's int64" } else { name };
                let number = integer(head, name, most)?;
                if scalar == Scalar::Int32 && i32::try_from(number).is_err() {
                    let more = format!("{number} overflows {name}");
                    return Err(Fault::explained(head.major, name, more));
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
            _ => self.walk.no_part(head, name),
        }
    }

    /// The bytes themselves if a tag gives their text encoding, else their base64.
    fn bytes(&mut self, head: &Head) -> Result<Value, Fault> {
        let bytes = self.walk.reader.string(head)?;
        if !self.walk.later.is_empty() {
            return Ok(Value::String(STANDARD.encode(bytes)));
        }
        // Invalid UTF-8 is invalid base64, and each bad byte must stay one character for the position in the message.
        let text: String =
            bytes.iter().map(|byte| if byte.is_ascii() { char::from(*byte) } else { '\x01' }).collect();
        lenient::canonical(&text).map(|text| Value::String(text.into_owned())).map_err(|at| {
            let why = format!("illegal base64 data at input byte {at}");
            Fault::Other(format!("cbor: failed to decode base64 from byte string: {why}"))
        })
    }

    fn enclosed(&mut self, scalar: Scalar) -> Result<Option<Value>, Fault> {
        match scalar {
            Scalar::Raw | Scalar::RawJson | Scalar::Free => {
                if self.walk.reader.is_plain_null() {
                    self.walk.reader.skip()?;
                    return Ok(None);
                }
                let what = if scalar == Scalar::Raw {
                    "failed to transcode RawExtension to JSON"
                } else {
                    "failed to transcode FieldsV1 to JSON: metav1.FieldsV1 cbor invalid"
                };
                let value = self.walk.any().map_err(|fault| Fault::Other(format!("{what}: {fault}")))?;
                Ok(Some(as_json(value)).filter(|value| !value.is_null()))
            }
            Scalar::IntOrString => self.int_or_string().map(Some),
            _ => {
                if self.walk.reader.is_null() {
                    self.walk.reader.skip()?;
                    return Ok(None);
                }
                match self.walk.string()? {
                    Some(text) => parsed(scalar, &text),
                    None => Ok(None),
                }
            }
        }
    }

    fn int_or_string(&mut self) -> Result<Value, Fault> {
        self.walk.tags()?;
        let head = self.walk.reader.head()?;
        match head.major {
            Major::Bytes | Major::Text => self.walk.text(&head).map(Value::String),
            _ => match self.scalar(Scalar::Int32, &head)? {
                Some(number) => Ok(number),
                // Null is decoded as text, because that is tried first.
                None => Ok(Value::String(String::new())),
            },
        }
    }

    fn items(&mut self, ty: TypeId, head: &Head) -> Result<Value, Fault> {
        let mut items = Vec::new();
        let mut fault = None;
        let mut left = Left::of(head);
        while left.next(&mut self.walk.reader) {
            match self.value(ty, false) {
                Ok(item) => items.push(item.unwrap_or_else(|| zero(self.registry, ty))),
                Err(found) => {
                    fault.get_or_insert(found);
                }
            }
        }
        fault.map_or(Ok(Value::Array(items.into())), Err)
    }

    fn entries(&mut self, ty: TypeId, head: &Head) -> Result<Value, Fault> {
        let mut entries = Fields::new();
        let mut fault = None;
        let mut left = Left::of(head);
        let mut index = 0;
        while left.next(&mut self.walk.reader) {
            let entry = match self.walk.string() {
                Ok(key) => self.value(ty, false).map(|value| (key.unwrap_or_default(), value)),
                Err(found) => {
                    self.walk.reader.skip()?;
                    Err(found)
                }
            };
            match entry {
                Ok((key, _)) if entries.contains_key(&key) => {
                    self.walk.pass(left)?;
                    return Err(twice(&key, index));
                }
                Ok((key, value)) => {
                    entries.insert(key, value.unwrap_or_else(|| zero(self.registry, ty)));
                }
                Err(found) => {
                    fault.get_or_insert(found);
                }
            }
            index += 1;
        }
        fault.map_or(Ok(Value::Object(entries.into())), Err)
    }

    fn fields(&mut self, structure: &Struct, head: &Head) -> Result<Value, Fault> {
        let before = self.unknown.take();
        let mut fields = Fields::new();
        let mut seen = HashSet::new();
        let mut strays = HashSet::new();
        let (mut own, mut fault) = (None, None);
        let mut left = Left::of(head);
        let mut index = 0;
        while left.next(&mut self.walk.reader) {
            let found = match self.key(structure) {
                Ok(Ok((at, field))) if seen.insert(at) => self.field(structure, field, &mut fields),
                Ok(Ok((_, field))) => return self.repeated(&field.name, index, left),
                Ok(Err(Stray::Text(name))) if structure.open.is_some() => {
                    let name = String::from_utf8_lossy(&name).into_owned();
                    if fields.contains_key(&name) {
                        return self.repeated(&name, index, left);
                    }
                    self.walk.any().map(|value| drop(fields.insert(name, as_json(value))))
                }
                Ok(Err(stray)) => {
                    own.get_or_insert(index);
                    let name = match &stray {
                        Stray::Text(text) => String::from_utf8_lossy(text).into_owned(),
                        Stray::Int(number) => number.to_string(),
                    };
                    if !strays.insert(stray) {
                        return self.repeated(&name, index, left);
                    }
                    self.walk.reader.skip().map_err(Fault::Other)
                }
                Err(found) => {
                    self.walk.reader.skip()?;
                    Err(found)
                }
            };
            if let Err(found) = found {
                fault.get_or_insert(found);
            }
            index += 1;
        }
        self.unknown = before.or(own).or(self.unknown);
        fault.map_or(Ok(Value::Object(fields.into())), Err)
    }

    fn field(&mut self, structure: &Struct, field: &Field, fields: &mut Fields) -> Result<(), Fault> {
        match self.value(field.ty, field.pointer) {
            Ok(value) => {
                store(self.registry, fields, field, value, false, false);
                Ok(())
            }
            Err(Fault::Type { found, wanted, more, .. }) => {
                let field = Some(format!("{}.{}", struct_name(structure), field.name));
                Err(Fault::Type { found, wanted, field, more })
            }
            Err(other) => Err(other),
        }
    }

    fn repeated(&mut self, name: &str, index: usize, left: Left) -> Result<Value, Fault> {
        self.walk.reader.skip()?;
        self.walk.pass(left)?;
        Err(twice(name, index))
    }

    /// The field of the next key, or a key without a field.
    fn key<'s>(&mut self, structure: &'s Struct) -> Result<Result<(usize, &'s Field), Stray>, Fault> {
        let major = self.walk.reader.major();
        if matches!(major, Major::Tag | Major::Array | Major::Map | Major::Simple) {
            self.walk.reader.skip()?;
            let more = format!("map key is of type {major} and cannot be used to match struct field name");
            return Err(Fault::explained(major, "string", more));
        }
        let head = self.walk.reader.head()?;
        if matches!(major, Major::Unsigned | Major::Negative) {
            return integer(&head, "int64", "Go's int64").map(|number| Err(Stray::Int(number)));
        }
        let bytes = self.walk.reader.string(&head)?;
        match std::str::from_utf8(&bytes) {
            Err(_) if major == Major::Text => Err(Fault::Other("cbor: invalid UTF-8 string".to_owned())),
            Err(_) => Ok(Err(Stray::Text(bytes.into_owned()))),
            Ok(name) => {
                let at = structure.position(name);
                let found = at.and_then(|at| Some((at, structure.fields.get(at)?)));
                Ok(found.ok_or_else(|| Stray::Text(bytes.into_owned())))
            }
        }
    }
}

/// The type name in errors. Unlike in JSON, the struct with only kind and apiVersion has one here.
fn struct_name(structure: &Struct) -> String {
    if structure.name.is_empty() { "v1.TypeMeta".to_owned() } else { structure.type_name() }
}

/// A quantity or a time from its text.
fn parsed(scalar: Scalar, text: &str) -> Result<Option<Value>, Fault> {
    let printed = match scalar {
        Scalar::Quantity => Quantity::canonical(text.trim()).map(Some).map_err(str::to_owned),
        Scalar::Time => time::parse_seconds(text)
            .map(|seconds| (seconds != time::ZERO_SECONDS).then(|| time::format_seconds(seconds))),
        _ => time::parse_micros(text).map(|(seconds, micros)| {
            ((seconds, micros) != (time::ZERO_SECONDS, 0)).then(|| time::format_micros(seconds, micros))
        }),
    };
    printed.map(|text| text.map(Value::String)).map_err(Fault::Other)
}

/// The value as it would be after a round trip through JSON, which does not tell 1.0 from 1.
fn as_json(value: Value) -> Value {
    match value {
        Value::Float(number) if number.trunc() == number && (-WHOLE..WHOLE).contains(&number) => {
            Value::Int(number as i64)
        }
        Value::Array(items) => Value::Array(items.into_iter().map(as_json).collect()),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(key, value)| (key, as_json(value))).collect())
        }
        other => other,
    }
}

/// The smallest double above all 64-bit integers.
const WHOLE: f64 = 9_223_372_036_854_775_808.0;
