//! Field selectors for resources with a conversion webhook. They select by the fields of the requested version, so objects are
//! converted before they are matched.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use pilothouse_actors::snapshot::Snapshot;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::status::Result;
use pilothouse_types::filter::{FieldReader, Filter};
use pilothouse_types::lock::Lock;
use pilothouse_types::memory::Reservation;
use pilothouse_types::object::{Key, Object, Pairs, Revision};

use super::paging::Start;
use crate::registry::{Backend, Call};

/// Whether a filter selects by fields that objects have only in another version than the stored one.
fn selects_converted(resource: &Resource, filter: &Filter) -> bool {
    filter.reader.is_some() && resource.custom.as_ref().is_some_and(|custom| custom.conversion.is_some())
}

/// The part of a snapshot that a filter can match, in the version of the call if the filter selects by its fields. The memory of
/// the converted objects is added to `reservations`.
pub(super) async fn candidate_snapshot(
    backend: &Backend,
    call: &Call<'_>,
    snapshot: &Snapshot,
    filter: &Filter,
    start: &Start,
    reservations: &mut Vec<Reservation>,
) -> Result<Snapshot> {
    if !selects_converted(call.resource(), filter) {
        return Ok(snapshot.clone());
    }
    let namespace = filter.namespace.as_deref();
    let start_key = start.key(namespace);
    let candidates_in_scope =
        snapshot.scan(namespace, start_key.as_deref().map_or(Bound::Unbounded, Bound::Included));
    let converted = candidates(backend, call, filter, candidates_in_scope.cloned(), reservations).await?;
    let objects = converted.into_iter().map(|object| (object.key.clone(), object)).collect();
    Ok(Snapshot { objects, ..snapshot.clone() })
}

/// The objects that match without the field selector, in the version of the call.
pub(super) async fn candidates(
    backend: &Backend,
    call: &Call<'_>,
    filter: &Filter,
    objects: impl Iterator<Item = Arc<Object>>,
    reservations: &mut Vec<Reservation>,
) -> Result<Vec<Arc<Object>>> {
    let uses_converted_fields = selects_converted(call.resource(), filter);
    let prefilter = match uses_converted_fields {
        true => Filter { fields: Vec::new(), reader: None, ..filter.clone() },
        false => filter.clone(),
    };
    let is_candidate = |object: &Arc<Object>| {
        // Corrupt objects are reported when the page is selected.
        prefilter.matches(object) || (!object.is_readable() && filter.matches_key(&object.key))
    };
    let selected: Vec<Arc<Object>> = objects.filter(is_candidate).collect();
    let bytes = selected.iter().map(|object| object.bytes.len()).sum();
    reservations.push(backend.lists.take_more(bytes, reservations)?);
    backend.convert_to_version(call.resource(), selected, call.permit(), call.memory_priority()).await
}

/// The selectable fields of the objects that a watch is about to send, in the version of the watch.
#[derive(Clone)]
pub(super) struct ConvertedFields {
    fields: Arc<Lock<HashMap<(Key, Revision), Pairs>>>,
    reader: FieldReader,
}

impl ConvertedFields {
    /// Makes a filter select by these fields; `None` if it does not need them.
    pub(super) fn attach(resource: &Resource, filter: &mut Filter) -> Option<ConvertedFields> {
        let reader = filter.reader.clone().filter(|_| selects_converted(resource, filter))?;
        let converted_fields = ConvertedFields { fields: Arc::default(), reader };
        let shared = converted_fields.clone();
        filter.reader = Some(FieldReader::new(converted_fields.reader.mark(), move |object| {
            let cached = shared.fields.lock().get(&revision_key(object)).cloned();
            cached.unwrap_or_else(|| shared.reader.read(object))
        }));
        Some(converted_fields)
    }

    /// Records the fields of an object, read from its converted form.
    pub(super) fn insert(&self, object: &Object, converted: &Object) {
        let values = self.reader.read(converted);
        self.fields.lock().insert(revision_key(object), values);
    }

    /// Removes the fields of all other objects.
    pub(super) fn retain_only<'a>(&self, objects: impl Iterator<Item = &'a Object>) {
        let states: HashSet<(Key, Revision)> = objects.map(revision_key).collect();
        self.fields.lock().retain(|key, _| states.contains(key));
    }
}

fn revision_key(object: &Object) -> (Key, Revision) {
    (object.key.clone(), object.revision)
}
