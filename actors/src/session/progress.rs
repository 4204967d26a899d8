//! The state machine of one watch: it reads the history of its type and queues the frames for its client.

use std::rc::Rc;
use std::sync::Arc;

use actix::Addr;
use bytes::Bytes;
use pilothouse_types::filter::Filter;
use pilothouse_types::frame::Frame;
use pilothouse_types::memory::OutOfMemory;
use pilothouse_types::object::{Object, Revision, TypeName, Variant};

use super::{EventEncoder, InitialObjects, LiveSessions, PendingFrame, Preparation, Watch};
use crate::archive::{ArchiveError, ArchiveReader};
use crate::broadcaster::{Broadcaster, Subscribe, SubscriptionId, Unsubscribe};
use crate::event::{Change, Event};
use crate::limits::{ENCODED_ASYNC_BYTES, SESSION_BYTES_PER_EVENT, SESSION_EVENTS_PER_TURN};
use crate::session::queue::Queue;
use crate::session_waker::{Close, SessionWaker, WakeReasons};
use crate::watch_event::{self, WatchEventType};
use crate::watch_index::IndexKey;
use crate::window::{Read, Window};

/// The state of a watch.
enum State {
    /// It sends the initial objects. Next: catching up.
    Initial(InitialObjects),
    /// There may be events after the cursor that it has not read. Next: caught up, or ended if they are gone.
    CatchingUp,
    /// As catching up, but its cursor lies before what memory holds and a read of the log is in progress, or the events have
    /// to be prepared first. Next: catching up when that is done, or ended.
    Fetching,
    /// The next frame is being encoded by another thread. Next: the previous state, when that is done.
    Encoding(Box<NextFrame>),
    /// It has read everything, and the broadcaster announces new events. The cursor may fall behind the window here,
    /// which is harmless: the filter matches none of the events in between. Next: catching up, when something is announced.
    CaughtUp,
    /// The last frame is in the queue, and the session stops.
    Ended,
}

/// The next frame, while another thread encodes it.
struct NextFrame {
    source: FrameSource,
    /// The variant under which it is cached.
    variant: Variant,
    /// The pending frame, until the session waits for it.
    frame: Option<PendingFrame>,
}

enum FrameSource {
    /// An initial object, and those that come after it.
    Initial(Arc<Object>, InitialObjects),
    /// An event, and whether it is the last one of its revision.
    Event(Arc<Event>, bool),
}

/// The result of sending an event.
#[derive(PartialEq)]
enum Sending {
    Sent,
    /// The filter does not match it.
    Skipped,
    /// Its frame has to be encoded first.
    Encoding,
}

/// What a session does after a turn.
pub(crate) enum AfterTurn {
    /// Waits until it is woken.
    Wait,
    /// Goes on when its client has taken everything and the other tasks of the thread had their turn.
    Again,
    /// Goes on when the log was read.
    Fetch(ArchiveReader, Revision),
    /// Goes on when the events it read can be encoded.
    Prepare(Preparation),
    /// Goes on when the next frame is encoded.
    Encode(PendingFrame),
    /// Goes on after a while: there is no memory for the next frame.
    Pause,
    /// Stops.
    Stop,
}

/// The state of a watch. Its turns are plain functions that write into the queue of the response; what has to be awaited is
/// returned to the session ([`AfterTurn`]).
pub(crate) struct WatchProgress {
    id: SubscriptionId,
    type_name: TypeName,
    window: Arc<Window>,
    state: State,
    pub(super) cursor: Revision,
    /// How many events of the revision after the cursor were sent already: a shared log may change several objects at one revision.
    sent_of_next: usize,
    filter: Filter,
    encoder: Rc<dyn EventEncoder>,
    waker: Arc<SessionWaker>,
    broadcaster: Addr<Broadcaster>,
    bookmarks: bool,
    initial_end_bookmark: bool,
    /// An initial object for whose frame there was no memory.
    unsent: Option<Arc<Object>>,
    /// How many initial objects were queued, until they are counted.
    initial_objects: u64,
    /// Whether it ends with the last event of its type.
    ends_when_caught_up: bool,
    /// Whether there was no memory for the next frame.
    lacks_memory: bool,
    live: LiveSessions,
}

/// The counterpart of `subscribe`. It is no lifecycle hook of the session, because those are skipped when a turn panics, and
/// the subscription would never be removed.
impl Drop for WatchProgress {
    fn drop(&mut self) {
        let unsubscribe = Unsubscribe { type_name: self.type_name.clone(), id: self.id };
        // A new address has a slot of its own, so this cannot find the mailbox full; and there is one per session.
        let _ = self.broadcaster.clone().try_send(unsubscribe);
        self.waker.close_mailbox();
        self.live.remove();
        if self.initial_objects > 0 {
            self.encoder.on_initial_queued(self.initial_objects);
        }
    }
}

impl WatchProgress {
    /// The beginning of a watch, and the queue that its turns fill.
    pub(super) fn new(watch: Watch, waker: Arc<SessionWaker>) -> (WatchProgress, Queue) {
        watch.live.add();
        let queue = Queue::new(watch.account);
        let progress = WatchProgress {
            id: SubscriptionId::fresh(),
            type_name: watch.type_name,
            window: watch.window,
            state: State::Initial(watch.initial),
            cursor: watch.cursor,
            sent_of_next: 0,
            filter: watch.filter,
            encoder: watch.encoder,
            waker,
            broadcaster: watch.broadcaster,
            bookmarks: watch.bookmarks,
            initial_end_bookmark: watch.initial_end_bookmark,
            unsent: None,
            initial_objects: 0,
            ends_when_caught_up: false,
            lacks_memory: false,
            live: watch.live,
        };
        (progress, queue)
    }

    /// Subscribes to the broadcaster. Returns whether it still runs.
    pub(super) fn subscribe(&self) -> bool {
        let subscribe = Subscribe {
            id: self.id,
            type_name: self.type_name.clone(),
            window: Arc::clone(&self.window),
            cursor: self.cursor,
            interest: IndexKey::from_filter(&self.filter),
            waker: Arc::clone(&self.waker),
            bookmarks: self.bookmarks,
        };
        // A new address has a slot of its own, so this cannot find the mailbox full; and there is one per session.
        self.broadcaster.clone().try_send(subscribe).is_ok()
    }

    /// Handles the wake reasons, then pulls events.
    pub(super) fn turn(&mut self, reasons: WakeReasons, out: &mut Queue) -> AfterTurn {
        match reasons.close {
            Some(Close::AtOnce) => {
                self.finish(out);
                return AfterTurn::Stop;
            }
            Some(Close::WhenCaughtUp) => self.ends_when_caught_up = true,
            None => {}
        }
        self.skip_to_events(reasons);
        if self.ends_when_caught_up && matches!(self.state, State::CaughtUp) {
            // The last events may not have been announced yet.
            self.state = State::CatchingUp;
        }
        let next = self.pull(out);
        if self.ends_when_caught_up && matches!(self.state, State::CaughtUp) {
            self.finish(out);
            return AfterTurn::Stop;
        }
        if reasons.bookmark.is_some() && self.bookmarks && out.has_room() {
            self.bookmark(out);
        }
        next
    }

    /// Skips events that the filter does not match. Only for a session that has caught up: for any other, the last announcement
    /// says nothing about the events that it has not read yet.
    fn skip_to_events(&mut self, reasons: WakeReasons) {
        if !matches!(self.state, State::CaughtUp) {
            return;
        }
        match (reasons.events_after, reasons.bookmark) {
            (Some(after), _) => {
                self.cursor = self.cursor.max(after);
                self.state = State::CatchingUp;
            }
            (None, Some(announced)) => self.cursor = self.cursor.max(announced),
            (None, None) => {}
        }
    }

    /// Sends objects and events until the queue is full or the turn is over.
    fn pull(&mut self, out: &mut Queue) -> AfterTurn {
        let mut left = SESSION_EVENTS_PER_TURN;
        while left > 0 {
            if std::mem::take(&mut self.lacks_memory) {
                return AfterTurn::Pause;
            }
            match &mut self.state {
                State::CaughtUp | State::Fetching | State::Encoding(_) => return AfterTurn::Wait,
                State::Ended => return AfterTurn::Stop,
                State::Initial(_) | State::CatchingUp if !out.has_room() => return AfterTurn::Again,
                State::Initial(_) | State::CatchingUp if !out.has_memory() => {
                    return AfterTurn::Pause;
                }
                State::Initial(source) => match self.unsent.take().or_else(|| source.next()) {
                    Some(object) => {
                        left = left.saturating_sub(weight(&object));
                        self.send_initial(object, out);
                        if let Some(encode) = self.frame_to_wait_for() {
                            return encode;
                        }
                    }
                    None => self.end_initial(out),
                },
                State::CatchingUp => {
                    if let Err(fetch) = self.catch_up(&mut left, out) {
                        return fetch;
                    }
                }
            }
        }
        AfterTurn::Again
    }

    /// The next frame, if the session has to wait for its encoding.
    fn frame_to_wait_for(&mut self) -> Option<AfterTurn> {
        let State::Encoding(next) = &mut self.state else { return None };
        next.frame.take().map(AfterTurn::Encode)
    }

    fn send_initial(&mut self, object: Arc<Object>, out: &mut Queue) {
        if !object.is_readable() && self.filter.matches_key(&object.key) {
            return self.end_unreadable(&object, false, out);
        }
        if !self.filter.matches(&object) {
            return;
        }
        let variant = WatchEventType::Added.frame_variant(self.encoder.variant());
        if self.is_slow_to_encode(&object) && !object.has_frame(variant) {
            return self.encode_initial(object, variant, out);
        }
        let frame = object.frame(variant, || {
            out.make(object.bytes.len(), || self.encoder.frame(WatchEventType::Added, &object))
        });
        self.push_initial(object, frame, out);
    }

    /// Lets another thread encode the frame of an initial object.
    fn encode_initial(&mut self, object: Arc<Object>, variant: Variant, out: &Queue) {
        if out.may_make(object.bytes.len()).is_err() {
            (self.unsent, self.lacks_memory) = (Some(object), true);
            return;
        }
        let frame = Some(self.encoder.frame_async(WatchEventType::Added, Arc::clone(&object)));
        if let State::Initial(rest) = std::mem::replace(&mut self.state, State::CatchingUp) {
            let source = FrameSource::Initial(object, rest);
            self.state = State::Encoding(Box::new(NextFrame { source, variant, frame }));
        }
    }

    /// Queues the frame of an initial object. It comes from [`Object::frame`]: many watches start with the same objects, and each
    /// slow client would hold its own copy of a large one.
    fn push_initial(&mut self, object: Arc<Object>, frame: Result<Frame, OutOfMemory>, out: &mut Queue) {
        match frame.and_then(|frame| out.push_event(frame)) {
            Ok(bytes) => {
                self.encoder.on_frame_queued(bytes);
                self.initial_objects += 1;
            }
            Err(OutOfMemory) => (self.unsent, self.lacks_memory) = (Some(object), true),
        }
    }

    /// Whether encoding this object would block the thread of the connection for long.
    fn is_slow_to_encode(&self, object: &Object) -> bool {
        object.bytes.len() > ENCODED_ASYNC_BYTES && self.encoder.is_slow()
    }

    /// Queues the frame that another thread has encoded.
    pub(super) fn on_encoded(&mut self, frame: Bytes, out: &mut Queue) {
        if !matches!(self.state, State::Encoding(_)) {
            return;
        }
        let State::Encoding(next) = std::mem::replace(&mut self.state, State::CatchingUp) else { return };
        match next.source {
            FrameSource::Initial(object, rest) => {
                self.state = State::Initial(rest);
                let frame = object.frame(next.variant, || Ok(frame));
                self.push_initial(object, frame, out);
            }
            FrameSource::Event(event, is_last) => {
                let frame = event.frame(next.variant, || Ok(frame));
                match frame.and_then(|frame| out.push_event(frame)) {
                    Ok(bytes) => {
                        self.encoder.on_frame_queued(bytes);
                        self.encoder.on_events_queued(event.accepted_at.wall);
                        self.pass(&event, is_last);
                    }
                    // It is encoded again once there is memory.
                    Err(OutOfMemory) => self.lacks_memory = true,
                }
            }
        }
    }

    fn end_initial(&mut self, out: &mut Queue) {
        if self.initial_end_bookmark {
            self.push_bookmark(true, out);
        }
        self.encoder.on_initial_queued(std::mem::take(&mut self.initial_objects));
        self.state = State::CatchingUp;
    }

    /// Reads and sends events, at most `left` in this turn; or returns that they must be read from the log.
    fn catch_up(&mut self, left: &mut usize, out: &mut Queue) -> Result<(), AfterTurn> {
        let limit = *left;
        // Before the read: every event up to this revision is in what the read returns.
        let seen = self.window.seen();
        let events = match self.window.read(self.cursor, limit) {
            Read::Events(events) => events,
            Read::Archived(archive_reader, through) => {
                self.state = State::Fetching;
                return Err(AfterTurn::Fetch(archive_reader, through));
            }
            Read::Expired(floor) => {
                self.expire(floor, out);
                return Ok(());
            }
        };
        let unsent = self.skip_sent(&events);
        if let Some(prepare) = self.prepare(unsent) {
            return Err(prepare);
        }
        let sent = self.send_events(unsent, left, out);
        if let Some(encode) = self.frame_to_wait_for() {
            return Err(encode);
        }
        if sent == unsent.len() && events.len() < limit {
            self.cursor = self.cursor.max(seen);
            self.state = State::CaughtUp;
        }
        Ok(())
    }

    /// Sends events that were read from the log. Those that do not fit are read again later: a client that does not read must not
    /// cost memory.
    pub(super) fn on_fetched(
        &mut self,
        read: Result<Vec<Arc<Event>>, ArchiveError>,
        out: &mut Queue,
    ) -> Option<AfterTurn> {
        if !matches!(self.state, State::Fetching) {
            return None;
        }
        self.state = State::CatchingUp;
        match read {
            Ok(events) => {
                let unsent = self.skip_sent(&events);
                // They are read again once they are prepared, so nothing is held meanwhile.
                if let Some(prepare) = self.prepare(unsent) {
                    return Some(prepare);
                }
                self.send_events(unsent, &mut { SESSION_EVENTS_PER_TURN }, out);
                return self.frame_to_wait_for();
            }
            Err(error) => {
                if error != ArchiveError::Gone {
                    tracing::error!(%error, type_name = %self.type_name, "a watch failed to read its history");
                }
                self.expire(self.window.floor(), out);
            }
        }
        None
    }

    /// What the session has to wait for before these events can be encoded, if anything.
    fn prepare(&mut self, events: &[Arc<Event>]) -> Option<AfterTurn> {
        let preparation = self.encoder.prepare(events)?;
        self.state = State::Fetching;
        Some(AfterTurn::Prepare(preparation))
    }

    /// Continues after a preparation, or ends the watch with the frame of its failure.
    pub(super) fn on_prepared(&mut self, prepared: Result<(), Bytes>, out: &mut Queue) {
        if !matches!(self.state, State::Fetching) {
            return;
        }
        self.state = State::CatchingUp;
        if let Err(frame) = prepared {
            out.push(frame);
            self.end();
        }
    }

    /// Sends events in order until there is no room or nothing `left` of the turn. Returns how many were sent or skipped.
    fn send_events(&mut self, events: &[Arc<Event>], left: &mut usize, out: &mut Queue) -> usize {
        let (mut handled, mut oldest) = (0, None);
        for (index, event) in events.iter().enumerate() {
            if *left == 0 || !out.has_room() {
                break;
            }
            if !event.object.is_readable() && self.filter.matches_key(&event.object.key) {
                self.end_unreadable(&event.object, event.change == Change::Removed, out);
                break;
            }
            let next = events.get(index + 1);
            let is_last = next.is_none_or(|next| next.revision() != event.revision());
            let is_sent = match self.send(event, is_last, out) {
                Ok(Sending::Encoding) => break,
                Ok(sending) => sending == Sending::Sent,
                Err(OutOfMemory) => {
                    self.lacks_memory = true;
                    break;
                }
            };
            if is_sent {
                oldest = oldest.or(Some(event.accepted_at.wall));
            }
            *left = left.saturating_sub(if is_sent { weight(&event.object) } else { 1 });
            self.pass(event, is_last);
            handled += 1;
        }
        if let Some(oldest) = oldest {
            self.encoder.on_events_queued(oldest);
        }
        handled
    }

    /// Moves the cursor past an event that was sent or skipped, if it is the last one of its revision.
    fn pass(&mut self, event: &Event, is_last: bool) {
        if is_last {
            (self.cursor, self.sent_of_next) = (event.revision(), 0);
        } else {
            self.sent_of_next += 1;
        }
    }

    /// The events of a read that were not sent yet. A read never ends between two events of one revision.
    fn skip_sent<'a>(&mut self, events: &'a [Arc<Event>]) -> &'a [Arc<Event>] {
        let (sent, unsent) = events.split_at(self.sent_of_next.min(events.len()));
        if let Some(last) = sent.last()
            && unsent.first().is_none_or(|next| next.revision() != last.revision())
        {
            (self.cursor, self.sent_of_next) = (last.revision(), 0);
        }
        unsent
    }

    fn expire(&mut self, floor: Revision, out: &mut Queue) {
        out.push(self.encoder.expired_frame(self.cursor, floor));
        self.end();
    }

    /// Sends one event, if the filter matches it. `is_last`: whether it is the last one of its revision.
    fn send(&mut self, event: &Arc<Event>, is_last: bool, out: &mut Queue) -> Result<Sending, OutOfMemory> {
        let Some(event_type) = watch_event::event_type_for(&self.filter, event) else {
            return Ok(Sending::Skipped);
        };
        let variant = event_type.frame_variant(self.encoder.variant());
        let object = watch_event::visible_object(event_type, event);
        if self.is_slow_to_encode(object) && !event.has_frame(variant) {
            out.may_make(object.bytes.len())?;
            let object = watch_event::object_for(event_type, event);
            let frame = Some(self.encoder.frame_async(event_type, object));
            let source = FrameSource::Event(Arc::clone(event), is_last);
            self.state = State::Encoding(Box::new(NextFrame { source, variant, frame }));
            return Ok(Sending::Encoding);
        }
        let frame = event.frame(variant, || {
            out.make(event.object.bytes.len(), || {
                self.encoder.frame(event_type, &watch_event::object_for(event_type, event))
            })
        })?;
        let bytes = out.push_event(frame)?;
        self.encoder.on_frame_queued(bytes);
        Ok(Sending::Sent)
    }

    /// Sends a bookmark, unless the client still lacks initial objects.
    fn bookmark(&self, out: &mut Queue) {
        let has_sent_initial = match &self.state {
            State::CatchingUp | State::Fetching | State::CaughtUp => true,
            State::Encoding(next) => matches!(next.source, FrameSource::Event(..)),
            State::Initial(_) | State::Ended => false,
        };
        if has_sent_initial {
            self.push_bookmark(false, out);
        }
    }

    fn push_bookmark(&self, is_initial_end: bool, out: &mut Queue) {
        let frame = self.encoder.bookmark_frame(self.cursor, is_initial_end);
        let bytes = frame.len();
        out.push(frame);
        self.encoder.on_frame_queued(bytes);
    }

    /// The client does not read, and the memory of the watch is needed.
    pub(super) fn note_cut(&self) {
        self.encoder.on_cut();
    }

    /// Ends the watch: the client can resume from the last revision that it got.
    pub(super) fn finish(&mut self, out: &mut Queue) {
        if self.bookmarks {
            self.bookmark(out);
        }
        self.end();
    }

    /// Ends the watch at an object that cannot be read. It is unknown whether the filter matches it, and a client that skipped it
    /// would keep a stale state for ever.
    fn end_unreadable(&mut self, object: &Object, is_gone: bool, out: &mut Queue) {
        out.push(self.encoder.unreadable_frame(object, is_gone));
        self.end();
    }

    fn end(&mut self) {
        self.state = State::Ended;
    }
}

/// How many events of a turn an object counts for.
fn weight(object: &Object) -> usize {
    1 + object.bytes.len() / SESSION_BYTES_PER_EVENT
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
