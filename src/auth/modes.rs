//! The authorization modes AlwaysAllow and AlwaysDeny, and the privileged group.

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authorizer::Policy;
use pilothouse_types::authorization::{Action, Decision, Grant, Grants};
use pilothouse_types::identity::Identity;

/// Allows everything. For test rigs.
pub struct AlwaysAllow;

impl Policy for AlwaysAllow {
    fn decide(&self, _: &Identity, _: &Action) -> Answer<Decision> {
        Answer::Now(Decision::Allowed)
    }

    fn grants(&self, _: &Identity, _: &str) -> Answer<Grants> {
        let wildcard = || vec!["*".to_owned()];
        let grants = vec![
            Grant { verbs: wildcard(), groups: wildcard(), resources: wildcard(), ..Grant::default() },
            Grant { verbs: wildcard(), paths: wildcard(), ..Grant::default() },
        ];
        Answer::Now(Grants { grants, ..Grants::default() })
    }
}

/// Allows nothing. For testing clients.
pub struct AlwaysDeny;

impl Policy for AlwaysDeny {
    fn decide(&self, _: &Identity, _: &Action) -> Answer<Decision> {
        Answer::Now(Decision::NoOpinion("Everything is forbidden.".to_owned()))
    }
}

/// Allows one group (system:masters) everything, before any other policy.
pub struct Privileged(pub &'static str);

impl Policy for Privileged {
    fn decide(&self, identity: &Identity, _: &Action) -> Answer<Decision> {
        let is_member = identity.groups.iter().any(|group| group == self.0);
        Answer::Now(if is_member { Decision::Allowed } else { Decision::NoOpinion(String::new()) })
    }
}
