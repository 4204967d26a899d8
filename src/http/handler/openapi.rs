//! The OpenAPI documents: generated on request, and addressed by the hash of their content so that clients can cache them for good.
//!
//! A document takes milliseconds to generate and megabytes to keep, and clients revalidate it by its ETag. So the ETags of all
//! documents are kept, but only the latest few documents themselves. They are generated on the threads for heavy work.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix_web::body::{BoxBody, MessageBody as _};
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderName, HeaderValue, HttpDate};
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use openssl::sha::sha512;
use pilothouse_api::aggregation::ApiService;
use pilothouse_api::openapi::merged::merge;
use pilothouse_api::openapi::{Contents, CustomSchema, Sources, v2_protobuf, v3_protobuf};
use pilothouse_apimachinery::media;
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::status::Status;
use pilothouse_apimachinery::well_known::JSON;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::lock::Lock;
use pilothouse_types::memory::{MemoryBudget, OutOfMemory};

use super::budgeted_body::BudgetedBody;
use super::gzip;
use super::render::{Context, text, too_many_requests};
use super::worker::{Served, Worker};
use crate::aggregation::{Description, Digest};
use crate::limits::{OPENAPI_BUILTIN_BYTES, OPENAPI_CACHE_BYTES, OPENAPI_GROWTH};

/// The media types that each version offers: JSON, and two spellings of its Protobuf form, of which the first is the
/// one that responses have.
const OFFERED_V2: [&str; 3] = [
    JSON,
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
];
const OFFERED_V3: [&str; 3] = [
    JSON,
    "application/com.github.proto-openapi.spec.v3.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
];
const PREFIX: &str = "/openapi/v3";
/// How many times its length the kept part of a document of an extension API server takes while ours is written: its parts under their
/// new names, the text, and the message in Protobuf beside the text that grows by doubling.
const EXTENSION_OPENAPI_GROWTH: usize = 5;
/// How long clients may cache a document that is addressed by its hash.
const MAX_AGE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The OpenAPI documents of one catalog.
#[derive(Default)]
pub struct OpenApi {
    /// The kinds that are not built in.
    custom: Vec<Arc<CustomSchema>>,
    /// The contents that depend on feature gates.
    contents: Contents,
    /// The tags of the documents generated so far, by name.
    tags: Lock<HashMap<DocumentName, DocumentTag>>,
    /// The latest documents, by name and format.
    recent: Lock<VecDeque<(DocumentName, DocumentFormat, Bytes)>>,
}

/// The name of a document.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum DocumentName {
    /// The OpenAPI v2 document, merged with those of extension API servers: the digests of those.
    V2(Vec<Digest>),
    /// An OpenAPI v3 document.
    V3(String),
}

impl DocumentName {
    fn is_v2(&self) -> bool {
        matches!(self, DocumentName::V2(_))
    }
}

/// The format of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DocumentFormat {
    /// Whether it is Protobuf rather than JSON.
    binary: bool,
    /// Whether it is compressed.
    gzip: bool,
}

/// The validators of a document, for ETag and Last-Modified.
#[derive(Clone)]
struct DocumentTag {
    /// The digest of its JSON.
    hash: Arc<str>,
    /// When it was generated first, in Unix seconds.
    first_written: u64,
}

impl OpenApi {
    /// The documents of a catalog with these custom kinds.
    pub fn new(custom: Vec<Arc<CustomSchema>>, contents: Contents) -> OpenApi {
        OpenApi { custom, contents, ..OpenApi::default() }
    }

    /// Takes over the cached documents that are unchanged since an earlier catalog.
    pub fn with_cache_of(self, earlier: &OpenApi, is_unchanged: impl Fn(&str) -> bool) -> OpenApi {
        let is_kept = |name: &DocumentName| matches!(name, DocumentName::V3(name) if is_unchanged(name));
        let tags = earlier.tags.lock().clone().into_iter().filter(|(name, _)| is_kept(name));
        *self.tags.lock() = tags.collect();
        let recent = earlier.recent.lock().clone().into_iter().filter(|(name, ..)| is_kept(name));
        *self.recent.lock() = recent.collect();
        self
    }

    fn tag(&self, name: &DocumentName) -> Option<DocumentTag> {
        self.tags.lock().get(name).cloned()
    }

    fn cached(&self, name: &DocumentName, format: DocumentFormat) -> Option<Bytes> {
        let recent = self.recent.lock();
        let document =
            recent.iter().find(|(entry_name, entry_format, _)| entry_name == name && *entry_format == format);
        document.map(|(_, _, body)| body.clone())
    }

    fn cache(&self, name: &DocumentName, format: DocumentFormat, body: &Bytes) {
        let mut recent = self.recent.lock();
        recent.retain(|(entry_name, entry_format, _)| entry_name != name || *entry_format != format);
        recent.push_back((name.clone(), format, body.clone()));
        let mut size: usize = recent.iter().map(|(_, _, body)| body.len()).sum();
        while size > OPENAPI_CACHE_BYTES
            && let Some((_, _, oldest)) = recent.pop_front()
        {
            size -= oldest.len();
        }
    }

    /// An upper bound of the memory for generating a document: its text, which grows by doubling, and the message that is encoded to
    /// Protobuf.
    fn estimate_bytes(&self, name: &DocumentName, others: &[Description]) -> usize {
        let custom: usize = match name {
            DocumentName::V2(_) => self.custom.iter().map(|kind| kind.schema_v2.len()).sum(),
            // The others of its group are few, or are described by references.
            DocumentName::V3(name) => self
                .custom
                .iter()
                .filter(|kind| is_in_document(kind, name))
                .map(|kind| kind.schema.len())
                .sum(),
        };
        let others: usize = others.iter().map(|other| other.content.bytes()).sum();
        OPENAPI_BUILTIN_BYTES
            .saturating_add(custom.saturating_mul(OPENAPI_GROWTH))
            .saturating_add(others.saturating_mul(EXTENSION_OPENAPI_GROWTH))
    }

    /// Generates a document and records its tag.
    fn write(
        &self,
        served: &Served,
        registry: &Registry,
        request: &DocumentRequest,
        now: u64,
    ) -> Option<(Vec<u8>, DocumentTag)> {
        let sources = self.sources(served, registry);
        let json = match &request.name {
            DocumentName::V2(_) => merge_others(sources.v2(), &request.others),
            DocumentName::V3(name) => sources.v3(name)?,
        };
        let tag = self.note(&request.name, &sha512(&json), now);
        Some((json, tag))
    }

    /// Records the digest of a document.
    fn note(&self, name: &DocumentName, digest: &[u8], now: u64) -> DocumentTag {
        let new_tag = || DocumentTag { hash: hexadecimal(digest).into(), first_written: now };
        let mut tags = self.tags.lock();
        if name.is_v2() {
            // Documents merged from older descriptions are obsolete.
            tags.retain(|other, _| !other.is_v2() || other == name);
        }
        tags.entry(name.clone()).or_insert_with(new_tag).clone()
    }

    fn sources<'a>(&'a self, served: &'a Served, registry: &'a Registry) -> Sources<'a> {
        Sources { registry, catalog: &served.catalog, custom: &self.custom, contents: self.contents }
    }
}

/// The requested document.
struct DocumentRequest {
    name: DocumentName,
    /// The descriptions of extension API servers to merge, for OpenAPI v2.
    others: Vec<Description>,
}

impl DocumentRequest {
    fn v2(others: Vec<Description>) -> DocumentRequest {
        DocumentRequest { name: DocumentName::V2(others.iter().map(|other| other.digest).collect()), others }
    }

    fn v3(name: &str) -> DocumentRequest {
        DocumentRequest { name: DocumentName::V3(name.to_owned()), others: Vec::new() }
    }
}

/// Whether a kind is in the document of this name, `apis/GROUP/VERSION`.
fn is_in_document(kind: &CustomSchema, document: &str) -> bool {
    document.strip_prefix("apis/").and_then(|rest| rest.split_once('/'))
        == Some((&*kind.kind.group, &*kind.kind.version))
}

/// This server's document, merged with those of extension API servers.
fn merge_others(ours: Vec<u8>, others: &[Description]) -> Vec<u8> {
    if others.is_empty() {
        return ours;
    }
    merge(&ours, others.iter().map(|other| &*other.content)).unwrap_or(ours)
}

fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// Serves a path of an OpenAPI document; `None` for other paths.
pub async fn respond(
    worker: &Worker,
    request: &HttpRequest,
    path: &str,
    context: &Context,
) -> Option<HttpResponse> {
    let (document_request, offered) = match path.strip_prefix(PREFIX) {
        Some("") => return Some(index(worker, request, context).await),
        Some("/") => return Some(HttpResponse::NotFound().finish()),
        Some(rest) => (DocumentRequest::v3(rest.strip_prefix('/')?), OFFERED_V3),
        None if path == "/openapi/v2" => {
            (DocumentRequest::v2(descriptions_of_others(worker).await), OFFERED_V2)
        }
        None => return None,
    };
    let media_type = media::choose(&context.accept, &offered);
    let response = document(worker, document_request, media_type, request, context).await;
    Some(response.unwrap_or_else(|| HttpResponse::NotFound().finish()))
}

/// Whether this server itself has an OpenAPI v3 document of this name.
pub fn has_own(worker: &Worker, name: &str) -> bool {
    let served = worker.shared.served.load_full();
    let sources = served.openapi.sources(&served, &worker.backend.objects.registry);
    sources.names().iter().any(|own| own == name)
}

/// The OpenAPI v2 descriptions of extension API servers, except for group versions that this server serves itself.
async fn descriptions_of_others(worker: &Worker) -> Vec<Description> {
    let served = worker.shared.served.load_full();
    let is_served_here =
        move |api_service: &ApiService| served.serves(&api_service.gv.group, &api_service.gv.version);
    let described = worker.shared.aggregation.extensions.openapi_v2(is_served_here).await;
    take_writable(described, worker.backend.lists.limit())
}

/// The first descriptions that a document can have while `limit` is the memory of all responses: or else one of many megabytes would
/// take the document from everybody.
fn take_writable(described: Vec<Description>, limit: usize) -> Vec<Description> {
    // A quarter is left for others.
    let most = limit / 4 * 3 / EXTENSION_OPENAPI_GROWTH;
    let (mut bytes, count) = (0, described.len());
    let mut writable = described;
    writable.retain(|description| {
        let fits = bytes + description.content.bytes() <= most;
        bytes += if fits { description.content.bytes() } else { 0 };
        fits
    });
    if writable.len() < count {
        tracing::warn!(
            left_out = count - writable.len(),
            most,
            "the OpenAPI v2 documents of aggregated API servers take more memory than there is for one response"
        );
    }
    writable
}

/// The index of the OpenAPI v3 documents, each with the hash of its content.
async fn index(worker: &Worker, request: &HttpRequest, context: &Context) -> HttpResponse {
    let now = worker.backend.clock.now().seconds();
    let served = worker.shared.served.load_full();
    let registry = worker.backend.objects.registry.clone();
    let memory = worker.backend.lists.clone();
    let mut paths = worker.shared.aggregation.extensions.openapi();
    let write = move || -> Result<(Bytes, String), OutOfMemory> {
        let openapi = &served.openapi;
        let sources = openapi.sources(&served, &registry);
        for name in sources.names() {
            let document_name = DocumentName::V3(name.clone());
            let tag = match openapi.tag(&document_name) {
                Some(tag) => Some(tag),
                None => {
                    let _reservation = memory.take(openapi.estimate_bytes(&document_name, &[]))?;
                    sources.v3_digest(&name).map(|digest| openapi.note(&document_name, &digest, now))
                }
            };
            let Some(DocumentTag { hash, .. }) = tag else { continue };
            // This server's own document replaces one of an extension API server.
            let path = format!("{PREFIX}/{name}?hash={hash}");
            paths.insert(name, path);
        }
        let json = render_index(&paths);
        let hash = hexadecimal(&sha512(json.as_bytes()));
        Ok((Bytes::from(json), hash))
    };
    match context.compute_heavy(write).await {
        Ok(Err(OutOfMemory)) => too_many_requests(1),
        Ok(Ok((json, hash))) => {
            let tag = DocumentTag { hash: hash.into(), first_written: now };
            // The reference sets no Content-Type, and Go's detection yields this one.
            document_response(request, "text/plain; charset=utf-8", &tag, json)
        }
        Err(status) => write_error(&status),
    }
}

/// The response if a document could not be generated.
fn write_error(status: &Status) -> HttpResponse {
    match status.retry_after() {
        Some(seconds) => too_many_requests(seconds.into()),
        None => HttpResponse::InternalServerError().finish(),
    }
}

/// The index in JSON, from names to paths. Both may come from extension API servers, so they are escaped.
fn render_index(paths: &BTreeMap<String, String>) -> String {
    let quote = |text: &str| serde_json::Value::from(text).to_string();
    let entry = |(name, path): (&String, &String)| {
        format!("{}:{{\"serverRelativeURL\":{}}}", quote(name), quote(path))
    };
    let entries: Vec<String> = paths.iter().map(entry).collect();
    format!("{{\"paths\":{{{}}}}}", entries.join(","))
}

/// One document; `None` if there is none of this name.
async fn document(
    worker: &Worker,
    document_request: DocumentRequest,
    media_type: Option<&'static str>,
    request: &HttpRequest,
    context: &Context,
) -> Option<HttpResponse> {
    let name = document_request.name.clone();
    let is_v2 = name.is_v2();
    let served = worker.shared.served.load_full();
    let Some(media_type) = media_type else { return not_acceptable(worker, &name) };
    // Only the large OpenAPI v2 document is ever compressed, as in the reference.
    let is_gzip = is_v2 && gzip::is_accepted_with_weights(text(request.headers(), header::ACCEPT_ENCODING));
    let is_protobuf = media_type != JSON;
    let format = DocumentFormat { binary: is_protobuf, gzip: is_gzip };
    let media_type = match (is_protobuf, is_v2) {
        (false, _) => JSON,
        (true, true) => OFFERED_V2[1],
        (true, false) => OFFERED_V3[1],
    };
    let cached = served.openapi.tag(&name).zip(served.openapi.cached(&name, format));
    let (tag, body) = match (cached, served.openapi.tag(&name)) {
        (Some(cached), _) => cached,
        // A client that has it gets a 304, which needs no body.
        (None, Some(tag)) if is_cached_by_client(request, &tag) => (tag, Bytes::new()),
        (None, _) => {
            let now = worker.backend.clock.now().seconds();
            let registry = worker.backend.objects.registry.clone();
            let (own_served, memory) = (served.clone(), worker.backend.lists.clone());
            let write = move || prepare(&own_served, &registry, &memory, &document_request, format, now);
            match context.compute_heavy(write).await {
                Ok(Ok(result)) => result?,
                Ok(Err(OutOfMemory)) => return Some(too_many_requests(1)),
                Err(status) => return Some(write_error(&status)),
            }
        }
    };
    // The OpenAPI v2 document is not addressed by its hash.
    let hash = if is_v2 { String::new() } else { Query::parse(request.query_string()).text("hash") };
    if let DocumentName::V3(name) = &name
        && !hash.is_empty()
        && *hash != *tag.hash
    {
        return Some(redirect_to_current(name, &tag, media_type));
    }
    // A cached document is shared; any other one is counted for each client that reads it.
    let is_shared = served.openapi.cached(&name, format).is_some();
    let memory = &worker.backend.lists;
    let reservation =
        if is_shared || body.is_empty() { Ok(memory.empty_reservation()) } else { memory.take(body.len()) };
    let Ok(reservation) = reservation else { return Some(too_many_requests(1)) };
    let mut response =
        document_response(request, media_type, &tag, body).map_body(|_, body| match body.try_into_bytes() {
            Ok(bytes) => BoxBody::new(BudgetedBody { bytes, reservation }),
            Err(body) => body,
        });
    insert(&mut response, header::VARY, "Accept");
    if is_v2 {
        response.headers_mut().append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    if is_gzip && response.status() == StatusCode::OK {
        insert(&mut response, header::CONTENT_ENCODING, "gzip");
    }
    if !hash.is_empty() {
        mark_immutable(&mut response, worker.backend.clock.now());
    }
    Some(response)
}

/// Lets caches keep a document that is addressed by its hash.
fn mark_immutable(response: &mut HttpResponse, now: Timestamp) {
    let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(now.seconds()) + MAX_AGE;
    insert(response, header::CACHE_CONTROL, "public, immutable");
    insert(response, header::EXPIRES, &HttpDate::from(expires).to_string());
}

/// The response if the client accepts none of the media types; `None` if there is no document of this name.
fn not_acceptable(worker: &Worker, name: &DocumentName) -> Option<HttpResponse> {
    if let DocumentName::V3(name) = name
        && !has_own(worker, name)
    {
        return None;
    }
    let mut response = HttpResponse::NotAcceptable().finish();
    insert(&mut response, header::VARY, "Accept");
    Some(response)
}

/// A redirect from an outdated hash to the current one.
fn redirect_to_current(name: &str, tag: &DocumentTag, media_type: &str) -> HttpResponse {
    let path = format!("{PREFIX}/{name}?hash={}", tag.hash);
    let mut response = HttpResponse::MovedPermanently().content_type(media_type).finish();
    insert(&mut response, header::LOCATION, &path);
    insert(&mut response, header::ETAG, &format!("\"{}\"", tag.hash));
    insert(&mut response, header::VARY, "Accept");
    response
}

/// Generates a document in the requested format, unless it is cached by now; `None` if there is none of this name.
///
/// The memory is reserved here, on a thread for heavy work, and not when the request arrives: at most as many requests generate a
/// document at the same time as there are such threads.
fn prepare(
    served: &Served,
    registry: &Registry,
    memory: &MemoryBudget,
    request: &DocumentRequest,
    format: DocumentFormat,
    now: u64,
) -> Result<Option<(DocumentTag, Bytes)>, OutOfMemory> {
    let (openapi, name) = (&served.openapi, &request.name);
    if let Some(cached) = openapi.tag(name).zip(openapi.cached(name, format)) {
        return Ok(Some(cached));
    }
    let _reservation = memory.take(openapi.estimate_bytes(&request.name, &request.others))?;
    let Some((json, tag)) = openapi.write(served, registry, request, now) else { return Ok(None) };
    let encoded = match (format.binary, name.is_v2()) {
        (false, _) => Some(json),
        (true, true) => v2_protobuf(&json),
        (true, false) => v3_protobuf(&json),
    };
    let Some(body) = encoded.map(Bytes::from) else { return Ok(None) };
    let body = if format.gzip { gzip::compress(&body) } else { body };
    openapi.cache(name, format, &body);
    Ok(Some((tag, body)))
}

/// The document, or 304 if the client has it.
fn document_response(
    request: &HttpRequest,
    media_type: &str,
    tag: &DocumentTag,
    body: Bytes,
) -> HttpResponse {
    let mut response = if is_cached_by_client(request, tag) {
        HttpResponse::NotModified().finish()
    } else {
        HttpResponse::Ok().insert_header((header::CONTENT_TYPE, media_type)).body(body)
    };
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(tag.first_written);
    insert(&mut response, header::ETAG, &format!("\"{}\"", tag.hash));
    insert(&mut response, header::LAST_MODIFIED, &HttpDate::from(modified).to_string());
    response
}

/// Whether the client has the document, by If-None-Match or If-Modified-Since.
fn is_cached_by_client(request: &HttpRequest, tag: &DocumentTag) -> bool {
    let etags = text(request.headers(), header::IF_NONE_MATCH);
    if etags.is_empty() {
        let since = text(request.headers(), header::IF_MODIFIED_SINCE).parse::<HttpDate>();
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(tag.first_written);
        return since.is_ok_and(|since| SystemTime::from(since) >= modified);
    }
    let mut etags = etags.split(',').map(|etag| etag.trim().trim_start_matches("W/").trim_matches('"'));
    etags.any(|etag| etag == "*" || etag == &*tag.hash)
}

fn insert(response: &mut HttpResponse, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::try_from(value) {
        response.headers_mut().insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;
    use pilothouse_api::openapi::merged::ServedSpec;
    use pilothouse_apimachinery::schema::GroupVersionKind;

    use super::*;

    #[test]
    fn openapi_cache_keeps_the_latest_documents() {
        let (openapi, json) = (OpenApi::default(), DocumentFormat::default());
        let third = Bytes::from(vec![b' '; OPENAPI_CACHE_BYTES / 3]);
        let document_name = |name: &str| DocumentName::V3(name.to_owned());
        for name in ["a", "b", "c", "a", "d"] {
            openapi.cache(&document_name(name), json, &third);
        }
        assert!(openapi.cached(&document_name("b"), json).is_none(), "the oldest was dropped");
        assert!(
            openapi.cached(&document_name("a"), json).is_some()
                && openapi.cached(&document_name("d"), json).is_some()
        );
        assert!(openapi.cached(&document_name("a"), DocumentFormat { gzip: true, ..json }).is_none());
        openapi.cache(&document_name("big"), json, &Bytes::from(vec![b' '; OPENAPI_CACHE_BYTES + 1]));
        assert!(openapi.cached(&document_name("big"), json).is_none());
    }

    #[test]
    fn descriptions_of_others_are_left_out_that_no_document_has_room_for() {
        let description = |bytes: usize| {
            let text = format!(r#"{{"paths":{{"/apis/x.io/v1/a":{{"x":"{}"}}}}}}"#, "x".repeat(bytes));
            let content = ServedSpec::read(text.as_bytes(), "x.io", "v1").unwrap();
            let mut description = Description::default();
            description.content = Arc::new(content);
            description
        };
        let sizes = |limit: usize| {
            let described = vec![description(1_000), description(100_000), description(2_000)];
            take_writable(described, limit).len()
        };
        assert_eq!([sizes(1 << 20), sizes(500_000), sizes(10_000), sizes(0)], [3, 2, 1, 0]);
    }

    #[test]
    fn openapi_memory_estimate_grows_with_the_schemas() {
        let kind = |group: &str| {
            let schema = vec![b' '; 1 << 20];
            let kind = GroupVersionKind::new(group, "v1", "Kite");
            Arc::new(CustomSchema {
                kind,
                published: String::new(),
                schema: schema.clone(),
                schema_v2: schema,
            })
        };
        let openapi = OpenApi::new(vec![kind("a"), kind("b")], Contents::default());
        let growth = |request: DocumentRequest| {
            (openapi.estimate_bytes(&request.name, &request.others) - OPENAPI_BUILTIN_BYTES) >> 20
        };
        assert_eq!(growth(DocumentRequest::v2(Vec::new())), 2 * OPENAPI_GROWTH);
        assert_eq!(growth(DocumentRequest::v3("apis/a/v1")), OPENAPI_GROWTH);
        assert_eq!(growth(DocumentRequest::v3("apis/apps/v1")), 0);
    }

    #[test]
    fn openapi_index_escapes_names() {
        let paths = BTreeMap::from([("a\"b".to_owned(), "/x".to_owned()), ("c".to_owned(), "\n".to_owned())]);
        let list: serde_json::Value = serde_json::from_str(&render_index(&paths)).unwrap();
        assert_eq!(list["paths"]["a\"b"]["serverRelativeURL"], "/x");
        assert_eq!(render_index(&BTreeMap::new()), r#"{"paths":{}}"#);
    }

    #[test]
    fn openapi_document_is_revalidated_by_etag_or_date() {
        let tag = DocumentTag { hash: "AB".into(), first_written: 1_000_000_000 };
        let is_cached_with = |name: HeaderName, value: &str| {
            is_cached_by_client(&TestRequest::default().insert_header((name, value)).to_http_request(), &tag)
        };
        assert!(is_cached_with(header::IF_NONE_MATCH, "\"AB\""));
        assert!(is_cached_with(header::IF_NONE_MATCH, "\"x\", W/\"AB\""));
        assert!(is_cached_with(header::IF_NONE_MATCH, "*"));
        assert!(!is_cached_with(header::IF_NONE_MATCH, "\"x\""));
        assert!(is_cached_with(header::IF_MODIFIED_SINCE, "Sun, 09 Sep 2001 01:46:40 GMT"));
        assert!(!is_cached_with(header::IF_MODIFIED_SINCE, "Sun, 09 Sep 2001 01:46:39 GMT"));
        assert!(!is_cached_with(header::ACCEPT, "*/*"));
    }
}
