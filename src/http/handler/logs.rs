//! /logs: the log files of this host, as `--enable-logs-handler` serves them. The responses are those of Go's file server: listings,
//! dates, ranges.

mod conditions;
mod listing;
mod media;
mod ranges;

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use actix_web::body::SizedStream;
use actix_web::http::header::{self, HeaderName, HeaderValue, HttpDate};
use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use futures::{Stream, stream};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_types::memory::{MemoryBudget, Reservation};

use self::conditions::Conditions;
use super::budgeted_body::BudgetedBody;
use super::render::{self, Context, plain, too_many_requests};
use super::worker::Worker;
use crate::http::stall::SendWithin;
use crate::limits::{
    LOG_CHUNK_BYTES, LOG_CHUNKS, LOG_LISTING_BYTES, LOG_MAX_SEND_TIME, LOG_MIN_BYTES_PER_SECOND,
    LOG_SEND_GRACE,
};
use crate::log_files::{Entry, LogFiles, Modified, OpenError, OpenFile};
use crate::pki::random;

/// The path.
pub const PATH: &str = "/logs";
const INDEX: &str = "index.html";

/// Serves a path; `None` if it is none of these.
pub async fn respond(
    worker: &Worker,
    request: &HttpRequest,
    context: &Context,
    path: &str,
) -> Option<Result<HttpResponse>> {
    let logs = worker.shared.debug.logs.as_ref()?;
    path.strip_prefix(PATH).filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
    if *request.method() != Method::GET {
        return Some(Err(Status::method_not_allowed()));
    }
    // The reference's routes of /logs name no media type.
    let is_acceptable = |range: &str| range.split(';').next().unwrap_or_default().trim() == "*/*";
    if !context.accept.is_empty() && !context.accept.split(',').any(is_acceptable) {
        return Some(Err(Status::no_representation("")));
    }
    let served = FileRequest { logs, memory: &worker.backend.lists, request, path }.serve().await;
    let mut response = served.unwrap_or_else(|refusal| refusal);
    // Pods may write here, and browsers show these files as pages of this server.
    insert(&mut response, header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'");
    insert(&mut response, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    Some(Ok(response))
}

/// A request for a file or a directory.
struct FileRequest<'a> {
    logs: &'a LogFiles,
    memory: &'a MemoryBudget,
    request: &'a HttpRequest,
    /// The decoded path.
    path: &'a str,
}

impl FileRequest<'_> {
    async fn serve(&self) -> std::result::Result<HttpResponse, HttpResponse> {
        if self.path.split(['/', '\\']).any(|name| name == "..") {
            return Err(plain(400, "invalid URL path\n".to_owned()));
        }
        if self.path.ends_with(&format!("/{INDEX}")) {
            return Ok(self.redirect("./"));
        }
        let below = self.path.strip_prefix(PATH).unwrap_or_default();
        let names: PathBuf = below.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
        let name = names.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let directory = match self.logs.open(names.clone()).await.map_err(refusal)? {
            Entry::File(file) => return self.file(&file, name).await,
            Entry::Directory(directory) => directory,
        };
        if !self.path.ends_with('/') {
            let last = self.path.rsplit('/').next().unwrap_or_default();
            return Ok(self.redirect(&format!("{}/", listing::link(last.as_bytes()))));
        }
        match self.logs.open(names.join(INDEX)).await {
            Ok(Entry::File(index)) => self.file(&index, INDEX).await,
            Ok(Entry::Directory(_)) | Err(_) => self.listing(&directory).await,
        }
    }

    /// To a place relative to this one, with the same query.
    fn redirect(&self, to: &str) -> HttpResponse {
        let query = self.request.query_string();
        let query = if query.is_empty() { String::new() } else { format!("?{query}") };
        let mut response = HttpResponse::MovedPermanently().finish();
        insert(&mut response, header::LOCATION, &format!("{to}{query}"));
        response
    }

    async fn listing(&self, directory: &OpenFile) -> std::result::Result<HttpResponse, HttpResponse> {
        if conditions::is_unmodified(self.request.headers(), directory.modified) {
            return Ok(dated(HttpResponse::NotModified().finish(), directory.modified));
        }
        let mut reservation = self.memory.take(LOG_LISTING_BYTES).map_err(|_| too_many_requests(1))?;
        let page = directory.list(listing::page).await.map_err(|error| {
            tracing::warn!(%error, "a directory of log files cannot be listed");
            plain(500, "Error reading directory\n".to_owned())
        })?;
        // A page is shorter than that.
        let _ = reservation.set(page.len().min(LOG_LISTING_BYTES));
        let mut response = HttpResponse::Ok().body(BudgetedBody { bytes: page.into(), reservation });
        insert(&mut response, header::CONTENT_TYPE, "text/html; charset=utf-8");
        Ok(dated(response, directory.modified))
    }

    async fn file(&self, file: &OpenFile, name: &str) -> std::result::Result<HttpResponse, HttpResponse> {
        let range = match conditions::check(self.request.headers(), file.modified) {
            Conditions::Met(range) => range,
            Conditions::NotModified => {
                return Ok(dated(HttpResponse::NotModified().finish(), file.modified));
            }
            Conditions::Failed => {
                return Ok(dated(HttpResponse::PreconditionFailed().finish(), file.modified));
            }
        };
        let ranges = ranges::parse(range, file.bytes).map_err(|error| {
            let mut response = plain(416, format!("{}\n", error.message()));
            if error == ranges::RangeError::NoOverlap {
                insert(&mut response, header::CONTENT_RANGE, &format!("bytes */{}", file.bytes));
            }
            response
        })?;
        let reservation = self.memory.take(LOG_CHUNKS * LOG_CHUNK_BYTES).map_err(|_| too_many_requests(1))?;
        let media = match media::by_name(name) {
            Some(media) => media,
            None => {
                let sniffed = usize::try_from(file.bytes.min(media::SNIFFED_BYTES)).unwrap_or(0);
                let beginning = file.read(0, sniffed).await;
                media::by_content(&beginning.map_err(|error| refusal(OpenError::Failed(error)))?)
            }
        };
        Ok(dated(send(file, &ranges, media, reservation), file.modified))
    }
}

/// The response with a file, or with these ranges of it.
fn send(file: &OpenFile, ranges: &[Range<u64>], media: &str, reservation: Reservation) -> HttpResponse {
    let size = file.bytes;
    let (status, media, parts) = match ranges {
        [] => (StatusCode::OK, media.to_owned(), VecDeque::from([Part::Content(0..size)])),
        [range] => {
            (StatusCode::PARTIAL_CONTENT, media.to_owned(), VecDeque::from([Part::Content(range.clone())]))
        }
        ranges => {
            let boundary = boundary();
            let parts = multipart(ranges, media, size, &boundary);
            (StatusCode::PARTIAL_CONTENT, format!("multipart/byteranges; boundary={boundary}"), parts)
        }
    };
    let bytes = parts.iter().map(Part::len).sum();
    let body = Sending { file: file.clone(), parts, _reservation: reservation };
    let mut response = HttpResponse::build(status).body(SizedStream::new(bytes, body.stream()));
    insert(&mut response, header::CONTENT_TYPE, &media);
    insert(&mut response, header::ACCEPT_RANGES, "bytes");
    if let [range] = ranges {
        insert(&mut response, header::CONTENT_RANGE, &content_range(range, size));
    }
    let time_left = LOG_SEND_GRACE + Duration::from_secs(bytes / LOG_MIN_BYTES_PER_SECOND);
    response.extensions_mut().insert(SendWithin(time_left.min(LOG_MAX_SEND_TIME)));
    response
}

/// A part of a response.
enum Part {
    /// Text between ranges.
    Text(Bytes),
    /// This range of the file.
    Content(Range<u64>),
}

impl Part {
    fn len(&self) -> u64 {
        match self {
            Part::Text(text) => text.len() as u64,
            Part::Content(range) => range.end - range.start,
        }
    }
}

fn content_range(range: &Range<u64>, size: u64) -> String {
    format!("bytes {}-{}/{size}", range.start, range.end.saturating_sub(1))
}

fn boundary() -> String {
    random::bytes::<30>().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Several ranges in one response.
fn multipart(ranges: &[Range<u64>], media: &str, size: u64, boundary: &str) -> VecDeque<Part> {
    let mut parts = VecDeque::new();
    for (index, range) in ranges.iter().enumerate() {
        let line_end = if index == 0 { "" } else { "\r\n" };
        let content_range = content_range(range, size);
        let head = format!(
            "{line_end}--{boundary}\r\nContent-Range: {content_range}\r\nContent-Type: {media}\r\n\r\n"
        );
        parts.extend([Part::Text(head.into()), Part::Content(range.clone())]);
    }
    parts.push_back(Part::Text(format!("\r\n--{boundary}--\r\n").into()));
    parts
}

/// A file that is sent piece by piece: the next one is read when the client has taken the last.
struct Sending {
    file: OpenFile,
    parts: VecDeque<Part>,
    /// The memory of the pieces.
    _reservation: Reservation,
}

impl Sending {
    fn stream(self) -> impl Stream<Item = io::Result<Bytes>> + 'static {
        Box::pin(stream::try_unfold(self, async |mut sending: Sending| {
            Ok(sending.next().await?.map(|piece| (piece, sending)))
        }))
    }

    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        while let Some(part) = self.parts.pop_front() {
            let range = match part {
                Part::Text(text) => return Ok(Some(text)),
                Part::Content(range) if range.is_empty() => continue,
                Part::Content(range) => range,
            };
            let bytes =
                usize::try_from(range.end - range.start).unwrap_or(LOG_CHUNK_BYTES).min(LOG_CHUNK_BYTES);
            let piece = self.file.read(range.start, bytes).await?;
            self.parts.push_front(Part::Content(range.start + piece.len() as u64..range.end));
            return Ok(Some(piece));
        }
        Ok(None)
    }
}

/// What the reference says of something that cannot be opened.
fn refusal(error: OpenError) -> HttpResponse {
    let error = match error {
        OpenError::Busy => return too_many_requests(1),
        OpenError::Failed(error) => error,
    };
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => render::page_not_found(),
        io::ErrorKind::InvalidFilename => plain(404, "file not found\n".to_owned()),
        io::ErrorKind::PermissionDenied => plain(403, "403 Forbidden\n".to_owned()),
        _ => {
            tracing::warn!(%error, "a log file cannot be opened");
            plain(500, "500 Internal Server Error\n".to_owned())
        }
    }
}

fn dated(mut response: HttpResponse, modified: Option<Modified>) -> HttpResponse {
    if let Some(modified) = modified {
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(modified.seconds());
        insert(&mut response, header::LAST_MODIFIED, &HttpDate::from(modified).to_string());
    }
    response
}

fn insert(response: &mut HttpResponse, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::try_from(value) {
        response.headers_mut().insert(name, value);
    }
}
