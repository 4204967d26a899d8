//! A change of an object, from which watch events are made.

use std::sync::Arc;

use bytes::Bytes;
use pilothouse_types::frame::Frame;
use pilothouse_types::lock::Lock;
use pilothouse_types::object::{Object, Revision, Variant};

use crate::limits::FRAMES_CACHED;
use crate::log_time::{LogTime, WriteTime};

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// It did not exist before.
    Created,
    /// It existed before.
    Replaced,
    /// It was deleted; the event carries its last state at the revision of the removal.
    Removed,
}

/// One change of one object.
pub struct Event {
    /// What happened.
    pub change: Change,
    /// The object after the change, or its last state for a removal. Its revision is the event's.
    pub object: Arc<Object>,
    /// The object before the change: needed to detect that the object no longer matches a selector.
    pub previous: Option<Arc<Object>>,
    /// When the change was accepted.
    pub accepted_at: WriteTime,
    frames: Lock<Vec<(Variant, Frame)>>,
}

impl Event {
    /// An event without cached frames.
    pub fn new(
        change: Change,
        object: Arc<Object>,
        previous: Option<Arc<Object>>,
        accepted_at: WriteTime,
    ) -> Event {
        Event { change, object, previous, accepted_at, frames: Lock::default() }
    }

    /// The revision of the change.
    pub fn revision(&self) -> Revision {
        self.object.revision
    }

    /// Whether the frame of this variant is cached.
    pub fn has_frame(&self, variant: Variant) -> bool {
        self.cached_frame(variant).is_some()
    }

    /// The event as a session sends it, encoded by the first session that needs it and shared by all others.
    pub fn frame<E>(&self, variant: Variant, encode: impl FnOnce() -> Result<Bytes, E>) -> Result<Frame, E> {
        if let Some(frame) = self.cached_frame(variant) {
            return Ok(frame);
        }
        let frame = Frame::from(encode()?);
        let mut frames = self.frames.lock();
        if frames.len() < FRAMES_CACHED && !frames.iter().any(|(known, _)| *known == variant) {
            frames.push((variant, frame.clone()));
        }
        Ok(frame)
    }

    fn cached_frame(&self, variant: Variant) -> Option<Frame> {
        let frames = self.frames.lock();
        frames.iter().find(|(known, _)| *known == variant).map(|(_, frame)| frame.clone())
    }

    /// The bytes that the log holds only because of this event.
    pub(crate) fn superseded_bytes(&self) -> u32 {
        let bytes = self.previous.as_ref().map_or(0, |previous| previous.bytes.len());
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// What this event may add to the memory of its window: the object, two frames of about its length, since few types
    /// are watched in more than two forms, and the previous object, which this event alone holds once the event that
    /// created it has left the window.
    pub(crate) fn weight(&self) -> usize {
        const OVERHEAD: usize = 256;
        let previous = self.previous.as_ref().map_or(0, |previous| previous.bytes.len());
        3 * self.object.bytes.len() + previous + OVERHEAD
    }
}

/// The part of an event that stays in memory once it has left the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventStub {
    /// The revision of the change.
    pub revision: Revision,
    /// When it was accepted.
    pub accepted_at: LogTime,
    /// The version that it superseded.
    pub superseded: Option<Revision>,
    /// The size of that version in the log.
    pub superseded_bytes: u32,
    /// Whether its own record can be trimmed with it, because it holds no state: a removal, or a revision without an event.
    pub frees_own_record: bool,
}

impl From<&Event> for EventStub {
    fn from(event: &Event) -> EventStub {
        EventStub {
            revision: event.revision(),
            accepted_at: event.accepted_at.log,
            superseded: event.previous.as_ref().map(|previous| previous.revision),
            superseded_bytes: event.superseded_bytes(),
            frees_own_record: event.change == Change::Removed,
        }
    }
}
