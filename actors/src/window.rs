//! The recent history of one type: appended only by its store, read from a cursor by sessions and broadcasters of any
//! thread without disturbing it.
//!
//! The bytes that a window holds are bounded. Where there is a log to read them from again, events that no longer fit
//! stay readable for the rest of the history: the window remembers their revisions and the versions they superseded
//! ([`EventStub`]), and a reader that far back is sent to the [`ArchiveReader`].
//!
//! Invariant: revisions rise; a reader whose cursor is at or after [`Window::floor`] misses nothing. In the log of this server they rise
//! strictly. A shared log may change several objects at one revision: such events are appended together and read together. Its revisions
//! count the changes of other types as well, so the newest event ([`Window::head`]) and the revision up to which nothing is missing
//! ([`Window::seen`]) are two numbers. After a compaction that this server has slept through there is a gap: what happened in it is
//! known as a difference only, so whoever stands within it has to list again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLockReadGuard, RwLockWriteGuard};

use pilothouse_types::lock::SharedLock;
use pilothouse_types::memory::{MemoryBudget, Reservation};
use pilothouse_types::object::{Revision, TypeName};

use crate::archive::ArchiveReader;
use crate::checkpoints::Checkpoints;
use crate::event::{Event, EventStub};
use crate::event_limits::EventLimits;
use crate::history_bounds::{HistoryBounds, HistoryShare};
use crate::limits::{ARCHIVED_EVENTS, EXPIRE_PER_TURN, WINDOW_GAPS, WINDOW_LEAST_BYTES};
use crate::log_time::LogTime;

/// The result of a read from a cursor.
pub enum Read {
    /// The events after the cursor, in order; none when the reader has caught up.
    Events(Vec<Arc<Event>>),
    /// The cursor lies before what memory holds: the events up to this revision are to be read from the archive.
    Archived(ArchiveReader, Revision),
    /// The cursor lies before the history: the reader has missed events that are gone.
    Expired(Revision),
}

/// How much a window holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Events in memory.
    pub events: usize,
    /// The memory that they take.
    pub bytes: usize,
    /// Events that only the log holds.
    pub archived: usize,
    /// When the oldest event was accepted that can still be read.
    pub oldest: Option<LogTime>,
    /// Events that were ever added since the start, those that are gone included.
    pub appended: u64,
}

/// How much history may be in memory and in the log. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WindowBounds {
    /// Bytes of one type.
    pub per_type_bytes: usize,
    /// The budget of all types together.
    pub total_budget: MemoryBudget,
    /// How much history may be in the log.
    pub history: HistoryBounds,
    /// The maximum numbers of events in memory.
    pub events: EventLimits,
}

impl From<usize> for WindowBounds {
    /// A bound for one type alone.
    fn from(per_type_bytes: usize) -> WindowBounds {
        let total_budget = MemoryBudget::standalone(usize::MAX);
        let (history, events) = (HistoryBounds::unlimited(), EventLimits::default());
        WindowBounds { per_type_bytes, total_budget, history, events }
    }
}

impl WindowBounds {
    /// Those of the window of this type.
    #[must_use]
    pub fn for_type(&self, name: &TypeName) -> WindowBounds {
        WindowBounds { events: self.events.for_type(name), ..self.clone() }
    }

    /// Whether a growing window of this size must drop events. Where all windows together are too large, the busy
    /// ones shrink.
    fn exceeded_by(&self, bytes: usize) -> bool {
        bytes > self.per_type_bytes || (bytes > WINDOW_LEAST_BYTES && self.total_budget.is_exhausted())
    }

    /// Whether a window of this size should drop events that can be read again: memory becomes short.
    fn should_shrink(&self, bytes: usize) -> bool {
        bytes > WINDOW_LEAST_BYTES && !self.total_budget.may_keep()
    }
}

/// The history itself. See the module documentation.
pub struct Window {
    inner: SharedLock<Inner>,
    /// The newest revision at which the type has changed. Written under the lock, and read without it by frequent pollers.
    head: AtomicU64,
    /// Every change up to this revision is here. Never below `head`.
    seen: AtomicU64,
    bounds: WindowBounds,
    /// Reads events that no longer fit; `None` if the log is in memory, too.
    archive_reader: Option<ArchiveReader>,
    /// States at older revisions, from which chunked lists continue.
    checkpoints: Checkpoints,
}

struct Inner {
    events: VecDeque<Arc<Event>>,
    /// The memory of the events, as a part of the budget of all types.
    bytes: Reservation,
    /// A cursor below this must be read from the archive.
    memory_floor: Revision,
    /// The number of events that were ever added.
    appended: u64,
    /// The events that only the log holds: those after `floor`, up to `memory_floor`.
    archived: VecDeque<EventStub>,
    /// Revisions after `floor` without an event. Their records show that the log has no hole there. They supersede nothing, so
    /// they are trimmed by themselves, as tombstones are.
    eventless: VecDeque<EventStub>,
    /// The versions that only these events keep in the log.
    logged: HistoryShare,
    /// A cursor below this has missed something.
    floor: Revision,
    /// Whoever begins between these, neither of them included, misses something, too. A reader from before reads across them.
    gaps: VecDeque<(Revision, Revision)>,
}

impl Window {
    /// An empty window of a type whose newest revision is `head`, without earlier history.
    pub fn new(head: Revision, bounds: impl Into<WindowBounds>) -> Window {
        let bounds = bounds.into();
        let inner = Inner {
            events: VecDeque::new(),
            bytes: bounds.total_budget.empty_reservation(),
            memory_floor: head,
            appended: 0,
            archived: VecDeque::new(),
            eventless: VecDeque::new(),
            logged: bounds.history.empty_share(),
            floor: head,
            gaps: VecDeque::new(),
        };
        Window {
            inner: SharedLock::new(inner),
            head: AtomicU64::new(head.0),
            seen: AtomicU64::new(head.0),
            bounds,
            archive_reader: None,
            checkpoints: Checkpoints::default(),
        }
    }

    /// The same window with a log from which events can be read that no longer fit.
    pub fn with_archive(mut self, archive_reader: Option<ArchiveReader>) -> Window {
        self.archive_reader = archive_reader;
        self
    }

    /// An empty window of a type whose newest revision is `head`; its events after `floor` follow, from disk. `floor` is the
    /// oldest cursor from which nothing is missing.
    pub fn restored(floor: Revision, head: Revision, bounds: impl Into<WindowBounds>) -> Window {
        let window = Window::new(head, bounds);
        {
            let mut inner = window.write();
            (inner.floor, inner.memory_floor) = (floor, floor);
        }
        window
    }

    /// Adds the newest event. Only the store of the type calls this. Events that no longer fit leave memory; those that
    /// the archive cannot keep either are returned, because their records are now superseded for good.
    pub fn append(&self, event: Arc<Event>) -> Vec<EventStub> {
        self.append_all([event])
    }

    /// As [`Window::append`], for the newest events, among them all that have the revision of the last one.
    pub fn append_all(&self, events: impl IntoIterator<Item = Arc<Event>>) -> Vec<EventStub> {
        let mut inner = self.write();
        for event in events {
            debug_assert!(inner.events.back().is_none_or(|last| last.revision() <= event.revision()));
            inner.recharge(|bytes| bytes + event.weight());
            inner.logged.add(event.superseded_bytes());
            inner.events.push_back(event);
            inner.appended += 1;
        }
        let newest = inner.events.back().map_or(0, |event| event.revision().0);
        self.head.fetch_max(newest, Ordering::Release);
        self.seen.fetch_max(newest, Ordering::Release);
        let mut dropped = Vec::new();
        let can_read_again = self.archive_reader.is_some();
        while inner.events.len() > 1
            && (self.bounds.exceeded_by(inner.bytes.bytes())
                || self.bounds.events.exceeded_by(&inner.events, can_read_again))
        {
            match (inner.pop(), &self.archive_reader) {
                (Some(stub), Some(_)) => inner.archived.push_back(stub),
                (Some(stub), None) => dropped.push(inner.raise_floor(stub)),
                (None, _) => break,
            }
        }
        self.bound_archive(&mut inner, &mut dropped, EXPIRE_PER_TURN);
        dropped
    }

    /// Drops at most `limit` events if memory is short and they can be read from the log again, or if the log must become smaller.
    /// Returns what the log need not keep, as [`Window::append`] does.
    pub fn shrink(&self, limit: usize) -> Vec<EventStub> {
        let mut dropped = Vec::new();
        let can_shrink =
            |inner: &Inner| self.archive_reader.is_some() && self.bounds.should_shrink(inner.bytes.bytes());
        {
            let inner = self.read_lock();
            if !can_shrink(&inner) && !inner.logged.is_exceeded() {
                return dropped;
            }
        }
        let mut inner = self.write();
        for _ in 0..limit {
            if inner.events.len() <= 1 || !can_shrink(&inner) {
                break;
            }
            let oldest = inner.pop();
            inner.archived.extend(oldest);
        }
        self.bound_archive(&mut inner, &mut dropped, limit);
        dropped
    }

    /// Forgets the oldest events of an archive that has become too long, or whose versions take too much of the log.
    fn bound_archive(&self, inner: &mut Inner, dropped: &mut Vec<EventStub>, limit: usize) {
        let is_too_long =
            |inner: &Inner| inner.archived.len() > ARCHIVED_EVENTS || inner.logged.is_exceeded();
        for _ in 0..limit {
            if !is_too_long(inner) {
                break;
            }
            let oldest = match inner.archived.pop_front() {
                Some(stub) => Some(stub),
                // The newest event stays, for watches that are about to read it.
                None if inner.events.len() > 1 => inner.pop(),
                None => break,
            };
            dropped.extend(oldest.map(|stub| inner.raise_floor(stub)));
        }
        self.checkpoints.forget_before(inner.memory_floor, inner.floor);
    }

    /// Advances the type to this revision without an event. Only its store calls this.
    pub fn advance_revision(&self, revision: Revision, accepted_at: LogTime) {
        let mut inner = self.write();
        inner.eventless.push_back(EventStub {
            revision,
            accepted_at,
            superseded: None,
            superseded_bytes: 0,
            frees_own_record: true,
        });
        self.head.fetch_max(revision.0, Ordering::Release);
        self.seen.fetch_max(revision.0, Ordering::Release);
    }

    /// Nothing else has happened to the type up to this revision, which counts the changes of other types as well. Only its store calls
    /// this.
    pub fn advance_seen(&self, revision: Revision) {
        self.seen.fetch_max(revision.0, Ordering::Release);
    }

    /// What happened between these revisions is known as a difference only. Only its store calls this.
    pub fn mark_gap(&self, after: Revision, through: Revision) {
        let mut inner = self.write();
        let floor = inner.floor;
        inner.gaps.retain(|(_, end)| *end > floor);
        inner.gaps.push_back((after, through));
        if inner.gaps.len() > WINDOW_GAPS
            && let (Some((after, _)), Some((_, through))) = (inner.gaps.pop_front(), inner.gaps.pop_front())
        {
            // Whoever stands between the two oldest has to list again as well.
            inner.gaps.push_front((after, through));
        }
    }

    /// Begins anew at a revision, which may be an older one: nothing from before is known any more. Only its store calls this, before
    /// anybody is served from it.
    pub fn restart(&self, revision: Revision) {
        let mut inner = self.write();
        while inner.pop().is_some() {}
        inner.eventless.clear();
        inner.gaps.clear();
        (inner.floor, inner.memory_floor) = (revision, revision);
        self.head.store(revision.0, Ordering::Release);
        self.seen.store(revision.0, Ordering::Release);
    }

    /// Drops at most `limit` events from before `horizon` and returns their stubs.
    pub fn forget_before(&self, horizon: LogTime, limit: usize) -> Vec<EventStub> {
        let mut inner = self.write();
        let mut dropped = Vec::new();
        while dropped.len() < limit {
            let stub = match (inner.archived.front(), inner.events.front()) {
                (Some(oldest), _) if oldest.accepted_at < horizon => inner.archived.pop_front(),
                (None, Some(oldest)) if oldest.accepted_at.log < horizon => inner.pop(),
                _ => break,
            };
            dropped.extend(stub.map(|stub| inner.raise_floor(stub)));
        }
        while let Some(stub) = inner.pop_eventless_before(horizon) {
            dropped.push(inner.raise_floor(stub));
            inner.memory_floor = inner.memory_floor.max(inner.floor);
        }
        if inner.events.is_empty() && inner.archived.is_empty() {
            // This frees their capacity, too.
            (inner.events, inner.archived) = (VecDeque::new(), VecDeque::new());
        }
        if inner.archived.is_empty() && !dropped.is_empty() {
            // No reader is sent to the archive any more, so its cached reads are of no use.
            self.archive_reader.iter().for_each(ArchiveReader::clear_cache);
        }
        self.checkpoints.forget_before(inner.memory_floor, inner.floor);
        self.checkpoints.forget_read_before(horizon);
        dropped
    }

    /// At most `limit` events after `cursor`, in order.
    pub fn read(&self, cursor: Revision, limit: usize) -> Read {
        let inner = self.read_lock();
        if cursor < inner.floor {
            return Read::Expired(inner.floor);
        }
        if cursor < inner.memory_floor {
            return match &self.archive_reader {
                Some(archive_reader) => Read::Archived(archive_reader.clone(), inner.memory_floor),
                None => Read::Expired(inner.memory_floor),
            };
        }
        let from = inner.events.partition_point(|event| event.revision() <= cursor);
        let mut events: Vec<_> = inner.events.range(from..).take(limit).cloned().collect();
        // A reader goes on after a revision, so it must get all events of one.
        let last = events.last().map(|last| last.revision());
        let rest = inner.events.range(from + events.len()..);
        events.extend(rest.take_while(|event| Some(event.revision()) == last).cloned());
        Read::Events(events)
    }

    /// If a reader who begins at this cursor would miss something that is known as a difference only: the revision from which on
    /// nothing is missing.
    pub fn gap_around(&self, cursor: Revision) -> Option<Revision> {
        let inner = self.read_lock();
        let is_within = |(after, through): &&(Revision, Revision)| *after < cursor && cursor < *through;
        inner.gaps.iter().find(is_within).map(|(_, through)| *through)
    }

    /// The oldest cursor from which nothing is missing.
    pub fn floor(&self) -> Revision {
        self.read_lock().floor
    }

    /// How much it holds.
    pub fn extent(&self) -> Extent {
        let inner = self.read_lock();
        let archived = inner.archived.front().map(|stub| stub.accepted_at);
        Extent {
            events: inner.events.len(),
            bytes: inner.bytes.bytes(),
            archived: inner.archived.len(),
            oldest: archived.or_else(|| inner.events.front().map(|event| event.accepted_at.log)),
            appended: inner.appended,
        }
    }

    /// States at older revisions, for lists that come in chunks.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Every change up to this revision is here: a reader who has read all events has seen as much. Takes no lock.
    pub fn seen(&self) -> Revision {
        Revision(self.seen.load(Ordering::Acquire))
    }

    /// The newest revision at which the type has changed. Takes no lock. A reader whose cursor is older gets the events by
    /// [`Window::read`].
    pub fn head(&self) -> Revision {
        Revision(self.head.load(Ordering::Acquire))
    }

    fn read_lock(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write()
    }
}

impl Inner {
    /// Takes the oldest event out of memory.
    fn pop(&mut self) -> Option<EventStub> {
        let oldest = self.events.pop_front()?;
        self.recharge(|bytes| bytes.saturating_sub(oldest.weight()));
        self.memory_floor = oldest.revision();
        Some(EventStub::from(&*oldest))
    }

    /// Changes the memory that the events are charged for.
    fn recharge(&mut self, change: impl FnOnce(usize) -> usize) {
        let bytes = change(self.bytes.bytes());
        self.bytes.charge_to(bytes);
    }

    /// Takes out the oldest revision without an event, if it and all events before it are from before `horizon`.
    fn pop_eventless_before(&mut self, horizon: LogTime) -> Option<EventStub> {
        let (archived, in_memory) = (self.archived.front(), self.events.front());
        let oldest = archived.map(|stub| stub.revision).or_else(|| in_memory.map(|event| event.revision()));
        let is_expired = |stub: &EventStub| {
            stub.accepted_at < horizon && oldest.is_none_or(|oldest| stub.revision < oldest)
        };
        self.eventless.front().is_some_and(is_expired).then(|| self.eventless.pop_front())?
    }

    /// Moves the floor past an event that was dropped for good.
    fn raise_floor(&mut self, stub: EventStub) -> EventStub {
        self.logged.remove(stub.superseded_bytes);
        self.floor = self.floor.max(stub.revision);
        stub
    }
}

#[cfg(test)]
mod tests;
