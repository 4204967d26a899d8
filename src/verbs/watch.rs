//! watch: a session on the connection's own thread that follows the history of a type.

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
use crate::api::options::{self, ListOptions};
use crate::api::status::Status;
use crate::ids;

use super::list::filter;
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
        frames: Rc::new(JsonFrames { backend: backend.clone(), resource: call.resource.clone() }),
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

/// Events as JSON documents, one a line.
struct JsonFrames {
    backend: Rc<Backend>,
    resource: Arc<Resource>,
}

fn wrap(kind: &str, object: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(object.len() + kind.len() + 24);
    frame.put_slice(br#"{"type":""#);
    frame.put_slice(kind.as_bytes());
    frame.put_slice(br#"","object":"#);
    frame.put_slice(object);
    frame.put_slice(b"}\n");
    frame.freeze()
}

impl Frames for JsonFrames {
    fn variant(&self) -> Variant {
        Variant(self.resource.ordinal)
    }

    fn frame(&self, told: Told, object: &Object) -> Bytes {
        let kind = match told {
            Told::Added => "ADDED",
            Told::Modified => "MODIFIED",
            Told::Deleted => "DELETED",
        };
        match self.backend.serve(&self.resource, object) {
            Ok(bytes) => wrap(kind, &bytes),
            Err(status) => wrap("ERROR", &status.to_json()),
        }
    }

    fn bookmark(&self, at: Revision, initial_end: bool) -> Bytes {
        let annotation =
            if initial_end { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
        let object = format!(
            r#"{{"kind":"{}","apiVersion":"{}","metadata":{{"resourceVersion":"{at}","creationTimestamp":null{annotation}}}}}"#,
            self.resource.kind, self.resource.api_version,
        );
        wrap("BOOKMARK", object.as_bytes())
    }

    fn expired(&self, floor: Revision) -> Bytes {
        wrap("ERROR", &Status::watch_expired(floor.0).to_json())
    }
}
