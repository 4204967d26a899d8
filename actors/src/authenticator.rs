//! Who is asking: one authenticator per HTTP worker thread turns credentials into an identity.
//!
//! It owns no state; the verifiers are given to it and shared by all threads. They are asked in order and the first that
//! knows the caller decides. Credentials that someone refused and nobody knew are refused; a caller who showed nothing
//! that anyone understands is anonymous, if that is allowed.

use std::ops::ControlFlow;
use std::sync::Arc;

use actix::prelude::*;

use crate::answer::{Answer, Hearing, hold};
use crate::identity::{Credentials, Identity};
use crate::limits::GUARD_MAILBOX;

/// Knows one kind of credentials.
pub trait Verifier: Send + Sync {
    /// Says whom these credentials belong to. It must bound its own waiting and what it waits for.
    fn verify(&self, credentials: &Credentials) -> Answer<Verdict>;
}

/// What a verifier says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They belong to this one.
    Known(Arc<Identity>),
    /// They hold nothing that this verifier understands.
    NoOpinion,
    /// They hold something that this verifier understands and does not accept.
    Refused(String),
}

/// Why nobody is known by the credentials. The caller answers 401.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Someone did not accept them; all the reasons.
    #[error("the credentials are not accepted: {}", .0.join("; "))]
    Refused(Vec<String>),
    /// There were none that anyone understands, and the anonymous may not enter.
    #[error("no credentials were given")]
    Anonymous,
}

/// What holds for callers whoever verified them. The names belong to the API, so they are given.
#[derive(Clone, Debug)]
pub struct House {
    /// Who someone without credentials is.
    pub anonymous: Arc<Identity>,
    /// Whether someone without credentials may enter.
    pub admits_anonymous: bool,
    /// The group of all who were verified.
    pub authenticated_group: String,
}

/// Who sent this? Answers the identity or why there is none. On Full the sender waits, within its own permit; on Closed
/// it answers 503.
#[derive(Message)]
#[rtype(result = "Result<Arc<Identity>, Refusal>")]
pub struct Authenticate {
    /// What came with the request.
    pub credentials: Credentials,
}

/// Asks the verifiers. See the module text.
pub struct Authenticator {
    verifiers: Arc<[Arc<dyn Verifier>]>,
    house: Arc<House>,
}

impl Authenticator {
    /// An authenticator that asks these verifiers, in this order.
    pub fn new(verifiers: Arc<[Arc<dyn Verifier>]>, house: Arc<House>) -> Authenticator {
        Authenticator { verifiers, house }
    }

    /// Finds out who holds these credentials.
    pub fn authenticate(&self, credentials: Credentials) -> Answer<Result<Arc<Identity>, Refusal>> {
        hold(Examination {
            verifiers: Arc::clone(&self.verifiers),
            asked: 0,
            house: Arc::clone(&self.house),
            credentials,
            reasons: Vec::new(),
        })
    }
}

impl Actor for Authenticator {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(GUARD_MAILBOX);
    }
}

impl Handler<Authenticate> for Authenticator {
    type Result = Response<Result<Arc<Identity>, Refusal>>;

    fn handle(&mut self, authenticate: Authenticate, _: &mut Self::Context) -> Self::Result {
        self.authenticate(authenticate.credentials).into()
    }
}

/// The verifiers on one set of credentials.
struct Examination {
    verifiers: Arc<[Arc<dyn Verifier>]>,
    asked: usize,
    house: Arc<House>,
    credentials: Credentials,
    /// Why some refused.
    reasons: Vec<String>,
}

impl Hearing for Examination {
    type Word = Verdict;
    type Outcome = Result<Arc<Identity>, Refusal>;

    fn ask(&mut self) -> Option<Answer<Verdict>> {
        let verifier = self.verifiers.get(self.asked)?;
        self.asked += 1;
        Some(verifier.verify(&self.credentials))
    }

    fn weigh(&mut self, verdict: Verdict) -> ControlFlow<Self::Outcome> {
        match verdict {
            Verdict::Known(identity) => return ControlFlow::Break(Ok(self.house.welcome(identity))),
            Verdict::NoOpinion => {}
            Verdict::Refused(reason) => self.reasons.push(reason),
        }
        ControlFlow::Continue(())
    }

    fn close(self) -> Self::Outcome {
        if !self.reasons.is_empty() {
            return Err(Refusal::Refused(self.reasons));
        }
        match self.house.admits_anonymous {
            true => Ok(Arc::clone(&self.house.anonymous)),
            false => Err(Refusal::Anonymous),
        }
    }
}

impl House {
    /// Puts someone who was verified into the group of those, unless a verifier said that they are anonymous, by name
    /// or by group.
    fn welcome(&self, identity: Arc<Identity>) -> Arc<Identity> {
        let anonymous = identity.name == self.anonymous.name
            || self.anonymous.groups.iter().any(|group| identity.is_in(group));
        if anonymous || identity.is_in(&self.authenticated_group) {
            return identity;
        }
        let mut identity = Arc::unwrap_or_clone(identity);
        identity.groups.push(self.authenticated_group.clone());
        Arc::new(identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Says(Verdict, bool);

    impl Verifier for Says {
        fn verify(&self, _: &Credentials) -> Answer<Verdict> {
            let verdict = self.0.clone();
            match self.1 {
                true => Answer::later(async { verdict }),
                false => Answer::Now(verdict),
            }
        }
    }

    fn person(name: &str, groups: &[&str]) -> Arc<Identity> {
        let groups = groups.iter().copied().map(String::from).collect();
        Arc::new(Identity { name: name.into(), groups, ..Identity::default() })
    }

    fn house(admits_anonymous: bool) -> Arc<House> {
        let anonymous = person("nobody", &["strangers"]);
        Arc::new(House { anonymous, admits_anonymous, authenticated_group: "members".into() })
    }

    async fn asked(verdicts: &[Verdict], admits_anonymous: bool) -> Result<Arc<Identity>, Refusal> {
        let mut answers = Vec::new();
        for late in [false, true] {
            let verifiers =
                verdicts.iter().map(|verdict| Arc::new(Says(verdict.clone(), late)) as Arc<dyn Verifier>);
            let address = Authenticator::new(verifiers.collect(), house(admits_anonymous)).start();
            answers.push(address.send(Authenticate { credentials: Credentials::default() }).await.unwrap());
        }
        assert_eq!(answers[0], answers[1], "late answers weigh the same");
        answers.remove(0)
    }

    #[actix::test]
    async fn the_first_who_knows_decides() {
        let refused = Verdict::Refused("expired".into());
        let known = |name| Verdict::Known(person(name, &[]));
        let verdicts = [Verdict::NoOpinion, refused, known("ann"), known("bob")];
        assert_eq!(asked(&verdicts, true).await, Ok(person("ann", &["members"])));
    }

    #[actix::test]
    async fn a_refusal_is_not_anonymous() {
        let verdicts = [Verdict::Refused("expired".into()), Verdict::NoOpinion, Verdict::Refused("b".into())];
        assert_eq!(asked(&verdicts, true).await, Err(Refusal::Refused(vec!["expired".into(), "b".into()])));
    }

    #[actix::test]
    async fn who_shows_nothing_is_anonymous_where_that_is_allowed() {
        assert_eq!(asked(&[Verdict::NoOpinion], true).await, Ok(person("nobody", &["strangers"])));
        assert_eq!(asked(&[Verdict::NoOpinion], false).await, Err(Refusal::Anonymous));
        assert_eq!(asked(&[], false).await, Err(Refusal::Anonymous));
    }

    #[test]
    fn members_are_made_once_and_strangers_never() {
        let house = house(true);
        let unchanged = [person("ann", &["members"]), person("nobody", &[]), person("x", &["strangers"])];
        for identity in unchanged {
            assert!(Arc::ptr_eq(&house.welcome(Arc::clone(&identity)), &identity));
        }
        assert_eq!(house.welcome(person("ann", &["staff"])).groups, ["staff", "members"]);
    }
}
