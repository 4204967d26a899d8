//! Starts storage over a log that several servers share.

mod barriers;
mod deliveries;
mod follower;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;

use actix::Addr;
use pilothouse_types::object::{Object, Revision, TypeName, UnreadableReason};
use tokio::sync::{mpsc, watch};

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
use crate::shared_log::decoding::decode_entries;
use crate::shared_log::messages::{BarrierQueue, Barriers, FollowStatus};
use crate::shared_log::scope::TypeScope;
use crate::shared_log::type_changes::{TypeChange, TypeChanges};
use crate::shared_log::{Loaded, SharedLog, SharedLogError};
use crate::snapshot::Snapshot;
use crate::space::Space;
use crate::storage_health::StorageHealth;
use crate::store::{OrderSource, OrderSources, SharedOrderSource, StoreDeps, TypeOrder};
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

/// The logs that have the objects.
pub struct SharedLogs {
    /// That of all types without a log of their own.
    pub main: Arc<dyn SharedLog>,
    /// The others, with their types. No type is in two of them, and each log tells only of its own types.
    pub others: Vec<(HashSet<TypeName>, Arc<dyn SharedLog>)>,
}

/// A log, and the types whose objects are in it.
type ScopedLog = (TypeScope, Arc<dyn SharedLog>);

impl SharedLogs {
    /// One log that has all types.
    pub fn single(log: Arc<dyn SharedLog>) -> SharedLogs {
        SharedLogs { main: log, others: Vec::new() }
    }

    /// Each log with its types: the main one, and the others.
    fn into_scopes(self) -> (ScopedLog, Vec<ScopedLog>) {
        let elsewhere = self.others.iter().flat_map(|(types, _)| types.iter().cloned()).collect();
        let only = |(types, log)| (TypeScope::Only(Arc::new(types)), log);
        let main = (TypeScope::AllBut(Arc::new(elsewhere)), self.main);
        (main, self.others.into_iter().map(only).collect())
    }
}

/// A log that was read and is about to be followed.
struct OpenLog {
    scope: TypeScope,
    status: Arc<watch::Sender<FollowStatus>>,
    order: SharedOrderSource,
    barriers: BarrierQueue,
    /// The revision at which it was read.
    revision: Revision,
}

impl OpenLog {
    /// Reads a log.
    async fn read(
        (scope, log): ScopedLog,
        options: &Options,
    ) -> Result<(OpenLog, BTreeMap<TypeName, State>), SharedLogError> {
        let Loaded { revision, entries } = log.load_past().await?;
        let states = states(options, revision, decode_entries(&*log, entries).await);
        let (sender, status) = watch::channel(FollowStatus::new(revision));
        let (barriers, queue) = Barriers::new();
        let order = SharedOrderSource { log, barriers, status, space: Space::default() };
        Ok((OpenLog { scope, status: Arc::new(sender), order, barriers: queue, revision }, states))
    }

    fn order(&self) -> TypeOrder {
        TypeOrder { source: OrderSource::Shared(self.order.clone()), first_revision: self.revision }
    }

    /// The types of a log that has only certain ones, each with its order.
    fn orders(&self) -> Vec<(TypeName, TypeOrder)> {
        match &self.scope {
            TypeScope::Only(types) => types.iter().map(|name| (name.clone(), self.order())).collect(),
            TypeScope::AllBut(_) => Vec::new(),
        }
    }

    /// Starts the tasks that follow it. `type_changes`: types that are added to it and removed. `known`: those that were added already.
    fn start(
        self,
        directory: &Addr<Directory>,
        deps: &StoreDeps,
        options: &Options,
        type_changes: mpsc::Receiver<TypeChange>,
        known: HashSet<TypeName>,
    ) -> SharedOrderSource {
        let (log, fatal) = (&self.order.log, &deps.fatal);
        let (status, clock) = (Arc::clone(&self.status), options.clock.clone());
        let gate = BarrierGate::new(Arc::clone(log), status, clock, fatal.clone());
        actix::spawn(gate.run(self.barriers));
        let follower = Follower {
            log: Arc::clone(log),
            scope: self.scope,
            directory: directory.clone(),
            status: self.status,
            fatal: fatal.clone(),
            type_changes,
            known,
        };
        actix::spawn(follower.run());
        self.order
    }
}

/// Reads the logs and starts the storage actors, which follow them from there. Returns when they have caught up. `known`: the types whose
/// objects are read already. Types that become known later are in the main log. Must be called inside an actix system.
pub async fn start(
    logs: SharedLogs,
    forms: Arc<dyn Encryption>,
    known: HashSet<TypeName>,
    mut options: Options,
) -> Result<Stores, StartError> {
    // What history there is on disk is the matter of the log.
    options.window_bounds.history = HistoryBounds::unlimited();
    let (main, others) = logs.into_scopes();
    let (main, mut all) = OpenLog::read(main, &options).await?;
    let mut open_others = Vec::new();
    for other in others {
        let (other, states) = OpenLog::read(other, &options).await?;
        all.extend(states);
        open_others.push(other);
    }
    let undecryptable = Arc::new(undecryptable(&all));
    let deps = store_deps(&options, forms);
    let by_type = open_others.iter().flat_map(OpenLog::orders).collect();
    let orders = OrderSources::new(main.order(), by_type);
    let directory = Directory::start_from(DirectoryParts {
        states: all,
        archive: None,
        orders: orders.clone(),
        committer_thread: None,
        store_threads: options.store_threads,
        window_bounds: options.window_bounds.clone(),
        deps: deps.clone(),
    })?;
    let (type_changes, receiver) = TypeChanges::new(TYPE_CHANGES_WAITING);
    let main = main.start(&directory, &deps, &options, receiver, known);
    let mut followed = vec![main.clone()];
    for other in open_others {
        // Nothing is ever added to the others.
        let (_, no_changes) = TypeChanges::new(1);
        followed.push(other.start(&directory, &deps, &options, no_changes, HashSet::new()));
    }
    for SharedOrderSource { log, status, .. } in followed {
        if let Err(error) = catch_up(&*log, status).await {
            // The tasks end, and then the stores.
            deps.fatal.raise("the shared log could not be followed at the start".to_owned());
            let _ended = directory.send(Stop).await;
            return Err(error.into());
        }
    }
    let StoreDeps { notifiers, fatal, write_limiter, trims, clock, encryption, .. } = deps;
    let (health, type_changes) = (StorageHealth::Shared(main.log, main.status), Some(type_changes));
    Ok(Stores {
        directory,
        health,
        orders,
        type_changes,
        notifiers,
        fatal,
        write_limiter,
        trims,
        space: main.space,
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
    let seen = status.wait_for(|status| status.is_complete(newest)).await;
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
    options: &Options,
    revision: Revision,
    objects: Vec<(TypeName, Arc<Object>)>,
) -> BTreeMap<TypeName, State> {
    let mut states: BTreeMap<TypeName, State> = BTreeMap::new();
    for (type_name, object) in objects {
        let state = states.entry(type_name).or_insert_with_key(|type_name| {
            let window = Arc::new(Window::new(revision, options.window_bounds.for_type(type_name)));
            State { snapshot: Snapshot::empty(revision), window, last: revision, rollbacks: 0 }
        });
        state.snapshot.objects.insert(object.key.clone(), object);
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
