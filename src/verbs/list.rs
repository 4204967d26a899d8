//! list: the matching objects of a snapshot, encoded as they are sent and never parsed.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use pilothouse_actors::clock::Timestamp;
use pilothouse_actors::filter::Filter;
use pilothouse_actors::object::{Object, Revision};
use pilothouse_actors::point_in_time::{PointInTimeError, state_at};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::store::Position;

use crate::api::catalog::resource::Resource;
use crate::api::codec::protobuf;
use crate::api::media::Encoding;
use crate::api::options::{self, ListOptions, VersionMatch};
use crate::api::response_format::{MetaVersion, Representation, ResponseFormat};
use crate::api::select;
use crate::api::status::{Result, Status};
use crate::limits::{LIST_BYTES, LIST_CHUNK_BYTES, LIST_TURN_BYTES};

use super::converted_selection;
use super::paging::{Continue, Page, Start, select_page};
use super::{Reply, VerbResult};
use crate::backend::list_envelope::{cbor_ends, json_ends, protobuf_ends, protobuf_items, read_meta};
use crate::backend::memory_budget::Reservation;
use crate::backend::objects::Objects;
use crate::backend::{Backend, Call};

/// The memory that a list in YAML or indented JSON needs, as a multiple of its JSON: the JSON and the final text.
const WRITTEN_ANEW: usize = 2;

/// How long to wait for a resourceVersion in the future: 3 s in steps, as in the reference.
const FUTURE_TURNS: u32 = 60;
const FUTURE_TURN: Duration = Duration::from_millis(50);

/// A list that is being sent.
pub struct Listing {
    backend: Rc<Backend>,
    resource: Arc<Resource>,
    form: ResponseFormat,
    head: Bytes,
    items: std::vec::IntoIter<Arc<Object>>,
    /// Items in Protobuf, which are encoded before the first is sent; empty in other encodings.
    messages: std::vec::IntoIter<Bytes>,
    tail: Bytes,
    state: State,
    /// The total size of the items.
    weight: usize,
    /// The size of the items that the last piece was made from, as far as that was work.
    worked: usize,
    /// Its shares of the list budget, held until everything is sent.
    held: Vec<Reservation>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is sent yet.
    Head,
    /// The next item is the first.
    First,
    /// The next item needs a comma.
    Rest,
    /// Everything is sent.
    Done,
}

impl Listing {
    /// The list of one page. `held`: shares of the budget that its snapshot takes already.
    pub async fn page(
        backend: &Rc<Backend>,
        call: &Call<'_>,
        at: Revision,
        page: Page,
        selective: bool,
        mut held: Vec<Reservation>,
    ) -> Result<Listing> {
        let (resource, form) = (call.resource, call.form);
        let mut list_meta = list_meta(at, &page, selective);
        if resource.custom.is_some() && form.shape == Representation::Whole && page.next.is_none() {
            // The reference always writes an empty `continue` in lists of custom resources.
            list_meta.insert_str(1, r#""continue":"","#);
        }
        let mut page = page;
        // Objects that are converted now belong to this list alone. Those that a selector had converted are counted already.
        let foreign = page.items.iter().filter(|object| backend.is_foreign(resource, object));
        let converted: usize = foreign.map(|object| object.bytes.len()).sum();
        held.push(backend.lists.take_more(converted, &held)?);
        page.items = backend.in_version(resource, page.items, &call.permit).await?;
        if matches!(form.shape, Representation::Table(..)) {
            backend.objects.sort_rows(resource, &mut page.items)?;
        }
        let weight: usize = page.items.iter().map(|object| object.bytes.len()).sum();
        // Taken before anything is encoded: a Protobuf list is encoded as a whole, the others as the client reads.
        let at_once =
            if form.encoding == Encoding::Protobuf { weight } else { weight.min(2 * LIST_CHUNK_BYTES) };
        held.push(backend.lists.take_more(at_once, &held)?);
        let mut messages = Vec::new();
        let (head, tail) = match form.encoding {
            Encoding::Json | Encoding::Yaml => json_ends(resource, form, &list_meta, page.items.is_empty()),
            Encoding::Protobuf if form.shape == Representation::Metadata(MetaVersion::V1beta1) => {
                let items = std::mem::take(&mut page.items);
                (
                    backend
                        .objects
                        .partial_list(MetaVersion::V1beta1, read_meta(&list_meta)?, &items)
                        .await?,
                    Bytes::new(),
                )
            }
            Encoding::Protobuf => {
                messages = protobuf_items(&backend.objects, resource, form, &page.items).await?;
                protobuf_ends(&backend.objects, resource, form, &list_meta, &messages)?
            }
            Encoding::Cbor => cbor_ends(resource, form, &list_meta, page.items.len())?,
        };
        Ok(Listing {
            backend: backend.clone(),
            resource: resource.clone(),
            form,
            head,
            items: page.items.into_iter(),
            messages: messages.into_iter(),
            tail,
            state: State::Head,
            weight,
            worked: 0,
            held,
        })
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
        self.worked = 0;
        while chunk.len() < LIST_CHUNK_BYTES && self.worked <= LIST_TURN_BYTES {
            let Some(object) = self.items.next() else {
                chunk.put(self.tail.clone());
                self.state = State::Done;
                break;
            };
            self.worked += if self.copies_items() { 0 } else { object.bytes.len() };
            if let Err(status) = self.put_item(&object, &mut chunk) {
                self.state = State::Done;
                return Some(Err(status));
            }
        }
        Some(Ok(chunk.freeze()))
    }

    /// An estimate for the buffer of the next chunk, so that small lists take little memory and large ones never reallocate.
    fn room(&self) -> usize {
        let items: usize = self.items.as_slice().iter().take(256).map(|object| object.bytes.len()).sum();
        (items + self.head.len() + (4 << 10)).min(LIST_CHUNK_BYTES + (16 << 10))
    }

    fn put_item(&mut self, object: &Object, chunk: &mut BytesMut) -> Result<()> {
        let (objects, resource) = (&self.backend.objects, &self.resource);
        let text = matches!(self.form.encoding, Encoding::Json | Encoding::Yaml);
        if text && self.state == State::Rest {
            chunk.put_u8(b',');
        }
        self.state = State::Rest;
        match (self.form.encoding, self.form.shape) {
            (Encoding::Protobuf, _) => {
                let message = self.messages.next().unwrap_or_default();
                chunk.put_slice(&protobuf::list_item_header(message.len()));
                chunk.put_slice(&message);
            }
            (Encoding::Cbor, _) => chunk.put(objects.cbor_item(resource, self.form, object)?),
            (Encoding::Json | Encoding::Yaml, shape) => put_json(objects, resource, shape, object, chunk)?,
        }
        Ok(())
    }

    /// Whether items are sent as they are stored, or were encoded before.
    fn copies_items(&self) -> bool {
        match self.form.encoding {
            Encoding::Protobuf => true,
            Encoding::Json | Encoding::Yaml => {
                self.form.shape == Representation::Whole && self.resource.is_storage_version()
            }
            Encoding::Cbor => false,
        }
    }

    /// Whether the last piece was so much work that other requests of the worker should have their turn before the next.
    pub fn was_heavy(&self) -> bool {
        self.worked > LIST_TURN_BYTES
    }

    /// Whether everything is sent.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Encodes the whole list, for encodings that cannot be streamed, yielding to other requests of the worker. The returned
    /// share covers rewriting it once.
    pub async fn collect(mut self) -> Result<(Bytes, Reservation)> {
        let room = self.weight.saturating_mul(WRITTEN_ANEW);
        let held = self.backend.lists.take_more(room, &self.held)?;
        let mut whole = BytesMut::new();
        while let Some(chunk) = self.next_chunk() {
            whole.extend_from_slice(&chunk?);
            tokio::task::yield_now().await;
        }
        Ok((whole.freeze(), held))
    }
}

/// Writes one item in JSON. Items of lists of whole objects omit kind and apiVersion.
fn put_json(
    objects: &Objects,
    resource: &Resource,
    shape: Representation,
    object: &Object,
    chunk: &mut BytesMut,
) -> Result<()> {
    let form = ResponseFormat { encoding: Encoding::Json, shape };
    match shape {
        // Items of custom resources state their kind, as in the reference.
        Representation::Whole if resource.custom.is_some() => {
            chunk.put(objects.present(resource, form, object, false)?);
        }
        Representation::Whole if resource.is_storage_version() => {
            chunk.put_u8(b'{');
            chunk.put_slice(object.bytes.get(object.item_at()..).unwrap_or_default());
        }
        Representation::Whole => {
            let bytes = objects.present(resource, form, object, false)?;
            let prefix = format!(r#"{{"kind":"{}","apiVersion":"{}","#, resource.kind, resource.api_version);
            let fields = bytes.strip_prefix(prefix.as_bytes()).or_else(|| bytes.get(1..));
            chunk.put_u8(b'{');
            chunk.put_slice(fields.unwrap_or_default());
        }
        Representation::Metadata(_) => chunk.put(objects.present(resource, form, object, false)?),
        Representation::Table(version, include) => {
            let mut row = Vec::new();
            objects.put_table_row(resource, (version, include), object, true, &mut row)?;
            chunk.put_slice(&row);
        }
    }
    Ok(())
}

/// Answers the objects that match.
pub async fn list(backend: &Rc<Backend>, call: &Call<'_>) -> VerbResult {
    let options = ListOptions::parse(call.query)?;
    options.validate(false)?;
    let filter = filter(call, &options)?;
    let position = open(backend, call).await?;
    let Chosen { snapshot, start, mut held } = at_version(backend, call, &options, &position).await?;
    let view = converted_selection::view(backend, call, &snapshot, &filter, &start, &mut held).await?;
    let page = select_page(&view, &filter, start, page_limit(&options)).await;
    page.check(call.of())?;
    let revision = snapshot.revision;
    if page.next.is_some() && revision == position.snapshot.revision {
        // Keeps this snapshot for the next chunk. A past state is already kept where it was made, if it is small enough.
        position.window.checkpoints().keep(snapshot, None);
    }
    let listing = Listing::page(backend, call, revision, page, filter.is_selective(), held).await?;
    Ok(Reply::List(listing))
}

/// The maximum number of items.
pub(super) fn page_limit(options: &ListOptions) -> Option<usize> {
    // With resourceVersion 0 the reference answers from its cache and ignores the limit.
    let any = options.resource_version == "0" && options.continue_token.is_empty();
    usize::try_from(options.limit).ok().filter(|limit| *limit > 0 && !any)
}

/// The current snapshot of the resource, and its history.
pub(super) async fn open(backend: &Backend, call: &Call<'_>) -> Result<Position> {
    let position = backend.stores.open_watch(&call.stored.store, &call.permit).await;
    let position = position.map_err(|error| Status::from_store(&error, call.of(), ""))?;
    backend.load.note(&call.stored.store, position.snapshot.len());
    Ok(position)
}

/// Waits for a snapshot that is not older than `requested`. A version in the future may come from another server: it is awaited,
/// but not for long.
pub(super) async fn not_older(
    backend: &Backend,
    call: &Call<'_>,
    position: Position,
    requested: u64,
) -> Result<Position> {
    if requested <= position.snapshot.revision.0 {
        return Ok(position);
    }
    for _ in 0..FUTURE_TURNS {
        tokio::time::sleep(FUTURE_TURN).await;
        if requested <= position.window.head().0 {
            return open(backend, call).await;
        }
    }
    Err(Status::future_version(requested, position.window.head().0))
}

/// The filter of a list or watch.
pub fn filter(call: &Call<'_>, options: &ListOptions) -> Result<Filter> {
    let name = if options.watch { call.name } else { "" };
    select::filter(call.resource, options, call.namespace, name)
}

/// The snapshot that a list shows.
pub(super) struct Chosen {
    pub(super) snapshot: Snapshot,
    /// Where the chunk begins.
    pub(super) start: Start,
    /// Its shares of the list budget, beside objects that are in memory anyway.
    pub(super) held: Vec<Reservation>,
}

impl Chosen {
    fn present(snapshot: Snapshot, now: Timestamp) -> Chosen {
        Chosen { snapshot, start: Start::first(now), held: Vec::new() }
    }
}

/// The snapshot that the options ask for.
pub(super) async fn at_version(
    backend: &Backend,
    call: &Call<'_>,
    options: &ListOptions,
    position: &Position,
) -> Result<Chosen> {
    let token = Some(&options.continue_token).filter(|token| !token.is_empty());
    let token = token.map(|token| Continue::decode(token)).transpose()?;
    if token.is_some() && !matches!(options.resource_version.as_str(), "" | "0") {
        let why = "specifying resource version is not allowed when using continue";
        return Err(Status::bad_request(why));
    }
    let requested = options::read_revision(&options.resource_version)?;
    let requested = requested.filter(|requested| *requested > 0);
    let now = backend.clock.now();
    if let Some(token) = token {
        let Some(revision) = token.revision else {
            let present = newer(backend, call, position, token.expired).await?;
            return Ok(Chosen { start: Start::at(token, now), ..Chosen::present(present, now) });
        };
        let found = if token.is_over(now, position.history) {
            None
        } else {
            past(backend, position, revision).await?
        };
        return match found {
            Some(chosen) => Ok(Chosen { start: Start::at(token, now), ..chosen }),
            None => Err(Status::continue_expired(token.inconsistent().encode())),
        };
    }
    let Some(requested) = requested else { return Ok(Chosen::present(position.snapshot.clone(), now)) };
    let position = not_older(backend, call, position.clone(), requested).await?;
    let exact = match options.resource_version_match {
        Some(how) => how == VersionMatch::Exact,
        None => options.limit > 0,
    };
    if !exact {
        return Ok(Chosen::present(position.snapshot, now));
    }
    past(backend, &position, requested).await?.ok_or_else(Status::list_expired)
}

/// The present state, at another version than the one that has expired: clients take two lists of one version for one list. Where
/// nothing was written since, the type goes on by a version at which nothing happens.
async fn newer(
    backend: &Backend,
    call: &Call<'_>,
    position: &Position,
    expired: Option<u64>,
) -> Result<Snapshot> {
    let present = &position.snapshot;
    let Some(expired) = expired.filter(|expired| *expired >= present.revision.0) else {
        return Ok(present.clone());
    };
    match backend.stores.step(&call.stored.store, Revision(expired), &call.permit).await {
        Ok(()) => Ok(open(backend, call).await?.snapshot),
        // A read does not fail because nothing can be written.
        Err(_) => Ok(present.clone()),
    }
}

/// The state at an older version; `None` if it is compacted. Its memory counts against the list budget.
async fn past(backend: &Backend, position: &Position, revision: u64) -> Result<Option<Chosen>> {
    let mut held: Vec<Reservation> = Vec::new();
    let mut refused = None;
    let room = |bytes| {
        // A state that exceeds the whole budget counts as compacted. If others use up the budget, the client may retry.
        if held.iter().map(Reservation::bytes).sum::<usize>() + bytes > LIST_BYTES {
            return false;
        }
        match backend.lists.take_more(bytes, &held) {
            Ok(room) => held.push(room),
            Err(status) => refused = Some(status),
        }
        refused.is_none()
    };
    match state_at(position, Revision(revision), room).await {
        Ok(snapshot) => Ok(Some(Chosen { held, ..Chosen::present(snapshot, backend.clock.now()) })),
        Err(PointInTimeError::Gone) => Ok(None),
        Err(PointInTimeError::TooLarge) => refused.map_or(Ok(None), Err),
        Err(PointInTimeError::Broken(why)) => {
            tracing::error!(%why, "an older state cannot be read");
            Err(Status::internal(why))
        }
    }
}

fn list_meta(revision: Revision, page: &Page, selective: bool) -> String {
    let mut meta = format!(r#"{{"resourceVersion":"{revision}""#);
    if let Some(next) = &page.next {
        meta.push_str(r#","continue":""#);
        meta.push_str(&next.encode());
        meta.push('"');
        // With a selector, counting the remaining items would require a search.
        if !selective {
            meta.push_str(&format!(r#","remainingItemCount":{}"#, page.remaining));
        }
    }
    meta.push('}');
    meta
}
