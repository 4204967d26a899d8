//! HTTP/1.1 requests that are refused before anybody looks at them: heads that are too large or no requests, expectations that
//! nobody can meet, hosts that are no hosts. The texts are those of the reference.

use actix_http::body::BoxBody;
use actix_http::header::{self, HeaderValue};
use actix_http::{ConnectionType, HttpMessage as _, Request, Response, StatusCode, Version};

use super::request_heads::{self, Refusal};

/// Why a request is refused.
pub(super) enum Refused {
    /// Its head cannot be used.
    Head(Refusal),
    /// It expects something else than 100-continue.
    Expectation,
    /// Its host contains bytes that a host cannot contain.
    Host,
}

impl Refused {
    /// For the log.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Refused::Head(Refusal::TooLarge) => "its head is too large",
            Refused::Head(Refusal::Malformed) => "its first line or a header is malformed",
            Refused::Expectation => "it expects something that is not supported",
            Refused::Host => "its host is malformed",
        }
    }

    /// The response, after which the connection ends.
    pub(super) fn response(&self) -> Response<BoxBody> {
        let (code, media_type, body) = match self {
            Refused::Head(refusal) => {
                let status = refusal.status();
                (status.code, "application/json", status.to_json())
            }
            Refused::Expectation => (417, "text/plain; charset=utf-8", Vec::new()),
            Refused::Host => {
                (400, "text/plain; charset=utf-8", b"400 Bad Request: malformed Host header".to_vec())
            }
        };
        let code = StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_REQUEST);
        let mut response = Response::with_body(code, BoxBody::new(body));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        response.head_mut().set_connection_type(ConnectionType::Close);
        response
    }
}

/// Completes the headers of a request, and checks those that concern the connection.
pub(super) fn check(request: &mut Request) -> Result<(), Refused> {
    request_heads::restore(request).map_err(Refused::Head)?;
    let headers = request.headers();
    if let Some(host) = headers.get(header::HOST)
        && !host.as_bytes().iter().all(|byte| is_host_byte(*byte))
    {
        return Err(Refused::Host);
    }
    let has_other_expectation = headers.get(header::EXPECT).is_some_and(|value| {
        let text = value.as_bytes();
        !text.is_empty() && !text.to_ascii_lowercase().windows(12).any(|word| word == b"100-continue")
    });
    match request.version() == Version::HTTP_11 && has_other_expectation {
        true => Err(Refused::Expectation),
        false => Ok(()),
    }
}

/// The bytes of hosts that the reference accepts: those of the standard, also with escapes.
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(&byte)
}
