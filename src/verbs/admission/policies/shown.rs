//! Objects and options as expressions see them: all that a client would be shown, in the version that a rule names.

use pilothouse_actors::object::Object;

use crate::api::catalog::resource::Resource;
use crate::api::codec::{self, json};
use crate::api::media::Encoding;
use crate::api::status::{Result, Status};
use crate::api::value::Value;
use crate::api::version::GroupVersion;

use super::super::{Operation, Write};

/// The version and kind of what a path below a resource shows.
pub fn kind<'a>(resource: &'a Resource, subresource: &str) -> (&'a GroupVersion, &'a str) {
    match resource.subresource(subresource) {
        Some(sub) => (&sub.gv, &sub.kind),
        None => (&resource.gv, &resource.kind),
    }
}

/// A state of the object that a write is about, as another resource that shows the same objects would.
pub fn state(write: &Write<'_>, value: &Value, resource: &Resource) -> Result<Value> {
    if value.is_null() {
        return Ok(Value::Null);
    }
    let (gv, name) = kind(resource, write.call.subresource);
    let own = *name == *resource.kind;
    if own && resource.custom.is_some() {
        return Ok(named(value.clone(), gv, name));
    }
    let value = match own {
        true => write.backend.convert(value.clone(), &write.call.stored.version, gv, name)?,
        // What looks like another kind is in its own version.
        false => value.clone(),
    };
    whole(write, &value, gv, name)
}

/// A stored object, as a resource shows it.
pub fn stored(write: &Write<'_>, resource: &Resource, object: &Object) -> Result<Value> {
    let value = write.backend.load_of(resource, object)?;
    if resource.custom.is_some() {
        return Ok(named(value, &resource.gv, &resource.kind));
    }
    let from = resource.stored.as_ref().map_or(&resource.gv, |stored| &stored.version);
    let value = write.backend.convert(value, from, &resource.gv, &resource.kind)?;
    whole(write, &value, &resource.gv, &resource.kind)
}

/// A value of a built-in kind with the fields that are shown though nobody set them.
pub fn whole(write: &Write<'_>, value: &Value, gv: &GroupVersion, kind: &str) -> Result<Value> {
    let text = codec::encode(&write.backend.registry, write.backend.type_of(gv, kind)?, value);
    let read = json::read(&text).map_err(|error| Status::internal(error.to_string()))?;
    Ok(named(read, gv, kind))
}

fn named(mut value: Value, gv: &GroupVersion, kind: &str) -> Value {
    value.set("apiVersion", gv.to_string());
    value.set("kind", kind);
    value
}

/// The options of a write as an object; nothing for a connection, whose options are its object.
pub fn options(write: &Write<'_>) -> Value {
    let call = write.call;
    let mut options = match write.operation {
        Operation::Delete if call.encoding == Encoding::Json && !call.body.is_empty() => {
            json::read(&call.body).ok().filter(|body| body.fields().is_some()).unwrap_or_else(Value::object)
        }
        _ => Value::object(),
    };
    let kind = match write.operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
        Operation::Connect => return Value::Null,
    };
    options.set("kind", kind);
    options.set("apiVersion", "meta.k8s.io/v1");
    let trials: Vec<Value> = call.query.all("dryRun").map(Value::from).collect();
    if !trials.is_empty() {
        options.set("dryRun", trials);
    }
    let texts: &[&str] = match write.operation {
        Operation::Delete => &["propagationPolicy"],
        _ => &["fieldManager", "fieldValidation"],
    };
    for field in texts {
        if let Some(text) = call.query.all(field).find(|text| !text.is_empty()) {
            options.set(field, text);
        }
    }
    if write.operation == Operation::Delete
        && let Some(seconds) = call.query.all("gracePeriodSeconds").find_map(|text| text.parse::<i64>().ok())
    {
        options.set("gracePeriodSeconds", Value::Int(seconds));
    }
    options
}
