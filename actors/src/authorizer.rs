//! Authorization: one authorizer per HTTP worker thread decides what an identity may do.
//!
//! It owns no state: the policies are shared by all threads. They are called in order, and the first one that allows or denies
//! decides. If no policy has an opinion, the action is not allowed.

use std::ops::ControlFlow;
use std::sync::Arc;

use actix::prelude::*;
use pilothouse_types::activity::Activity;
use pilothouse_types::authorization::{Action, Decision, ExplainedDecision, Grants, Selection};
use pilothouse_types::identity::Identity;

use crate::answer::{Answer, DecisionChain, run_chain};
use crate::describe::Describe;
use crate::limits::AUTH_MAILBOX;

/// A source of authorization rules.
pub trait Policy: Send + Sync {
    /// Decides. It must bound its own waiting and the number of waiting calls.
    fn decide(&self, identity: &Identity, action: &Action) -> Answer<Decision>;

    /// Decides with selectors and reasons. By default both are ignored and [`Policy::decide`] is called.
    fn judge(
        &self,
        identity: &Identity,
        action: &Action,
        _selection: &Selection,
    ) -> Answer<ExplainedDecision> {
        self.decide(identity, action).map(ExplainedDecision::from)
    }

    /// All rights that it grants in a namespace; none by default.
    fn grants(&self, _identity: &Identity, _namespace: &str) -> Answer<Grants> {
        Answer::Now(Grants::default())
    }

    /// What would have to exist for the action to be allowed; `None` if unknown.
    fn hint(&self, _identity: &Identity, _action: &Action) -> Option<String> {
        None
    }
}

/// Authorizes an action of a user. On Full the sender waits, within its own permit; on Closed it responds with 503.
#[derive(Message)]
#[rtype(result = "Decision")]
pub struct Authorize {
    /// The user.
    pub identity: Arc<Identity>,
    /// The action.
    pub action: Arc<Action>,
}

/// Authorizes an action of a user, and explains the decision. Full and Closed as for [`Authorize`].
#[derive(Message)]
#[rtype(result = "ExplainedDecision")]
pub struct AuthorizeExplained {
    /// The user.
    pub identity: Arc<Identity>,
    /// The action.
    pub action: Arc<Action>,
    /// The selectors.
    pub selection: Arc<Selection>,
}

/// Lists the rights of a user in a namespace, of all policies together. Full and Closed as for [`Authorize`].
#[derive(Message)]
#[rtype(result = "Grants")]
pub struct ListGrants {
    /// The user.
    pub identity: Arc<Identity>,
    /// The namespace.
    pub namespace: String,
}

/// Asks what would have to exist for an action to be allowed; `None` if no policy knows. Full and Closed as for [`Authorize`].
#[derive(Message)]
#[rtype(result = "Option<String>")]
pub struct Hint {
    /// The user.
    pub identity: Arc<Identity>,
    /// The action.
    pub action: Arc<Action>,
}

/// Policies, in the order in which they are called.
pub type Policies = Arc<Vec<Arc<dyn Policy>>>;

/// Returns the current policies. Called for every request, so it must be fast.
pub type PolicySource = Arc<dyn Fn() -> Policies + Send + Sync>;

/// The actor. See the module documentation.
pub struct Authorizer {
    source: PolicySource,
}

impl Authorizer {
    /// An authorizer with fixed policies.
    pub fn new(policies: Policies) -> Authorizer {
        Authorizer::with_source(Arc::new(move || Arc::clone(&policies)))
    }

    /// An authorizer with changing policies. One request is decided by the same policies to its end.
    pub fn with_source(source: PolicySource) -> Authorizer {
        Authorizer { source }
    }

    /// Decides, with reasons.
    pub fn judge(&self, request: AuthorizeExplained) -> Answer<ExplainedDecision> {
        let policies = (self.source)();
        run_chain(PolicyChain { policies, next: 0, request, reasons: Vec::new(), errors: Vec::new() })
    }

    /// Decides.
    pub fn authorize(&self, identity: Arc<Identity>, action: Arc<Action>) -> Answer<Decision> {
        self.judge(AuthorizeExplained { identity, action, selection: Arc::default() })
            .map(|verdict| verdict.decision)
    }
}

impl Actor for Authorizer {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(AUTH_MAILBOX);
    }
}

impl Handler<Describe> for Authorizer {
    type Result = MessageResult<Describe>;

    fn handle(&mut self, _: Describe, _: &mut Self::Context) -> Self::Result {
        // It has no state: what it does is in the time until this answer.
        MessageResult(Activity::here(Vec::new(), Vec::new()))
    }
}

impl Handler<Authorize> for Authorizer {
    type Result = Answer<Decision>;

    fn handle(&mut self, authorize: Authorize, _: &mut Self::Context) -> Self::Result {
        self.authorize(authorize.identity, authorize.action)
    }
}

impl Handler<AuthorizeExplained> for Authorizer {
    type Result = Answer<ExplainedDecision>;

    fn handle(&mut self, request: AuthorizeExplained, _: &mut Self::Context) -> Self::Result {
        self.judge(request)
    }
}

impl Handler<ListGrants> for Authorizer {
    type Result = Answer<Grants>;

    fn handle(&mut self, request: ListGrants, _: &mut Self::Context) -> Self::Result {
        let policies = (self.source)();
        run_chain(GrantCollector { policies, next: 0, request, collected: Grants::default() })
    }
}

impl Handler<Hint> for Authorizer {
    type Result = Option<String>;

    fn handle(&mut self, request: Hint, _: &mut Self::Context) -> Self::Result {
        (self.source)().iter().find_map(|policy| policy.hint(&request.identity, &request.action))
    }
}

/// The decision about one request.
struct PolicyChain {
    policies: Policies,
    /// The index of the next policy.
    next: usize,
    request: AuthorizeExplained,
    /// The reasons of policies without an opinion.
    reasons: Vec<String>,
    /// The errors of policies.
    errors: Vec<String>,
}

impl DecisionChain for PolicyChain {
    type Opinion = ExplainedDecision;
    type Outcome = ExplainedDecision;

    fn ask(&mut self) -> Option<Answer<ExplainedDecision>> {
        let policy = self.policies.get(self.next)?;
        self.next += 1;
        let AuthorizeExplained { identity, action, selection } = &self.request;
        Some(policy.judge(identity, action, selection))
    }

    fn consider(&mut self, verdict: ExplainedDecision) -> ControlFlow<ExplainedDecision> {
        match verdict.decision {
            Decision::NoOpinion(reason) => {
                if !reason.is_empty() {
                    self.reasons.push(reason);
                }
                self.errors.extend(verdict.error.filter(|error| !self.errors.contains(error)));
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Break(verdict),
        }
    }

    /// Clients see the reasons at the end of a 403 message, one per line.
    fn close(self) -> ExplainedDecision {
        let error = match self.errors.as_slice() {
            [] => None,
            [error] => Some(error.clone()),
            several => Some(format!("[{}]", several.join(", "))),
        };
        ExplainedDecision {
            decision: Decision::NoOpinion(self.reasons.join("\n")),
            allow_reason: None,
            error,
        }
    }
}

/// Collects the rights of all policies.
struct GrantCollector {
    policies: Policies,
    /// The index of the next policy.
    next: usize,
    request: ListGrants,
    collected: Grants,
}

impl DecisionChain for GrantCollector {
    type Opinion = Grants;
    type Outcome = Grants;

    fn ask(&mut self) -> Option<Answer<Grants>> {
        let policy = self.policies.get(self.next)?;
        self.next += 1;
        Some(policy.grants(&self.request.identity, &self.request.namespace))
    }

    fn consider(&mut self, grants: Grants) -> ControlFlow<Grants> {
        self.collected.grants.extend(grants.grants);
        self.collected.incomplete |= grants.incomplete;
        for error in grants.errors {
            if !self.collected.errors.contains(&error) {
                self.collected.errors.push(error);
            }
        }
        ControlFlow::Continue(())
    }

    fn close(self) -> Grants {
        self.collected
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_types::authorization::Target;

    use super::*;

    struct FixedPolicy {
        decision: Decision,
        is_late: bool,
    }

    impl Policy for FixedPolicy {
        fn decide(&self, _: &Identity, _: &Action) -> Answer<Decision> {
            let decision = self.decision.clone();
            match self.is_late {
                true => Answer::later(async { decision }),
                false => Answer::Now(decision),
            }
        }
    }

    async fn authorize(decisions: &[Decision]) -> Decision {
        let mut responses = Vec::new();
        for is_late in [false, true] {
            let policies = decisions.iter().map(|decision| {
                Arc::new(FixedPolicy { decision: decision.clone(), is_late }) as Arc<dyn Policy>
            });
            let action = Action { verb: "get".into(), target: Target::Path("/version".into()) };
            let request = Authorize { identity: Arc::default(), action: Arc::new(action) };
            responses
                .push(Authorizer::new(Arc::new(policies.collect())).start().send(request).await.unwrap());
        }
        assert_eq!(responses[0], responses[1], "late answers count the same");
        responses.remove(0)
    }

    #[actix::test]
    async fn authorizer_uses_first_policy_with_an_opinion() {
        let silent = || Decision::NoOpinion("no rule".into());
        let denied = || Decision::Denied("not here".into());
        assert_eq!(authorize(&[silent(), Decision::Allowed, denied()]).await, Decision::Allowed);
        assert_eq!(authorize(&[silent(), denied(), Decision::Allowed]).await, denied());
    }

    #[actix::test]
    async fn authorizer_without_opinion_returns_all_reasons() {
        let reasons = ["no role", "", "no node"].map(|reason| Decision::NoOpinion(reason.into()));
        assert_eq!(authorize(&reasons).await, Decision::NoOpinion("no role\nno node".into()));
        assert_eq!(authorize(&[]).await, Decision::NoOpinion(String::new()));
    }
}
