//! Where one watch stands, and how it goes on: reads its history and puts what its client asked for into the queue.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use actix::Addr;
use bytes::Bytes;
use pilothouse_types::filter::Filter;
use pilothouse_types::frame::Frame;
use pilothouse_types::memory::OutOfMemory;
use pilothouse_types::object::{Object, Revision, TypeName, Variant};

use super::{EventEncoder, FrameAside, InitialObjects, LiveSessions, Preparation, Watch};
use crate::archive::{ArchiveError, ArchiveReader};
use crate::broadcaster::{Broadcaster, Subscribe, SubscriptionId, Unsubscribe};
use crate::event::{Change, Event};
use crate::limits::{ENCODED_ASIDE_BYTES, SESSION_BYTES_PER_EVENT, SESSION_EVENTS_PER_TURN};
use crate::session::feed::{Feed, FeedWriter, feed};
use crate::session_waker::{Close, SessionWaker, WakeReasons};
use crate::watch_event::{self, WatchEventType};
use crate::watch_index::IndexKey;
use crate::window::{Read, Window};

/// Where a watch stands.
enum State {
    /// It tells the objects that were there at the start. Next: catching up.
    Initial(InitialObjects),
    /// There may be events after the cursor that it has not read. Next: caught up, or ended if they are gone.
    CatchingUp,
    /// As catching up, but its cursor lies before what memory holds and a read of the log is under way, or what it found has to be
    /// made ready first. Next: catching up when that is done, or ended.
    Fetching,
    /// The frame that comes next is being written by another thread. Next: as before, when that is done.
    Encoding(Box<NextFrame>),
    /// It has read everything, and the broadcaster announces what comes. The cursor may fall behind the window here,
    /// which means nothing: whatever is between was of no interest. Next: catching up, when something is announced.
    CaughtUp,
    /// The last frame is in the queue, and the session stops.
    Ended,
}

/// What is sent next, once it is written.
struct NextFrame {
    source: FrameSource,
    /// The form in which it is written.
    variant: Variant,
}

enum FrameSource {
    /// An object of the start, and those that come after it.
    Initial(Arc<Object>, InitialObjects),
    Event(Arc<Event>),
}

/// What became of an event.
#[derive(PartialEq)]
enum Sending {
    Sent,
    /// It is of no interest.
    Skipped,
    /// Its frame has to be written first.
    Encoding,
}

/// What a session does after a turn.
#[derive(Debug, PartialEq)]
pub(crate) enum AfterTurn {
    /// Waits until it is called.
    Wait,
    /// Goes on when the other tasks of the thread had their turn.
    Again,
    /// Goes on when the log was read.
    Fetch(ArchiveReader, Revision),
    /// Goes on when what it found can be written.
    Prepare,
    /// Goes on when the next frame is written.
    Encode,
    /// Goes on after a while: there is no memory for the next frame.
    Pause,
    /// Stops.
    Stop,
}

/// What a session and its body share. One of them is at it at a time: both run on the thread of the connection.
pub(crate) struct WatchProgress {
    id: SubscriptionId,
    type_name: TypeName,
    window: Arc<Window>,
    state: State,
    pub(super) cursor: Revision,
    filter: Filter,
    encoder: Rc<dyn EventEncoder>,
    writer: FeedWriter,
    pub(super) waker: Arc<SessionWaker>,
    broadcaster: Addr<Broadcaster>,
    bookmarks: bool,
    initial_end_bookmark: bool,
    /// An object of the start for whose frame there was no memory.
    unsent: Option<Arc<Object>>,
    /// What a turn that the body took left for the session to do.
    owed: Option<AfterTurn>,
    /// What [`AfterTurn::Prepare`] means.
    pub(super) preparation: Option<Preparation>,
    /// What [`AfterTurn::Encode`] means.
    pub(super) frame_aside: Option<FrameAside>,
    /// Whether it is counted as one whose client does not read.
    stalled: bool,
    /// Whether it ends with the last event of its type.
    ends_when_caught_up: bool,
    /// Whether there was no memory for the next frame.
    lacks_memory: bool,
    live: LiveSessions,
}

/// The counterpart of `subscribe`. It is no lifecycle hook of the session, because those are left out when a turn panics, and who
/// stays subscribed would never be forgotten.
impl Drop for WatchProgress {
    fn drop(&mut self) {
        self.writer.end();
        let unsubscribe = Unsubscribe { type_name: self.type_name.clone(), id: self.id };
        // A new address has a slot of its own, so this cannot find the mailbox full; and there is one per session.
        let _ = self.broadcaster.clone().try_send(unsubscribe);
        self.count_stalled(false);
        self.live.0.live.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WatchProgress {
    /// The beginning of a watch, and what its body reads.
    pub(super) fn new(watch: Watch, waker: Arc<SessionWaker>) -> (WatchProgress, Feed) {
        let (writer, feed) = feed(Arc::clone(&waker), watch.account);
        watch.live.0.live.fetch_add(1, Ordering::Relaxed);
        let progress = WatchProgress {
            id: SubscriptionId::fresh(),
            type_name: watch.type_name,
            window: watch.window,
            state: State::Initial(watch.initial),
            cursor: watch.cursor,
            filter: watch.filter,
            encoder: watch.encoder,
            writer,
            waker,
            broadcaster: watch.broadcaster,
            bookmarks: watch.bookmarks,
            initial_end_bookmark: watch.initial_end_bookmark,
            unsent: None,
            owed: None,
            preparation: None,
            frame_aside: None,
            stalled: false,
            ends_when_caught_up: false,
            lacks_memory: false,
            live: watch.live,
        };
        (progress, feed)
    }

    /// Whether the broadcaster is there to call.
    pub(super) fn subscribe(&self) -> bool {
        let subscribe = Subscribe {
            id: self.id,
            type_name: self.type_name.clone(),
            window: Arc::clone(&self.window),
            cursor: self.cursor,
            interest: IndexKey::of(&self.filter),
            waker: Arc::clone(&self.waker),
            bookmarks: self.bookmarks,
        };
        // A new address has a slot of its own, so this cannot find the mailbox full; and there is one per session.
        self.broadcaster.clone().try_send(subscribe).is_ok()
    }

    /// A turn that the body takes because it has nothing to read. What takes longer than a turn is left to the session.
    pub(crate) fn run_by_body(&mut self) {
        match self.turn() {
            AfterTurn::Wait => {}
            next => self.owed = Some(next),
        }
        // The session itself may owe something and have found the body waiting when it called.
        if self.owed.is_some() {
            self.waker.wake_session();
        }
    }

    /// A turn of the session. It reads the wake state also where something is owed: whoever called for what stands there may have
    /// found the mailbox full, and calls nobody again before it is read.
    pub(super) fn run_by_session(&mut self) -> AfterTurn {
        match (self.turn(), self.owed.take()) {
            (AfterTurn::Wait, Some(owed)) => owed,
            (next, _) => next,
        }
    }

    /// Does what stands on the wake state, then pulls.
    pub(super) fn turn(&mut self) -> AfterTurn {
        let reasons = self.waker.take_reasons();
        if self.writer.is_abandoned() {
            return AfterTurn::Stop;
        }
        match reasons.close {
            Some(Close::AtOnce) => {
                self.finish();
                return AfterTurn::Stop;
            }
            Some(Close::WhenCaughtUp) => self.ends_when_caught_up = true,
            None => {}
        }
        self.skip_to_news(reasons);
        if self.ends_when_caught_up && matches!(self.state, State::CaughtUp) {
            // The last events may not have been announced yet.
            self.state = State::CatchingUp;
        }
        let next = self.pull();
        if self.ends_when_caught_up && matches!(self.state, State::CaughtUp) {
            self.finish();
            return AfterTurn::Stop;
        }
        let waits = matches!(self.state, State::Initial(_) | State::CatchingUp);
        self.count_stalled(waits && !self.writer.has_room());
        if reasons.bookmark.is_some() && self.bookmarks && self.writer.has_room() {
            self.bookmark();
        }
        next
    }

    /// Moves over what is of no interest. Only a session that had read everything may: for any other, what was
    /// announced last says nothing about the events that it has not read yet.
    fn skip_to_news(&mut self, reasons: WakeReasons) {
        if !matches!(self.state, State::CaughtUp) {
            return;
        }
        match (reasons.news_after, reasons.bookmark) {
            (Some(after), _) => {
                self.cursor = self.cursor.max(after);
                self.state = State::CatchingUp;
            }
            (None, Some(announced)) => self.cursor = self.cursor.max(announced),
            (None, None) => {}
        }
    }

    /// Takes in what there is, until the queue is full or the turn is over.
    fn pull(&mut self) -> AfterTurn {
        let mut left = SESSION_EVENTS_PER_TURN;
        while left > 0 {
            if std::mem::take(&mut self.lacks_memory) {
                return AfterTurn::Pause;
            }
            match &mut self.state {
                State::CaughtUp | State::Fetching | State::Encoding(_) => return AfterTurn::Wait,
                State::Ended => return AfterTurn::Stop,
                State::Initial(_) | State::CatchingUp if !self.writer.has_room() => return AfterTurn::Wait,
                State::Initial(_) | State::CatchingUp if !self.writer.has_memory() => {
                    return AfterTurn::Pause;
                }
                State::Initial(source) => match self.unsent.take().or_else(|| source.next()) {
                    Some(object) => {
                        left = left.saturating_sub(weight(&object));
                        if self.send_initial(object) == Sending::Encoding {
                            return AfterTurn::Encode;
                        }
                    }
                    None => self.end_initial(),
                },
                State::CatchingUp => {
                    if let Err(fetch) = self.catch_up(&mut left) {
                        return fetch;
                    }
                }
            }
        }
        AfterTurn::Again
    }

    fn send_initial(&mut self, object: Arc<Object>) -> Sending {
        if !object.is_readable() && self.filter.matches_key(&object.key) {
            self.end_unreadable(&object, false);
            return Sending::Skipped;
        }
        if !self.filter.matches(&object) {
            return Sending::Skipped;
        }
        let variant = WatchEventType::Added.frame_of(self.encoder.variant());
        if self.is_long_work(&object) && !object.has_frame(variant) {
            return self.encode_initial(object, variant);
        }
        let frame = object.frame(variant, || {
            self.writer.make(object.bytes.len(), || self.encoder.frame(WatchEventType::Added, &object))
        });
        self.push_initial(object, frame)
    }

    /// Has the frame of an object of the start written by another thread.
    fn encode_initial(&mut self, object: Arc<Object>, variant: Variant) -> Sending {
        if self.writer.may_make(object.bytes.len()).is_err() {
            (self.unsent, self.lacks_memory) = (Some(object), true);
            return Sending::Skipped;
        }
        self.frame_aside = Some(self.encoder.frame_aside(WatchEventType::Added, Arc::clone(&object)));
        if let State::Initial(left) = std::mem::replace(&mut self.state, State::CatchingUp) {
            let source = FrameSource::Initial(object, left);
            self.state = State::Encoding(Box::new(NextFrame { source, variant }));
        }
        Sending::Encoding
    }

    /// Queues the frame of an object of the start. It comes from [`Object::frame`]: many watches begin with the same objects, and
    /// those who do not read would hold a copy each of a large one.
    fn push_initial(&mut self, object: Arc<Object>, frame: Result<Frame, OutOfMemory>) -> Sending {
        match frame.and_then(|frame| self.writer.push_event(frame)) {
            Ok(()) => {
                self.encoder.sent();
                Sending::Sent
            }
            Err(OutOfMemory) => {
                (self.unsent, self.lacks_memory) = (Some(object), true);
                Sending::Skipped
            }
        }
    }

    /// Whether the thread of the connection should not write this object itself.
    fn is_long_work(&self, object: &Object) -> bool {
        object.bytes.len() > ENCODED_ASIDE_BYTES && self.encoder.is_slow()
    }

    /// Queues the frame that another thread has written.
    pub(super) fn encoded(&mut self, written: Bytes) {
        if !matches!(self.state, State::Encoding(_)) {
            return;
        }
        let State::Encoding(next) = std::mem::replace(&mut self.state, State::CatchingUp) else { return };
        match next.source {
            FrameSource::Initial(object, left) => {
                self.state = State::Initial(left);
                let frame = object.frame(next.variant, || Ok(written));
                self.push_initial(object, frame);
            }
            FrameSource::Event(event) => {
                let frame = event.frame(next.variant, || Ok(written));
                match frame.and_then(|frame| self.writer.push_event(frame)) {
                    Ok(()) => {
                        self.encoder.sent();
                        self.encoder.delivered(1, event.at);
                        self.cursor = event.revision();
                    }
                    // It is written once more when there is.
                    Err(OutOfMemory) => self.lacks_memory = true,
                }
            }
        }
    }

    fn end_initial(&mut self) {
        if self.initial_end_bookmark {
            self.writer.push(self.encoder.bookmark(self.cursor, true));
            self.encoder.sent();
        }
        self.state = State::CatchingUp;
    }

    /// Reads and takes in events, as many as are `left` of the turn; or returns that they must be read from the log.
    fn catch_up(&mut self, left: &mut usize) -> Result<(), AfterTurn> {
        let most = *left;
        // Before the read: every event up to this head is in what the read returns.
        let head = self.window.head();
        let events = match self.window.read(self.cursor, most) {
            Read::Events(events) => events,
            Read::Archived(archive_reader, through) => {
                self.state = State::Fetching;
                return Err(AfterTurn::Fetch(archive_reader, through));
            }
            Read::Expired(floor) => {
                self.expire(floor);
                return Ok(());
            }
        };
        if self.must_wait_for(&events) {
            return Err(AfterTurn::Prepare);
        }
        let taken = self.take_in(&events, left);
        if matches!(self.state, State::Encoding(_)) {
            return Err(AfterTurn::Encode);
        }
        if taken == events.len() && events.len() < most {
            self.cursor = self.cursor.max(head);
            self.state = State::CaughtUp;
        }
        Ok(())
    }

    /// Takes in what the log had. What finds no room is read again later: a client that does not read must not cost
    /// memory.
    pub(super) fn fetched(&mut self, read: Result<Vec<Arc<Event>>, ArchiveError>) {
        if !matches!(self.state, State::Fetching) {
            return;
        }
        self.state = State::CatchingUp;
        match read {
            // They are read again once they are ready: then nothing has to be kept meanwhile.
            Ok(events) if self.must_wait_for(&events) => {
                self.owed = Some(AfterTurn::Prepare);
            }
            Ok(events) => {
                self.take_in(&events, &mut { SESSION_EVENTS_PER_TURN });
                if matches!(self.state, State::Encoding(_)) {
                    self.owed = Some(AfterTurn::Encode);
                }
            }
            Err(error) => {
                if error != ArchiveError::Gone {
                    tracing::error!(%error, type_name = %self.type_name, "a watch failed to read its history");
                }
                self.expire(self.window.floor());
            }
        }
    }

    /// Whether events have to be made ready before they can be written.
    fn must_wait_for(&mut self, events: &[Arc<Event>]) -> bool {
        self.preparation = self.encoder.prepare(events);
        if self.preparation.is_some() {
            self.state = State::Fetching;
        }
        self.preparation.is_some()
    }

    /// What had to be made ready is, or cannot be.
    pub(super) fn prepared(&mut self, prepared: Result<(), Bytes>) {
        if !matches!(self.state, State::Fetching) {
            return;
        }
        self.state = State::CatchingUp;
        if let Err(frame) = prepared {
            self.writer.push(frame);
            self.end();
        }
    }

    /// Tells events in order until there is no room or nothing `left` of the turn; returns how many the client now knows of.
    fn take_in(&mut self, events: &[Arc<Event>], left: &mut usize) -> usize {
        let (mut taken, mut delivered, mut oldest) = (0, 0, None);
        for event in events {
            if *left == 0 || !self.writer.has_room() {
                break;
            }
            if !event.object.is_readable() && self.filter.matches_key(&event.object.key) {
                self.end_unreadable(&event.object, event.change == Change::Removed);
                break;
            }
            let is_sent = match self.send(event) {
                Ok(Sending::Encoding) => break,
                Ok(sending) => sending == Sending::Sent,
                Err(OutOfMemory) => {
                    self.lacks_memory = true;
                    break;
                }
            };
            if is_sent {
                delivered += 1;
                oldest = oldest.or(Some(event.at));
            }
            *left = left.saturating_sub(if is_sent { weight(&event.object) } else { 1 });
            self.cursor = event.revision();
            taken += 1;
        }
        if let Some(oldest) = oldest {
            self.encoder.delivered(delivered, oldest);
        }
        taken
    }

    fn expire(&mut self, floor: Revision) {
        self.writer.push(self.encoder.expired(self.cursor, floor));
        self.end();
    }

    fn count_stalled(&mut self, stalled: bool) {
        if stalled != std::mem::replace(&mut self.stalled, stalled) {
            self.waker.stall(stalled);
            let count = &self.live.0.stalled;
            if stalled {
                count.fetch_add(1, Ordering::Relaxed)
            } else {
                count.fetch_sub(1, Ordering::Relaxed)
            };
        }
    }

    /// Tells one event, if it is of interest.
    fn send(&mut self, event: &Arc<Event>) -> Result<Sending, OutOfMemory> {
        let Some(event_type) = watch_event::event_type_for(&self.filter, event) else {
            return Ok(Sending::Skipped);
        };
        let variant = event_type.frame_of(self.encoder.variant());
        let object = watch_event::shown_object(event_type, event);
        if self.is_long_work(object) && !event.is_written(variant) {
            self.writer.may_make(object.bytes.len())?;
            let object = watch_event::object_for(event_type, event);
            self.frame_aside = Some(self.encoder.frame_aside(event_type, object));
            let source = FrameSource::Event(Arc::clone(event));
            self.state = State::Encoding(Box::new(NextFrame { source, variant }));
            return Ok(Sending::Encoding);
        }
        let frame = event.frame(variant, || {
            self.writer.make(event.object.bytes.len(), || {
                self.encoder.frame(event_type, &watch_event::object_for(event_type, event))
            })
        })?;
        self.writer.push_event(frame)?;
        self.encoder.sent();
        Ok(Sending::Sent)
    }

    /// Tells how far the client has come, unless it still lacks objects of the start.
    fn bookmark(&self) {
        let has_told_initial = match &self.state {
            State::CatchingUp | State::Fetching | State::CaughtUp => true,
            State::Encoding(next) => matches!(next.source, FrameSource::Event(_)),
            State::Initial(_) | State::Ended => false,
        };
        if has_told_initial {
            self.writer.push(self.encoder.bookmark(self.cursor, false));
            self.encoder.sent();
        }
    }

    /// Ends the watch where it stands: the client can go on from the last revision it was told.
    pub(super) fn finish(&mut self) {
        if self.bookmarks {
            self.bookmark();
        }
        self.end();
    }

    /// Ends the watch at an object that cannot be shown. Whether the filter wants it nobody can tell, and whoever is not
    /// told of it would believe for ever in what it was.
    fn end_unreadable(&mut self, object: &Object, is_gone: bool) {
        self.writer.push(self.encoder.unreadable(object, is_gone));
        self.end();
    }

    fn end(&mut self) {
        self.state = State::Ended;
        self.writer.end();
    }
}

/// How many events of a turn an object counts for.
fn weight(object: &Object) -> usize {
    1 + object.bytes.len() / SESSION_BYTES_PER_EVENT
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
