//! Decodes JSON against a type, in one pass over the tokens that also collects the findings of strict decoding.
//!
//! The result is canonical: absent and zero are the same where the type does not distinguish them, quantities, times and bytes
//! are normalized, unknown fields are dropped. Equivalent bodies give equal values.

use std::fmt;

use serde::Deserialize as _;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::notes::{Notes, ProblemKind};
use super::{Either, Field, Other, Registry, Scalar, Struct, Type, TypeId, base64};
use crate::json::{self, ParseObserver as _};
use crate::quantity::Quantity;
use crate::time;
use crate::value::{ArrayBuilder, Fields, FieldsBuilder, Value};

/// A decoded body.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decoded {
    /// The canonical value.
    pub value: Value,
    /// One message per unknown or duplicate field, in order.
    pub strict: Vec<String>,
}

/// The reason why a body cannot be decoded.
#[derive(Clone, Debug, PartialEq)]
pub enum DecodeFailure {
    /// The tokenizer failed: the text is no JSON, or one of the few that it does not accept.
    Tokens,
    /// The text is JSON, but has a value of the wrong type, which the message names.
    Type(String),
}

/// Decodes a body of type `ty`.
pub fn decode(registry: &Registry, ty: TypeId, body: &[u8]) -> Result<Decoded, DecodeFailure> {
    // UTF-8 is checked once for the whole text, and not for each part.
    let text = std::str::from_utf8(body).map_err(|_| DecodeFailure::Tokens)?;
    let mut notes = Notes::new(registry);
    let mut tokens = serde_json::Deserializer::from_str(text);
    let value = Seed { notes: &mut notes, ty, given: false }.deserialize(&mut tokens);
    if let Some(fatal) = notes.fatal {
        return Err(DecodeFailure::Type(fatal.to_string()));
    }
    let value = value.and_then(|value| tokens.end().map(|()| value)).map_err(|_| DecodeFailure::Tokens)?;
    if let Some(saved) = notes.saved {
        return Err(DecodeFailure::Type(saved.to_string()));
    }
    let value = value.unwrap_or_else(Value::object);
    let mut strict: Vec<String> = Vec::with_capacity(notes.findings.len());
    for finding in notes.findings {
        let message = finding.to_string();
        if !strict.contains(&message) {
            strict.push(message);
        }
    }
    Ok(Decoded { value, strict })
}

/// Decodes one value of one type. `None` is null, which means absent, or a mismatch that was recorded.
struct Seed<'n, 'r> {
    notes: &'n mut Notes<'r>,
    ty: TypeId,
    /// Whether empty differs from absent here.
    given: bool,
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, tokens: D) -> Result<Option<Value>, D::Error> {
        match self.notes.registry.get(self.ty) {
            Type::Scalar(Scalar::Raw | Scalar::RawJson) => {
                let value = json::Any(&mut json::NoObserver).deserialize(tokens)?;
                Ok(Some(value).filter(|value| !value.is_null()))
            }
            Type::Scalar(Scalar::Free) => json::Any(self.notes).deserialize(tokens).map(Some),
            Type::Scalar(Scalar::String | Scalar::Bool | Scalar::Bytes) => tokens.deserialize_any(self),
            // These need the text of the token: numbers for messages, and quantities because they are no JSON numbers.
            Type::Scalar(scalar) => {
                let raw = <&RawValue>::deserialize(tokens)?;
                self.scalar(*scalar, raw.get())
            }
            Type::Struct(_) | Type::List(_) | Type::Map(_) | Type::Either(_) => tokens.deserialize_any(self),
        }
    }
}

impl<'r> Seed<'_, 'r> {
    fn mismatch<T>(self, actual: impl Into<String>) -> Option<T> {
        self.notes.mismatch(actual, self.ty);
        None
    }

    fn scalar<E: serde::de::Error>(self, scalar: Scalar, raw: &str) -> Result<Option<Value>, E> {
        if raw == "null" {
            return Ok(None);
        }
        match scalar {
            Scalar::Int32 | Scalar::Int64 => Ok(match integer(scalar, raw) {
                Ok(number) => Some(Value::Int(number)),
                Err(actual) => self.mismatch(actual),
            }),
            Scalar::Double => Ok(match raw.parse::<f64>() {
                Ok(number) if number.is_finite() && is_number(raw) => Some(Value::Float(number)),
                _ => self.mismatch(token_type(raw, true)),
            }),
            Scalar::Quantity => {
                let text = raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"')).unwrap_or(raw);
                match Quantity::canonical(text.trim()) {
                    Ok(text) => Ok(Some(Value::String(text))),
                    Err(message) => Err(self.notes.stop(ProblemKind::Other(message.to_owned()))),
                }
            }
            Scalar::IntOrString => match unquote(raw) {
                Some(text) => Ok(Some(Value::String(text?))),
                None => match integer(Scalar::Int32, raw) {
                    Ok(number) => Ok(Some(Value::Int(number))),
                    Err(actual) => {
                        Err(self.notes.stop(ProblemKind::Mismatch { actual, expected: "int32".to_owned() }))
                    }
                },
            },
            Scalar::Time | Scalar::MicroTime => self.instant(scalar, raw),
            // The caller decodes these differently.
            _ => Ok(None),
        }
    }

    fn instant<E: serde::de::Error>(self, scalar: Scalar, raw: &str) -> Result<Option<Value>, E> {
        let Some(text) = unquote(raw) else {
            let (actual, expected) = (token_type(raw, false), "string".to_owned());
            return Err(self.notes.stop(ProblemKind::Mismatch { actual, expected }));
        };
        let text = text?;
        let text = if scalar == Scalar::Time {
            time::parse_seconds(&text)
                .map(|seconds| (seconds != time::ZERO_SECONDS).then(|| time::format_seconds(seconds)))
        } else {
            time::parse_micros(&text).map(|(seconds, micros)| {
                ((seconds, micros) != (time::ZERO_SECONDS, 0)).then(|| time::format_micros(seconds, micros))
            })
        };
        match text {
            // A null time is not quite absent if the field prints it.
            Ok(text) => Ok(Some(text.map_or(Value::Null, Value::String))),
            Err(message) => Err(self.notes.stop(ProblemKind::Other(message))),
        }
    }

    /// The reference decodes alternatives separately: unknown fields inside are not reported, and an error inside concerns the
    /// whole.
    fn decode_separately<E: serde::de::Error>(
        self,
        ty: TypeId,
        read: impl FnOnce(Seed<'_, 'r>) -> Result<Option<Value>, E>,
    ) -> Result<Option<Value>, E> {
        let Seed { notes, given, .. } = self;
        let findings = notes.findings.len();
        let saved = notes.saved.take();
        let value = read(Seed { notes: &mut *notes, ty, given });
        notes.findings.truncate(findings);
        let problem = notes.fatal.take().or_else(|| notes.saved.take());
        notes.saved = saved;
        match problem {
            Some(problem) => Err(notes.stop(problem.kind)),
            None => value,
        }
    }

    /// A token that matches neither alternative.
    fn neither<E: serde::de::Error>(self, either: Either) -> Result<Option<Value>, E> {
        match either.other {
            Other::Bool => {
                Err(self.notes.stop(ProblemKind::Other("boolean or JSON schema expected".to_owned())))
            }
            Other::List(_) => Ok(None),
        }
    }

    fn number<E: serde::de::Error>(self) -> Result<Option<Value>, E> {
        match self.notes.registry.get(self.ty) {
            Type::Either(either) => self.neither(*either),
            _ => Ok(self.mismatch("number")),
        }
    }

    /// Bytes may also be a list of numbers.
    fn bytes<'de, A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<Value>, A::Error> {
        let mut bytes = Vec::new();
        while let Some(raw) = items.next_element::<&RawValue>()? {
            match raw.get() {
                "null" => bytes.push(0),
                raw => match raw.parse().ok().filter(|_| is_number(raw)) {
                    Some(byte) => bytes.push(byte),
                    None => {
                        let (actual, expected) = (token_type(raw, true), "uint8".to_owned());
                        self.notes.save(ProblemKind::Mismatch { actual, expected });
                    }
                },
            }
        }
        Ok(Some(Value::String(base64::encode(&bytes))))
    }

    fn fields<'de, A: MapAccess<'de>>(
        self,
        structure: &'r Struct,
        mut entries: A,
    ) -> Result<Option<Value>, A::Error> {
        let Seed { notes, given, .. } = self;
        let mut fields = Fields::new();
        let mut seen = Seen::default();
        while let Some(key) = entries.next_key_seed(Key(structure))? {
            let (index, field) = match key {
                Ok(known) => known,
                Err(unknown) if structure.open.is_some() => {
                    let mark = notes.enter_field(&unknown, || fields.contains_key(&unknown));
                    let value = entries.next_value_seed(json::Any(&mut *notes));
                    notes.leave_field(mark, &unknown);
                    fields.insert(unknown, value?);
                    continue;
                }
                Err(unknown) => {
                    notes.add_finding("unknown field", &unknown);
                    entries.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            let is_duplicate = seen.insert(index);
            if is_duplicate {
                notes.add_finding("duplicate field", &field.name);
            }
            let mark = notes.mark();
            let given_below = given || (field.given && notes.registry.structure(field.ty).is_some());
            let value =
                entries.next_value_seed(Seed { notes: &mut *notes, ty: field.ty, given: given_below });
            notes.leave_struct_field(mark, structure, field);
            store(notes.registry, &mut fields, field, value?, is_duplicate, given);
        }
        Ok(Some(Value::Object(fields.into())))
    }

    fn entries<'de, A: MapAccess<'de>>(self, ty: TypeId, mut entries: A) -> Result<Option<Value>, A::Error> {
        let Seed { notes, given, .. } = self;
        let mut all = FieldsBuilder::default();
        while let Some(key) = entries.next_key::<String>()? {
            if all.contains_key(&key) {
                notes.add_finding("duplicate field", &key);
            }
            let mark = notes.mark();
            let value = entries.next_value_seed(Seed { notes: &mut *notes, ty, given });
            if !notes.is_unchanged(mark) {
                notes.prefix(mark, &key);
            }
            all.insert(key, value?.unwrap_or_else(|| zero(notes.registry, ty)));
        }
        Ok(Some(Value::Object(all.finish().into())))
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Option<Value>, E> {
        Ok(None)
    }

    fn visit_bool<E: serde::de::Error>(self, boolean: bool) -> Result<Option<Value>, E> {
        match self.notes.registry.get(self.ty) {
            Type::Scalar(Scalar::Bool) | Type::Either(Either { other: Other::Bool, .. }) => {
                Ok(Some(Value::Bool(boolean)))
            }
            Type::Either(either) => self.neither(*either),
            _ => Ok(self.mismatch("bool")),
        }
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<Option<Value>, E> {
        self.number()
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<Option<Value>, E> {
        self.number()
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<Option<Value>, E> {
        self.number()
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Option<Value>, E> {
        match self.notes.registry.get(self.ty) {
            Type::Scalar(Scalar::String) => Ok(Some(Value::String(text.to_owned()))),
            Type::Scalar(Scalar::Bytes) => match base64::canonical(text) {
                Ok(text) => Ok(Some(Value::String(text.into_owned()))),
                Err(position) => {
                    self.notes
                        .save(ProblemKind::Other(format!("illegal base64 data at input byte {position}")));
                    Ok(None)
                }
            },
            Type::Either(either) => self.neither(*either),
            _ => Ok(self.mismatch("string")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<Value>, A::Error> {
        let list = match self.notes.registry.get(self.ty) {
            Type::List(list) => list,
            Type::Either(Either { other: Other::List(list), .. }) => {
                return self.decode_separately(*list, |seed| seed.visit_seq(items));
            }
            Type::Scalar(Scalar::Bytes) => return self.bytes(items),
            other => {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                return match other {
                    Type::Either(either) => self.neither(*either),
                    _ => Ok(self.mismatch("array")),
                };
            }
        };
        let Seed { notes, given, .. } = self;
        let mut all = ArrayBuilder::default();
        loop {
            let mark = notes.mark();
            let item = items.next_element_seed(Seed { notes: &mut *notes, ty: list.item, given });
            notes.leave_list_item(mark, all.len());
            match item? {
                Some(item) => all.push(item.unwrap_or_else(|| zero(notes.registry, list.item))),
                None => return Ok(Some(Value::Array(all.finish()))),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Option<Value>, A::Error> {
        match self.notes.registry.get(self.ty) {
            Type::Struct(structure) => self.fields(structure, entries),
            Type::Map(map) => self.entries(map.value, entries),
            Type::Either(either) => self.decode_separately(either.object, |seed| seed.visit_map(entries)),
            _ => {
                while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(self.mismatch("object"))
            }
        }
    }
}

/// Looks up a key without copying it: the field, or the text of an unknown key.
struct Key<'r>(&'r Struct);

impl<'de, 'r> DeserializeSeed<'de> for Key<'r> {
    type Value = Result<(usize, &'r Field), String>;

    fn deserialize<D: Deserializer<'de>>(self, tokens: D) -> Result<Self::Value, D::Error> {
        tokens.deserialize_str(self)
    }
}

impl<'r> Visitor<'_> for Key<'r> {
    type Value = Result<(usize, &'r Field), String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        let index = self.0.position(key);
        Ok(index.and_then(|index| Some((index, self.0.fields.get(index)?))).ok_or_else(|| key.to_owned()))
    }
}

/// The fields that occurred already.
#[derive(Default)]
struct Seen {
    first: u64,
    rest: Vec<usize>,
}

impl Seen {
    /// Whether the field occurred before.
    fn insert(&mut self, index: usize) -> bool {
        if let Some(bit) = 1u64.checked_shl(u32::try_from(index).unwrap_or(u32::MAX)) {
            let is_duplicate = self.first & bit != 0;
            self.first |= bit;
            return is_duplicate;
        }
        let is_duplicate = self.rest.contains(&index);
        if !is_duplicate {
            self.rest.push(index);
        }
        is_duplicate
    }
}

/// Stores the value of a field, unless it equals absence. `given`: an empty list or map differs from absence.
pub(crate) fn store(
    registry: &Registry,
    fields: &mut Fields,
    field: &Field,
    value: Option<Value>,
    is_duplicate: bool,
    given: bool,
) {
    if is_duplicate && let Some(old) = fields.remove(&field.name) {
        // A second struct, map or list is merged into the first; null and scalars replace it.
        if let Some(value) = value.map(|value| merge_duplicate(registry, field.ty, old, value)) {
            store(registry, fields, field, Some(value), false, given);
        }
        return;
    }
    let is_explicitly_empty = |value: &Value| {
        given && matches!(registry.get(field.ty), Type::Map(_) | Type::List(_)) && !value.is_null()
    };
    if let Some(value) = value
        && (is_explicitly_empty(&value) || !is_absent(registry, field, &value))
    {
        // Not `to_string`, which would use the formatter.
        fields.insert((*field.name).to_owned(), value);
    }
}

/// Whether a value equals absence.
pub(crate) fn is_absent(registry: &Registry, field: &Field, value: &Value) -> bool {
    if value.is_null() {
        return !field.nullable;
    }
    if field.pointer {
        return false;
    }
    match (registry.get(field.ty), value) {
        (Type::Struct(_), Value::Object(fields)) => fields.is_empty(),
        (Type::Map(_), Value::Object(entries)) => entries.is_empty() && !field.emit && !field.given,
        (Type::List(_), Value::Array(items)) => items.is_empty() && !field.emit && !field.given,
        (Type::Scalar(Scalar::Bytes), Value::String(text)) => text.is_empty() && !field.emit,
        (Type::Scalar(Scalar::Quantity), Value::String(text)) => text == "0",
        (Type::Scalar(Scalar::String), Value::String(text)) => text.is_empty(),
        (Type::Scalar(Scalar::Bool), Value::Bool(boolean)) => !boolean,
        (Type::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::IntOrString), Value::Int(number)) => {
            *number == 0
        }
        (Type::Scalar(Scalar::Double), Value::Float(number)) => *number == 0.0,
        _ => false,
    }
}

fn merge_duplicate(registry: &Registry, ty: TypeId, old: Value, new: Value) -> Value {
    match (registry.get(ty), old, new) {
        (Type::Struct(structure), Value::Object(mut old), Value::Object(new)) => {
            for (key, value) in new {
                let value = match (structure.field(&key), old.remove(&key)) {
                    (Some(field), Some(old)) => merge_duplicate(registry, field.ty, old, value),
                    _ => value,
                };
                old.insert(key, value);
            }
            Value::Object(old)
        }
        (Type::Map(_), Value::Object(mut old), Value::Object(new)) => {
            old.extend(new);
            Value::Object(old)
        }
        (Type::List(list), Value::Array(old), Value::Array(new)) => {
            let mut old = old.into_iter();
            let merge = |item| match old.next() {
                Some(old) => merge_duplicate(registry, list.item, old, item),
                None => item,
            };
            Value::Array(new.into_iter().map(merge).collect())
        }
        (_, _, new) => new,
    }
}

/// The meaning of null as a list item or map entry.
pub(crate) fn zero(registry: &Registry, ty: TypeId) -> Value {
    match registry.get(ty) {
        Type::Struct(_) => Value::object(),
        Type::Scalar(Scalar::String) => Value::String(String::new()),
        Type::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::IntOrString) => Value::Int(0),
        Type::Scalar(Scalar::Bool) => Value::Bool(false),
        Type::Scalar(Scalar::Double) => Value::Float(0.0),
        Type::Scalar(Scalar::Quantity) => Value::String("0".to_owned()),
        _ => Value::Null,
    }
}

fn is_number(raw: &str) -> bool {
    raw.starts_with(|c: char| c == '-' || c.is_ascii_digit())
}

/// The type of a token for a message. Numbers are printed where a number was expected.
fn token_type(raw: &str, show_number: bool) -> String {
    match raw.as_bytes().first() {
        Some(b'"') => "string".to_owned(),
        Some(b't' | b'f') => "bool".to_owned(),
        Some(b'[') => "array".to_owned(),
        Some(b'{') => "object".to_owned(),
        _ if show_number => format!("number {raw}"),
        _ => "number".to_owned(),
    }
}

fn integer(scalar: Scalar, raw: &str) -> Result<i64, String> {
    let is_in_range = |number: &i64| scalar != Scalar::Int32 || i32::try_from(*number).is_ok();
    let number = if is_number(raw) { raw.parse().ok() } else { None };
    number.filter(is_in_range).ok_or_else(|| token_type(raw, true))
}

/// The text of a string token; `None` for other tokens.
fn unquote<E: serde::de::Error>(raw: &str) -> Option<Result<String, E>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Ok(inner.to_owned()));
    }
    Some(serde_json::from_str(raw).map_err(E::custom))
}
