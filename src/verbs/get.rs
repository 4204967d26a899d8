//! get: one object, as stored.

use pilothouse_apimachinery::options::{self, GetOptions};
use pilothouse_apimachinery::status::Status;

use super::list::{not_older, open};
use super::{Reply, Success, VerbResult};
use crate::backend::{Backend, Call};

/// Answers the object that the path names.
pub async fn get(backend: &Backend, call: &Call<'_>) -> VerbResult {
    if call.query.flag("export") == Some(true) && call.query.get("export") != Some("") {
        let gone = "the export parameter, deprecated since v1.14, is no longer supported";
        return Err(Status::bad_request(gone));
    }
    let requested = options::read_revision(&GetOptions::parse(call.query).resource_version)?;
    let mut found = backend.read(call).await;
    // An object at or after the requested version proves that the version exists. An older one does not.
    let known = found.as_ref().map_or(0, |object| object.revision.0);
    if let Some(requested) = requested.filter(|requested| *requested > known) {
        let position = open(backend, call).await?;
        if requested > position.snapshot.revision.0 {
            not_older(backend, call, position, requested).await?;
            found = backend.read(call).await;
        }
    }
    let found = found?;
    if !backend.objects.shows_verbatim(call) {
        call.work.check_bytes(found.bytes.len())?;
    }
    Ok(Reply::Object(Success::Ok, backend.encode_response(call, &found, call.claim()).await?))
}
