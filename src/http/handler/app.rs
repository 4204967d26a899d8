//! The application behind the listeners: one handler takes every request through the same filter chain.
//!
//! Authenticate, parse, audit, impersonate, queue (priority and fairness), authorize, pass on or route, respond. The order is
//! the reference's, because it decides which of several errors a client sees.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::{ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::http::{ConnectionType, Method, header};
use actix_web::web::{self, Payload};
use actix_web::{App, Error, HttpRequest, HttpResponse};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::fair_queuing::level::Rejection;
use pilothouse_actors::permit::Permit;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::path::{Request, Target};
use pilothouse_apimachinery::query::{self, Query};
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::verb::Verb;
use pilothouse_types::identity::Identity;

use crate::flowcontrol::{RequestInfo, RequestLimiter};
use crate::metrics::requests::{Filter, RequestOptions};

use super::connect::forward::ForwardedRequest;
use super::connect::other_servers;
use super::metered_body::RequestInProgress;
use super::render::{self, Context, PLAIN_TEXT};
use super::resource::{self, ResourceRequest};
use super::worker::Worker;
use super::{
    actors, audit, backup, cors, deadline, debug_flags, documents, established, filters, health, logs,
    metrics, openapi, profiling,
};

/// Media type prefix of server-side apply patches.
const APPLY_PATCH: &str = "application/apply-patch+";

/// The handler and the state of its worker as an actix-web application.
pub fn application(
    worker: Rc<Worker>,
) -> App<
    impl ServiceFactory<ServiceRequest, Config = (), Response = ServiceResponse, Error = Error, InitError = ()>,
> {
    App::new().app_data(worker).default_service(web::to(handle))
}

/// Boxed, because the services around a handler move its future, which has a size of many kilobytes.
fn handle(request: HttpRequest, payload: Payload) -> LocalBoxFuture<'static, HttpResponse> {
    respond(request, payload).boxed_local()
}

async fn respond(request: HttpRequest, payload: Payload) -> HttpResponse {
    let Some(worker) = request.app_data::<Rc<Worker>>().cloned() else {
        return HttpResponse::InternalServerError().finish();
    };
    let context = Context::new(&request, &worker);
    let in_progress = RequestInProgress::begin(&worker);
    let shutdown = worker.shared.shutdown.as_ref();
    if let Some(refusal) = shutdown.and_then(|shutdown| shutdown.refusal(&request, &context)) {
        return refusal;
    }
    if let Some(answer) = cors::answer(&request, &context) {
        return answer;
    }
    let sample = &in_progress.sample;
    let result = match deadline::limit(worker.shared.limits.request_timeout, &request) {
        Ok(limit) => {
            let handling = pin!(serve(&worker, &request, payload, &context, &in_progress, limit));
            deadline::within(limit, sample, handling).await
        }
        Err(status) => Err(status),
    };
    let webhook_time = context.warnings.webhook_time();
    if !webhook_time.is_zero() {
        sample.exclude(webhook_time);
    }
    let mut response = match result {
        Ok(response) => context.finish(response),
        Err(status) => {
            audit::begin_unauthenticated(&worker, &request, &context);
            context.finish(render::error(&context, &status))
        }
    };
    response = audit::finish(&request, &context, response).await;
    if filters::closes_connection(&worker, &request) {
        response.head_mut().set_connection_type(ConnectionType::Close);
    }
    in_progress.answer(response)
}

/// What metrics say of a request beside its verb and resource.
fn options(request: &HttpRequest, query: &Query) -> RequestOptions {
    let is_apply = render::text(request.headers(), header::CONTENT_TYPE).starts_with(APPLY_PATCH);
    RequestOptions { dry_run: query.get("dryRun") == Some("All"), is_apply }
}

/// Takes a request through the filters, in the reference's order, and then to what serves it.
async fn serve(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    payload: Payload,
    context: &Context,
    in_progress: &RequestInProgress,
    limit: Duration,
) -> Result<HttpResponse> {
    let RequestInProgress { sample, trace, .. } = in_progress;
    let chain = FilterChain { worker, request, context, in_progress, limit };
    let caller = chain.authenticate().await?;
    let path = query::decode_path(request.uri().path());
    let query = Query::parse(request.query_string());
    let parse = |path| Request::parse(request.method().as_str(), path, &query);
    let parsed = path.as_ref().map_err(Clone::clone).and_then(|path| parse(path));
    trace.begin(worker, request, (context, sample.began()), &caller, parsed.as_ref().ok());
    if let Ok(parsed) = &parsed
        && let Some(refusal) = chain.open_audit(&caller, parsed).await
    {
        return Ok(refusal);
    }
    let user = chain.impersonate(caller).await?;
    let (parsed, path) = (parsed?, path.as_deref().unwrap_or_default());
    let resource =
        parsed.resource().and_then(|path_info| worker.served().catalog.resource_at(path_info).cloned());
    sample.note(&parsed, resource.as_ref(), options(request, &query));
    let info =
        RequestInfo { user: &user, path, request: &parsed, resource: resource.as_deref(), query: &query };
    let permit = match chain.wait_for_turn(&info).await {
        Ok(permit) => permit.traced(trace.trace().clone()),
        Err(refusal) => return Ok(render::too_many_requests(refusal.retry_after)),
    };
    chain.authorize(&info).await?;
    chain
        .dispatch(payload, Admitted { path, parsed: &parsed, query: &query, user: &user, permit }, resource)
        .await
}

/// The filters of one request.
struct FilterChain<'a> {
    worker: &'a Rc<Worker>,
    request: &'a HttpRequest,
    context: &'a Context,
    in_progress: &'a RequestInProgress,
    /// How long the request may take.
    limit: Duration,
}

/// A request that has passed all filters.
struct Admitted<'a> {
    path: &'a str,
    parsed: &'a Request<'a>,
    query: &'a Query<'a>,
    user: &'a Arc<Identity>,
    permit: Permit,
}

impl FilterChain<'_> {
    async fn authenticate(&self) -> Result<Arc<Identity>> {
        let authentication = filters::authenticate(self.worker, self.request, &self.context.warnings);
        self.pass(Filter::Authentication, authentication).await
    }

    /// Begins the audit of the request. Returns the refusal if it cannot be audited.
    async fn open_audit(&self, caller: &Arc<Identity>, parsed: &Request<'_>) -> Option<HttpResponse> {
        let opening = audit::open(self.worker, self.request, self.context, caller, parsed);
        self.pass(Filter::Audit, opening).await
    }

    /// The user as whom the caller acts.
    async fn impersonate(&self, caller: Arc<Identity>) -> Result<Arc<Identity>> {
        let impersonation = impersonate(self.worker, self.request, self.context, caller);
        self.pass(Filter::Impersonation, impersonation).await
    }

    /// Waits in the queue of the request.
    async fn wait_for_turn(&self, info: &RequestInfo<'_>) -> std::result::Result<Permit, Rejection> {
        let (clock, sample) = (&self.worker.backend.clock, &self.in_progress.sample);
        let began = clock.moment();
        let admission = filters::admit_to_queue(self.worker, info, self.context, self.limit);
        let admitted = self.pass(Filter::Queue, admission).await;
        sample.exclude(clock.elapsed(began));
        admitted.inspect_err(|_| sample.terminate())
    }

    async fn authorize(&self, info: &RequestInfo<'_>) -> Result<()> {
        let authorization =
            filters::authorize(self.worker, self.request, info.user, info.request, info.query);
        let authorized = self.pass(Filter::Authorization, authorization).await;
        authorized.inspect_err(|_| self.in_progress.sample.forget())
    }

    /// Passes a filter, and counts how long that took.
    async fn pass<T>(&self, filter: Filter, passing: impl Future<Output = T>) -> T {
        let clock = &self.worker.backend.clock;
        let began = clock.moment();
        let result = passing.await;
        let took = clock.elapsed(began);
        self.worker.shared.metrics.requests.note_filter(filter, took);
        self.in_progress.trace.note(filter.label(), began, took);
        result
    }

    /// Has an admitted request served: by another server, or here. What few requests need has a boxed future, so that it does not add
    /// to the size of the others.
    async fn dispatch(
        &self,
        payload: Payload,
        admitted: Admitted<'_>,
        resource: Option<Arc<Resource>>,
    ) -> Result<HttpResponse> {
        let FilterChain { worker, request, context, in_progress: RequestInProgress { sample, .. }, limit } =
            *self;
        let Admitted { path, parsed, query, user, permit } = admitted;
        let resource = match resource {
            None => Box::pin(established::find_once_served(worker, parsed, &permit)).await?,
            found => found,
        };
        if let Some(server) = other_servers::route(worker, request, parsed, path, resource.as_ref()).await? {
            let is_watch = parsed.verb == Verb::Watch;
            let (user, audit_id, permit) = (&**user, context.audit_id(), &permit);
            let forwarded = ForwardedRequest { path, user, is_watch, audit_id, permit };
            return Box::pin(other_servers::pass(worker, request, payload, server, &forwarded)).await;
        }
        match &parsed.target {
            Target::NonResource(path) => {
                Box::pin(serve_path(worker, request, payload, context, path, query)).await
            }
            // No handler is registered for such a path, though authorization parses it as a resource.
            Target::Resource(_) if path.starts_with("//") => Ok(render::page_not_found()),
            Target::Resource(path_info) => {
                let resource_request = ResourceRequest {
                    worker,
                    http: request,
                    context,
                    path_info,
                    verb: parsed.verb,
                    path,
                    query,
                    user,
                    permit,
                    deadline: sample.began().plus(limit),
                    sample,
                };
                resource::serve(resource_request, resource, payload).await
            }
        }
    }
}

/// The user as whom the caller acts, which the audit log names, too.
async fn impersonate(
    worker: &Worker,
    request: &HttpRequest,
    context: &Context,
    caller: Arc<Identity>,
) -> Result<Arc<Identity>> {
    let original = context.trail().map(|_| Arc::clone(&caller));
    let identity = filters::impersonate(worker, request, caller).await?;
    if let (Some(trail), Some(original)) = (context.trail(), original)
        && !Arc::ptr_eq(&identity, &original)
    {
        trail.set_impersonated(&identity);
    }
    Ok(identity)
}

/// Serves a path that is not a resource.
async fn serve_path(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    payload: Payload,
    context: &Context,
    path: &str,
    query: &Query<'_>,
) -> Result<HttpResponse> {
    match path {
        "/metrics" => return metrics::page(worker, context).await,
        "/metrics/slis" => return Ok(metrics::slis(worker)),
        backup::PATH if request.method() == Method::GET => {
            return backup::respond(&worker.shared.backups, &worker.backend.clock);
        }
        _ => {}
    }
    if worker.shared.debug.profiling {
        if debug_flags::is_flag(path) {
            return Ok(debug_flags::respond(request, payload, path).await);
        }
        if path == actors::PATH {
            return Ok(actors::respond(worker, &context.accept).await);
        }
        if let Some(page) = profiling::page(path) {
            return Ok(profiling::respond(&worker.shared.debug.profiles, page, query).await);
        }
    }
    let (pages, now) = (&worker.shared.debug.pages, worker.backend.clock.now());
    if let Some(response) = pages.respond(path, &context.accept, &worker.shared.documents.release, now) {
        return Ok(response);
    }
    if let RequestLimiter::Fair(flow_controller) = &worker.shared.limits.limiter
        && let Some(table) = flow_controller.dump(path, query)
    {
        return Ok(HttpResponse::Ok().content_type(PLAIN_TEXT).body(table));
    }
    if let Some(response) = health::respond(worker, path, query).await {
        return Ok(response);
    }
    if let Some(result) = logs::respond(worker, request, context, path).await {
        return result;
    }
    if let Some(response) = openapi::respond(worker, request, path, context).await {
        return Ok(response);
    }
    documents::respond(worker, request, path, context).await
}
