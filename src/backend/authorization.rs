//! Who a user is and what they may do. The one place where the silence of an authorizer becomes an answer to the client.

use std::sync::Arc;

use actix::{Addr, Handler, Message};
use pilothouse_actors::authenticator::Authenticator;
use pilothouse_actors::authorizer::{Action, Authorize, Authorizer, Decision, Target};
use pilothouse_actors::identity::Identity;

use crate::api::status::{Result, Status};
use crate::auth::rbac::Roles;

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
}
