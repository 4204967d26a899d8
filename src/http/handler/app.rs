//! The application behind the listeners: one handler that takes every request through the same chain.
//!
//! parse, authenticate, take a place, authorize, route, answer. The order is the reference's, because it decides which of
//! several errors a client sees.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::http::{ConnectionType, Method, header};
use actix_web::web::{self, Payload, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use pilothouse_actors::identity::Identity;
use pilothouse_actors::permit::Permit;

use crate::api::catalog::Group;
use crate::api::catalog::resource::Resource;
use crate::api::connect::Way;
use crate::api::field::quoted;
use crate::api::form::{self, Extent, Form, Shape};
use crate::api::media::{self, Agreed, Encoding, Offer};
use crate::api::options::ListOptions;
use crate::api::ownership::Elsewhere;
use crate::api::parts;
use crate::api::path::{Request, ResourcePath, Target};
use crate::api::query::{self, Query};
use crate::api::status::{Result, Status};
use crate::api::verb::Verb;
use crate::flows::Asked;
use crate::http::websocket::Upgrade;
use crate::metrics::requests::Sample;
use crate::verbs::component_status::Question;
use crate::verbs::{self, Answered, Call, Reply, Warnings};

use super::body::Body;
use super::connect::Out;
use super::connect::extension::{self, Passed};
use super::render::{self, Context};
use super::worker::Worker;
use super::{audit, body, connect, deadline, documents, flags, guards, health, metrics, openapi};

/// How the types begin of patches that apply.
const APPLY_PATCH: &str = "application/apply-patch+";

/// Puts the handler and the state of its worker into an actix-web application.
pub fn configure(worker: Rc<Worker>) -> impl FnOnce(&mut ServiceConfig) {
    move |config| {
        config.app_data(worker).default_service(web::to(handle));
    }
}

async fn handle(request: HttpRequest, payload: Payload) -> HttpResponse {
    let Some(worker) = request.app_data::<Rc<Worker>>().cloned() else {
        return HttpResponse::InternalServerError().finish();
    };
    let context = Context::of(&request, &worker);
    let sample = Sample::begin(context.began);
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
    if guards::shall_end(&worker, &request) {
        response.head_mut().set_connection_type(ConnectionType::Close);
    }
    worker.meter.end(sample, worker.backend.clock.now(), response.status().as_u16());
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
    let caller = guards::authenticate(worker, request, &context.warnings).await?;
    let path = query::decode_path(request.uri().path());
    let query = Query::parse(request.query_string());
    let parse = |path| Request::parse(request.method().as_str(), path, &query);
    let parsed = path.as_ref().map_err(Clone::clone).and_then(|path| parse(path));
    if let Ok(parsed) = &parsed
        && let Some(refusal) = audit::open(worker, request, context, &caller, parsed).await
    {
        return Ok(refusal);
    }
    let asker = context.trail().map(|_| caller.clone());
    let identity = guards::impersonate(worker, request, caller).await?;
    if let (Some(trail), Some(asker)) = (context.trail(), asker)
        && !Arc::ptr_eq(&identity, &asker)
    {
        trail.acts_as(&identity);
    }
    let (parsed, path) = (parsed?, path.as_deref().unwrap_or_default());
    let known = parsed.resource().and_then(|found| worker.served().catalog.at(found).cloned());
    let applies = render::text(request.headers(), header::CONTENT_TYPE).starts_with(APPLY_PATCH);
    sample.note(&parsed, known.as_ref(), (query.get("dryRun") == Some("All"), applies));
    let asked = Asked { user: &identity, request: &parsed, resource: known.as_deref(), query: &query };
    let permit = match guards::let_in(worker, &asked, context, limit).await {
        Ok(permit) => permit,
        Err(refused) => return Ok(render::too_many_requests(refused.seconds)),
    };
    let judged = guards::authorize(worker, request, &identity, &parsed, &query).await;
    judged.inspect_err(|_| sample.forget())?;
    if let Some(registration) = extension::route(worker, &parsed, path, known.as_ref()).await {
        let (user, audit_id, permit) = (&*identity, context.audit_id(), &permit);
        let is_watch = parsed.verb == Verb::Watch;
        let passed = Passed { registration, path, user, is_watch, audit_id, permit };
        return Ok(extension::pass(worker, request, payload, &passed).await);
    }
    match &parsed.target {
        Target::NonResource("/metrics") => Ok(metrics::page(worker).await),
        Target::NonResource("/metrics/slis") => Ok(metrics::slis(worker)),
        Target::NonResource(path) if worker.shared.changes_flags && flags::is_flag(path) => {
            Ok(flags::answer(request, payload, path).await)
        }
        Target::NonResource(path) => match health::answer(worker, path, &query).await {
            Some(response) => Ok(response),
            None => match openapi::answer(worker, request, path, context).await {
                Some(response) => Ok(response),
                None => documents::answer(worker, request, path, context).await,
            },
        },
        // Nothing is mounted there, though authorization knows what it would be about.
        Target::Resource(_) if path.starts_with("//") => Ok(render::page_not_found()),
        Target::Resource(found) => {
            let asked = ResourceRequest { found, verb: parsed.verb, path, query: &query, user: &identity };
            serve_resource(worker, (request, payload), context, (asked, known), permit).await
        }
    }
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
    let Some(resource) = find(worker, known, found, asked.verb)? else { return Ok(render::page_not_found()) };
    let warnings = &context.warnings;
    if let Some(way) = Way::of(&resource, found.subresource).filter(|_| !found.legacy_watch) {
        context.arrive();
        let out = Out { way, resource: &resource, found, path, query, user, warnings };
        return connect::serve(worker, request, payload, &out).await;
    }
    let verb = allowed_verb(&resource, found, asked.verb, request.method())?;
    context.arrive();
    resource.deprecation().into_iter().for_each(|warning| warnings.add(warning));
    context.trail().into_iter().for_each(|trail| trail.deprecated(&resource));
    // What is only asked and never kept has no rows.
    let kept = !found.subresource.is_empty() || resource.verbs.contains(Verb::Get);
    let rows = kept && (verb != Verb::Watch || !streams_list(worker, query));
    let is_custom = resource.custom.is_some() && found.subresource != "scale";
    let offer = if is_custom { context.offer().custom() } else { context.offer() };
    let agreed = agree(context, offer, verb, rows && parts::has_table(found.group, found.subresource))?;
    let form = form(worker, &agreed, verb, (&resource, found.subresource), query);
    let (form, misfit) = misfit(form, verb, agreed.encoding)?;
    let socket = if verb == Verb::Watch { Upgrade::asked(request)? } else { None };
    let (body, payload) = match &socket {
        Some(_) => (Body::default(), Some(payload)),
        None => (body::read(request, payload, verb, offer).await?, None),
    };
    let agent = request.headers().get(header::USER_AGENT);
    let user_agent = agent.map(|agent| String::from_utf8_lossy(agent.as_bytes())).unwrap_or_default();
    let user_agent = &*user_agent;
    let part = Part { found, query, body, form, warnings, identity: user, user_agent, permit };
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

/// The resource of the path. `None`: not even its group is known, which the reference answers in plain text.
fn find(
    worker: &Worker,
    known: Option<Arc<Resource>>,
    found: &ResourcePath<'_>,
    verb: Verb,
) -> Result<Option<Arc<Resource>>> {
    let Some(resource) = known else {
        let served = worker.served();
        // Of groups that were defined the reference knows nothing but what is in them.
        let known = served.catalog.group(found.group).is_some_and(Group::is_builtin);
        return if known { Err(Status::no_such_resource()) } else { Ok(None) };
    };
    let misplaced = match (resource.namespaced, found.namespace.is_empty()) {
        // A namespaced object has no address without its namespace; its collection has one.
        (true, true) => !found.name.is_empty(),
        // The path of a namespace names itself as its namespace. Any other would be authorized in the one and served from
        // the other.
        (false, false) => found.resource != "namespaces" || found.namespace != found.name,
        _ => false,
    };
    let unknown_sub = !found.subresource.is_empty() && resource.subresource(found.subresource).is_none();
    if resource.custom.is_some() {
        return custom(resource, found, verb, unknown_sub, misplaced);
    }
    let too_deep = !found.rest.is_empty() && found.subresource != "proxy";
    // What is only asked and never kept has an address for questions, and none for objects or those of all namespaces.
    let everywhere = resource.namespaced && found.namespace.is_empty();
    let only_asked = !resource.verbs.contains(Verb::Get) && !resource.verbs.contains(Verb::List);
    let nothing_there = only_asked && found.subresource.is_empty() && (!found.name.is_empty() || everywhere);
    if misplaced || unknown_sub || too_deep || nothing_there {
        return Err(Status::no_such_resource());
    }
    Ok(Some(resource))
}

/// The same for a resource that is not built in: it is either what the path says or not there at all.
fn custom(
    resource: Arc<Resource>,
    found: &ResourcePath<'_>,
    verb: Verb,
    unknown_sub: bool,
    misplaced: bool,
) -> Result<Option<Arc<Resource>>> {
    let everywhere = resource.namespaced && found.namespace.is_empty();
    if misplaced || (everywhere && !matches!(verb, Verb::List | Verb::Watch)) {
        return Ok(None);
    }
    if unknown_sub || !found.rest.is_empty() {
        return Err(Status::not_found(resource.name(), found.name));
    }
    let is_going = resource.custom.as_ref().is_some_and(|custom| custom.is_going);
    if is_going && verb == Verb::Create && found.subresource.is_empty() {
        return Err(Status::definition_is_going(resource.name()));
    }
    Ok(Some(resource))
}

/// The verb, if the resource or its sub-resource knows it.
fn allowed_verb(resource: &Resource, found: &ResourcePath<'_>, verb: Verb, method: &Method) -> Result<Verb> {
    let verbs = resource.subresource(found.subresource).map_or(resource.verbs, |sub| sub.verbs);
    let named = !found.name.is_empty();
    let everywhere = resource.namespaced && found.namespace.is_empty();
    let is_custom = resource.custom.is_some();
    // An object is not a collection: POST to a name and PUT to a collection have no meaning. Neither has a new object in
    // all namespaces at once. Of custom objects the name in the path of a POST is no more than what others are told of it.
    let fits = match verb {
        Verb::Create => (!named || is_custom || !found.subresource.is_empty()) && !everywhere,
        Verb::DeleteCollection => !everywhere,
        // The old prefix says it in the path: that alone does not make a write a watch.
        Verb::Watch => *method == Method::GET,
        Verb::Update | Verb::Patch | Verb::Get | Verb::Delete => named,
        _ => true,
    };
    let is_unnamed = !named && matches!(*method, Method::PUT | Method::PATCH);
    if is_unnamed && is_custom && !everywhere {
        return Err(Status::bad_request("name must be provided"));
    }
    // A collection that can only be looked at says so itself: see `dispatch`.
    let looked_at = verb == Verb::Watch && !found.legacy_watch && !named && verbs.contains(Verb::List);
    if !fits || !(verbs.contains(verb) || looked_at) || (*method == Method::HEAD && !is_custom) {
        if is_custom {
            return Err(Status::not_supported(resource.name(), verb.as_str()));
        }
        let exists = verb != Verb::Proxy && is_mounted(resource, found, everywhere);
        return Err(if exists { Status::method_not_allowed() } else { Status::no_such_resource() });
    }
    if matches!(verb, Verb::Get | Verb::Delete | Verb::Patch) && !is_custom {
        check_segment(found.name)?;
    }
    Ok(verb)
}

/// Whether there is anything at a path, for whatever method: some resources have no objects, others no collection in all
/// namespaces.
fn is_mounted(resource: &Resource, found: &ResourcePath<'_>, everywhere: bool) -> bool {
    let any = |verbs: &[Verb]| verbs.iter().any(|verb| resource.verbs.contains(*verb));
    if found.legacy_watch {
        return found.subresource.is_empty() && any(&[Verb::Watch]);
    }
    if !found.subresource.is_empty() {
        return true;
    }
    match (found.name.is_empty(), everywhere) {
        (false, _) => any(&[Verb::Get, Verb::Update, Verb::Patch, Verb::Delete]),
        (true, true) => any(&[Verb::List, Verb::Watch]),
        (true, false) => any(&[Verb::List, Verb::Watch, Verb::Create, Verb::DeleteCollection]),
    }
}

/// A name that could not stand in a path by itself is no name of anything.
fn check_segment(name: &str) -> Result<()> {
    let why = match name {
        "." => "may not be '.'",
        ".." => "may not be '..'",
        _ if name.contains('/') => "may not contain '/'",
        _ if name.contains('%') => "may not contain '%'",
        _ => return Ok(()),
    };
    Err(Status::bad_request(format!("Name parameter invalid: {}: {why}", quoted(name))))
}

/// Whether a watch is a list as well, which has no rows.
fn streams_list(worker: &Worker, query: &Query<'_>) -> bool {
    worker.watching.initial_events
        && ListOptions::parse(query).is_ok_and(|mut options| {
            options.set_defaults(true);
            options.is_streaming_list()
        })
}

/// How the answer is encoded and what it is turned into. `rows`: whether it can be a table.
fn agree(context: &Context, offer: Offer, verb: Verb, rows: bool) -> Result<Agreed<'_>> {
    let offer = match verb {
        Verb::List | Verb::Watch => offer.watchable(),
        _ => offer,
    };
    let allows = |encoding, asked: media::Transform<'_>| {
        Form::allows(encoding, asked) && (asked.kind != "Table" || rows)
    };
    let agreed = media::negotiate(&context.accept, offer, allows)?;
    if verb == Verb::Watch && agreed.encoding.stream_type().is_none() {
        return Err(media::no_stream(offer));
    }
    Ok(agreed)
}

/// The form in which the answer shows objects.
fn form(
    worker: &Worker,
    agreed: &Agreed<'_>,
    verb: Verb,
    (resource, subresource): (&Resource, &str),
    query: &Query<'_>,
) -> Result<Form> {
    let extent = match verb {
        Verb::List | Verb::DeleteCollection => Extent::List,
        Verb::Watch => Extent::Events,
        _ => Extent::One,
    };
    let sub = resource.subresource(subresource);
    let (gv, kind) = sub.map_or((&resource.gv, &resource.kind), |sub| (&sub.gv, &sub.kind));
    let name = || match &resource.custom {
        Some(_) if sub.is_none_or(|sub| sub.gv == resource.gv) => "unstructured.Unstructured".to_owned(),
        Some(_) => format!("{}.{kind}", gv.version),
        None => format!("{}.{kind}", worker.backend.registry.family(&gv.group)),
    };
    Form::agreed(agreed, extent, query.get(form::INCLUDE_OBJECT).unwrap_or_default(), name)
}

/// A form that cannot be had is told only instead of objects: what cannot be answered for another reason says that first,
/// and a Status has its own form. What would be stored is refused before it is; what is deleted is gone by then, as in the reference.
fn misfit(form: Result<Form>, verb: Verb, encoding: Encoding) -> Result<(Form, Option<Box<Status>>)> {
    match form {
        Ok(form) => Ok((form, None)),
        Err(status)
            if matches!(verb, Verb::Get | Verb::List | Verb::Delete) || is_of_events(verb, &status) =>
        {
            Ok((Form { encoding, shape: Shape::Whole }, Some(status)))
        }
        Err(status) => Err(status),
    }
}

/// Whether a watch is asked for what no event can be: that shows when there is one.
fn is_of_events(verb: Verb, misfit: &Status) -> bool {
    verb == Verb::Watch && misfit.code == 406
}

/// What a call is made of, before it is known where its objects are.
struct Part<'a> {
    found: &'a ResourcePath<'a>,
    query: &'a Query<'a>,
    body: Body,
    form: Form,
    warnings: &'a Warnings,
    identity: &'a Identity,
    user_agent: &'a str,
    permit: Permit,
}

async fn dispatch(worker: &Rc<Worker>, verb: Verb, resource: &Arc<Resource>, part: Part<'_>) -> Answered {
    if verb == Verb::Watch && !resource.verbs.contains(Verb::Watch) {
        return Err(Status::not_supported(resource.name(), "watch"));
    }
    if verbs::component_status::is(resource) {
        let storage = &worker.shared.health.committer;
        let asked = Question { resource, name: part.found.name, query: part.query, form: part.form };
        return verbs::component_status::answer(&worker.backend, storage, asked).await;
    }
    let served = worker.served();
    let review = verbs::review::place(resource);
    let target = match &review {
        Some(place) => Some((resource, place, "")),
        None => verbs::sub::target(&served.catalog, resource, part.found.subresource),
    };
    let Some((resource, stored, subresource)) = target else {
        // docs/compat.md lists what is not served yet.
        return Err(Status::no_such_resource());
    };
    let call = Call {
        resource,
        stored,
        namespace: if resource.namespaced { part.found.namespace } else { "" },
        name: part.found.name,
        subresource,
        query: part.query,
        body: part.body.bytes,
        encoding: part.body.encoding,
        patch: part.body.patch,
        form: part.form,
        warnings: part.warnings,
        user: part.identity,
        user_agent: part.user_agent,
        permit: part.permit,
        elsewhere: Elsewhere::default(),
    };
    let backend = &worker.backend;
    match verb {
        Verb::Get => verbs::get::get(backend, &call).await,
        Verb::List => verbs::list::list(backend, &call).await,
        Verb::Watch => verbs::watch::watch(backend, &worker.watching, &call).await,
        Verb::Create if review.is_some() => verbs::review::create(backend, &call).await,
        Verb::Create if !subresource.is_empty() => verbs::sub::create(backend, &call).await,
        Verb::Create => verbs::create::create(backend, &call).await,
        Verb::Update => verbs::update::update(backend, &call).await,
        Verb::Patch => verbs::patch::patch(backend, &call).await,
        Verb::Delete => verbs::delete::delete(backend, &call).await,
        Verb::DeleteCollection => verbs::collection::delete_collection(backend, &call).await,
        _ => Err(Status::method_not_allowed()),
    }
}
