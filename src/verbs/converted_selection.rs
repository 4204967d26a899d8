//! Field selectors of versions that a conversion webhook makes: they select by the fields of the requested version, so objects are
//! converted before they are selected.

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
use crate::backend::{Backend, Call};

/// Whether a filter selects by fields that objects have only in another version than the stored one.
fn selects_converted(resource: &Resource, filter: &Filter) -> bool {
    filter.reader.is_some() && resource.custom.as_ref().is_some_and(|custom| custom.conversion.is_some())
}

/// The part of a snapshot that a filter can match, in the version of the call if the filter selects by its fields. The memory of
/// the converted objects is added to `held`.
pub(super) async fn view(
    backend: &Backend,
    call: &Call<'_>,
    snapshot: &Snapshot,
    filter: &Filter,
    start: &Start,
    held: &mut Vec<Reservation>,
) -> Result<Snapshot> {
    if !selects_converted(call.resource, filter) {
        return Ok(snapshot.clone());
    }
    let namespace = filter.namespace.as_deref();
    let from = start.key(namespace);
    let found = snapshot.scan(namespace, from.as_deref().map_or(Bound::Unbounded, Bound::Included));
    let made = candidates(backend, call, filter, found.cloned(), held).await?;
    let objects = made.into_iter().map(|object| (object.key.clone(), object)).collect();
    Ok(Snapshot { revision: snapshot.revision, objects })
}

/// The objects that match apart from their fields, in the version of the call.
pub(super) async fn candidates(
    backend: &Backend,
    call: &Call<'_>,
    filter: &Filter,
    objects: impl Iterator<Item = Arc<Object>>,
    held: &mut Vec<Reservation>,
) -> Result<Vec<Arc<Object>>> {
    let by_converted = selects_converted(call.resource, filter);
    let beforehand = match by_converted {
        true => Filter { fields: Vec::new(), reader: None, ..filter.clone() },
        false => filter.clone(),
    };
    let is_wanted = |object: &Arc<Object>| {
        // Damaged objects are reported by whoever selects.
        beforehand.matches(object) || (!object.is_readable() && filter.wants_key(&object.key))
    };
    let wanted: Vec<Arc<Object>> = objects.filter(is_wanted).collect();
    let weight = wanted.iter().map(|object| object.bytes.len()).sum();
    held.push(backend.lists.take_more(weight, held)?);
    backend.in_version(call.resource, wanted, &call.permit, call.claim()).await
}

/// The selectable fields of the objects that a watch is about to send, in the version of the watch.
#[derive(Clone)]
pub(super) struct ConvertedFields {
    known: Arc<Lock<HashMap<(Key, Revision), Pairs>>>,
    reader: FieldReader,
}

impl ConvertedFields {
    /// Makes a filter select by these fields; `None` if it does not need them.
    pub(super) fn selected_by(resource: &Resource, filter: &mut Filter) -> Option<ConvertedFields> {
        let reader = filter.reader.clone().filter(|_| selects_converted(resource, filter))?;
        let fields = ConvertedFields { known: Arc::default(), reader };
        let of_watch = fields.clone();
        filter.reader = Some(FieldReader::new(fields.reader.mark(), move |object| {
            let known = of_watch.known.lock().get(&state(object)).cloned();
            known.unwrap_or_else(|| of_watch.reader.read(object))
        }));
        Some(fields)
    }

    /// Keeps the fields of an object, read from its converted form.
    pub(super) fn keep(&self, object: &Object, converted: &Object) {
        let fields = self.reader.read(converted);
        self.known.lock().insert(state(object), fields);
    }

    /// Forgets the fields of all other objects.
    pub(super) fn keep_only<'a>(&self, objects: impl Iterator<Item = &'a Object>) {
        let states: HashSet<(Key, Revision)> = objects.map(state).collect();
        self.known.lock().retain(|known, _| states.contains(known));
    }
}

fn state(object: &Object) -> (Key, Revision) {
    (object.key.clone(), object.revision)
}
