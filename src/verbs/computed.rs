//! Resources whose objects are computed for each request instead of being stored. The catalog says which, and how.

use pilothouse_api::catalog::backing::ComputedKind;
use pilothouse_apimachinery::status::Status;
use pilothouse_apimachinery::verb::Verb;

use super::{VerbResult, component_status, review};
use crate::registry::{Backend, Call};

/// Carries out a call for a computed resource.
pub async fn dispatch(backend: &Backend, verb: Verb, call: &Call<'_>, kind: ComputedKind) -> VerbResult {
    match (kind, verb) {
        (ComputedKind::ComponentStatus, Verb::Get) => component_status::get(backend, call).await,
        (ComputedKind::ComponentStatus, Verb::List) => component_status::list(backend, call).await,
        (ComputedKind::Review(kind), Verb::Create) => review::create(backend, call, kind).await,
        _ => Err(Status::method_not_allowed()),
    }
}
