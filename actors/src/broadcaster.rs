//! Delivery of changes: one broadcaster per HTTP worker thread knows the watch sessions of that thread, and wakes those that an
//! event may concern.
//!
//! It neither holds nor sends events. A store notifies through its [`ChangeNotifier`]. The broadcaster then reads the window from
//! its own cursor, looks each event up in the index of the type (`type_watchers.rs`) and wakes the matching sessions, which read
//! the window themselves. Sessions send it [`Subscribe`] and [`Unsubscribe`]. The server sends it [`CloseAll`] at shutdown, and
//! [`CloseType`] when a resource changes.
//!
//! Sessions are woken a few at a time, and other tasks of the thread run in between. So a write is answered while thousands of
//! sessions still wait for the last event, and a session that is woken late finds several events at once: the busier the server,
//! the less each event costs. For the same reason a type with many concerned sessions pauses after waking them, in proportion to
//! their number, and the next round announces everything that came meanwhile. An event after that pause is announced at once, and
//! other types do not wait for it.
//!
//! Invariants: events of one type are looked up in order and none is skipped. A session is woken for each event that its index key
//! matches, before or after the change. Each message drains the notifier first, so a notification that found the mailbox
//! full is not lost. A session waits at most once to be woken.

mod messages;
mod type_watchers;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;

pub use self::messages::{CloseAll, CloseType, Subscribe, SubscriptionId, Unsubscribe};
use pilothouse_types::activity::{Activity, QueueDepth, SlowWatch, retain_slowest};
use pilothouse_types::object::TypeName;

use self::type_watchers::{TypeWatchers, WakeQueue, WakeTask, Watcher};
use crate::describe::Describe;
use crate::fatal::Fatal;
use crate::limits::{
    BOOKMARK_INTERVAL, BOOKMARK_SLOTS, BROADCAST_EVENTS_PER_TURN, BROADCASTER_MAILBOX, CLOSED_AT_ONCE,
    CLOSING_PAUSE, LONGEST_PAUSE, PAUSE_PER_WAKE, WAKES_PER_TURN,
};
use crate::notifier::{ChangeNotifier, ChangeNotifiers, Published};
use crate::session_waker::{Close, SessionWaker};

/// The actor. See the module documentation.
pub struct Broadcaster {
    notifier: Arc<ChangeNotifier>,
    /// The list that holds the notifier, to remove it at the end.
    notifiers: ChangeNotifiers,
    fatal: Fatal,
    watchers_by_type: HashMap<TypeName, TypeWatchers>,
    /// Sessions that have events and were not woken yet.
    to_wake: WakeQueue,
    /// Whether the next turn of wakes is scheduled.
    is_waking: bool,
    phase: Phase,
    /// The slot of sessions that get a bookmark next.
    slot: u32,
}

/// Whether new watches are accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// New watches are accepted.
    Serving,
    /// The server stops: a new watch is closed at once.
    Closing,
}

impl Broadcaster {
    /// Starts the broadcaster of this thread and adds its notifier. `fatal` is raised if it dies: otherwise the watches of the
    /// thread would stay open without events.
    pub fn spawn(notifiers: &ChangeNotifiers, fatal: &Fatal) -> Addr<Broadcaster> {
        Broadcaster::create(|context| {
            let notifier = notifiers.add(ChangeNotifier::new(context.address().recipient()));
            Broadcaster::new(notifier, notifiers.clone(), fatal.clone())
        })
    }

    fn new(notifier: Arc<ChangeNotifier>, notifiers: ChangeNotifiers, fatal: Fatal) -> Broadcaster {
        Broadcaster {
            notifier,
            notifiers,
            fatal,
            watchers_by_type: HashMap::new(),
            to_wake: WakeQueue::new(),
            is_waking: false,
            phase: Phase::Serving,
            slot: 0,
        }
    }
}

impl Drop for Broadcaster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fatal.raise("a broadcaster panicked".to_owned());
        }
    }
}

impl Actor for Broadcaster {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(BROADCASTER_MAILBOX);
        context.run_interval(BOOKMARK_INTERVAL / BOOKMARK_SLOTS, |broadcaster, context| {
            broadcaster.dispatch(context);
            broadcaster.request_bookmarks();
        });
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.notifiers.remove(&self.notifier);
        self.close_all();
        // Waiting wakes would be lost with the broadcaster.
        for wake in self.to_wake.drain(..) {
            if let WakeTask::Session(waker) = wake {
                waker.wake_session();
            }
        }
    }
}

impl Handler<Published> for Broadcaster {
    type Result = ();

    fn handle(&mut self, _: Published, context: &mut Self::Context) {
        self.dispatch(context);
    }
}

impl Handler<Describe> for Broadcaster {
    type Result = MessageResult<Describe>;

    fn handle(&mut self, _: Describe, _: &mut Self::Context) -> Self::Result {
        let watchers = self.watchers_by_type.values().map(|watchers| watchers.members.len());
        let numbers = vec![
            ("watches", watchers.sum::<usize>() as u64),
            ("watched_types", self.watchers_by_type.len() as u64),
        ];
        let queues = vec![QueueDepth::unbounded("wakes", self.to_wake.len())];
        let mut slow_watches = Vec::new();
        for (type_name, watchers) in &self.watchers_by_type {
            watchers.for_each(|watcher| {
                let unread = watcher.waker.unread();
                if unread > 0 {
                    slow_watches.push(SlowWatch { type_name: type_name.to_string(), unread });
                }
            });
        }
        retain_slowest(&mut slow_watches);
        MessageResult(Activity { slow_watches, ..Activity::here(queues, numbers) })
    }
}

impl Handler<Subscribe> for Broadcaster {
    type Result = ();

    fn handle(&mut self, subscribe: Subscribe, context: &mut Self::Context) {
        self.dispatch(context);
        self.subscribe(subscribe);
    }
}

impl Handler<Unsubscribe> for Broadcaster {
    type Result = ();

    fn handle(&mut self, unsubscribe: Unsubscribe, context: &mut Self::Context) {
        self.dispatch(context);
        self.unsubscribe(&unsubscribe);
    }
}

impl Handler<CloseAll> for Broadcaster {
    type Result = Response<()>;

    fn handle(&mut self, CloseAll { within }: CloseAll, context: &mut Self::Context) -> Self::Result {
        self.dispatch(context);
        if within.is_zero() {
            self.close_all();
            return Response::reply(());
        }
        Response::fut(close_gradually(self.begin_closing(), within))
    }
}

/// Closes sessions, so many at a time that all are closed within this time. Few of them are closed sooner.
async fn close_gradually(wakers: Vec<Arc<SessionWaker>>, within: Duration) {
    let turns = usize::try_from(within.as_millis() / CLOSING_PAUSE.as_millis()).unwrap_or(usize::MAX);
    let at_once = wakers.len().div_ceil(turns.max(1)).max(CLOSED_AT_ONCE);
    for (turn, wakers) in wakers.chunks(at_once).enumerate() {
        if turn > 0 {
            tokio::time::sleep(CLOSING_PAUSE).await;
        }
        wakers.iter().for_each(|waker| waker.close(Close::AtOnce));
    }
}

impl Handler<CloseType> for Broadcaster {
    type Result = ();

    fn handle(&mut self, CloseType { type_name, how }: CloseType, context: &mut Self::Context) {
        self.dispatch(context);
        if let Some(watchers) = self.watchers_by_type.get(&type_name) {
            watchers.for_each(|watcher| watcher.waker.close(how));
        }
    }
}

impl Broadcaster {
    /// Drains the notifier. Work beyond one turn is announced again, after other tasks of the thread have run.
    fn dispatch(&mut self, context: &mut Context<Self>) {
        let unfinished = self.find_sessions();
        self.wake_some(context);
        if !unfinished.is_empty() {
            let later = tokio::task::yield_now().into_actor(self).map(move |(), broadcaster, _| {
                for type_name in &unfinished {
                    broadcaster.notifier.notify(type_name);
                }
            });
            context.spawn(later);
        }
    }

    /// Wakes some of the waiting sessions, and the others in later turns.
    fn wake_some(&mut self, context: &mut Context<Self>) {
        if self.is_waking {
            return;
        }
        for _ in 0..WAKES_PER_TURN {
            match self.to_wake.pop_front() {
                None => break,
                Some(WakeTask::Session(waker)) => waker.wake_session(),
                Some(WakeTask::Pause(type_name, pause)) => {
                    context.run_later(pause, move |broadcaster, context| {
                        broadcaster.end_pause(&type_name);
                        broadcaster.dispatch(context);
                    });
                }
            }
        }
        if !self.to_wake.is_empty() {
            self.is_waking = true;
            let later = tokio::task::yield_now().into_actor(self).map(|(), broadcaster, context| {
                broadcaster.is_waking = false;
                broadcaster.wake_some(context);
            });
            context.spawn(later);
        }
    }

    /// Looks up the sessions of new events and queues them to be woken. Returns the types that have more events.
    fn find_sessions(&mut self) -> Vec<TypeName> {
        let mut notified = self.notifier.drain();
        notified.retain(|type_name| {
            let Some(watchers) = self.watchers_by_type.get_mut(type_name) else { return false };
            if watchers.is_paused {
                watchers.is_notified = true;
                return false;
            }
            let before = self.to_wake.len();
            let is_complete = watchers.advance(BROADCAST_EVENTS_PER_TURN, &mut self.to_wake);
            if let Some(pause) = pause_after(self.to_wake.len() - before) {
                self.to_wake.push_back(WakeTask::Pause(type_name.clone(), pause));
                (watchers.is_paused, watchers.is_notified) = (true, !is_complete);
                return false;
            }
            !is_complete
        });
        notified
    }

    fn end_pause(&mut self, type_name: &TypeName) {
        let Some(watchers) = self.watchers_by_type.get_mut(type_name) else { return };
        watchers.is_paused = false;
        if std::mem::take(&mut watchers.is_notified) {
            self.notifier.notify(type_name);
        }
    }

    fn subscribe(&mut self, subscribe: Subscribe) {
        if self.phase == Phase::Closing {
            subscribe.waker.close(Close::AtOnce);
            return;
        }
        let Subscribe { id, type_name, window, cursor, interest, waker, bookmarks } = subscribe;
        let watchers =
            self.watchers_by_type.entry(type_name).or_insert_with(|| TypeWatchers::new(Arc::clone(&window)));
        if !Arc::ptr_eq(&watchers.window, &window) {
            // The type was removed and created again: the old window gets no more events.
            watchers.for_each(|watcher| watcher.waker.close(Close::WhenCaughtUp));
            *watchers = TypeWatchers::new(window);
        }
        if cursor < watchers.cursor {
            // These events were looked up before this session was in the index.
            waker.announce(cursor);
        }
        watchers.index.insert(id.0, &interest, Arc::clone(&waker));
        watchers.members.insert(id, Watcher { interest, waker, bookmarks });
    }

    fn unsubscribe(&mut self, unsubscribe: &Unsubscribe) {
        let Some(watchers) = self.watchers_by_type.get_mut(&unsubscribe.type_name) else { return };
        if let Some(watcher) = watchers.members.remove(&unsubscribe.id) {
            watchers.index.remove(unsubscribe.id.0, &watcher.interest);
        }
        if watchers.members.is_empty() {
            self.watchers_by_type.remove(&unsubscribe.type_name);
        }
    }

    fn close_all(&mut self) {
        self.begin_closing().iter().for_each(|waker| waker.close(Close::AtOnce));
    }

    /// Accepts no more watches, and returns those that are to be closed.
    fn begin_closing(&mut self) -> Vec<Arc<SessionWaker>> {
        self.phase = Phase::Closing;
        let mut wakers = Vec::new();
        for watchers in self.watchers_by_type.values() {
            watchers.for_each(|watcher| wakers.push(Arc::clone(&watcher.waker)));
        }
        wakers
    }

    fn request_bookmarks(&mut self) {
        self.slot = (self.slot + 1) % BOOKMARK_SLOTS;
        let slot = u64::from(self.slot);
        for watchers in self.watchers_by_type.values_mut() {
            watchers.skip_quiet();
            let is_due = |id: &SubscriptionId| id.0 % u64::from(BOOKMARK_SLOTS) == slot;
            let members = watchers.members.iter();
            for (_, watcher) in members.filter(|(id, watcher)| watcher.bookmarks && is_due(id)) {
                watcher.waker.request_bookmark(watchers.cursor);
            }
        }
    }
}

/// How long a type pauses after so many wakes. If all fit into one turn, it does not pause.
fn pause_after(wakes: usize) -> Option<Duration> {
    let pause = PAUSE_PER_WAKE.saturating_mul(u32::try_from(wakes).unwrap_or(u32::MAX));
    (wakes > WAKES_PER_TURN).then_some(pause.min(LONGEST_PAUSE))
}

#[cfg(test)]
mod tests;
