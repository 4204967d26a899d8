//! Subresources that only accept a POST: bindings, evictions and token requests. Subresources that are read and written go
//! through the other verbs.

mod binding;
mod eviction;
mod token;

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::WriteOptions;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;

use super::VerbResult;
use crate::registry::admission::{Operation, Write};
use crate::registry::{Backend, Call};

/// Their names.
pub const NAMES: [&str; 3] = ["binding", "eviction", "token"];

/// Serves the POST request.
pub async fn create(backend: &Backend, call: &Call<'_>) -> VerbResult {
    let options = WriteOptions::create(call.query)?;
    let body = admit_body(backend, call, &options).await?;
    match call.subresource() {
        "binding" => binding::create(backend, call, &body, options.mode).await,
        "eviction" => eviction::create(backend, call, &body, options.mode).await,
        "token" => token::create(backend, call, body).await,
        _ => Err(Status::no_such_resource()),
    }
}

/// Decodes the body and runs mutating admission.
async fn admit_body(backend: &Backend, call: &Call<'_>, options: &WriteOptions) -> Result<Value> {
    let mut body = backend.objects.decode_body(call, options.field_validation)?;
    meta::ensure_namespace(&mut body, call.namespace())?;
    meta::dedupe_owners(&mut body).into_iter().for_each(|warning| call.warnings.add(warning));
    if call.subresource() == "token" {
        // Token requests are returned to the client, with managedFields.
        token::clear_server_fields(&mut body);
        backend.objects.record(call, None, &mut body);
    }
    let write = Write { backend, call, operation: Operation::Create, old: None };
    backend.admission.mutate(&write, &mut body).await?;
    Ok(body)
}

/// Runs validating admission.
async fn validate_admission(backend: &Backend, call: &Call<'_>, body: &Value) -> Result<()> {
    let write = Write { backend, call, operation: Operation::Create, old: None };
    backend.admission.validate(&write, body).await
}
