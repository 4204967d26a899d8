//! watch: a session on the connection's own thread follows the history of a type.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use pilothouse_actors::clock::Timestamp;
use pilothouse_actors::feed::Feed;
use pilothouse_actors::filter::{FieldRule, Filter};
use pilothouse_actors::object::{Object, Revision, Variant};
use pilothouse_actors::session::{EventEncoder, Preparation, Session, Watch};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::watch_event::{self, WatchEventType};
use pilothouse_actors::window::{Change, Event};

use crate::api::catalog::resource::Resource;
use crate::api::codec::{cbor, encode_document, protobuf};
use crate::api::media::Encoding;
use crate::api::options::{self, ListOptions};
use crate::api::print;
use crate::api::response_format::{Representation, ResponseFormat};
use crate::api::status::{Result, Status};
use crate::metrics::watches::OpenWatch;
use crate::random;

use super::converted_selection::{self, ConvertedFields};
use super::list::{filter, not_older, open};
use super::{Reply, VerbResult, WatchDeps};
use crate::backend::load_stats::Watcher;
use crate::backend::objects::Objects;
use crate::backend::present::variant;
use crate::backend::{Backend, Call};

/// Answers a stream of matching changes.
pub async fn watch(backend: &Rc<Backend>, watching: &WatchDeps, call: &Call<'_>) -> VerbResult {
    let mut options = ListOptions::parse(call.query)?;
    options.set_defaults(watching.initial_events);
    options.validate(watching.initial_events)?;
    // The path may request a watch, too: by the old /watch/ prefix, or by a name. Only the query is validated as a watch.
    options.watch = true;
    let mut filter = filter(call, &options)?;
    let converted_fields = ConvertedFields::selected_by(call.resource, &mut filter);
    let requested = options::revision(&options.resource_version)?.unwrap_or(0);
    let scope = match (call.name, call.namespace) {
        ("", "") => "cluster",
        ("", _) => "namespace",
        _ => "resource",
    };
    let encoder = Rc::new(EventFrames {
        backend: backend.clone(),
        resource: call.resource.clone(),
        form: call.form,
        columns: Cell::new(true),
        ready: Rc::default(),
        filter: filter.clone(),
        converted_fields,
        counted: watching.metrics.watch(call.resource, scope),
        _watcher: (!is_limited_to_one_node(&filter)).then(|| {
            let name = filter.name.as_deref().unwrap_or_default();
            backend.load.watch(&call.stored.store, call.namespace, name)
        }),
    });
    // A client with a version from the future has talked to another store. If its watch waited for that version, it would miss
    // everything until then. The reference does wait; this server returns an error, so that the client starts over.
    let position = match not_older(backend, call, open(backend, call).await?, requested).await {
        Ok(position) => position,
        Err(status) if status.is_timeout() => return Ok(Reply::Watch(Feed::only(encoder.error(&status)))),
        Err(status) => return Err(status),
    };
    let account = watching.memory.open(&call.user.name)?;
    let head = position.snapshot.revision;
    let (initial, cursor): (Box<dyn Iterator<Item = Arc<Object>>>, _) =
        match (options.send_initial_events, requested) {
            (Some(true), _) | (None, 0) => {
                let initial = initial(position.snapshot, &filter);
                (converted(backend, call, &filter, initial).await?, head)
            }
            (Some(false), 0) => (Box::new(std::iter::empty()), head),
            (_, requested) => (Box::new(std::iter::empty()), Revision(requested)),
        };
    let feed = Session::open(Watch {
        type_name: call.stored.store.clone(),
        window: position.window,
        initial,
        cursor,
        filter,
        encoder,
        broadcaster: watching.broadcaster.clone(),
        deadline: Some(lifetime(&options, watching.min_request_timeout)),
        bookmarks: options.allow_watch_bookmarks,
        initial_end_bookmark: options.is_streaming_list(),
        live: watching.live_sessions.clone(),
        account,
        is_current: {
            let (served_now, resource) = (backend.served_now.clone(), call.resource.clone());
            Box::new(move || served_now(&resource).is_some_and(|now| Arc::ptr_eq(&now, &resource)))
        },
    });
    Ok(Reply::Watch(feed))
}

/// Whether a watch is limited to one node. There are as many such watches as nodes, and a write concerns only one of them.
fn is_limited_to_one_node(filter: &Filter) -> bool {
    let is_node = |rule: &FieldRule| matches!(rule, FieldRule::Equals(field, node) if **field == *"spec.nodeName" && !node.is_empty());
    filter.fields.iter().any(is_node)
}

/// The initial events of a watch. A watch of one namespace scans only that namespace; a watch of all namespaces filters as the
/// client reads.
fn initial(snapshot: Snapshot, filter: &Filter) -> Box<dyn Iterator<Item = Arc<Object>>> {
    match filter.namespace.as_deref() {
        None => Box::new(snapshot.objects.into_iter().map(|(_, object)| object)),
        namespace => {
            let objects: Vec<Arc<Object>> = snapshot.scan(namespace, Bound::Unbounded).cloned().collect();
            Box::new(objects.into_iter())
        }
    }
}

/// The initial events in the requested version. All are converted before the first is sent, as in a list.
async fn converted(
    backend: &Rc<Backend>,
    call: &Call<'_>,
    filter: &Filter,
    initial: Box<dyn Iterator<Item = Arc<Object>>>,
) -> Result<Box<dyn Iterator<Item = Arc<Object>>>> {
    if call.resource.custom.as_ref().is_none_or(|custom| custom.conversion.is_none()) {
        return Ok(initial);
    }
    let mut held = Vec::new();
    let made = converted_selection::candidates(backend, call, filter, initial, &mut held).await?;
    // The budget is released when all of them are sent.
    Ok(Box::new(made.into_iter().inspect(move |_| {
        let _still = &held;
    })))
}

/// The duration of a watch: the client's timeout, where a negative one ends at once; otherwise a random time between the minimum
/// and twice that, so that watches do not all end at the same moment.
fn lifetime(options: &ListOptions, minimum: Duration) -> Duration {
    match options.timeout_seconds {
        Some(seconds) if seconds != 0 => Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
        _ => {
            let extra = random::below(usize::try_from(minimum.as_secs()).unwrap_or(0).max(1));
            minimum + Duration::from_secs(extra as u64)
        }
    }
}

/// Encodes events in the form that the client requested.
struct EventFrames {
    backend: Rc<Backend>,
    resource: Arc<Resource>,
    form: ResponseFormat,
    /// Column definitions are sent once, with the first row, except for kinds that repeat them.
    columns: Cell<bool>,
    /// Converted objects by their stored bytes, for the events of one turn at most.
    ready: Rc<RefCell<HashMap<Bytes, Object>>>,
    /// The filter of the watch.
    filter: Filter,
    /// The fields by which it selects, if they are those of converted objects.
    converted_fields: Option<ConvertedFields>,
    /// Counts this watch and its events in metrics.
    counted: OpenWatch,
    /// Counts this watch for the estimated cost of writes.
    _watcher: Option<Watcher>,
}

impl EventFrames {
    /// Wraps an encoded object into an event.
    fn wrap(&self, kind: &str, object: &[u8]) -> Bytes {
        wrap(self.form, kind, object)
    }

    /// The states of an event's object that must be in the version of the watch before the event can be written.
    fn states_needed<'e>(&self, event: &'e Event) -> Vec<&'e Arc<Object>> {
        if self.converted_fields.is_some() {
            // Only their fields will tell whether the watch wants them.
            let states = std::iter::once(&event.object).chain(&event.previous);
            return states.filter(|object| self.filter.wants_key(&object.key)).collect();
        }
        let Some(event_type) = watch_event::event_type_for(&self.filter, event) else { return Vec::new() };
        if event.is_written(event_type.frame_of(self.variant())) {
            return Vec::new();
        }
        // The same choice as `watch_event::object_for`. The cache belongs to the object itself, whose revision differs.
        match (event_type, event.change, &event.previous) {
            (WatchEventType::Deleted, Change::Replaced, Some(previous)) => vec![previous],
            _ => vec![&event.object],
        }
    }

    fn error(&self, status: &Status) -> Bytes {
        error(&self.backend.objects, self.form, status)
    }
}

fn wrap(form: ResponseFormat, kind: &str, object: &[u8]) -> Bytes {
    match form.encoding {
        Encoding::Json | Encoding::Yaml => json_line(kind, object),
        Encoding::Protobuf => Bytes::from(protobuf::watch_frame(kind, object)),
        Encoding::Cbor => Bytes::from(cbor::watch_event(kind, object)),
    }
}

fn error(objects: &Objects, form: ResponseFormat, status: &Status) -> Bytes {
    let object = encode_document(&objects.registry, form.encoding, &status.to_json());
    wrap(form, "ERROR", &object.unwrap_or_else(|_| status.to_json()))
}

/// An event as a JSON document on a line of its own.
fn json_line(kind: &str, object: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(object.len() + kind.len() + 24);
    frame.put_slice(br#"{"type":""#);
    frame.put_slice(kind.as_bytes());
    frame.put_slice(br#"","object":"#);
    frame.put_slice(object);
    frame.put_slice(b"}\n");
    frame.freeze()
}

impl EventEncoder for EventFrames {
    fn variant(&self) -> Variant {
        let described = matches!(self.form.shape, Representation::Table(..)) && self.columns.get();
        Variant(2 * variant(&self.resource, self.form).0 + u32::from(described))
    }

    fn frame(&self, event_type: WatchEventType, object: &Object) -> Bytes {
        let kind = match event_type {
            WatchEventType::Added => "ADDED",
            WatchEventType::Modified => "MODIFIED",
            WatchEventType::Deleted => "DELETED",
        };
        let ready = self.ready.borrow();
        let object = ready.get(&object.bytes).unwrap_or(object);
        match self.backend.objects.present(&self.resource, self.form, object, self.columns.get()) {
            Ok(bytes) => self.wrap(kind, &bytes),
            Err(status) => self.error(&status),
        }
    }

    fn sent(&self) {
        self.columns.set(print::describes_every_event(&self.resource));
    }

    fn bookmark(&self, at: Revision, initial_end: bool) -> Bytes {
        match self.backend.objects.bookmark(&self.resource, self.form, at, initial_end, self.columns.get()) {
            Ok(object) => self.wrap("BOOKMARK", &object),
            Err(status) => self.error(&status),
        }
    }

    fn prepare(&self, events: &[Arc<Event>]) -> Option<Preparation> {
        self.resource.custom.as_ref().filter(|custom| custom.conversion.is_some())?;
        let states = events.iter().flat_map(|event| {
            self.states_needed(event).into_iter().map(|object| (object.clone(), event.revision()))
        });
        let mut batch: Vec<(Arc<Object>, Revision)> = states.collect();
        if let Some(fields) = &self.converted_fields {
            fields.keep_only(batch.iter().map(|(object, _)| &**object));
        }
        batch.retain(|(object, _)| self.backend.is_foreign(&self.resource, object));
        let key = |(object, at): &(Arc<Object>, Revision)| object.at(*at).bytes;
        let keys: HashSet<Bytes> = batch.iter().map(key).collect();
        // Other entries were sent already.
        self.ready.borrow_mut().retain(|known, _| keys.contains(known));
        batch.retain(|state| !self.ready.borrow().contains_key(&key(state)));
        if batch.is_empty() {
            return None;
        }
        let (backend, resource, form) = (self.backend.clone(), self.resource.clone(), self.form);
        let (ready, fields) = (self.ready.clone(), self.converted_fields.clone());
        Some(Box::pin(async move {
            let objects = batch.iter().map(|(object, _)| object.clone()).collect();
            let made = backend.in_version_by_turns(&resource, objects).await;
            let made = made.map_err(|status| error(&backend.objects, form, &status))?;
            for ((object, at), made) in batch.iter().zip(made) {
                if let Some(fields) = &fields {
                    fields.keep(object, &made);
                }
                ready.borrow_mut().insert(object.at(*at).bytes, made.at(*at));
            }
            Ok(())
        }))
    }

    fn expired(&self, cursor: Revision, floor: Revision) -> Bytes {
        self.error(&Status::watch_expired(cursor.0, floor.0))
    }

    fn delivered(&self, events: usize, oldest: Timestamp) {
        self.ready.borrow_mut().clear();
        self.counted.delivered(events, oldest, self.backend.clock.now());
    }

    fn unreadable(&self, object: &Object, is_gone: bool) -> Bytes {
        let status = if is_gone {
            Status::unreadable_gone(object.revision.0)
        } else {
            Status::unreadable(self.resource.name(), object.key.as_str(), object.revision.0)
        };
        self.error(&status)
    }
}
