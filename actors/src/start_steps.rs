//! The steps of a start, each done or not. Health checks show them, and the start waits for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// It is complete.
    Complete,
    /// It was tried, and something was refused, such as an object by a policy. It is repeated.
    Refused,
}

/// The outcomes of the steps so far, by name. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StartSteps(Arc<watch::Sender<BTreeMap<&'static str, StepOutcome>>>);

impl Default for StartSteps {
    fn default() -> StartSteps {
        StartSteps(Arc::new(watch::channel(BTreeMap::new()).0))
    }
}

impl StartSteps {
    /// Notes the outcome of a step. A complete step stays complete.
    pub fn note(&self, step: &'static str, outcome: StepOutcome) {
        self.0.send_if_modified(|steps| {
            let is_final = steps.get(step) == Some(&StepOutcome::Complete);
            !is_final && steps.insert(step, outcome) != Some(outcome)
        });
    }

    /// Notes that a step is complete.
    pub fn complete(&self, step: &'static str) {
        self.note(step, StepOutcome::Complete);
    }

    /// The outcome of a step; `None` before it was tried.
    pub fn outcome(&self, step: &str) -> Option<StepOutcome> {
        self.0.borrow().get(step).copied()
    }

    /// Waits until all of these were tried.
    pub async fn wait_for(&self, steps: &[&'static str]) {
        let mut outcomes = self.0.subscribe();
        let all = |outcomes: &BTreeMap<&'static str, StepOutcome>| {
            steps.iter().all(|step| outcomes.contains_key(step))
        };
        // The sender lives as long as this reference to it.
        let _closed = outcomes.wait_for(all).await.map(drop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn complete_step_stays_complete_and_waiters_see_all() {
        let steps = StartSteps::default();
        assert_eq!(steps.outcome("a"), None);
        steps.note("a", StepOutcome::Refused);
        assert_eq!(steps.outcome("a"), Some(StepOutcome::Refused));
        steps.complete("a");
        steps.note("a", StepOutcome::Refused);
        assert_eq!(steps.outcome("a"), Some(StepOutcome::Complete));
        let waiting = steps.clone();
        let waiter = tokio::spawn(async move { waiting.wait_for(&["a", "b"]).await });
        steps.note("b", StepOutcome::Refused);
        waiter.await.unwrap();
    }
}
