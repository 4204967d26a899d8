//! The walk that writes messages: fields by number, from the last to the first, each present or absent as its type says.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::writer::Writer;
use crate::api::codec::json;
use crate::api::schema::{Field, InSlot, List, Other, Registry, Scalar, Struct, Type, TypeId, time};
use crate::api::value::{Object, Value};

/// The room a message gets at first: most objects fit.
const ROOM_BYTES: usize = 4096;

/// Puts the message of a value of type `ty` before what is there.
pub fn write(out: &mut Writer, registry: &Registry, ty: TypeId, value: &Value) {
    Walk { registry, out }.contents(ty, Some(value));
}

/// A writer with the room of a usual object.
pub fn writer() -> Writer {
    Writer::with_room(ROOM_BYTES)
}

struct Walk<'r, 'w> {
    registry: &'r Registry,
    out: &'w mut Writer,
}

impl<'r> Walk<'r, '_> {
    /// The fields of a struct. Those of an inlined type are taken from the same object, which is where JSON has them.
    fn fields(&mut self, structure: &'r Struct, fields: Option<&Object>) {
        let fields = fields.filter(|fields| !fields.is_empty());
        for slot in structure.wire.iter().rev() {
            match slot.what {
                InSlot::Inlined(ty) => {
                    let end = self.out.len();
                    if let Some(inner) = self.registry.structure(ty) {
                        self.fields(inner, fields);
                    }
                    self.out.close(slot.number, end);
                }
                InSlot::Field(at) => {
                    let Some(field) = structure.fields.get(usize::from(at)) else { continue };
                    let value = fields.and_then(|fields| fields.get(&*field.name));
                    self.field(slot.number, field, value.filter(|value| !value.is_null()));
                }
            }
        }
    }

    fn field(&mut self, number: u32, field: &Field, value: Option<&Value>) {
        match (self.registry.get(field.ty), value) {
            (Type::List(List { name: None, item, .. }), _) => {
                for item_value in value.map(Value::items).unwrap_or_default().iter().rev() {
                    self.single(number, *item, Some(item_value));
                }
            }
            (Type::Map(map), Some(Value::Object(entries))) => {
                for (key, value) in entries.iter().rev() {
                    let end = self.out.len();
                    self.single(2, map.value, Some(value));
                    self.out.bytes(1, key.as_bytes());
                    self.out.close(number, end);
                }
            }
            (Type::Map(_) | Type::List(_), None) => {}
            (_, None) if field.pointer => {}
            _ => self.single(number, field.ty, value),
        }
    }

    /// One value with its tag: its zero where there is none, because a value that is no pointer is always written.
    fn single(&mut self, number: u32, ty: TypeId, value: Option<&Value>) {
        let value = value.unwrap_or(&Value::Null);
        match (self.registry.get(ty), value) {
            (Type::Scalar(Scalar::String), _) => {
                self.out.bytes(number, value.as_str().unwrap_or_default().as_bytes());
            }
            (Type::Scalar(Scalar::Int32 | Scalar::Int64), _) => {
                self.out.number(number, value.as_int().unwrap_or_default() as u64);
            }
            (Type::Scalar(Scalar::Bool), _) => {
                self.out.number(number, u64::from(value.as_bool().unwrap_or_default()));
            }
            (Type::Scalar(Scalar::Double), _) => self.out.eight(number, double(value).to_le_bytes()),
            // No bytes and an empty row of bytes differ on the wire.
            (Type::Scalar(Scalar::Bytes), Value::String(text)) => {
                self.out.bytes(number, &STANDARD.decode(text).unwrap_or_default());
            }
            (Type::Scalar(Scalar::Bytes), _) => {}
            _ => {
                let end = self.out.len();
                self.contents(ty, Some(value));
                self.out.close(number, end);
            }
        }
    }

    /// What stands in the message of a value whose type is a message.
    fn contents(&mut self, ty: TypeId, value: Option<&Value>) {
        let value = value.unwrap_or(&Value::Null);
        match self.registry.get(ty) {
            Type::Struct(structure) => self.fields(structure, value.fields()),
            Type::Scalar(scalar) => self.scalar(*scalar, value),
            Type::List(list) => {
                for item in value.items().iter().rev() {
                    self.single(1, list.item, Some(item));
                }
            }
            Type::Either(either) => match (either.other, value) {
                (Other::Bool, Value::Object(_)) => {
                    self.single(2, either.object, Some(value));
                    self.out.number(1, 1);
                }
                (Other::Bool, _) => self.out.number(1, u64::from(value.as_bool().unwrap_or_default())),
                (Other::List(_), Value::Object(_)) => self.single(1, either.object, Some(value)),
                (Other::List(list), _) => {
                    if let Type::List(list) = self.registry.get(list) {
                        for item in value.items().iter().rev() {
                            self.single(2, list.item, Some(item));
                        }
                    }
                }
            },
            // No message is a map.
            Type::Map(_) => {}
        }
    }

    fn scalar(&mut self, scalar: Scalar, value: &Value) {
        match scalar {
            Scalar::Quantity => self.out.bytes(1, value.as_str().unwrap_or("0").as_bytes()),
            Scalar::Time => {
                let seconds = value.as_str().and_then(|text| time::parse_seconds(text).ok());
                self.instant(seconds.map(|seconds| (seconds, 0)));
            }
            Scalar::MicroTime => {
                self.instant(value.as_str().and_then(|text| time::parse_micros(text).ok()));
            }
            Scalar::IntOrString => {
                let text = value.as_str();
                self.out.bytes(3, text.unwrap_or_default().as_bytes());
                self.out.number(2, value.as_int().unwrap_or_default() as u64);
                self.out.number(1, u64::from(text.is_some()));
            }
            Scalar::Raw | Scalar::RawJson => {
                if !value.is_null() {
                    self.out.bytes(1, &json::to_json(value));
                }
            }
            // These are no messages.
            Scalar::String
            | Scalar::Int32
            | Scalar::Int64
            | Scalar::Bool
            | Scalar::Double
            | Scalar::Bytes => {}
        }
    }

    /// Seconds and nanoseconds; nothing at all for the zero time.
    fn instant(&mut self, instant: Option<(i64, u32)>) {
        if let Some((seconds, micros)) = instant.filter(|instant| *instant != (time::ZERO_SECONDS, 0)) {
            self.out.number(2, u64::from(micros) * 1_000);
            self.out.number(1, seconds as u64);
        }
    }
}

fn double(value: &Value) -> f64 {
    match value {
        Value::Float(number) => *number,
        Value::Int(number) => *number as f64,
        _ => 0.0,
    }
}
