//! Checks the result of a strategic merge patch against its type.
//!
//! The reference does not decode that result, but copies it field by field. So the messages differ from the decoder's, and some
//! values are accepted that a decoder refuses: 1.0 for an integer, or one that is too large, which is truncated.

use super::body::kind;
use crate::json;
use crate::limits;
use crate::schema::decode::{self, DecodeFailure};
use crate::schema::{Field, Registry, Scalar, Struct, Type, TypeId, base64, text_types};
use crate::value::{Object, Value};

/// The message for a number instead of a string.
const CANNOT_CONVERT_TO_STRING: &str = "cannot convert int64 to string";

/// Checks a value against a type, and converts its numbers. Returns one message per unknown field; the error is the first
/// mismatch.
pub fn fit(registry: &Registry, ty: TypeId, value: &mut Value) -> Result<Vec<String>, String> {
    let mut checker = TypeChecker { registry, path: String::new(), unknown: Vec::new() };
    checker.value(ty, value)?;
    let mut unknown = checker.unknown;
    unknown.sort();
    Ok(unknown)
}

struct TypeChecker<'r> {
    registry: &'r Registry,
    path: String,
    unknown: Vec<String>,
}

impl<'r> TypeChecker<'r> {
    fn value(&mut self, ty: TypeId, value: &mut Value) -> Result<(), String> {
        if value.is_null() {
            return Ok(());
        }
        match (self.registry.get(ty), value) {
            (Type::Struct(structure), Value::Object(fields)) => self.fields(structure, fields),
            (Type::Struct(_), other) => Err(format!("cannot restore struct from: {}", kind(other))),
            (Type::Map(map), Value::Object(entries)) => {
                entries.values_mut().try_for_each(|entry| self.value(map.value, entry))
            }
            (Type::Map(_), other) => Err(format!("cannot restore map from {}", kind(other))),
            (Type::List(list), Value::Array(items)) => {
                let length = self.path.len();
                for (index, item) in items.iter_mut().enumerate() {
                    self.path.push_str(&format!("[{index}]"));
                    self.value(list.item, item)?;
                    self.path.truncate(length);
                }
                Ok(())
            }
            (Type::List(_), other) => Err(format!("cannot restore slice from {}", kind(other))),
            (Type::Scalar(scalar), value) => self.scalar(ty, *scalar, value),
            (Type::Either(_), value) => self.check_by_decoder(ty, value),
        }
    }

    fn fields(&mut self, structure: &'r Struct, fields: &mut Object) -> Result<(), String> {
        let length = self.path.len();
        for field in &structure.fields {
            if let Some(value) = fields.get_mut(&field.name) {
                self.enter(&field.name);
                self.value(field.ty, value).map_err(|message| name_type(structure, field, message))?;
                self.path.truncate(length);
            }
        }
        for key in fields.keys().filter(|key| structure.field(key).is_none()) {
            if self.unknown.len() < limits::STRICT_FINDINGS {
                self.enter(key);
                self.unknown.push(format!("unknown field \"{}\"", self.path));
                self.path.truncate(length);
            }
        }
        Ok(())
    }

    fn enter(&mut self, key: &str) {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(key);
    }

    fn scalar(&self, ty: TypeId, scalar: Scalar, value: &mut Value) -> Result<(), String> {
        let name = scalar.type_name();
        match (scalar, &mut *value) {
            (Scalar::String, Value::String(_))
            | (Scalar::Bool, Value::Bool(_))
            | (Scalar::Int64, Value::Int(_))
            | (Scalar::Double, Value::Float(_))
            | (Scalar::Raw | Scalar::RawJson | Scalar::Free, _) => Ok(()),
            (Scalar::Double, Value::Int(number)) => {
                *value = Value::Float(*number as f64);
                Ok(())
            }
            (Scalar::Int32, Value::Int(number)) => {
                *number = i64::from(*number as i32);
                Ok(())
            }
            (Scalar::Int32 | Scalar::Int64, Value::Float(number)) if number.fract() == 0.0 => {
                let whole = *number as i64;
                *value = Value::Int(if scalar == Scalar::Int32 { i64::from(whole as i32) } else { whole });
                Ok(())
            }
            (Scalar::String, Value::Int(_)) => Err(CANNOT_CONVERT_TO_STRING.to_owned()),
            (Scalar::Int32 | Scalar::Int64, Value::Float(_)) => {
                Err(format!("cannot convert float64 to {name}"))
            }
            (Scalar::Bytes, Value::String(text)) => match base64::canonical(text) {
                Ok(_) => Ok(()),
                Err(position) => {
                    Err(format!("error decoding from json: illegal base64 data at input byte {position}"))
                }
            },
            (Scalar::Bytes, Value::Array(items)) => {
                *value =
                    Value::String(base64::encode(&items.iter().map(byte).collect::<Result<Vec<u8>, _>>()?));
                Ok(())
            }
            (Scalar::Bytes, other) => Err(format!("cannot restore slice from {}", kind(other))),
            (Scalar::String | Scalar::Bool | Scalar::Int32 | Scalar::Int64 | Scalar::Double, _) => {
                Err(format!("unrecognized type: {name}"))
            }
            (Scalar::Time | Scalar::MicroTime | Scalar::Quantity | Scalar::IntOrString, value) => {
                self.check_by_decoder(ty, value)
            }
        }
    }

    /// Types that have a decoder of their own in the reference are decoded.
    fn check_by_decoder(&self, ty: TypeId, value: &Value) -> Result<(), String> {
        match decode::decode(self.registry, ty, &json::to_json(value)) {
            Ok(_) => Ok(()),
            Err(DecodeFailure::Type(message)) => Err(message),
            Err(DecodeFailure::Tokens) => Err("exceeded max depth".to_owned()),
        }
    }
}

/// Names the Go type of a string field in the message. Fields without a named type, and errors further down, are not in that
/// table and stay unchanged.
fn name_type(owner: &Struct, field: &Field, message: String) -> String {
    if message != CANNOT_CONVERT_TO_STRING {
        return message;
    }
    let kind = text_types::type_name(&owner.package, &owner.name, &field.name).map(text_types::element_type);
    kind.map_or(message, |kind| format!("cannot convert int64 to {kind}"))
}

/// A byte as a number in a list; too large ones are truncated like other numbers.
fn byte(item: &Value) -> Result<u8, String> {
    match item {
        Value::Null => Ok(0),
        Value::Int(number) => Ok(*number as u8),
        Value::Float(number) if number.fract() == 0.0 => Ok(*number as i64 as u8),
        Value::Float(_) => Err("cannot convert float64 to uint8".to_owned()),
        _ => Err("unrecognized type: uint8".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted(text: &str) -> Result<Vec<String>, String> {
        let registry = Registry::builtin().unwrap();
        let mut value = json::read(text.as_bytes()).unwrap();
        fit(&registry, registry.kind("apps", "v1", "Deployment").unwrap(), &mut value)
    }

    #[test]
    fn type_errors_have_the_messages_of_the_converter() {
        for (text, message) in [
            (r#"{"spec":{"replicas":"3"}}"#, "unrecognized type: int32"),
            (r#"{"spec":{"replicas":1.5}}"#, "cannot convert float64 to int32"),
            (r#"{"spec":{"paused":"x"}}"#, "unrecognized type: bool"),
            (r#"{"spec":7}"#, "cannot restore struct from: int64"),
            (r#"{"metadata":{"labels":"x"}}"#, "cannot restore map from string"),
            (r#"{"metadata":{"labels":{"a":1}}}"#, "cannot convert int64 to string"),
            (r#"{"metadata":{"labels":{"a":true}}}"#, "unrecognized type: string"),
            (r#"{"spec":{"strategy":{"type":1}}}"#, "cannot convert int64 to v1.DeploymentStrategyType"),
            (
                r#"{"spec":{"template":{"spec":{"containers":[{"securityContext":{"capabilities":{"add":[1]}}}]}}}}"#,
                "cannot convert int64 to v1.Capability",
            ),
            (r#"{"spec":{"template":{"spec":{"nodeName":1}}}}"#, "cannot convert int64 to string"),
            (r#"{"metadata":{"finalizers":{}}}"#, "cannot restore slice from map"),
            (
                r#"{"spec":{"strategy":{"rollingUpdate":{"maxSurge":true}}}}"#,
                "json: cannot unmarshal bool into Go value of type int32",
            ),
        ] {
            assert_eq!(fitted(text).unwrap_err(), message, "{text}");
        }
    }

    #[test]
    fn unknown_fields_are_sorted_and_maps_have_no_index() {
        let text = r#"{"z":1,"spec":{"template":{"spec":{"containers":[{},{"x":1}]}},"b":{}},"metadata":{"labels":{"q":"1"}}}"#;
        let expected = ["spec.b", "spec.template.spec.containers[1].x", "z"];
        assert_eq!(fitted(text).unwrap(), expected.map(|path| format!("unknown field \"{path}\"")));
    }

    #[test]
    fn bytes_may_be_a_list_of_numbers() {
        let registry = Registry::builtin().unwrap();
        let ty = registry.kind("", "v1", "Secret").unwrap();
        let fitted = |text: &str| {
            let mut value = json::read(text.as_bytes()).unwrap();
            fit(&registry, ty, &mut value).map(|_| value.get_path(&["data", "a"]).cloned().unwrap())
        };
        assert_eq!(fitted(r#"{"data":{"a":[1,257]}}"#), Ok(Value::from("AQE=")));
        assert_eq!(fitted(r#"{"data":{"a":[]}}"#), Ok(Value::from("")));
        assert_eq!(fitted(r#"{"data":{"a":["a"]}}"#), Err("unrecognized type: uint8".to_owned()));
        assert_eq!(fitted(r#"{"data":{"a":{}}}"#), Err("cannot restore slice from map".to_owned()));
    }

    #[test]
    fn numbers_are_converted_to_the_type() {
        let registry = Registry::builtin().unwrap();
        let mut value = json::read(br#"{"spec":{"replicas":4294967298,"minReadySeconds":2.0}}"#).unwrap();
        fit(&registry, registry.kind("apps", "v1", "Deployment").unwrap(), &mut value).unwrap();
        assert_eq!(value.get_path(&["spec", "replicas"]), Some(&Value::Int(2)));
        assert_eq!(value.get_path(&["spec", "minReadySeconds"]), Some(&Value::Int(2)));
    }
}
