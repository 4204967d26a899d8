//! Events as the client of a watch wants them: in its encoding, representation and version.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, WeakShared};
use pilothouse_actors::event::Event;
use pilothouse_actors::session::{EventEncoder, FrameAside, Preparation};
use pilothouse_actors::watch_event::{self, WatchEventType};
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::print;
use pilothouse_apimachinery::codec::{cbor, encode_document, protobuf};
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::response_format::{Representation, ResponseFormat};
use pilothouse_apimachinery::status::Status;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::filter::Filter;
use pilothouse_types::object::{Object, Revision, Variant};

use crate::backend::Backend;
use crate::backend::load_stats::Watcher;
use crate::backend::objects::Objects;
use crate::backend::present::{is_sent_as_stored, variant};
use crate::heavy_pool::OwnedPool;
use crate::metrics::watches::OpenWatch;

use super::converted_selection::ConvertedFields;

/// The frames of large objects that the threads for heavy work are writing for the watches of one worker. Watches that need the same
/// frame at the same time wait for it together. Cheap to clone.
#[derive(Clone, Default)]
pub struct FramesAside(Rc<RefCell<HashMap<FrameKey, SharedFrame>>>);

/// A frame by the revision of its object and by its form, which is that of one resource. Exempt watches do not wait for those of
/// others.
#[derive(PartialEq, Eq, Hash)]
struct FrameKey {
    revision: Revision,
    variant: Variant,
    is_exempt: bool,
}

type SharedFrame = WeakShared<LocalBoxFuture<'static, Bytes>>;

impl FramesAside {
    /// Waits for a frame that somebody is writing, or else for `write`.
    fn join(&self, key: FrameKey, write: impl Future<Output = Bytes> + 'static) -> FrameAside {
        let mut frames = self.0.borrow_mut();
        frames.retain(|_, frame| frame.upgrade().is_some());
        if let Some(frame) = frames.get(&key).and_then(WeakShared::upgrade) {
            return Box::pin(frame);
        }
        let frame = write.boxed_local().shared();
        frames.extend(frame.downgrade().map(|weak| (key, weak)));
        Box::pin(frame)
    }
}

/// Encodes events in the form that the client requested.
pub(super) struct EventFrames {
    pub(super) backend: Rc<Backend>,
    /// The threads on which large objects are encoded.
    pub(super) pool: OwnedPool<Backend>,
    pub(super) aside: FramesAside,
    pub(super) resource: Arc<Resource>,
    pub(super) form: ResponseFormat,
    /// Column definitions are sent once, with the first row, except for kinds that repeat them.
    pub(super) columns: Cell<bool>,
    /// Converted objects by their stored bytes, for the events of one turn at most.
    pub(super) converted: Rc<RefCell<HashMap<Bytes, Arc<Object>>>>,
    /// The filter of the watch.
    pub(super) filter: Filter,
    /// The fields by which it selects, if they are those of converted objects.
    pub(super) converted_fields: Option<ConvertedFields>,
    /// Counts this watch and its events in metrics.
    pub(super) counted: OpenWatch,
    /// Counts this watch for the estimated cost of writes.
    pub(super) _watcher: Option<Watcher>,
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
        // The cache belongs to the object itself, whose revision may differ.
        vec![watch_event::shown_object(event_type, event)]
    }

    pub(super) fn error(&self, status: &Status) -> Bytes {
        error(&self.backend.objects, self.form, status)
    }
}

/// An event with an object in the version of the watch.
fn frame(
    objects: &Objects,
    resource: &Resource,
    form: ResponseFormat,
    event_type: WatchEventType,
    object: &Object,
    columns: bool,
) -> Bytes {
    let event_type = match event_type {
        WatchEventType::Added => "ADDED",
        WatchEventType::Modified => "MODIFIED",
        WatchEventType::Deleted => "DELETED",
    };
    match objects.present(resource, form, object, columns) {
        Ok(bytes) => wrap(form, event_type, &bytes),
        Err(status) => error(objects, form, &status),
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
        let converted = self.converted.borrow();
        let object = converted.get(&object.bytes).map_or(object, |converted| &**converted);
        let columns = self.columns.get();
        frame(&self.backend.objects, &self.resource, self.form, event_type, object, columns)
    }

    fn is_slow(&self) -> bool {
        !is_sent_as_stored(&self.resource, self.form)
    }

    fn frame_aside(&self, event_type: WatchEventType, object: Arc<Object>) -> FrameAside {
        let key = FrameKey {
            revision: object.revision,
            variant: event_type.frame_of(self.variant()),
            is_exempt: self.pool.owner.is_exempt,
        };
        let object = self.converted.borrow().get(&object.bytes).cloned().unwrap_or(object);
        let (backend, pool, resource) = (self.backend.clone(), self.pool.clone(), self.resource.clone());
        let (form, columns) = (self.form, self.columns.get());
        self.aside.join(key, async move {
            let write = move |backend: &Backend| {
                frame(&backend.objects, &resource, form, event_type, &object, columns)
            };
            pool.step(write).await.unwrap_or_else(|_| {
                error(&backend.objects, form, &Status::internal("the event could not be encoded"))
            })
        })
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
        self.converted.borrow_mut().retain(|known, _| keys.contains(known));
        batch.retain(|state| !self.converted.borrow().contains_key(&key(state)));
        if batch.is_empty() {
            return None;
        }
        let (backend, resource, form) = (self.backend.clone(), self.resource.clone(), self.form);
        let (converted, fields) = (self.converted.clone(), self.converted_fields.clone());
        Some(Box::pin(async move {
            let objects = batch.iter().map(|(object, _)| object.clone()).collect();
            let made = backend.in_version_by_turns(&resource, objects).await;
            let made = made.map_err(|status| error(&backend.objects, form, &status))?;
            for ((object, at), made) in batch.iter().zip(made) {
                if let Some(fields) = &fields {
                    fields.keep(object, &made);
                }
                converted.borrow_mut().insert(object.at(*at).bytes, Arc::new(made.at(*at)));
            }
            Ok(())
        }))
    }

    fn expired(&self, cursor: Revision, floor: Revision) -> Bytes {
        self.error(&Status::watch_expired(cursor.0, floor.0))
    }

    fn delivered(&self, events: usize, oldest: Timestamp) {
        self.converted.borrow_mut().clear();
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
