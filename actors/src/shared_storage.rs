//! Starts storage over a log that several servers share.

mod follower;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use actix::Addr;
use pilothouse_types::object::{Object, Revision, TypeName};
use tokio::sync::watch;

use self::follower::Follower;
use crate::directory::{Directory, DirectoryParts, Options};
use crate::encryption::NoEncryption;
use crate::fatal::Fatal;
use crate::history_bounds::HistoryBounds;
use crate::log_time::{LogClock, LogTime};
use crate::notifier::ChangeNotifiers;
use crate::recover::State;
use crate::shared_log::messages::Barriers;
use crate::shared_log::{Loaded, SharedEntry, SharedLog, SharedLogError};
use crate::snapshot::Snapshot;
use crate::space::Space;
use crate::store::{OrderSource, StoreDeps};
use crate::trim_queue::TrimQueue;
use crate::window::Window;
use crate::write_limiter::WriteLimiter;

pub use self::follower::FollowStatus;

/// The running storage actors over a shared log.
#[derive(Clone)]
pub struct SharedStores {
    /// Finds stores and stops everything.
    pub directory: Addr<Directory>,
    /// Where broadcasters add their notifiers.
    pub notifiers: ChangeNotifiers,
    /// Raised when the server must end.
    pub fatal: Fatal,
    /// How far the log was followed.
    pub status: watch::Receiver<FollowStatus>,
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

/// Reads a shared log and starts the storage actors, which follow it from there. Must be called inside an actix system.
pub async fn start(log: Arc<dyn SharedLog>, mut options: Options) -> Result<SharedStores, StartError> {
    // What history there is on disk is the matter of the log.
    options.window_bounds.history = HistoryBounds::unlimited();
    let Loaded { revision, entries } = log.load().await?;
    let states = states(&*log, &options, revision, entries);
    let (fatal, notifiers) = (Fatal::new(), ChangeNotifiers::default());
    let deps = StoreDeps {
        write_limiter: WriteLimiter::default(),
        trims: TrimQueue::discarding(),
        notifiers: notifiers.clone(),
        fatal: fatal.clone(),
        encryption: Arc::new(NoEncryption),
        space: Space::default(),
        clock: LogClock::resume(options.clock, LogTime::default()),
        history: options.history,
        housekeeping_interval: options.housekeeping_interval,
    };
    let (barriers, queue) = Barriers::new();
    let directory = Directory::start_from(DirectoryParts {
        states,
        first_revision: revision,
        archive: None,
        order: OrderSource::Shared(Arc::clone(&log), barriers),
        committer_thread: None,
        store_threads: options.store_threads,
        window_bounds: options.window_bounds,
        deps,
    })?;
    let (follower, status) = Follower::new(log, directory.clone(), revision, fatal.clone());
    actix::spawn(follower.run(queue));
    Ok(SharedStores { directory, notifiers, fatal, status })
}

/// The state of every type that has objects.
fn states(
    log: &dyn SharedLog,
    options: &Options,
    revision: Revision,
    entries: Vec<SharedEntry>,
) -> BTreeMap<TypeName, State> {
    let mut states: BTreeMap<TypeName, State> = BTreeMap::new();
    for SharedEntry { type_name, key, revision: written, value } in entries {
        let object = match log.decode(&type_name, &key, &value) {
            Ok(decoded) => Object::new(decoded.draft, written).with_encryption(decoded.key_id),
            Err(reason) => Object::unreadable(key.clone(), written, reason),
        };
        let state = states.entry(type_name).or_insert_with(|| {
            let window = Arc::new(Window::new(revision, options.window_bounds.clone()));
            State { snapshot: Snapshot::empty(revision), window, last: revision, rollbacks: 0 }
        });
        state.snapshot.objects.insert(key, Arc::new(object));
    }
    states
}
