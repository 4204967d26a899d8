//! Bodies that are made piece by piece as the client reads: lists in every encoding, and large objects that are indented or
//! in YAML. Indentation can make an object a hundred times as long, so neither is ever held as a whole.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use actix_web::body::{BodySize, MessageBody};
use bytes::{Buf as _, Bytes};
use futures::Stream;
use futures::future::LocalBoxFuture;
use pilothouse_apimachinery::codec::indent::Indenter;
use pilothouse_apimachinery::codec::yaml_list::YamlList;
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_types::memory::Reservation;

use crate::flowcontrol::heavy_pool::OwnedPool;
use crate::limits::{LIST_CHUNK_BYTES, STREAMED_OBJECT_BYTES};
use crate::registry::Backend;
use crate::verbs::listing::{EncodedItem, Listing};

use super::render::heavy_error;
use crate::audit::Trail;

/// The maximum bytes by which a line may exceed the chunk: its indentation.
const LINE_BYTES: usize = 256;

/// A list or an object that is laid out as the client reads it.
pub struct StreamedBody {
    source: Source,
    layout: Layout,
    /// The pieces that were made before it was decided how to send the body.
    pub prefix: Option<Bytes>,
    /// Whether other requests had their turn since the last piece.
    has_yielded: bool,
    /// The memory of the object that is laid out, until the last piece is sent.
    _reservation: Option<Reservation>,
}

/// Where the text comes from.
struct Source {
    /// The list; `None` for an object, whose text the layout has from the beginning.
    listing: Option<Listing>,
    /// The audit trail of the list, and the list's encoding.
    trail: Option<(Rc<Trail>, Encoding)>,
    /// The threads on which large items are encoded, and YAML is written.
    pool: OwnedPool<Backend>,
    /// The large item that is being encoded there.
    large_item: Option<LocalBoxFuture<'static, Result<EncodedItem>>>,
}

/// How the text is laid out.
enum Layout {
    /// As it is encoded.
    Plain,
    /// Indented JSON. The JSON that is not indented yet.
    Pretty(Indenter, Bytes),
    Yaml(YamlLayout),
}

impl StreamedBody {
    /// The body of a list in this encoding; `pretty` indents JSON.
    pub fn list(
        listing: Listing,
        encoding: Encoding,
        pretty: bool,
        trail: Option<Rc<Trail>>,
        pool: OwnedPool<Backend>,
    ) -> StreamedBody {
        let trail = trail.map(|trail| (trail, encoding));
        let layout = match encoding {
            Encoding::Yaml => {
                let (head, tail) = listing.ends();
                let envelope = [&**head, &**tail].concat();
                Layout::Yaml(YamlLayout::new(YamlList::new(envelope.into(), listing.items_key())))
            }
            Encoding::Json if pretty => Layout::Pretty(Indenter::default(), Bytes::new()),
            Encoding::Json | Encoding::Protobuf | Encoding::Cbor => Layout::Plain,
        };
        StreamedBody {
            source: Source { listing: Some(listing), trail, pool, large_item: None },
            layout,
            prefix: None,
            has_yielded: false,
            _reservation: None,
        }
    }

    /// The body of an object, given in JSON: indented, or in YAML.
    pub fn object(json: Bytes, encoding: Encoding, pool: OwnedPool<Backend>) -> StreamedBody {
        let layout = match encoding {
            // An object is a list to which no items come.
            Encoding::Yaml => Layout::Yaml(YamlLayout::new(YamlList::new(json, "items"))),
            _ => Layout::Pretty(Indenter::default(), json),
        };
        StreamedBody {
            source: Source { listing: None, trail: None, pool, large_item: None },
            layout,
            prefix: None,
            has_yielded: false,
            _reservation: None,
        }
    }

    /// The same, with the memory that it takes.
    pub fn holding(self, reservation: Reservation) -> StreamedBody {
        StreamedBody { _reservation: Some(reservation), ..self }
    }

    /// The next piece; `None` after the last.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        poll_fn(|cx| self.poll_piece(cx)).await
    }

    /// Whether there are no more pieces.
    pub fn is_done(&self) -> bool {
        match &self.layout {
            Layout::Plain => self.source.is_done(),
            Layout::Pretty(_, json) => self.source.is_done() && json.is_empty(),
            Layout::Yaml(yaml) => yaml.is_done(),
        }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        if let Some(prefix) = self.prefix.take() {
            return Poll::Ready(Some(Ok(prefix)));
        }
        if self.source.was_heavy() && !std::mem::replace(&mut self.has_yielded, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.source.poll_large_item(cx));
        self.has_yielded = false;
        match &mut self.layout {
            Layout::Plain => Poll::Ready(self.source.next_chunk()),
            Layout::Pretty(indenter, json) => Poll::Ready(self.source.next_indented(indenter, json)),
            Layout::Yaml(yaml) => yaml.poll(&mut self.source, cx),
        }
    }
}

impl Source {
    fn record(&self, piece: &[u8]) {
        if let Some((trail, encoding)) = &self.trail {
            trail.record_response(*encoding, piece);
        }
    }

    /// What comes before the items of a list and after them.
    fn ends(&self) -> (&[u8], &[u8]) {
        self.listing.as_ref().map_or((&[], &[]), |listing| {
            let (head, tail) = listing.ends();
            (head, tail)
        })
    }

    fn is_done(&self) -> bool {
        self.listing.as_ref().is_none_or(Listing::is_done)
    }

    /// Whether the last piece of the list was much work.
    fn was_heavy(&self) -> bool {
        self.listing.as_ref().is_some_and(Listing::was_heavy)
    }

    /// Waits until the next item is encoded, if it is so large that another thread has to do it. The list holds the error, if
    /// there is one.
    fn poll_large_item(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(listing) = &mut self.listing else { return Poll::Ready(()) };
        if self.large_item.is_none()
            && let Some(encode) = listing.large_item()
        {
            let pool = self.pool.clone();
            self.large_item = Some(Box::pin(async move {
                pool.step(move |backend| encode(&backend.objects)).await.map_err(heavy_error)?
            }));
        }
        if let Some(item) = &mut self.large_item {
            let encoded = ready!(item.as_mut().poll(cx));
            self.large_item = None;
            listing.put_encoded(encoded);
        }
        Poll::Ready(())
    }

    /// Whether the next item has to be encoded by another thread.
    fn is_next_large(&self) -> bool {
        self.listing.as_ref().is_some_and(Listing::is_next_large)
    }

    fn is_out_of_items(&self) -> bool {
        self.listing.as_ref().is_none_or(Listing::is_out_of_items)
    }

    fn next_json(&mut self) -> Option<Result<Bytes>> {
        self.listing.as_mut()?.next_json()
    }

    fn next_chunk(&mut self) -> Option<Result<Bytes>> {
        let chunk = self.listing.as_mut()?.next_chunk();
        if let Some(Ok(chunk)) = &chunk {
            self.record(chunk);
        }
        chunk
    }

    /// The next piece of indented JSON. `json` is what is left of the last chunk.
    fn next_indented(&mut self, indenter: &mut Indenter, json: &mut Bytes) -> Option<Result<Bytes>> {
        let mut text = Vec::new();
        while text.len() < LIST_CHUNK_BYTES {
            if json.is_empty() {
                if !text.is_empty() && self.is_next_large() {
                    break;
                }
                match self.next_chunk() {
                    Some(Ok(chunk)) => *json = chunk,
                    Some(Err(status)) => return Some(Err(status)),
                    None => break,
                }
            }
            text.reserve((json.len() * 3 / 2).min(LIST_CHUNK_BYTES - text.len() + LINE_BYTES));
            json.advance(indenter.indent(json, &mut text, LIST_CHUNK_BYTES));
        }
        (!text.is_empty()).then(|| Ok(text.into()))
    }
}

type Step = LocalBoxFuture<'static, Result<(YamlList, Bytes)>>;

/// A list or an object in YAML. Each piece is written on a thread for heavy work, because that takes many times as long as to
/// send it.
struct YamlLayout {
    /// The text, unless a piece of it is being written; `None` after an error.
    list: Option<YamlList>,
    step: Option<Step>,
    audit_progress: AuditProgress,
}

/// How much of the list is in its audit trail, which gets JSON.
#[derive(Clone, Copy, PartialEq)]
enum AuditProgress {
    Nothing,
    Items,
    Everything,
}

impl YamlLayout {
    fn new(list: YamlList) -> YamlLayout {
        YamlLayout { list: Some(list), step: None, audit_progress: AuditProgress::Nothing }
    }

    fn is_done(&self) -> bool {
        self.step.is_none() && self.list.as_ref().is_none_or(YamlList::is_done)
    }

    fn poll(&mut self, source: &mut Source, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        loop {
            if let Some(step) = &mut self.step {
                let result = ready!(step.as_mut().poll(cx));
                self.step = None;
                match result {
                    Ok((list, text)) => {
                        self.list = Some(list);
                        if !text.is_empty() {
                            return Poll::Ready(Some(Ok(text)));
                        }
                    }
                    Err(status) => return Poll::Ready(Some(Err(status))),
                }
            }
            let Some(mut list) = self.list.take_if(|list| !list.is_done()) else { return Poll::Ready(None) };
            let mut added = None;
            if list.needs_items() {
                match self.add_items(source, &mut list) {
                    Ok(bytes) => added = Some(bytes),
                    Err(status) => return Poll::Ready(Some(Err(status))),
                }
            }
            let is_complete = source.is_out_of_items();
            // A short list is not worth another thread.
            let is_short = is_complete
                && source.listing.is_some()
                && added.is_some_and(|bytes| bytes <= STREAMED_OBJECT_BYTES);
            self.step = Some(if is_short {
                Box::pin(std::future::ready(write(list, is_complete)))
            } else {
                Box::pin(write_heavy(source.pool.clone(), list, is_complete))
            });
        }
    }

    /// Gives the list its next items, as many as a chunk holds, and returns their bytes.
    fn add_items(&mut self, source: &mut Source, list: &mut YamlList) -> Result<usize> {
        let mut bytes = 0;
        while bytes < LIST_CHUNK_BYTES
            && (bytes == 0 || !source.is_next_large())
            && let Some(item) = source.next_json()
        {
            let item = item?;
            bytes += item.len();
            self.record_item(source, &item);
            list.push(item);
        }
        if source.is_out_of_items() {
            self.record_end(source);
        }
        Ok(bytes)
    }

    fn record_item(&mut self, source: &Source, item: &[u8]) {
        match self.audit_progress {
            AuditProgress::Nothing => source.record(source.ends().0),
            AuditProgress::Items | AuditProgress::Everything => source.record(b","),
        }
        source.record(item);
        self.audit_progress = AuditProgress::Items;
    }

    fn record_end(&mut self, source: &Source) {
        let previous = std::mem::replace(&mut self.audit_progress, AuditProgress::Everything);
        if previous == AuditProgress::Nothing {
            source.record(source.ends().0);
        }
        if previous != AuditProgress::Everything {
            source.record(source.ends().1);
        }
    }
}

fn write(mut list: YamlList, is_complete: bool) -> Result<(YamlList, Bytes)> {
    let text = list.write(LIST_CHUNK_BYTES, is_complete);
    let text = text.map_err(|error| Status::internal(error.to_string()))?;
    Ok((list, text.into()))
}

async fn write_heavy(
    pool: OwnedPool<Backend>,
    list: YamlList,
    is_complete: bool,
) -> Result<(YamlList, Bytes)> {
    pool.step(move |_| write(list, is_complete)).await.map_err(heavy_error)?
}

impl Stream for StreamedBody {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        self.poll_piece(cx)
    }
}

impl MessageBody for StreamedBody {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Bytes, Self::Error>>> {
        self.poll_piece(cx).map_err(|status| -> Self::Error { status })
    }
}
