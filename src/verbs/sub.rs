//! What stands below objects. Parts that are read and written go through the verbs as objects do; here is what is only
//! done: a POST that changes the object above it and answers with nothing but success, or that makes a token of it.

mod binding;
mod eviction;
mod token;

use std::sync::Arc;

use crate::api::catalog::Catalog;
use crate::api::catalog::resource::{Resource, Stored};
use crate::api::meta;
use crate::api::options::WriteOptions;
use crate::api::parts;
use crate::api::status::{GroupResource, Result, Status};
use crate::api::value::Value;

use super::admission::{Operation, Write};
use super::{Answered, Backend, Call};

/// Bindings that name their pod in the body. They are what stands below pods under the same name in the singular.
const BINDINGS: GroupResource<'_> = GroupResource { group: "", resource: "bindings" };

/// Whose objects a request is about, where they are, and which part of them. `None`: nobody serves that.
pub fn target<'a>(
    catalog: &'a Catalog,
    resource: &'a Arc<Resource>,
    subresource: &'a str,
) -> Option<(&'a Arc<Resource>, &'a Stored, &'a str)> {
    let (resource, subresource) = if resource.name() == BINDINGS {
        (catalog.find("", "v1", "pods")?, "binding")
    } else {
        (resource, subresource)
    };
    let served = parts::of(subresource).is_some() || matches!(subresource, "binding" | "eviction" | "token");
    resource.stored.as_ref().filter(|_| served).map(|stored| (resource, stored, subresource))
}

/// Does what the body asks for.
pub async fn create(backend: &Backend, call: &Call<'_>) -> Answered {
    let options = WriteOptions::create(call.query)?;
    let body = received(backend, call, &options).await?;
    match call.subresource {
        "binding" => binding::create(backend, call, &body, options.dry_run).await,
        "eviction" => eviction::create(backend, call, &body, options.dry_run).await,
        "token" => token::create(backend, call, body).await,
        _ => Err(Status::no_such_resource()),
    }
}

/// The body, after admission has changed it.
async fn received(backend: &Backend, call: &Call<'_>, options: &WriteOptions) -> Result<Value> {
    let mut body = backend.decode_body(call, options.field_validation)?;
    meta::agree_on_namespace(&mut body, call.namespace)?;
    meta::dedupe_owners(&mut body).into_iter().for_each(|warning| call.warnings.add(warning));
    if call.subresource == "token" {
        // The one body that comes back to the client, with the owners of its fields.
        token::wipe(&mut body);
        backend.record(call, None, &mut body);
    }
    let write = Write { backend, call, operation: Operation::Create, old: None };
    backend.admission.mutate(&write, &mut body).await?;
    Ok(body)
}

/// Lets admission refuse what is about to be done.
async fn admitted(backend: &Backend, call: &Call<'_>, body: &Value) -> Result<()> {
    let write = Write { backend, call, operation: Operation::Create, old: None };
    backend.admission.validate(&write, body).await
}
