//! The actor between the stores and the log: it gathers the writes of all stores into durable batches.
//!
//! It owns the engine and a thread of its own, which it blocks while a batch syncs. Writes that arrive meanwhile wait in its
//! mailbox and become the next batch: the slower the disk, the larger the batches, and no timer delays a write.
//!
//! Stores send it writes; the server sends [`Check`], [`Flush`] and [`Stop`]. Writes become durable in the order of their
//! arrival, and stores are notified in that order.
//!
//! After a failed commit the state of the disk is unknown. Waiting writers get an error, [`Fatal`] is raised, and no further commit
//! is made. Recovery decides at the next start.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler, Message, Recipient};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Revision, TypeName};

use crate::engine::{Batch, Engine, EngineError, Stats, Write};
use crate::fatal::Fatal;
use crate::limits::{BATCH_BYTES, BATCH_WRITES, TRIM_PER_BATCH, TRIM_PER_WRITE};
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
}

/// Checks that writes can be made durable, on the same path as a write. Answers the statistics of the engine, or Unavailable.
#[derive(Message)]
#[rtype(result = "Result<Stats, StoreError>")]
pub struct Check;

/// Makes everything durable that was sent before. Answers when it is, or Unavailable.
#[derive(Message)]
#[rtype(result = "Result<(), StoreError>")]
pub struct Flush;

/// Runs one step of idle work: trim, or settle when nothing is left to trim. Answers how many records were removed. The committer
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
    /// Every write of the store up to this revision is durable.
    pub through: Result<Revision, StoreError>,
}

/// Commits the gathered writes. The committer sends it to itself, so that it is handled after everything in the mailbox.
#[derive(Message)]
#[rtype(result = "()")]
struct Gathered;

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
    housekeeping_interval: Duration,
    trims: TrimQueue,
    fatal: Fatal,
}

impl Committer {
    /// A committer for this log.
    pub fn new(
        engine: Box<dyn Engine>,
        housekeeping_interval: Duration,
        trims: TrimQueue,
        fatal: Fatal,
    ) -> Committer {
        Committer {
            engine: Some(engine),
            waiting: VecDeque::new(),
            gathering: false,
            busy: false,
            housekeeping_interval,
            trims,
            fatal,
        }
    }

    /// Takes one batch of waiting writes, makes it durable, and notifies the stores.
    fn commit_batch(&mut self) {
        let mut batch = Batch::default();
        let mut committed: HashMap<TypeName, (Recipient<Committed>, Revision)> = HashMap::new();
        let mut bytes = 0;
        while let Some(next) = self.waiting.front() {
            bytes += next.write.record.weight();
            let full = batch.writes.len() >= BATCH_WRITES || bytes > BATCH_BYTES;
            if full && !batch.writes.is_empty() {
                break;
            }
            let Some(Commit { write, store }) = self.waiting.pop_front() else { break };
            committed.entry(write.type_name.clone()).or_insert((store, write.revision)).1 = write.revision;
            batch.writes.push(write);
        }
        if batch.writes.is_empty() {
            return;
        }
        batch.trims = self.trims.take(TRIM_PER_BATCH.min(TRIM_PER_WRITE * batch.writes.len()));
        self.busy = true;
        let outcome = self.commit(&batch);
        for (store, revision) in committed.into_values() {
            Committer::notify_store(&store, outcome.clone().map(|()| revision));
        }
        if outcome.is_err() {
            self.refuse_waiting();
        }
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        self.with_engine(|engine| engine.commit(batch))
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
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the engine panicked".to_owned(),
        };
        self.fatal.raise(format!("the log cannot be written: {reason}"));
        self.engine = None;
        Err(StoreError::Unavailable)
    }

    fn refuse_waiting(&mut self) {
        for commit in self.waiting.drain(..) {
            Committer::notify_store(&commit.store, Err(StoreError::Unavailable));
        }
    }

    /// A mailbox counts its bound per handle, and a fresh handle has one free place. Each write brings a fresh handle that is
    /// used once, so clients that fill the mailbox of a store cannot block this message. The places of the writes bound how many
    /// are on their way. Only a dead store refuses, and then `Fatal` is raised.
    fn notify_store(store: &Recipient<Committed>, through: Result<Revision, StoreError>) {
        let _closed = store.try_send(Committed { through });
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        while !self.waiting.is_empty() {
            self.commit_batch();
        }
        self.engine.as_ref().map(drop).ok_or(StoreError::Unavailable)
    }

    /// One bounded step of idle work.
    fn tidy(&mut self) -> Result<usize, StoreError> {
        let trims = self.trims.take(TRIM_PER_BATCH);
        let removed = trims.len();
        if removed > 0 {
            self.commit(&Batch { writes: Vec::new(), trims })?;
        } else {
            self.with_engine(|engine| engine.settle())?;
        }
        Ok(removed)
    }

    fn close(&mut self) -> Result<(), StoreError> {
        let flushed = self.flush();
        match self.engine.take().map(Engine::close) {
            Some(Ok(())) => flushed,
            Some(Err(error)) => {
                self.fatal.raise(format!("the log cannot be closed: {error}"));
                Err(StoreError::Unavailable)
            }
            None => Err(StoreError::Unavailable),
        }
    }
}

impl Actor for Committer {
    type Context = Context<Committer>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(self.housekeeping_interval, |committer, ctx| {
            if !std::mem::take(&mut committer.busy) && committer.engine.is_some() {
                ctx.notify(Tidy);
            }
        });
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fatal.raise("the committer panicked".to_owned());
        }
    }
}

impl Handler<Commit> for Committer {
    type Result = ();

    fn handle(&mut self, commit: Commit, ctx: &mut Self::Context) {
        if self.engine.is_none() {
            return Committer::notify_store(&commit.store, Err(StoreError::Unavailable));
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
        let removed = self.tidy()?;
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
