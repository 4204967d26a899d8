//! get: one object, as stored.

use super::{Answered, Backend, Call, Reply};
use crate::api::options::{self, GetOptions};
use crate::api::status::Status;

/// Answers the object that the path names.
pub async fn get(backend: &Backend, call: &Call<'_>) -> Answered {
    let wanted = options::revision(&GetOptions::parse(call.query).resource_version)?;
    let object = backend.read(call).await?;
    // An object at or behind the wanted version proves that the version exists; only an older one leaves it open.
    if let Some(wanted) = wanted.filter(|wanted| *wanted > object.revision.0) {
        let snapshot = backend.stores.snapshot(&call.stored.store, &call.permit).await;
        let head = snapshot.map_err(|error| Status::from_store(&error, call.of(), call.name))?.revision.0;
        if wanted > head {
            return Err(Status::future_version(wanted, head));
        }
    }
    Ok(Reply::Object(200, backend.show(call, &object)?))
}
