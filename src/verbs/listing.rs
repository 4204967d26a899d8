//! A list that is being sent: encoded in chunks as the client reads, and not decoded where the stored bytes can be used.

use std::rc::Rc;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::response_format::{Representation, ResponseFormat};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_types::memory::Reservation;
use pilothouse_types::object::{Object, Revision};

use crate::limits::{LIST_CHUNK_BYTES, LIST_TURN_BYTES, PROTOBUF_LIST_BUFFER_BYTES, YAML_GROWTH};

use super::paging::Page;
use crate::registry::list_envelope::{
    cbor_ends, item_len, items_key, json_ends, list_fields, protobuf_ends, protobuf_items, protobuf_items_len,
};
use crate::registry::objects::Objects;
use crate::registry::present::is_sent_as_stored;
use crate::registry::{Backend, Call};

/// A list that is being sent, by the worker of this backend.
pub struct Listing<B = Rc<Backend>> {
    backend: B,
    resource: Arc<Resource>,
    response_format: ResponseFormat,
    head: Bytes,
    items: std::vec::IntoIter<Arc<Object>>,
    /// The Protobuf messages of `items`, if they are kept in memory; empty otherwise.
    messages: std::vec::IntoIter<Bytes>,
    /// The bytes of items that the Protobuf envelope announced and that are not sent yet.
    announced: usize,
    /// The next of `items`, if another thread has encoded it.
    encoded: Option<Result<EncodedItem>>,
    /// The rest of an item that is larger than a chunk.
    rest: Bytes,
    tail: Bytes,
    state: State,
    /// The size of the items that were encoded for the last chunk, without those that were only copied.
    worked: usize,
    /// Its reservations of the list budget, until everything is sent.
    _reservations: Vec<Reservation>,
}

/// A list that was prepared on another thread.
pub type DetachedListing = Listing<()>;

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

impl DetachedListing {
    /// The list, sent by the worker of this backend.
    pub fn attach(self, backend: &Rc<Backend>) -> Listing {
        self.with_backend(Rc::clone(backend))
    }
}

impl<B> Listing<B> {
    fn with_backend<C>(self, backend: C) -> Listing<C> {
        Listing {
            backend,
            resource: self.resource,
            response_format: self.response_format,
            head: self.head,
            items: self.items,
            messages: self.messages,
            announced: self.announced,
            encoded: self.encoded,
            rest: self.rest,
            tail: self.tail,
            state: self.state,
            worked: self.worked,
            _reservations: self._reservations,
        }
    }
}

impl Listing {
    /// The list of one page. `reservations`: the reservations of its snapshot.
    pub async fn page(
        backend: &Rc<Backend>,
        call: &Call<'_>,
        revision: Revision,
        page: Page,
        selective: bool,
        mut reservations: Vec<Reservation>,
    ) -> Result<Listing> {
        let (resource, response_format) = (call.resource(), call.response_format);
        let mut list_meta = list_meta(revision, &page, selective);
        if resource.custom.is_some() && response_format.shape == Representation::Whole && page.next.is_none()
        {
            // The reference always writes an empty `continue` in lists of custom resources.
            list_meta.insert_str(1, r#""continue":"","#);
        }
        let mut page = page;
        check_work(&backend.objects, call, &page.items)?;
        // Objects that are converted here belong to this list alone. Those that were converted for a selector are already
        // counted.
        let unconverted = page.items.iter().filter(|object| backend.needs_conversion(resource, object));
        let converted: usize = unconverted.map(|object| object.bytes.len()).sum();
        reservations.push(backend.lists.take_more(converted, &reservations)?);
        page.items =
            backend.convert_to_version(resource, page.items, call.permit(), call.memory_priority()).await?;
        if matches!(response_format.shape, Representation::Table(..)) {
            backend.objects.sort_rows(resource, &mut page.items)?;
        }
        // Reserved before anything is encoded.
        let size = PageSize::new(&page.items);
        let messages_reservation = (response_format.encoding == Encoding::Protobuf
            && size.total <= PROTOBUF_LIST_BUFFER_BYTES)
            .then(|| backend.lists.take_more(size.total, &reservations));
        // A Protobuf list that exceeds the budget is encoded twice rather than refused.
        let messages_reservation = messages_reservation.and_then(std::result::Result::ok);
        let keeps_messages = messages_reservation.is_some();
        reservations.push(messages_reservation.map_or_else(
            || backend.lists.take_more(size.in_flight(response_format.encoding), &reservations),
            Ok,
        )?);
        let (mut messages, mut announced) = (Vec::new(), 0);
        let (head, tail) = match response_format.encoding {
            Encoding::Json | Encoding::Yaml => {
                json_ends(resource, response_format, &list_meta, page.items.is_empty())
            }
            Encoding::Protobuf => {
                (messages, announced) =
                    encode_protobuf_items(backend, resource, response_format, &page.items, keeps_messages)
                        .await?;
                protobuf_ends(&backend.objects, resource, response_format, &list_meta, announced)?
            }
            Encoding::Cbor => cbor_ends(resource, response_format, &list_meta, page.items.len())?,
        };
        Ok(Listing {
            backend: backend.clone(),
            resource: resource.clone(),
            response_format,
            head,
            items: page.items.into_iter(),
            messages: messages.into_iter(),
            announced,
            encoded: None,
            rest: Bytes::new(),
            tail,
            state: State::Head,
            worked: 0,
            _reservations: reservations,
        })
    }

    /// The next chunk of the encoded list, as JSON if YAML was negotiated; `None` after the last.
    pub fn next_chunk(&mut self) -> Option<Result<Bytes>> {
        if self.is_done() {
            return None;
        }
        let mut chunk = BytesMut::with_capacity(self.chunk_capacity());
        if self.state == State::Head {
            chunk.put(self.head.clone());
            self.state = State::First;
        }
        self.write_rest(&mut chunk);
        self.worked = 0;
        while chunk.len() < LIST_CHUNK_BYTES
            && !self.was_heavy()
            && (chunk.is_empty() || !self.is_next_large())
        {
            let result = match self.items.next() {
                Some(object) => {
                    let is_copied = self.copies_items() || self.encoded.is_some();
                    self.worked += if is_copied { 0 } else { object.bytes.len() };
                    self.write_item(&object, &mut chunk)
                }
                None => self.write_tail(&mut chunk),
            };
            if let Err(status) = result {
                self.state = State::Done;
                return Some(Err(status));
            }
            if self.is_done() {
                break;
            }
        }
        Some(Ok(chunk.freeze()))
    }

    /// Whether items are sent as stored, or were encoded before.
    fn copies_items(&self) -> bool {
        match self.response_format.encoding {
            Encoding::Protobuf => !self.messages.as_slice().is_empty(),
            Encoding::Json | Encoding::Yaml | Encoding::Cbor => {
                is_sent_as_stored(&self.resource, self.response_format)
            }
        }
    }

    /// Whether encoding the next item is more work than a worker should do at once.
    pub fn is_next_large(&self) -> bool {
        let next = self.items.as_slice().first();
        self.encoded.is_none()
            && next.is_some_and(|object| object.bytes.len() > LIST_TURN_BYTES)
            && !self.copies_items()
    }

    /// Returns a function that encodes the next item on any thread, if it is large. [`Listing::put_encoded`] takes the result.
    pub fn large_item(&self) -> Option<impl FnOnce(&Objects) -> Result<EncodedItem> + Send + 'static> {
        let object = self.items.as_slice().first().filter(|_| self.is_next_large())?.clone();
        let (resource, response_format) = (self.resource.clone(), self.response_format);
        Some(move |objects: &Objects| encode_item(objects, &resource, response_format, &object))
    }

    /// Sets the next item that another thread has encoded, or its error.
    pub fn put_encoded(&mut self, item: Result<EncodedItem>) {
        self.encoded = Some(item);
    }

    /// Whether the last chunk was so much work that the worker should yield to other requests before the next.
    pub fn was_heavy(&self) -> bool {
        self.worked > LIST_TURN_BYTES
    }

    /// Detaches the list from this thread.
    pub fn detach(self) -> DetachedListing {
        self.with_backend(())
    }

    /// The bytes before the first item and after the last one, as JSON if YAML was negotiated.
    pub fn ends(&self) -> (&Bytes, &Bytes) {
        (&self.head, &self.tail)
    }

    /// The field that holds the items.
    pub fn items_key(&self) -> &'static str {
        items_key(self.response_format.shape)
    }

    /// The JSON of the next item, for a list that is not sent in chunks; `None` after the last.
    pub fn next_json(&mut self) -> Option<Result<Bytes>> {
        let Some(object) = self.items.next() else {
            self.state = State::Done;
            return None;
        };
        Some(self.encode(&object).map(|item| match item.opening {
            "" => item.rest,
            opening => [opening.as_bytes(), &item.rest].concat().into(),
        }))
    }

    /// An estimate for the buffer of the next chunk, so that small lists take little memory and large ones never reallocate.
    fn chunk_capacity(&self) -> usize {
        let items: usize = self.items.as_slice().iter().take(256).map(|object| object.bytes.len()).sum();
        (self.rest.len() + items + self.head.len() + (4 << 10)).min(LIST_CHUNK_BYTES + (4 << 10))
    }

    /// Writes as much of an item as fits into the chunk.
    fn write_item(&mut self, object: &Object, chunk: &mut BytesMut) -> Result<()> {
        let item = match self.messages.next() {
            Some(message) => EncodedItem::whole(message),
            None => self.encode(object)?,
        };
        match self.response_format.encoding {
            Encoding::Json | Encoding::Yaml => {
                if self.state == State::Rest {
                    chunk.put_u8(b',');
                }
                chunk.put_slice(item.opening.as_bytes());
            }
            Encoding::Protobuf => {
                let fields = list_fields(self.response_format.shape);
                let remaining = self.announced.checked_sub(item_len(fields, &item.rest));
                self.announced = remaining.ok_or_else(|| length_error(object))?;
                chunk.put_slice(&fields.item_header(item.rest.len()));
            }
            Encoding::Cbor => {}
        }
        self.rest = item.rest;
        self.state = State::Rest;
        self.write_rest(chunk);
        Ok(())
    }

    /// Encodes the next item, unless another thread has done so.
    fn encode(&mut self, object: &Object) -> Result<EncodedItem> {
        let encoded = self.encoded.take();
        encoded.unwrap_or_else(|| {
            encode_item(&self.backend.objects, &self.resource, self.response_format, object)
        })
    }

    /// Continues an item that is larger than a chunk.
    fn write_rest(&mut self, chunk: &mut BytesMut) {
        let free = LIST_CHUNK_BYTES.saturating_sub(chunk.len());
        chunk.put(self.rest.split_to(free.min(self.rest.len())));
    }

    fn write_tail(&mut self, chunk: &mut BytesMut) -> Result<()> {
        if self.announced > 0 {
            return Err(Status::internal("the items of a list are shorter than announced".to_owned()));
        }
        chunk.put(self.tail.clone());
        self.state = State::Done;
        Ok(())
    }

    /// Whether everything is sent.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether all items were taken.
    pub fn is_out_of_items(&self) -> bool {
        self.items.as_slice().is_empty()
    }
}

/// The bytes of the objects on a page.
struct PageSize {
    total: usize,
    largest: usize,
}

impl PageSize {
    fn new(items: &[Arc<Object>]) -> PageSize {
        let sizes = || items.iter().map(|object| object.bytes.len());
        PageSize { total: sizes().sum(), largest: sizes().max().unwrap_or(0) }
    }

    /// The memory that a list takes while it is streamed: two chunks and one object, in YAML also the decoded form of that
    /// object.
    fn in_flight(&self, encoding: Encoding) -> usize {
        let streamed = self.total.min(2 * LIST_CHUNK_BYTES + self.largest);
        match encoding {
            Encoding::Yaml => streamed + self.largest.saturating_mul(YAML_GROWTH),
            _ => streamed,
        }
    }
}

/// Fails on a worker thread if one step of the list is too much work there. The items of Protobuf lists are encoded before the
/// first is sent; those of some tables are decoded at once, to be sorted.
fn check_work(objects: &Objects, call: &Call<'_>, items: &[Arc<Object>]) -> Result<()> {
    let (size, response_format) = (PageSize::new(items), call.response_format);
    if matches!(response_format.shape, Representation::Table(..)) && objects.sorts_rows(call.resource()) {
        call.work().check_step(size.total)?;
    }
    if response_format.encoding == Encoding::Protobuf { call.work().check_step(size.largest) } else { Ok(()) }
}

/// Encodes the items of a Protobuf list. Returns the messages, if they are kept, and the total length.
async fn encode_protobuf_items(
    backend: &Backend,
    resource: &Resource,
    response_format: ResponseFormat,
    items: &[Arc<Object>],
    keeps_messages: bool,
) -> Result<(Vec<Bytes>, usize)> {
    let objects = &backend.objects;
    if !keeps_messages {
        return Ok((Vec::new(), protobuf_items_len(objects, resource, response_format, items).await?));
    }
    let (messages, fields) = (
        protobuf_items(objects, resource, response_format, items).await?,
        list_fields(response_format.shape),
    );
    let total = messages.iter().map(|message| item_len(fields, message)).sum();
    Ok((messages, total))
}

/// The error for an item whose second encoding is longer than the first. It should not occur, because objects are immutable.
fn length_error(object: &Object) -> Box<Status> {
    Status::internal(format!("the item {:?} of a list is longer than announced", object.key.as_str()))
}

/// An encoded item in two parts, so that the bytes of a stored object are used without a copy.
pub struct EncodedItem {
    opening: &'static str,
    rest: Bytes,
}

impl EncodedItem {
    fn whole(rest: Bytes) -> EncodedItem {
        EncodedItem { opening: "", rest }
    }
}

/// Encodes an item of the list, as JSON if YAML was negotiated.
fn encode_item(
    objects: &Objects,
    resource: &Resource,
    response_format: ResponseFormat,
    object: &Object,
) -> Result<EncodedItem> {
    match response_format.encoding {
        Encoding::Json | Encoding::Yaml => json_item(objects, resource, response_format.shape, object),
        Encoding::Protobuf => {
            objects.transient_message(resource, response_format, object).map(EncodedItem::whole)
        }
        Encoding::Cbor => objects.cbor_item(resource, response_format, object).map(EncodedItem::whole),
    }
}

/// An item in JSON. Items of lists of whole objects omit kind and apiVersion.
fn json_item(
    objects: &Objects,
    resource: &Resource,
    shape: Representation,
    object: &Object,
) -> Result<EncodedItem> {
    let response_format = ResponseFormat { encoding: Encoding::Json, shape };
    let whole = EncodedItem::whole;
    let fields = |bytes: &Bytes, offset: usize| EncodedItem {
        opening: "{",
        rest: bytes.slice(offset.min(bytes.len())..),
    };
    Ok(match shape {
        // Items of custom resources state their kind, as in the reference.
        Representation::Whole if resource.custom.is_some() => {
            whole(objects.encode(resource, response_format, object, false)?)
        }
        Representation::Whole if resource.is_storage_version() => fields(&object.bytes, object.item_offset()),
        Representation::Whole => {
            let bytes = objects.encode(resource, response_format, object, false)?;
            let prefix = format!(r#"{{"kind":"{}","apiVersion":"{}","#, resource.kind, resource.api_version);
            let offset = if bytes.starts_with(prefix.as_bytes()) { prefix.len() } else { 1 };
            fields(&bytes, offset)
        }
        Representation::Metadata(_) => whole(objects.encode(resource, response_format, object, false)?),
        Representation::Table(version, include) => {
            whole(objects.encode_row(resource, version, include, object)?.into())
        }
    })
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
