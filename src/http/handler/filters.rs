//! The checks before a request is served: authentication, admission to a queue, authorization.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix_web::http::{Version, header};
use actix_web::{HttpMessage as _, HttpRequest};
use pilothouse_actors::authenticator::Authenticate;
use pilothouse_actors::fair_queuing::level::Refused;
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
use crate::backend::Warnings;
use crate::backend::authorization::{AuthorizationRecord, action};
use crate::flowcontrol::{RequestInfo, RequestLimiter};
use crate::http::connections::Standing;
use crate::http::peer::Peer;
use crate::http::websocket;
use crate::limits::REFUSAL_CHARS;
use crate::metrics::authentication::Attempt;

use super::health;
use super::render::Context;
use super::worker::Worker;

/// A request may wait in its queue for this fraction of its timeout; the reference's value.
const WAITS_FOR: u32 = 4;

/// Marks a request whose authentication failed.
struct Unknown;

/// Marks a request whose connection must make room for users who are exempt.
struct NoRoom;

/// Whether the connection ends after this request. HTTP/2 is expensive to serve and easy to abuse, so unauthenticated clients get
/// one request per connection, as in the reference.
pub fn closes_connection(worker: &Worker, request: &HttpRequest) -> bool {
    if request.extensions().get::<NoRoom>().is_some() {
        return true;
    }
    worker.shared.closes_unknown
        && request.version() == Version::HTTP_2
        && request.extensions().get::<Unknown>().is_some()
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
    let shown = bearer(&header);
    shown.warning.into_iter().for_each(|warning| warnings.add(warning));
    let bearer = shown.token.map(str::to_owned).or_else(|| websocket::bearer(request.headers()));
    let headers = worker.shared.front_headers.as_ref().filter(|_| certificates.is_some());
    let claimed = headers.and_then(|known| known.claimed(pairs(request))).map(Arc::new);
    let paths = worker.shared.anonymous_paths.as_ref();
    let never_anonymous = paths.is_some_and(|paths| !paths.iter().any(|path| path == request.path()));
    let credentials =
        Credentials { certificates, bearer, claimed, never_anonymous, ..Credentials::default() };
    let (clock, metrics) = (&worker.backend.clock, &worker.shared.metrics.authentication);
    let began = clock.moment();
    let found = worker.backend.access.authenticator.send(Authenticate { credentials }).await;
    let count = |attempt, user| metrics.attempted(attempt, user, clock.elapsed(began));
    match found {
        Ok(Ok(found)) => {
            let identity = found.identity;
            count(Attempt::Success, Some(identity.name.as_str()));
            if !found.remarks.is_empty() {
                let annotations = Annotations::of(found.remarks, warnings);
                tracing::debug!(user = identity.name, ?annotations, "authenticated");
                request.extensions_mut().insert(annotations);
            }
            let standing = standing(&identity);
            if standing == Standing::Anonymous {
                request.extensions_mut().insert(Unknown);
            }
            let connection = request.extensions().get::<Peer>().and_then(|peer| peer.connection.clone());
            if connection.is_some_and(|connection| !connection.note_caller(standing)) {
                request.extensions_mut().insert(NoRoom);
                return Err(Status::too_many_requests("too many connections, please try again later", 1));
            }
            Ok(identity)
        }
        Ok(Err(refusal)) => {
            let nothing = matches!(refusal, Refusal::Anonymous);
            count(if nothing { Attempt::Failure } else { Attempt::Error }, None);
            log_refusal(worker, &refusal);
            request.extensions_mut().insert(Unknown);
            Err(Status::unauthorized())
        }
        Err(_) => Err(gone(worker, "authenticator")),
    }
}

/// What a request of this user says about its connection. Nodes, and those who mend the cluster, keep theirs when there are too many.
fn standing(identity: &Identity) -> Standing {
    let is_in = |wanted: &str| identity.groups.iter().any(|group| group == wanted);
    if identity.name == ANONYMOUS || is_in(UNAUTHENTICATED) {
        Standing::Anonymous
    } else if is_in(MASTERS) || is_in(NODES) {
        Standing::Exempt
    } else {
        Standing::Authenticated
    }
}

/// Logs why credentials were rejected, at most once a second, so that an attacker cannot fill the disk. The reason may quote the
/// token's claims, so it is cut.
fn log_refusal(worker: &Worker, refusal: &Refusal) {
    let (now, reason) = (worker.backend.clock.moment(), refusal.to_string());
    let reason = reason.char_indices().nth(REFUSAL_CHARS).map_or(reason.as_str(), |(at, _)| &reason[..at]);
    if *refusal == Refusal::Anonymous || !worker.refusals.allows(now) {
        return tracing::debug!(why = reason, "authentication failed");
    }
    tracing::warn!(why = reason, "authentication failed");
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
        fields.push((name, text.map_err(|_| Status::bad_request(format!("Impersonate-{name} is no text")))?));
    }
    let Some(impersonated) = ImpersonatedUser::of(fields.into_iter())? else { return Ok(caller) };
    for action in impersonated.actions() {
        judge(worker, &caller, Arc::new(action), Arc::default()).await?.0?;
    }
    let identity = impersonated.into_identity();
    tracing::debug!(caller = caller.name, as_ = identity.name, "impersonation");
    Ok(Arc::new(identity))
}

/// A worker without its authenticator or authorizer would reject everybody. The server ends instead, to be restarted.
fn gone(worker: &Worker, actor: &str) -> Box<Status> {
    let health = &worker.shared.health;
    if !health.stopping.load(Ordering::Acquire) {
        health.fatal.raise(format!("an {actor} has died"));
    }
    Status::unavailable(format!("the {actor} does not answer"))
}

/// Admits a request to execution, possibly after it waited in a queue, or answers when to retry. The permit travels inside the
/// messages of the request. `limit`: the timeout of the whole request.
pub async fn admit_to_queue(
    worker: &Worker,
    asked: &RequestInfo<'_>,
    context: &Context,
    limit: Duration,
) -> std::result::Result<Permit, Refused> {
    context.act_for(asked.user);
    match &worker.shared.room {
        RequestLimiter::Fair(gate) => {
            let Some(flow) = gate.flow(asked.user, asked.request) else { return Ok(Permit::none()) };
            context.put_to(Some(flow.clone()));
            // A watch has no timeout of its own.
            let limit = if asked.request.verb == Verb::Watch { worker.shared.request_timeout } else { limit };
            gate.enter(&flow, asked, limit / WAITS_FOR).await
        }
        RequestLimiter::Plain(places) => {
            // A busy server is healthy: health checks take no place.
            let is_health =
                matches!(asked.request.target, Target::NonResource(path) if health::is_health(path));
            let is_free = asked.request.is_long_running() || is_health;
            if is_free { Ok(Permit::none()) } else { places.enter(asked) }
        }
    }
}

/// Audit annotations about the credentials, kept in the request's extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotations(pub Vec<(&'static str, String)>);

impl Annotations {
    /// Sorts remarks: annotations are returned, warnings go to the client.
    pub fn of(remarks: Vec<Remark>, warnings: &Warnings) -> Annotations {
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
    let (result, judgement) = judge(worker, identity, Arc::new(action(parsed)), selection).await?;
    if tracing::enabled!(tracing::Level::DEBUG) {
        let (decision, reason) = (judgement.decision, judgement.reason());
        tracing::debug!(
            user = identity.name,
            path = request.path(),
            decision,
            reason,
            "authorization decided"
        );
    }
    request.extensions_mut().insert(judgement);
    result
}

/// Asks the authorizer. Answers a 403 unless it allows the request, and its decision in any case.
async fn judge(
    worker: &Worker,
    identity: &Arc<Identity>,
    action: Arc<Action>,
    selection: Arc<Selection>,
) -> Result<(Result<()>, AuthorizationRecord)> {
    let (backend, metrics) = (&worker.backend, &worker.shared.metrics);
    let judged = backend.access.judge((metrics, &backend.clock), identity, action, selection).await;
    judged.map_err(|_| gone(worker, "authorizer"))
}

/// The selectors of a request, for authorizers. An invalid selector is rejected later; until then it counts as absent, which can
/// only make authorization stricter.
fn selection(request: &Request<'_>, query: &Query<'_>) -> Arc<Selection> {
    let many = matches!(request.verb, Verb::List | Verb::Watch | Verb::DeleteCollection);
    let (fields, labels) = (query.get("fieldSelector"), query.get("labelSelector"));
    // The deprecated watch prefix never evaluated selectors here.
    let legacy = request.resource().is_none_or(|found| found.legacy_watch);
    if !many || legacy || (fields.is_none() && labels.is_none()) {
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
    fn what_is_said_of_credentials_is_told_or_written_down() {
        let warnings = Warnings::default();
        let remarks = vec![
            Remark::Annotation("a", "1".to_owned()),
            Remark::Warning("old"),
            Remark::Annotation("b", "2".to_owned()),
        ];
        let written = Annotations::of(remarks, &warnings);
        assert_eq!(written, Annotations(vec![("a", "1".to_owned()), ("b", "2".to_owned())]));
        assert_eq!(warnings.take(), ["old"]);
    }

    #[test]
    fn selectors_count_where_many_objects_are_meant() {
        let of = |method: &str, path: &str, query: &str| {
            let query = Query::parse(query);
            selection(&Request::parse(method, path, &query).unwrap(), &query).as_ref().clone()
        };
        let fields = "fieldSelector=spec.nodeName%3Da&labelSelector=b";
        for (method, query) in [("GET", ""), ("GET", "&watch=1"), ("DELETE", "")] {
            let found = of(method, "/api/v1/pods", &format!("{fields}{query}"));
            assert_eq!((found.fields.len(), found.labels.len()), (1, 1), "{method} {query}");
        }
        assert_eq!(of("GET", "/api/v1/namespaces/n/pods/a", fields), Selection::default());
        assert_eq!(of("GET", "/api/v1/watch/pods", fields), Selection::default());
        assert_eq!(of("GET", "/api/v1/pods", "fieldSelector=abc"), Selection::default());
    }
}
