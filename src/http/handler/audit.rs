//! Auditing of one request. An event is begun once user and request are known, filled along the way (`trail`), and written at the
//! stages RequestReceived, ResponseStarted and ResponseComplete. Without an audit policy none of this exists.

mod trail;

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::identity::Identity;

use crate::api::audit::event::Event;
use crate::api::audit::policy::Policy;
use crate::api::audit::{Level, Stage};
use crate::api::path::Request;
use crate::api::query::{self, Query};
use crate::audit_backends::AuditBackends;
use crate::http::switch::Switch;

pub use self::trail::Trail;
use super::render::{Context, plain};
use super::worker::Worker;

/// The audit policy and its backends.
pub struct Audit {
    /// Decides which requests are audited at which level.
    pub policy: Policy,
    /// Writes the events.
    pub ledger: Arc<AuditBackends>,
}

/// Begins auditing a request and writes RequestReceived. Answers an error response if a blocking backend fails to write it.
pub async fn open(
    worker: &Worker,
    request: &HttpRequest,
    context: &Context,
    user: &Arc<Identity>,
    parsed: &Request<'_>,
) -> Option<HttpResponse> {
    let audit = worker.shared.audit.as_ref()?;
    let trail = begin(worker, audit, (request, context), Some(user), parsed)?;
    trail.note(request, context);
    if trail.write(trail.event(Stage::RequestReceived), trail.ledger.room()).await {
        return None;
    }
    trail.ledger.counts().refused();
    trail.is_over.set(true);
    let uri = crate::api::field::quoted(&trail.head.uri);
    Some(plain(500, format!("Internal Server Error: {uri}: failed to store audit event\n")))
}

/// Applies the policy to a request; `None` if it is not audited.
fn begin(
    worker: &Worker,
    audit: &Audit,
    (request, context): (&HttpRequest, &Context),
    user: Option<&Arc<Identity>>,
    parsed: &Request<'_>,
) -> Option<Rc<Trail>> {
    let decision = audit.policy.decide(user.map(AsRef::as_ref), parsed);
    audit.ledger.counts().decided(decision.level);
    let made = decision.level > Level::None;
    let trail = made.then(|| {
        context.warnings.received.want(decision.level, decision.drops_owners);
        Rc::new(Trail::new((worker, audit), (request, context), user, (parsed, decision)))
    });
    // Set only once: either authentication fails, or the request begins.
    let _ = context.trail.set(trail.clone());
    trail
}

/// Requests that fail authentication are audited, too.
pub fn refused(worker: &Worker, request: &HttpRequest, context: &Context) {
    let Some(audit) = worker.shared.audit.as_ref().filter(|_| context.trail.get().is_none()) else { return };
    let query = Query::parse(request.query_string());
    let Ok(path) = query::decode_path(request.uri().path()) else { return };
    if let Ok(parsed) = Request::parse(request.method().as_str(), &path, &query) {
        begin(worker, audit, (request, context), None, &parsed);
    }
}

/// Writes ResponseStarted and ResponseComplete, the latter when the body ends.
pub async fn close(request: &HttpRequest, context: &Context, response: HttpResponse) -> HttpResponse {
    let Some(trail) = context.trail() else { return response };
    trail.answered(request, context, response.status().as_u16());
    if trail.is_refused {
        if !trail.is_over.replace(true) {
            let response = trail.response();
            let event = Event { response, ..trail.event(Stage::ResponseStarted) };
            trail.write(event, trail.ledger.room()).await;
        }
        return response;
    }
    if trail.is_over.get() {
        return response;
    }
    let started = trail
        .is_long_running
        .then(|| Event { response: trail.so_far(), ..trail.event(Stage::ResponseStarted) });
    if response.status().as_u16() == 101
        && let Some(switch) = request.conn_data::<Switch>()
    {
        let (kept, started) = (trail.clone(), started.clone());
        let around = move |conversation: LocalBoxFuture<'static, ()>| {
            let whole = async move {
                if let Some(started) = started {
                    kept.write(started, kept.ledger.room()).await;
                }
                conversation.await;
                kept.end().await;
            };
            whole.boxed_local()
        };
        if switch.surround(Box::new(around)) {
            return response;
        }
    }
    if let Some(started) = started {
        trail.write(started, trail.ledger.room()).await;
    }
    if matches!(response.body().size(), BodySize::Stream) {
        let trail = trail.clone();
        return response.map_body(|_, body| BoxBody::new(Recorded { body, trail, ending: None }));
    }
    trail.end().await;
    response
}

/// The body of a long-running response; its end is audited.
struct Recorded {
    body: BoxBody,
    trail: Rc<Trail>,
    ending: Option<LocalBoxFuture<'static, ()>>,
}

impl MessageBody for Recorded {
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
