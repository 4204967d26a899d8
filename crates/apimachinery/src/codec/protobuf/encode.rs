//! Encodes messages: fields by number, from last to first, each present or absent as its type requires.

use std::borrow::Cow;
use std::marker::PhantomData;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::source::Source;
use super::writer::Writer;
use crate::schema::{Either, Field, List, Other, Registry, Scalar, Struct, Type, TypeId, WireContent};
use crate::time;

/// The initial buffer of a message: most objects fit.
const INITIAL_BYTES: usize = 4096;
/// The usual number of fields in progress: those of all structs from the outermost to the innermost.
const USUAL_FIELDS: usize = 256;

/// Prepends the message of a value of type `ty`.
pub fn write<'a>(out: &mut Writer, registry: &Registry, ty: TypeId, value: impl Source<'a>) {
    let values = Vec::with_capacity(USUAL_FIELDS);
    MessageEncoder { registry, out, values, lifetime: PhantomData }.contents(ty, Some(value));
}

/// A writer with a buffer that most objects fit into.
pub fn writer() -> Writer {
    Writer::with_capacity(INITIAL_BYTES)
}

struct MessageEncoder<'r, 'w, 'a, S> {
    registry: &'r Registry,
    out: &'w mut Writer,
    /// The field values of all structs in progress, by position: the keys of the object are looked up once, and not the fields of
    /// the type, which are many more.
    values: Vec<Option<S>>,
    lifetime: PhantomData<&'a ()>,
}

impl<'r, 'a, S: Source<'a>> MessageEncoder<'r, '_, 'a, S> {
    fn structure(&mut self, structure: &'r Struct, value: Option<S>) {
        let start = self.values.len();
        self.values.resize(start + structure.fields.len(), None);
        for (name, value) in value.into_iter().flat_map(S::entries_back) {
            let slot = structure.position(&name).and_then(|index| self.values.get_mut(start + index));
            if let Some(slot) = slot
                && !value.is_null()
            {
                *slot = Some(value);
            }
        }
        self.fields(structure, start);
        self.values.truncate(start);
    }

    /// Writes the fields of a struct whose values begin at index `start`.
    fn fields(&mut self, structure: &'r Struct, start: usize) {
        for slot in structure.wire.iter().rev() {
            match slot.content {
                WireContent::Inlined(ty, offset) => {
                    let end = self.out.len();
                    if let Some(inner) = self.registry.structure(ty) {
                        self.fields(inner, start + usize::from(offset));
                    }
                    self.out.close(slot.number, end);
                }
                WireContent::Field(index) => {
                    let index = usize::from(index);
                    if let Some(field) = structure.fields.get(index) {
                        let value = self.values.get(start + index).copied().flatten();
                        self.field(slot.number, field, value);
                    }
                }
            }
        }
    }

    fn field(&mut self, number: u32, field: &Field, value: Option<S>) {
        match (self.registry.get(field.ty), value) {
            (_, None) if field.pointer => {}
            (Type::Map(_) | Type::List(_), None) => {}
            (Type::List(List { name: None, item, .. }), Some(value)) => {
                for value in value.items_back() {
                    self.single(number, *item, Some(value));
                }
            }
            (Type::Map(map), Some(value)) => {
                for (key, value) in value.entries_back() {
                    let end = self.out.len();
                    self.single(2, map.value, Some(value));
                    self.out.bytes(1, key.as_bytes());
                    self.out.close(number, end);
                }
            }
            _ => self.single(number, field.ty, value),
        }
    }

    /// One value with its tag: its zero if absent, because non-pointer values are always written.
    fn single(&mut self, number: u32, ty: TypeId, value: Option<S>) {
        match self.registry.get(ty) {
            Type::Scalar(Scalar::String) => self.out.bytes(number, text(value).as_bytes()),
            Type::Scalar(Scalar::Int32 | Scalar::Int64) => self.out.number(number, integer(value)),
            Type::Scalar(Scalar::Bool) => self.out.number(number, boolean(value)),
            Type::Scalar(Scalar::Double) => {
                let double = value.and_then(S::double).unwrap_or_default();
                self.out.eight(number, double.to_le_bytes());
            }
            Type::Scalar(Scalar::Bytes) => {
                // Absent and empty bytes differ in the encoding.
                if let Some(text) = value.and_then(S::text) {
                    self.out.bytes(number, &STANDARD.decode(&*text).unwrap_or_default());
                }
            }
            _ => {
                let end = self.out.len();
                self.contents(ty, value);
                self.out.close(number, end);
            }
        }
    }

    /// The contents of a value whose type is a message.
    fn contents(&mut self, ty: TypeId, value: Option<S>) {
        match self.registry.get(ty) {
            Type::Struct(structure) => self.structure(structure, value),
            Type::Scalar(scalar) => self.scalar(*scalar, value),
            Type::List(list) => self.items(1, list.item, value),
            Type::Either(either) => self.either(*either, value),
            // No message is a map.
            Type::Map(_) => {}
        }
    }

    fn items(&mut self, number: u32, item: TypeId, value: Option<S>) {
        for value in value.into_iter().flat_map(S::items_back) {
            self.single(number, item, Some(value));
        }
    }

    fn either(&mut self, either: Either, value: Option<S>) {
        let is_object = value.is_some_and(S::is_object);
        match either.other {
            Other::Bool if is_object => {
                self.single(2, either.object, value);
                self.out.number(1, 1);
            }
            Other::Bool => self.out.number(1, boolean(value)),
            Other::List(_) if is_object => self.single(1, either.object, value),
            Other::List(list) => {
                if let Type::List(list) = self.registry.get(list) {
                    self.items(2, list.item, value);
                }
            }
        }
    }

    fn scalar(&mut self, scalar: Scalar, value: Option<S>) {
        match scalar {
            Scalar::Quantity => {
                let quantity = value.and_then(S::text).unwrap_or(Cow::Borrowed("0"));
                self.out.bytes(1, quantity.as_bytes());
            }
            Scalar::Time => {
                let seconds = value.and_then(S::text).and_then(|text| time::parse_seconds(&text).ok());
                self.instant(seconds.map(|seconds| (seconds, 0)));
            }
            Scalar::MicroTime => {
                self.instant(value.and_then(S::text).and_then(|text| time::parse_micros(&text).ok()));
            }
            Scalar::IntOrString => {
                let text = value.and_then(S::text);
                self.out.bytes(3, text.as_deref().unwrap_or_default().as_bytes());
                self.out.number(2, integer(value));
                self.out.number(1, u64::from(text.is_some()));
            }
            Scalar::Raw | Scalar::RawJson | Scalar::Free => {
                if let Some(value) = value.filter(|value| !value.is_null()) {
                    self.out.bytes(1, &value.json());
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

    /// Seconds and nanoseconds; nothing for the zero time.
    fn instant(&mut self, instant: Option<(i64, u32)>) {
        if let Some((seconds, micros)) = instant.filter(|instant| *instant != (time::ZERO_SECONDS, 0)) {
            self.out.number(2, u64::from(micros) * 1_000);
            self.out.number(1, seconds as u64);
        }
    }
}

fn text<'a>(value: Option<impl Source<'a>>) -> Cow<'a, str> {
    value.and_then(Source::text).unwrap_or_default()
}

/// The encoding of an integer: negative ones have all 64 bits.
fn integer<'a>(value: Option<impl Source<'a>>) -> u64 {
    value.and_then(Source::integer).unwrap_or_default() as u64
}

fn boolean<'a>(value: Option<impl Source<'a>>) -> u64 {
    u64::from(value.and_then(Source::boolean).unwrap_or_default())
}
