//! Passes requests on to other API servers, extension servers and those on the same etcd, and their responses back. This server
//! authenticates and authorizes; the other one gets the user's identity in headers, and does the rest. Errors on the way are plain
//! text, as clients of aggregated groups expect.

use std::rc::Rc;
use std::time::Duration;

use actix_web::http::header::HeaderValue as Value;
use actix_web::web::Payload;
use actix_web::{HttpMessage as _, HttpRequest, HttpResponse};
use futures::StreamExt as _;
use hyper::Method;
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue, LOCATION};
use pilothouse_actors::permit::Permit;
use pilothouse_api::connect::{Destination, url};
use pilothouse_apimachinery::status::Status;
use pilothouse_client::upstream::{
    Failure, RequestBody, UpgradeOutcome, Upstream, UpstreamRequest, UpstreamResponse,
};
use pilothouse_types::identity::Identity;
use pilothouse_types::trace::OpenSpan;
use pilothouse_types::trace::span::{Attribute, client_span_name};
use tokio::time::timeout;

use crate::aggregation::identity_headers;
use crate::http::body::DeadlineLift;

use super::super::render;
use super::super::worker::Worker;
use super::{headers, proxy, upgraded};

/// CORS headers, which only this server may set.
const CORS: [&str; 4] = [
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
];

/// A request that another server serves.
pub struct ForwardedRequest<'a> {
    /// The unescaped path.
    pub path: &'a str,
    /// The user of the request.
    pub user: &'a Identity,
    /// Whether it is a watch.
    pub is_watch: bool,
    /// The audit ID, which is passed on.
    pub audit_id: &'a Value,
    /// The request's seat among those in flight.
    pub permit: &'a Permit,
}

/// How requests are passed on to servers of one sort.
pub(super) struct Forwarding<'a> {
    /// The connections to them.
    pub(super) upstream: &'a Upstream,
    /// Whether the user's UID is sent along.
    pub(super) sends_uid: bool,
    /// A header that tells the server how the request came, whatever the client says.
    pub(super) mark: Option<(&'static str, &'static str)>,
    /// How soon the response must begin, if it must.
    pub(super) head_timeout: Option<Duration>,
    /// Whether redirects are refused.
    pub(super) refuses_redirects: bool,
    /// What error messages begin with: of requests, and of upgrades.
    pub(super) error_prefixes: [&'static str; 2],
}

/// The response if the server cannot be reached.
pub(super) fn unavailable(message: &str) -> HttpResponse {
    render::plain(503, format!("{message}\n"))
}

impl Forwarding<'_> {
    /// Passes a request on to this destination.
    pub(super) async fn pass(
        &self,
        worker: &Rc<Worker>,
        request: &HttpRequest,
        payload: Payload,
        destination: &Destination,
        forwarded: &ForwardedRequest<'_>,
    ) -> HttpResponse {
        if let Some(deadline) = request.extensions().get::<DeadlineLift>() {
            deadline.lift();
        }
        match headers::is_upgrade_request(request) {
            true => self.switch(request, destination, forwarded).await,
            false => self.send(worker, request, payload, destination, forwarded).await,
        }
    }

    /// Adds the headers that identify the user and the proxy hop. The client's own versions of them are gone by now. Errors if the
    /// user's identity cannot be put into headers.
    fn add_identity(
        &self,
        headers: &mut HeaderMap,
        destination: &Destination,
        forwarded: &ForwardedRequest<'_>,
    ) -> Result<(), String> {
        let authority = destination.location.authority();
        if let Ok(authority) = HeaderValue::try_from(authority) {
            headers.insert(HOST, authority);
        }
        if let Ok(id) = HeaderValue::from_bytes(forwarded.audit_id.as_bytes()) {
            headers.insert(HeaderName::from_static("audit-id"), id);
        }
        if let Some((name, value)) = self.mark {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers.extend(identity_headers(forwarded.user, self.sends_uid)?);
        Ok(())
    }

    async fn send(
        &self,
        worker: &Rc<Worker>,
        request: &HttpRequest,
        payload: Payload,
        destination: &Destination,
        forwarded: &ForwardedRequest<'_>,
    ) -> HttpResponse {
        let unavailable = |error: &str| unavailable(&format!("{}{error}", self.error_prefixes[0]));
        let mut headers = headers::for_forwarded_request(request);
        if let Err(error) = self.add_identity(&mut headers, destination, forwarded) {
            return unavailable(&error);
        }
        for (name, value) in [
            ("x-forwarded-uri", url::escape_path(forwarded.path)),
            ("x-forwarded-host", destination.location.authority()),
            ("x-forwarded-proto", "https".to_owned()),
        ] {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        let span = client_span(&mut headers, request, destination, forwarded);
        let upstream_request =
            UpstreamRequest { method: method(request), headers, body: proxy::body(request, payload) };
        let sending = self.upstream.send(destination, upstream_request);
        let response = match self.head_timeout {
            Some(limit) => match timeout(limit, sending).await {
                Ok(response) => response,
                Err(_) => return unavailable("context deadline exceeded"),
            },
            None => sending.await,
        };
        end_client_span(span, response.as_ref().ok().map(|response| response.status.as_u16()));
        match response {
            Ok(response) => self.pass_response(worker, request, response, forwarded.is_watch),
            Err(failure @ Failure::NoAuthorities) => render::plain(500, format!("{failure}\n")),
            Err(failure) => unavailable(&failure.to_string()),
        }
    }

    fn pass_response(
        &self,
        worker: &Worker,
        request: &HttpRequest,
        mut response: UpstreamResponse,
        is_watch: bool,
    ) -> HttpResponse {
        let is_redirect = response.status.is_redirection() && response.headers.contains_key(LOCATION);
        if is_redirect && self.refuses_redirects {
            let message = "the backend attempted to redirect this request, which is not permitted";
            return HttpResponse::BadGateway().content_type(render::PLAIN_TEXT).body(message);
        }
        CORS.iter().for_each(|name| drop(response.headers.remove(*name)));
        if is_watch && response.body.length().is_none() {
            // Watches have no end: this server ends them at shutdown, as it ends its own.
            let drain = worker.shared.connect.drain.clone();
            let body = response.body.take_until(async move { drain.begun().await });
            return proxy::head(response.status.as_u16(), &response.headers).streaming(body);
        }
        proxy::pass_unchanged(request, response)
    }

    /// Upgrades the connection to the server.
    async fn switch(
        &self,
        request: &HttpRequest,
        destination: &Destination,
        forwarded: &ForwardedRequest<'_>,
    ) -> HttpResponse {
        let switch = match upgraded::switch(request) {
            Ok(switch) => switch,
            Err(status) => return unavailable(&status.message),
        };
        let undialed = |error: &str| unavailable(&format!("{}{error}", self.error_prefixes[1]));
        let mut headers = headers::for_upgrade_request(request);
        if let Err(error) = self.add_identity(&mut headers, destination, forwarded) {
            return undialed(&error);
        }
        let upstream_request = UpstreamRequest { method: method(request), headers, body: RequestBody::Empty };
        match self.upstream.switch(destination, upstream_request).await {
            Ok(UpgradeOutcome::Channel(channel)) => upgraded::hand_over(&switch, channel),
            Ok(UpgradeOutcome::Response(response)) => {
                let result: Result<HttpResponse, Box<Status>> = upgraded::refusal_response(request, response);
                result.unwrap_or_else(|status| unavailable(&status.message))
            }
            Err(failure @ Failure::Broken(_)) => unavailable(&failure.to_string()),
            Err(failure) => undialed(&failure.to_string()),
        }
    }
}

/// Begins the span of a request to another server, until its response begins, and tells the server of it.
fn client_span(
    headers: &mut HeaderMap,
    request: &HttpRequest,
    destination: &Destination,
    forwarded: &ForwardedRequest<'_>,
) -> OpenSpan {
    let (trace, method) = (forwarded.permit.trace(), request.method().as_str());
    let mut span = trace.open(client_span_name(method));
    span.set_client();
    span.describe(|| {
        vec![
            Attribute::text("http.method", method.to_owned()),
            Attribute::text("http.url", destination.location.url()),
        ]
    });
    for (name, value) in trace.headers(&span) {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    span
}

fn end_client_span(mut span: OpenSpan, code: Option<u16>) {
    span.describe(|| code.map(|code| Attribute::number("http.status_code", code)).into_iter().collect());
    if code.is_none_or(|code| code >= 400) {
        span.fail();
    }
    span.end();
}

fn method(request: &HttpRequest) -> Method {
    Method::from_bytes(request.method().as_str().as_bytes()).unwrap_or_default()
}
