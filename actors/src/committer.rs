//! The actor between the stores and the log: it gathers the writes of all stores into durable batches.
//!
//! It owns the engine and a thread of its own, which it blocks while a batch syncs. Writes that arrive meanwhile wait in its
//! mailbox and become the next batch: the slower the disk, the larger the batches, and no timer delays a write.
//!
//! Stores send it writes; the server sends [`Check`], [`Flush`] and [`Stop`]. Writes become durable in the order of their
//! arrival, and stores are notified in that order.
//!
//! After a failed commit the state of the disk is unknown. Waiting writers get an error, [`Fatal`] is raised, and no further commit
//! is made. Recovery decides at the next start. A full disk is different: the engine undoes the batch, its stores roll their pending
//! writes back, and the committer goes on.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler, Message, MessageResult, Recipient};
use pilothouse_types::activity::{Activity, QueueDepth};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Revision, TypeName};

use crate::describe::Describe;
use crate::engine::{Batch, Engine, EngineError, Stats, Write};
use crate::fatal::Fatal;
use crate::history_bounds::HistoryBounds;
use crate::limits::{
    BATCH_BYTES, BATCH_WRITES, COMMITTER_WRITES, IDLE_PAUSE_ROUNDS, RESERVED_BATCH_BYTES, TRIM_PER_BATCH,
    TRIM_PER_WRITE,
};
use crate::log_time::LogClock;
use crate::space::{Space, SpaceLevel, SpaceLimits};
use crate::trim_queue::TrimQueue;

/// Asks to make a write durable. The answer comes as [`Committed`].
/// The sender holds a slot of the [`write limiter`](crate::write_limiter) for it, so the mailbox is never full; if it is closed, the
/// server ends.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Commit {
    /// The record to write.
    pub write: Write,
    /// The store to notify. A handle of its own for each write: see `Committer::notify_store`.
    pub store: Recipient<Committed>,
    /// How often the store has rolled back before it sent this.
    pub rollbacks: u64,
}

/// Checks that writes can be made durable, on the same path as a write. Answers the statistics of the engine, or Unavailable.
#[derive(Message)]
#[rtype(result = "Result<Stats, StoreError>")]
pub struct Check;

/// Makes everything durable that was sent before. Answers when it is, or Unavailable.
#[derive(Message)]
#[rtype(result = "Result<(), StoreError>")]
pub struct Flush;

/// Runs one step of idle work: measures the space that is left, and trims, or settles when nothing is left to trim. Answers how many records were removed. The committer
/// does this by itself; tests use it to avoid waiting.
#[derive(Message)]
#[rtype(result = "Result<usize, StoreError>")]
pub struct Tidy;

/// Makes everything durable that was sent before, and closes the log. Returns when it is closed; later writes are refused
/// with Unavailable.
#[derive(Message)]
#[rtype(result = "Result<(), StoreError>")]
pub struct Stop;

/// Notifies a store how far its log is durable, or that this is unknown.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Committed {
    /// Every write of the store up to this revision is durable. NoSpace: none of those that are pending will be, nor was any of them
    /// written. Any other error: that is unknown.
    pub through: Result<Revision, StoreError>,
    /// The number of rollbacks that the store had sent with its writes.
    pub rollbacks: u64,
}

/// Commits the gathered writes. The committer sends it to itself, so that it is handled after everything in the mailbox.
#[derive(Message)]
#[rtype(result = "()")]
struct Gathered;

/// The part of a batch that belongs to one store.
struct StoreCommit {
    store: Recipient<Committed>,
    /// The last revision in the batch.
    through: Revision,
    rollbacks: u64,
}

/// Whether a write was sent before its store learnt that an earlier one failed. The store fails it with that one.
fn is_rolled_back(rolled_back: &HashMap<TypeName, u64>, commit: &Commit) -> bool {
    rolled_back.get(&commit.write.type_name).is_some_and(|rollbacks| commit.rollbacks <= *rollbacks)
}

/// The actor. See the module documentation.
pub struct Committer {
    /// `None` once the log is closed or its state is unknown.
    engine: Option<Box<dyn Engine>>,
    /// Writes that are in no batch yet, bounded by the write limiter.
    waiting: VecDeque<Commit>,
    /// Whether a [`Gathered`] is on its way.
    gathering: bool,
    /// Whether there was a commit since the last check: trimming and settling wait for a quiet moment.
    busy: bool,
    /// Stores that must roll back, by the number of rollbacks that they know of. Their pending writes build on some that failed, so
    /// they are dropped until the store has noticed.
    rolled_back: HashMap<TypeName, u64>,
    /// Idle work on a disk that is full opens the file again each time, so it pauses.
    pause: IdlePause,
    deps: CommitterDeps,
}

/// How many rounds of idle work are left out: more and more, as long as each of those that are not finds the disk full.
#[derive(Debug, Default)]
struct IdlePause {
    left: u32,
    last: u32,
}

impl IdlePause {
    /// Whether this round is left out.
    fn takes_round(&mut self) -> bool {
        let is_pausing = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_pausing
    }

    fn lengthen(&mut self) {
        self.last = (self.last * 2).clamp(1, IDLE_PAUSE_ROUNDS);
        self.left = self.last;
    }

    fn end(&mut self) {
        *self = IdlePause::default();
    }
}

/// Counts batches that became durable. It is called on the thread of the committer: it must not wait.
pub trait CommitObserver: fmt::Debug + Send + Sync {
    /// So many writes became durable together, after so long.
    fn committed(&self, writes: usize, elapsed: Duration);
}

/// What a committer needs besides its log.
pub struct CommitterDeps {
    /// How often it checks whether it is idle.
    pub housekeeping_interval: Duration,
    /// The queue of records to remove.
    pub trims: TrimQueue,
    /// How much room the store has left.
    pub space: Space,
    /// The marks at which that changes.
    pub space_limits: SpaceLimits,
    /// The clock of the log.
    pub clock: LogClock,
    /// Keeps the history short while there is little space.
    pub history: HistoryBounds,
    /// Counts the batches, if anybody does.
    pub observer: Option<Arc<dyn CommitObserver>>,
    /// Raised when the state of the disk is unknown.
    pub fatal: Fatal,
}

impl Committer {
    /// A committer for this log.
    pub fn new(engine: Box<dyn Engine>, deps: CommitterDeps) -> Committer {
        Committer {
            engine: Some(engine),
            waiting: VecDeque::new(),
            gathering: false,
            busy: false,
            rolled_back: HashMap::new(),
            pause: IdlePause::default(),
            deps,
        }
    }

    /// Takes one batch of waiting writes, makes it durable, and notifies the stores.
    fn commit_batch(&mut self) {
        let mut batch = Batch::default();
        let mut committed: HashMap<TypeName, StoreCommit> = HashMap::new();
        let mut bytes = 0;
        // What needs little space must not fail together with what needs much.
        let most_bytes = if self.deps.space.is_full() { RESERVED_BATCH_BYTES } else { BATCH_BYTES };
        while let Some(next) = self.waiting.front() {
            bytes += next.write.record.weight();
            let full = batch.writes.len() >= BATCH_WRITES || bytes > most_bytes;
            if full && !batch.writes.is_empty() {
                break;
            }
            let Some(Commit { write, store, rollbacks }) = self.waiting.pop_front() else { break };
            let (through, type_name) = (write.revision, write.type_name.clone());
            committed.entry(type_name).or_insert(StoreCommit { store, through, rollbacks }).through = through;
            batch.writes.push(write);
        }
        if batch.writes.is_empty() {
            return;
        }
        batch.trims = self.deps.trims.take(TRIM_PER_BATCH.min(TRIM_PER_WRITE * batch.writes.len()));
        self.busy = true;
        let outcome = self.commit(batch);
        if let Err(StoreError::NoSpace) = outcome {
            let rolled_back = committed.iter().map(|(name, commit)| (name.clone(), commit.rollbacks));
            self.rolled_back.extend(rolled_back);
            let rolled_back = &self.rolled_back;
            self.waiting.retain(|commit| !is_rolled_back(rolled_back, commit));
        }
        for StoreCommit { store, through, rollbacks } in committed.into_values() {
            let through = outcome.clone().map(|()| through);
            Committer::notify_store(&store, Committed { through, rollbacks });
        }
        if self.engine.is_none() {
            self.refuse_waiting();
        }
    }

    /// Makes a batch durable. If the disk is full, its removals are tried again later.
    fn commit(&mut self, batch: Batch) -> Result<(), StoreError> {
        let began = self.deps.clock.now();
        let outcome = self.with_engine(|engine| engine.commit(&batch));
        match outcome {
            // Every time, because a second of writes can fill what is left.
            Ok(()) => {
                if let Some(observer) = self.deps.observer.as_ref().filter(|_| !batch.writes.is_empty()) {
                    observer.committed(batch.writes.len(), self.deps.clock.now().since(began));
                }
                self.pause.end();
                self.measure_space();
            }
            Err(StoreError::NoSpace) => self.deps.trims.put_back(batch.trims),
            Err(_) => {}
        }
        outcome
    }

    /// Measures how much space is left.
    fn measure_space(&mut self) {
        let Some(mut level) = self.space_level() else { return };
        if level < SpaceLevel::Full
            && self.deps.space.is_full()
            && let Some(engine) = &mut self.engine
        {
            // Before anybody takes the space.
            engine.restore_reserve();
            level = self.space_level().unwrap_or(level);
        }
        self.set_space(level);
    }

    /// How much space is left now.
    fn space_level(&self) -> Option<SpaceLevel> {
        // An error here says nothing about the log: the level stays what it was.
        let stats = self.engine.as_ref()?.stats().ok()?;
        Some(self.deps.space_limits.level(&stats, self.deps.space.level()))
    }

    fn set_space(&self, level: SpaceLevel) {
        let before = self.deps.space.set(level);
        self.deps.history.set_scarce(level > SpaceLevel::Ample);
        match level {
            _ if level == before => {}
            SpaceLevel::Full => tracing::error!(
                "the store has no space left: writes that let it grow are refused; delete objects or make room on the disk"
            ),
            SpaceLevel::Low => tracing::warn!(before = before.as_str(), "the store has little space left"),
            SpaceLevel::Ample => tracing::info!("the store has enough space again"),
        }
    }

    /// Runs work on the engine. An error or a panic ends the engine.
    fn with_engine<T>(
        &mut self,
        work: impl FnOnce(&mut dyn Engine) -> Result<T, EngineError>,
    ) -> Result<T, StoreError> {
        let engine = self.engine.as_deref_mut().ok_or(StoreError::Unavailable)?;
        // If the engine panics, the stores must still get an answer.
        let reason = match catch_unwind(AssertUnwindSafe(|| work(engine))) {
            Ok(Ok(output)) => return Ok(output),
            Ok(Err(EngineError::NoSpace)) => {
                self.set_space(SpaceLevel::Full);
                return Err(StoreError::NoSpace);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the engine panicked".to_owned(),
        };
        self.deps.fatal.raise(format!("the log cannot be written: {reason}"));
        self.engine = None;
        Err(StoreError::Unavailable)
    }

    fn refuse_waiting(&mut self) {
        for commit in self.waiting.drain(..) {
            Committer::refuse(&commit);
        }
    }

    /// A mailbox counts its bound per handle, and a fresh handle has one free place. Each write brings a fresh handle that is
    /// used once, so clients that fill the mailbox of a store cannot block this message. The places of the writes bound how many
    /// are on their way. Only a dead store refuses, and then `Fatal` is raised.
    fn notify_store(store: &Recipient<Committed>, committed: Committed) {
        let _closed = store.try_send(committed);
    }

    /// Notifies a store that nothing can be written any more.
    fn refuse(commit: &Commit) {
        let through = Err(StoreError::Unavailable);
        Committer::notify_store(&commit.store, Committed { through, rollbacks: commit.rollbacks });
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        while !self.waiting.is_empty() {
            self.commit_batch();
        }
        self.engine.as_ref().map(drop).ok_or(StoreError::Unavailable)
    }

    /// One bounded step of idle work.
    fn tidy(&mut self) -> Result<usize, StoreError> {
        let trims = self.deps.trims.take(TRIM_PER_BATCH);
        let removed = trims.len();
        if removed > 0 {
            self.commit(Batch { writes: Vec::new(), trims })?;
        } else {
            let now = self.deps.clock.now();
            self.with_engine(|engine| engine.settle(now))?;
        }
        Ok(removed)
    }

    fn close(&mut self) -> Result<(), StoreError> {
        let flushed = self.flush();
        let now = self.deps.clock.now();
        match self.engine.take().map(|engine| engine.close(now)) {
            Some(Ok(())) => flushed,
            Some(Err(error)) => {
                self.deps.fatal.raise(format!("the log cannot be closed: {error}"));
                Err(StoreError::Unavailable)
            }
            None => Err(StoreError::Unavailable),
        }
    }
}

impl Actor for Committer {
    type Context = Context<Committer>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.measure_space();
        ctx.run_interval(self.deps.housekeeping_interval, |committer, ctx| {
            if !std::mem::take(&mut committer.busy) && committer.engine.is_some() {
                ctx.notify(Tidy);
            }
        });
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.deps.fatal.raise("the committer panicked".to_owned());
        }
    }
}

impl Handler<Commit> for Committer {
    type Result = ();

    fn handle(&mut self, commit: Commit, ctx: &mut Self::Context) {
        if self.engine.is_none() {
            return Committer::refuse(&commit);
        }
        if is_rolled_back(&self.rolled_back, &commit) {
            return;
        }
        self.waiting.push_back(commit);
        // The whole mailbox is handled before anything else, so a steady stream of writes must commit without waiting for its
        // end.
        if self.waiting.len() >= BATCH_WRITES {
            self.commit_batch();
        } else if !self.gathering {
            self.gathering = true;
            ctx.notify(Gathered);
        }
    }
}

impl Handler<Describe> for Committer {
    type Result = MessageResult<Describe>;

    fn handle(&mut self, _: Describe, _: &mut Self::Context) -> Self::Result {
        let queues = vec![
            QueueDepth::bounded("writes", self.waiting.len(), COMMITTER_WRITES),
            QueueDepth::unbounded("trims", self.deps.trims.len()),
        ];
        MessageResult(Activity::here(queues, Vec::new()))
    }
}

impl Handler<Gathered> for Committer {
    type Result = ();

    fn handle(&mut self, _: Gathered, ctx: &mut Self::Context) {
        self.commit_batch();
        self.gathering = !self.waiting.is_empty();
        if self.gathering {
            ctx.notify(Gathered);
        }
    }
}

impl Handler<Check> for Committer {
    type Result = Result<Stats, StoreError>;

    fn handle(&mut self, _: Check, _: &mut Self::Context) -> Self::Result {
        let engine = self.engine.as_ref().ok_or(StoreError::Unavailable)?;
        engine.stats().map_err(|error| {
            tracing::error!(%error, "cannot read the size of the store");
            StoreError::Unavailable
        })
    }
}

impl Handler<Flush> for Committer {
    type Result = Result<(), StoreError>;

    fn handle(&mut self, _: Flush, _: &mut Self::Context) -> Self::Result {
        self.flush()
    }
}

impl Handler<Tidy> for Committer {
    type Result = Result<usize, StoreError>;

    fn handle(&mut self, _: Tidy, ctx: &mut Self::Context) -> Self::Result {
        self.measure_space();
        if self.pause.takes_round() {
            return Ok(0);
        }
        let removed = self.tidy().inspect_err(|error| {
            if matches!(error, StoreError::NoSpace) {
                self.pause.lengthen();
            }
        })?;
        if removed > 0 && self.waiting.is_empty() {
            ctx.notify(Tidy);
        }
        Ok(removed)
    }
}

impl Handler<Stop> for Committer {
    type Result = Result<(), StoreError>;

    fn handle(&mut self, _: Stop, _: &mut Self::Context) -> Self::Result {
        self.close()
    }
}
