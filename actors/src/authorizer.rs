//! May they: one authorizer per HTTP worker thread judges what an identity wants to do.
//!
//! It owns no state; the policies are given to it and shared by all threads. They are asked in order and the first that
//! allows or denies decides. Where nobody has an opinion nothing is allowed.

use std::ops::ControlFlow;
use std::sync::Arc;

use actix::prelude::*;

use crate::answer::{Answer, Hearing, hold};
use crate::identity::Identity;
use crate::limits::GUARD_MAILBOX;

/// What someone wants to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Action {
    /// What is to be done: `get`, `create`; for a path the HTTP method in small letters.
    pub verb: String,
    /// To what.
    pub target: Target,
}

/// What an action is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Objects of a type. What does not apply is empty.
    Resource {
        /// The API group; empty for the core group.
        group: String,
        /// The version of the group.
        version: String,
        /// The resource, in the plural.
        resource: String,
        /// The part of the object.
        subresource: String,
        /// The namespace; empty: none, or all of them.
        namespace: String,
        /// The object; empty: all of them.
        name: String,
    },
    /// A path that names no resource.
    Path(String),
}

/// What a policy says, and what comes of all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// They may.
    Allowed,
    /// They may not, whatever others say.
    Denied(String),
    /// Nothing here allows it. The caller of the authorizer answers as if it were denied.
    NoOpinion(String),
}

/// One source of rules.
pub trait Policy: Send + Sync {
    /// Says what it thinks. It must bound its own waiting and what it waits for.
    fn decide(&self, identity: &Identity, action: &Action) -> Answer<Decision>;
}

/// May they do this? Answers the decision. On Full the sender waits, within its own permit; on Closed it answers 503.
#[derive(Message)]
#[rtype(result = "Decision")]
pub struct Authorize {
    /// Who.
    pub identity: Arc<Identity>,
    /// What.
    pub action: Arc<Action>,
}

/// Asks the policies. See the module text.
pub struct Authorizer {
    policies: Arc<[Arc<dyn Policy>]>,
}

impl Authorizer {
    /// An authorizer that asks these policies, in this order.
    pub fn new(policies: Arc<[Arc<dyn Policy>]>) -> Authorizer {
        Authorizer { policies }
    }

    /// Finds out whether they may.
    pub fn authorize(&self, identity: Arc<Identity>, action: Arc<Action>) -> Answer<Decision> {
        hold(Trial { policies: Arc::clone(&self.policies), asked: 0, identity, action, reasons: Vec::new() })
    }
}

impl Actor for Authorizer {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(GUARD_MAILBOX);
    }
}

impl Handler<Authorize> for Authorizer {
    type Result = Response<Decision>;

    fn handle(&mut self, authorize: Authorize, _: &mut Self::Context) -> Self::Result {
        self.authorize(authorize.identity, authorize.action).into()
    }
}

/// The policies on one action.
struct Trial {
    policies: Arc<[Arc<dyn Policy>]>,
    asked: usize,
    identity: Arc<Identity>,
    action: Arc<Action>,
    /// Why some had no opinion.
    reasons: Vec<String>,
}

impl Hearing for Trial {
    type Word = Decision;
    type Outcome = Decision;

    fn ask(&mut self) -> Option<Answer<Decision>> {
        let policy = self.policies.get(self.asked)?;
        self.asked += 1;
        Some(policy.decide(&self.identity, &self.action))
    }

    fn weigh(&mut self, decision: Decision) -> ControlFlow<Decision> {
        match decision {
            Decision::NoOpinion(reason) => {
                if !reason.is_empty() {
                    self.reasons.push(reason);
                }
                ControlFlow::Continue(())
            }
            decided => ControlFlow::Break(decided),
        }
    }

    /// Clients see the reasons at the end of the message of a 403, a line each.
    fn close(self) -> Decision {
        Decision::NoOpinion(self.reasons.join("\n"))
    }
}

#[cfg(test)]
mod tests {
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
            answers.push(Authorizer::new(policies.collect()).start().send(question).await.unwrap());
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
