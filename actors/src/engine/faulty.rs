//! An engine that fails on demand: it simulates a broken, a full or a slow disk.

use std::sync::{Arc, Condvar};

use pilothouse_types::lock::{Lock, wait};
use pilothouse_types::object::Revision;

use crate::archive::Archive;
use crate::backup::BackupSource;
use crate::encryption::Encryption;
use crate::log_time::LogTime;

use super::{Batch, Engine, EngineError, Stats, Visitor};

/// How a commit fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The batch is not written.
    Refused,
    /// The disk is full: the batch is not written, and this commit alone fails.
    NoSpace,
    /// The batch is written, but the sync reports an error, so the caller does not know.
    Unknown,
    /// The engine panics.
    Panic,
}

/// Controls a [`Faulty`] engine. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    plan: Lock<Plan>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Plan {
    fault: Option<(usize, Fault)>,
    /// The fault of every commit, and of idle work if the disk is full.
    lasting_fault: Option<Fault>,
    is_blocked: bool,
    /// The number of writes of every commit so far.
    commits: Vec<usize>,
    /// The maximum number of removals in one commit.
    most_trims: usize,
}

impl Faults {
    /// Lets the commit after `successes` further ones fail.
    pub fn fail_after(&self, successes: usize, fault: Fault) {
        let mut plan = self.0.plan.lock();
        plan.fault = Some((plan.commits.len() + successes, fault));
    }

    /// Lets all commits fail from now on; with `None` none.
    pub fn set_lasting(&self, fault: Option<Fault>) {
        self.0.plan.lock().lasting_fault = fault;
    }

    /// Blocks all commits from now on until [`Faults::release`].
    pub fn hold(&self) {
        self.0.plan.lock().is_blocked = true;
    }

    /// Lets blocked commits go on.
    pub fn release(&self) {
        self.0.plan.lock().is_blocked = false;
        self.0.changed.notify_all();
    }

    /// Blocks this thread until this many commits were requested.
    pub fn wait_for_commits(&self, count: usize) {
        let mut plan = self.0.plan.lock();
        while plan.commits.len() < count {
            plan = wait(&self.0.changed, plan);
        }
    }

    /// The number of writes in each commit so far.
    pub fn commits(&self) -> Vec<usize> {
        self.0.plan.lock().commits.clone()
    }

    /// The maximum number of removals in one commit.
    pub fn most_trims(&self) -> usize {
        self.0.plan.lock().most_trims
    }

    fn next_fault(&self, batch: &Batch) -> Option<Fault> {
        let mut plan = self.0.plan.lock();
        let number = plan.commits.len();
        plan.commits.push(batch.writes.len());
        plan.most_trims = plan.most_trims.max(batch.trims.len());
        self.0.changed.notify_all();
        while plan.is_blocked {
            plan = wait(&self.0.changed, plan);
        }
        let fault = plan.fault.filter(|(commit, _)| *commit == number).map(|(_, fault)| fault);
        fault.or(plan.lasting_fault)
    }
}

/// The failing engine.
pub struct Faulty {
    inner: Box<dyn Engine>,
    faults: Faults,
}

impl Faulty {
    /// Wraps an engine.
    pub fn new(inner: Box<dyn Engine>, faults: Faults) -> Faulty {
        Faulty { inner, faults }
    }
}

impl Engine for Faulty {
    fn load(&mut self, visitor: &mut dyn Visitor) -> Result<(), EngineError> {
        self.inner.load(visitor)
    }

    #[expect(clippy::panic, reason = "tests simulate a panic of the engine")]
    fn commit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        let broken = || EngineError::Io(std::io::Error::other("the disk is broken"));
        match self.faults.next_fault(batch) {
            None => self.inner.commit(batch),
            Some(Fault::Refused) => Err(broken()),
            Some(Fault::NoSpace) => Err(EngineError::NoSpace),
            Some(Fault::Unknown) => {
                self.inner.commit(batch)?;
                Err(broken())
            }
            Some(Fault::Panic) => panic!("the engine panics"),
        }
    }

    fn settle(&mut self, now: LogTime) -> Result<(), EngineError> {
        match self.faults.0.plan.lock().lasting_fault {
            Some(Fault::NoSpace) => Err(EngineError::NoSpace),
            _ => self.inner.settle(now),
        }
    }

    fn encryption(&self) -> Arc<dyn Encryption> {
        self.inner.encryption()
    }

    fn restore_reserve(&mut self) {
        self.inner.restore_reserve();
    }

    fn log_time(&self) -> LogTime {
        self.inner.log_time()
    }

    fn archive(&self) -> Option<Arc<dyn Archive>> {
        self.inner.archive()
    }

    fn backup_source(&self) -> Option<Arc<dyn BackupSource>> {
        self.inner.backup_source()
    }

    fn first_revision(&self) -> Revision {
        self.inner.first_revision()
    }

    fn stats(&self) -> Result<Stats, EngineError> {
        self.inner.stats()
    }

    fn close(self: Box<Self>, now: LogTime) -> Result<(), EngineError> {
        self.inner.close(now)
    }
}
