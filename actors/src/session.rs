//! One watch: a cursor into the history of a type, and a bounded queue towards the client. It pulls, it is never pushed.
//!
//! It runs on the thread of its connection and answers only to its [`SessionWaker`]: the broadcaster calls it when an event may
//! interest it. It reads the window then, in order, and stops when the queue is full. Nobody else notices a client that does not
//! read.
//!
//! Where the watch stands is its `WatchProgress`, which the body of the response knows too: a body that waits for something to
//! read is called in the session's place, takes the turn itself and writes at once. That is one task to wake instead of two for
//! each event, and the memory of a session is touched once. Whatever takes longer than a turn, and every turn for which no body
//! waits, is the session's.
//!
//! Invariant: everything up to the cursor that the filter wants is in the queue or has left it, exactly once, in order.

pub mod feed;
pub(crate) mod progress;

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::filter::Filter;
use pilothouse_types::object::{Object, Revision, TypeName, Variant};

use self::progress::{AfterTurn, WatchProgress};
use crate::broadcaster::Broadcaster;
use crate::event::Event;
use crate::limits::{MEMORY_PAUSE, SESSION_EVENTS_PER_TURN, SESSION_MAILBOX};
use crate::session::feed::Feed;
use crate::session_waker::{SessionWaker, Wake};
use crate::watch_event::WatchEventType;
use crate::watch_memory::WatchAccount;
use crate::window::Window;

/// How what happened is written for one client. Whoever has the same variant writes the same bytes.
pub trait EventEncoder {
    /// Names this way of writing; an event keeps its frames by it.
    fn variant(&self) -> Variant;
    /// One event.
    fn frame(&self, event_type: WatchEventType, object: &Object) -> Bytes;
    /// A frame was queued: what a client needs to be told only once has been told.
    fn sent(&self) {}
    /// The client knows everything up to this revision; `initial_end`: and has now seen all objects of the start.
    fn bookmark(&self, at: Revision, initial_end: bool) -> Bytes;
    /// This object, which is there or is gone now, cannot be shown, because its record is damaged.
    fn unreadable(&self, object: &Object, is_gone: bool) -> Bytes;
    /// The history before `floor` is gone, the client has come no further than `cursor`, and must read the present state.
    fn expired(&self, cursor: Revision, floor: Revision) -> Bytes;
    /// What has to be done before these events can be written, if anything has. If it fails the watch ends with the frame that it
    /// fails with.
    fn prepare(&self, _events: &[Arc<Event>]) -> Option<Preparation> {
        None
    }
    /// Whether writing an object in this form takes long if the object is large. Those of large objects are then written by
    /// [`EventEncoder::frame_aside`].
    fn is_slow(&self) -> bool {
        false
    }
    /// One event, written by another thread.
    fn frame_aside(&self, event_type: WatchEventType, object: Arc<Object>) -> FrameAside {
        Box::pin(std::future::ready(self.frame(event_type, &object)))
    }
    /// So many events were queued, the first of them accepted at `oldest`: for those who count.
    fn delivered(&self, _events: usize, _oldest: Timestamp) {}
}

/// What has to be done before events can be written.
pub type Preparation = Pin<Box<dyn Future<Output = Result<(), Bytes>>>>;

/// A frame that another thread is writing.
pub type FrameAside = Pin<Box<dyn Future<Output = Bytes>>>;

/// The objects that were there when a watch began.
pub type InitialObjects = Box<dyn Iterator<Item = Arc<Object>>>;

/// How many sessions live, on all threads together.
#[derive(Clone, Debug, Default)]
pub struct LiveSessions(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    live: AtomicUsize,
    stalled: AtomicUsize,
}

impl LiveSessions {
    /// The number at this moment.
    pub fn count(&self) -> usize {
        self.0.live.load(Ordering::Relaxed)
    }

    /// How many of them have something to tell and a client that does not read.
    pub fn stalled(&self) -> usize {
        self.0.stalled.load(Ordering::Relaxed)
    }
}

/// What a client asked to watch.
pub struct Watch {
    /// The type.
    pub type_name: TypeName,
    /// Its history.
    pub window: Arc<Window>,
    /// Objects to tell as added before any event, as they were at `cursor`. Read bit by bit as the client takes them;
    /// those that the filter does not want are left out.
    pub initial: InitialObjects,
    /// Events after this revision are told.
    pub cursor: Revision,
    /// The objects that the client asked for.
    pub filter: Filter,
    /// How it wants them written.
    pub encoder: Rc<dyn EventEncoder>,
    /// The broadcaster of this thread.
    pub broadcaster: Addr<Broadcaster>,
    /// After this time the watch ends.
    pub deadline: Option<Duration>,
    /// Whether to tell the client from time to time how far it has come.
    pub bookmarks: bool,
    /// Whether to mark the end of the initial objects with a bookmark.
    pub initial_end_bookmark: bool,
    /// Counts this session while it lives.
    pub live: LiveSessions,
    /// What it has of the memory of all watches.
    pub account: WatchAccount,
    /// Whether what is watched still means what it meant when the client asked. It is asked once, when the session is known to its
    /// broadcaster: whoever changes the meaning later tells that one to end it, whoever did before is found out here.
    pub is_current: Box<dyn Fn() -> bool>,
}

/// The actor of one watch. See the module text.
pub struct Session {
    progress: Rc<RefCell<WatchProgress>>,
    deadline: Option<Duration>,
    is_current: Box<dyn Fn() -> bool>,
}

impl Session {
    /// Starts the session of a watch on this thread, which must run an actix system, and returns what its body reads.
    pub fn open(mut watch: Watch) -> Feed {
        let context = Context::new();
        let deadline = watch.deadline;
        let is_current = std::mem::replace(&mut watch.is_current, Box::new(|| true));
        let (progress, mut feed) =
            WatchProgress::new(watch, SessionWaker::new(context.address().recipient()));
        let progress = Rc::new(RefCell::new(progress));
        feed.follow(Rc::downgrade(&progress));
        context.run(Session { progress, deadline, is_current });
        feed
    }

    fn take_turn(&mut self, context: &mut Context<Self>) {
        let next = self.progress.borrow_mut().run_by_session();
        match next {
            AfterTurn::Wait => {}
            AfterTurn::Again => {
                let later = tokio::task::yield_now().into_actor(self);
                context.spawn(later.map(|(), session, _| session.progress.borrow().waker.resume()));
            }
            AfterTurn::Fetch(archive_reader, through) => {
                let cursor = self.progress.borrow().cursor;
                let read = async move { archive_reader.read(cursor, through, SESSION_EVENTS_PER_TURN).await };
                context.spawn(read.into_actor(self).map(|read, session, _| {
                    let mut progress = session.progress.borrow_mut();
                    progress.fetched(read);
                    progress.waker.resume();
                }));
            }
            AfterTurn::Prepare => {
                let Some(preparation) = self.progress.borrow_mut().preparation.take() else { return };
                context.spawn(preparation.into_actor(self).map(|prepared, session, _| {
                    let mut progress = session.progress.borrow_mut();
                    progress.prepared(prepared);
                    progress.waker.resume();
                }));
            }
            AfterTurn::Encode => {
                let Some(frame) = self.progress.borrow_mut().frame_aside.take() else { return };
                context.spawn(frame.into_actor(self).map(|frame, session, _| {
                    let mut progress = session.progress.borrow_mut();
                    progress.encoded(frame);
                    progress.waker.resume();
                }));
            }
            AfterTurn::Pause => {
                context.run_later(MEMORY_PAUSE, |session, _| session.progress.borrow().waker.resume());
            }
            AfterTurn::Stop => context.stop(),
        }
    }
}

impl Actor for Session {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(SESSION_MAILBOX);
        let subscribed = self.progress.borrow().subscribe();
        if let Some(deadline) = self.deadline {
            context.run_later(deadline, |session, context| {
                session.progress.borrow_mut().finish();
                context.stop();
            });
        }
        if !subscribed {
            context.stop();
        } else if !(self.is_current)() {
            self.progress.borrow_mut().finish();
            context.stop();
        } else {
            self.take_turn(context);
        }
    }
}

impl Handler<Wake> for Session {
    type Result = ();

    fn handle(&mut self, _: Wake, context: &mut Self::Context) {
        self.take_turn(context);
    }
}
