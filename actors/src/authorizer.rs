//! May they: one authorizer per HTTP worker thread judges what an identity wants to do.
//!
//! It owns no state; the policies are given to it and shared by all threads. They are asked in order and the first that
//! allows or denies decides. Where nobody has an opinion nothing is allowed.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use actix::prelude::*;

use crate::answer::{Answer, Hearing, hold};
use crate::filter::{FieldRule, LabelRule};
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

/// Which objects an action on many of them is about, where the asker says so. All of it must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    /// What must hold of their fields.
    pub fields: Vec<FieldRule>,
    /// What must hold of their labels.
    pub labels: Vec<LabelRule>,
}

/// Why something is allowed. Written out only when somebody wants to read it.
pub type Grounds = Arc<dyn fmt::Display + Send + Sync>;

/// A decision with all that there is to say about it.
#[derive(Clone)]
pub struct Verdict {
    /// The decision. It says itself why something is not allowed.
    pub decision: Decision,
    /// Why it is allowed, where the policy has more to say than that it is.
    pub grounds: Option<Grounds>,
    /// What went wrong on the way to the decision.
    pub error: Option<String>,
}

impl Verdict {
    /// The reason in words, empty if there is none.
    pub fn reason(&self) -> String {
        match &self.decision {
            Decision::Allowed => self.grounds.as_ref().map(ToString::to_string).unwrap_or_default(),
            Decision::Denied(reason) | Decision::NoOpinion(reason) => reason.clone(),
        }
    }
}

impl From<Decision> for Verdict {
    fn from(decision: Decision) -> Verdict {
        Verdict { decision, grounds: None, error: None }
    }
}

/// Something that somebody may do: to resources or, if it names paths, to paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// What may be done.
    pub verbs: Vec<String>,
    /// In which API groups.
    pub groups: Vec<String>,
    /// To which resources.
    pub resources: Vec<String>,
    /// To which objects; none: all of them.
    pub names: Vec<String>,
    /// To which paths that name no resource.
    pub paths: Vec<String>,
}

/// What somebody may do in one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// Everything that is known.
    pub grants: Vec<Grant>,
    /// Whether there may be more that nobody can list.
    pub incomplete: bool,
    /// What went wrong, each once.
    pub errors: Vec<String>,
}

/// One source of rules.
pub trait Policy: Send + Sync {
    /// Says what it thinks. It must bound its own waiting and what it waits for.
    fn decide(&self, identity: &Identity, action: &Action) -> Answer<Decision>;

    /// Says what it thinks and why. Policies that care which objects are selected, or can say more than yes, know more
    /// than [`Policy::decide`] asks.
    fn judge(&self, identity: &Identity, action: &Action, _selection: &Selection) -> Answer<Verdict> {
        self.decide(identity, action).map(Verdict::from)
    }

    /// Everything that it would allow in a namespace; by default nothing.
    fn grants(&self, _identity: &Identity, _namespace: &str) -> Answer<Grants> {
        Answer::Now(Grants::default())
    }

    /// What would have to be there for this to be allowed; nothing if it has no idea.
    fn hint(&self, _identity: &Identity, _action: &Action) -> Option<String> {
        None
    }
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

/// May they do this, and why? Answers the verdict. Full and Closed as for [`Authorize`].
#[derive(Message)]
#[rtype(result = "Verdict")]
pub struct Judge {
    /// Who.
    pub identity: Arc<Identity>,
    /// What.
    pub action: Arc<Action>,
    /// To which of the objects.
    pub selection: Arc<Selection>,
}

/// What may they do in a namespace? Answers what all policies say together. Full and Closed as for [`Authorize`].
#[derive(Message)]
#[rtype(result = "Grants")]
pub struct ListGrants {
    /// Who.
    pub identity: Arc<Identity>,
    /// Where.
    pub namespace: String,
}

/// What would have to be there for them to be allowed this? Answers nothing if nobody knows. Full and Closed as for
/// [`Authorize`].
#[derive(Message)]
#[rtype(result = "Option<String>")]
pub struct Hint {
    /// Who.
    pub identity: Arc<Identity>,
    /// What.
    pub action: Arc<Action>,
}

/// Policies, in the order in which they are asked.
pub type Policies = Arc<Vec<Arc<dyn Policy>>>;

/// The policies that count now. Asked for every question: it must be quick.
pub type Panel = Arc<dyn Fn() -> Policies + Send + Sync>;

/// Asks the policies. See the module text.
pub struct Authorizer {
    panel: Panel,
}

impl Authorizer {
    /// An authorizer that always asks these policies.
    pub fn new(policies: Policies) -> Authorizer {
        Authorizer::asking(Arc::new(move || Arc::clone(&policies)))
    }

    /// An authorizer that asks whoever counts at that moment. A question is judged by one panel to its end.
    pub fn asking(panel: Panel) -> Authorizer {
        Authorizer { panel }
    }

    /// Finds out whether they may, and why.
    pub fn judge(&self, question: Judge) -> Answer<Verdict> {
        let policies = (self.panel)();
        hold(Trial { policies, asked: 0, question, reasons: Vec::new(), errors: Vec::new() })
    }

    /// Finds out whether they may.
    pub fn authorize(&self, identity: Arc<Identity>, action: Arc<Action>) -> Answer<Decision> {
        self.judge(Judge { identity, action, selection: Arc::default() }).map(|verdict| verdict.decision)
    }
}

impl Actor for Authorizer {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(GUARD_MAILBOX);
    }
}

impl Handler<Authorize> for Authorizer {
    type Result = Answer<Decision>;

    fn handle(&mut self, authorize: Authorize, _: &mut Self::Context) -> Self::Result {
        self.authorize(authorize.identity, authorize.action)
    }
}

impl Handler<Judge> for Authorizer {
    type Result = Answer<Verdict>;

    fn handle(&mut self, question: Judge, _: &mut Self::Context) -> Self::Result {
        self.judge(question)
    }
}

impl Handler<ListGrants> for Authorizer {
    type Result = Answer<Grants>;

    fn handle(&mut self, question: ListGrants, _: &mut Self::Context) -> Self::Result {
        let policies = (self.panel)();
        hold(Inventory { policies, asked: 0, question, so_far: Grants::default() })
    }
}

impl Handler<Hint> for Authorizer {
    type Result = Option<String>;

    fn handle(&mut self, question: Hint, _: &mut Self::Context) -> Self::Result {
        (self.panel)().iter().find_map(|policy| policy.hint(&question.identity, &question.action))
    }
}

/// The policies on one action.
struct Trial {
    policies: Policies,
    asked: usize,
    question: Judge,
    /// Why some had no opinion.
    reasons: Vec<String>,
    /// What went wrong with some.
    errors: Vec<String>,
}

impl Hearing for Trial {
    type Word = Verdict;
    type Outcome = Verdict;

    fn ask(&mut self) -> Option<Answer<Verdict>> {
        let policy = self.policies.get(self.asked)?;
        self.asked += 1;
        let Judge { identity, action, selection } = &self.question;
        Some(policy.judge(identity, action, selection))
    }

    fn weigh(&mut self, verdict: Verdict) -> ControlFlow<Verdict> {
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

    /// Clients see the reasons at the end of the message of a 403, a line each.
    fn close(self) -> Verdict {
        let error = match self.errors.as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            several => Some(format!("[{}]", several.join(", "))),
        };
        Verdict { decision: Decision::NoOpinion(self.reasons.join("\n")), grounds: None, error }
    }
}

/// What all policies allow together.
struct Inventory {
    policies: Policies,
    asked: usize,
    question: ListGrants,
    so_far: Grants,
}

impl Hearing for Inventory {
    type Word = Grants;
    type Outcome = Grants;

    fn ask(&mut self) -> Option<Answer<Grants>> {
        let policy = self.policies.get(self.asked)?;
        self.asked += 1;
        Some(policy.grants(&self.question.identity, &self.question.namespace))
    }

    fn weigh(&mut self, more: Grants) -> ControlFlow<Grants> {
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
