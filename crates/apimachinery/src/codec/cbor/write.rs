//! Writes deterministic CBOR: the shortest heads and floats, keys by length and then by bytes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use minicbor::Encoder;
use minicbor::data::Tag;

use super::half;
use crate::schema::encode::{EmptyLists, Print, printed};
use crate::schema::{Other, Registry, Scalar, Struct, Type, TypeId};
use crate::value::{Object, Value};

/// The tag of bytes that become base64 as text.
const BASE64: Tag = Tag::new(22);

/// The output. Writing to memory cannot fail, so the encoder's results are dropped.
pub(super) struct Writer {
    out: Encoder<Vec<u8>>,
}

impl Writer {
    pub(super) fn new() -> Writer {
        Writer { out: Encoder::new(Vec::with_capacity(512)) }
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.out.into_writer()
    }

    /// Appends encoded items, or the beginning of one.
    pub(super) fn append(&mut self, items: &[u8]) {
        self.out.writer_mut().extend_from_slice(items);
    }

    pub(super) fn map(&mut self, pairs: usize) {
        let _ = self.out.map(pairs as u64);
    }

    pub(super) fn array(&mut self, items: usize) {
        let _ = self.out.array(items as u64);
    }

    /// Text is written as bytes, so that readers need not check UTF-8.
    pub(super) fn text(&mut self, text: &str) {
        let _ = self.out.bytes(text.as_bytes());
    }

    /// Any value without a schema.
    pub(super) fn any(&mut self, value: &Value) {
        match value {
            Value::Null => {
                let _ = self.out.null();
            }
            Value::Bool(boolean) => {
                let _ = self.out.bool(*boolean);
            }
            Value::Int(number) => {
                let _ = self.out.i64(*number);
            }
            Value::Float(number) => self.float(*number),
            Value::String(text) => self.text(text),
            Value::Array(items) => {
                self.array(items.len());
                for item in items {
                    self.any(item);
                }
            }
            Value::Object(fields) => {
                self.map(fields.len());
                for (key, value) in sorted(fields) {
                    self.text(key);
                    self.any(value);
                }
            }
        }
    }

    fn float(&mut self, number: f64) {
        if !number.is_finite() {
            let _ = self.out.null();
            return;
        }
        let single = number as f32;
        if let Some(bits) = half::to_bits(number) {
            let [high, low] = bits.to_be_bytes();
            self.append(&[0xf9, high, low]);
        } else if f64::from(single).to_bits() == number.to_bits() {
            let _ = self.out.f32(single);
        } else {
            let _ = self.out.f64(number);
        }
    }

    /// A typed value, with the fields that JSON would have.
    pub(super) fn typed(&mut self, registry: &Registry, ty: TypeId, value: &Value, form: EmptyLists) {
        match (registry.get(ty), value) {
            (Type::Struct(structure), Value::Object(fields)) => {
                self.fields(registry, structure, Some(fields), form, 0);
            }
            (Type::Struct(structure), Value::Null) => self.fields(registry, structure, None, form, 0),
            (Type::List(list), Value::Array(items)) => {
                self.array(items.len());
                for item in items {
                    self.typed(registry, list.item, item, form);
                }
            }
            (Type::Map(map), Value::Object(entries)) => {
                self.map(entries.len());
                for (key, value) in sorted(entries) {
                    self.text(key);
                    self.typed(registry, map.value, value, form);
                }
            }
            (Type::Either(either), Value::Object(_)) => self.typed(registry, either.object, value, form),
            (Type::Either(either), Value::Array(_)) => match either.other {
                Other::List(list) => self.typed(registry, list, value, form),
                Other::Bool => self.any(value),
            },
            (Type::Scalar(Scalar::Bytes), Value::String(text)) => match STANDARD.decode(text) {
                Ok(bytes) => {
                    let _ = self.out.tag(BASE64);
                    let _ = self.out.bytes(&bytes);
                }
                Err(_) => self.text(text),
            },
            (Type::Scalar(Scalar::Double), Value::Int(number)) => self.float(*number as f64),
            _ => self.any(value),
        }
    }

    /// A struct without its first `skipped` fields.
    pub(super) fn fields(
        &mut self,
        registry: &Registry,
        structure: &Struct,
        fields: Option<&Object>,
        form: EmptyLists,
        skipped: usize,
    ) {
        let known = structure.fields.iter().skip(skipped);
        let known = known.map(|field| (&*field.name, field.ty, printed(registry, field, fields, form)));
        let mut entries: Vec<(&str, TypeId, Print<'_>)> =
            known.filter(|(.., print)| !matches!(print, Print::Omit)).collect();
        if let (Some(ty), Some(fields)) = (structure.open, fields) {
            let others = fields.iter().filter(|(name, _)| structure.position(name).is_none());
            entries.extend(others.map(|(name, value)| (name.as_str(), ty, Print::Value(value))));
        }
        entries.sort_unstable_by_key(|(name, ..)| (name.len(), name.as_bytes()));
        self.map(entries.len());
        for (name, ty, print) in entries {
            self.text(name);
            match print {
                Print::Value(value) => self.typed(registry, ty, value, form),
                Print::Zero => self.zero(registry, ty, form),
                Print::Null | Print::Omit => self.any(&Value::Null),
            }
        }
    }

    fn zero(&mut self, registry: &Registry, ty: TypeId, form: EmptyLists) {
        match registry.get(ty) {
            Type::Struct(structure) => self.fields(registry, structure, None, form, 0),
            Type::Scalar(Scalar::String) => self.text(""),
            Type::Scalar(Scalar::Quantity) => self.text("0"),
            Type::Scalar(Scalar::Bool) => self.any(&Value::Bool(false)),
            Type::Scalar(Scalar::Double) => self.float(0.0),
            Type::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::IntOrString) => self.any(&Value::Int(0)),
            _ => self.any(&Value::Null),
        }
    }
}

/// Entries in the order of their encoded keys: the length comes first, so shorter keys do.
fn sorted(entries: &Object) -> Vec<(&String, &Value)> {
    let mut entries: Vec<_> = entries.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| (key.len(), key.as_bytes()));
    entries
}
