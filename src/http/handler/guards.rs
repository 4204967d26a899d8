//! The guards of the chain: who is asking, is there room, may they.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use actix_web::http::header;
use actix_web::{HttpMessage as _, HttpRequest};
use pilothouse_actors::authenticator::Authenticate;
use pilothouse_actors::authorizer::{Action, Decision, Judge, Selection, Target as ActionTarget};
use pilothouse_actors::identity::{Credentials, Identity};
use pilothouse_actors::permit::Permit;

use crate::api::denial::denied;
use crate::api::path::{Request, Target};
use crate::api::query::Query;
use crate::api::reviews::access::parse_fields;
use crate::api::select::parse_labels;
use crate::api::status::{Result, Status};
use crate::api::verb::Verb;
use crate::http::peer::Peer;
use crate::metrics::Judged;

use super::health;
use super::render::text;
use super::worker::Worker;

/// Who sends this request.
pub async fn authenticate(worker: &Worker, request: &HttpRequest) -> Result<Arc<Identity>> {
    let certificates = request.extensions().get::<Peer>().map(|peer| peer.certificates.0.clone());
    let certificates = certificates.filter(|chain| !chain.is_empty());
    let bearer = bearer(text(request.headers(), header::AUTHORIZATION)).map(str::to_owned);
    let credentials = Credentials { certificates, bearer };
    match worker.authenticator.send(Authenticate { credentials }).await {
        Ok(Ok(identity)) => Ok(identity),
        Ok(Err(refusal)) => {
            tracing::debug!(%refusal, "authentication failed");
            Err(Status::unauthorized())
        }
        Err(_) => Err(silent(worker, "authenticator")),
    }
}

/// A guard that has died would leave a worker that refuses everybody: the server ends instead and starts anew.
fn silent(worker: &Worker, guard: &str) -> Box<Status> {
    let health = &worker.shared.health;
    if !health.stopping.load(Ordering::Acquire) {
        health.fatal.raise(format!("an {guard} has died"));
    }
    Status::unavailable(format!("the {guard} does not answer"))
}

/// The token of an Authorization header. Any other scheme and an empty token count as no credentials at all.
fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && !token.contains(' ')).then_some(token)
}

/// A place among the requests in flight, or 429. The permit travels inside the messages of the request.
pub fn take_place(worker: &Worker, request: &Request<'_>) -> Result<Permit> {
    let places = &worker.shared.places;
    // A server that is busy is not sick: whoever asks for its health gets an answer.
    if let Target::NonResource(path) = request.target
        && health::is_health(path)
    {
        return Ok(Permit::none());
    }
    let room = match request.verb {
        Verb::Watch => return Ok(Permit::none()),
        Verb::Get | Verb::List | Verb::Head | Verb::Options => &places.reading,
        _ => &places.writing,
    };
    match room.clone().try_acquire_owned() {
        Ok(permit) => Ok(Permit::from(permit)),
        Err(_) => Err(Status::too_many_requests("Too many requests, please try again later.", 1)),
    }
}

/// Refuses what the caller may not do.
pub async fn authorize(
    worker: &Worker,
    identity: &Arc<Identity>,
    request: &Request<'_>,
    query: &Query<'_>,
) -> Result<()> {
    let action = Arc::new(action(request));
    let selection = if worker.backend.judges_selectors { selection(request, query) } else { Arc::default() };
    let asked = Judge { identity: identity.clone(), action: action.clone(), selection };
    let began = worker.backend.clock.now();
    let Ok(verdict) = worker.authorizer.send(asked).await else { return Err(silent(worker, "authorizer")) };
    let (judged, result) = match (verdict.decision, verdict.error) {
        (Decision::Allowed, _) => (Judged::Allowed, Ok(())),
        (_, Some(error)) => (Judged::Failed, Err(Status::internal(error))),
        (Decision::Denied(reason), None) => (Judged::Denied, Err(denied(&identity.name, &action, &reason))),
        (Decision::NoOpinion(reason), None) => {
            (Judged::NoOpinion, Err(denied(&identity.name, &action, &reason)))
        }
    };
    let took = worker.backend.clock.now().0.saturating_sub(began.0);
    worker.shared.metrics.count_judged(judged, took as f64 / 1e6);
    result
}

/// Which of the objects a request is about. What cannot be understood here is refused later; until then it counts as not
/// said, which can only make policies stricter.
fn selection(request: &Request<'_>, query: &Query<'_>) -> Arc<Selection> {
    let many = matches!(request.verb, Verb::List | Verb::Watch | Verb::DeleteCollection);
    let (fields, labels) = (query.get("fieldSelector"), query.get("labelSelector"));
    // The old prefix of watches has never taken selectors seriously.
    let legacy = request.resource().is_none_or(|found| found.legacy_watch);
    if !many || legacy || (fields.is_none() && labels.is_none()) {
        return Arc::default();
    }
    Arc::new(Selection {
        fields: fields.and_then(parse_fields).unwrap_or_default(),
        labels: labels.and_then(|text| parse_labels(text).ok()).unwrap_or_default(),
    })
}

fn action(request: &Request<'_>) -> Action {
    let target = match &request.target {
        Target::NonResource(path) => ActionTarget::Path((*path).to_owned()),
        Target::Resource(found) => ActionTarget::Resource {
            group: found.group.to_owned(),
            version: found.version.to_owned(),
            resource: found.resource.to_owned(),
            subresource: found.subresource.to_owned(),
            namespace: found.namespace.to_owned(),
            name: found.authorized_name.to_string(),
        },
    };
    Action { verb: request.verb.as_str().to_owned(), target }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_token_is_a_credential() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc "), Some("abc"));
        for other in ["", "Bearer", "Bearer ", "Basic dTpw", "Bearer a b"] {
            assert_eq!(bearer(other), None, "{other}");
        }
    }
}
