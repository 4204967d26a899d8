//! The actor that knows the store of each type, and the function that starts all storage actors.
//!
//! Stores start on first use, each on one of the store threads, from the state that recovery found. A type that is never used
//! costs only its objects.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use actix::{
    Actor, ActorFutureExt as _, Addr, Arbiter, AtomicResponse, Context, Handler, Message, MessageResult,
    ResponseFuture, WrapFuture as _,
};

use pilothouse_types::activity::Activity;
use pilothouse_types::clock::Clock;
use pilothouse_types::error::StoreError;
use pilothouse_types::memory::MemoryBudget;
use pilothouse_types::object::TypeName;
use tokio::sync::{oneshot, watch};

use crate::archive::{Archive, ArchiveReader};
use crate::backup::BackupSource;
use crate::committer::{self, CommitObserver, Committer, CommitterDeps};
use crate::describe::Describe;
use crate::encryption::Encryption;
use crate::engine::{Engine, EngineError};
use crate::event_limits::EventLimits;
use crate::fatal::Fatal;
use crate::history_bounds::HistoryBounds;
use crate::limits::{
    COMMITTER_MAILBOX, DIRECTORY_MAILBOX, HISTORY, HOUSEKEEPING_INTERVAL, WINDOW_BYTES, WINDOWS_BYTES,
};
use crate::log_time::LogClock;
use crate::notifier::ChangeNotifiers;
use crate::recover::{State, recover};
use crate::shared_log::messages::FollowStatus;
use crate::shared_log::type_changes::TypeChanges;
use crate::space::{Space, SpaceLimits};
use crate::storage_health::StorageHealth;
use crate::store::{self, OrderSource, OrderSources, Retired, Store, StoreDeps, TypeOrder};
use crate::trim_queue::TrimQueue;
use crate::window::{Extent, WindowBounds};
use crate::write_limiter::WriteLimiter;

/// Finds the store of a type and starts it if necessary. The sender guarantees that the type exists. Answers its address, or
/// Unavailable when the server ends. On Full the sender retries; on Closed the server ends.
#[derive(Message)]
#[rtype(result = "Result<Addr<Store>, StoreError>")]
pub struct Find {
    /// The type of the store.
    pub type_name: TypeName,
}

/// Releases a removed type: its store ends if it has no objects, together with its history. Only the counter is kept. If such a
/// type is created again, its revisions continue, and earlier ones are reported as expired. On Full and Closed the sender may
/// retry; only memory is lost.
#[derive(Message)]
#[rtype(result = "Released")]
pub struct Release {
    /// The type of the store.
    pub type_name: TypeName,
}

/// The result of a [`Release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The store is gone.
    Done,
    /// There was no store.
    Absent,
    /// The store has objects and stays.
    HasObjects,
    /// The store is busy: retry later.
    Busy,
}

/// Lists every type that was ever written or looked up, except released ones.
#[derive(Message)]
#[rtype(result = "Vec<TypeName>")]
pub struct Types;

/// Lists the stores that have started. Answers at once. On Full the sender waits; on Closed the server ends.
#[derive(Message)]
#[rtype(result = "Vec<(TypeName, Addr<Store>)>")]
pub struct RunningStores;

/// Ends storage: accepted writes become durable, the log is closed, stores and their threads end. Answers when the log may be
/// opened again, or Unavailable if some writes failed.
#[derive(Message)]
#[rtype(result = "Result<(), StoreError>")]
pub struct Stop;

/// Settings of storage.
#[derive(Clone, Debug)]
pub struct Options {
    /// The source of time.
    pub clock: Clock,
    /// How long a superseded version stays readable and watchable.
    pub history: Duration,
    /// How much history is kept in memory.
    pub window_bounds: WindowBounds,
    /// The number of threads that stores share; at least one.
    pub store_threads: usize,
    /// How often stores expire old history, and how often the committer checks whether it is idle.
    pub housekeeping_interval: Duration,
    /// When the store counts as full.
    pub space_limits: SpaceLimits,
    /// Counts the batches that become durable.
    pub commit_observer: Option<Arc<dyn CommitObserver>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            clock: Clock::system(),
            history: HISTORY,
            window_bounds: WindowBounds {
                per_type_bytes: WINDOW_BYTES,
                total_budget: MemoryBudget::standalone(WINDOWS_BYTES),
                history: HistoryBounds::default(),
                events: EventLimits::default(),
            },
            store_threads: 1,
            housekeeping_interval: HOUSEKEEPING_INTERVAL,
            space_limits: SpaceLimits::default(),
            commit_observer: None,
        }
    }
}

/// The running storage actors.
#[derive(Clone)]
pub struct Stores {
    /// Finds stores and stops everything.
    pub directory: Addr<Directory>,
    /// What health checks ask.
    pub health: StorageHealth,
    /// What gives the writes of each type their order.
    pub(crate) orders: OrderSources,
    /// Where types of a shared log are added and removed; `None` if there is no such log.
    pub type_changes: Option<TypeChanges>,
    /// Where broadcasters add their notifiers.
    pub notifiers: ChangeNotifiers,
    /// Raised when the server must end.
    pub fatal: Fatal,
    /// Measures writes on their way to disk.
    pub write_limiter: WriteLimiter,
    /// The queue of records to remove.
    pub trims: TrimQueue,
    /// How much room the store has left.
    pub space: Space,
    /// The clock of the log.
    pub clock: LogClock,
    /// Writes backups, unless the log is in memory.
    pub backup: Option<Arc<dyn BackupSource>>,
    /// Encrypts what is written.
    pub encryption: Arc<dyn Encryption>,
    /// How many objects could not be decrypted at the start, by type.
    pub undecryptable: Arc<BTreeMap<TypeName, usize>>,
}

impl Stores {
    /// The committer, if the log is one that only this server writes.
    pub fn committer(&self) -> Option<&Addr<Committer>> {
        self.orders.committer()
    }

    /// How far the log was followed, if it is shared: that of all types without one of their own.
    pub fn follow_status(&self) -> Option<watch::Receiver<FollowStatus>> {
        match &self.health {
            StorageHealth::Log(_) => None,
            StorageHealth::Shared(_, status) => Some(status.clone()),
        }
    }

    /// How far the log of a type was followed, if it is shared.
    pub fn follow_status_of(&self, type_name: &TypeName) -> Option<watch::Receiver<FollowStatus>> {
        match &self.orders.for_type(type_name).source {
            OrderSource::Log(_) => None,
            OrderSource::Shared(source) => Some(source.status.clone()),
        }
    }
}

/// Recovers the log and starts the storage actors. Must be called inside an actix system; the committer and the stores get
/// threads of their own.
pub fn start(mut engine: Box<dyn Engine>, options: Options) -> Result<Stores, EngineError> {
    let (archive, backup, first_revision) =
        (engine.archive(), engine.backup_source(), engine.first_revision());
    let encryption = engine.encryption();
    let recovered = recover(&mut *engine, options.history, options.window_bounds.clone())?;
    let (fatal, notifiers, write_limiter, trims) =
        (Fatal::new(), ChangeNotifiers::default(), WriteLimiter::default(), recovered.trims.clone());
    let (space, clock) = (Space::default(), LogClock::resume(options.clock, recovered.newest));

    let committer_thread = Arbiter::try_new()?;
    let (started, startup) = mpsc::channel();
    let committer = Committer::start_in_arbiter(&committer_thread.handle(), {
        let deps = CommitterDeps {
            housekeeping_interval: options.housekeeping_interval,
            trims: trims.clone(),
            space: space.clone(),
            space_limits: options.space_limits,
            clock: clock.clone(),
            history: options.window_bounds.history.clone(),
            observer: options.commit_observer,
            fatal: fatal.clone(),
        };
        move |ctx| {
            ctx.set_mailbox_capacity(COMMITTER_MAILBOX);
            let _ignored = started.send(());
            Committer::new(engine, deps)
        }
    });
    // Until the actor exists its mailbox has the default capacity of 16, and would refuse the first burst of writes.
    startup.recv().map_err(|_| io::Error::other("the thread of the committer ended"))?;
    let deps = StoreDeps {
        write_limiter: write_limiter.clone(),
        trims: trims.clone(),
        notifiers: notifiers.clone(),
        fatal: fatal.clone(),
        encryption: Arc::clone(&encryption),
        space: space.clone(),
        clock: clock.clone(),
        history: options.history,
        housekeeping_interval: options.housekeeping_interval,
    };
    let order = TypeOrder { source: OrderSource::Log(committer.clone()), first_revision };
    let orders = OrderSources::new(order, HashMap::new());
    let directory = Directory::start_from(DirectoryParts {
        states: recovered.types,
        archive,
        orders: orders.clone(),
        committer_thread: Some(committer_thread),
        store_threads: options.store_threads,
        window_bounds: options.window_bounds,
        deps,
    })?;
    Ok(Stores {
        directory,
        health: StorageHealth::Log(committer),
        orders,
        type_changes: None,
        notifiers,
        fatal,
        write_limiter,
        trims,
        space,
        clock,
        backup,
        encryption,
        undecryptable: Arc::new(recovered.undecryptable),
    })
}

/// What a directory is made of.
pub(crate) struct DirectoryParts {
    /// The types that have objects or a history.
    pub(crate) states: BTreeMap<TypeName, State>,
    /// Reads history that does not fit into memory.
    pub(crate) archive: Option<Arc<dyn Archive>>,
    /// What gives the writes of each type their order.
    pub(crate) orders: OrderSources,
    /// The thread of the committer, if there is one.
    pub(crate) committer_thread: Option<Arbiter>,
    /// The number of threads that stores share.
    pub(crate) store_threads: usize,
    /// How much history is kept in memory.
    pub(crate) window_bounds: WindowBounds,
    /// What every store needs.
    pub(crate) deps: StoreDeps,
}

/// The actor. See the module documentation.
pub struct Directory {
    /// Recovered types whose stores have not started.
    idle: BTreeMap<TypeName, State>,
    running: HashMap<TypeName, Addr<Store>>,
    /// Released types: only their counters.
    released: BTreeMap<TypeName, State>,
    /// The threads that stores share; empty once the server ends.
    threads: Vec<Arbiter>,
    /// The committer's thread; `None` once the server ends.
    committer_thread: Option<Arbiter>,
    window_bounds: WindowBounds,
    /// Reads history that does not fit into memory.
    archive: Option<Arc<dyn Archive>>,
    orders: OrderSources,
    deps: StoreDeps,
}

impl Directory {
    /// Starts the threads of the stores, and the directory on this one.
    pub(crate) fn start_from(parts: DirectoryParts) -> io::Result<Addr<Directory>> {
        let threads = (0..parts.store_threads.max(1)).map(|_| Arbiter::try_new());
        let directory = Directory {
            idle: parts.states,
            running: HashMap::new(),
            released: BTreeMap::new(),
            threads: threads.collect::<io::Result<_>>()?,
            committer_thread: parts.committer_thread,
            window_bounds: parts.window_bounds,
            archive: parts.archive,
            orders: parts.orders,
            deps: parts.deps,
        };
        Ok(directory.start())
    }

    fn find(&mut self, type_name: &TypeName) -> Result<Addr<Store>, StoreError> {
        if let Some(store) = self.running.get(type_name) {
            return if store.connected() { Ok(store.clone()) } else { Err(StoreError::Unavailable) };
        }
        // Round robin in the order of first use, which mixes busy and quiet types.
        let index = self.running.len().checked_rem(self.threads.len()).ok_or(StoreError::Unavailable)?;
        let thread = self.threads.get(index).ok_or(StoreError::Unavailable)?;
        let TypeOrder { source, first_revision } = self.orders.for_type(type_name).clone();
        let state = self.idle.remove(type_name).or_else(|| self.released.remove(type_name));
        let state = state.unwrap_or_else(|| {
            let archive_reader = self
                .archive
                .as_ref()
                .map(|archive| ArchiveReader::new(Arc::clone(archive), type_name.clone()));
            State::empty(first_revision, self.window_bounds.for_type(type_name), archive_reader)
        });
        let (name, deps) = (type_name.clone(), self.deps.clone());
        let store =
            Store::start_in_arbiter(&thread.handle(), move |ctx| Store::new(name, state, source, deps, ctx));
        self.running.insert(type_name.clone(), store.clone());
        Ok(store)
    }

    /// Releases a type whose store has not started.
    fn release_idle(&mut self, type_name: TypeName) -> Released {
        match self.idle.get(&type_name) {
            Some(state) if !state.snapshot.objects.is_empty() => Released::HasObjects,
            // Its history takes memory: a running store expires it over time.
            Some(state) if state.window.extent() != Extent::default() => match self.find(&type_name) {
                Ok(_) => Released::Busy,
                Err(_) => Released::Done,
            },
            Some(_) => {
                let state = self.idle.remove(&type_name);
                self.released.extend(state.map(|state| (type_name, state)));
                Released::Done
            }
            None => Released::Absent,
        }
    }

    fn types(&self) -> Vec<TypeName> {
        let types: BTreeSet<&TypeName> = self.idle.keys().chain(self.running.keys()).collect();
        types.into_iter().cloned().collect()
    }
}

/// Stops a thread after all tasks that are ready to run, so that waiting writers still get their answers.
async fn finish(thread: &Arbiter) {
    let (sender, receiver) = oneshot::channel();
    thread.spawn(async move {
        let _ignored = sender.send(());
    });
    let _ignored = receiver.await;
    thread.stop();
}

impl Actor for Directory {
    type Context = Context<Directory>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(DIRECTORY_MAILBOX);
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.deps.fatal.raise("the directory panicked".to_owned());
        }
    }
}

impl Handler<Find> for Directory {
    type Result = Result<Addr<Store>, StoreError>;

    fn handle(&mut self, command: Find, _: &mut Self::Context) -> Self::Result {
        self.find(&command.type_name)
    }
}

impl Handler<Release> for Directory {
    type Result = AtomicResponse<Self, Released>;

    fn handle(&mut self, Release { type_name }: Release, _: &mut Self::Context) -> Self::Result {
        // No other message is handled meanwhile, so a store that is about to end cannot be looked up.
        let retired = self.running.get(&type_name).map(|store| store.send(store::Retire));
        let retired = async move {
            match retired {
                Some(retired) => Some(retired.await),
                None => None,
            }
        };
        AtomicResponse::new(Box::pin(retired.into_actor(self).map(
            move |retired, directory, _| match retired {
                Some(Ok(Retired::Ended(state))) => {
                    directory.running.remove(&type_name);
                    directory.released.insert(type_name, state);
                    Released::Done
                }
                Some(Ok(Retired::HasObjects)) => Released::HasObjects,
                Some(Ok(Retired::Busy) | Err(_)) => Released::Busy,
                None => directory.release_idle(type_name),
            },
        )))
    }
}

impl Handler<Types> for Directory {
    type Result = MessageResult<Types>;

    fn handle(&mut self, _: Types, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.types())
    }
}

impl Handler<RunningStores> for Directory {
    type Result = MessageResult<RunningStores>;

    fn handle(&mut self, _: RunningStores, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.running.iter().map(|(name, store)| (name.clone(), store.clone())).collect())
    }
}

impl Handler<Describe> for Directory {
    type Result = MessageResult<Describe>;

    fn handle(&mut self, _: Describe, _: &mut Self::Context) -> Self::Result {
        let (running, idle) = (self.running.len() as u64, self.idle.len() as u64);
        MessageResult(Activity::here(Vec::new(), vec![("running_stores", running), ("idle_types", idle)]))
    }
}

impl Handler<Stop> for Directory {
    type Result = ResponseFuture<Result<(), StoreError>>;

    fn handle(&mut self, _: Stop, _: &mut Self::Context) -> Self::Result {
        let committer = self.orders.committer().cloned();
        let stores: Vec<Addr<Store>> = self.running.drain().map(|(_, store)| store).collect();
        let threads = std::mem::take(&mut self.threads);
        let committer_thread = self.committer_thread.take();
        self.idle.clear();
        self.released.clear();
        Box::pin(async move {
            let closed = match committer {
                Some(committer) => {
                    committer.send(committer::Stop).await.unwrap_or(Err(StoreError::Unavailable))
                }
                None => Ok(()),
            };
            // The committer has notified the stores of their last writes before it answered; a store handles this message after
            // those.
            for store in stores {
                let _closed = store.send(store::Stop).await;
            }
            for thread in threads.iter().chain(&committer_thread) {
                finish(thread).await;
            }
            closed
        })
    }
}
