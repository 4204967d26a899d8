//! Requests of pages in browsers from other origins (`--cors-allowed-origins`), with the reference's headers.

use actix_web::http::Method;
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_web::{HttpRequest, HttpResponse};

use super::render::{Context, text};
use crate::config::allowed_origin::AllowedOrigin;

/// What every response to such a page says, beside its origin.
const HEADERS: [(HeaderName, &str); 4] = [
    (header::ACCESS_CONTROL_ALLOW_METHODS, "POST, GET, OPTIONS, PUT, DELETE, PATCH"),
    (
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since",
    ),
    (header::ACCESS_CONTROL_EXPOSE_HEADERS, "Date"),
    (header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true"),
];

/// The origin of a request, if its pages may call.
pub fn origin(allowed: &[AllowedOrigin], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = text(headers, header::ORIGIN);
    let is_allowed = !origin.is_empty() && allowed.iter().any(|allowed| allowed.allows(origin));
    headers.get(header::ORIGIN).filter(|_| is_allowed).cloned()
}

/// Tells the browser that the page may read the response.
pub fn allow(headers: &mut HeaderMap, origin: &HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// The answer to the question of a browser whether the page may call. It has no credentials, so it is answered before all checks.
pub fn answer(request: &HttpRequest, context: &Context) -> Option<HttpResponse> {
    let asks = context.origin().is_some() && request.method() == Method::OPTIONS;
    asks.then(|| context.finish(HttpResponse::NoContent().finish()))
}
