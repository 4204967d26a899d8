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
use pilothouse_client::upstream::{Failure, RequestBody, UpstreamRequest, UpstreamResponse};

use crate::flowcontrol::heavy_pool::OwnedPool;
use crate::registry::Backend;

use super::super::render::text;
use super::{ConnectDeps, ConnectInput, common_status, headers, host, html_links};

const FORWARDED_URI: &str = "x-forwarded-uri";

/// Proxies a request.
pub(super) async fn pass(
    deps: &Arc<ConnectDeps>,
    request: &HttpRequest,
    payload: Payload,
    mut destination: Destination,
    input: &ConnectInput<'_>,
) -> Result<HttpResponse> {
    // Without the final slash, relative links of the page would lead outside of the proxy.
    if destination.location.path.is_empty() && matches!(request.method().as_str(), "GET" | "HEAD") {
        return Ok(with_slash(request));
    }
    request.query_string().clone_into(&mut destination.location.query);
    let links = Links::new(input.path, input.path_info.rest, destination.location.authority(), host(request));
    let upstream_request = make_request(request, payload, &links, &destination)?;
    let response = deps
        .upstream
        .send(&destination, upstream_request)
        .await
        .map_err(|failure| unreachable(&destination, &failure))?;
    back(deps, request, response, &links, &input.pool).await
}

fn with_slash(request: &HttpRequest) -> HttpResponse {
    let mut location = format!("{}/", request.uri().path());
    if !request.query_string().is_empty() {
        location.push('?');
        location.push_str(request.query_string());
    }
    HttpResponse::MovedPermanently().insert_header((header::LOCATION, location)).finish()
}

fn make_request(
    request: &HttpRequest,
    payload: Payload,
    links: &Links,
    destination: &Destination,
) -> Result<UpstreamRequest> {
    let mut headers = headers::for_forwarded_request(request);
    let forwarded_uri = links.proxied_path(&url::escape_path(&destination.location.path));
    if let Ok(forwarded_uri) = HeaderValue::try_from(forwarded_uri) {
        headers.insert(FORWARDED_URI, forwarded_uri);
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
pub(super) fn unreachable(destination: &Destination, failure: &Failure) -> Box<Status> {
    match failure {
        // A node whose address does not resolve.
        Failure::Lookup(_)
            if destination.reach == AllowedAddresses::GlobalUnicast
                && destination.trust == Trust::Kubelet =>
        {
            Status::bad_request(failure.to_string())
        }
        _ => common_status(failure)
            .unwrap_or_else(|| Status::unavailable(format!("error trying to reach service: {failure}"))),
    }
}

/// The backend's response as the client gets it.
async fn back(
    deps: &ConnectDeps,
    request: &HttpRequest,
    mut response: UpstreamResponse,
    links: &Links,
    pool: &OwnedPool<Backend>,
) -> Result<HttpResponse> {
    let location = response.headers.get(LOCATION).and_then(|value| value.to_str().ok());
    if let Some(location) = location {
        let rewritten = links.rewrite(location).and_then(|new| HeaderValue::try_from(new).ok());
        rewritten.map(|new| response.headers.insert(LOCATION, new));
        return Ok(pass_unchanged(request, response));
    }
    if !html_links::is_page(&response.headers) || *request.method() == actix_web::http::Method::HEAD {
        return Ok(pass_unchanged(request, response));
    }
    // The backend has processed the request. If the page budget is exhausted, safe requests get a 429 and can be repeated; all
    // others get the page without rewritten links.
    let may_refuse = request.method().is_safe();
    html_links::rewrite_links(response, links, deps.pages.empty_reservation(), may_refuse, pool).await
}

/// Passes a response through unchanged.
pub(super) fn pass_unchanged(request: &HttpRequest, response: UpstreamResponse) -> HttpResponse {
    let UpstreamResponse { status, headers, body } = response;
    let content_length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let mut builder = head(status.as_u16(), &headers);
    if *request.method() == actix_web::http::Method::HEAD {
        // HEAD: no body, but its length is known.
        let empty = stream::empty::<io::Result<bytes::Bytes>>();
        return match content_length {
            Some(length) => builder.body(SizedStream::new(length, empty)),
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
    for (name, value) in headers::for_response(headers) {
        builder.append_header((name.as_str(), value.as_bytes()));
    }
    builder
}
