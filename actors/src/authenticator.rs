//! Authentication: one authenticator per HTTP worker thread turns credentials into an identity.
//!
//! It owns no state: the verifiers are shared by all threads. They are asked in order, and the first one that knows the caller
//! decides. The request is refused if a verifier rejected the credentials and none accepted them, or if no verifier knows the
//! bearer token. A request without credentials is anonymous, if that is allowed.

use std::ops::ControlFlow;
use std::sync::Arc;

use actix::prelude::*;
use pilothouse_types::authentication::{Authenticated, Refusal, UNKNOWN_TOKEN};
use pilothouse_types::identity::{Credentials, Identity};

use crate::answer::{Answer, DecisionChain, run_chain};
use crate::limits::AUTH_MAILBOX;

/// Verifies one kind of credentials.
pub trait Verifier: Send + Sync {
    /// Verifies credentials. It must bound its own waiting and the number of waiting calls.
    fn verify(&self, credentials: &Credentials) -> Answer<Verification>;
}

/// The result of a verifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    /// The credentials belong to this user, and are valid for the server's own audiences.
    Known(Arc<Identity>),
    /// The credentials belong to this user, and state for which of the requested audiences they are valid.
    KnownFor(Authenticated),
    /// The credentials contain nothing that this verifier understands.
    NoOpinion,
    /// The verifier understands the credentials and rejects them.
    Refused(String),
}

/// Settings that apply to all verifiers. The names are part of the API, so they are injected.
#[derive(Clone, Debug)]
pub struct AuthenticatorConfig {
    /// The identity of requests without credentials.
    pub anonymous: Arc<Identity>,
    /// Whether requests without credentials are allowed.
    pub admits_anonymous: bool,
    /// The group that every authenticated user gets.
    pub authenticated_group: String,
    /// The audiences of credentials that state none.
    pub audiences: Arc<[String]>,
}

/// Authenticates a request. Answers the bearer, or why there is none. On Full the sender waits, within its own permit; on Closed
/// it answers 503.
#[derive(Message)]
#[rtype(result = "Result<Authenticated, Refusal>")]
pub struct Authenticate {
    /// The credentials of the request.
    pub credentials: Credentials,
}

/// Verifies somebody else's credentials (TokenReview). Answers the bearer, or why there is none. Without audiences the server's
/// own are meant. On Full the sender waits, within its own permit; on Closed it answers 503.
#[derive(Message)]
#[rtype(result = "Result<Authenticated, Refusal>")]
pub struct ReviewToken {
    /// The credentials to verify.
    pub credentials: Credentials,
}

/// The actor. See the module documentation.
pub struct Authenticator {
    verifiers: Arc<[Arc<dyn Verifier>]>,
    config: Arc<AuthenticatorConfig>,
}

impl Authenticator {
    /// An authenticator with these verifiers, in this order.
    pub fn new(verifiers: Arc<[Arc<dyn Verifier>]>, config: Arc<AuthenticatorConfig>) -> Authenticator {
        Authenticator { verifiers, config }
    }

    /// Authenticates credentials.
    pub fn authenticate(&self, credentials: Credentials) -> Answer<Result<Authenticated, Refusal>> {
        self.hear(credentials)
    }

    /// Verifies credentials for audiences.
    pub fn examine(&self, mut credentials: Credentials) -> Answer<Result<Authenticated, Refusal>> {
        if credentials.audiences.is_empty() {
            credentials.audiences = Arc::clone(&self.config.audiences);
        }
        self.hear(credentials)
    }

    fn hear(&self, credentials: Credentials) -> Answer<Result<Authenticated, Refusal>> {
        run_chain(VerifierChain {
            verifiers: Arc::clone(&self.verifiers),
            asked: 0,
            config: Arc::clone(&self.config),
            credentials,
            reasons: Vec::new(),
        })
    }
}

impl Actor for Authenticator {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(AUTH_MAILBOX);
    }
}

impl Handler<Authenticate> for Authenticator {
    type Result = Answer<Result<Authenticated, Refusal>>;

    fn handle(&mut self, authenticate: Authenticate, _: &mut Self::Context) -> Self::Result {
        self.authenticate(authenticate.credentials)
    }
}

impl Handler<ReviewToken> for Authenticator {
    type Result = Answer<Result<Authenticated, Refusal>>;

    fn handle(&mut self, examine: ReviewToken, _: &mut Self::Context) -> Self::Result {
        self.examine(examine.credentials)
    }
}

/// The state of asking the verifiers.
struct VerifierChain {
    verifiers: Arc<[Arc<dyn Verifier>]>,
    asked: usize,
    config: Arc<AuthenticatorConfig>,
    credentials: Credentials,
    /// The reasons of verifiers that rejected the credentials.
    reasons: Vec<String>,
}

impl DecisionChain for VerifierChain {
    type Opinion = Verification;
    type Outcome = Result<Authenticated, Refusal>;

    fn ask(&mut self) -> Option<Answer<Verification>> {
        let verifier = self.verifiers.get(self.asked)?;
        self.asked += 1;
        Some(verifier.verify(&self.credentials))
    }

    fn consider(&mut self, verdict: Verification) -> ControlFlow<Self::Outcome> {
        let mut bearer = match verdict {
            Verification::Known(identity) => {
                let wanted = &self.credentials.audiences;
                let common = self.config.meant_for(wanted);
                // The token is valid, but not for these audiences: another verifier may accept it.
                if common.is_empty() && !wanted.is_empty() {
                    return ControlFlow::Continue(());
                }
                Authenticated { identity, audiences: common, remarks: Vec::new() }
            }
            Verification::KnownFor(bearer) => bearer,
            Verification::NoOpinion => return ControlFlow::Continue(()),
            Verification::Refused(reason) => {
                self.reasons.push(reason);
                return ControlFlow::Continue(());
            }
        };
        bearer.identity = self.config.welcome(bearer.identity);
        ControlFlow::Break(Ok(bearer))
    }

    fn close(mut self) -> Self::Outcome {
        // A token that no verifier knows is invalid: its bearer must not pass as anonymous.
        if self.reasons.is_empty() && self.credentials.bearer.is_some() {
            self.reasons.push(UNKNOWN_TOKEN.to_owned());
        }
        if !self.reasons.is_empty() {
            return Err(Refusal::Refused(self.reasons));
        }
        match self.config.admits_anonymous && !self.credentials.never_anonymous {
            true => Ok(Authenticated {
                identity: Arc::clone(&self.config.anonymous),
                audiences: self.credentials.audiences.to_vec(),
                remarks: Vec::new(),
            }),
            false => Err(Refusal::Anonymous),
        }
    }
}

impl AuthenticatorConfig {
    /// Those of the requested audiences that credentials without audiences are valid for.
    fn meant_for(&self, wanted: &[String]) -> Vec<String> {
        wanted.iter().filter(|name| self.audiences.contains(name)).cloned().collect()
    }

    /// Adds the group of authenticated users, unless a verifier returned the anonymous user, by name or by group.
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
    use pilothouse_types::authentication::Remark;

    use super::*;

    struct Says(Verification, bool);

    impl Verifier for Says {
        fn verify(&self, _: &Credentials) -> Answer<Verification> {
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

    fn config(admits_anonymous: bool) -> Arc<AuthenticatorConfig> {
        let anonymous = person("nobody", &["strangers"]);
        Arc::new(AuthenticatorConfig {
            anonymous,
            admits_anonymous,
            authenticated_group: "members".into(),
            audiences: ["here".into(), "there".into()].into(),
        })
    }

    async fn asked(verdicts: &[Verification], admits_anonymous: bool) -> Result<Arc<Identity>, Refusal> {
        let mut answers = Vec::new();
        for late in [false, true] {
            let verifiers =
                verdicts.iter().map(|verdict| Arc::new(Says(verdict.clone(), late)) as Arc<dyn Verifier>);
            let address = Authenticator::new(verifiers.collect(), config(admits_anonymous)).start();
            answers.push(address.send(Authenticate { credentials: Credentials::default() }).await.unwrap());
        }
        assert_eq!(answers[0], answers[1], "late answers weigh the same");
        answers.remove(0).map(|bearer| bearer.identity)
    }

    #[actix::test]
    async fn the_first_who_knows_decides() {
        let refused = Verification::Refused("expired".into());
        let known = |name| Verification::Known(person(name, &[]));
        let verdicts = [Verification::NoOpinion, refused, known("ann"), known("bob")];
        assert_eq!(asked(&verdicts, true).await, Ok(person("ann", &["members"])));
    }

    #[actix::test]
    async fn a_refusal_is_not_anonymous() {
        let verdicts = [
            Verification::Refused("expired".into()),
            Verification::NoOpinion,
            Verification::Refused("b".into()),
        ];
        assert_eq!(asked(&verdicts, true).await, Err(Refusal::Refused(vec!["expired".into(), "b".into()])));
    }

    #[actix::test]
    async fn who_shows_nothing_is_anonymous_where_that_is_allowed() {
        assert_eq!(asked(&[Verification::NoOpinion], true).await, Ok(person("nobody", &["strangers"])));
        assert_eq!(asked(&[Verification::NoOpinion], false).await, Err(Refusal::Anonymous));
        assert_eq!(asked(&[], false).await, Err(Refusal::Anonymous));
        let inside = Credentials { never_anonymous: true, ..Credentials::default() };
        let Answer::Now(found) = Authenticator::new(Arc::new([]), config(true)).authenticate(inside) else {
            panic!("at once")
        };
        assert_eq!(found, Err(Refusal::Anonymous), "not at this place");
    }

    #[actix::test]
    async fn a_token_that_nobody_knows_is_refused_and_not_anonymous() {
        let authenticator = Authenticator::new(Arc::new([]), config(true));
        let credentials = Credentials { bearer: Some("t".into()), ..Credentials::default() };
        let Answer::Now(found) = authenticator.authenticate(credentials) else { panic!("at once") };
        assert_eq!(found, Err(Refusal::Refused(vec![UNKNOWN_TOKEN.into()])));
    }

    #[test]
    fn what_credentials_are_meant_for_is_said_and_counts() {
        let examined = |verdict: Verification, audiences: &[&str]| {
            let verifiers: [Arc<dyn Verifier>; 1] = [Arc::new(Says(verdict, false))];
            let audiences = audiences.iter().copied().map(String::from).collect();
            let credentials = Credentials { bearer: Some("t".into()), audiences, ..Credentials::default() };
            match Authenticator::new(Arc::new(verifiers), config(true)).examine(credentials) {
                Answer::Now(found) => found.map(|bearer| bearer.audiences),
                Answer::Later(_) => panic!("at once"),
            }
        };
        let known = || Verification::Known(person("ann", &[]));
        assert_eq!(examined(known(), &[]).unwrap(), ["here", "there"], "those of the house");
        assert_eq!(examined(known(), &["x", "there", "here"]).unwrap(), ["there", "here"], "as asked");
        assert!(examined(known(), &["x"]).is_err(), "for nobody here");
        let remarks = vec![Remark::Warning("old")];
        let own =
            Authenticated { identity: person("ann", &["members"]), audiences: vec!["x".into()], remarks };
        assert_eq!(examined(Verification::KnownFor(own.clone()), &["x", "y"]).unwrap(), ["x"]);
        let verifiers: [Arc<dyn Verifier>; 1] = [Arc::new(Says(Verification::KnownFor(own.clone()), false))];
        let authenticator = Authenticator::new(Arc::new(verifiers), config(true));
        let Answer::Now(found) = authenticator.authenticate(Credentials::default()) else {
            panic!("at once")
        };
        assert_eq!(found, Ok(own), "with what there is to say of them");
    }

    #[test]
    fn members_are_made_once_and_strangers_never() {
        let config = config(true);
        let unchanged = [person("ann", &["members"]), person("nobody", &[]), person("x", &["strangers"])];
        for identity in unchanged {
            assert!(Arc::ptr_eq(&config.welcome(Arc::clone(&identity)), &identity));
        }
        assert_eq!(config.welcome(person("ann", &["staff"])).groups, ["staff", "members"]);
    }
}
