//! Requests for resources, once they are authorized: find the resource, negotiate the response format, read the body, call the verb,
//! render its result.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use actix_web::http::header;
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use pilothouse_actors::permit::Permit;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::connect::ConnectSubresource;
use pilothouse_api::path::ResourcePath;
use pilothouse_api::routes;
use pilothouse_api::subresources;
use pilothouse_apimachinery::media::{self, Negotiated, OfferedEncodings};
use pilothouse_apimachinery::options::ListOptions;
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::response_format::{self, ResponseFormat, ResponseScope};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::verb::Verb;
use pilothouse_types::clock::Moment;
use pilothouse_types::identity::Identity;
use pilothouse_types::trace::OpenSpan;
use pilothouse_types::trace::span::Attribute;

use crate::http::websocket::Upgrade;
use crate::limits::HEAVY_BYTES;
use crate::metrics::requests::{Sample, scope};
use crate::registry::detached_call::DetachedCall;
use crate::registry::work_limit::WorkLimit;
use crate::registry::{Call, CallBody, Execution, Origin, Requester};
use crate::verbs::{self, Reply, VerbResult};

use super::body::{self, Body};
use super::connect::{self, ConnectInput};
use super::render::{self, Context};
use super::request_trace::verb_attributes;
use super::seated_body;
use super::worker::Worker;

/// A request for a resource, with its user.
pub struct ResourceRequest<'a> {
    /// The worker that serves it.
    pub worker: &'a Rc<Worker>,
    /// The request as it came.
    pub http: &'a HttpRequest,
    /// The properties that the response depends on.
    pub context: &'a Context,
    /// The parsed path.
    pub path_info: &'a ResourcePath<'a>,
    /// The verb that authorization decided about. The resource may turn it into another.
    pub verb: Verb,
    /// The whole path, unescaped.
    pub path: &'a str,
    /// The query parameters.
    pub query: &'a Query<'a>,
    /// The user of the request.
    pub user: &'a Arc<Identity>,
    /// The slot of the request.
    pub permit: Permit,
    /// When the client stops waiting for the whole response, if it is not a watch.
    pub deadline: Moment,
    /// The request as metrics see it.
    pub sample: &'a Sample,
}

/// Serves a request for the resource that the catalog has at its path, if any.
pub async fn serve(
    request: ResourceRequest<'_>,
    resource: Option<Arc<Resource>>,
    payload: Payload,
) -> Result<HttpResponse> {
    let ResourceRequest { worker, http, context, path_info, query, .. } = request;
    if resource.is_none() {
        worker.served().catalog.check_readable(path_info.group, path_info.resource)?;
    }
    let Some(resource) = routes::find(&worker.served().catalog, resource, path_info, request.verb)? else {
        return Ok(render::page_not_found());
    };
    routes::check_name(&resource, path_info, http.method().as_str())?;
    if let Some(connect_kind) =
        ConnectSubresource::for_resource(&resource, path_info.subresource).filter(|_| !path_info.legacy_watch)
    {
        context.allow_cbor();
        let (path, user, warnings, offer) = (request.path, request.user, &context.warnings, context.offer());
        let (pool, trace) = (context.heavy_pool(), request.permit.trace());
        let input = ConnectInput {
            subresource: connect_kind,
            resource: &resource,
            path_info,
            path,
            query,
            user,
            warnings,
            offer,
            pool,
            trace,
        };
        return Box::pin(connect::serve(worker, http, payload, &input)).await;
    }
    let verb = request.allowed_verb(&resource)?;
    let mut step = step_of(verb).map(|name| request.permit.trace().open(name)).unwrap_or_default();
    step.describe(|| verb_attributes(http, context, path_info, (verb.as_str(), scope(path_info, verb))));
    let served = pin!(serve_verb(request, verb, &resource, payload));
    step.run(served).await
}

/// The name of the span of a verb. A watch has none: it lasts as long as the client wants.
fn step_of(verb: Verb) -> Option<&'static str> {
    match verb {
        Verb::Get => Some("Get"),
        Verb::List => Some("List"),
        Verb::Create => Some("Create"),
        Verb::Update => Some("Update"),
        Verb::Patch => Some("Patch"),
        Verb::Delete | Verb::DeleteCollection => Some("Delete"),
        _ => None,
    }
}

/// Serves a request with the verb that its resource makes of it.
async fn serve_verb(
    request: ResourceRequest<'_>,
    verb: Verb,
    resource: &Arc<Resource>,
    payload: Payload,
) -> Result<HttpResponse> {
    let ResourceRequest { worker, http, context, .. } = request;
    context.allow_cbor();
    let offer = request.offer(resource);
    let response = request.negotiate_response(resource, verb, offer)?;
    let socket = if verb == Verb::Watch { Upgrade::from_request(http)? } else { None };
    let (body, payload) = match &socket {
        Some(_) => (Body::default(), Some(payload)),
        None => {
            let (memory, user) = (&worker.backend.requests, &request.user.name);
            let body = body::read(http, payload, verb, offer, memory, user).await?;
            request.sample.note_body(body.bytes.len());
            (body, None)
        }
    };
    let (permit, deadline) = (request.permit.clone(), request.deadline);
    let reply = request.dispatch(verb, resource, body, response.response_format).await?;
    let reply = match (response.format_error, reply) {
        (Some(format_error), Reply::Object(..) | Reply::List(_)) => return Err(format_error),
        (Some(_), Reply::Watch(feed)) => Reply::Watch(feed.mute()),
        (_, reply) => reply,
    };
    match (reply, socket, payload) {
        (Reply::Watch(feed), Some(socket), Some(payload)) => {
            Ok(socket.accept(feed, payload, response.negotiated.encoding))
        }
        (reply @ Reply::Watch(_), ..) => render::render_reply(context, response.negotiated, reply).await,
        (reply, ..) => {
            // An object was encoded by the verb, a list is encoded while it is sent.
            let mut encoding = match reply {
                Reply::List(_) => permit.trace().open("SerializeObject"),
                _ => OpenSpan::none(),
            };
            encoding
                .describe(|| vec![Attribute::text("mediaType", response.negotiated.encoding.media_type())]);
            let rendering = pin!(render::render_reply(context, response.negotiated, reply));
            let response = encoding.run(rendering).await?;
            let remaining = deadline.since(worker.backend.clock.moment());
            Ok(seated_body::keep_seat(response, permit, encoding, remaining))
        }
    }
}

/// The format of the response, negotiated before the body of the request is read.
struct NegotiatedResponse<'a> {
    negotiated: Negotiated<'a>,
    response_format: ResponseFormat,
    /// The error in place of objects, if the client named a form that fits none. The verb is carried out all the same.
    format_error: Option<Box<Status>>,
}

impl<'a> ResourceRequest<'a> {
    fn offer(&self, resource: &Resource) -> OfferedEncodings {
        let offer = self.context.offer();
        if resource.custom.is_some() { offer.custom() } else { offer }
    }

    /// The verb, if the resource allows it at this path.
    fn allowed_verb(&self, resource: &Resource) -> Result<Verb> {
        let allowed = routes::allowed_verb(resource, self.path_info, self.verb, self.http.method().as_str());
        allowed.or_else(|refusal| {
            // The type of a patch of a custom resource is checked even before its name.
            if resource.custom.is_some() && self.verb == Verb::Patch {
                self.context.allow_cbor();
                self.check_patch_type(self.offer(resource))?;
            }
            Err(refusal)
        })
    }

    fn check_patch_type(&self, offer: OfferedEncodings) -> Result<()> {
        let header = |name| render::text(self.http.headers(), name);
        media::patch_encoding(header(header::CONTENT_TYPE), header(header::CONTENT_LENGTH), offer).map(drop)
    }

    fn negotiate_response(
        &self,
        resource: &Resource,
        verb: Verb,
        offer: OfferedEncodings,
    ) -> Result<NegotiatedResponse<'a>> {
        let ResourceRequest { worker, context, path_info, query, .. } = *self;
        if resource.custom.is_none() {
            if verb == Verb::Patch {
                self.check_patch_type(offer)?;
            }
            response_format::check_acceptable(&context.accept, offer, verb)?;
        }
        resource.deprecation().into_iter().for_each(|warning| context.warnings.add(warning));
        context.trail().into_iter().for_each(|trail| trail.annotate_deprecated(resource));
        // Resources that are not stored (reviews) cannot be shown as a table.
        let is_stored = !path_info.subresource.is_empty() || resource.verbs.contains(Verb::Get);
        let has_rows = is_stored && (verb != Verb::Watch || !streams_list(worker, query));
        let has_table = has_rows && subresources::has_table(path_info.group, path_info.subresource);
        let negotiated = response_format::negotiate_encoding(&context.accept, offer, verb, has_table)
            .or_else(|refusal| {
                check_list_options(worker, verb, query)?;
                Err(refusal)
            })?;
        let response_format = self.requested_response_format(&negotiated, verb, resource);
        let (response_format, format_error) =
            response_format::defer_unsupported(response_format, verb, negotiated.encoding)?;
        Ok(NegotiatedResponse { negotiated, response_format, format_error })
    }

    /// The form of the objects in the response: full, table or metadata only.
    fn requested_response_format(
        &self,
        negotiated: &Negotiated<'_>,
        verb: Verb,
        resource: &Resource,
    ) -> Result<ResponseFormat> {
        let scope = match verb {
            Verb::List | Verb::DeleteCollection => ResponseScope::List,
            Verb::Watch => ResponseScope::Events,
            _ => ResponseScope::One,
        };
        let include = self.query.get(response_format::INCLUDE_OBJECT).unwrap_or_default();
        let name = || internal_type_name(self.worker, resource, self.path_info.subresource);
        ResponseFormat::from_negotiated(negotiated, scope, include, name)
    }

    async fn dispatch(
        self,
        verb: Verb,
        resource: &Arc<Resource>,
        body: Body,
        response_format: ResponseFormat,
    ) -> VerbResult {
        let ResourceRequest { worker, context, path_info, query, .. } = self;
        if verb == Verb::Watch && !resource.verbs.contains(Verb::Watch) {
            return Err(Status::not_supported(resource.name(), "watch"));
        }
        let served = worker.served();
        let target = verbs::dispatch::target(&served.catalog, resource, path_info)?;
        // Held until the verb is done: it counts the memory for decoding the body.
        let _memory = body.memory;
        let header_value = self.http.headers().get(header::USER_AGENT);
        let user_agent = header_value
            .map(|header_value| String::from_utf8_lossy(header_value.as_bytes()))
            .unwrap_or_default();
        let requester = Requester { user: self.user, origin: Origin::Client, user_agent: &user_agent };
        let call = Call {
            body: CallBody { bytes: body.bytes, encoding: body.encoding, patch: body.patch },
            response_format,
            execution: Execution {
                permit: self.permit,
                deadline: Some(self.deadline),
                work: WorkLimit::for_worker(),
            },
            ..Call::new(target, requester, query, &context.warnings)
        };
        run(worker, context, verb, &call).await
    }
}

/// Runs a call: on the worker if it is expected to be cheap, and otherwise on a thread for heavy work.
async fn run(worker: &Worker, context: &Context, verb: Verb, call: &Call<'_>) -> VerbResult {
    if verb == Verb::Watch {
        let pool = context.heavy_pool();
        return Box::pin(verbs::watch::watch(&worker.backend, &worker.watching, pool, call)).await;
    }
    let (type_name, now) = (call.stored().store.as_str(), worker.backend.clock.moment());
    let is_costly = || worker.shared.heavy.costly_calls.is_expected(type_name, &call.user().name, now);
    if call.body.bytes.len() <= HEAVY_BYTES && (matches!(verb, Verb::Get | Verb::List) || !is_costly()) {
        let mark = call.warnings.mark();
        let reply = verbs::dispatch::dispatch(&worker.backend, verb, call).await;
        // A call that succeeded is never repeated, even if it exceeded its work limit.
        if reply.is_ok() || !call.work().is_exceeded() {
            return reply;
        }
        if call.work().is_cel_exceeded() {
            worker.shared.heavy.costly_calls.note(type_name, &call.user().name, now);
        }
        call.warnings.reset(mark);
    }
    Box::pin(dispatch_heavy(worker, context, verb, call)).await
}

/// Carries out a call on a thread for heavy work, so that the other requests of the worker go on.
async fn dispatch_heavy(worker: &Worker, context: &Context, verb: Verb, call: &Call<'_>) -> VerbResult {
    // Until a thread is free, and has done the work.
    let step = call.permit().trace().open("Heavy work");
    let detached = DetachedCall::new(call, &step);
    let work = move |backend| verbs::dispatch::dispatch_detached(backend, verb, detached);
    let reply = worker.shared.heavy.pool.run(&context.work_owner(), work).await;
    step.end();
    reply.map_err(render::heavy_error)?.attach(&worker.backend, call)
}

/// The type of an object as error messages about its form name it, such as `core.Pod`.
fn internal_type_name(worker: &Worker, resource: &Resource, subresource: &str) -> String {
    let sub = resource.subresource(subresource);
    let (gv, kind) = sub.map_or((&resource.gv, &resource.kind), |sub| (&sub.gv, &sub.kind));
    match &resource.custom {
        Some(_) if sub.is_none_or(|sub| sub.gv == resource.gv) => "unstructured.Unstructured".to_owned(),
        Some(_) => format!("{}.{kind}", gv.version),
        // The internal type is that of the stored version: events have two groups.
        None => {
            let stored = resource.stored().filter(|_| sub.is_none());
            let group = stored.map_or(&gv.group, |stored| &stored.version.group);
            format!("{}.{kind}", worker.backend.objects.registry.family(group))
        }
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
