//! list: the matching objects of a snapshot, encoded while they are sent and never parsed.

use std::rc::Rc;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use pilothouse_actors::filter::Filter;
use pilothouse_actors::object::{Object, Revision};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::store::Position;

use crate::api::catalog::resource::Resource;
use crate::api::options::{self, ListOptions, VersionMatch};
use crate::api::select;
use crate::api::status::{Result, Status};

use super::paging::{Continue, Page, rewind, select_page};
use super::{Answered, Backend, Call, Reply};

/// How much of a list is encoded at a time: large enough to fill the network, small enough that thousands of lists in
/// flight hold little.
const CHUNK_BYTES: usize = 64 << 10;

/// A list on its way out.
pub struct Listing {
    backend: Rc<Backend>,
    resource: Arc<Resource>,
    head: Bytes,
    items: std::vec::IntoIter<Arc<Object>>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing has been sent.
    Head,
    /// The next item is the first.
    First,
    /// The next item needs a comma.
    Rest,
    /// All has been sent.
    Done,
}

impl Listing {
    /// The list of one page.
    pub fn page(
        backend: &Rc<Backend>,
        resource: &Arc<Resource>,
        at: Revision,
        page: Page,
        selective: bool,
    ) -> Listing {
        let head = head(resource, at, &page, selective);
        Listing {
            backend: backend.clone(),
            resource: resource.clone(),
            head,
            items: page.items.into_iter(),
            state: State::Head,
        }
    }

    /// The next piece of the encoded list; `None` after the last.
    pub fn next_chunk(&mut self) -> Option<Result<Bytes>> {
        if self.is_done() {
            return None;
        }
        let mut chunk = BytesMut::with_capacity(self.room());
        if self.state == State::Head {
            chunk.put(self.head.clone());
            self.state = State::First;
        }
        while chunk.len() < CHUNK_BYTES {
            let Some(object) = self.items.next() else {
                chunk.put_slice(b"]}\n");
                self.state = State::Done;
                break;
            };
            if let Err(status) = self.put_item(&object, &mut chunk) {
                self.state = State::Done;
                return Some(Err(status));
            }
        }
        Some(Ok(chunk.freeze()))
    }

    /// What the next chunk will need, so that small lists take little and large ones never grow their buffer.
    fn room(&self) -> usize {
        let items: usize = self.items.as_slice().iter().take(256).map(|object| object.bytes.len()).sum();
        (items + self.head.len() + (4 << 10)).min(CHUNK_BYTES + (16 << 10))
    }

    fn put_item(&mut self, object: &Object, chunk: &mut BytesMut) -> Result<()> {
        if self.state == State::Rest {
            chunk.put_u8(b',');
        }
        self.state = State::Rest;
        chunk.put_u8(b'{');
        if self.resource.is_storage_version() {
            chunk.put_slice(object.bytes.get(object.item_at()..).unwrap_or_default());
            return Ok(());
        }
        // Another version of the same kind begins with the same words, but its apiVersion may be longer or shorter.
        let bytes = self.backend.serve(&self.resource, object)?;
        let prefix =
            format!(r#"{{"kind":"{}","apiVersion":"{}","#, self.resource.kind, self.resource.api_version);
        chunk.put_slice(bytes.strip_prefix(prefix.as_bytes()).or_else(|| bytes.get(1..)).unwrap_or_default());
        Ok(())
    }

    /// Whether everything has been sent.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The whole list at once, for encodings that cannot be streamed.
    pub fn collect(mut self) -> Result<Bytes> {
        let mut whole = BytesMut::new();
        while let Some(chunk) = self.next_chunk() {
            whole.extend_from_slice(&chunk?);
        }
        Ok(whole.freeze())
    }
}

/// Answers the objects that match.
pub async fn list(backend: &Rc<Backend>, call: &Call<'_>) -> Answered {
    let options = ListOptions::parse(call.query)?;
    options.validate(false)?;
    let filter = filter(call, &options)?;
    let position = backend.stores.open_watch(&call.stored.store, &call.permit).await;
    let position = position.map_err(|error| Status::from_store(&error, call.of(), ""))?;
    let (snapshot, after) = at_version(&options, &position)?;
    // Any version will do: then the reference answers from memory and all at once, whatever the limit.
    let any = options.resource_version == "0" && options.continue_token.is_empty();
    let limit = usize::try_from(options.limit).ok().filter(|limit| *limit > 0 && !any);
    let page = select_page(&snapshot, &filter, after.as_deref(), limit);
    Ok(Reply::List(Listing::page(backend, call.resource, snapshot.revision, page, filter.is_selective())))
}

/// What a list or a watch of this path with these options wants.
pub fn filter(call: &Call<'_>, options: &ListOptions) -> Result<Filter> {
    let name = if options.watch { call.name } else { "" };
    select::filter(call.resource, options, call.namespace, name)
}

/// The snapshot that the options ask for, and the key behind which it begins.
fn at_version(options: &ListOptions, position: &Position) -> Result<(Snapshot, Option<String>)> {
    let present = || Ok((position.snapshot.clone(), None));
    let head = position.snapshot.revision.0;
    let asked = options::revision(&options.resource_version)?;
    if !options.continue_token.is_empty() {
        if asked.is_some_and(|asked| asked > 0) {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let token = Continue::decode(&options.continue_token)?;
        let snapshot = rewind(position, Revision(token.revision)).ok_or_else(Status::continue_expired)?;
        return Ok((snapshot, Some(token.after)));
    }
    let Some(asked) = asked.filter(|asked| *asked > 0) else { return present() };
    if asked > head {
        return Err(Status::future_version(asked, head));
    }
    let exact = match options.resource_version_match {
        Some(how) => how == VersionMatch::Exact,
        None => options.limit > 0,
    };
    if !exact {
        return present();
    }
    let snapshot = rewind(position, Revision(asked));
    snapshot.map(|snapshot| (snapshot, None)).ok_or_else(|| Status::list_expired(asked))
}

/// Everything before the first item.
fn head(resource: &Resource, revision: Revision, page: &Page, selective: bool) -> Bytes {
    let mut head = format!(
        r#"{{"kind":"{}","apiVersion":"{}","metadata":{{"resourceVersion":"{revision}""#,
        resource.list_kind, resource.api_version,
    );
    if let Some(next) = &page.next {
        head.push_str(r#","continue":""#);
        head.push_str(&next.encode());
        head.push('"');
        // With a selector the rest would have to be searched to be counted.
        if !selective {
            head.push_str(&format!(r#","remainingItemCount":{}"#, page.remaining));
        }
    }
    head.push_str(r#"},"items":["#);
    Bytes::from(head)
}
