//! Counts the decisions of a policy, except for "no opinion".

use std::sync::Arc;

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authorizer::Policy;
use pilothouse_types::authorization::{Action, Decision, ExplainedDecision, Grants, Selection};
use pilothouse_types::identity::Identity;
use prometheus::IntCounter;

use crate::metrics::Metrics;

/// A policy whose decisions are counted.
pub struct CountedAuthorizer {
    policy: Arc<dyn Policy>,
    allowed: IntCounter,
    denied: IntCounter,
}

impl CountedAuthorizer {
    /// Counts under this type and name of authorizer.
    pub fn new(policy: Arc<dyn Policy>, sort: &str, name: &str, metrics: &Metrics) -> CountedAuthorizer {
        let [allowed, denied] = metrics.authorization.decisions(sort, name);
        CountedAuthorizer { policy, allowed, denied }
    }

    fn count<T: 'static>(&self, answer: Answer<T>, decision: fn(&T) -> &Decision) -> Answer<T> {
        let (allowed, denied) = (self.allowed.clone(), self.denied.clone());
        answer.map(move |answer| {
            match decision(&answer) {
                Decision::Allowed => allowed.inc(),
                Decision::Denied(_) => denied.inc(),
                Decision::NoOpinion(_) => {}
            }
            answer
        })
    }
}

impl Policy for CountedAuthorizer {
    fn decide(&self, identity: &Identity, action: &Action) -> Answer<Decision> {
        self.count(self.policy.decide(identity, action), |decision| decision)
    }

    fn judge(
        &self,
        identity: &Identity,
        action: &Action,
        selection: &Selection,
    ) -> Answer<ExplainedDecision> {
        self.count(self.policy.judge(identity, action, selection), |verdict| &verdict.decision)
    }

    fn grants(&self, identity: &Identity, namespace: &str) -> Answer<Grants> {
        self.policy.grants(identity, namespace)
    }

    fn hint(&self, identity: &Identity, action: &Action) -> Option<String> {
        self.policy.hint(identity, action)
    }
}
