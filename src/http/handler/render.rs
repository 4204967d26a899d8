//! Answers as HTTP: status line, headers, and bodies in the encoding that was agreed upon.

use std::cell::{Cell, OnceCell};
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use actix_web::body::{BodySize, MessageBody};
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;

use pilothouse_actors::clock::Timestamp;

use crate::api::codec;
use crate::api::media::{self, Agreed, Encoding, Offer};
use crate::api::query::Query;
use crate::api::schema::Registry;
use crate::api::status::{Result, Status};
use crate::flows::table::Flow;
use crate::http::h1_stream::Endless;
use crate::ids;
use crate::limits::{AUDIT_ID_BYTES, LAID_OUT_ASIDE_BYTES};
use crate::verbs::list::Listing;
use crate::verbs::{Reply, Warnings};

use super::audit::Trail;
use super::counted::counted;
use super::gzip::{self, Gzip};
use super::worker::Worker;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
/// The media type of words for people.
pub(super) const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// What an answer needs to know of its request.
pub struct Context {
    /// The Accept header.
    pub accept: String,
    /// What the client should know besides the answer.
    pub warnings: Warnings,
    /// When the request came.
    pub began: Timestamp,
    /// Its record, once it is known whether there is one.
    pub trail: OnceCell<Option<Rc<Trail>>>,
    worker: Rc<Worker>,
    offer: Cell<Offer>,
    audit_id: HeaderValue,
    flow: OnceCell<Arc<Flow>>,
    pretty: bool,
    gzip: bool,
}

impl Context {
    /// Reads what answers depend on.
    pub fn of(request: &HttpRequest, worker: &Rc<Worker>) -> Context {
        let headers = request.headers();
        let given = headers.get(AUDIT_ID).filter(|id| !id.is_empty() && id.len() <= AUDIT_ID_BYTES);
        let audit_id = match given {
            Some(id) => id.clone(),
            None => HeaderValue::try_from(ids::uuid()).unwrap_or(HeaderValue::from_static("")),
        };
        Context {
            accept: text(headers, header::ACCEPT).to_owned(),
            warnings: Warnings::default(),
            began: worker.backend.clock.now(),
            trail: OnceCell::new(),
            worker: worker.clone(),
            offer: Cell::new(Offer::objects(false)),
            audit_id,
            flow: OnceCell::new(),
            pretty: wants_pretty(request),
            gzip: worker.shared.encoding.gzip && gzip::is_accepted(text(headers, header::ACCEPT_ENCODING)),
        }
    }

    /// What the answer can be encoded in, as far as the request has come.
    pub fn offer(&self) -> Offer {
        self.offer.get()
    }

    /// The request has come to what is in a version of a group. Who is turned away before, and whoever asks which groups there are,
    /// is not answered in CBOR, as in the reference.
    pub fn arrive(&self) {
        self.offer.set(Offer::objects(self.worker.shared.encoding.cbor));
    }

    /// The record of the request, if there is one.
    pub fn trail(&self) -> Option<&Rc<Trail>> {
        self.trail.get()?.as_ref()
    }

    /// Notes a piece of the answer for the record.
    pub fn told(&self, encoding: Encoding, piece: &[u8]) {
        if let Some(trail) = self.trail() {
            trail.told(encoding, piece);
        }
    }

    fn registry(&self) -> &Arc<Registry> {
        &self.worker.backend.registry
    }

    /// By which records know the request.
    pub fn audit_id(&self) -> &HeaderValue {
        &self.audit_id
    }

    /// Lets the answer say which flow its request belongs to.
    pub fn put_to(&self, flow: Option<Arc<Flow>>) {
        if let Some(flow) = flow {
            // A request belongs to one flow: there is no second time.
            let _ = self.flow.set(flow);
        }
    }

    /// Whether a person will read the answer.
    pub fn is_pretty(&self) -> bool {
        self.pretty
    }

    /// Adds the headers that every answer has.
    pub fn finish(&self, mut response: HttpResponse) -> HttpResponse {
        // As the reference spells them: over HTTP/1.1 some clients compare names letter by letter.
        response.head_mut().set_camel_case_headers(true);
        let headers = response.headers_mut();
        headers.insert(AUDIT_ID, self.audit_id.clone());
        if let Some(flow) = self.flow.get() {
            for (name, uid) in [(FLOW_SCHEMA, &flow.schema.uid), (PRIORITY_LEVEL, &flow.level_uid)] {
                if let Ok(value) = HeaderValue::from_maybe_shared(uid.clone()) {
                    headers.insert(name, value);
                }
            }
        }
        if let Some(directives) = &self.worker.shared.transport_security {
            headers.insert(header::STRICT_TRANSPORT_SECURITY, directives.clone());
        }
        if !headers.contains_key(header::CACHE_CONTROL) {
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        }
        for warning in self.warnings.take() {
            if let Ok(value) = HeaderValue::try_from(warning_header(&warning)) {
                headers.append(header::WARNING, value);
            }
        }
        response
    }
}

/// A header as text, empty if absent or not text.
pub fn text(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Whether a person will read the answer: they say so, or come with a tool that people use.
fn wants_pretty(request: &HttpRequest) -> bool {
    if request.query_string().contains("pretty")
        && let Some(pretty) = Query::parse(request.query_string()).pretty()
    {
        return pretty;
    }
    let agent = text(request.headers(), header::USER_AGENT);
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|tool| agent.starts_with(tool))
}

/// The answer of a verb.
pub async fn answer(context: &Context, agreed: Agreed<'_>, reply: Reply) -> Result<HttpResponse> {
    match reply {
        Reply::Object(code, bytes) => shown(context, agreed, code, bytes).await,
        Reply::Status(status) => {
            let json = status.to_json();
            if let Some(trail) = context.trail() {
                trail.status(&status, &json);
            }
            document(context, agreed, status.code, &json)
        }
        Reply::List(listing) => list(context, agreed, listing).await,
        Reply::Watch(feed) => {
            let media = agreed.encoding.stream_type().ok_or_else(|| media::no_stream(context.offer()))?;
            let body = feed.map(Ok::<_, Infallible>);
            let mut response = HttpResponse::Ok().content_type(media).streaming(body);
            response.extensions_mut().insert(Endless);
            Ok(response)
        }
    }
}

/// The text of a Warning header: code 299, no agent, the text in quotes and without what a header cannot hold.
fn warning_header(text: &str) -> String {
    let mut header = String::with_capacity(text.len() + 8);
    header.push_str("299 - \"");
    for c in text.chars() {
        match c {
            '"' | '\\' => header.extend(['\\', c]),
            c if c.is_control() => header.push(' '),
            c => header.push(c),
        }
    }
    header.push('"');
    header
}

/// An object in the form that was agreed upon; for YAML in JSON, of which it is made.
async fn shown(context: &Context, agreed: Agreed<'_>, code: u16, bytes: Bytes) -> Result<HttpResponse> {
    context.told(agreed.encoding, &bytes);
    let body = match agreed.encoding {
        Encoding::Json | Encoding::Yaml => text_of(context, agreed, bytes).await?,
        Encoding::Protobuf | Encoding::Cbor => bytes,
    };
    if !context.gzip || body.len() <= gzip::THRESHOLD {
        return Ok(sized(agreed, code, body));
    }
    let packed = web::block(move || gzip::pack(&body)).await;
    let packed = packed.map_err(|error| Status::internal(error.to_string()))?;
    let mut builder = HttpResponse::build(StatusCode::from_u16(code).unwrap_or(StatusCode::OK));
    builder.insert_header((header::CONTENT_TYPE, agreed.encoding.media_type()));
    gzip::mark(&mut builder);
    Ok(builder.body(packed))
}

/// A document that is there as JSON: small, and in any encoding.
pub fn document(context: &Context, agreed: Agreed<'_>, code: u16, json: &[u8]) -> Result<HttpResponse> {
    let body = match agreed.encoding {
        Encoding::Json => json_text(context.pretty || agreed.pretty, json),
        encoding => codec::encode_document(context.registry(), encoding, json)
            .map_err(|error| Status::internal(error.to_string()))?,
    };
    Ok(sized(agreed, code, Bytes::from(body)))
}

fn sized(agreed: Agreed<'_>, code: u16, body: Bytes) -> HttpResponse {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    HttpResponse::build(code).insert_header((header::CONTENT_TYPE, agreed.encoding.media_type())).body(body)
}

/// JSON as it is sent: with a line break at its end, and laid out for people who look at it.
pub fn json_text(pretty: bool, json: &[u8]) -> Vec<u8> {
    let mut text = if pretty {
        codec::pretty(json)
    } else {
        let mut text = Vec::with_capacity(json.len() + 1);
        text.extend_from_slice(json);
        text
    };
    text.push(b'\n');
    text
}

/// JSON or YAML of an object or list that is there as JSON. What is large is laid out on another thread, so that the
/// requests of this one go on meanwhile.
async fn text_of(context: &Context, agreed: Agreed<'_>, json: Bytes) -> Result<Bytes> {
    let (encoding, pretty) = (agreed.encoding, context.pretty || agreed.pretty);
    let broken = |error: &dyn std::fmt::Display| Status::internal(error.to_string());
    if encoding == Encoding::Json && !pretty {
        return Ok(Bytes::from(json_text(false, &json)));
    }
    let (registry, large) = (context.registry().clone(), json.len() > LAID_OUT_ASIDE_BYTES);
    let make = move || match encoding {
        Encoding::Json => Ok(json_text(true, &json)),
        _ => codec::encode_document(&registry, encoding, &json),
    };
    let text = if large { web::block(make).await.map_err(|error| broken(&error))? } else { make() };
    text.map(Bytes::from).map_err(|error| broken(&error))
}

async fn list(context: &Context, agreed: Agreed<'_>, mut listing: Listing) -> Result<HttpResponse> {
    let laid_out = context.pretty || agreed.pretty;
    if agreed.encoding == Encoding::Yaml || agreed.encoding == Encoding::Json && laid_out {
        let (whole, held) = listing.collect().await?;
        let shown = shown(context, agreed, 200, whole.slice(..whole.trim_ascii_end().len())).await?;
        return Ok(counted(shown, held));
    }
    let mut first = listing.next_chunk().transpose()?.unwrap_or_default();
    // Whether a list is worth compressing shows only when enough of it is there.
    if context.gzip {
        let mut begun = BytesMut::from(first);
        while begun.len() <= gzip::THRESHOLD
            && let Some(chunk) = listing.next_chunk()
        {
            begun.extend_from_slice(&chunk?);
        }
        first = begun.freeze();
    }
    context.told(agreed.encoding, &first);
    let long = context.gzip && first.len() > gzip::THRESHOLD;
    // Most lists are small: they go out whole, with their length.
    if listing.is_done() && !long {
        return Ok(sized(agreed, 200, first));
    }
    let mut builder = HttpResponse::Ok();
    builder.insert_header((header::CONTENT_TYPE, agreed.encoding.media_type()));
    let trail = context.trail().cloned().map(|trail| (trail, agreed.encoding));
    let body = ListBody { first: Some(first), listing, trail };
    if !long {
        return Ok(builder.body(body));
    }
    gzip::mark(&mut builder);
    Ok(builder.body(Gzip::new(body)))
}

/// A list that is encoded while the client reads it.
struct ListBody {
    first: Option<Bytes>,
    listing: Listing,
    /// What is noted of it, and in which encoding it is.
    trail: Option<(Rc<Trail>, Encoding)>,
}

impl Iterator for ListBody {
    type Item = Result<Bytes>;

    fn next(&mut self) -> Option<Result<Bytes>> {
        if let Some(first) = self.first.take() {
            return Some(Ok(first));
        }
        let chunk = self.listing.next_chunk();
        if let (Some((trail, encoding)), Some(Ok(chunk))) = (&self.trail, &chunk) {
            trail.told(*encoding, chunk);
        }
        chunk
    }
}

impl MessageBody for ListBody {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        _: &mut TaskContext<'_>,
    ) -> Poll<Option<std::result::Result<Bytes, Self::Error>>> {
        Poll::Ready(self.next().map(|chunk| chunk.map_err(|status| -> Self::Error { status })))
    }
}

/// An error in the encoding that the client reads, or JSON if it reads none of ours.
pub fn error(context: &Context, status: &Status) -> HttpResponse {
    let negotiated = media::negotiate(&context.accept, context.offer(), |_, _| false);
    let json = status.to_json();
    // What the client cannot read is not noted either, as in the reference.
    if let Some(trail) = context.trail().filter(|_| negotiated.is_ok()) {
        trail.status(status, &json);
    }
    let agreed = negotiated.unwrap_or(Agreed::DEFAULT);
    let mut response = document(context, agreed, status.code, &json)
        .unwrap_or_else(|_| HttpResponse::InternalServerError().body(json.clone()));
    let headers = response.headers_mut();
    if let Some(seconds) = status.retry_after() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if status.is_forbidden() {
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    response
}

/// Plain text, as health checks and unknown paths answer.
pub fn plain(code: u16, body: String) -> HttpResponse {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    HttpResponse::build(code)
        .insert_header((header::CONTENT_TYPE, PLAIN_TEXT))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .body(body)
}

/// 429 for a request that is not let in, as the reference words it, with the seconds after which to come back.
pub fn too_many_requests(seconds: u64) -> HttpResponse {
    let mut response = plain(429, "Too many requests, please try again later.\n".to_owned());
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// 404 where not even the group of the path is known.
pub fn page_not_found() -> HttpResponse {
    plain(404, "404 page not found\n".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_fits_into_a_header() {
        assert_eq!(warning_header("unknown field \"a\"\n"), r#"299 - "unknown field \"a\" ""#);
    }
}
