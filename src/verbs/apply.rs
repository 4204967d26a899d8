//! Server-side apply: the body has some fields, and its field manager becomes their owner.

use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::managed_fields::apply::{Applied, apply as merge};
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::{FieldValidation, PatchOptions};
use pilothouse_apimachinery::schema::GroupVersionKind;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;

use super::VerbResult;
use super::update::{NewState, store_update};
use crate::registry::objects::Objects;
use crate::registry::ownership::reset_fields;
use crate::registry::{Backend, Call};

/// Applies the body to the object that the path names, or creates it.
pub async fn apply(backend: &Backend, call: &Call<'_>, options: &PatchOptions) -> VerbResult {
    let (config, duplicates) = read(call)?;
    let (gv, kind) = call.body_kind();
    let _managed_fields_memory = backend.reserve_set_items(call, gv, &config)?;
    let configuration = Configuration {
        objects: &backend.objects,
        call,
        config,
        duplicates,
        validation: options.write.field_validation,
        force: options.force,
        kind: GroupVersionKind::new(&gv.group, &gv.version, kind),
    };
    store_update(backend, call, &configuration, options.write.mode).await
}

/// Parses the body. Also returns an error about duplicate fields.
fn read(call: &Call<'_>) -> Result<(Value, Option<String>)> {
    // The reference uses this prefix for both formats.
    let to_status = |error: String| Status::bad_request(format!("error decoding YAML: {error}"));
    let is_cbor = call.body.encoding == Encoding::Cbor;
    let (config, duplicates) = match call.body.encoding {
        Encoding::Cbor => (codec::cbor::read(&call.body.bytes).map_err(to_status)?, None),
        _ => codec::yaml::read_strict(&call.body.bytes).map_err(|error| {
            to_status(format!("error converting YAML to JSON: {}", codec::yaml::with_prefix(&error)))
        })?,
    };
    let type_name = match &config {
        Value::Object(_) => return Ok((config, duplicates)),
        Value::Null => return Ok((Value::object(), duplicates)),
        Value::Array(_) => "array",
        Value::String(_) if is_cbor => "UTF-8 text string",
        Value::Bool(_) | Value::Float(_) if is_cbor => "primitives",
        Value::Int(0..) if is_cbor => "positive integer",
        Value::Int(_) if is_cbor => "negative integer",
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Int(_) | Value::Float(_) => "number",
    };
    let reader = if is_cbor { "cbor" } else { "error unmarshaling JSON: while decoding JSON: json" };
    Err(to_status(format!(
        "{reader}: cannot unmarshal {type_name} into Go value of type map[string]interface {{}}"
    )))
}

/// The applied configuration.
struct Configuration<'a> {
    objects: &'a Objects,
    call: &'a Call<'a>,
    config: Value,
    duplicates: Option<String>,
    validation: FieldValidation,
    force: bool,
    kind: GroupVersionKind,
}

impl Configuration<'_> {
    fn apply_to(&self, old: Option<&Value>) -> Result<Value> {
        let Configuration { objects, call, .. } = *self;
        let (manager, now) = (call.manager(), objects.now());
        let write = call.owned_write(&manager, &now, reset_fields(call));
        let Applied { object, managers } =
            merge(&objects.versions(call), &write, old, &self.config, self.force)?;
        self.check_duplicates()?;
        let mut value = match (object, old) {
            (Some(object), _) => {
                let registry = objects.registry_of(call.resource());
                let text = json::to_json(&object);
                // Dropped before the text is decoded, which makes another tree of it.
                drop(object);
                let decoded = codec::decode_object(&text, &self.kind, registry);
                objects.to_stored(call, decoded.map_err(|error| Status::bad_request(error.message))?.value)?
            }
            // The object itself was decoded before it was stored.
            (None, old) => old.cloned().unwrap_or_else(Value::object),
        };
        if let Some(managers) = managers {
            managers.store(&mut value);
        }
        let uid = meta::metadata(&value).str("uid");
        if old.is_none() && !uid.is_empty() {
            let reason = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(Status::conflict(call.group_resource(), call.name(), &reason));
        }
        meta::ensure_namespace(&mut value, call.namespace())?;
        meta::check_name(&value, call.name())?;
        meta::dedupe_changed_owners(&mut value).into_iter().for_each(|warning| call.warnings.add(warning));
        Ok(value)
    }

    fn check_duplicates(&self) -> Result<()> {
        match (&self.duplicates, self.validation) {
            (None, _) | (_, FieldValidation::Ignore) => {}
            (Some(duplicates), FieldValidation::Warn) => {
                // A warning is one line, and the first line only announces the others.
                duplicates.lines().skip(1).for_each(|line| self.call.warnings.add(line.trim()));
            }
            (Some(duplicates), FieldValidation::Strict) => {
                return Err(Status::bad_request(format!(
                    "error strict decoding YAML: error converting YAML to JSON: {duplicates}"
                )));
            }
        }
        Ok(())
    }
}

impl NewState for Configuration<'_> {
    fn next_state(&self, old: &Value) -> Result<Value> {
        self.apply_to(Some(old))
    }

    fn initial_state(&self) -> Option<Result<Value>> {
        self.call.subresource().is_empty().then(|| self.apply_to(None))
    }
}
