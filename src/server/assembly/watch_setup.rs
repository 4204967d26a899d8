//! Assembles watches: the state that the watches of all workers share.

use std::time::Duration;

use actix::Addr;
use pilothouse_actors::broadcaster::Broadcaster;
use pilothouse_actors::session::LiveSessions;
use pilothouse_api::gates::WATCH_LIST;
use pilothouse_types::lock::Lock;

use crate::config::Config;
use crate::metrics::watches::WatchMeter;
use crate::verbs::{FramesInProgress, WatchDeps};

use super::ServerParts;

/// The shared settings and the live watches of all workers.
pub(super) struct WatchSetup {
    live_sessions: LiveSessions,
    min_request_timeout: Duration,
    /// Whether clients may ask for `sendInitialEvents` (feature gate WatchList).
    initial_events: bool,
    /// The broadcaster of each worker.
    broadcasters: Lock<Vec<Addr<Broadcaster>>>,
}

impl WatchSetup {
    pub(super) fn new(config: &Config) -> WatchSetup {
        WatchSetup {
            live_sessions: LiveSessions::default(),
            min_request_timeout: Duration::from_secs(u64::from(config.limits.min_request_timeout)),
            initial_events: config.gates().enabled(WATCH_LIST),
            broadcasters: Lock::default(),
        }
    }

    /// The number of watches.
    pub(super) fn live_sessions(&self) -> LiveSessions {
        self.live_sessions.clone()
    }

    /// The broadcasters of all workers.
    pub(super) fn broadcasters(&self) -> Vec<Addr<Broadcaster>> {
        self.broadcasters.lock().clone()
    }
}

/// The dependencies of the calling worker thread's watches; starts its broadcaster.
pub(super) fn watch_deps(parts: &ServerParts) -> WatchDeps {
    let broadcaster = Broadcaster::spawn(&parts.storage.notifiers, &parts.storage.fatal);
    let watches = &parts.watches;
    watches.broadcasters.lock().push(broadcaster.clone());
    parts.shared.debug.activity.add("broadcaster", "", &broadcaster);
    WatchDeps {
        broadcaster,
        live_sessions: watches.live_sessions.clone(),
        min_request_timeout: watches.min_request_timeout,
        initial_events: watches.initial_events,
        meter: WatchMeter::new(parts.shared.metrics.clone()),
        memory: parts.memory.watches.clone(),
        frames_in_progress: FramesInProgress::default(),
    }
}
