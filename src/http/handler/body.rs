//! Reads request bodies, bounded in size. The edge bounds the time.

use std::io::ErrorKind;

use actix_web::HttpRequest;
use actix_web::error::PayloadError;
use actix_web::http::header;
use actix_web::web::Payload;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;

use crate::api::media::{self, Encoding, OfferedEncodings, PatchType};
use crate::api::status::{Result, Status};
use crate::api::verb::Verb;
use crate::limits::REQUEST_BODY_BYTES;

use super::render::text;

/// The body of a request.
pub struct Body {
    /// The encoding that the Content-Type names.
    pub encoding: Encoding,
    /// The patch type, if it is a patch.
    pub patch: Option<PatchType>,
    /// The bytes as they came.
    pub bytes: Bytes,
}

impl Default for Body {
    fn default() -> Body {
        Body { encoding: Encoding::Json, patch: None, bytes: Bytes::new() }
    }
}

/// Reads the body of a request with this verb, and its encoding.
pub async fn read(
    request: &HttpRequest,
    payload: Payload,
    verb: Verb,
    offer: OfferedEncodings,
) -> Result<Body> {
    let content_type = text(request.headers(), header::CONTENT_TYPE);
    let plain = |encoding, bytes| Body { encoding, patch: None, bytes };
    match verb {
        Verb::Create | Verb::Update => {
            let encoding = media::of_body(content_type, offer)?;
            Ok(plain(encoding, whole(request, payload).await?))
        }
        Verb::Delete | Verb::DeleteCollection => {
            let body = whole(request, payload).await?;
            // The Content-Type of an empty body is not checked.
            let encoding =
                if body.is_empty() { Encoding::Json } else { media::of_body(content_type, offer)? };
            Ok(plain(encoding, body))
        }
        Verb::Patch => {
            let length = text(request.headers(), header::CONTENT_LENGTH);
            let (language, encoding) = media::of_patch(content_type, length, offer)?;
            Ok(Body { encoding, patch: Some(language), bytes: whole(request, payload).await? })
        }
        _ => Ok(Body::default()),
    }
}

async fn whole(request: &HttpRequest, mut payload: Payload) -> Result<Bytes> {
    let too_large = || Status::too_large(format!("Request entity too large: limit is {REQUEST_BODY_BYTES}"));
    let announced: usize = text(request.headers(), header::CONTENT_LENGTH).parse().unwrap_or(0);
    if announced > REQUEST_BODY_BYTES {
        return Err(too_large());
    }
    let is_endless = is_endless(request);
    let mut body = BytesMut::with_capacity(announced);
    while !is_endless || body.len() < announced {
        let Some(chunk) = payload.next().await else { break };
        let chunk = chunk.map_err(|error| match error {
            PayloadError::Io(error) if error.kind() == ErrorKind::TimedOut => Status::slow_body(),
            error => Status::bad_request(format!("the body cannot be read: {error}")),
        })?;
        if body.len() + chunk.len() > REQUEST_BODY_BYTES {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    if is_endless {
        body.truncate(announced);
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
