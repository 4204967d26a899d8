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
use pilothouse_api::aggregation::{ApiService, Service, version_at};
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::connect::{Destination, url};
use pilothouse_api::path::{Request, Target};
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::status::Status;
use pilothouse_types::identity::Identity;
use tokio::time::timeout;

use crate::backend::aggregation::identity_headers;
use crate::http::body::DeadlineLift;
use crate::limits::EXTENSION_DISCOVERY_TIMEOUT;
use crate::upstream::{Failure, RequestBody, Switched, UpstreamRequest, UpstreamResponse};

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

/// Settings for extension API servers.
#[derive(Clone, Copy, Debug)]
pub struct AggregationSettings {
    /// Whether redirects are refused.
    pub refuses_redirects: bool,
    /// Whether the user's UID is sent along.
    pub tells_uid: bool,
}

/// A request for an extension API server.
pub struct AggregatedRequest<'a> {
    /// The APIService that registers the group version.
    pub registration: Arc<ApiService>,
    /// The unescaped path.
    pub path: &'a str,
    /// The user who asks.
    pub user: &'a Identity,
    /// Whether it is a watch.
    pub is_watch: bool,
    /// The audit ID, which is passed on.
    pub audit_id: &'a Value,
    /// The request's seat among those in flight.
    pub permit: &'a Permit,
}

/// The APIService that serves a request, unless this server does. Free for requests that matched a built-in resource. 503 if that
/// cannot be known: somebody else than the registered server might answer, and clients would take objects for gone.
pub async fn route(
    worker: &Worker,
    request: &Request<'_>,
    path: &str,
    known: Option<&Arc<Resource>>,
) -> Result<Option<Arc<ApiService>>, Box<Status>> {
    if known.is_some_and(|resource| resource.custom.is_none()) {
        return Ok(None);
    }
    let extensions = &worker.shared.extensions;
    let (group, version) = match &request.target {
        Target::Resource(found) if path.starts_with("/apis/") => (found.group, found.version),
        Target::Resource(_) => return Ok(None),
        Target::NonResource(path) => match path.strip_prefix(OPENAPI) {
            Some(document) if !openapi::has_own(worker, document) => {
                return Ok(extensions.describes(document).await);
            }
            Some(_) => return Ok(None),
            None => match version_at(path) {
                Some(version) => version,
                None => return Ok(None),
            },
        },
    };
    if is_builtin(worker, group, version) {
        return Ok(None);
    }
    let found = extensions.find(group, version).await;
    let found = found.map_err(|_| Status::unavailable("the APIServices cannot be read"))?;
    match found {
        Some(registration) if registration.is_unreadable => {
            let name = quoted(&registration.name);
            Err(Status::unavailable(format!("apiservices.apiregistration.k8s.io {name} cannot be read")))
        }
        found => Ok(found),
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
    passed: &AggregatedRequest<'_>,
) -> HttpResponse {
    let Some(service) = passed.registration.service.as_ref().filter(|_| passed.registration.is_available)
    else {
        return unavailable("service unavailable");
    };
    let to = match resolve(worker, service, request, passed).await {
        Ok(to) => to,
        Err(why) => {
            tracing::debug!(
                name = passed.registration.name,
                why,
                "the service of an aggregated API cannot be resolved"
            );
            return unavailable("service unavailable");
        }
    };
    if let Some(patience) = request.extensions().get::<DeadlineLift>() {
        patience.have();
    }
    match headers::asks_to_switch(request) {
        true => switch(worker, request, &to, passed).await,
        false => forward(worker, request, payload, &to, passed).await,
    }
}

async fn resolve(
    worker: &Worker,
    service: &Service,
    request: &HttpRequest,
    passed: &AggregatedRequest<'_>,
) -> Result<Destination, String> {
    let asked = (passed.path, request.query_string());
    let to = worker.shared.extensions.resolve((&worker.backend, passed.permit), service, asked).await?;
    Ok(Destination { asker: passed.user.name.clone(), ..to })
}

fn unavailable(why: &str) -> HttpResponse {
    render::plain(503, format!("{why}\n"))
}

/// Adds the headers that identify the user and the proxy hop. The client's own versions of them are gone by now. Errors if the
/// user's identity cannot be put into headers.
fn tell(
    worker: &Worker,
    headers: &mut HeaderMap,
    to: &Destination,
    passed: &AggregatedRequest<'_>,
) -> Result<(), String> {
    let authority = to.location.authority();
    if let Ok(authority) = HeaderValue::try_from(authority) {
        headers.insert(HOST, authority);
    }
    if let Ok(id) = HeaderValue::from_bytes(passed.audit_id.as_bytes()) {
        headers.insert(HeaderName::from_static("audit-id"), id);
    }
    headers.extend(identity_headers(passed.user, worker.shared.manners.tells_uid)?);
    Ok(())
}

fn method(request: &HttpRequest) -> Method {
    Method::from_bytes(request.method().as_str().as_bytes()).unwrap_or_default()
}

async fn forward(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    payload: Payload,
    to: &Destination,
    passed: &AggregatedRequest<'_>,
) -> HttpResponse {
    let mut headers = headers::passed_on(request);
    if let Err(why) = tell(worker, &mut headers, to, passed) {
        return unavailable(&format!("error trying to reach service: {why}"));
    }
    for (name, value) in [
        ("x-forwarded-uri", url::escape_path(passed.path)),
        ("x-forwarded-host", to.location.authority()),
        ("x-forwarded-proto", "https".to_owned()),
    ] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    let ask = UpstreamRequest { method: method(request), headers, body: proxy::body(request, payload) };
    let asking = worker.shared.extensions.upstream().ask(to, ask);
    let answer = match version_at(passed.path) {
        // Every client asks for discovery, so a slow extension server must not delay it for long.
        Some(_) => match timeout(EXTENSION_DISCOVERY_TIMEOUT, asking).await {
            Ok(answer) => answer,
            Err(_) => return unavailable("error trying to reach service: context deadline exceeded"),
        },
        None => asking.await,
    };
    match answer {
        Ok(answer) => back(worker, request, answer, passed.is_watch),
        Err(failure @ Failure::NoAuthorities) => render::plain(500, format!("{failure}\n")),
        Err(failure) => unavailable(&format!("error trying to reach service: {failure}")),
    }
}

fn back(
    worker: &Worker,
    request: &HttpRequest,
    mut answer: UpstreamResponse,
    is_watch: bool,
) -> HttpResponse {
    let leads_on = answer.status.is_redirection() && answer.headers.contains_key(LOCATION);
    if leads_on && worker.shared.manners.refuses_redirects {
        let why = "the backend attempted to redirect this request, which is not permitted";
        return HttpResponse::BadGateway().content_type(render::PLAIN_TEXT).body(why);
    }
    CORS.iter().for_each(|name| drop(answer.headers.remove(*name)));
    if is_watch && answer.body.length().is_none() {
        // Watches have no end: this server ends them at shutdown, as it ends its own.
        let leaving = worker.shared.connecting.leaving.clone();
        let body = answer.body.take_until(async move { leaving.begun().await });
        return proxy::head(answer.status.as_u16(), &answer.headers).streaming(body);
    }
    proxy::whole(request, answer)
}

/// Upgrades the connection to an extension API server.
async fn switch(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    to: &Destination,
    passed: &AggregatedRequest<'_>,
) -> HttpResponse {
    let switch = match upgraded::switch(request) {
        Ok(switch) => switch,
        Err(status) => return unavailable(&status.message),
    };
    let mut headers = headers::to_switch(request);
    if let Err(why) = tell(worker, &mut headers, to, passed) {
        return unavailable(&format!("error dialing backend: {why}"));
    }
    let ask = UpstreamRequest { method: method(request), headers, body: RequestBody::Empty };
    match worker.shared.extensions.upstream().switch(to, ask).await {
        Ok(Switched::Channel(channel)) => upgraded::hand_over(&switch, channel),
        Ok(Switched::Answer(answer)) => {
            let refused: Result<HttpResponse, Box<Status>> = upgraded::refused(request, answer);
            refused.unwrap_or_else(|status| unavailable(&status.message))
        }
        Err(failure @ Failure::Broken(_)) => unavailable(&failure.to_string()),
        Err(failure) => unavailable(&format!("error dialing backend: {failure}")),
    }
}
