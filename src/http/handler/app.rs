//! The application behind the listeners: one handler takes every request through the same chain.
//!
//! Parse, authenticate, queue, authorize, route, answer. The order is the reference's, because it decides which of several errors
//! a client sees.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::{ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::http::{ConnectionType, header};
use actix_web::web::{self, Payload};
use actix_web::{App, Error, HttpRequest, HttpResponse};
use pilothouse_actors::clock::Timestamp;
use pilothouse_actors::identity::Identity;
use pilothouse_actors::permit::Permit;

use crate::api::catalog::resource::Resource;
use crate::api::connect::ConnectSubresource;
use crate::api::managed_fields::ConvertedVersions;
use crate::api::media::{self, Negotiated};
use crate::api::options::ListOptions;
use crate::api::path::{Request, ResourcePath, Target};
use crate::api::query::{self, Query};
use crate::api::response_format::{self, ResponseFormat, ResponseScope};
use crate::api::routes;
use crate::api::status::{Result, Status};
use crate::api::subresources;
use crate::api::verb::Verb;
use crate::backend::{Call, Origin, Warnings};
use crate::flowcontrol::{RequestInfo, RequestLimiter};
use crate::http::websocket::Upgrade;
use crate::metrics::requests::{NotedOptions, Sample};
use crate::verbs::component_status::StatusRequest;
use crate::verbs::{self, Reply, VerbResult};

use super::body::Body;
use super::connect::ConnectInput;
use super::connect::aggregated::{self, AggregatedRequest};
use super::render::{self, Context, PLAIN_TEXT};
use super::worker::Worker;
use super::{audit, body, connect, deadline, debug_flags, documents, filters, health, metrics, openapi};

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

async fn handle(request: HttpRequest, payload: Payload) -> HttpResponse {
    let Some(worker) = request.app_data::<Rc<Worker>>().cloned() else {
        return HttpResponse::InternalServerError().finish();
    };
    let context = Context::of(&request, &worker);
    let sample = Sample::begin(worker.backend.clock.moment());
    let answered = match deadline::limit(worker.shared.request_timeout, &request) {
        Ok(limit) => {
            let serving = serve(&worker, &request, payload, &context, &sample, limit);
            deadline::within(limit, &sample, serving).await
        }
        Err(status) => Err(status),
    };
    let mut response = match answered {
        Ok(response) => context.finish(response),
        Err(status) => {
            audit::refused(&worker, &request, &context);
            context.finish(render::error(&context, &status))
        }
    };
    response = audit::close(&request, &context, response).await;
    if filters::closes_connection(&worker, &request) {
        response.head_mut().set_connection_type(ConnectionType::Close);
    }
    worker.meter.end(sample, worker.backend.clock.moment(), response.status().as_u16());
    response
}

async fn serve(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    payload: Payload,
    context: &Context,
    sample: &Sample,
    limit: Duration,
) -> Result<HttpResponse> {
    let caller = filters::authenticate(worker, request, &context.warnings).await?;
    let path = query::decode_path(request.uri().path());
    let query = Query::parse(request.query_string());
    let parse = |path| Request::parse(request.method().as_str(), path, &query);
    let parsed = path.as_ref().map_err(Clone::clone).and_then(|path| parse(path));
    if let Ok(parsed) = &parsed
        && let Some(refusal) = audit::open(worker, request, context, &caller, parsed).await
    {
        return Ok(refusal);
    }
    let original = context.trail().map(|_| caller.clone());
    let identity = filters::impersonate(worker, request, caller).await?;
    if let (Some(trail), Some(original)) = (context.trail(), original)
        && !Arc::ptr_eq(&identity, &original)
    {
        trail.acts_as(&identity);
    }
    let (parsed, path) = (parsed?, path.as_deref().unwrap_or_default());
    let known = parsed.resource().and_then(|found| worker.served().catalog.at(found).cloned());
    let applies = render::text(request.headers(), header::CONTENT_TYPE).starts_with(APPLY_PATCH);
    let options = NotedOptions { dry_run: query.get("dryRun") == Some("All"), applies };
    sample.note(&parsed, known.as_ref(), options);
    let info =
        RequestInfo { user: &identity, path, request: &parsed, resource: known.as_deref(), query: &query };
    let permit = match filters::admit_to_queue(worker, &info, context, limit).await {
        Ok(permit) => permit,
        Err(refused) => return Ok(render::too_many_requests(refused.seconds)),
    };
    let authorized = filters::authorize(worker, request, &identity, &parsed, &query).await;
    authorized.inspect_err(|_| sample.forget())?;
    if let Some(registration) = aggregated::route(worker, &parsed, path, known.as_ref()).await {
        let (user, audit_id, permit) = (&*identity, context.audit_id(), &permit);
        let is_watch = parsed.verb == Verb::Watch;
        let passed = AggregatedRequest { registration, path, user, is_watch, audit_id, permit };
        return Ok(aggregated::pass(worker, request, payload, &passed).await);
    }
    match &parsed.target {
        Target::NonResource(path) => serve_path(worker, request, payload, context, path, &query).await,
        // Nothing is mounted there, though authorization knows what it would be about.
        Target::Resource(_) if path.starts_with("//") => Ok(render::page_not_found()),
        Target::Resource(found) => {
            let resource_request =
                ResourceRequest { found, verb: parsed.verb, path, query: &query, user: &identity };
            serve_resource(worker, (request, payload), context, (resource_request, known), permit).await
        }
    }
}

/// Answers a path that is no resource.
async fn serve_path(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    payload: Payload,
    context: &Context,
    path: &str,
    query: &Query<'_>,
) -> Result<HttpResponse> {
    match path {
        "/metrics" => return Ok(metrics::page(worker).await),
        "/metrics/slis" => return Ok(metrics::slis(worker)),
        _ => {}
    }
    if worker.shared.changes_flags && debug_flags::is_flag(path) {
        return Ok(debug_flags::answer(request, payload, path).await);
    }
    if let RequestLimiter::Fair(gate) = &worker.shared.room
        && let Some(table) = gate.dump(path, query)
    {
        return Ok(HttpResponse::Ok().content_type(PLAIN_TEXT).body(table));
    }
    if let Some(response) = health::answer(worker, path, query).await {
        return Ok(response);
    }
    if let Some(response) = openapi::answer(worker, request, path, context).await {
        return Ok(response);
    }
    documents::answer(worker, request, path, context).await
}

/// A request for a resource, and who sends it.
struct ResourceRequest<'a> {
    found: &'a ResourcePath<'a>,
    verb: Verb,
    path: &'a str,
    query: &'a Query<'a>,
    user: &'a Arc<Identity>,
}

async fn serve_resource(
    worker: &Rc<Worker>,
    (request, payload): (&HttpRequest, Payload),
    context: &Context,
    (asked, known): (ResourceRequest<'_>, Option<Arc<Resource>>),
    permit: Permit,
) -> Result<HttpResponse> {
    let ResourceRequest { found, path, query, user, .. } = asked;
    let Some(resource) = routes::find(&worker.served().catalog, known, found, asked.verb)? else {
        return Ok(render::page_not_found());
    };
    routes::check_named(&resource, found, request.method().as_str())?;
    let warnings = &context.warnings;
    if let Some(way) = ConnectSubresource::of(&resource, found.subresource).filter(|_| !found.legacy_watch) {
        context.arrive();
        let offer = context.offer();
        let out = ConnectInput { way, resource: &resource, found, path, query, user, warnings, offer };
        return connect::serve(worker, request, payload, &out).await;
    }
    let is_custom = resource.custom.is_some();
    let offer = || if is_custom { context.offer().custom() } else { context.offer() };
    let content_type = render::text(request.headers(), header::CONTENT_TYPE);
    let length = render::text(request.headers(), header::CONTENT_LENGTH);
    let allowed = routes::allowed_verb(&resource, found, asked.verb, request.method().as_str());
    let verb = allowed.or_else(|refused| {
        // The type of a patch of a custom resource is checked even before its name.
        if is_custom && asked.verb == Verb::Patch {
            context.arrive();
            media::of_patch(content_type, length, offer())?;
        }
        Err(refused)
    })?;
    context.arrive();
    let offer = offer();
    if !is_custom {
        if verb == Verb::Patch {
            media::of_patch(content_type, length, offer)?;
        }
        response_format::routed(&context.accept, offer, verb)?;
    }
    resource.deprecation().into_iter().for_each(|warning| warnings.add(warning));
    context.trail().into_iter().for_each(|trail| trail.deprecated(&resource));
    // Resources that are not stored (reviews) cannot be shown as a table.
    let kept = !found.subresource.is_empty() || resource.verbs.contains(Verb::Get);
    let rows = kept && (verb != Verb::Watch || !streams_list(worker, query));
    let has_table = rows && subresources::has_table(found.group, found.subresource);
    let agreed = response_format::agree(&context.accept, offer, verb, has_table).or_else(|refused| {
        check_list_options(worker, verb, query)?;
        Err(refused)
    })?;
    let form = asked_form(worker, &agreed, verb, (&resource, found.subresource), query);
    let (form, misfit) = response_format::misfit(form, verb, agreed.encoding)?;
    let socket = if verb == Verb::Watch { Upgrade::asked(request)? } else { None };
    let (body, payload) = match &socket {
        Some(_) => (Body::default(), Some(payload)),
        None => (body::read(request, payload, verb, offer).await?, None),
    };
    let agent = request.headers().get(header::USER_AGENT);
    let user_agent = agent.map(|agent| String::from_utf8_lossy(agent.as_bytes())).unwrap_or_default();
    let user_agent = &*user_agent;
    let limit = deadline::limit(worker.shared.request_timeout, request)?;
    let ends = context.began.plus(limit);
    let part = Part { found, query, body, form, warnings, identity: user, user_agent, permit, ends };
    let answer = dispatch(worker, verb, &resource, part).await?;
    let answer = match (misfit, answer) {
        (Some(misfit), Reply::Object(..) | Reply::List(_)) => return Err(misfit),
        (Some(_), Reply::Watch(feed)) => Reply::Watch(feed.mute()),
        (_, answer) => answer,
    };
    match (answer, socket, payload) {
        (Reply::Watch(feed), Some(socket), Some(payload)) => {
            Ok(socket.answer(feed, payload, agreed.encoding))
        }
        (answer, ..) => render::answer(context, agreed, answer).await,
    }
}

/// Whether a watch begins with the list (`sendInitialEvents`); such a watch cannot be shown as a table.
fn streams_list(worker: &Worker, query: &Query<'_>) -> bool {
    worker.watching.initial_events
        && ListOptions::parse(query).is_ok_and(|mut options| {
            options.set_defaults(true);
            options.is_streaming_list()
        })
}

/// Checks the options of a list or watch, which come before the form of its objects.
fn check_list_options(worker: &Worker, verb: Verb, query: &Query<'_>) -> Result<()> {
    let initial_events = worker.watching.initial_events && verb == Verb::Watch;
    if !matches!(verb, Verb::List | Verb::Watch) {
        return Ok(());
    }
    let mut options = ListOptions::parse(query)?;
    options.set_defaults(initial_events);
    options.validate(initial_events)
}

/// The form of the objects in the response: full, table or metadata only.
fn asked_form(
    worker: &Worker,
    agreed: &Negotiated<'_>,
    verb: Verb,
    (resource, subresource): (&Resource, &str),
    query: &Query<'_>,
) -> Result<ResponseFormat> {
    let extent = match verb {
        Verb::List | Verb::DeleteCollection => ResponseScope::List,
        Verb::Watch => ResponseScope::Events,
        _ => ResponseScope::One,
    };
    let sub = resource.subresource(subresource);
    let (gv, kind) = sub.map_or((&resource.gv, &resource.kind), |sub| (&sub.gv, &sub.kind));
    let name = || match &resource.custom {
        Some(_) if sub.is_none_or(|sub| sub.gv == resource.gv) => "unstructured.Unstructured".to_owned(),
        Some(_) => format!("{}.{kind}", gv.version),
        // The internal type is that of the stored version: events have two groups.
        None => {
            let stored = resource.stored.as_ref().filter(|_| sub.is_none());
            let group = stored.map_or(&gv.group, |stored| &stored.version.group);
            format!("{}.{kind}", worker.backend.objects.registry.family(group))
        }
    };
    ResponseFormat::agreed(
        agreed,
        extent,
        query.get(response_format::INCLUDE_OBJECT).unwrap_or_default(),
        name,
    )
}

/// The parts of a call, before its store is known.
struct Part<'a> {
    found: &'a ResourcePath<'a>,
    query: &'a Query<'a>,
    body: Body,
    form: ResponseFormat,
    warnings: &'a Warnings,
    identity: &'a Identity,
    user_agent: &'a str,
    permit: Permit,
    ends: Timestamp,
}

async fn dispatch(worker: &Rc<Worker>, verb: Verb, resource: &Arc<Resource>, part: Part<'_>) -> VerbResult {
    if verb == Verb::Watch && !resource.verbs.contains(Verb::Watch) {
        return Err(Status::not_supported(resource.name(), "watch"));
    }
    if verbs::component_status::is(resource) {
        let storage = &worker.shared.health.committer;
        let asked = StatusRequest { resource, name: part.found.name, query: part.query, form: part.form };
        return verbs::component_status::answer(&worker.backend.objects, storage, asked).await;
    }
    let served = worker.served();
    let review = verbs::review::place(resource);
    let target = match &review {
        Some(place) => Some((resource, place, "")),
        None => verbs::action_subresources::target(&served.catalog, resource, part.found.subresource),
    };
    let asked = resource;
    let Some((resource, stored, subresource)) = target else {
        // docs/compat.md lists resources that are not served yet.
        return Err(Status::no_such_resource());
    };
    let call = Call {
        resource,
        stored,
        namespace: if resource.namespaced { part.found.namespace } else { "" },
        name: part.found.name,
        subresource,
        alias: Some(asked).filter(|asked| !Arc::ptr_eq(asked, resource)),
        query: part.query,
        body: part.body.bytes,
        encoding: part.body.encoding,
        patch: part.body.patch,
        form: part.form,
        warnings: part.warnings,
        user: part.identity,
        origin: Origin::Client,
        user_agent: part.user_agent,
        permit: part.permit,
        ends: Some(part.ends),
        elsewhere: ConvertedVersions::default(),
    };
    let backend = &worker.backend;
    match verb {
        Verb::Get => verbs::get::get(backend, &call).await,
        Verb::List => verbs::list::list(backend, &call).await,
        Verb::Watch => verbs::watch::watch(backend, &worker.watching, &call).await,
        Verb::Create if review.is_some() => verbs::review::create(backend, &call).await,
        Verb::Create if !subresource.is_empty() => verbs::action_subresources::create(backend, &call).await,
        Verb::Create => verbs::create::create(backend, &call).await,
        Verb::Update => verbs::update::update(backend, &call).await,
        Verb::Patch => verbs::patch::patch(backend, &call).await,
        Verb::Delete => verbs::delete::delete(backend, &call).await,
        Verb::DeleteCollection => verbs::delete_collection::delete_collection(backend, &call).await,
        _ => Err(Status::method_not_allowed()),
    }
}
