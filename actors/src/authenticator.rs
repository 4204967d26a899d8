//! Authentication: one authenticator per HTTP worker thread turns credentials into an identity.
//!
//! It owns no state: the verifiers are shared by all threads. They are called in order, and the first one that knows the caller
//! decides. The request is refused if a verifier rejected the credentials and none accepted them, or if no verifier knows the
//! bearer token. A request without credentials is anonymous, if that is allowed.

use std::ops::ControlFlow;
use std::sync::Arc;

use actix::prelude::*;
use pilothouse_types::activity::Activity;
use pilothouse_types::authentication::{Authenticated, Refusal, UNKNOWN_TOKEN};
use pilothouse_types::identity::{Credentials, Identity};

use crate::answer::{Answer, DecisionChain, run_chain};
use crate::describe::Describe;
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

/// Authenticates a request. Returns the user, or the reason of the refusal. On Full the sender waits, within its own permit; on
/// Closed it responds with 503.
#[derive(Message)]
#[rtype(result = "Result<Authenticated, Refusal>")]
pub struct Authenticate {
    /// The credentials of the request.
    pub credentials: Credentials,
}

/// Verifies the credentials of another user (TokenReview). Returns the user, or the reason of the refusal. Without audiences those
/// of the server apply. On Full the sender waits, within its own permit; on Closed it responds with 503.
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
        self.run_verifiers(credentials)
    }

    /// Verifies credentials for the requested audiences, by default those of the server.
    pub fn review_token(&self, mut credentials: Credentials) -> Answer<Result<Authenticated, Refusal>> {
        if credentials.audiences.is_empty() {
            credentials.audiences = Arc::clone(&self.config.audiences);
        }
        self.run_verifiers(credentials)
    }

    fn run_verifiers(&self, credentials: Credentials) -> Answer<Result<Authenticated, Refusal>> {
        run_chain(VerifierChain {
            verifiers: Arc::clone(&self.verifiers),
            next: 0,
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

impl Handler<Describe> for Authenticator {
    type Result = MessageResult<Describe>;

    fn handle(&mut self, _: Describe, _: &mut Self::Context) -> Self::Result {
        // It has no state: what it does is in the time until this answer.
        MessageResult(Activity::here(Vec::new(), Vec::new()))
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

    fn handle(&mut self, review: ReviewToken, _: &mut Self::Context) -> Self::Result {
        self.review_token(review.credentials)
    }
}

/// The verification of one request's credentials.
struct VerifierChain {
    verifiers: Arc<[Arc<dyn Verifier>]>,
    /// The index of the next verifier.
    next: usize,
    config: Arc<AuthenticatorConfig>,
    credentials: Credentials,
    /// The reasons of verifiers that rejected the credentials.
    reasons: Vec<String>,
}

impl DecisionChain for VerifierChain {
    type Opinion = Verification;
    type Outcome = Result<Authenticated, Refusal>;

    fn ask(&mut self) -> Option<Answer<Verification>> {
        let verifier = self.verifiers.get(self.next)?;
        self.next += 1;
        Some(verifier.verify(&self.credentials))
    }

    fn consider(&mut self, verification: Verification) -> ControlFlow<Self::Outcome> {
        let mut user = match verification {
            Verification::Known(identity) => {
                let requested = &self.credentials.audiences;
                let common = self.config.common_audiences(requested);
                // The token is valid, but not for these audiences: another verifier may accept it.
                if common.is_empty() && !requested.is_empty() {
                    return ControlFlow::Continue(());
                }
                Authenticated { identity, audiences: common, remarks: Vec::new() }
            }
            Verification::KnownFor(user) => user,
            Verification::NoOpinion => return ControlFlow::Continue(()),
            Verification::Refused(reason) => {
                self.reasons.push(reason);
                return ControlFlow::Continue(());
            }
        };
        user.identity = self.config.add_authenticated_group(user.identity);
        ControlFlow::Break(Ok(user))
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
    fn common_audiences(&self, requested: &[String]) -> Vec<String> {
        requested.iter().filter(|name| self.audiences.contains(name)).cloned().collect()
    }

    /// Adds the group of authenticated users, unless a verifier returned the anonymous user, by name or by group.
    fn add_authenticated_group(&self, identity: Arc<Identity>) -> Arc<Identity> {
        let is_anonymous = identity.name == self.anonymous.name
            || self.anonymous.groups.iter().any(|group| identity.is_in(group));
        if is_anonymous || identity.is_in(&self.authenticated_group) {
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

    struct FixedVerifier {
        result: Verification,
        is_late: bool,
    }

    impl Verifier for FixedVerifier {
        fn verify(&self, _: &Credentials) -> Answer<Verification> {
            let result = self.result.clone();
            match self.is_late {
                true => Answer::later(async { result }),
                false => Answer::Now(result),
            }
        }
    }

    fn user(name: &str, groups: &[&str]) -> Arc<Identity> {
        let groups = groups.iter().copied().map(String::from).collect();
        Arc::new(Identity { name: name.into(), groups, ..Identity::default() })
    }

    fn config(admits_anonymous: bool) -> Arc<AuthenticatorConfig> {
        let anonymous = user("nobody", &["strangers"]);
        Arc::new(AuthenticatorConfig {
            anonymous,
            admits_anonymous,
            authenticated_group: "members".into(),
            audiences: ["here".into(), "there".into()].into(),
        })
    }

    async fn authenticate(
        results: &[Verification],
        admits_anonymous: bool,
    ) -> Result<Arc<Identity>, Refusal> {
        let mut responses = Vec::new();
        for is_late in [false, true] {
            let verifiers = results.iter().map(|result| {
                Arc::new(FixedVerifier { result: result.clone(), is_late }) as Arc<dyn Verifier>
            });
            let address = Authenticator::new(verifiers.collect(), config(admits_anonymous)).start();
            responses.push(address.send(Authenticate { credentials: Credentials::default() }).await.unwrap());
        }
        assert_eq!(responses[0], responses[1], "late answers count the same");
        responses.remove(0).map(|user| user.identity)
    }

    #[actix::test]
    async fn authenticator_uses_first_verifier_that_knows_the_user() {
        let refused = Verification::Refused("expired".into());
        let known = |name| Verification::Known(user(name, &[]));
        let results = [Verification::NoOpinion, refused, known("ann"), known("bob")];
        assert_eq!(authenticate(&results, true).await, Ok(user("ann", &["members"])));
    }

    #[actix::test]
    async fn rejected_credentials_are_not_anonymous() {
        let results = [
            Verification::Refused("expired".into()),
            Verification::NoOpinion,
            Verification::Refused("b".into()),
        ];
        assert_eq!(
            authenticate(&results, true).await,
            Err(Refusal::Refused(vec!["expired".into(), "b".into()]))
        );
    }

    #[actix::test]
    async fn request_without_credentials_is_anonymous_if_allowed() {
        assert_eq!(authenticate(&[Verification::NoOpinion], true).await, Ok(user("nobody", &["strangers"])));
        assert_eq!(authenticate(&[Verification::NoOpinion], false).await, Err(Refusal::Anonymous));
        assert_eq!(authenticate(&[], false).await, Err(Refusal::Anonymous));
        let credentials = Credentials { never_anonymous: true, ..Credentials::default() };
        let Answer::Now(result) = Authenticator::new(Arc::new([]), config(true)).authenticate(credentials)
        else {
            panic!("not immediate")
        };
        assert_eq!(result, Err(Refusal::Anonymous), "not for this request");
    }

    #[actix::test]
    async fn unknown_bearer_token_is_rejected_and_not_anonymous() {
        let authenticator = Authenticator::new(Arc::new([]), config(true));
        let credentials = Credentials { bearer: Some("t".into()), ..Credentials::default() };
        let Answer::Now(result) = authenticator.authenticate(credentials) else { panic!("not immediate") };
        assert_eq!(result, Err(Refusal::Refused(vec![UNKNOWN_TOKEN.into()])));
    }

    #[test]
    fn token_review_returns_common_audiences() {
        let review = |result: Verification, audiences: &[&str]| {
            let verifiers: [Arc<dyn Verifier>; 1] = [Arc::new(FixedVerifier { result, is_late: false })];
            let audiences = audiences.iter().copied().map(String::from).collect();
            let credentials = Credentials { bearer: Some("t".into()), audiences, ..Credentials::default() };
            match Authenticator::new(Arc::new(verifiers), config(true)).review_token(credentials) {
                Answer::Now(result) => result.map(|user| user.audiences),
                Answer::Later(_) => panic!("not immediate"),
            }
        };
        let known = || Verification::Known(user("ann", &[]));
        assert_eq!(review(known(), &[]).unwrap(), ["here", "there"], "those of the server");
        assert_eq!(
            review(known(), &["x", "there", "here"]).unwrap(),
            ["there", "here"],
            "in the requested order"
        );
        assert!(review(known(), &["x"]).is_err(), "no common audience");
        let remarks = vec![Remark::Warning("old")];
        let user_of_verifier =
            Authenticated { identity: user("ann", &["members"]), audiences: vec!["x".into()], remarks };
        assert_eq!(review(Verification::KnownFor(user_of_verifier.clone()), &["x", "y"]).unwrap(), ["x"]);
        let verifiers: [Arc<dyn Verifier>; 1] = [Arc::new(FixedVerifier {
            result: Verification::KnownFor(user_of_verifier.clone()),
            is_late: false,
        })];
        let authenticator = Authenticator::new(Arc::new(verifiers), config(true));
        let Answer::Now(result) = authenticator.authenticate(Credentials::default()) else {
            panic!("not immediate")
        };
        assert_eq!(result, Ok(user_of_verifier), "with its remarks");
    }

    #[test]
    fn authenticated_group_is_added_once_and_never_to_anonymous() {
        let config = config(true);
        let unchanged = [user("ann", &["members"]), user("nobody", &[]), user("x", &["strangers"])];
        for identity in unchanged {
            assert!(Arc::ptr_eq(&config.add_authenticated_group(Arc::clone(&identity)), &identity));
        }
        assert_eq!(config.add_authenticated_group(user("ann", &["staff"])).groups, ["staff", "members"]);
    }
}
