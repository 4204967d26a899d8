//! Who a user is and what they may do. The one place where the silence of an authorizer becomes an answer to the client.

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
    /// Asks whether a user may do what a request wants. Answers a 403 unless they may, and the decision in any case; an error if
    /// nobody answers.
    pub async fn judge(
        &self,
        (metrics, clock): (&Metrics, &Clock),
        identity: &Arc<Identity>,
        action: Arc<Action>,
        selection: Arc<Selection>,
    ) -> std::result::Result<(Result<()>, AuthorizationRecord), MailboxError> {
        let question = AuthorizeExplained { identity: identity.clone(), action: action.clone(), selection };
        let began = clock.moment();
        let verdict = self.authorizer.send(question).await?;
        let record = AuthorizationRecord::new(&verdict);
        let (judged, result) = match (verdict.decision, verdict.error) {
            (Decision::Allowed, _) => (AuthorizationResult::Allowed, Ok(())),
            (_, Some(error)) => (AuthorizationResult::Failed, Err(Status::internal(error))),
            (Decision::Denied(reason), None) => {
                (AuthorizationResult::Denied, Err(denied(&identity.name, &action, &reason)))
            }
            (Decision::NoOpinion(reason), None) => {
                (AuthorizationResult::NoOpinion, Err(denied(&identity.name, &action, &reason)))
            }
        };
        metrics.authorization.count_judged(judged, clock.elapsed(began).as_secs_f64());
        Ok((result, record))
    }
}

/// The authorization decision as audit logs word it. The reason is formatted only when it is read.
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

/// What authorization decides about a request.
pub fn action(request: &path::Request<'_>) -> Action {
    let target = match &request.target {
        path::Target::NonResource(path) => Target::Path((*path).to_owned()),
        path::Target::Resource(found) => Target::Resource {
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

/// Asks a question; 503 if nobody answers.
pub async fn ask<Q>(authorizer: &Addr<Authorizer>, question: Q) -> Result<Q::Result>
where
    Authorizer: Handler<Q>,
    Q: Message + Send + 'static,
    Q::Result: Send,
{
    authorizer.send(question).await.map_err(|_| Status::unavailable("the authorizer does not answer"))
}

/// What is decided of a user who wants to do this.
pub async fn decision(
    authorizer: &Addr<Authorizer>,
    user: &Identity,
    verb: &str,
    target: Target,
) -> Result<Decision> {
    let action = Arc::new(Action { verb: verb.to_owned(), target });
    ask(authorizer, Authorize { identity: Arc::new(user.clone()), action }).await
}

/// Whether a user may do this.
pub async fn may(authorizer: &Addr<Authorizer>, user: &Identity, verb: &str, target: Target) -> Result<bool> {
    Ok(decision(authorizer, user, verb, target).await? == Decision::Allowed)
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
    async fn what_nobody_answers_is_a_503() {
        let authorizer = Authorizer::new(Arc::default()).start();
        let user = Identity::default();
        let target = || Target::Path("/".to_owned());
        assert!(!may(&authorizer, &user, "get", target()).await.unwrap());
        let thread = Arbiter::new();
        let gone = Authorizer::start_in_arbiter(&thread.handle(), |_| Authorizer::new(Arc::default()));
        thread.stop();
        thread.join().unwrap();
        assert_eq!(may(&gone, &user, "get", target()).await.unwrap_err().code, 503);
    }

    #[test]
    fn what_was_said_is_kept_in_the_words_of_audit_logs() {
        let said = |decision: Decision, grounds: &'static str, error: Option<&str>| {
            let verdict = ExplainedDecision {
                decision,
                grounds: Some(Arc::new(grounds)),
                error: error.map(str::to_owned),
            };
            let kept = AuthorizationRecord::new(&verdict);
            (kept.decision, kept.reason())
        };
        let (allowed, no) = (Decision::Allowed, |why: &str| Decision::NoOpinion(why.to_owned()));
        assert_eq!(said(allowed.clone(), "RBAC: allowed", None), ("allow", "RBAC: allowed".to_owned()));
        assert_eq!(said(allowed, "fine", Some("a webhook hung")), ("allow", "fine".to_owned()));
        assert_eq!(said(no("no role"), "", None), ("forbid", "no role".to_owned()));
        assert_eq!(said(Decision::Denied("never".into()), "", None), ("forbid", "never".to_owned()));
        assert_eq!(said(no(""), "", Some("a webhook hung")), ("", "internal error".to_owned()));
    }

    /// The path of a resource: its collection, namespaced or not, or below a name.
    fn path_of(resource: &Resource, namespace: &str, rest: &str) -> String {
        let gv = &resource.gv;
        let root = if gv.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", gv.group) };
        let scope = if namespace.is_empty() { String::new() } else { format!("/namespaces/{namespace}") };
        format!("{root}/{}{scope}/{}{rest}", gv.version, resource.plural)
    }

    #[test]
    fn every_resource_in_every_scope_is_judged_by_what_it_is() {
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
        let mut judged = 0;
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
                    let mut said = rest.split('/').skip(1);
                    let (name, part) = (said.next().unwrap_or_default(), said.next().unwrap_or_default());
                    // The namespace of a Namespace is itself.
                    let own = resource.gv.group.is_empty() && &*resource.plural == "namespaces";
                    let wanted = Target::Resource {
                        group: resource.gv.group.to_string(),
                        version: resource.gv.version.to_string(),
                        resource: resource.plural.to_string(),
                        subresource: part.to_owned(),
                        namespace: if own { name.to_owned() } else { (*scope).to_owned() },
                        name: name.to_owned(),
                    };
                    assert_eq!(
                        action(&request),
                        Action { verb: verb.to_owned(), target: wanted },
                        "{method} {path}"
                    );
                    judged += 1;
                }
            }
        }
        assert!(judged > 1_000, "{judged}");
    }
}
