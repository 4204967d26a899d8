//! The guards of the chain: who is asking, is there room, may they.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use actix_web::http::{Version, header};
use actix_web::{HttpMessage as _, HttpRequest};
use pilothouse_actors::authenticator::Authenticate;
use pilothouse_actors::authorizer::{Action, Authorize, Decision, Target as ActionTarget};
use pilothouse_actors::identity::{Credentials, Identity};
use pilothouse_actors::permit::Permit;

use crate::api::connect::WAYS;
use crate::api::path::{Request, Target};
use crate::api::status::{GroupResource, Result, Status};
use crate::api::verb::Verb;
use crate::api::words::{ANONYMOUS, MASTERS, UNAUTHENTICATED};
use crate::http::peer::Peer;

use super::health;
use super::render::text;
use super::worker::Worker;

/// The mark of a request from somebody whom nobody knows.
struct Unknown;

/// Whether the connection of this request shall end with it. HTTP/2 is dear to serve and easy to abuse: those who have not
/// said who they are get one request per connection, as the reference does.
pub fn shall_end(worker: &Worker, request: &HttpRequest) -> bool {
    worker.shared.closes_unknown
        && request.version() == Version::HTTP_2
        && request.extensions().get::<Unknown>().is_some()
}

/// Who sends this request.
pub async fn authenticate(worker: &Worker, request: &HttpRequest) -> Result<Arc<Identity>> {
    let certificates = request.extensions().get::<Peer>().map(|peer| peer.certificates.0.clone());
    let certificates = certificates.filter(|chain| !chain.is_empty());
    let bearer = bearer(text(request.headers(), header::AUTHORIZATION)).map(str::to_owned);
    let credentials = Credentials { certificates, bearer };
    match worker.authenticator.send(Authenticate { credentials }).await {
        Ok(Ok(identity)) => {
            if identity.name == ANONYMOUS || identity.groups.iter().any(|group| group == UNAUTHENTICATED) {
                request.extensions_mut().insert(Unknown);
            }
            Ok(identity)
        }
        Ok(Err(refusal)) => {
            tracing::debug!(%refusal, "authentication failed");
            request.extensions_mut().insert(Unknown);
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
/// Those who may do everything get in however full it is: they are who could help.
pub fn take_place(worker: &Worker, identity: &Identity, request: &Request<'_>) -> Result<Permit> {
    let places = &worker.shared.places;
    // A server that is busy is not sick: whoever asks for its health gets an answer.
    if let Target::NonResource(path) = request.target
        && health::is_health(path)
    {
        return Ok(Permit::none());
    }
    if request.resource().is_some_and(|found| WAYS.contains(&found.subresource)) {
        return Ok(Permit::none());
    }
    let room = match request.verb {
        Verb::Watch => return Ok(Permit::none()),
        Verb::Get | Verb::List | Verb::Head | Verb::Options => &places.reading,
        _ => &places.writing,
    };
    match room.clone().try_acquire_owned() {
        Ok(permit) => Ok(Permit::from(permit)),
        Err(_) if identity.groups.iter().any(|group| group == MASTERS) => Ok(Permit::none()),
        Err(_) => Err(Status::too_many_requests("Too many requests, please try again later.", 1)),
    }
}

/// Refuses what the caller may not do.
pub async fn authorize(worker: &Worker, identity: &Arc<Identity>, request: &Request<'_>) -> Result<()> {
    let action = Arc::new(action(request));
    let decision = worker.authorizer.send(Authorize { identity: identity.clone(), action }).await;
    match decision {
        Ok(Decision::Allowed) => Ok(()),
        Ok(Decision::Denied(reason) | Decision::NoOpinion(reason)) => {
            Err(forbidden(identity, request, &reason))
        }
        Err(_) => Err(silent(worker, "authorizer")),
    }
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

fn forbidden(identity: &Identity, request: &Request<'_>, reason: &str) -> Box<Status> {
    let user = &identity.name;
    let verb = request.verb;
    let mut message = match &request.target {
        Target::NonResource(path) => format!("User \"{user}\" cannot {verb} path \"{path}\""),
        Target::Resource(found) => {
            let mut resource = found.resource.to_owned();
            if !found.subresource.is_empty() {
                resource.push('/');
                resource.push_str(found.subresource);
            }
            let scope = match found.namespace {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace \"{namespace}\""),
            };
            format!(
                "User \"{user}\" cannot {verb} resource \"{resource}\" in API group \"{}\" {scope}",
                found.group
            )
        }
    };
    message = message.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    if !reason.is_empty() {
        message = format!("{message}: {reason}");
    }
    let of = request.resource().map(|found| {
        (GroupResource { group: found.group, resource: found.resource }, &*found.authorized_name)
    });
    Status::forbidden(&message, of)
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
