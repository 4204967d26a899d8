//! watch: a session on the connection's own thread that follows the history of a type.

use std::cell::Cell;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use pilothouse_actors::filter::Filter;
use pilothouse_actors::object::{Object, Revision, Variant};
use pilothouse_actors::session::{Frames, Session, Watch};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::telling::Told;

use crate::api::catalog::resource::Resource;
use crate::api::codec::{cbor, encode_document, protobuf};
use crate::api::form::{Form, Shape};
use crate::api::media::Encoding;
use crate::api::options::{self, ListOptions};
use crate::api::status::Status;
use crate::ids;

use super::list::filter;
use super::present::variant;
use super::{Answered, Backend, Call, Reply, Watching};

/// Answers a stream of the changes that match.
pub async fn watch(backend: &Rc<Backend>, watching: &Watching, call: &Call<'_>) -> Answered {
    let mut options = ListOptions::parse(call.query)?;
    // The path may say it too: the old /watch/ prefix, or a name.
    options.watch = true;
    options.validate(false)?;
    let filter = filter(call, &options)?;
    let begin = options::revision(&options.resource_version)?.filter(|revision| *revision > 0);
    let position = backend.stores.open_watch(&call.stored.store, &call.permit).await;
    let position = position.map_err(|error| Status::from_store(&error, call.of(), ""))?;
    let head = position.snapshot.revision;
    let (initial, cursor): (Box<dyn Iterator<Item = Arc<Object>>>, _) = match begin {
        // Whoever has seen a version that does not exist has seen another store: to wait for it would be to miss all
        // that happens until then.
        Some(revision) if revision > head.0 => return Err(Status::future_version(revision, head.0)),
        Some(revision) => (Box::new(std::iter::empty()), Revision(revision)),
        None => (initial(position.snapshot, &filter), head),
    };
    let feed = Session::open(Watch {
        type_name: call.stored.store.clone(),
        window: position.window,
        initial,
        cursor,
        filter,
        frames: Rc::new(EventFrames {
            backend: backend.clone(),
            resource: call.resource.clone(),
            form: call.form,
            columns: Cell::new(true),
        }),
        broadcaster: watching.broadcaster.clone(),
        deadline: Some(lifetime(&options, watching.min_request_timeout)),
        bookmarks: options.allow_watch_bookmarks,
        initial_end_bookmark: false,
        live: watching.live_sessions.clone(),
    });
    Ok(Reply::Watch(feed))
}

/// What is there when a watch begins. Of one namespace only its own objects are looked at, of all they are looked at as
/// the client reads them.
fn initial(snapshot: Snapshot, filter: &Filter) -> Box<dyn Iterator<Item = Arc<Object>>> {
    match filter.namespace.as_deref() {
        None => Box::new(snapshot.objects.into_iter().map(|(_, object)| object)),
        namespace => {
            let objects: Vec<Arc<Object>> = snapshot.scan(namespace, Bound::Unbounded).cloned().collect();
            Box::new(objects.into_iter())
        }
    }
}

/// How long a watch lasts: what the client asks for, else between once and twice the minimum, so that the watches of a
/// restart do not all end at one moment.
fn lifetime(options: &ListOptions, minimum: Duration) -> Duration {
    match options
        .timeout_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .filter(|seconds| *seconds > 0)
    {
        Some(seconds) => Duration::from_secs(seconds),
        None => {
            let extra = ids::below(usize::try_from(minimum.as_secs()).unwrap_or(0).max(1));
            minimum + Duration::from_secs(extra as u64)
        }
    }
}

/// Events in the form that a client asked for.
struct EventFrames {
    backend: Rc<Backend>,
    resource: Arc<Resource>,
    form: Form,
    /// The columns of a table are described once, with its first row.
    columns: Cell<bool>,
}

impl EventFrames {
    /// One event around an object that is encoded already.
    fn wrap(&self, kind: &str, object: &[u8]) -> Bytes {
        match self.form.encoding {
            Encoding::Json | Encoding::Yaml => json_line(kind, object),
            Encoding::Protobuf => Bytes::from(protobuf::watch_frame(kind, object)),
            Encoding::Cbor => Bytes::from(cbor::watch_event(kind, object)),
        }
    }

    fn error(&self, status: &Status) -> Bytes {
        let object = encode_document(&self.backend.registry, self.form.encoding, &status.to_json());
        self.wrap("ERROR", &object.unwrap_or_else(|_| status.to_json()))
    }
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

impl Frames for EventFrames {
    fn variant(&self) -> Variant {
        let described = matches!(self.form.shape, Shape::Table(..)) && self.columns.get();
        Variant(2 * variant(&self.resource, self.form).0 + u32::from(described))
    }

    fn frame(&self, told: Told, object: &Object) -> Bytes {
        let kind = match told {
            Told::Added => "ADDED",
            Told::Modified => "MODIFIED",
            Told::Deleted => "DELETED",
        };
        match self.backend.present(&self.resource, self.form, object, self.columns.get()) {
            Ok(bytes) => self.wrap(kind, &bytes),
            Err(status) => self.error(&status),
        }
    }

    fn sent(&self) {
        self.columns.set(false);
    }

    fn bookmark(&self, at: Revision, initial_end: bool) -> Bytes {
        match self.backend.bookmark(&self.resource, self.form, at, initial_end, self.columns.get()) {
            Ok(object) => self.wrap("BOOKMARK", &object),
            Err(status) => self.error(&status),
        }
    }

    fn expired(&self, floor: Revision) -> Bytes {
        self.error(&Status::watch_expired(floor.0))
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
