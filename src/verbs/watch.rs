//! watch: a session on the connection's own thread follows the history of a type.

use std::cell::Cell;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pilothouse_actors::session::feed::Feed;
use pilothouse_actors::session::{EventEncoder as _, InitialObjects, Session, Watch};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::store::{Freshness, Position};
use pilothouse_apimachinery::options::{self, ListOptions};
use pilothouse_apimachinery::status::Result;
use pilothouse_types::filter::{FieldRule, Filter};
use pilothouse_types::object::{Object, Revision};

use crate::pki::random;

use super::converted_selection::{self, ConvertedFields};
use super::event_frames::EventFrames;
use super::list::{self, filter, open, wait_for_revision};
use super::{Reply, VerbResult, WatchDeps};
use crate::flowcontrol::heavy_pool::OwnedPool;
use crate::registry::{Backend, Call};

/// Opens a stream of matching changes.
pub async fn watch(
    backend: &Rc<Backend>,
    deps: &WatchDeps,
    pool: OwnedPool<Backend>,
    call: &Call<'_>,
) -> VerbResult {
    let mut options = ListOptions::parse(call.query)?;
    options.set_defaults(deps.initial_events);
    options.validate(deps.initial_events)?;
    // A watch may also be requested by the path: by the old /watch/ prefix, or by a name. Only the query is validated as a watch.
    options.watch = true;
    let mut filter = filter(call, &options)?;
    let converted_fields = ConvertedFields::attach(call.resource(), &mut filter);
    let requested = options::revision(&options.resource_version)?;
    let (freshness, requested) = (list::freshness(requested), requested.unwrap_or(0));
    let encoder = Rc::new(EventFrames {
        backend: backend.clone(),
        pool,
        frames_in_progress: deps.frames_in_progress.clone(),
        resource: call.resource().clone(),
        response_format: call.response_format,
        columns: Cell::new(true),
        converted: Rc::default(),
        filter: filter.clone(),
        converted_fields,
        metrics: deps.meter.open(call.resource(), metric_scope(call)),
        began: backend.clock.moment(),
        _watcher: (!is_limited_to_one_node(&filter)).then(|| {
            let name = filter.name.as_deref().unwrap_or_default();
            backend.load.watch(&call.stored().store, call.namespace(), name)
        }),
    });
    let position = match begin(backend, call, &encoder, freshness, requested).await? {
        Ok(position) => position,
        Err(frame) => return Ok(Reply::Watch(Feed::single(frame))),
    };
    let account = deps.memory.open(&call.user().name)?;
    let head = position.snapshot.revision;
    let (initial_objects, cursor): (InitialObjects, _) = match (options.send_initial_events, requested) {
        (Some(true), _) | (None, 0) => {
            let objects = initial_objects(position.snapshot, &filter);
            (convert_initial(backend, call, &filter, objects).await?, head)
        }
        (Some(false), 0) => (Box::new(std::iter::empty()), head),
        (_, requested) => (Box::new(std::iter::empty()), Revision(requested)),
    };
    let feed = Session::open(Watch {
        type_name: call.stored().store.clone(),
        window: position.window,
        initial: initial_objects,
        cursor,
        filter,
        encoder,
        broadcaster: deps.broadcaster.clone(),
        deadline: Some(duration(&options, deps.min_request_timeout)),
        bookmarks: options.allow_watch_bookmarks,
        initial_end_bookmark: options.is_streaming_list(),
        live: deps.live_sessions.clone(),
        account,
        is_current: {
            let (current_resource, resource) = (backend.current_resource.clone(), call.resource().clone());
            Box::new(move || {
                current_resource(&resource).is_some_and(|current| current.ordinal == resource.ordinal)
            })
        },
    });
    Ok(Reply::Watch(feed))
}

/// Where a watch begins, or the only event of one that cannot begin there.
///
/// A client with a resourceVersion in the future got it from another store. If its watch waited for that revision, it would miss all
/// changes until then. The reference does wait; this server returns an error, so that the client starts over.
async fn begin(
    backend: &Backend,
    call: &Call<'_>,
    encoder: &EventFrames,
    freshness: Freshness,
    requested: u64,
) -> Result<std::result::Result<Position, Bytes>> {
    let position = open(backend, call, freshness).await?;
    let position = match wait_for_revision(backend, call, position, requested).await {
        Ok(position) => position,
        Err(status) if status.is_timeout() => return Ok(Err(encoder.error(&status))),
        Err(status) => return Err(status),
    };
    let requested = Revision(requested);
    let gap = position.window.gap_around(requested);
    Ok(gap.map_or(Ok(position), |through| Err(encoder.expired_frame(requested, through))))
}

/// The scope label of metrics.
fn metric_scope(call: &Call<'_>) -> &'static str {
    match (call.name(), call.namespace()) {
        ("", "") => "cluster",
        ("", _) => "namespace",
        _ => "resource",
    }
}

/// Whether a watch is limited to one node. There are as many such watches as nodes, and a write concerns only one of them.
fn is_limited_to_one_node(filter: &Filter) -> bool {
    let is_node = |rule: &FieldRule| matches!(rule, FieldRule::Equals(field, node) if **field == *"spec.nodeName" && !node.is_empty());
    filter.fields.iter().any(is_node)
}

/// The initial events of a watch. A watch of one namespace scans only that namespace; a watch of all namespaces filters as the
/// client reads.
fn initial_objects(snapshot: Snapshot, filter: &Filter) -> InitialObjects {
    match filter.namespace.as_deref() {
        None => Box::new(snapshot.objects.into_iter().map(|(_, object)| object)),
        namespace => {
            let objects: Vec<Arc<Object>> = snapshot.scan(namespace, Bound::Unbounded).cloned().collect();
            Box::new(objects.into_iter())
        }
    }
}

/// The initial events in the requested version. All are converted before the first is sent, as in a list.
async fn convert_initial(
    backend: &Rc<Backend>,
    call: &Call<'_>,
    filter: &Filter,
    objects: InitialObjects,
) -> Result<InitialObjects> {
    if call.resource().custom.as_ref().is_none_or(|custom| custom.conversion.is_none()) {
        return Ok(objects);
    }
    let mut reservations = Vec::new();
    let converted =
        converted_selection::candidates(backend, call, filter, objects, &mut reservations).await?;
    // The budget is released when all of them are sent.
    Ok(Box::new(converted.into_iter().inspect(move |_| {
        let _reservations = &reservations;
    })))
}

/// The duration of a watch: the client's timeout, where a negative one ends at once; otherwise a random time between the minimum
/// and twice that, so that watches do not all end at the same moment.
fn duration(options: &ListOptions, minimum: Duration) -> Duration {
    match options.timeout_seconds {
        Some(seconds) if seconds != 0 => Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
        _ => {
            let extra = random::below(usize::try_from(minimum.as_secs()).unwrap_or(0).max(1));
            minimum + Duration::from_secs(extra as u64)
        }
    }
}
