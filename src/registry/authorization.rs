//! Access to the authenticator and the authorizer. Here an authorizer that does not respond becomes a 503.

use std::sync::Arc;

use actix::{Addr, Handler, MailboxError, Message};
use pilothouse_actors::authenticator::Authenticator;
use pilothouse_actors::authorizer::{Authorize, AuthorizeExplained, Authorizer};
use pilothouse_api::path;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_authorization::denial::denied;
use pilothouse_types::authorization::{Action, Decision, ExplainedDecision, Selection, Target};
use pilothouse_types::clock::Clock;
use pilothouse_types::identity::Identity;

use crate::audit::Trail;
use crate::auth::rbac::Roles;
use crate::metrics::Metrics;
use crate::metrics::authorization_webhooks::AuthorizationResult;

/// The audit annotation of the decision.
pub const DECISION: &str = "authorization.k8s.io/decision";
/// The audit annotation of its reason.
pub const REASON: &str = "authorization.k8s.io/reason";

/// The authenticator and authorizer of one worker.
pub struct Access {
    /// Authenticates requests, and verifies tokens of TokenReviews.
    pub authenticator: Addr<Authenticator>,
    /// Authorizes requests, answers access reviews, and checks rights that a verb needs besides its own.
    pub authorizer: Addr<Authorizer>,
    /// The RBAC index.
    pub roles: Arc<Roles>,
    /// Whether authorization takes label and field selectors into account.
    pub uses_selectors: bool,
}

impl Access {
    /// Authorizes a request. Returns 403 unless the user is allowed, together with the decision; an error if the authorizer is
    /// gone.
    pub async fn authorize_request(
        &self,
        metrics: &Metrics,
        clock: &Clock,
        identity: &Arc<Identity>,
        action: Arc<Action>,
        selection: Arc<Selection>,
    ) -> std::result::Result<(Result<()>, AuthorizationRecord), MailboxError> {
        let command = AuthorizeExplained { identity: identity.clone(), action: action.clone(), selection };
        let began = clock.moment();
        let verdict = self.authorizer.send(command).await?;
        let record = AuthorizationRecord::new(&verdict);
        let (outcome, result) = match (verdict.decision, verdict.error) {
            (Decision::Allowed, _) => (AuthorizationResult::Allowed, Ok(())),
            (_, Some(error)) => (AuthorizationResult::Failed, Err(Status::internal(error))),
            (Decision::Denied(reason), None) => {
                (AuthorizationResult::Denied, Err(denied(&identity.name, &action, &reason)))
            }
            (Decision::NoOpinion(reason), None) => {
                (AuthorizationResult::NoOpinion, Err(denied(&identity.name, &action, &reason)))
            }
        };
        metrics.authorization.count_authorized(outcome, clock.elapsed(began).as_secs_f64());
        Ok((result, record))
    }
}

/// The authorization decision in the form of audit annotations. The reason is formatted only when it is read.
#[derive(Clone)]
pub struct AuthorizationRecord {
    /// `allow`, `forbid`, or empty after an error.
    pub decision: &'static str,
    verdict: ExplainedDecision,
}

impl AuthorizationRecord {
    fn new(verdict: &ExplainedDecision) -> AuthorizationRecord {
        let decision = match (&verdict.decision, &verdict.error) {
            (Decision::Allowed, _) => "allow",
            (_, Some(_)) => "",
            (_, None) => "forbid",
        };
        AuthorizationRecord { decision, verdict: verdict.clone() }
    }

    /// The authorizer's reason.
    pub fn reason(&self) -> String {
        if self.decision.is_empty() { "internal error".to_owned() } else { self.verdict.reason() }
    }

    /// Annotates the audit events of the request.
    pub fn annotate(&self, trail: &Trail) {
        if !self.decision.is_empty() {
            trail.annotate(DECISION, self.decision.to_owned());
        }
        trail.annotate(REASON, self.reason());
    }
}

/// The action of a request, which the authorizer decides about.
pub fn action(request: &path::Request<'_>) -> Action {
    let target = match &request.target {
        path::Target::NonResource(path) => Target::Path((*path).to_owned()),
        path::Target::Resource(resource) => Target::Resource {
            group: resource.group.to_owned(),
            version: resource.version.to_owned(),
            resource: resource.resource.to_owned(),
            subresource: resource.subresource.to_owned(),
            namespace: resource.namespace.to_owned(),
            name: resource.authorized_name.to_string(),
        },
    };
    Action { verb: request.verb.as_str().to_owned(), target }
}

/// Sends a command to the authorizer; 503 if it is gone.
pub async fn send<M>(authorizer: &Addr<Authorizer>, command: M) -> Result<M::Result>
where
    Authorizer: Handler<M>,
    M: Message + Send + 'static,
    M::Result: Send,
{
    authorizer.send(command).await.map_err(|_| Status::unavailable("the authorizer does not answer"))
}

/// The decision about an action of a user.
pub async fn authorize(
    authorizer: &Addr<Authorizer>,
    user: &Identity,
    verb: &str,
    target: Target,
) -> Result<Decision> {
    let action = Arc::new(Action { verb: verb.to_owned(), target });
    send(authorizer, Authorize { identity: Arc::new(user.clone()), action }).await
}

/// Whether a user may perform an action.
pub async fn is_allowed(
    authorizer: &Addr<Authorizer>,
    user: &Identity,
    verb: &str,
    target: Target,
) -> Result<bool> {
    Ok(authorize(authorizer, user, verb, target).await? == Decision::Allowed)
}

#[cfg(test)]
mod tests {
    use actix::{Actor as _, Arbiter};
    use pilothouse_api::catalog::build::Builtin;
    use pilothouse_api::catalog::resource::Resource;
    use pilothouse_api::catalog::runtime_config::RuntimeConfig;
    use pilothouse_apimachinery::query::Query;

    use super::*;

    #[actix::test]
    async fn unavailable_authorizer_is_503() {
        let authorizer = Authorizer::new(Arc::default()).start();
        let user = Identity::default();
        let target = || Target::Path("/".to_owned());
        assert!(!is_allowed(&authorizer, &user, "get", target()).await.unwrap());
        let thread = Arbiter::new();
        let stopped = Authorizer::start_in_arbiter(&thread.handle(), |_| Authorizer::new(Arc::default()));
        thread.stop();
        thread.join().unwrap();
        assert_eq!(is_allowed(&stopped, &user, "get", target()).await.unwrap_err().code, 503);
    }

    #[test]
    fn authorization_record_uses_audit_annotation_values() {
        let record = |decision: Decision, allow_reason: &'static str, error: Option<&str>| {
            let verdict = ExplainedDecision {
                decision,
                allow_reason: Some(Arc::new(allow_reason)),
                error: error.map(str::to_owned),
            };
            let annotations = AuthorizationRecord::new(&verdict);
            (annotations.decision, annotations.reason())
        };
        let (allowed, no_opinion) =
            (Decision::Allowed, |reason: &str| Decision::NoOpinion(reason.to_owned()));
        assert_eq!(record(allowed.clone(), "RBAC: allowed", None), ("allow", "RBAC: allowed".to_owned()));
        assert_eq!(record(allowed, "fine", Some("a webhook hung")), ("allow", "fine".to_owned()));
        assert_eq!(record(no_opinion("no role"), "", None), ("forbid", "no role".to_owned()));
        assert_eq!(record(Decision::Denied("never".into()), "", None), ("forbid", "never".to_owned()));
        assert_eq!(record(no_opinion(""), "", Some("a webhook hung")), ("", "internal error".to_owned()));
    }

    /// The path of a resource: its collection, namespaced or not, or below a name.
    fn path_of(resource: &Resource, namespace: &str, rest: &str) -> String {
        let gv = &resource.gv;
        let root = if gv.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", gv.group) };
        let scope = if namespace.is_empty() { String::new() } else { format!("/namespaces/{namespace}") };
        format!("{root}/{}{scope}/{}{rest}", gv.version, resource.plural)
    }

    #[test]
    fn action_names_every_resource_and_subresource() {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let verbs = [
            ("POST", "", "", "create"),
            ("GET", "", "", "list"),
            ("GET", "", "watch=1", "watch"),
            ("DELETE", "", "", "deletecollection"),
            ("GET", "/a", "", "get"),
            ("HEAD", "/a", "", "get"),
            ("PUT", "/a", "", "update"),
            ("PATCH", "/a", "", "patch"),
            ("DELETE", "/a", "", "delete"),
        ];
        let mut checked = 0;
        for resource in catalog.resources() {
            let scopes: &[&str] = if resource.namespaced { &["", "n"] } else { &[""] };
            let parts = resource.subresources.iter().map(|part| format!("/a/{}", part.name));
            for scope in scopes {
                let whole = verbs
                    .iter()
                    .map(|(method, rest, query, verb)| (*method, (*rest).to_owned(), *query, *verb));
                let of_parts = parts.clone().flat_map(|rest| {
                    [("GET", "get"), ("PUT", "update"), ("PATCH", "patch"), ("POST", "create")]
                        .map(|(method, verb)| (method, rest.clone(), "", verb))
                });
                for (method, rest, query, verb) in whole.chain(of_parts) {
                    let path = path_of(resource, scope, &rest);
                    let request = path::Request::parse(method, &path, &Query::parse(query)).unwrap();
                    let mut segments = rest.split('/').skip(1);
                    let (name, part) =
                        (segments.next().unwrap_or_default(), segments.next().unwrap_or_default());
                    // The namespace of a Namespace is itself.
                    let is_namespace = resource.gv.group.is_empty() && &*resource.plural == "namespaces";
                    let target = Target::Resource {
                        group: resource.gv.group.to_string(),
                        version: resource.gv.version.to_string(),
                        resource: resource.plural.to_string(),
                        subresource: part.to_owned(),
                        namespace: if is_namespace { name.to_owned() } else { (*scope).to_owned() },
                        name: name.to_owned(),
                    };
                    assert_eq!(action(&request), Action { verb: verb.to_owned(), target }, "{method} {path}");
                    checked += 1;
                }
            }
        }
        assert!(checked > 1_000, "{checked}");
    }
}
