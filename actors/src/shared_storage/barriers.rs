//! Answers stores that must know the latest state.
//!
//! All changes of all types come in one stream, so "this server has seen revision R" is one number. A store that must read the latest
//! state asks for a barrier: the log is asked for its revision, and the store is told when everything up to that has been handed to it.
//! All stores that come while a question is on its way share the next one.
//!
//! This is a task beside the follower, so that readers get an error in time also while the follower cannot go on.

use std::sync::Arc;

use actix::Recipient;
use futures::future::{BoxFuture, OptionFuture};
use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::Revision;
use tokio::sync::watch;
use tokio::time::sleep;

use super::PanicGuard;
use crate::fatal::Fatal;
use crate::limits::BARRIER_TIMEOUT;
use crate::shared_log::messages::{BarrierPassed, BarrierQueue, FollowStatus};
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
    stores: Vec<Recipient<BarrierPassed>>,
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
                store = queue.recv() => match store {
                    Some(store) => next.push(store),
                    None => return,
                },
                Some(answer) = &mut question, if is_asking => {
                    is_asking = false;
                    self.handle_answer(answer, std::mem::take(&mut asking));
                }
                _ = status.changed(), if left.is_some() => {}
                () = sleep(left.unwrap_or(BARRIER_TIMEOUT)), if left.is_some() => {}
            }
            self.pass_waiting(status.borrow_and_update().seen);
            if !is_asking && !next.is_empty() {
                asking = std::mem::take(&mut next);
                question = Some(self.log.current_revision()).into();
                is_asking = true;
            }
        }
    }

    /// The log has answered the question of these stores.
    fn handle_answer(
        &mut self,
        answer: Result<Revision, SharedLogError>,
        stores: Vec<Recipient<BarrierPassed>>,
    ) {
        let failure = answer.as_ref().err().cloned();
        // Nobody is woken for it: whoever wants to know reads it.
        self.status.send_if_modified(|status| {
            status.failure = failure;
            false
        });
        match answer {
            Ok(revision) => {
                self.waiting.push(Waiting { revision, since: self.clock.moment(), stores });
            }
            Err(error) => notify(stores, &Err(error.into())),
        }
    }

    fn pass_waiting(&mut self, seen: Revision) {
        let clock = &self.clock;
        let is_over = |waiting: &Waiting| clock.elapsed(waiting.since) >= BARRIER_TIMEOUT;
        for passed in self.waiting.extract_if(.., |waiting| waiting.revision <= seen || is_over(waiting)) {
            let is_passed = passed.revision <= seen;
            let result = if is_passed { Ok(passed.revision) } else { Err(StoreError::Unreachable) };
            notify(passed.stores, &result);
        }
    }
}

/// Tells stores that their barrier is passed. Each sent a handle of its own, and a mailbox counts its bound per handle: only a store
/// that has ended refuses it.
fn notify(stores: Vec<Recipient<BarrierPassed>>, passed: &Result<Revision, StoreError>) {
    for store in stores {
        let _ended = store.try_send(BarrierPassed(passed.clone()));
    }
}
