//! Encodes watch events in the encoding, representation and version of the client.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, WeakShared};
use pilothouse_actors::event::Event;
use pilothouse_actors::session::{EventEncoder, PendingFrame, Preparation};
use pilothouse_actors::watch_event::{self, WatchEventType};
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::print;
use pilothouse_apimachinery::codec::{cbor, encode_document, protobuf};
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::response_format::{Representation, ResponseFormat};
use pilothouse_apimachinery::status::Status;
use pilothouse_types::clock::{Moment, Timestamp};
use pilothouse_types::filter::Filter;
use pilothouse_types::object::{Object, Revision, Variant};

use crate::flowcontrol::heavy_pool::OwnedPool;
use crate::flowcontrol::load_stats::Watcher;
use crate::metrics::watches::OpenWatch;
use crate::registry::Backend;
use crate::registry::objects::Objects;
use crate::registry::present::{is_sent_as_stored, variant};

use super::converted_selection::ConvertedFields;

/// The frames of large objects that the threads for heavy work are encoding for the watches of one worker. Watches that need the
/// same frame at the same time share it. Cheap to clone.
#[derive(Clone, Default)]
pub struct FramesInProgress(Rc<RefCell<HashMap<FrameKey, SharedFrame>>>);

/// Identifies a frame by the revision and variant of its object. Exempt watches do not wait for those of others.
#[derive(PartialEq, Eq, Hash)]
struct FrameKey {
    revision: Revision,
    variant: Variant,
    is_exempt: bool,
}

type SharedFrame = WeakShared<LocalBoxFuture<'static, Bytes>>;

impl FramesInProgress {
    /// Waits for a frame that is already being encoded, or else for `encode`.
    fn get_or_encode(&self, key: FrameKey, encode: impl Future<Output = Bytes> + 'static) -> PendingFrame {
        let mut frames = self.0.borrow_mut();
        frames.retain(|_, frame| frame.upgrade().is_some());
        if let Some(frame) = frames.get(&key).and_then(WeakShared::upgrade) {
            return Box::pin(frame);
        }
        let frame = encode.boxed_local().shared();
        frames.extend(frame.downgrade().map(|weak| (key, weak)));
        Box::pin(frame)
    }
}

/// Encodes events in the format that the client requested.
pub(super) struct EventFrames {
    pub(super) backend: Rc<Backend>,
    /// The threads on which large objects are encoded.
    pub(super) pool: OwnedPool<Backend>,
    pub(super) frames_in_progress: FramesInProgress,
    pub(super) resource: Arc<Resource>,
    pub(super) response_format: ResponseFormat,
    /// Column definitions are sent once, with the first row, except for kinds that repeat them.
    pub(super) columns: Cell<bool>,
    /// Converted objects by their stored bytes, for the events of one turn at most.
    pub(super) converted: Rc<RefCell<HashMap<Bytes, Arc<Object>>>>,
    /// The filter of the watch.
    pub(super) filter: Filter,
    /// The fields by which it selects, if they are those of converted objects.
    pub(super) converted_fields: Option<ConvertedFields>,
    /// Counts this watch and its events in metrics.
    pub(super) metrics: OpenWatch,
    /// When the watch began.
    pub(super) began: Moment,
    /// Counts this watch for the estimated cost of writes.
    pub(super) _watcher: Option<Watcher>,
}

impl EventFrames {
    /// Wraps an encoded object into an event.
    fn wrap(&self, kind: &str, object: &[u8]) -> Bytes {
        wrap_event(self.response_format, kind, object)
    }

    /// The states of an event's object that must be converted before the event can be encoded.
    fn states_needed<'e>(&self, event: &'e Event) -> Vec<&'e Arc<Object>> {
        if self.converted_fields.is_some() {
            // Whether they match is only known from their converted fields.
            let states = std::iter::once(&event.object).chain(&event.previous);
            return states.filter(|object| self.filter.matches_key(&object.key)).collect();
        }
        let Some(event_type) = watch_event::event_type_for(&self.filter, event) else { return Vec::new() };
        if event.has_frame(event_type.frame_variant(self.variant())) {
            return Vec::new();
        }
        // The cache belongs to the object itself, whose revision may differ.
        vec![watch_event::visible_object(event_type, event)]
    }

    pub(super) fn error(&self, status: &Status) -> Bytes {
        error_frame(&self.backend.objects, self.response_format, status)
    }
}

/// An event with an object in the version of the watch.
fn frame(
    objects: &Objects,
    resource: &Resource,
    response_format: ResponseFormat,
    event_type: WatchEventType,
    object: &Object,
    columns: bool,
) -> Bytes {
    let event_type = match event_type {
        WatchEventType::Added => "ADDED",
        WatchEventType::Modified => "MODIFIED",
        WatchEventType::Deleted => "DELETED",
    };
    match objects.encode(resource, response_format, object, columns) {
        Ok(bytes) => wrap_event(response_format, event_type, &bytes),
        Err(status) => error_frame(objects, response_format, &status),
    }
}

fn wrap_event(response_format: ResponseFormat, kind: &str, object: &[u8]) -> Bytes {
    match response_format.encoding {
        Encoding::Json | Encoding::Yaml => json_line(kind, object),
        Encoding::Protobuf => Bytes::from(protobuf::watch_frame(kind, object)),
        Encoding::Cbor => Bytes::from(cbor::watch_event(kind, object)),
    }
}

fn error_frame(objects: &Objects, response_format: ResponseFormat, status: &Status) -> Bytes {
    let object = encode_document(&objects.registry, response_format.encoding, &status.to_json());
    wrap_event(response_format, "ERROR", &object.unwrap_or_else(|_| status.to_json()))
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
        let has_columns =
            matches!(self.response_format.shape, Representation::Table(..)) && self.columns.get();
        Variant(2 * variant(&self.resource, self.response_format).0 + u32::from(has_columns))
    }

    fn frame(&self, event_type: WatchEventType, object: &Object) -> Bytes {
        let converted = self.converted.borrow();
        let object = converted.get(&object.bytes).map_or(object, |converted| &**converted);
        let columns = self.columns.get();
        frame(&self.backend.objects, &self.resource, self.response_format, event_type, object, columns)
    }

    fn is_slow(&self) -> bool {
        !is_sent_as_stored(&self.resource, self.response_format)
    }

    fn frame_async(&self, event_type: WatchEventType, object: Arc<Object>) -> PendingFrame {
        let key = FrameKey {
            revision: object.revision,
            variant: event_type.frame_variant(self.variant()),
            is_exempt: self.pool.owner.is_exempt,
        };
        let object = self.converted.borrow().get(&object.bytes).cloned().unwrap_or(object);
        let (backend, pool, resource) = (self.backend.clone(), self.pool.clone(), self.resource.clone());
        let (response_format, columns) = (self.response_format, self.columns.get());
        self.frames_in_progress.get_or_encode(key, async move {
            let encode = move |backend: &Backend| {
                frame(&backend.objects, &resource, response_format, event_type, &object, columns)
            };
            pool.step(encode).await.unwrap_or_else(|_| {
                error_frame(
                    &backend.objects,
                    response_format,
                    &Status::internal("the event could not be encoded"),
                )
            })
        })
    }

    fn on_frame_queued(&self, bytes: usize) {
        self.columns.set(print::describes_every_event(&self.resource));
        self.metrics.count_event(bytes);
    }

    fn on_initial_queued(&self, objects: u64) {
        self.metrics.count_initial(objects);
    }

    fn on_cut(&self) {
        self.metrics.count_terminated();
    }

    fn bookmark_frame(&self, revision: Revision, initial_end: bool) -> Bytes {
        if initial_end {
            self.metrics.count_list(self.backend.clock.elapsed(self.began));
        }
        match self.backend.objects.bookmark(
            &self.resource,
            self.response_format,
            revision,
            initial_end,
            self.columns.get(),
        ) {
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
            fields.retain_only(batch.iter().map(|(object, _)| &**object));
        }
        batch.retain(|(object, _)| self.backend.needs_conversion(&self.resource, object));
        let key = |(object, revision): &(Arc<Object>, Revision)| object.at_revision(*revision).bytes;
        let keys: HashSet<Bytes> = batch.iter().map(key).collect();
        // Other entries were sent already.
        self.converted.borrow_mut().retain(|bytes, _| keys.contains(bytes));
        batch.retain(|state| !self.converted.borrow().contains_key(&key(state)));
        if batch.is_empty() {
            return None;
        }
        let (backend, resource, response_format) =
            (self.backend.clone(), self.resource.clone(), self.response_format);
        let (converted, fields) = (self.converted.clone(), self.converted_fields.clone());
        Some(Box::pin(async move {
            let objects = batch.iter().map(|(object, _)| object.clone()).collect();
            let converted_objects = backend.convert_for_watch(&resource, objects).await;
            let converted_objects = converted_objects
                .map_err(|status| error_frame(&backend.objects, response_format, &status))?;
            for ((object, revision), new) in batch.iter().zip(converted_objects) {
                if let Some(fields) = &fields {
                    fields.insert(object, &new);
                }
                converted
                    .borrow_mut()
                    .insert(object.at_revision(*revision).bytes, Arc::new(new.at_revision(*revision)));
            }
            Ok(())
        }))
    }

    fn expired_frame(&self, cursor: Revision, floor: Revision) -> Bytes {
        self.error(&Status::watch_expired(cursor.0, floor.0))
    }

    fn on_events_queued(&self, oldest: Timestamp) {
        self.converted.borrow_mut().clear();
        self.metrics.count_delivered(oldest, self.backend.clock.now());
    }

    fn unreadable_frame(&self, object: &Object, is_gone: bool) -> Bytes {
        let status = if is_gone {
            Status::unreadable_deleted(object)
        } else {
            Status::unreadable(self.resource.name(), object)
        };
        self.error(&status)
    }
}
