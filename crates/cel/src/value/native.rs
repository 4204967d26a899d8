//! Converts the result of an expression to a JSON value.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_apimachinery::limits::{BODY_BYTES, OBJECT_PARTS, PATCH_DEPTH};
use pilothouse_apimachinery::value::{Object, Value};

use super::{List, Map, Val};
use crate::library::text_of;

/// The integers that a double represents exactly.
const SAFE: std::ops::RangeInclusive<i64> = -((1 << 53) - 1)..=(1 << 53) - 1;

/// The remaining size of converted values: the cost model hardly charges for repeating a large value.
#[derive(Debug)]
pub struct SizeBudget {
    parts: usize,
    bytes: usize,
}

impl Default for SizeBudget {
    fn default() -> SizeBudget {
        SizeBudget { parts: OBJECT_PARTS, bytes: BODY_BYTES }
    }
}

/// Why a value cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NativeError {
    /// It would be too large.
    TooLarge,
    /// Its type has no JSON equivalent.
    Because(String),
}

/// The target of a conversion.
#[derive(Clone, Copy, PartialEq)]
enum Target {
    /// A part of an object, exactly.
    Exact,
    /// JSON.
    Json,
    /// JSON inside a constructed object.
    Within,
}

impl SizeBudget {
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), NativeError> {
        let room = (self.parts.checked_sub(1), self.bytes.checked_sub(bytes));
        let (Some(parts), Some(bytes)) = room else { return Err(NativeError::TooLarge) };
        (self.parts, self.bytes) = (parts, bytes);
        Ok(())
    }

    /// Converts to JSON: timestamps, durations, bytes and large integers become strings.
    pub fn json(&mut self, value: &Val<'_>) -> Result<Value, NativeError> {
        self.value(value, Target::Json, PATCH_DEPTH)
    }

    /// Converts to a part of an object. Types without a JSON equivalent are errors, whose message begins with the path.
    pub fn exact(&mut self, value: &Val<'_>) -> Result<Value, NativeError> {
        self.value(value, Target::Exact, PATCH_DEPTH)
    }

    fn value(&mut self, value: &Val<'_>, form: Target, depth: usize) -> Result<Value, NativeError> {
        let depth = depth.checked_sub(1).ok_or(NativeError::TooLarge)?;
        self.take(0)?;
        let json = form == Target::Json;
        Ok(match value {
            Val::Null if json => Value::Null,
            Val::Bool(truth) => Value::Bool(*truth),
            Val::Int(number) if json && !SAFE.contains(number) => self.text(&number.to_string())?,
            Val::Int(number) => Value::Int(*number),
            Val::Uint(number) if form != Target::Exact => match i64::try_from(*number) {
                Ok(number) if SAFE.contains(&number) => Value::Int(number),
                _ => self.text(&number.to_string())?,
            },
            Val::Double(number) if !number.is_finite() => return Err(unplain(value, form)),
            Val::Double(number) if number.fract() == 0.0 && number.abs() < 1e15 => Value::Int(*number as i64),
            Val::Double(number) => Value::Float(*number),
            Val::String(text) => self.text(text)?,
            Val::Type(name) if !json => self.text(name)?,
            Val::Bytes(bytes) if form != Target::Exact => {
                self.take(bytes.len())?;
                self.text(&STANDARD.encode(bytes))?
            }
            Val::Timestamp(_) | Val::Duration(_) if json => {
                let text = text_of(value).map_err(|_| unplain(value, form))?;
                self.text(&text)?
            }
            Val::List(list) => self.list(list, form, depth)?,
            Val::Map(map) => self.map(map, form, depth)?,
            Val::Made(made) => {
                let form = if json { Target::Within } else { form };
                let mut fields = Object::new();
                for (name, value) in made.fields() {
                    self.take(name.len())?;
                    let value = self.value(value, form, depth).map_err(|why| within(form, name, why))?;
                    fields.insert((*name).to_owned(), value);
                }
                Value::Object(fields)
            }
            Val::Optional(Some(inner)) => self.value(inner, form, depth)?,
            _ => return Err(unplain(value, form)),
        })
    }

    fn text(&mut self, text: &str) -> Result<Value, NativeError> {
        self.take(text.len())?;
        Ok(Value::from(text))
    }

    fn list(&mut self, list: &List<'_>, form: Target, depth: usize) -> Result<Value, NativeError> {
        let mut items = Vec::new();
        for (index, item) in list.iter().enumerate() {
            let item = item.map_err(|fault| NativeError::Because(fault.to_string()))?;
            let item = self.value(&item, form, depth).map_err(|why| match (form, why) {
                (Target::Exact, NativeError::Because(why)) => NativeError::Because(format!("[{index}]{why}")),
                (_, why) => why,
            });
            items.push(item?);
        }
        Ok(Value::Array(items.into()))
    }

    fn map(&mut self, map: &Map<'_>, form: Target, depth: usize) -> Result<Value, NativeError> {
        let mut fields = Object::new();
        for key in map.keys() {
            let Val::String(name) = &key else {
                let kind = key.type_name();
                let why = match form {
                    Target::Exact => format!(": keys of type {kind} cannot stand in an object"),
                    _ => format!("unsupported type conversion from '{kind}' to string"),
                };
                return Err(NativeError::Because(why));
            };
            let value = map.get(&key).map_err(|fault| NativeError::Because(fault.to_string()))?;
            self.take(name.len())?;
            let value = self.value(&value.unwrap_or(Val::Null), form, depth);
            fields.insert(name.to_string(), value.map_err(|why| within(form, name, why))?);
        }
        Ok(Value::Object(fields))
    }
}

/// Prefixes an error with a field.
fn within(form: Target, name: &str, why: NativeError) -> NativeError {
    match (form, why) {
        (Target::Exact, NativeError::Because(why)) => NativeError::Because(format!(".{name}{why}")),
        (_, why) => why,
    }
}

/// The error for an unsupported type.
fn unplain(value: &Val<'_>, form: Target) -> NativeError {
    let kind = value.type_name();
    NativeError::Because(match (form, value) {
        (Target::Exact, _) => format!(": a value of type {kind} cannot stand in an object"),
        (_, Val::Optional(None)) => "optional.none() dereference".to_owned(),
        (_, Val::Type(_)) => "type conversion not supported for 'type'".to_owned(),
        (Target::Within, Val::Null | Val::Timestamp(_) | Val::Duration(_)) => {
            format!("proto: invalid type: {}", value.go_type())
        }
        _ => {
            let kind = kind.rsplit('.').next().unwrap_or(kind);
            format!("type conversion error from '{kind}' to '*structpb.Value'")
        }
    })
}

impl Val<'_> {
    /// The Go type name, for messages.
    pub(super) fn go_type(&self) -> &'static str {
        match self {
            Val::Null => "structpb.NullValue",
            Val::Bool(_) => "bool",
            Val::Int(_) => "int64",
            Val::Uint(_) => "uint64",
            Val::Double(_) => "float64",
            Val::String(_) => "string",
            Val::Bytes(_) => "[]uint8",
            Val::List(List::Made(_)) => "[]ref.Val",
            Val::List(_) => "[]interface {}",
            Val::Map(Map::Made(_)) => "map[ref.Val]ref.Val",
            Val::Map(_) | Val::Made(_) => "map[string]interface {}",
            Val::Timestamp(_) => "time.Time",
            Val::Duration(_) => "time.Duration",
            _ => "interface {}",
        }
    }
}
