//! Authorization: one authorizer per HTTP worker thread decides what an identity may do.
//!
//! It owns no state: the policies are shared by all threads. They are asked in order, and the first one that allows or denies
//! decides. If no policy has an opinion, the action is not allowed.

use std::ops::ControlFlow;
use std::sync::Arc;

use actix::prelude::*;
use pilothouse_types::authorization::{Action, Decision, ExplainedDecision, Grants, Selection};
use pilothouse_types::identity::Identity;

use crate::answer::{Answer, DecisionChain, run_chain};
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

/// May this user do this? Answers the decision. On Full the sender waits, within its own permit; on Closed it answers 503.
#[derive(Message)]
#[rtype(result = "Decision")]
pub struct Authorize {
    /// The user.
    pub identity: Arc<Identity>,
    /// The action.
    pub action: Arc<Action>,
}

/// May this user do this, and why? Answers the verdict. Full and Closed as for [`Authorize`].
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

/// Which rights has this user in a namespace? Answers the rights of all policies together. Full and Closed as for [`Authorize`].
#[derive(Message)]
#[rtype(result = "Grants")]
pub struct ListGrants {
    /// The user.
    pub identity: Arc<Identity>,
    /// The namespace.
    pub namespace: String,
}

/// What would have to exist for this user to be allowed this? Answers `None` if no policy knows. Full and Closed as for
/// [`Authorize`].
#[derive(Message)]
#[rtype(result = "Option<String>")]
pub struct Hint {
    /// The user.
    pub identity: Arc<Identity>,
    /// The action.
    pub action: Arc<Action>,
}

/// Policies, in the order in which they are asked.
pub type Policies = Arc<Vec<Arc<dyn Policy>>>;

/// The current policies. Called for every question, so it must be fast.
pub type PolicySource = Arc<dyn Fn() -> Policies + Send + Sync>;

/// The actor. See the module documentation.
pub struct Authorizer {
    source: PolicySource,
}

impl Authorizer {
    /// An authorizer with fixed policies.
    pub fn new(policies: Policies) -> Authorizer {
        Authorizer::asking(Arc::new(move || Arc::clone(&policies)))
    }

    /// An authorizer with changing policies. One question is judged by the same policies to its end.
    pub fn asking(source: PolicySource) -> Authorizer {
        Authorizer { source }
    }

    /// Decides, with reasons.
    pub fn judge(&self, question: AuthorizeExplained) -> Answer<ExplainedDecision> {
        let policies = (self.source)();
        run_chain(PolicyChain { policies, asked: 0, question, reasons: Vec::new(), errors: Vec::new() })
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

impl Handler<Authorize> for Authorizer {
    type Result = Answer<Decision>;

    fn handle(&mut self, authorize: Authorize, _: &mut Self::Context) -> Self::Result {
        self.authorize(authorize.identity, authorize.action)
    }
}

impl Handler<AuthorizeExplained> for Authorizer {
    type Result = Answer<ExplainedDecision>;

    fn handle(&mut self, question: AuthorizeExplained, _: &mut Self::Context) -> Self::Result {
        self.judge(question)
    }
}

impl Handler<ListGrants> for Authorizer {
    type Result = Answer<Grants>;

    fn handle(&mut self, question: ListGrants, _: &mut Self::Context) -> Self::Result {
        let policies = (self.source)();
        run_chain(GrantCollector { policies, asked: 0, question, so_far: Grants::default() })
    }
}

impl Handler<Hint> for Authorizer {
    type Result = Option<String>;

    fn handle(&mut self, question: Hint, _: &mut Self::Context) -> Self::Result {
        (self.source)().iter().find_map(|policy| policy.hint(&question.identity, &question.action))
    }
}

/// The state of asking the policies.
struct PolicyChain {
    policies: Policies,
    asked: usize,
    question: AuthorizeExplained,
    /// The reasons of policies without an opinion.
    reasons: Vec<String>,
    /// The errors of policies.
    errors: Vec<String>,
}

impl DecisionChain for PolicyChain {
    type Opinion = ExplainedDecision;
    type Outcome = ExplainedDecision;

    fn ask(&mut self) -> Option<Answer<ExplainedDecision>> {
        let policy = self.policies.get(self.asked)?;
        self.asked += 1;
        let AuthorizeExplained { identity, action, selection } = &self.question;
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
            [one] => Some(one.clone()),
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
    asked: usize,
    question: ListGrants,
    so_far: Grants,
}

impl DecisionChain for GrantCollector {
    type Opinion = Grants;
    type Outcome = Grants;

    fn ask(&mut self) -> Option<Answer<Grants>> {
        let policy = self.policies.get(self.asked)?;
        self.asked += 1;
        Some(policy.grants(&self.question.identity, &self.question.namespace))
    }

    fn consider(&mut self, more: Grants) -> ControlFlow<Grants> {
        self.so_far.grants.extend(more.grants);
        self.so_far.incomplete |= more.incomplete;
        for error in more.errors {
            if !self.so_far.errors.contains(&error) {
                self.so_far.errors.push(error);
            }
        }
        ControlFlow::Continue(())
    }

    fn close(self) -> Grants {
        self.so_far
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_types::authorization::Target;

    use super::*;

    struct Says(Decision, bool);

    impl Policy for Says {
        fn decide(&self, _: &Identity, _: &Action) -> Answer<Decision> {
            let decision = self.0.clone();
            match self.1 {
                true => Answer::later(async { decision }),
                false => Answer::Now(decision),
            }
        }
    }

    async fn asked(decisions: &[Decision]) -> Decision {
        let mut answers = Vec::new();
        for late in [false, true] {
            let policies =
                decisions.iter().map(|decision| Arc::new(Says(decision.clone(), late)) as Arc<dyn Policy>);
            let action = Action { verb: "get".into(), target: Target::Path("/version".into()) };
            let question = Authorize { identity: Arc::default(), action: Arc::new(action) };
            answers.push(Authorizer::new(Arc::new(policies.collect())).start().send(question).await.unwrap());
        }
        assert_eq!(answers[0], answers[1], "late answers weigh the same");
        answers.remove(0)
    }

    #[actix::test]
    async fn the_first_opinion_decides() {
        let silent = || Decision::NoOpinion("no rule".into());
        let denied = || Decision::Denied("not here".into());
        assert_eq!(asked(&[silent(), Decision::Allowed, denied()]).await, Decision::Allowed);
        assert_eq!(asked(&[silent(), denied(), Decision::Allowed]).await, denied());
    }

    #[actix::test]
    async fn without_an_opinion_nothing_is_allowed_and_all_reasons_are_told() {
        let reasons = ["no role", "", "no node"].map(|reason| Decision::NoOpinion(reason.into()));
        assert_eq!(asked(&reasons).await, Decision::NoOpinion("no role\nno node".into()));
        assert_eq!(asked(&[]).await, Decision::NoOpinion(String::new()));
    }
}
