//! Starts storage over a log that several servers share.

mod barriers;
mod follower;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;

use pilothouse_types::object::{Object, Revision, TypeName, UnreadableReason};
use tokio::sync::watch;

use self::barriers::BarrierGate;
use self::follower::Follower;
use crate::directory::{Directory, DirectoryParts, Options, Stop, Stores};
use crate::encryption::Encryption;
use crate::fatal::Fatal;
use crate::history_bounds::HistoryBounds;
use crate::limits::TYPE_CHANGES_WAITING;
use crate::log_time::{LogClock, LogTime};
use crate::notifier::ChangeNotifiers;
use crate::recover::State;
use crate::shared_log::messages::{Barriers, FollowStatus};
use crate::shared_log::type_changes::TypeChanges;
use crate::shared_log::{Loaded, SharedEntry, SharedLog, SharedLogError, decode_object};
use crate::snapshot::Snapshot;
use crate::space::Space;
use crate::storage_health::StorageHealth;
use crate::store::{OrderSource, SharedOrderSource, StoreDeps};
use crate::trim_queue::TrimQueue;
use crate::window::Window;
use crate::write_limiter::WriteLimiter;

/// Ends the server if a task panics without which nobody would see any change any more.
struct PanicGuard {
    fatal: Fatal,
    task: &'static str,
}

impl PanicGuard {
    fn new(fatal: &Fatal, task: &'static str) -> PanicGuard {
        PanicGuard { fatal: fatal.clone(), task }
    }
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fatal.raise(format!("{} panicked", self.task));
        }
    }
}

/// Why storage over a shared log cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] SharedLogError),
    /// A thread cannot be started.
    #[error("a thread of the store cannot be started: {0}")]
    Thread(#[from] io::Error),
}

/// Reads a shared log and starts the storage actors, which follow it from there. Returns when they have caught up with it. `known`: the
/// types whose objects are read already. Must be called inside an actix system.
pub async fn start(
    log: Arc<dyn SharedLog>,
    forms: Arc<dyn Encryption>,
    known: HashSet<TypeName>,
    mut options: Options,
) -> Result<Stores, StartError> {
    // What history there is on disk is the matter of the log.
    options.window_bounds.history = HistoryBounds::unlimited();
    let Loaded { revision, entries } = log.load_past().await?;
    let states = states(&*log, &options, revision, entries);
    let undecryptable = Arc::new(undecryptable(&states));
    let deps = store_deps(&options, forms);
    let (sender, status) = watch::channel(FollowStatus { seen: revision, failure: None, disconnected: None });
    let sender = Arc::new(sender);
    let (barriers, queue) = Barriers::new();
    let order = SharedOrderSource { log: Arc::clone(&log), barriers, status: status.clone() };
    let directory = Directory::start_from(DirectoryParts {
        states,
        first_revision: revision,
        archive: None,
        order: OrderSource::Shared(order),
        committer_thread: None,
        store_threads: options.store_threads,
        window_bounds: options.window_bounds,
        deps: deps.clone(),
    })?;
    let (type_changes, receiver) = TypeChanges::new(TYPE_CHANGES_WAITING);
    let gate = BarrierGate::new(Arc::clone(&log), Arc::clone(&sender), options.clock, deps.fatal.clone());
    actix::spawn(gate.run(queue));
    let follower = Follower {
        log: Arc::clone(&log),
        directory: directory.clone(),
        status: sender,
        fatal: deps.fatal.clone(),
        type_changes: receiver,
        known,
    };
    actix::spawn(follower.run());
    if let Err(error) = catch_up(&*log, status.clone()).await {
        // Both tasks end, and then the stores.
        deps.fatal.raise("the shared log could not be followed at the start".to_owned());
        let _ended = directory.send(Stop).await;
        return Err(error.into());
    }
    let StoreDeps { notifiers, fatal, write_limiter, trims, space, clock, encryption, .. } = deps;
    let (health, type_changes) = (StorageHealth::Shared(log, status), Some(type_changes));
    Ok(Stores {
        directory,
        health,
        type_changes,
        notifiers,
        fatal,
        write_limiter,
        trims,
        space,
        clock,
        backup: None,
        encryption,
        undecryptable,
    })
}

/// Waits until everything has been handed to the stores that the log has now: whoever reads what this server has seen must not find the
/// past.
async fn catch_up(
    log: &dyn SharedLog,
    mut status: watch::Receiver<FollowStatus>,
) -> Result<(), SharedLogError> {
    let newest = log.current_revision().await?;
    let seen = status.wait_for(|status| status.seen >= newest).await;
    seen.map(drop).map_err(|_| SharedLogError::Unavailable("it is followed no further".into()))
}

fn store_deps(options: &Options, encryption: Arc<dyn Encryption>) -> StoreDeps {
    StoreDeps {
        write_limiter: WriteLimiter::default(),
        trims: TrimQueue::discarding(),
        notifiers: ChangeNotifiers::default(),
        fatal: Fatal::new(),
        encryption,
        space: Space::default(),
        clock: LogClock::resume(options.clock.clone(), LogTime::default()),
        history: options.history,
        housekeeping_interval: options.housekeeping_interval,
    }
}

/// The state of every type that has objects.
fn states(
    log: &dyn SharedLog,
    options: &Options,
    revision: Revision,
    entries: Vec<SharedEntry>,
) -> BTreeMap<TypeName, State> {
    let mut states: BTreeMap<TypeName, State> = BTreeMap::new();
    for SharedEntry { type_name, key, revision: written, value, .. } in entries {
        let object = decode_object(log, &type_name, key, &value, written);
        let state = states.entry(type_name).or_insert_with(|| {
            let window = Arc::new(Window::new(revision, options.window_bounds.clone()));
            State { snapshot: Snapshot::empty(revision), window, last: revision, rollbacks: 0 }
        });
        state.snapshot.objects.insert(object.key.clone(), Arc::new(object));
    }
    states
}

/// How many objects cannot be decrypted, by type.
fn undecryptable(states: &BTreeMap<TypeName, State>) -> BTreeMap<TypeName, usize> {
    let is_undecryptable = |object: &&Arc<Object>| {
        matches!(object.unreadable_reason(), Some(UnreadableReason::Undecryptable(_)))
    };
    let counts = states.iter().map(|(type_name, state)| {
        (type_name.clone(), state.snapshot.iter().filter(is_undecryptable).count())
    });
    counts.filter(|(_, count)| *count > 0).collect()
}
