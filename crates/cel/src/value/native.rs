//! Converts the result of an expression to a JSON value.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_apimachinery::limits::{BODY_BYTES, OBJECT_PARTS, PATCH_DEPTH};
use pilothouse_apimachinery::value::{Object, Value};

use super::{List, Map, Val};
use crate::timestamps;

/// The integers that a double represents exactly.
const EXACT_INTEGERS: std::ops::RangeInclusive<i64> = -((1 << 53) - 1)..=(1 << 53) - 1;

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
    Unsupported(String),
}

/// The target of a conversion.
#[derive(Clone, Copy, PartialEq)]
enum Target {
    /// A part of an object, exactly.
    Exact,
    /// JSON.
    Json,
    /// JSON inside a constructed object.
    NestedJson,
}

impl SizeBudget {
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), NativeError> {
        let remaining = (self.parts.checked_sub(1), self.bytes.checked_sub(bytes));
        let (Some(parts), Some(bytes)) = remaining else { return Err(NativeError::TooLarge) };
        (self.parts, self.bytes) = (parts, bytes);
        Ok(())
    }

    /// Converts to JSON: timestamps, durations, bytes and large integers become strings.
    pub fn to_json(&mut self, value: &Val<'_>) -> Result<Value, NativeError> {
        self.value(value, Target::Json, PATCH_DEPTH)
    }

    /// Converts to a part of an object. Types without a JSON equivalent are errors, whose message begins with the path.
    pub fn to_object(&mut self, value: &Val<'_>) -> Result<Value, NativeError> {
        self.value(value, Target::Exact, PATCH_DEPTH)
    }

    fn value(&mut self, value: &Val<'_>, target: Target, depth: usize) -> Result<Value, NativeError> {
        let depth = depth.checked_sub(1).ok_or(NativeError::TooLarge)?;
        self.take(0)?;
        let is_json = target == Target::Json;
        Ok(match value {
            Val::Null if is_json => Value::Null,
            Val::Bool(boolean) => Value::Bool(*boolean),
            Val::Int(number) if is_json && !EXACT_INTEGERS.contains(number) => {
                self.text(&number.to_string())?
            }
            Val::Int(number) => Value::Int(*number),
            Val::Uint(number) if target != Target::Exact => match i64::try_from(*number) {
                Ok(number) if EXACT_INTEGERS.contains(&number) => Value::Int(number),
                _ => self.text(&number.to_string())?,
            },
            Val::Double(number) if !number.is_finite() => return Err(unsupported_type(value, target)),
            Val::Double(number) if number.fract() == 0.0 && number.abs() < 1e15 => Value::Int(*number as i64),
            Val::Double(number) => Value::Float(*number),
            Val::String(text) => self.text(text)?,
            Val::Type(name) if !is_json => self.text(name)?,
            Val::Bytes(bytes) if target != Target::Exact => {
                self.take(bytes.len())?;
                self.text(&STANDARD.encode(bytes))?
            }
            Val::Timestamp(instant) if is_json => self.text(&instant.to_rfc3339())?,
            Val::Duration(nanos) if is_json => self.text(&timestamps::format_duration(*nanos))?,
            Val::List(list) => self.list(list, target, depth)?,
            Val::Map(map) => self.map(map, target, depth)?,
            Val::Constructed(object) => {
                let target = if is_json { Target::NestedJson } else { target };
                let mut fields = Object::new();
                for (name, value) in object.fields() {
                    self.take(name.len())?;
                    let value = self
                        .value(value, target, depth)
                        .map_err(|error| prefix_field(target, name, error))?;
                    fields.insert((*name).to_owned(), value);
                }
                Value::Object(fields)
            }
            Val::Optional(Some(inner)) => self.value(inner, target, depth)?,
            _ => return Err(unsupported_type(value, target)),
        })
    }

    fn text(&mut self, text: &str) -> Result<Value, NativeError> {
        self.take(text.len())?;
        Ok(Value::from(text))
    }

    fn list(&mut self, list: &List<'_>, target: Target, depth: usize) -> Result<Value, NativeError> {
        let mut items = Vec::new();
        for (index, item) in list.iter().enumerate() {
            let item = item.map_err(|fault| NativeError::Unsupported(fault.to_string()))?;
            let item = self.value(&item, target, depth).map_err(|error| match (target, error) {
                (Target::Exact, NativeError::Unsupported(error)) => {
                    NativeError::Unsupported(format!("[{index}]{error}"))
                }
                (_, error) => error,
            });
            items.push(item?);
        }
        Ok(Value::Array(items.into()))
    }

    fn map(&mut self, map: &Map<'_>, target: Target, depth: usize) -> Result<Value, NativeError> {
        let mut fields = Object::new();
        for key in map.keys() {
            let Val::String(name) = &key else {
                let kind = key.type_name();
                let message = match target {
                    Target::Exact => format!(": keys of type {kind} cannot stand in an object"),
                    _ => format!("unsupported type conversion from '{kind}' to string"),
                };
                return Err(NativeError::Unsupported(message));
            };
            let value = map.get(&key).map_err(|fault| NativeError::Unsupported(fault.to_string()))?;
            self.take(name.len())?;
            let value = self.value(&value.unwrap_or(Val::Null), target, depth);
            fields.insert(name.to_string(), value.map_err(|error| prefix_field(target, name, error))?);
        }
        Ok(Value::Object(fields))
    }
}

/// Prefixes an error with a field.
fn prefix_field(target: Target, name: &str, error: NativeError) -> NativeError {
    match (target, error) {
        (Target::Exact, NativeError::Unsupported(error)) => {
            NativeError::Unsupported(format!(".{name}{error}"))
        }
        (_, error) => error,
    }
}

/// The error for an unsupported type.
fn unsupported_type(value: &Val<'_>, target: Target) -> NativeError {
    let kind = value.type_name();
    NativeError::Unsupported(match (target, value) {
        (Target::Exact, _) => format!(": a value of type {kind} cannot stand in an object"),
        (_, Val::Optional(None)) => "optional.none() dereference".to_owned(),
        (_, Val::Type(_)) => "type conversion not supported for 'type'".to_owned(),
        (Target::NestedJson, Val::Null | Val::Timestamp(_) | Val::Duration(_)) => {
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
            Val::List(List::Computed(_)) => "[]ref.Val",
            Val::List(_) => "[]interface {}",
            Val::Map(Map::Computed(_)) => "map[ref.Val]ref.Val",
            Val::Map(_) | Val::Constructed(_) => "map[string]interface {}",
            Val::Timestamp(_) => "time.Time",
            Val::Duration(_) => "time.Duration",
            _ => "interface {}",
        }
    }
}
