//! Requests for group versions that extension API servers serve. This server authenticates and authorizes. The extension server
//! gets the user's identity in headers and does the rest. Errors on the way are plain text, as clients of aggregated groups
//! expect.

use std::rc::Rc;
use std::sync::Arc;

use actix_web::http::header::HeaderValue as Value;
use actix_web::web::Payload;
use actix_web::{HttpMessage as _, HttpRequest, HttpResponse};
use futures::StreamExt as _;
use hyper::Method;
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue, LOCATION};
use pilothouse_actors::permit::Permit;
use pilothouse_api::aggregation::{ApiService, Service, parse_discovery_path};
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::connect::{Destination, url};
use pilothouse_api::path::{Request, Target};
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::status::Status;
use pilothouse_client::upstream::{Failure, RequestBody, UpgradeOutcome, UpstreamRequest, UpstreamResponse};
use pilothouse_types::identity::Identity;
use tokio::time::timeout;

use crate::aggregation::{Extensions, identity_headers};
use crate::http::body::DeadlineLift;
use crate::limits::EXTENSION_DISCOVERY_TIMEOUT;

use super::super::worker::Worker;
use super::super::{openapi, render};
use super::{headers, proxy, upgraded};

/// The path prefix of OpenAPI v3 documents.
const OPENAPI: &str = "/openapi/v3/";
/// CORS headers, which only this server may set.
const CORS: [&str; 4] = [
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
];

/// Extension API servers, and how they are called.
pub struct Aggregation {
    /// The group versions that they serve.
    pub extensions: Arc<Extensions>,
    /// Whether redirects are refused.
    pub refuses_redirects: bool,
    /// Whether the user's UID is sent along.
    pub sends_uid: bool,
}

/// A request for an extension API server.
pub struct AggregatedRequest<'a> {
    /// The APIService that registers the group version.
    pub registration: Arc<ApiService>,
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

/// The APIService that serves a request, unless this server does. Free for requests that matched a built-in resource. 503 if that
/// cannot be known: the wrong server might answer, and clients would believe that objects were deleted.
pub async fn route(
    worker: &Worker,
    request: &Request<'_>,
    path: &str,
    resource: Option<&Arc<Resource>>,
) -> Result<Option<Arc<ApiService>>, Box<Status>> {
    if resource.is_some_and(|resource| resource.custom.is_none()) {
        return Ok(None);
    }
    let extensions = &worker.shared.aggregation.extensions;
    let (group, version) = match &request.target {
        Target::Resource(path_info) if path.starts_with("/apis/") => (path_info.group, path_info.version),
        Target::Resource(_) => return Ok(None),
        Target::NonResource(path) => match path.strip_prefix(OPENAPI) {
            Some(document) if !openapi::has_own(worker, document) => {
                return Ok(extensions.find_by_openapi_document(document).await);
            }
            Some(_) => return Ok(None),
            None => match parse_discovery_path(path) {
                Some(version) => version,
                None => return Ok(None),
            },
        },
    };
    if is_builtin(worker, group, version) {
        return Ok(None);
    }
    let api_service = extensions.find(group, version).await;
    let api_service = api_service.map_err(|_| Status::unavailable("the APIServices cannot be read"))?;
    match api_service {
        Some(registration) if registration.is_unreadable => {
            let name = quoted(&registration.name);
            Err(Status::unavailable(format!("apiservices.apiregistration.k8s.io {name} cannot be read")))
        }
        api_service => Ok(api_service),
    }
}

/// APIServices cannot replace built-in versions.
fn is_builtin(worker: &Worker, group: &str, version: &str) -> bool {
    let served = worker.served();
    let version = served.catalog.group(group).and_then(|group| group.version(version));
    version.is_some_and(|version| version.resources.iter().any(|resource| resource.custom.is_none()))
}

/// Proxies a request to its extension API server.
pub async fn pass(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    payload: Payload,
    aggregated: &AggregatedRequest<'_>,
) -> HttpResponse {
    let Some(service) =
        aggregated.registration.service.as_ref().filter(|_| aggregated.registration.is_available)
    else {
        return unavailable("service unavailable");
    };
    let destination = match resolve(worker, service, request, aggregated).await {
        Ok(destination) => destination,
        Err(error) => {
            tracing::debug!(
                name = aggregated.registration.name,
                error,
                "the service of an aggregated API cannot be resolved"
            );
            return unavailable("service unavailable");
        }
    };
    if let Some(deadline) = request.extensions().get::<DeadlineLift>() {
        deadline.lift();
    }
    match headers::is_upgrade_request(request) {
        true => switch(worker, request, &destination, aggregated).await,
        false => forward(worker, request, payload, &destination, aggregated).await,
    }
}

async fn resolve(
    worker: &Worker,
    service: &Service,
    request: &HttpRequest,
    aggregated: &AggregatedRequest<'_>,
) -> Result<Destination, String> {
    let (extensions, path, query) =
        (&worker.shared.aggregation.extensions, aggregated.path, request.query_string());
    let destination = extensions.resolve(&worker.backend, aggregated.permit, service, path, query).await?;
    Ok(Destination { user: aggregated.user.name.clone(), ..destination })
}

fn unavailable(message: &str) -> HttpResponse {
    render::plain(503, format!("{message}\n"))
}

/// Adds the headers that identify the user and the proxy hop. The client's own versions of them are gone by now. Errors if the
/// user's identity cannot be put into headers.
fn add_identity(
    worker: &Worker,
    headers: &mut HeaderMap,
    destination: &Destination,
    aggregated: &AggregatedRequest<'_>,
) -> Result<(), String> {
    let authority = destination.location.authority();
    if let Ok(authority) = HeaderValue::try_from(authority) {
        headers.insert(HOST, authority);
    }
    if let Ok(id) = HeaderValue::from_bytes(aggregated.audit_id.as_bytes()) {
        headers.insert(HeaderName::from_static("audit-id"), id);
    }
    headers.extend(identity_headers(aggregated.user, worker.shared.aggregation.sends_uid)?);
    Ok(())
}

fn method(request: &HttpRequest) -> Method {
    Method::from_bytes(request.method().as_str().as_bytes()).unwrap_or_default()
}

async fn forward(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    payload: Payload,
    destination: &Destination,
    aggregated: &AggregatedRequest<'_>,
) -> HttpResponse {
    let mut headers = headers::for_forwarded_request(request);
    if let Err(error) = add_identity(worker, &mut headers, destination, aggregated) {
        return unavailable(&format!("error trying to reach service: {error}"));
    }
    for (name, value) in [
        ("x-forwarded-uri", url::escape_path(aggregated.path)),
        ("x-forwarded-host", destination.location.authority()),
        ("x-forwarded-proto", "https".to_owned()),
    ] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    let upstream_request =
        UpstreamRequest { method: method(request), headers, body: proxy::body(request, payload) };
    let sending = worker.shared.aggregation.extensions.upstream().send(destination, upstream_request);
    let response = match parse_discovery_path(aggregated.path) {
        // Every client requests discovery, so a slow extension server must not delay it for long.
        Some(_) => match timeout(EXTENSION_DISCOVERY_TIMEOUT, sending).await {
            Ok(response) => response,
            Err(_) => return unavailable("error trying to reach service: context deadline exceeded"),
        },
        None => sending.await,
    };
    match response {
        Ok(response) => pass_response(worker, request, response, aggregated.is_watch),
        Err(failure @ Failure::NoAuthorities) => render::plain(500, format!("{failure}\n")),
        Err(failure) => unavailable(&format!("error trying to reach service: {failure}")),
    }
}

fn pass_response(
    worker: &Worker,
    request: &HttpRequest,
    mut response: UpstreamResponse,
    is_watch: bool,
) -> HttpResponse {
    let is_redirect = response.status.is_redirection() && response.headers.contains_key(LOCATION);
    if is_redirect && worker.shared.aggregation.refuses_redirects {
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

/// Upgrades the connection to an extension API server.
async fn switch(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    destination: &Destination,
    aggregated: &AggregatedRequest<'_>,
) -> HttpResponse {
    let switch = match upgraded::switch(request) {
        Ok(switch) => switch,
        Err(status) => return unavailable(&status.message),
    };
    let mut headers = headers::for_upgrade_request(request);
    if let Err(error) = add_identity(worker, &mut headers, destination, aggregated) {
        return unavailable(&format!("error dialing backend: {error}"));
    }
    let upstream_request = UpstreamRequest { method: method(request), headers, body: RequestBody::Empty };
    match worker.shared.aggregation.extensions.upstream().switch(destination, upstream_request).await {
        Ok(UpgradeOutcome::Channel(channel)) => upgraded::hand_over(&switch, channel),
        Ok(UpgradeOutcome::Response(response)) => {
            let result: Result<HttpResponse, Box<Status>> = upgraded::refusal_response(request, response);
            result.unwrap_or_else(|status| unavailable(&status.message))
        }
        Err(failure @ Failure::Broken(_)) => unavailable(&failure.to_string()),
        Err(failure) => unavailable(&format!("error dialing backend: {failure}")),
    }
}
