//! Patches: JSON Patch, JSON merge patch and strategic merge patch, applied to an object in the version of the request.
//!
//! JSON Patch and JSON merge patch work on the JSON text of the object, and the result is decoded like a body. A strategic merge
//! patch uses the schema and works on the value.

mod body;
mod chunked_list;
mod json;
mod lazy_json;
mod lists;
mod merge;
mod strategic;
mod type_check;

pub use body::printed;

use std::borrow::Cow;

use super::codec;
use super::field::{FieldError, FieldPath, quoted};
use super::limits;
use super::media::PatchType;
use super::options::FieldValidation;
use super::schema::{GroupVersionKind, Registry, decode};
use super::status::{Result, Status};
use super::value::Value;

use self::body::Body;
use self::lazy_json::Node;

/// The target of a patch, besides the object itself.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// All types.
    pub registry: &'a Registry,
    /// The kind of the object, in the version of the request.
    pub kind: &'a GroupVersionKind,
    /// Prunes and type-checks the fields of a custom resource.
    pub custom: Option<&'a dyn Coerce>,
}

/// Prunes and type-checks a custom object by the schema of its definition.
pub trait Coerce {
    /// Prunes unknown fields and returns a message for each. Fails if known fields have wrong types.
    fn coerce(&self, object: &mut Value) -> std::result::Result<Vec<String>, String>;
}

/// The result of a patch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patched {
    /// The decoded object, without defaults.
    pub value: Value,
    /// Warnings about unknown and duplicate fields.
    pub warnings: Vec<String>,
}

/// Applies the patch in `bytes` to an object.
pub fn apply(
    language: PatchType,
    bytes: &[u8],
    validation: FieldValidation,
    target: Target<'_>,
    current: &Value,
) -> Result<Patched> {
    match language {
        PatchType::Json | PatchType::Merge => apply_text(language, bytes, validation, target, current),
        PatchType::Strategic => apply_strategic(bytes, validation, target, current),
        // Handled by the verb: see `verbs/apply.rs`.
        PatchType::Apply => Err(Status::method_not_allowed()),
    }
}

/// The reason why a JSON Patch of a webhook or policy cannot be applied, with the message of the reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatchError {
    /// A test operation failed.
    Test(String),
    /// Another operation failed, or the patch is malformed.
    Other(String),
}

impl PatchError {
    /// The message.
    pub fn into_message(self) -> String {
        match self {
            PatchError::Test(message) | PatchError::Other(message) => message,
        }
    }
}

/// Applies a JSON Patch of a webhook or policy to the text of an object; `None` if it has no operations.
pub fn apply_operations(bytes: &[u8], original: &str) -> std::result::Result<Option<String>, PatchError> {
    let body = read_operations(bytes, FieldValidation::Ignore)
        .map_err(|status| PatchError::Other(status.message))?;
    let count = body.value.items().len();
    if count > limits::PATCH_OPERATIONS {
        let limit = limits::PATCH_OPERATIONS;
        return Err(PatchError::Other(format!("the patch has {count} operations, more than {limit}")));
    }
    if count == 0 {
        return Ok(None);
    }
    let malformed = || PatchError::Other("the patch is no list of operations".to_owned());
    let operations = json::read(&body.text).ok_or_else(malformed)?;
    let mut node = Node::from_text(Cow::Borrowed(original));
    node.open();
    json::apply_with_message(&mut node, &operations).map_err(|(is_test, message)| match is_test {
        true => PatchError::Test(message),
        false => PatchError::Other(message),
    })?;
    Ok(Some(node.to_text()))
}

/// 422 for a patch whose result is no object of the kind. The message quotes `outcome`.
fn invalid(outcome: &str, detail: &str) -> Box<Status> {
    Status::invalid("", "", "", &[FieldError::invalid(&FieldPath::new("patch"), &quoted(outcome), detail)])
}

/// Turns unknown and duplicate fields into warnings or an error.
fn apply_field_validation(
    validation: FieldValidation,
    strict: Vec<String>,
    outcome: impl FnOnce() -> String,
) -> Result<Vec<String>> {
    match validation {
        FieldValidation::Ignore => Ok(Vec::new()),
        FieldValidation::Strict if !strict.is_empty() => {
            Err(invalid(&outcome(), &format!("strict decoding error: {}", strict.join(", "))))
        }
        FieldValidation::Warn | FieldValidation::Strict => Ok(strict),
    }
}

fn type_of(target: Target<'_>) -> Result<super::schema::TypeId> {
    let ty = target.registry.lookup(target.kind);
    ty.ok_or_else(|| Status::internal(format!("no schema for {}", target.kind)))
}

fn apply_text(
    language: PatchType,
    bytes: &[u8],
    validation: FieldValidation,
    target: Target<'_>,
    current: &Value,
) -> Result<Patched> {
    let Body { text, value, mut strict } = match language {
        PatchType::Json => read_operations(bytes, validation)?,
        _ => read_merge(bytes, validation)?,
    };
    let original = codec::encode(target.registry, type_of(target)?, current);
    let mut node = Node::from_text(String::from_utf8_lossy(&original));
    if language == PatchType::Json {
        strict.iter_mut().for_each(|finding| finding.insert_str(0, "json patch "));
        let count = value.items().len();
        if count > limits::PATCH_OPERATIONS {
            return Err(Status::too_large(format!(
                "Request entity too large: The allowed maximum operations in a JSON patch is {}, got {count}",
                limits::PATCH_OPERATIONS
            )));
        }
        let operations = json::read(&text).ok_or_else(Status::patch_does_not_apply)?;
        node.open();
        json::apply(&mut node, &operations).map_err(|_| Status::patch_does_not_apply())?;
    } else {
        merge::apply(&mut node, Node::from_text(Cow::Borrowed(&*text)));
    }
    let outcome = node.to_text();
    let Some(custom) = target.custom else {
        let decoded = codec::decode_object(outcome.as_bytes(), target.kind, target.registry)
            .map_err(|error| invalid(&outcome, &error.detail))?;
        strict.extend(decoded.strict);
        return Ok(Patched {
            value: decoded.value,
            warnings: apply_field_validation(validation, strict, || outcome)?,
        });
    };
    // Fields of custom objects are printed in alphabetical order.
    let result = super::json::read(outcome.as_bytes()).unwrap_or_default();
    let document = || String::from_utf8_lossy(&super::json::to_json(&result)).into_owned();
    let (kind, api_version) = (result.str("kind"), result.str("apiVersion"));
    // A wrong kind or apiVersion is reported by validation.
    let is_other = !kind.is_empty() && (kind != target.kind.kind || api_version != target.kind.api_version());
    let text = if is_other { with_kind(&result, target.kind) } else { outcome };
    let mut decoded = codec::decode_object(text.as_bytes(), target.kind, target.registry)
        .map_err(|error| invalid(&document(), &error.detail))?;
    strict.extend(decoded.strict);
    strict.extend(custom.coerce(&mut decoded.value).map_err(|error| invalid(&document(), &error))?);
    decoded.value.set("kind", kind);
    decoded.value.set("apiVersion", api_version);
    Ok(Patched { value: decoded.value, warnings: apply_field_validation(validation, strict, document)? })
}

/// A custom object with the required kind and apiVersion, so that it can be decoded.
fn with_kind(object: &Value, kind: &GroupVersionKind) -> String {
    let mut object = object.clone();
    if object.fields().is_some() {
        object.set("kind", kind.kind.as_str());
        object.set("apiVersion", kind.api_version());
    }
    String::from_utf8_lossy(&super::json::to_json(&object)).into_owned()
}

/// The body of a JSON Patch: a list of operations.
fn read_operations(bytes: &[u8], validation: FieldValidation) -> Result<Body<'_>> {
    let lenient = validation == FieldValidation::Ignore;
    let bad_request = |error: &str| {
        Status::bad_request(if lenient { error.to_owned() } else { format!("error decoding patch: {error}") })
    };
    let (list, item) = if lenient {
        ("jsonpatch.Patch", "jsonpatch.Operation")
    } else {
        ("[]handlers.jsonPatchOp", "handlers.jsonPatchOp")
    };
    let mismatch = |value: &Value, into: &str| {
        bad_request(&format!("json: cannot unmarshal {} into Go value of type {into}", value.json_word()))
    };
    let body = body::read(bytes, true).map_err(|error| bad_request(&error))?;
    let items = match &body.value {
        Value::Array(items) => items.as_slice(),
        Value::Null => &[],
        other => return Err(mismatch(other, list)),
    };
    for operation in items.iter().filter(|operation| !operation.is_null()) {
        let fields = operation.fields().ok_or_else(|| mismatch(operation, item))?;
        for name in ["op", "path", "from"] {
            if let Some(value) = fields.get(name)
                && !lenient
                && !matches!(value, Value::String(_) | Value::Null)
            {
                let actual = value.json_word();
                return Err(bad_request(&format!(
                    "json: cannot unmarshal {actual} into Go struct field jsonPatchOp.{name} of type string"
                )));
            }
        }
    }
    Ok(body)
}

/// The body of a JSON merge patch. With fieldValidation Ignore, the error for a body that is no object has another message.
fn read_merge(bytes: &[u8], validation: FieldValidation) -> Result<Body<'_>> {
    let invalid = || Status::bad_request("Invalid JSON Patch");
    let lenient = validation == FieldValidation::Ignore;
    let body = if lenient {
        body::read(bytes, false).map_err(|_| invalid())?
    } else {
        read_object(bytes).map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))?
    };
    match &body.value {
        Value::Object(_) => Ok(body),
        // A list replaces the whole object, which no kind allows.
        Value::Array(_) => Ok(body),
        _ => Err(invalid()),
    }
}

/// A body that is an object or null.
fn read_object(bytes: &[u8]) -> std::result::Result<Body<'_>, String> {
    let body = body::read(bytes, false)?;
    match &body.value {
        Value::Object(_) | Value::Null => Ok(body),
        other => {
            let actual = other.json_word();
            Err(format!("json: cannot unmarshal {actual} into Go value of type map[string]interface {{}}"))
        }
    }
}

fn apply_strategic(
    bytes: &[u8],
    validation: FieldValidation,
    target: Target<'_>,
    current: &Value,
) -> Result<Patched> {
    let Body { value: mut patch, mut strict, .. } = read_object(bytes).map_err(Status::bad_request)?;
    let (registry, ty) = (target.registry, type_of(target)?);
    let internal_error = || Status::internal("an object cannot be read".to_owned());
    // With fields that are always printed: a patch may refer to them.
    let original = codec::encode(registry, ty, current);
    let original = super::json::read(&original).map_err(|_| internal_error())?;
    let mut merged = strategic::apply(registry, ty, original, &mut patch)?;
    let unknown = type_check::fit(registry, ty, &mut merged)
        .map_err(|error| invalid(&body::printed(&patch), &error))?;
    strict.extend(unknown);
    let warnings = apply_field_validation(validation, strict, || body::printed(&patch))?;
    let decoded = decode::decode(registry, ty, &codec::to_json(&merged)).map_err(|_| internal_error())?;
    let mut value = decoded.value;
    // The patch cannot change these: the path decides.
    value.set("kind", target.kind.kind.as_str());
    value.set("apiVersion", target.kind.api_version());
    Ok(Patched { value, warnings })
}

#[cfg(test)]
mod tests;
