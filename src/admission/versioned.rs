//! Objects for webhooks and expressions: with all fields, and in the version that a rule matched.

use std::sync::Arc;

use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_types::object::Object;

use super::Write;

/// The group version and kind of a resource or subresource.
pub fn kind<'a>(resource: &'a Resource, subresource: &str) -> (&'a GroupVersion, &'a str) {
    match resource.subresource(subresource) {
        Some(sub) => (&sub.gv, &sub.kind),
        None => (&resource.gv, &resource.kind),
    }
}

/// The new and the old object of a write; null if absent.
pub async fn states(write: &Write<'_>, object: &Value, resource: &Resource) -> Result<(Value, Value)> {
    let old = match write.old {
        Some(old) => to_resource(write, old, resource).await?,
        None => Value::Null,
    };
    Ok((to_resource(write, object, resource).await?, old))
}

/// The object of a write in the version of another resource with the same objects.
async fn to_resource(write: &Write<'_>, value: &Value, resource: &Resource) -> Result<Value> {
    if value.is_null() {
        return Ok(Value::Null);
    }
    let (gv, name) = kind(resource, write.call.subresource());
    let is_own_kind = *name == *resource.kind;
    if let Some(custom) = resource.custom.as_ref().filter(|_| is_own_kind) {
        let is_other_version = resource.gv != write.call.resource().gv;
        let value = match is_other_version {
            true => write.backend.convert_value(write.call, custom, value.clone()).await?,
            false => value.clone(),
        };
        return Ok(with_kind(value, gv, name));
    }
    let value = match is_own_kind {
        true => write.backend.objects.convert(value.clone(), &write.call.stored().version, gv, name)?,
        // A subresource of another kind has its own version.
        false => value.clone(),
    };
    complete(write, &value, gv, name)
}

/// A stored object in the version of a resource.
pub async fn load_stored(write: &Write<'_>, resource: &Resource, object: Arc<Object>) -> Result<Value> {
    let (permit, priority) = (write.call.permit(), write.call.memory_priority());
    let converted =
        write.backend.convert_to_version(resource, vec![object.clone()], permit, priority).await?;
    let value = write.backend.objects.load_resource(resource, converted.first().unwrap_or(&object))?;
    if resource.custom.is_some() {
        return Ok(with_kind(value, &resource.gv, &resource.kind));
    }
    let from = resource.stored().map_or(&resource.gv, |stored| &stored.version);
    let value = write.backend.objects.convert(value, from, &resource.gv, &resource.kind)?;
    complete(write, &value, &resource.gv, &resource.kind)
}

/// A value of a built-in kind, including fields that are encoded even if they are not set.
pub fn complete(write: &Write<'_>, value: &Value, gv: &GroupVersion, kind: &str) -> Result<Value> {
    let text =
        codec::encode(&write.backend.objects.registry, write.backend.objects.type_of(gv, kind)?, value);
    let decoded = json::read(&text).map_err(|error| Status::internal(error.to_string()))?;
    Ok(with_kind(decoded, gv, kind))
}

/// Sets apiVersion and kind.
pub fn with_kind(mut value: Value, gv: &GroupVersion, kind: &str) -> Value {
    value.set("apiVersion", gv.to_string());
    value.set("kind", kind);
    value
}
