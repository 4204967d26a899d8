//! Auditing of a client's request. Its trail (`audit/trail.rs`) begins once user and request are known, is filled along the way,
//! and is written at the stages RequestReceived, ResponseStarted and ResponseComplete. Without an audit policy none of this exists.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::http::header;
use actix_web::{HttpMessage as _, HttpRequest, HttpResponse};
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_api::audit::Stage;
use pilothouse_api::audit::event::{Event, EventMetadata};
use pilothouse_api::audit::sources::sources;
use pilothouse_api::path::Request;
use pilothouse_apimachinery::query::{self, Query};
use pilothouse_types::identity::Identity;

use crate::audit::{AuditedRequest, Trail, truncate_user_agent};
use crate::http::peer::Peer;
use crate::http::switch::Switch;
use crate::registry::authorization::AuthorizationRecord;

use super::filters::Annotations;
use super::render::{Context, plain};
use super::worker::Worker;

/// Begins auditing a request and writes RequestReceived. Returns an error response if a blocking backend fails to write it.
pub async fn open(
    worker: &Worker,
    request: &HttpRequest,
    context: &Context,
    user: &Arc<Identity>,
    parsed: &Request<'_>,
) -> Option<HttpResponse> {
    let trail = begin(worker, request, context, Some(user), parsed)?;
    annotate(&trail, request, context);
    if trail.receive().await {
        return None;
    }
    let uri = pilothouse_apimachinery::field::quoted(&trail.head.uri);
    Some(plain(500, format!("Internal Server Error: {uri}: failed to store audit event\n")))
}

/// Applies the policy to a request; `None` if it is not audited.
fn begin(
    worker: &Worker,
    request: &HttpRequest,
    context: &Context,
    user: Option<&Arc<Identity>>,
    parsed: &Request<'_>,
) -> Option<Rc<Trail>> {
    let (audit, backend) = (worker.shared.audit.as_ref()?, &worker.backend);
    let trail = audit.decide(user.map(AsRef::as_ref), parsed).map(|decision| {
        context.warnings.audit_body.enable(decision.level, decision.omits_managed_fields);
        let head = EventMetadata {
            level: decision.level,
            verb: parsed.verb.as_str(),
            user: user.cloned(),
            ..metadata(request, context)
        };
        Rc::new(Trail::new(AuditedRequest {
            audit,
            clock: &backend.clock,
            registry: &backend.objects.registry,
            head,
            request: parsed,
            decision,
        }))
    });
    // Set only once: either authentication fails, or the request begins.
    let _ = context.trail.set(trail.clone());
    trail
}

/// The metadata of a request for its audit events.
fn metadata(request: &HttpRequest, context: &Context) -> EventMetadata {
    let headers = request.headers();
    let peer = request.extensions().get::<Peer>().and_then(|peer| peer.address);
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let agent = headers.get(header::USER_AGENT).map(|agent| agent.as_bytes()).unwrap_or_default();
    let uri = request.uri();
    EventMetadata {
        id: context.audit_id().to_str().unwrap_or_default().to_owned(),
        uri: uri.path_and_query().map_or_else(|| uri.path().to_owned(), ToString::to_string),
        sources: sources(header("x-forwarded-for"), header("x-real-ip"), peer.map(|address| address.ip())),
        agent: truncate_user_agent(agent),
        received: context.began,
        ..EventMetadata::default()
    }
}

/// Takes over the annotations of authentication, authorization and verbs.
fn annotate(trail: &Trail, request: &HttpRequest, context: &Context) {
    let extensions = request.extensions();
    if let Some(Annotations(all)) = extensions.get::<Annotations>() {
        all.iter().for_each(|(key, text)| trail.annotate(key, text.clone()));
    }
    if let Some(record) = extensions.get::<AuthorizationRecord>() {
        record.annotate(trail);
    }
    trail.add_annotations(context.warnings.annotations());
}

/// Requests that fail authentication are audited, too.
pub fn begin_unauthenticated(worker: &Worker, request: &HttpRequest, context: &Context) {
    if worker.shared.audit.is_none() || context.trail.get().is_some() {
        return;
    }
    let query = Query::parse(request.query_string());
    let Ok(path) = query::decode_path(request.uri().path()) else { return };
    if let Ok(parsed) = Request::parse(request.method().as_str(), &path, &query) {
        begin(worker, request, context, None, &parsed);
    }
}

/// Writes ResponseStarted and ResponseComplete, the latter when the body ends.
pub async fn finish(request: &HttpRequest, context: &Context, response: HttpResponse) -> HttpResponse {
    let Some(trail) = context.trail() else { return response };
    annotate(trail, request, context);
    context.warnings.record(trail, response.status().as_u16());
    if trail.is_refused {
        if !trail.is_finished.replace(true) {
            let response = trail.response();
            let event = Event { response, ..trail.event(Stage::ResponseStarted) };
            trail.write(event, trail.backends.empty_reservation()).await;
        }
        return response;
    }
    if trail.is_finished.get() {
        return response;
    }
    let started = trail
        .is_long_running
        .then(|| Event { response: trail.recorded_response(), ..trail.event(Stage::ResponseStarted) });
    if response.status().as_u16() == 101
        && let Some(switch) = request.conn_data::<Switch>()
    {
        let (own_trail, started) = (trail.clone(), started.clone());
        let wrap = move |conversation: LocalBoxFuture<'static, ()>| {
            let audited = async move {
                if let Some(started) = started {
                    own_trail.write(started, own_trail.backends.empty_reservation()).await;
                }
                conversation.await;
                own_trail.end().await;
            };
            audited.boxed_local()
        };
        if switch.wrap_upgrade(Box::new(wrap)) {
            return response;
        }
    }
    if let Some(started) = started {
        trail.write(started, trail.backends.empty_reservation()).await;
    }
    if matches!(response.body().size(), BodySize::Stream) {
        let trail = trail.clone();
        return response.map_body(|_, body| BoxBody::new(AuditedBody { body, trail, ending: None }));
    }
    trail.end().await;
    response
}

/// The body of a long-running response; its end is audited.
struct AuditedBody {
    body: BoxBody,
    trail: Rc<Trail>,
    ending: Option<LocalBoxFuture<'static, ()>>,
}

impl MessageBody for AuditedBody {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let this = &mut *self;
        if this.ending.is_none() {
            match Pin::new(&mut this.body).poll_next(context) {
                Poll::Ready(None) => {
                    let trail = this.trail.clone();
                    this.ending = Some(async move { trail.end().await }.boxed_local());
                }
                Poll::Ready(Some(piece)) => return Poll::Ready(Some(piece)),
                Poll::Pending => return Poll::Pending,
            }
        }
        match &mut this.ending {
            Some(ending) => ending.as_mut().poll(context).map(|()| None),
            None => Poll::Ready(None),
        }
    }
}
