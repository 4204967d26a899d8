//! Proxies requests to a pod, a service or a node, and their responses back. Bodies are streamed in both directions.

use std::io;
use std::sync::Arc;

use actix_http::Payload as Body;
use actix_web::body::{BoxBody, SizedStream};
use actix_web::http::{StatusCode, header};
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};
use futures::{StreamExt as _, stream};
use hyper::Method;
use hyper::header::{CONTENT_LENGTH, HeaderMap, HeaderValue, LOCATION};
use pilothouse_api::connect::links::Links;
use pilothouse_api::connect::{AllowedAddresses, Destination, Trust, url};
use pilothouse_apimachinery::status::{Result, Status};

use crate::backend::Backend;
use crate::heavy_pool::OwnedPool;
use crate::upstream::{Failure, RequestBody, UpstreamRequest, UpstreamResponse};

use super::super::render::text;
use super::{ConnectDeps, ConnectInput, common, headers, host, html_links};

const FORWARDED_URI: &str = "x-forwarded-uri";

/// Proxies a request.
pub(super) async fn pass(
    connecting: &Arc<ConnectDeps>,
    request: &HttpRequest,
    payload: Payload,
    mut to: Destination,
    out: &ConnectInput<'_>,
) -> Result<HttpResponse> {
    // Without the final slash, relative links of the page would lead outside of the proxy.
    if to.location.path.is_empty() && matches!(request.method().as_str(), "GET" | "HEAD") {
        return Ok(with_slash(request));
    }
    request.query_string().clone_into(&mut to.location.query);
    let links = Links::new(out.path, out.found.rest, to.location.authority(), host(request));
    let ask = ask(request, payload, &links, &to)?;
    let answer = connecting.upstream.ask(&to, ask).await.map_err(|failure| unreachable(&to, &failure))?;
    back(connecting, request, answer, &links, &out.pool).await
}

fn with_slash(request: &HttpRequest) -> HttpResponse {
    let mut location = format!("{}/", request.uri().path());
    if !request.query_string().is_empty() {
        location.push('?');
        location.push_str(request.query_string());
    }
    HttpResponse::MovedPermanently().insert_header((header::LOCATION, location)).finish()
}

fn ask(request: &HttpRequest, payload: Payload, links: &Links, to: &Destination) -> Result<UpstreamRequest> {
    let mut headers = headers::passed_on(request);
    let seen = links.here(&url::escape_path(&to.location.path));
    if let Ok(seen) = HeaderValue::try_from(seen) {
        headers.insert(FORWARDED_URI, seen);
    }
    let method = Method::from_bytes(request.method().as_str().as_bytes());
    let method = method.map_err(|_| Status::method_not_allowed())?;
    Ok(UpstreamRequest { method, headers, body: body(request, payload) })
}

/// The body of a request as a stream.
pub(super) fn body(request: &HttpRequest, payload: Payload) -> RequestBody {
    let body = payload.into_inner();
    let length = text(request.headers(), header::CONTENT_LENGTH).parse().ok();
    if matches!(body, Body::None) || length == Some(0) {
        return RequestBody::Empty;
    }
    RequestBody::pieces(Box::pin(body.map(|piece| piece.map_err(io::Error::other))), length)
}

/// The error for an unreachable backend: 503 unless the failure has a status of its own.
pub(super) fn unreachable(to: &Destination, failure: &Failure) -> Box<Status> {
    match failure {
        // A node whose address does not resolve.
        Failure::Lookup(_) if to.reach == AllowedAddresses::GlobalUnicast && to.trust == Trust::Kubelet => {
            Status::bad_request(failure.to_string())
        }
        _ => common(failure)
            .unwrap_or_else(|| Status::unavailable(format!("error trying to reach service: {failure}"))),
    }
}

/// The backend's response as the client gets it.
async fn back(
    connecting: &ConnectDeps,
    request: &HttpRequest,
    mut answer: UpstreamResponse,
    links: &Links,
    pool: &OwnedPool<Backend>,
) -> Result<HttpResponse> {
    let location = answer.headers.get(LOCATION).and_then(|value| value.to_str().ok());
    if let Some(location) = location {
        let led_back = links.rewrite(location).and_then(|new| HeaderValue::try_from(new).ok());
        led_back.map(|new| answer.headers.insert(LOCATION, new));
        return Ok(whole(request, answer));
    }
    if !html_links::is_page(&answer.headers) || *request.method() == actix_web::http::Method::HEAD {
        return Ok(whole(request, answer));
    }
    // The backend has processed the request. If the page budget is exhausted, safe requests get a 429 and can be repeated; all
    // others get the page without rewritten links.
    let may_refuse = request.method().is_safe();
    html_links::led_back(answer, links, connecting.pages.nothing(), may_refuse, pool).await
}

/// Passes a response through unchanged.
pub(super) fn whole(request: &HttpRequest, answer: UpstreamResponse) -> HttpResponse {
    let UpstreamResponse { status, headers, body } = answer;
    let told = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let mut builder = head(status.as_u16(), &headers);
    if *request.method() == actix_web::http::Method::HEAD {
        // HEAD: no body, but its length is known.
        let nothing = stream::empty::<io::Result<bytes::Bytes>>();
        return match told {
            Some(length) => builder.body(SizedStream::new(length, nothing)),
            None => builder.finish(),
        };
    }
    match body.length() {
        Some(0) => builder.finish(),
        Some(length) => builder.body(BoxBody::new(SizedStream::new(length, body))),
        None => builder.streaming(body),
    }
}

/// Status and headers of a response.
pub(super) fn head(status: u16, headers: &HeaderMap) -> HttpResponseBuilder {
    let mut builder = HttpResponse::build(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY));
    for (name, value) in headers::of_answer(headers) {
        builder.append_header((name.as_str(), value.as_bytes()));
    }
    builder
}
