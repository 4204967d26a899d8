//! Answers stores that must know the latest state.
//!
//! All changes of all types come in one stream, so "this server has seen revision R" is one number. A store that must read the latest
//! state asks for a barrier: the log is asked for its revision, and the store is told when everything up to that has been handed to it.
//! All stores that come while a question is on its way share the next one.
//!
//! This is a task beside the follower, so that readers get an error in time also while the follower cannot go on.

use std::sync::Arc;

use futures::future::{BoxFuture, OptionFuture};
use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::Revision;
use tokio::sync::watch;
use tokio::time::sleep;

use super::PanicGuard;
use crate::fatal::Fatal;
use crate::limits::BARRIER_TIMEOUT;
use crate::shared_log::messages::{BarrierPassed, BarrierQueue, BarrierRequest, FollowStatus};
use crate::shared_log::{SharedLog, SharedLogError};

/// The task. See the module documentation.
pub(super) struct BarrierGate {
    log: Arc<dyn SharedLog>,
    status: Arc<watch::Sender<FollowStatus>>,
    clock: Clock,
    fatal: Fatal,
    /// Stores that wait until everything up to a revision was handed to them.
    waiting: Vec<Waiting>,
}

struct Waiting {
    revision: Revision,
    since: Moment,
    requests: Vec<BarrierRequest>,
}

impl BarrierGate {
    pub(super) fn new(
        log: Arc<dyn SharedLog>,
        status: Arc<watch::Sender<FollowStatus>>,
        clock: Clock,
        fatal: Fatal,
    ) -> BarrierGate {
        BarrierGate { log, status, clock, fatal, waiting: Vec::new() }
    }

    /// Answers stores until all of them have ended.
    pub(super) async fn run(mut self, mut queue: BarrierQueue) {
        let _guard = PanicGuard::new(&self.fatal, "the gate of barriers");
        let fatal = self.fatal.clone();
        let mut status = self.status.subscribe();
        let mut question: OptionFuture<BoxFuture<'static, Result<Revision, SharedLogError>>> = None.into();
        let (mut is_asking, mut asking, mut next) = (false, Vec::new(), Vec::new());
        loop {
            let waited = self.waiting.first().map(|first| self.clock.elapsed(first.since));
            let left = waited.map(|waited| BARRIER_TIMEOUT.saturating_sub(waited));
            tokio::select! {
                // Whoever waits is told by its store, which ends.
                _ = fatal.wait() => return,
                request = queue.recv() => match request {
                    Some(request) => next.push(request),
                    None => return,
                },
                Some(answer) = &mut question, if is_asking => {
                    is_asking = false;
                    if answer.is_err() {
                        // The log had as long as it may take. Who came meanwhile would wait for the same once more.
                        asking.append(&mut next);
                    }
                    self.handle_answer(answer, std::mem::take(&mut asking));
                }
                _ = status.changed(), if left.is_some() => {}
                () = sleep(left.unwrap_or(BARRIER_TIMEOUT)), if left.is_some() => {}
            }
            self.pass_waiting(&status.borrow_and_update());
            if !is_asking && !next.is_empty() {
                asking = std::mem::take(&mut next);
                question = Some(self.log.current_revision()).into();
                is_asking = true;
            }
        }
    }

    /// The log has answered the question of these stores.
    fn handle_answer(&mut self, answer: Result<Revision, SharedLogError>, requests: Vec<BarrierRequest>) {
        match answer {
            Ok(revision) => {
                self.waiting.push(Waiting { revision, since: self.clock.moment(), requests });
            }
            Err(error) => notify(requests, &Err(error.into())),
        }
    }

    fn pass_waiting(&mut self, status: &FollowStatus) {
        for waiting in &mut self.waiting {
            let Waiting { revision, since, requests } = waiting;
            let has_passed = |request: &mut BarrierRequest| status.seen_of(&request.type_name) >= *revision;
            notify(requests.extract_if(.., has_passed).collect(), &Ok(*revision));
            if self.clock.elapsed(*since) >= BARRIER_TIMEOUT {
                notify(std::mem::take(requests), &Err(StoreError::Unreachable));
            }
        }
        self.waiting.retain(|waiting| !waiting.requests.is_empty());
    }
}

/// Tells stores that their barrier is passed. Each sent a handle of its own, and a mailbox counts its bound per handle: only a store
/// that has ended refuses it.
fn notify(requests: Vec<BarrierRequest>, passed: &Result<Revision, StoreError>) {
    for BarrierRequest { store, .. } in requests {
        let _ended = store.try_send(BarrierPassed(passed.clone()));
    }
}
