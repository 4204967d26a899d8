//! The OpenAPI documents: written when somebody asks, and named by their content so that clients keep them for good.
//!
//! A document takes milliseconds to write and megabytes to keep, and clients come back with its tag. So the tags of all
//! are kept, of the documents themselves only the latest few, and whoever writes one does it off the worker's thread.

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
use pilothouse_api::openapi::{Contents, Custom, Sources, v2_protobuf, v3_protobuf};
use pilothouse_apimachinery::media;
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::status::Status;
use pilothouse_apimachinery::well_known::JSON;
use pilothouse_types::lock::Lock;
use pilothouse_types::memory::{MemoryBudget, OutOfMemory};

use super::budgeted_body::BudgetedBody;
use super::gzip;
use super::render::{Context, text, too_many_requests};
use super::worker::{Served, Worker};
use crate::backend::aggregation::{Description, Digest};
use crate::limits::{OPENAPI_BUILTIN_BYTES, OPENAPI_GROWTH, OPENAPI_KEPT_BYTES};

/// The media types that each version offers: JSON, and two spellings of its Protobuf form, of which the first is the
/// one that answers carry.
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
/// How long a document may be kept that is named by its content.
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The OpenAPI documents of one catalog.
#[derive(Default)]
pub struct OpenApi {
    /// The kinds that are not built in.
    custom: Vec<Arc<Custom>>,
    /// What gates decide about the documents.
    contents: Contents,
    /// What is known of the documents written so far, by name.
    known: Lock<HashMap<Name, Known>>,
    /// The documents written last, by name and form.
    kept: Lock<VecDeque<(Name, Form, Bytes)>>,
}

/// By which a document is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Name {
    /// The one of the second version. There is one for each set of documents of others that joined it: the digests of those.
    V2(Vec<Digest>),
    /// One of the third version.
    V3(String),
}

impl Name {
    fn is_v2(&self) -> bool {
        matches!(self, Name::V2(_))
    }
}

/// The form of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Form {
    /// Protobuf, and not JSON.
    binary: bool,
    /// Compressed.
    packed: bool,
}

/// What is known of a document.
#[derive(Clone)]
struct Known {
    /// The digest of its JSON.
    hash: Arc<str>,
    /// When it was written first, in seconds.
    written: u64,
}

impl OpenApi {
    /// The documents of a catalog that has these kinds besides those which are built in.
    pub fn new(custom: Vec<Arc<Custom>>, contents: Contents) -> OpenApi {
        OpenApi { custom, contents, ..OpenApi::default() }
    }

    /// Takes over what is known of documents that are the same in an earlier catalog.
    pub fn keeping(self, earlier: &OpenApi, same: impl Fn(&str) -> bool) -> OpenApi {
        let stays = |name: &Name| matches!(name, Name::V3(name) if same(name));
        let known = earlier.known.lock().clone().into_iter().filter(|(name, _)| stays(name));
        *self.known.lock() = known.collect();
        let kept = earlier.kept.lock().clone().into_iter().filter(|(name, ..)| stays(name));
        *self.kept.lock() = kept.collect();
        self
    }

    fn known(&self, name: &Name) -> Option<Known> {
        self.known.lock().get(name).cloned()
    }

    fn kept(&self, name: &Name, form: Form) -> Option<Bytes> {
        let kept = self.kept.lock();
        let found = kept.iter().find(|(known, of, _)| known == name && *of == form);
        found.map(|(_, _, body)| body.clone())
    }

    fn keep(&self, name: &Name, form: Form, body: &Bytes) {
        let mut kept = self.kept.lock();
        kept.retain(|(known, of, _)| known != name || *of != form);
        kept.push_back((name.clone(), form, body.clone()));
        let mut size: usize = kept.iter().map(|(_, _, body)| body.len()).sum();
        while size > OPENAPI_KEPT_BYTES
            && let Some((_, _, oldest)) = kept.pop_front()
        {
            size -= oldest.len();
        }
    }

    /// An upper estimate of what a document takes while it is written: its text, which grows by doubling, and the tree that another
    /// form is made from.
    fn writing_bytes(&self, name: &Name, others: &[Description]) -> usize {
        let custom: usize = match name {
            Name::V2(_) => self.custom.iter().map(|kind| kind.schema_v2.len()).sum(),
            // The others of its group are few, or are described by references.
            Name::V3(name) => {
                self.custom.iter().filter(|kind| is_of(kind, name)).map(|kind| kind.schema.len()).sum()
            }
        };
        let others: usize = others.iter().map(|other| other.content.bytes()).sum();
        OPENAPI_BUILTIN_BYTES.saturating_add((custom + others).saturating_mul(OPENAPI_GROWTH))
    }

    /// Writes a document and notes its tag.
    fn write(
        &self,
        (served, registry): (&Served, &Registry),
        asked: &Asked,
        now: u64,
    ) -> Option<(Vec<u8>, Known)> {
        let sources = self.sources(served, registry);
        let json = match &asked.name {
            Name::V2(_) => joined(sources.v2(), &asked.others),
            Name::V3(name) => sources.v3(name)?,
        };
        let known = self.note(&asked.name, &sha512(&json), now);
        Some((json, known))
    }

    /// Notes the digest of a document that was written.
    fn note(&self, name: &Name, digest: &[u8], now: u64) -> Known {
        let new = || Known { hash: hexadecimal(digest).into(), written: now };
        let mut known = self.known.lock();
        if name.is_v2() {
            // Whatever others said before is said no more, or will be written again.
            known.retain(|other, _| !other.is_v2() || other == name);
        }
        known.entry(name.clone()).or_insert_with(new).clone()
    }

    fn sources<'a>(&'a self, served: &'a Served, registry: &'a Registry) -> Sources<'a> {
        Sources { registry, catalog: &served.catalog, custom: &self.custom, contents: self.contents }
    }
}

/// The document that somebody asks for.
struct Asked {
    name: Name,
    /// What others say of the versions that they serve, for the second version.
    others: Vec<Description>,
}

impl Asked {
    fn v2(others: Vec<Description>) -> Asked {
        Asked { name: Name::V2(others.iter().map(|other| other.digest).collect()), others }
    }

    fn v3(name: &str) -> Asked {
        Asked { name: Name::V3(name.to_owned()), others: Vec::new() }
    }
}

/// Whether a kind is in the document of this name, `apis/GROUP/VERSION`.
fn is_of(kind: &Custom, document: &str) -> bool {
    document.strip_prefix("apis/").and_then(|rest| rest.split_once('/'))
        == Some((&*kind.kind.group, &*kind.kind.version))
}

/// Our document with those of others.
fn joined(ours: Vec<u8>, others: &[Description]) -> Vec<u8> {
    if others.is_empty() {
        return ours;
    }
    merge(&ours, others.iter().map(|other| &*other.content)).unwrap_or(ours)
}

fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// Answers a path of an OpenAPI document; `None` for other paths.
pub async fn answer(
    worker: &Worker,
    request: &HttpRequest,
    path: &str,
    context: &Context,
) -> Option<HttpResponse> {
    let (asked, offered) = match path.strip_prefix(PREFIX) {
        Some("") => return Some(index(worker, request, context).await),
        Some("/") => return Some(HttpResponse::NotFound().finish()),
        Some(rest) => (Asked::v3(rest.strip_prefix('/')?), OFFERED_V3),
        None if path == "/openapi/v2" => (Asked::v2(described(worker).await), OFFERED_V2),
        None => return None,
    };
    let found = document(worker, asked, media::choose(&context.accept, &offered), (request, context)).await;
    Some(found.unwrap_or_else(|| HttpResponse::NotFound().finish()))
}

/// Whether this server has a document of the third version of this name itself.
pub fn has_own(worker: &Worker, name: &str) -> bool {
    let served = worker.shared.served.load_full();
    let sources = served.openapi.sources(&served, &worker.backend.objects.registry);
    sources.names().iter().any(|own| own == name)
}

/// What others say of the versions that they serve. What this server serves it describes itself.
async fn described(worker: &Worker) -> Vec<Description> {
    let served = worker.shared.served.load_full();
    let is_ours = move |known: &ApiService| served.serves(&known.gv.group, &known.gv.version);
    worker.shared.extensions.described(is_ours).await
}

/// The list of the documents of the third version, each with the digest of its content.
async fn index(worker: &Worker, request: &HttpRequest, context: &Context) -> HttpResponse {
    let now = worker.backend.clock.now().seconds();
    let served = worker.shared.served.load_full();
    let registry = worker.backend.objects.registry.clone();
    let memory = worker.backend.lists.clone();
    let mut places = worker.shared.extensions.openapi();
    let write = move || -> Result<(Bytes, String), OutOfMemory> {
        let openapi = &served.openapi;
        let sources = openapi.sources(&served, &registry);
        for name in sources.names() {
            let by = Name::V3(name.clone());
            let known = match openapi.known(&by) {
                Some(known) => Some(known),
                None => {
                    let _held = memory.take(openapi.writing_bytes(&by, &[]))?;
                    sources.v3_digest(&name).map(|digest| openapi.note(&by, &digest, now))
                }
            };
            let Some(Known { hash, .. }) = known else { continue };
            // What this server serves it describes itself, whatever others say.
            let place = format!("{PREFIX}/{name}?hash={hash}");
            places.insert(name, place);
        }
        let json = listed(&places);
        let hash = hexadecimal(&sha512(json.as_bytes()));
        Ok((Bytes::from(json), hash))
    };
    match context.compute_aside(write).await {
        Ok(Err(OutOfMemory)) => too_many_requests(1),
        Ok(Ok((json, hash))) => {
            let known = Known { hash: hash.into(), written: now };
            // The reference leaves the type to be guessed, and this is the guess.
            respond(request, "text/plain; charset=utf-8", &known, json)
        }
        Err(status) => not_written(&status),
    }
}

/// The response if no thread for heavy work has written a document.
fn not_written(status: &Status) -> HttpResponse {
    match status.retry_after() {
        Some(seconds) => too_many_requests(seconds.into()),
        None => HttpResponse::InternalServerError().finish(),
    }
}

/// The list of documents, by name and place. Others may have written either.
fn listed(places: &BTreeMap<String, String>) -> String {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let entry = |(name, place): (&String, &String)| {
        format!("{}:{{\"serverRelativeURL\":{}}}", text(name), text(place))
    };
    let entries: Vec<String> = places.iter().map(entry).collect();
    format!("{{\"paths\":{{{}}}}}", entries.join(","))
}

/// One document; `None` if there is none of this name.
async fn document(
    worker: &Worker,
    asked: Asked,
    media_type: Option<&'static str>,
    (request, context): (&HttpRequest, &Context),
) -> Option<HttpResponse> {
    let name = asked.name.clone();
    let is_v2 = name.is_v2();
    let served = worker.shared.served.load_full();
    let Some(media_type) = media_type else {
        if let Name::V3(name) = &name
            && !has_own(worker, name)
        {
            return None;
        }
        let mut response = HttpResponse::NotAcceptable().finish();
        insert(&mut response, header::VARY, "Accept");
        return Some(response);
    };
    // Only the one large document of the second version is ever compressed, as in the reference.
    let packed = is_v2 && gzip::is_taken(text(request.headers(), header::ACCEPT_ENCODING));
    let binary = media_type != JSON;
    let form = Form { binary, packed };
    let media_type = match (binary, is_v2) {
        (false, _) => JSON,
        (true, true) => OFFERED_V2[1],
        (true, false) => OFFERED_V3[1],
    };
    let ready = served.openapi.known(&name).zip(served.openapi.kept(&name, form));
    let (known, body) = match (ready, served.openapi.known(&name)) {
        (Some(ready), _) => ready,
        // Whoever has it already gets nothing but a yes.
        (None, Some(known)) if has(request, &known) => (known, Bytes::new()),
        (None, _) => {
            let now = worker.backend.clock.now().seconds();
            let registry = worker.backend.objects.registry.clone();
            let (of, memory) = (served.clone(), worker.backend.lists.clone());
            let write = move || prepare((&of, &registry, &memory), &asked, form, now);
            match context.compute_aside(write).await {
                Ok(Ok(written)) => written?,
                Ok(Err(OutOfMemory)) => return Some(too_many_requests(1)),
                Err(status) => return Some(not_written(&status)),
            }
        }
    };
    // The one document of the second version is not named by its content.
    let hash = if is_v2 { String::new() } else { Query::parse(request.query_string()).text("hash") };
    if let Name::V3(name) = &name
        && !hash.is_empty()
        && *hash != *known.hash
    {
        let place = format!("{PREFIX}/{name}?hash={}", known.hash);
        let mut response = HttpResponse::MovedPermanently().content_type(media_type).finish();
        insert(&mut response, header::LOCATION, &place);
        insert(&mut response, header::ETAG, &format!("\"{}\"", known.hash));
        insert(&mut response, header::VARY, "Accept");
        return Some(response);
    }
    // A document that is kept is shared; of another one each client that reads slowly holds a copy.
    let is_shared = served.openapi.kept(&name, form).is_some();
    let memory = &worker.backend.lists;
    let held = if is_shared || body.is_empty() { Ok(memory.nothing()) } else { memory.take(body.len()) };
    let Ok(held) = held else { return Some(too_many_requests(1)) };
    let mut response =
        respond(request, media_type, &known, body).map_body(|_, body| match body.try_into_bytes() {
            Ok(bytes) => BoxBody::new(BudgetedBody { bytes, held }),
            Err(body) => body,
        });
    insert(&mut response, header::VARY, "Accept");
    if is_v2 {
        response.headers_mut().append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    if packed && response.status() == StatusCode::OK {
        insert(&mut response, header::CONTENT_ENCODING, "gzip");
    }
    if !hash.is_empty() {
        let now = Duration::from_secs(worker.backend.clock.now().seconds());
        insert(&mut response, header::CACHE_CONTROL, "public, immutable");
        insert(
            &mut response,
            header::EXPIRES,
            &HttpDate::from(SystemTime::UNIX_EPOCH + now + YEAR).to_string(),
        );
    }
    Some(response)
}

/// Writes a document in the form that was asked for, unless somebody did just now; `None` if there is none of this name.
///
/// The memory is taken here, on a thread for heavy work, and not when the request comes: of many clients that want the same document
/// no more write it than there are such threads.
fn prepare(
    (served, registry, memory): (&Served, &Registry, &MemoryBudget),
    asked: &Asked,
    form: Form,
    now: u64,
) -> Result<Option<(Known, Bytes)>, OutOfMemory> {
    let (openapi, name) = (&served.openapi, &asked.name);
    if let Some(ready) = openapi.known(name).zip(openapi.kept(name, form)) {
        return Ok(Some(ready));
    }
    let _held = memory.take(openapi.writing_bytes(&asked.name, &asked.others))?;
    let Some((json, known)) = openapi.write((served, registry), asked, now) else { return Ok(None) };
    let encoded = match (form.binary, name.is_v2()) {
        (false, _) => Some(json),
        (true, true) => v2_protobuf(&json),
        (true, false) => v3_protobuf(&json),
    };
    let Some(body) = encoded.map(Bytes::from) else { return Ok(None) };
    let body = if form.packed { gzip::pack(&body) } else { body };
    openapi.keep(name, form, &body);
    Ok(Some((known, body)))
}

/// The answer, or that the client has it already.
fn respond(request: &HttpRequest, media_type: &str, known: &Known, body: Bytes) -> HttpResponse {
    let mut response = if has(request, known) {
        HttpResponse::NotModified().finish()
    } else {
        HttpResponse::Ok().insert_header((header::CONTENT_TYPE, media_type)).body(body)
    };
    let written = SystemTime::UNIX_EPOCH + Duration::from_secs(known.written);
    insert(&mut response, header::ETAG, &format!("\"{}\"", known.hash));
    insert(&mut response, header::LAST_MODIFIED, &HttpDate::from(written).to_string());
    response
}

/// Whether the client says that it has the document.
fn has(request: &HttpRequest, known: &Known) -> bool {
    let tags = text(request.headers(), header::IF_NONE_MATCH);
    if tags.is_empty() {
        let since = text(request.headers(), header::IF_MODIFIED_SINCE).parse::<HttpDate>();
        let written = SystemTime::UNIX_EPOCH + Duration::from_secs(known.written);
        return since.is_ok_and(|since| SystemTime::from(since) >= written);
    }
    let mut tags = tags.split(',').map(|tag| tag.trim().trim_start_matches("W/").trim_matches('"'));
    tags.any(|tag| tag == "*" || tag == &*known.hash)
}

fn insert(response: &mut HttpResponse, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::try_from(value) {
        response.headers_mut().insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;
    use pilothouse_apimachinery::schema::GroupVersionKind;

    use super::*;

    #[test]
    fn only_the_latest_documents_are_kept() {
        let (openapi, json) = (OpenApi::default(), Form::default());
        let third = Bytes::from(vec![b' '; OPENAPI_KEPT_BYTES / 3]);
        let by = |name: &str| Name::V3(name.to_owned());
        for name in ["a", "b", "c", "a", "d"] {
            openapi.keep(&by(name), json, &third);
        }
        assert!(openapi.kept(&by("b"), json).is_none(), "the oldest made room");
        assert!(openapi.kept(&by("a"), json).is_some() && openapi.kept(&by("d"), json).is_some());
        assert!(openapi.kept(&by("a"), Form { packed: true, ..json }).is_none());
        openapi.keep(&by("big"), json, &Bytes::from(vec![b' '; OPENAPI_KEPT_BYTES + 1]));
        assert!(openapi.kept(&by("big"), json).is_none());
    }

    #[test]
    fn what_is_reserved_for_a_document_grows_with_the_schemas_in_it() {
        let kind = |group: &str| {
            let schema = vec![b' '; 1 << 20];
            let kind = GroupVersionKind::new(group, "v1", "Kite");
            Arc::new(Custom { kind, published: String::new(), schema: schema.clone(), schema_v2: schema })
        };
        let openapi = OpenApi::new(vec![kind("a"), kind("b")], Contents::default());
        let growth =
            |asked: Asked| (openapi.writing_bytes(&asked.name, &asked.others) - OPENAPI_BUILTIN_BYTES) >> 20;
        assert_eq!(growth(Asked::v2(Vec::new())), 2 * OPENAPI_GROWTH);
        assert_eq!(growth(Asked::v3("apis/a/v1")), OPENAPI_GROWTH);
        assert_eq!(growth(Asked::v3("apis/apps/v1")), 0);
    }

    #[test]
    fn names_of_others_break_nothing() {
        let places =
            BTreeMap::from([("a\"b".to_owned(), "/x".to_owned()), ("c".to_owned(), "\n".to_owned())]);
        let list: serde_json::Value = serde_json::from_str(&listed(&places)).unwrap();
        assert_eq!(list["paths"]["a\"b"]["serverRelativeURL"], "/x");
        assert_eq!(listed(&BTreeMap::new()), r#"{"paths":{}}"#);
    }

    #[test]
    fn clients_say_what_they_have_by_tag_or_date() {
        let known = Known { hash: "AB".into(), written: 1_000_000_000 };
        let says = |name: HeaderName, value: &str| {
            has(&TestRequest::default().insert_header((name, value)).to_http_request(), &known)
        };
        assert!(says(header::IF_NONE_MATCH, "\"AB\""));
        assert!(says(header::IF_NONE_MATCH, "\"x\", W/\"AB\""));
        assert!(says(header::IF_NONE_MATCH, "*"));
        assert!(!says(header::IF_NONE_MATCH, "\"x\""));
        assert!(says(header::IF_MODIFIED_SINCE, "Sun, 09 Sep 2001 01:46:40 GMT"));
        assert!(!says(header::IF_MODIFIED_SINCE, "Sun, 09 Sep 2001 01:46:39 GMT"));
        assert!(!says(header::ACCEPT, "*/*"));
    }
}
