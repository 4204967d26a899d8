//! The trace of a request: its first span begins with the arrival of the request, and ends with the response. Whether there is a trace
//! is decided once the user is known, because only some users may have their requests traced.

use std::cell::{Cell, OnceCell, RefCell};
use std::time::Duration;

use actix_web::http::Version;
use actix_web::http::header::{self, HeaderName};
use actix_web::{HttpMessage as _, HttpRequest};
use pilothouse_api::path::{Request, ResourcePath, Target};
use pilothouse_apimachinery::well_known::{MASTERS, MONITORING};
use pilothouse_traces::{IncomingContext, TracedRequest, Tracing};
use pilothouse_types::clock::Moment;
use pilothouse_types::identity::Identity;
use pilothouse_types::trace::span::Attribute;
use pilothouse_types::trace::{OpenSpan, RequestTrace, context};

use crate::http::peer::Peer;

use super::render::{Context, text};
use super::worker::Worker;

const TRACE_PARENT: HeaderName = HeaderName::from_static(context::TRACE_PARENT);
const TRACE_STATE: HeaderName = HeaderName::from_static(context::TRACE_STATE);
const BAGGAGE: HeaderName = HeaderName::from_static(context::BAGGAGE);
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The trace of a request without one.
static NONE: RequestTrace = RequestTrace::none();

/// A step that ended before it was known whether there is a trace.
type EarlyStep = (&'static str, Moment, Duration);

/// The trace of a request in progress.
#[derive(Default)]
pub struct TraceInProgress {
    trace: OnceCell<RequestTrace>,
    /// The span of the whole request, until it has ended.
    first: RefCell<OpenSpan>,
    early: Cell<Option<EarlyStep>>,
}

impl TraceInProgress {
    /// The trace, empty if there is none.
    pub fn trace(&self) -> &RequestTrace {
        self.trace.get().unwrap_or(&NONE)
    }

    /// Decides whether the request is traced. `began`: when it arrived. `parsed`: its path, if that is valid.
    pub fn begin(
        &self,
        worker: &Worker,
        request: &HttpRequest,
        (context, began): (&Context, Moment),
        user: &Identity,
        parsed: Option<&Request<'_>>,
    ) {
        let trace = match &worker.shared.traces.tracing {
            Tracing::Off => return,
            // Few reads call a webhook: those of objects that it converts, and an exec by GET. The others should not look for headers.
            Tracing::PassedOn if request.method().is_safe() => return,
            Tracing::PassedOn => incoming(request).pass_on(),
            Tracing::Recorded(tracer) => {
                let traced = TracedRequest {
                    began: (context.began, began),
                    incoming: incoming(request),
                    is_trusted: user.is_in(MASTERS) || user.is_in(MONITORING),
                };
                let (trace, mut first) = tracer.begin(traced, || span_name(request, parsed));
                first.describe(|| attributes(request));
                *self.first.borrow_mut() = first;
                trace
            }
        };
        if let Some((name, began, took)) = self.early.take() {
            trace.note(name, began, took);
        }
        // A request begins once.
        let _ = self.trace.set(trace);
    }

    /// Records a step that has ended.
    pub fn note(&self, name: &'static str, began: Moment, took: Duration) {
        match self.trace.get() {
            Some(trace) => trace.note(name, began, took),
            None => self.early.set(Some((name, began, took))),
        }
    }

    /// The response has ended. `size`: the bytes of its body, if it has an end.
    pub fn end(&self, code: u16, size: Option<u64>) {
        let mut first = self.first.replace(OpenSpan::none());
        first.describe(|| {
            let code = Attribute::number("http.status_code", code);
            let size = size.map(|size| Attribute::number("http.response_content_length", size));
            [code].into_iter().chain(size).collect()
        });
        if code >= 500 {
            first.fail();
        }
        first.end();
    }
}

/// What the headers say about the trace of the client.
fn incoming(request: &HttpRequest) -> IncomingContext {
    let headers = request.headers();
    let all = |name| headers.get_all(name).filter_map(|value| value.to_str().ok()).collect::<Vec<_>>();
    let parent = headers.get(TRACE_PARENT).and_then(|value| value.to_str().ok());
    if parent.is_none() && !headers.contains_key(BAGGAGE) {
        return IncomingContext::default();
    }
    IncomingContext::read(parent, &all(TRACE_STATE), &all(BAGGAGE))
}

/// The name of the span of a request: what is requested, without the names of objects.
fn span_name(request: &HttpRequest, parsed: Option<&Request<'_>>) -> String {
    let method = request.method().as_str();
    match parsed.map(|parsed| &parsed.target) {
        Some(Target::Resource(path)) => format!("{method} {}", path_pattern(path)),
        _ => method.to_owned(),
    }
}

fn path_pattern(path: &ResourcePath<'_>) -> String {
    let mut pattern = if path.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", path.group) };
    pattern.push('/');
    pattern.push_str(path.version);
    if !path.namespace.is_empty() {
        pattern.push_str("/namespaces/{:namespace}");
    }
    pattern.push('/');
    pattern.push_str(path.resource);
    if !path.name.is_empty() {
        pattern.push_str("/{:name}");
    }
    if !path.subresource.is_empty() {
        pattern.push('/');
        pattern.push_str(path.subresource);
    }
    pattern
}

/// What ends the path of a request whose query is for a process or a backend.
const CONNECTIONS: [&str; 4] = ["/attach", "/exec", "/portforward", "/proxy"];

/// The part of a path that is for this server. What is behind a proxy is the business of its backend, and may be a secret.
fn own_path(path: &str) -> &str {
    let end = path.find("/proxy/").map_or(path.len(), |start| start + "/proxy".len());
    &path[..end]
}

/// The path and the query, if they are for this server.
fn target(request: &HttpRequest) -> String {
    let path = own_path(request.path());
    match request.query_string() {
        query if !query.is_empty() && !CONNECTIONS.iter().any(|end| path.ends_with(end)) => {
            format!("{path}?{query}")
        }
        _ => path.to_owned(),
    }
}

/// What is known of a request when it arrives, in the words of OpenTelemetry.
fn attributes(request: &HttpRequest) -> Vec<Attribute> {
    let mut attributes = vec![
        Attribute::text("http.method", request.method().as_str().to_owned()),
        Attribute::text("http.scheme", "https"),
        Attribute::text("http.target", target(request)),
        Attribute::text("net.protocol.version", protocol_version(request)),
    ];
    let host = request.connection_info().host().to_owned();
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name.to_owned(), port.parse::<u16>().ok()),
        _ => (host.clone(), None),
    };
    attributes.push(Attribute::text("net.host.name", name));
    attributes.extend(port.map(|port| Attribute::number("net.host.port", port)));
    if let Some(address) = request.extensions().get::<Peer>().and_then(|peer| peer.address) {
        attributes.push(Attribute::text("net.sock.peer.addr", address.ip().to_string()));
        attributes.push(Attribute::number("net.sock.peer.port", address.port()));
    }
    let forwarded = text(request.headers(), FORWARDED_FOR).split(',').next().unwrap_or_default().trim();
    for (key, value) in
        [("user_agent.original", text(request.headers(), header::USER_AGENT)), ("http.client_ip", forwarded)]
    {
        if !value.is_empty() {
            attributes.push(Attribute::text(key, value.to_owned()));
        }
    }
    let length = text(request.headers(), header::CONTENT_LENGTH).parse::<i64>().ok();
    attributes.extend(length.map(|length| Attribute::number("http.request_content_length", length)));
    attributes
}

fn protocol_version(request: &HttpRequest) -> &'static str {
    match request.version() {
        Version::HTTP_2 => "2.0",
        Version::HTTP_10 => "1.0",
        _ => "1.1",
    }
}

/// What is known of the request of a verb.
pub fn verb_attributes(
    request: &HttpRequest,
    context: &Context,
    path: &ResourcePath<'_>,
    (verb, scope): (&'static str, &'static str),
) -> Vec<Attribute> {
    let peer = request.extensions().get::<Peer>().and_then(|peer| peer.address);
    let client = peer.map(|address| address.ip().to_string()).unwrap_or_default();
    let protocol = format!("HTTP/{}", protocol_version(request));
    let texts = [
        ("accept", context.accept.as_str()),
        ("audit-id", context.audit_id().to_str().unwrap_or_default()),
        ("client", client.as_str()),
        ("api-group", path.group),
        ("api-version", path.version),
        ("name", path.name),
        ("subresource", path.subresource),
        ("namespace", path.namespace),
        ("protocol", protocol.as_str()),
        ("resource", path.resource),
        ("scope", scope),
        ("url", own_path(request.path())),
        ("user-agent", text(request.headers(), header::USER_AGENT)),
        ("verb", verb),
    ];
    texts.into_iter().map(|(key, value)| Attribute::text(key, value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;
    use pilothouse_apimachinery::query::Query;

    use super::*;

    #[test]
    fn span_names_have_no_names_of_objects() {
        for (method, path, name) in [
            ("GET", "/api/v1/namespaces/n/pods/p", "GET /api/v1/namespaces/{:namespace}/pods/{:name}"),
            ("POST", "/api/v1/nodes", "POST /api/v1/nodes"),
            (
                "PUT",
                "/apis/apps/v1/namespaces/n/deployments/d/status",
                "PUT /apis/apps/v1/namespaces/{:namespace}/deployments/{:name}/status",
            ),
            ("GET", "/api/v1/namespaces/n", "GET /api/v1/namespaces/{:namespace}/namespaces/{:name}"),
            ("GET", "/version", "GET"),
        ] {
            let request = TestRequest::with_uri(path).method(method.parse().unwrap()).to_http_request();
            let query = Query::parse("");
            let parsed = Request::parse(method, path, &query).ok();
            assert_eq!(span_name(&request, parsed.as_ref()), name);
        }
    }

    #[test]
    fn context_of_a_client_comes_from_its_headers() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let request = TestRequest::default()
            .insert_header((TRACE_PARENT, parent))
            .append_header((TRACE_STATE, "a=1"))
            .append_header((TRACE_STATE, "b=2"))
            .append_header((BAGGAGE, "c=3"));
        let context = incoming(&request.to_http_request());
        assert!(context.span.is_some_and(|span| span.is_sampled));
        assert_eq!(context.propagated.state.as_deref(), Some("a=1,b=2"));
        assert_eq!(context.propagated.baggage.as_deref(), Some("c=3"));
        let request = TestRequest::default().insert_header((TRACE_STATE, "a=1")).to_http_request();
        assert_eq!(incoming(&request), IncomingContext::default());
    }
}
