//! Reads request bodies, bounded in size. The edge bounds the time.

use std::io::ErrorKind;

use actix_web::HttpRequest;
use actix_web::error::PayloadError;
use actix_web::http::header;
use actix_web::web::Payload;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use pilothouse_apimachinery::media::{self, Encoding, OfferedEncodings, PatchType};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::verb::Verb;

use crate::limits::{BODY_STEP_BYTES, REQUEST_BODY_BYTES, SMALL_BODY_BYTES};
use crate::registry::request_memory::{RequestMemory, RequestReservation};

use super::render::text;

/// The body of a request.
pub struct Body {
    /// The encoding that the Content-Type names.
    pub encoding: Encoding,
    /// The patch type, if it is a patch.
    pub patch: Option<PatchType>,
    /// The bytes as they came.
    pub bytes: Bytes,
    /// The memory of the body while it is processed; `None` if it is too small to count.
    pub memory: Option<RequestReservation>,
}

impl Default for Body {
    fn default() -> Body {
        Body { encoding: Encoding::Json, patch: None, bytes: Bytes::new(), memory: None }
    }
}

/// Reads the body of a request with this verb, and its encoding, on behalf of this user.
pub async fn read(
    request: &HttpRequest,
    payload: Payload,
    verb: Verb,
    offer: OfferedEncodings,
    memory: &RequestMemory,
    user: &str,
) -> Result<Body> {
    let content_type = text(request.headers(), header::CONTENT_TYPE);
    let mut memory = memory.empty_reservation();
    match verb {
        Verb::Create | Verb::Update => {
            let encoding = media::body_encoding(content_type, offer)?;
            let bytes = read_bounded(request, payload, &mut memory).await?;
            memory.reserve_for_decoding(user, encoding, &bytes)?;
            Ok(Body { encoding, patch: None, bytes, memory: Some(memory) })
        }
        Verb::Delete | Verb::DeleteCollection => {
            let bytes = read_bounded(request, payload, &mut memory).await?;
            // The Content-Type of an empty body is not checked.
            let encoding =
                if bytes.is_empty() { Encoding::Json } else { media::body_encoding(content_type, offer)? };
            if bytes.len() <= SMALL_BODY_BYTES {
                // A deletion frees memory: it must not be refused for lack of memory.
                return Ok(Body { encoding, bytes, ..Body::default() });
            }
            memory.reserve_for_decoding(user, encoding, &bytes)?;
            Ok(Body { encoding, patch: None, bytes, memory: Some(memory) })
        }
        Verb::Patch => {
            let length = text(request.headers(), header::CONTENT_LENGTH);
            let (patch_type, encoding) = media::patch_encoding(content_type, length, offer)?;
            let bytes = read_bounded(request, payload, &mut memory).await?;
            memory.reserve_for_decoding(user, encoding, &bytes)?;
            Ok(Body { encoding, patch: Some(patch_type), bytes, memory: Some(memory) })
        }
        _ => Ok(Body::default()),
    }
}

async fn read_bounded(
    request: &HttpRequest,
    mut payload: Payload,
    memory: &mut RequestReservation,
) -> Result<Bytes> {
    let too_large = || Status::too_large(format!("Request entity too large: limit is {REQUEST_BODY_BYTES}"));
    let content_length: usize = text(request.headers(), header::CONTENT_LENGTH).parse().unwrap_or(0);
    if content_length > REQUEST_BODY_BYTES {
        return Err(too_large());
    }
    let is_endless = is_endless(request);
    // A client that announces a long body and sends nothing must not hold much memory.
    let mut reserved = content_length.min(BODY_STEP_BYTES);
    if content_length > SMALL_BODY_BYTES {
        memory.reserve_for_reading(reserved)?;
    }
    let mut body = BytesMut::with_capacity(reserved);
    while !is_endless || body.len() < content_length {
        let Some(chunk) = payload.next().await else { break };
        let chunk = chunk.map_err(|error| match error {
            PayloadError::Io(error) if error.kind() == ErrorKind::TimedOut => Status::slow_body(),
            error => Status::bad_request(format!("the body cannot be read: {error}")),
        })?;
        if body.len() + chunk.len() > REQUEST_BODY_BYTES {
            return Err(too_large());
        }
        if body.len() + chunk.len() > reserved {
            reserved = (2 * body.len()).max(body.len() + chunk.len()).min(REQUEST_BODY_BYTES);
            memory.reserve_for_reading(reserved)?;
            body.reserve(reserved - body.len());
        }
        body.extend_from_slice(&chunk);
    }
    if is_endless {
        body.truncate(content_length);
    }
    Ok(body.freeze())
}

/// Whether the driver takes the rest of the connection for the body. It does if a request offers WebSocket, though writes never
/// switch protocols and their body has the stated length.
fn is_endless(request: &HttpRequest) -> bool {
    let headers = request.headers();
    text(headers, header::UPGRADE).trim().eq_ignore_ascii_case("websocket")
        && !headers.contains_key(header::TRANSFER_ENCODING)
}
