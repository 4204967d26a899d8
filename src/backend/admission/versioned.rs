//! Objects as webhooks and expressions see them: complete, and in the version that a rule names.

use std::sync::Arc;

use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_types::object::Object;

use super::Write;

/// The group version and kind that a resource or subresource shows.
pub fn kind<'a>(resource: &'a Resource, subresource: &str) -> (&'a GroupVersion, &'a str) {
    match resource.subresource(subresource) {
        Some(sub) => (&sub.gv, &sub.kind),
        None => (&resource.gv, &resource.kind),
    }
}

/// The new and the old object of a write; null if absent.
pub async fn states(write: &Write<'_>, object: &Value, resource: &Resource) -> Result<(Value, Value)> {
    let old = match write.old {
        Some(old) => state(write, old, resource).await?,
        None => Value::Null,
    };
    Ok((state(write, object, resource).await?, old))
}

/// The object of a write as another resource with the same objects shows it.
async fn state(write: &Write<'_>, value: &Value, resource: &Resource) -> Result<Value> {
    if value.is_null() {
        return Ok(Value::Null);
    }
    let (gv, name) = kind(resource, write.call.subresource);
    let own = *name == *resource.kind;
    if let Some(custom) = resource.custom.as_ref().filter(|_| own) {
        let is_other = resource.gv != write.call.resource.gv;
        let value = match is_other {
            true => write.backend.value_in_version(write.call, custom, value.clone()).await?,
            false => value.clone(),
        };
        return Ok(named(value, gv, name));
    }
    let value = match own {
        true => write.backend.objects.convert(value.clone(), &write.call.stored.version, gv, name)?,
        // A subresource of another kind has its own version.
        false => value.clone(),
    };
    whole(write, &value, gv, name)
}

/// A stored object as a resource shows it.
pub async fn stored(write: &Write<'_>, resource: &Resource, object: Arc<Object>) -> Result<Value> {
    let (permit, claim) = (&write.call.permit, write.call.claim());
    let found = write.backend.in_version(resource, vec![object.clone()], permit, claim).await?;
    let value = write.backend.objects.load_of(resource, found.first().unwrap_or(&object))?;
    if resource.custom.is_some() {
        return Ok(named(value, &resource.gv, &resource.kind));
    }
    let from = resource.stored.as_ref().map_or(&resource.gv, |stored| &stored.version);
    let value = write.backend.objects.convert(value, from, &resource.gv, &resource.kind)?;
    whole(write, &value, &resource.gv, &resource.kind)
}

/// A value of a built-in kind, including the fields that are shown though not set.
pub fn whole(write: &Write<'_>, value: &Value, gv: &GroupVersion, kind: &str) -> Result<Value> {
    let text =
        codec::encode(&write.backend.objects.registry, write.backend.objects.type_of(gv, kind)?, value);
    let read = json::read(&text).map_err(|error| Status::internal(error.to_string()))?;
    Ok(named(read, gv, kind))
}

/// A value that says what it is.
pub fn named(mut value: Value, gv: &GroupVersion, kind: &str) -> Value {
    value.set("apiVersion", gv.to_string());
    value.set("kind", kind);
    value
}
