//! One watch: a cursor into the history of a type, and a bounded queue towards the client. It pulls, it is never pushed.
//!
//! A session is an actor that the body of its response runs ([`feed`]), on the thread of the connection. The broadcaster wakes it
//! ([`crate::session_waker`]) when an event may interest it. It reads the window then, in order ([`progress`]), and stops when the queue is
//! full. Nobody else notices a client that does not read.
//!
//! Invariant: everything up to the cursor that the filter wants is in the queue or has left it, exactly once, in order.

pub mod feed;
pub(crate) mod progress;
pub(crate) mod queue;

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::fut::wrap_future;
use actix::prelude::*;
use bytes::Bytes;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::filter::Filter;
use pilothouse_types::object::{Object, Revision, TypeName, Variant};

use self::progress::{AfterTurn, WatchProgress};
use crate::broadcaster::Broadcaster;
use crate::event::Event;
use crate::limits::{MEMORY_PAUSE, SESSION_EVENTS_PER_TURN};
pub use crate::live_sessions::LiveSessions;
use crate::session::feed::{Feed, SessionContext};
use crate::session_waker::{SessionWaker, WakeReasons};
use crate::watch_event::WatchEventType;
use crate::watch_memory::WatchAccount;
use crate::window::Window;

/// Encodes watch events for one client. Encoders of the same variant produce the same bytes.
pub trait EventEncoder {
    /// Identifies the encoding; an event caches its frames by it.
    fn variant(&self) -> Variant;
    /// One event.
    fn frame(&self, event_type: WatchEventType, object: &Object) -> Bytes;
    /// Called after a frame of so many bytes was queued, for metrics and for encoders that send something only once.
    fn on_frame_queued(&self, _bytes: usize) {}
    /// Called after so many initial objects were queued, for metrics.
    fn on_initial_queued(&self, _objects: u64) {}
    /// Called when the watch ends because its client does not read and its memory is needed.
    fn on_cut(&self) {}
    /// A bookmark at this revision. `initial_end`: it marks the end of the initial objects.
    fn bookmark_frame(&self, revision: Revision, initial_end: bool) -> Bytes;
    /// The error for an object, live or deleted, whose record is damaged.
    fn unreadable_frame(&self, object: &Object, is_gone: bool) -> Bytes;
    /// The error for a client whose `cursor` lies before `floor`, where the history starts: it must list again.
    fn expired_frame(&self, cursor: Revision, floor: Revision) -> Bytes;
    /// The work that is needed before these events can be encoded, if any. If it fails, the watch ends with the frame of the
    /// error.
    fn prepare(&self, _events: &[Arc<Event>]) -> Option<Preparation> {
        None
    }
    /// Whether encoding a large object takes long. Large objects are then encoded by [`EventEncoder::frame_async`].
    fn is_slow(&self) -> bool {
        false
    }
    /// One event, encoded by another thread.
    fn frame_async(&self, event_type: WatchEventType, object: Arc<Object>) -> PendingFrame {
        Box::pin(std::future::ready(self.frame(event_type, &object)))
    }
    /// Called after events were queued, for metrics; the first of them was accepted at `oldest`.
    fn on_events_queued(&self, _oldest: Timestamp) {}
}

/// The work that is needed before events can be encoded.
pub type Preparation = Pin<Box<dyn Future<Output = Result<(), Bytes>>>>;

/// A frame that another thread is encoding.
pub type PendingFrame = Pin<Box<dyn Future<Output = Bytes>>>;

/// The objects at the start of a watch.
pub type InitialObjects = Box<dyn Iterator<Item = Arc<Object>>>;

/// A watch request.
pub struct Watch {
    /// The type.
    pub type_name: TypeName,
    /// Its history.
    pub window: Arc<Window>,
    /// Objects to send as ADDED before any event, as of `cursor`. Read lazily as the client takes them; those that the filter does
    /// not match are skipped.
    pub initial: InitialObjects,
    /// Events after this revision are sent.
    pub cursor: Revision,
    /// The selector of the watch.
    pub filter: Filter,
    /// Encodes events for the client.
    pub encoder: Rc<dyn EventEncoder>,
    /// The broadcaster of this thread.
    pub broadcaster: Addr<Broadcaster>,
    /// After this time the watch ends.
    pub deadline: Option<Duration>,
    /// Whether to send periodic bookmarks.
    pub bookmarks: bool,
    /// Whether to mark the end of the initial objects with a bookmark.
    pub initial_end_bookmark: bool,
    /// Counts this session while it lives.
    pub live: LiveSessions,
    /// The memory of this watch.
    pub account: WatchAccount,
    /// Whether the watched resource is still the one that the client requested. It is called once, after the session has
    /// subscribed: earlier changes of the resource are detected here, and later ones close the session through its broadcaster.
    pub is_current: Box<dyn Fn() -> bool>,
}

/// The actor of one watch: how it starts and ends. Its state is in its context, which the body of the response polls.
pub struct Session {
    deadline: Option<Duration>,
    is_current: Box<dyn Fn() -> bool>,
}

impl Session {
    /// The body of a watch. It runs on this thread, which must run an actix system.
    pub fn open(mut watch: Watch) -> Feed {
        let deadline = watch.deadline;
        let is_current = std::mem::replace(&mut watch.is_current, Box::new(|| true));
        let waker = SessionWaker::new(watch.live.clone());
        let (progress, queue) = WatchProgress::new(watch, Arc::clone(&waker));
        Feed::new(Session { deadline, is_current }, progress, queue, waker)
    }
}

impl Actor for Session {
    type Context = SessionContext;

    fn started(&mut self, context: &mut Self::Context) {
        // A body that is dropped before it was read starts its session to stop it.
        if context.state() != ActorState::Running {
            return;
        }
        if let Some(deadline) = self.deadline {
            context.run_later(deadline, |_, context| context.finish());
        }
        if !context.progress.subscribe() {
            context.stop();
        } else if !(self.is_current)() {
            context.finish();
        } else {
            context.take_turn(WakeReasons::default());
        }
    }

    /// Nothing holds the address of a session, so actix would stop it when it has no future to wait for. Only `stop` ends it.
    fn stopping(&mut self, context: &mut Self::Context) -> Running {
        if context.state() == ActorState::Running { Running::Continue } else { Running::Stop }
    }
}

/// The sender of the response may drop it as soon as its signal is raised, or read it to its end: both ways lead here.
impl Drop for SessionContext {
    fn drop(&mut self) {
        if self.queue.is_cut() {
            self.progress.note_cut();
        }
    }
}

impl SessionContext {
    /// Ends the watch at its cursor.
    fn finish(&mut self) {
        self.progress.finish(&mut self.queue);
        self.stop();
    }

    /// Takes a turn. Returns whether the actor has to run: something has to be waited for, or it stops.
    pub(super) fn take_turn(&mut self, reasons: WakeReasons) -> bool {
        match self.progress.turn(reasons, &mut self.queue) {
            AfterTurn::Wait => false,
            next => {
                self.wait_for(next);
                true
            }
        }
    }

    /// Waits for what the next turn needs, then takes it.
    fn wait_for(&mut self, next: AfterTurn) {
        match next {
            AfterTurn::Wait => {}
            AfterTurn::Again => self.schedule_turn(tokio::task::yield_now()),
            AfterTurn::Fetch(archive_reader, through) => {
                let cursor = self.progress.cursor;
                let read = async move { archive_reader.read(cursor, through, SESSION_EVENTS_PER_TURN).await };
                self.resume_after(read, |read, context| {
                    context.progress.on_fetched(read, &mut context.queue)
                });
            }
            AfterTurn::Prepare(preparation) => self.resume_after(preparation, |prepared, context| {
                context.progress.on_prepared(prepared, &mut context.queue);
                None
            }),
            AfterTurn::Encode(frame) => self.resume_after(frame, |frame, context| {
                context.progress.on_encoded(frame, &mut context.queue);
                None
            }),
            AfterTurn::Pause => self.schedule_turn(tokio::time::sleep(MEMORY_PAUSE)),
            AfterTurn::Stop => self.stop(),
        }
    }

    /// Takes another turn after `pause`. One at most waits, also if a pause is then longer than needed:
    /// a session that is woken meanwhile must not gather them.
    fn schedule_turn(&mut self, pause: impl Future<Output = ()> + 'static) {
        if !std::mem::replace(&mut self.is_turn_scheduled, true) {
            self.resume_after(pause, |(), context| {
                context.is_turn_scheduled = false;
                None
            });
        }
    }

    /// Gives the output of a future to `apply`, then goes on with what that returns, or with a turn.
    fn resume_after<T: 'static>(
        &mut self,
        future: impl Future<Output = T> + 'static,
        apply: impl FnOnce(T, &mut SessionContext) -> Option<AfterTurn> + 'static,
    ) {
        self.spawn(wrap_future::<_, Session>(future).map(
            |output, _, context: &mut SessionContext| match apply(output, context) {
                Some(next) => context.wait_for(next),
                None => {
                    context.take_turn(WakeReasons::default());
                }
            },
        ));
    }
}
