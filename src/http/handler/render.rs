//! Renders responses as HTTP: status, headers, and bodies in the negotiated encoding.

use std::cell::{Cell, OnceCell};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_web::{HttpRequest, HttpResponse};
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use pilothouse_api::discovery::Document;
use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::media::{self, Encoding, Negotiated, OfferedEncodings};
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::well_known::MASTERS;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::identity::Identity;
use pilothouse_types::memory::{MemoryBudget, reserved_bytes};

use crate::audit::Trail;
use crate::flowcontrol::heavy_pool::fair_queue::WorkOwner;
use crate::flowcontrol::heavy_pool::{HeavyError, OwnedPool};
use crate::flowcontrol::table::Flow;
use crate::http::h1_stream::Endless;
use crate::limits::{AUDIT_ID_BYTES, HEAVY_BYTES, STREAMED_OBJECT_BYTES};
use crate::pki::random;
use crate::registry::{Backend, Warnings};
use crate::verbs::listing::Listing;
use crate::verbs::{Reply, Success};

use super::cors;
use super::gzip::{self, Gzip};
use super::streamed_body::StreamedBody;
use super::worker::Worker;

pub(super) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
/// The media type of error texts.
pub(super) const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// The properties of a request that its response depends on.
pub struct Context {
    /// The Accept header.
    pub accept: String,
    /// Collects warnings for the client.
    pub warnings: Warnings,
    /// The time of arrival.
    pub began: Timestamp,
    /// The audit trail, once it is decided whether there is one.
    pub trail: OnceCell<Option<Rc<Trail>>>,
    worker: Rc<Worker>,
    offer: Cell<OfferedEncodings>,
    cbor_allowed: Cell<bool>,
    audit_id: HeaderValue,
    flow: OnceCell<Arc<Flow>>,
    user: OnceCell<Arc<Identity>>,
    /// Whether the request changes nothing, by its method.
    is_read: bool,
    pretty: bool,
    gzip: bool,
    /// The page that has sent the request, if it is one of an allowed origin.
    origin: Option<HeaderValue>,
}

impl Context {
    /// Reads the properties from a request.
    pub fn new(request: &HttpRequest, worker: &Rc<Worker>) -> Context {
        let headers = request.headers();
        let client_id = headers.get(AUDIT_ID).filter(|id| !id.is_empty() && id.len() <= AUDIT_ID_BYTES);
        let audit_id = match client_id {
            Some(id) => id.clone(),
            None => HeaderValue::try_from(random::uuid()).unwrap_or(HeaderValue::from_static("")),
        };
        Context {
            accept: text(headers, header::ACCEPT).to_owned(),
            warnings: Warnings::default(),
            began: worker.backend.clock.now(),
            trail: OnceCell::new(),
            worker: worker.clone(),
            offer: Cell::new(OfferedEncodings::objects(false)),
            cbor_allowed: Cell::new(false),
            audit_id,
            flow: OnceCell::new(),
            user: OnceCell::new(),
            is_read: request.method().is_safe(),
            pretty: wants_pretty(request),
            gzip: worker.shared.responses.encoding.gzip
                && gzip::is_accepted(text(headers, header::ACCEPT_ENCODING)),
            origin: cors::origin(&worker.shared.responses.allowed_origins, headers),
        }
    }

    /// The encodings that can be negotiated at this point of the filter chain.
    pub fn offer(&self) -> OfferedEncodings {
        self.offer.get()
    }

    /// Allows CBOR from here on. Errors before this point and discovery of groups are never CBOR, as in the reference.
    pub fn allow_cbor(&self) {
        self.cbor_allowed.set(true);
        self.offer.set(OfferedEncodings::objects(self.worker.shared.responses.encoding.cbor));
    }

    /// Whether the client takes compressed responses.
    pub fn accepts_gzip(&self) -> bool {
        self.gzip
    }

    /// The origin of the page that has sent the request, if it may read the response.
    pub fn origin(&self) -> Option<&HeaderValue> {
        self.origin.as_ref()
    }

    /// The audit trail, if the request is audited.
    pub fn trail(&self) -> Option<&Rc<Trail>> {
        self.trail.get()?.as_ref()
    }

    /// Records a piece of the response for auditing.
    pub fn record_body(&self, encoding: Encoding, piece: &[u8]) {
        if let Some(trail) = self.trail() {
            trail.record_response(encoding, piece);
        }
    }

    /// The memory budget of responses.
    fn lists(&self) -> &MemoryBudget {
        &self.worker.backend.lists
    }

    fn registry(&self) -> &Arc<Registry> {
        &self.worker.backend.objects.registry
    }

    /// The audit ID of the request.
    pub fn audit_id(&self) -> &HeaderValue {
        &self.audit_id
    }

    /// Sets the user of the request.
    pub fn set_user(&self, user: &Arc<Identity>) {
        // A request is classified once.
        let _ = self.user.set(user.clone());
    }

    /// Sets the flow schema and priority level that the response headers name.
    pub fn set_flow(&self, flow: Option<Arc<Flow>>) {
        if let Some(flow) = flow {
            // A request is classified once.
            let _ = self.flow.set(flow);
        }
    }

    /// The owner of heavy work for this request.
    pub fn work_owner(&self) -> WorkOwner {
        let (flow, user) = (self.flow.get(), self.user.get());
        let is_master = || user.is_some_and(|user| user.is_in(MASTERS));
        WorkOwner {
            level: flow.map_or("", |flow| &flow.schema.level).into(),
            user: user.map_or("", |user| &user.name).into(),
            is_exempt: flow.map_or_else(is_master, |flow| flow.is_exempt),
        }
    }

    /// The threads for heavy work, on behalf of this request.
    pub fn heavy_pool(&self) -> OwnedPool<Backend> {
        OwnedPool { pool: self.worker.shared.heavy.pool.clone(), owner: self.work_owner() }
    }

    /// Computes something on a thread for heavy work.
    pub async fn compute_heavy<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let result = self.worker.shared.heavy.pool.compute(&self.work_owner(), work).await;
        result.map_err(heavy_error)
    }

    /// Whether to indent JSON.
    pub fn is_pretty(&self) -> bool {
        self.pretty
    }

    /// Adds the headers that every response has.
    pub fn finish(&self, mut response: HttpResponse) -> HttpResponse {
        // Capitalized as in the reference: over HTTP/1.1 some clients compare names case-sensitively.
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
        if let Some(directives) = &self.worker.shared.responses.transport_security {
            headers.insert(header::STRICT_TRANSPORT_SECURITY, directives.clone());
        }
        if let Some(origin) = &self.origin {
            cors::allow(headers, origin);
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

/// Whether to indent JSON: by query parameter, or for tools that people use, such as curl.
fn wants_pretty(request: &HttpRequest) -> bool {
    if request.query_string().contains("pretty")
        && let Some(pretty) = Query::parse(request.query_string()).pretty()
    {
        return pretty;
    }
    let agent = text(request.headers(), header::USER_AGENT);
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|tool| agent.starts_with(tool))
}

/// Renders the reply of a verb.
pub async fn render_reply(
    context: &Context,
    negotiated: Negotiated<'_>,
    reply: Reply,
) -> Result<HttpResponse> {
    match reply {
        Reply::Object(success, bytes) => render_object(context, negotiated, code_of(success), bytes).await,
        Reply::Status(status) => {
            let json = status.to_json();
            if let Some(trail) = context.trail() {
                trail.status(&status, &json);
            }
            document(context, negotiated, status.code, &json)
        }
        Reply::List(listing) => list(context, negotiated, listing).await,
        Reply::Watch(mut feed) => {
            let media = negotiated.encoding.stream_type().ok_or_else(|| media::no_stream(context.offer()))?;
            let cut = feed.cut_signal();
            let body = feed.map(Ok::<_, Infallible>);
            let mut response = HttpResponse::Ok().content_type(media).streaming(body);
            response.extensions_mut().insert(Endless);
            cut.map(|cut| response.extensions_mut().insert(cut));
            Ok(response)
        }
    }
}

/// The value of a Warning header: code 299, no agent, the quoted text without characters that a header cannot hold.
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

fn code_of(success: Success) -> StatusCode {
    StatusCode::from_u16(success.code()).unwrap_or_default()
}

/// Renders an object in the negotiated encoding; YAML is made from JSON.
async fn render_object(
    context: &Context,
    negotiated: Negotiated<'_>,
    code: StatusCode,
    bytes: Bytes,
) -> Result<HttpResponse> {
    context.record_body(negotiated.encoding, &bytes);
    let pretty = context.pretty || negotiated.pretty;
    let body = match negotiated.encoding {
        Encoding::Json if !pretty => Bytes::from(json_text(false, &bytes)),
        Encoding::Json if bytes.len() > STREAMED_OBJECT_BYTES => {
            let body = StreamedBody::object(bytes, negotiated.encoding, context.heavy_pool());
            return streamed(context, negotiated, code, body).await;
        }
        Encoding::Yaml if bytes.len() > STREAMED_OBJECT_BYTES => {
            let tree = codec::decoded_bytes_bound(Encoding::Json, &bytes);
            // The write is done: a refusal here would make the client repeat it.
            let reservation =
                if context.is_read { context.lists().take(tree)? } else { context.lists().charge(tree) };
            let body =
                StreamedBody::object(bytes, negotiated.encoding, context.heavy_pool()).holding(reservation);
            return streamed(context, negotiated, code, body).await;
        }
        Encoding::Json => Bytes::from(json_text(true, &bytes)),
        Encoding::Yaml => {
            let text = codec::encode_document(context.registry(), Encoding::Yaml, &bytes);
            Bytes::from(text.map_err(|error| Status::internal(error.to_string()))?)
        }
        Encoding::Protobuf | Encoding::Cbor => bytes,
    };
    if !context.gzip || body.len() <= gzip::THRESHOLD {
        return Ok(sized(negotiated, code, body));
    }
    let plain = body.clone();
    let Ok(packed) = context.compute_heavy(move || gzip::compress(&body)).await else {
        // The verb is done: a refusal here would make the client repeat it.
        return Ok(sized(negotiated, code, plain));
    };
    let mut builder = HttpResponse::build(code);
    builder.insert_header((header::CONTENT_TYPE, negotiated.encoding.media_type()));
    gzip::set_headers(&mut builder);
    Ok(builder.body(packed))
}

/// Renders a small JSON document in any encoding.
pub fn document(
    context: &Context,
    negotiated: Negotiated<'_>,
    code: u16,
    json: &[u8],
) -> Result<HttpResponse> {
    let body = match negotiated.encoding {
        Encoding::Json => json_text(context.pretty || negotiated.pretty, json),
        encoding => codec::encode_document(context.registry(), encoding, json)
            .map_err(|error| Status::internal(error.to_string()))?,
    };
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Ok(sized(negotiated, code, Bytes::from(body)))
}

/// Renders a document of discovery. In JSON all responses share its text; an encoding that is made for one response is counted
/// until it is sent.
pub async fn shared_document(
    context: &Context,
    negotiated: Negotiated<'_>,
    document: &Document,
) -> Result<HttpResponse> {
    let json = &document.json;
    if negotiated.encoding == Encoding::Json && !context.pretty && !negotiated.pretty {
        return Ok(sized(negotiated, StatusCode::OK, document.line.clone()));
    }
    if json.len() <= HEAVY_BYTES {
        return self::document(context, negotiated, 200, json);
    }
    if negotiated.encoding == Encoding::Json {
        let mut builder = HttpResponse::Ok();
        builder.insert_header((header::CONTENT_TYPE, negotiated.encoding.media_type()));
        return Ok(builder.body(StreamedBody::object(json.clone(), Encoding::Json, context.heavy_pool())));
    }
    let mut reservation = context.lists().take(codec::decoded_bytes_bound(Encoding::Json, json))?;
    let (json, encoding) = (json.clone(), negotiated.encoding);
    let encode = move |backend: &Backend| codec::encode_document(&backend.objects.registry, encoding, &json);
    let body = context.heavy_pool().step(encode).await.map_err(heavy_error)?;
    let body = body.map_err(|error| Status::internal(error.to_string()))?;
    reservation.charge_to(body.len());
    Ok(sized(negotiated, StatusCode::OK, reserved_bytes(Bytes::from(body), reservation)))
}

fn sized(negotiated: Negotiated<'_>, code: StatusCode, body: Bytes) -> HttpResponse {
    HttpResponse::build(code)
        .insert_header((header::CONTENT_TYPE, negotiated.encoding.media_type()))
        .body(body)
}

/// JSON, either indented or on one line with a final line break. Indented JSON has none, as in the reference.
pub fn json_text(pretty: bool, json: &[u8]) -> Vec<u8> {
    if pretty {
        return codec::pretty(json);
    }
    let mut text = Vec::with_capacity(json.len() + 1);
    text.extend_from_slice(json);
    text.push(b'\n');
    text
}

async fn list(context: &Context, negotiated: Negotiated<'_>, listing: Listing) -> Result<HttpResponse> {
    let (pretty, trail) = (context.pretty || negotiated.pretty, context.trail().cloned());
    let body = StreamedBody::list(listing, negotiated.encoding, pretty, trail, context.heavy_pool());
    streamed(context, negotiated, StatusCode::OK, body).await
}

/// Sends a body as it is made.
async fn streamed(
    context: &Context,
    negotiated: Negotiated<'_>,
    code: StatusCode,
    mut body: StreamedBody,
) -> Result<HttpResponse> {
    let mut first = body.next().await.transpose()?.unwrap_or_default();
    // Whether a body is large enough to compress shows only after its first pieces.
    if context.gzip {
        let mut prefix = BytesMut::from(first);
        while prefix.len() <= gzip::THRESHOLD
            && let Some(piece) = body.next().await
        {
            prefix.extend_from_slice(&piece?);
            tokio::task::yield_now().await;
        }
        first = prefix.freeze();
    }
    let is_compressed = context.gzip && first.len() > gzip::THRESHOLD;
    // Small bodies are sent as a whole, with their length.
    if body.is_done() && !is_compressed {
        return Ok(sized(negotiated, code, first));
    }
    let mut builder = HttpResponse::build(code);
    builder.insert_header((header::CONTENT_TYPE, negotiated.encoding.media_type()));
    body.prefix = Some(first);
    if !is_compressed {
        return Ok(builder.body(body));
    }
    gzip::set_headers(&mut builder);
    Ok(builder.body(Gzip::new(body)))
}

/// Renders an error in the negotiated encoding, or as JSON if negotiation fails.
pub fn error(context: &Context, status: &Status) -> HttpResponse {
    let negotiated = media::negotiate(&context.accept, context.offer(), |_, _| false);
    let json = status.to_json();
    // A response that could not be negotiated is not audited, as in the reference.
    if let Some(trail) = context.trail().filter(|_| negotiated.is_ok()) {
        trail.status(status, &json);
    }
    // As in the reference, it is then indented for everybody.
    let negotiated = negotiated.unwrap_or(Negotiated { pretty: true, ..Negotiated::DEFAULT });
    let mut response = document(context, negotiated, status.code, &json)
        .unwrap_or_else(|_| HttpResponse::InternalServerError().body(json.clone()));
    let headers = response.headers_mut();
    if let Some(seconds) = status.retry_after() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    // Only a denial of the authorizer has it, not one of admission.
    if status.is_forbidden() && !context.cbor_allowed.get() {
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    response
}

/// Plain text, for health checks and unknown paths.
pub fn plain(code: u16, body: String) -> HttpResponse {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    HttpResponse::build(code)
        .insert_header((header::CONTENT_TYPE, PLAIN_TEXT))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .body(body)
}

/// 429 with the reference's text and Retry-After.
pub fn too_many_requests(seconds: u64) -> HttpResponse {
    let mut response = plain(429, "Too many requests, please try again later.\n".to_owned());
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// The error for heavy work that was not done.
pub fn heavy_error(error: HeavyError) -> Box<Status> {
    match error {
        HeavyError::Busy => Status::too_many_requests("Too many requests, please try again later.", 1),
        HeavyError::Failed => Status::internal("the request could not be carried out"),
    }
}

/// 404 for paths outside of known groups.
pub fn page_not_found() -> HttpResponse {
    plain(404, "404 page not found\n".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_header_is_quoted_without_control_characters() {
        assert_eq!(warning_header("unknown field \"a\"\n"), r#"299 - "unknown field \"a\" ""#);
    }
}
