//! The checks before a request is served: authentication, admission to a queue, authorization.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix_web::http::{Version, header};
use actix_web::{HttpMessage as _, HttpRequest};
use pilothouse_actors::authenticator::Authenticate;
use pilothouse_actors::fair_queuing::level::Rejection;
use pilothouse_actors::permit::Permit;
use pilothouse_api::path::{Request, Target};
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::selectors::parse_labels;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::verb::Verb;
use pilothouse_apimachinery::well_known::{ANONYMOUS, MASTERS, NODES, UNAUTHENTICATED};
use pilothouse_authorization::bearer::bearer;
use pilothouse_authorization::reviews::access::parse_fields;
use pilothouse_types::authentication::{Refusal, Remark};
use pilothouse_types::authorization::{Action, Selection};
use pilothouse_types::identity::{Credentials, Identity};

use crate::auth::impersonation::{self, ImpersonatedUser};
use crate::flowcontrol::{RequestInfo, RequestLimiter};
use crate::http::connections::ClientTrust;
use crate::http::peer::Peer;
use crate::http::websocket;
use crate::limits::REFUSAL_CHARS;
use crate::metrics::authentication::Attempt;
use crate::registry::Warnings;
use crate::registry::authorization::{AuthorizationRecord, action};

use super::health;
use super::render::Context;
use super::worker::Worker;

/// A request may wait in its queue for this fraction of its timeout; the reference's value.
const QUEUE_WAIT_DIVISOR: u32 = 4;

/// Marks a request whose authentication failed.
struct AuthenticationFailed;

/// Marks a request on a connection of the reserve, which is for exempt users.
struct ReserveOnly;

/// Whether the connection ends after this request. HTTP/2 is expensive to serve and easy to abuse, so unauthenticated clients get
/// one request per connection, as in the reference.
pub fn closes_connection(worker: &Worker, request: &HttpRequest) -> bool {
    if request.extensions().get::<ReserveOnly>().is_some() {
        return true;
    }
    worker.shared.authentication.closes_unauthenticated
        && request.version() == Version::HTTP_2
        && request.extensions().get::<AuthenticationFailed>().is_some()
}

/// Authenticates a request.
pub async fn authenticate(
    worker: &Worker,
    request: &HttpRequest,
    warnings: &Warnings,
) -> Result<Arc<Identity>> {
    let certificates = request.extensions().get::<Peer>().map(|peer| peer.certificates.0.clone());
    let certificates = certificates.filter(|chain| !chain.is_empty());
    // A header that is not UTF-8 is an unknown token, not a missing one.
    let header = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
    let header = String::from_utf8_lossy(header.unwrap_or_default());
    let parsed = bearer(&header);
    parsed.warning.into_iter().for_each(|warning| warnings.add(warning));
    let bearer = parsed.token.map(str::to_owned).or_else(|| websocket::bearer(request.headers()));
    let headers = worker.shared.authentication.front_headers.as_ref().filter(|_| certificates.is_some());
    let claimed = headers.and_then(|known| known.claimed(pairs(request))).map(Arc::new);
    let paths = worker.shared.authentication.anonymous_paths.as_ref();
    let never_anonymous = paths.is_some_and(|paths| !paths.iter().any(|path| path == request.path()));
    let credentials =
        Credentials { certificates, bearer, claimed, never_anonymous, ..Credentials::default() };
    let (clock, metrics) = (&worker.backend.clock, &worker.shared.metrics.authentication);
    let started = clock.moment();
    let result = worker.backend.access.authenticator.send(Authenticate { credentials }).await;
    let count = |attempt, user| metrics.count_attempt(attempt, user, clock.elapsed(started));
    match result {
        Ok(Ok(authenticated)) => {
            let identity = authenticated.identity;
            count(Attempt::Success, Some(identity.name.as_str()));
            if !authenticated.remarks.is_empty() {
                let annotations = Annotations::new(authenticated.remarks, warnings);
                tracing::debug!(user = identity.name, ?annotations, "authenticated");
                request.extensions_mut().insert(annotations);
            }
            let trust = client_trust(&identity);
            if trust == ClientTrust::Anonymous {
                request.extensions_mut().insert(AuthenticationFailed);
            }
            let connection = request.extensions().get::<Peer>().and_then(|peer| peer.connection.clone());
            if connection.is_some_and(|connection| !connection.note_caller(trust)) {
                request.extensions_mut().insert(ReserveOnly);
                return Err(Status::too_many_requests("too many connections, please try again later", 1));
            }
            Ok(identity)
        }
        Ok(Err(refusal)) => {
            let is_anonymous = matches!(refusal, Refusal::Anonymous);
            count(if is_anonymous { Attempt::Failure } else { Attempt::Error }, None);
            log_refusal(worker, request, &refusal);
            request.extensions_mut().insert(AuthenticationFailed);
            Err(Status::unauthorized())
        }
        Err(_) => Err(actor_stopped(worker, "authenticator")),
    }
}

/// How far a connection is trusted after a request of this user. Those of nodes and administrators are kept when there are too
/// many.
fn client_trust(identity: &Identity) -> ClientTrust {
    let is_in = |name: &str| identity.groups.iter().any(|group| group == name);
    if identity.name == ANONYMOUS || is_in(UNAUTHENTICATED) {
        ClientTrust::Anonymous
    } else if is_in(MASTERS) || is_in(NODES) {
        ClientTrust::Exempt
    } else {
        ClientTrust::Authenticated
    }
}

/// Logs why credentials were rejected, at most once a second, so that an attacker cannot fill the disk. The reason may quote the
/// token's claims, so it is cut.
fn log_refusal(worker: &Worker, request: &HttpRequest, refusal: &Refusal) {
    let (now, reason) = (worker.backend.clock.moment(), refusal.to_string());
    let address = request.extensions().get::<Peer>().and_then(|peer| peer.address);
    let address = address.map(|address| address.to_string()).unwrap_or_default();
    // What is behind a proxy is the business of its backend.
    let path = request.path().split_once("/proxy/").map_or(request.path(), |(path, _)| path);
    let (reason, path) = (first_chars(&reason), first_chars(path));
    if *refusal == Refusal::Anonymous || !worker.refusals.allows(now) {
        return tracing::debug!(reason, address, path, "authentication failed");
    }
    tracing::warn!(reason, address, path, "authentication failed");
}

/// As much of a text as a line of the log may quote.
fn first_chars(text: &str) -> &str {
    text.char_indices().nth(REFUSAL_CHARS).map_or(text, |(end, _)| text.get(..end).unwrap_or_default())
}

/// The headers of a request, with lower-case names.
fn pairs(request: &HttpRequest) -> impl Iterator<Item = (&str, &[u8])> {
    request.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes()))
}

/// The user as which the request runs: the caller, or the impersonated user if the caller may impersonate.
pub async fn impersonate(
    worker: &Worker,
    request: &HttpRequest,
    caller: Arc<Identity>,
) -> Result<Arc<Identity>> {
    let headers =
        pairs(request).filter_map(|(name, value)| Some((name.strip_prefix(impersonation::PREFIX)?, value)));
    let mut fields = Vec::new();
    for (name, value) in headers {
        let text = std::str::from_utf8(value);
        fields.push((
            name,
            text.map_err(|_| Status::bad_request(format!("header Impersonate-{name} is not valid UTF-8")))?,
        ));
    }
    let Some(impersonated) = ImpersonatedUser::from_headers(fields.into_iter())? else { return Ok(caller) };
    for action in impersonated.actions() {
        check_authorization(worker, &caller, Arc::new(action), Arc::default()).await?.0?;
    }
    let identity = impersonated.into_identity();
    tracing::debug!(caller = caller.name, as_ = identity.name, "impersonation");
    Ok(Arc::new(identity))
}

/// A worker without its authenticator or authorizer would reject everybody. The server stops instead, to be restarted.
fn actor_stopped(worker: &Worker, actor: &str) -> Box<Status> {
    let health = &worker.shared.health;
    if !health.stopping.load(Ordering::Acquire) {
        health.fatal.raise(format!("an {actor} has died"));
    }
    Status::unavailable(format!("the {actor} does not answer"))
}

/// Admits a request to execution, possibly after it waited in a queue, or returns when to retry. The permit travels inside the
/// messages of the request. `limit`: the timeout of the whole request.
pub async fn admit_to_queue(
    worker: &Worker,
    info: &RequestInfo<'_>,
    context: &Context,
    limit: Duration,
) -> std::result::Result<Permit, Rejection> {
    context.set_user(info.user);
    match &worker.shared.limits.limiter {
        RequestLimiter::Fair(flow_controller) => {
            let Some(flow) = flow_controller.flow(info.user, info.request) else { return Ok(Permit::none()) };
            context.set_flow(Some(flow.clone()));
            // A watch has no timeout of its own.
            let limit =
                if info.request.verb == Verb::Watch { worker.shared.limits.request_timeout } else { limit };
            flow_controller.enter(&flow, info, limit / QUEUE_WAIT_DIVISOR).await
        }
        RequestLimiter::Plain(in_flight) => {
            // A busy server is healthy: health checks take no slot.
            let is_health =
                matches!(info.request.target, Target::NonResource(path) if health::is_health(path));
            let is_unlimited = info.request.is_long_running() || is_health;
            if is_unlimited { Ok(Permit::none()) } else { in_flight.enter(info) }
        }
    }
}

/// Audit annotations about the credentials, kept in the request's extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotations(pub Vec<(&'static str, String)>);

impl Annotations {
    /// Sorts remarks: annotations are returned, warnings go to the client.
    pub fn new(remarks: Vec<Remark>, warnings: &Warnings) -> Annotations {
        let mut annotations = Vec::new();
        for remark in remarks {
            match remark {
                Remark::Warning(text) => warnings.add(text),
                Remark::Annotation(key, text) => annotations.push((key, text)),
            }
        }
        Annotations(annotations)
    }
}

/// Answers 403 unless the caller is authorized.
pub async fn authorize(
    worker: &Worker,
    request: &HttpRequest,
    identity: &Arc<Identity>,
    parsed: &Request<'_>,
    query: &Query<'_>,
) -> Result<()> {
    let selection =
        if worker.backend.access.uses_selectors { selection(parsed, query) } else { Arc::default() };
    let (result, record) = check_authorization(worker, identity, Arc::new(action(parsed)), selection).await?;
    if tracing::enabled!(tracing::Level::DEBUG) {
        let (decision, reason) = (record.decision, record.reason());
        tracing::debug!(
            user = identity.name,
            path = request.path(),
            decision,
            reason,
            "authorization decided"
        );
    }
    request.extensions_mut().insert(record);
    result
}

/// Asks the authorizer. Returns a 403 unless it allows the request, and its decision in any case.
async fn check_authorization(
    worker: &Worker,
    identity: &Arc<Identity>,
    action: Arc<Action>,
    selection: Arc<Selection>,
) -> Result<(Result<()>, AuthorizationRecord)> {
    let (backend, metrics) = (&worker.backend, &worker.shared.metrics);
    let result = backend.access.authorize_request(metrics, &backend.clock, identity, action, selection).await;
    result.map_err(|_| actor_stopped(worker, "authorizer"))
}

/// The selectors of a request, for authorizers. An invalid selector is rejected later; until then it counts as absent, which can
/// only make authorization stricter.
fn selection(request: &Request<'_>, query: &Query<'_>) -> Arc<Selection> {
    let is_collection = matches!(request.verb, Verb::List | Verb::Watch | Verb::DeleteCollection);
    let (fields, labels) = (query.get("fieldSelector"), query.get("labelSelector"));
    // The deprecated watch prefix never evaluated selectors here.
    let is_legacy_watch = request.resource().is_none_or(|path_info| path_info.legacy_watch);
    if !is_collection || is_legacy_watch || (fields.is_none() && labels.is_none()) {
        return Arc::default();
    }
    Arc::new(Selection {
        fields: fields.and_then(parse_fields).unwrap_or_default(),
        labels: labels.and_then(|text| parse_labels(text).ok()).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authentication_remarks_become_warnings_or_annotations() {
        let warnings = Warnings::default();
        let remarks = vec![
            Remark::Annotation("a", "1".to_owned()),
            Remark::Warning("old"),
            Remark::Annotation("b", "2".to_owned()),
        ];
        let annotations = Annotations::new(remarks, &warnings);
        assert_eq!(annotations, Annotations(vec![("a", "1".to_owned()), ("b", "2".to_owned())]));
        assert_eq!(warnings.take(), ["old"]);
    }

    #[test]
    fn authorization_uses_selectors_only_for_collections() {
        let selection_for = |method: &str, path: &str, query: &str| {
            let query = Query::parse(query);
            selection(&Request::parse(method, path, &query).unwrap(), &query).as_ref().clone()
        };
        let fields = "fieldSelector=spec.nodeName%3Da&labelSelector=b";
        for (method, query) in [("GET", ""), ("GET", "&watch=1"), ("DELETE", "")] {
            let selection = selection_for(method, "/api/v1/pods", &format!("{fields}{query}"));
            assert_eq!((selection.fields.len(), selection.labels.len()), (1, 1), "{method} {query}");
        }
        assert_eq!(selection_for("GET", "/api/v1/namespaces/n/pods/a", fields), Selection::default());
        assert_eq!(selection_for("GET", "/api/v1/watch/pods", fields), Selection::default());
        assert_eq!(selection_for("GET", "/api/v1/pods", "fieldSelector=abc"), Selection::default());
    }
}
