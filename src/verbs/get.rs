//! get: one object.

use pilothouse_actors::store::Freshness;
use pilothouse_apimachinery::options::{self, GetOptions};
use pilothouse_apimachinery::status::Status;
use pilothouse_types::object::Revision;

use super::list::{freshness, open, wait_for_revision};
use super::{Reply, Success, VerbResult};
use crate::registry::{Backend, Call};

/// Returns the object that the path names.
pub async fn get(backend: &Backend, call: &Call<'_>) -> VerbResult {
    if call.query.flag("export") == Some(true) && call.query.get("export") != Some("") {
        let reason = "the export parameter, deprecated since v1.14, is no longer supported";
        return Err(Status::bad_request(reason));
    }
    let requested = options::read_revision(&GetOptions::parse(call.query).resource_version)?;
    let mut result = backend.read_at(call, freshness(requested)).await;
    // An object at or after the requested version proves that the version exists. An older one does not.
    let revision = result.as_ref().map_or(0, |object| object.revision.0);
    if let Some(requested) = requested.filter(|requested| *requested > revision) {
        let at_least = Freshness::AtLeast(Revision(requested));
        let position = open(backend, call, at_least).await?;
        if requested > position.snapshot.revision.0 {
            wait_for_revision(backend, call, position, requested).await?;
            result = backend.read_at(call, at_least).await;
        }
    }
    let object = result?;
    if !backend.objects.responds_as_stored(call) {
        call.work().check_bytes(object.bytes.len())?;
    }
    Ok(Reply::Object(Success::Ok, backend.encode_response(call, &object, call.memory_priority()).await?))
}
