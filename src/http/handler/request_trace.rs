//! The trace of a request: its first span begins with the arrival of the request, and ends with the response. Whether there is a trace
//! is decided once the user is known, because only some users may have their requests traced.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::time::Duration;

use actix_web::http::Version;
use actix_web::http::header::{self, HeaderName};
use actix_web::{HttpMessage as _, HttpRequest};
use pilothouse_api::path::{Request, ResourcePath, Target};
use pilothouse_apimachinery::query;
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

/// Bytes of the name of a span: clients choose groups and resources, also such as do not exist.
const SPAN_NAME_BYTES: usize = 256;

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
                first.describe(|| attributes(request, parsed));
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
    let mut name = match parsed.map(|parsed| &parsed.target) {
        Some(Target::Resource(path)) => format!("{method} {}", path_pattern(path)),
        _ => method.to_owned(),
    };
    if name.len() > SPAN_NAME_BYTES {
        let end = (0..=SPAN_NAME_BYTES).rev().find(|end| name.is_char_boundary(*end));
        name.truncate(end.unwrap_or(0));
    }
    name
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

/// The subresources whose query is for a process or a backend.
const CONNECTIONS: [&str; 4] = ["attach", "exec", "portforward", "proxy"];

/// The part of a path that is for this server. What is behind a proxy is the business of its backend, and may be a secret.
fn own_path(path: &str) -> Cow<'_, str> {
    // Decoded, as the path is when the proxy is found in it.
    let decoded = query::decode_path(path).unwrap_or(Cow::Borrowed(path));
    match decoded.find("/proxy/") {
        Some(start) => Cow::Owned(decoded[..start + "/proxy".len()].to_owned()),
        None => Cow::Borrowed(path),
    }
}

/// The path and the query, if they are for this server. Of a path that is not valid nobody knows whose its query is.
fn target(request: &HttpRequest, parsed: Option<&Request<'_>>) -> String {
    let path = own_path(request.path());
    let is_own = parsed.is_some_and(|parsed| match &parsed.target {
        Target::Resource(path) => !CONNECTIONS.contains(&path.subresource),
        Target::NonResource(_) => true,
    });
    match request.query_string() {
        query if is_own && !query.is_empty() && matches!(path, Cow::Borrowed(_)) => format!("{path}?{query}"),
        _ => path.into_owned(),
    }
}

/// What is known of a request when it arrives, in the words of OpenTelemetry.
fn attributes(request: &HttpRequest, parsed: Option<&Request<'_>>) -> Vec<Attribute> {
    let mut attributes = vec![
        Attribute::text("http.method", request.method().as_str().to_owned()),
        Attribute::text("http.scheme", "https"),
        Attribute::text("http.target", target(request, parsed)),
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
    let url = own_path(request.path());
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
        ("url", &url),
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
    fn long_span_names_are_shortened() {
        let path = format!("/apis/{}/v1/{}", "ä".repeat(300), "b".repeat(300));
        let query = Query::parse("");
        let parsed = Request::parse("GET", &path, &query).ok();
        let name = span_name(&TestRequest::default().to_http_request(), parsed.as_ref());
        assert!(
            name.starts_with("GET /apis/ää") && (SPAN_NAME_BYTES - 1..=SPAN_NAME_BYTES).contains(&name.len())
        );
    }

    /// What is behind a proxy is the business of its backend, and a command is that of its process.
    #[test]
    fn targets_have_no_proxied_path_and_no_command() {
        for (uri, expected) in [
            ("/api/v1/namespaces/n/pods/p/proxy/secret/path?token=a", "/api/v1/namespaces/n/pods/p/proxy"),
            ("/api/v1/namespaces/n/services/s/proxy?token=a", "/api/v1/namespaces/n/services/s/proxy"),
            ("/api/v1/nodes/n/proxy/proxy/exec?a=b", "/api/v1/nodes/n/proxy"),
            (
                "/api/v1/namespaces/n/pods/p/exec?command=cat&command=secret",
                "/api/v1/namespaces/n/pods/p/exec",
            ),
            ("/api/v1/namespaces/n/pods/p/attach?container=c", "/api/v1/namespaces/n/pods/p/attach"),
            ("/api/v1/namespaces/n/pods/p/portforward?ports=1", "/api/v1/namespaces/n/pods/p/portforward"),
            // As it is served, whatever its spelling.
            ("/api/v1/namespaces/n/pods/p/ex%65c?command=secret", "/api/v1/namespaces/n/pods/p/ex%65c"),
            ("/api/v1/namespaces/n/pods/p/exec/?command=secret", "/api/v1/namespaces/n/pods/p/exec/"),
            ("/api/v1/namespaces/n/pods/p/prox%79/secret", "/api/v1/namespaces/n/pods/p/proxy"),
            ("/api/v1/namespaces/n/pods/p/%zz/exec?command=secret", "/api/v1/namespaces/n/pods/p/%zz/exec"),
            ("/api/v1/namespaces/n/pods?limit=5", "/api/v1/namespaces/n/pods?limit=5"),
            ("/healthz?verbose", "/healthz?verbose"),
        ] {
            let request = TestRequest::with_uri(uri).to_http_request();
            let query = Query::parse(request.query_string());
            let path = query::decode_path(request.uri().path()).ok();
            let parsed = path.as_ref().and_then(|path| Request::parse("GET", path, &query).ok());
            assert_eq!(target(&request, parsed.as_ref()), expected);
            let recorded = attributes(&request, parsed.as_ref());
            assert!(recorded.contains(&Attribute::text("http.target", expected)), "{recorded:?}");
            assert!(!format!("{recorded:?}").contains("secret"), "{recorded:?}");
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
