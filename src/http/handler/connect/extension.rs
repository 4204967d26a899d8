//! Requests for versions that other servers serve. Who asks was found out here, and whether they may; the other server is told whom
//! it is asked for and does the rest. What goes wrong on the way is told in plain text, as clients of such groups know it.

use std::rc::Rc;
use std::sync::Arc;

use actix_web::http::header::HeaderValue as Value;
use actix_web::web::Payload;
use actix_web::{HttpMessage as _, HttpRequest, HttpResponse};
use futures::StreamExt as _;
use hyper::Method;
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue, LOCATION};
use pilothouse_actors::identity::Identity;
use pilothouse_actors::permit::Permit;
use tokio::time::timeout;

use crate::api::aggregation::{Registration, Service, version_at};
use crate::api::catalog::resource::Resource;
use crate::api::connect::{Destination, url};
use crate::api::path::{Request, Target};
use crate::api::status::Status;
use crate::http::body::Patience;
use crate::limits::EXTENSION_DISCOVERY;
use crate::upstream::{Answer, Ask, Failure, RequestBody, Switched};
use crate::verbs::aggregation::identity_headers;

use super::super::worker::Worker;
use super::super::{openapi, render};
use super::{headers, proxy, talk};

/// Where OpenAPI documents stand.
const OPENAPI: &str = "/openapi/v3/";
/// What other servers may not say to browsers in the name of this one.
const CORS: [&str; 4] = [
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
];

/// How extension servers are dealt with.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// Whether an answer that leads the client elsewhere is refused.
    pub refuses_redirects: bool,
    /// Whether they are told the uid of whoever asks.
    pub tells_uid: bool,
}

/// A request for an extension server.
pub struct Passed<'a> {
    /// What is registered.
    pub registration: Arc<Registration>,
    /// The path, without escapes.
    pub path: &'a str,
    /// Who asks.
    pub user: &'a Identity,
    /// Whether it asks for events as they come.
    pub is_watch: bool,
    /// By which records know the request.
    pub audit_id: &'a Value,
    /// The place among the requests in flight.
    pub permit: &'a Permit,
}

/// Who serves what a request is for, if that is somebody else. Costs nothing where a resource that is built in was found.
pub async fn route(
    worker: &Worker,
    request: &Request<'_>,
    path: &str,
    known: Option<&Arc<Resource>>,
) -> Option<Arc<Registration>> {
    if known.is_some_and(|resource| resource.custom.is_none()) {
        return None;
    }
    let extensions = &worker.shared.extensions;
    let (group, version) = match &request.target {
        Target::Resource(found) if path.starts_with("/apis/") => (found.group, found.version),
        Target::Resource(_) => return None,
        Target::NonResource(path) => match path.strip_prefix(OPENAPI) {
            Some(document) if !openapi::has_own(worker, document) => {
                return extensions.describes(document).await;
            }
            Some(_) => return None,
            None => version_at(path)?,
        },
    };
    if is_builtin(worker, group, version) {
        return None;
    }
    extensions.find(group, version).await
}

/// What is built in cannot be covered.
fn is_builtin(worker: &Worker, group: &str, version: &str) -> bool {
    let served = worker.served();
    let version = served.catalog.group(group).and_then(|group| group.version(version));
    version.is_some_and(|version| version.resources.iter().any(|resource| resource.custom.is_none()))
}

/// Passes a request on.
pub async fn pass(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    payload: Payload,
    passed: &Passed<'_>,
) -> HttpResponse {
    let Some(service) = passed.registration.service.as_ref().filter(|_| passed.registration.is_available)
    else {
        return unavailable("service unavailable");
    };
    let to = match resolve(worker, service, request, passed).await {
        Ok(to) => to,
        Err(why) => {
            tracing::debug!(name = passed.registration.name, why, "a service cannot be found");
            return unavailable("service unavailable");
        }
    };
    if let Some(patience) = request.extensions().get::<Patience>() {
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
    passed: &Passed<'_>,
) -> Result<Destination, String> {
    let asked = (passed.path, request.query_string());
    let to = worker.shared.extensions.resolve((&worker.backend, passed.permit), service, asked).await?;
    Ok(Destination { asker: passed.user.name.clone(), ..to })
}

/// 503 in plain text.
fn unavailable(why: &str) -> HttpResponse {
    render::plain(503, format!("{why}\n"))
}

/// Adds what the other server is told of the client, and of how the request came. What clients said of themselves was left out.
/// The error is about somebody whom it cannot be told of.
fn tell(
    worker: &Worker,
    headers: &mut HeaderMap,
    to: &Destination,
    passed: &Passed<'_>,
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
    passed: &Passed<'_>,
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
    let ask = Ask { method: method(request), headers, body: proxy::body(request, payload) };
    let asking = worker.shared.extensions.upstream().ask(to, ask);
    let answer = match version_at(passed.path) {
        // What there is at all is asked for by everybody who looks around: nobody shall wait for long.
        Some(_) => match timeout(EXTENSION_DISCOVERY, asking).await {
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

fn back(worker: &Worker, request: &HttpRequest, mut answer: Answer, is_watch: bool) -> HttpResponse {
    let leads_on = answer.status.is_redirection() && answer.headers.contains_key(LOCATION);
    if leads_on && worker.shared.manners.refuses_redirects {
        let why = "the backend attempted to redirect this request, which is not permitted";
        return HttpResponse::BadGateway().content_type(render::PLAIN_TEXT).body(why);
    }
    CORS.iter().for_each(|name| drop(answer.headers.remove(*name)));
    if is_watch && answer.body.length().is_none() {
        // It has no end of its own: a server that stops ends it, as it ends its own.
        let leaving = worker.shared.connecting.leaving.clone();
        let body = answer.body.take_until(async move { leaving.begun().await });
        return proxy::head(answer.status.as_u16(), &answer.headers).streaming(body);
    }
    proxy::whole(request, answer)
}

/// Both ends agree to speak something else.
async fn switch(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    to: &Destination,
    passed: &Passed<'_>,
) -> HttpResponse {
    let switch = match talk::switch(request) {
        Ok(switch) => switch,
        Err(status) => return unavailable(&status.message),
    };
    let mut headers = headers::to_switch(request);
    if let Err(why) = tell(worker, &mut headers, to, passed) {
        return unavailable(&format!("error dialing backend: {why}"));
    }
    let ask = Ask { method: method(request), headers, body: RequestBody::Empty };
    match worker.shared.extensions.upstream().switch(to, ask).await {
        Ok(Switched::Channel(channel)) => talk::hand_over(&switch, channel),
        Ok(Switched::Answer(answer)) => {
            let refused: Result<HttpResponse, Box<Status>> = talk::refused(request, answer);
            refused.unwrap_or_else(|status| unavailable(&status.message))
        }
        Err(failure @ Failure::Broken(_)) => unavailable(&failure.to_string()),
        Err(failure) => unavailable(&format!("error dialing backend: {failure}")),
    }
}
