//! A change of an object, as watches are told of it.

use std::sync::Arc;

use bytes::Bytes;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::frame::Frame;
use pilothouse_types::lock::Lock;
use pilothouse_types::object::{Object, Revision, Variant};

use crate::limits::FRAMES_KEPT;

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// It was not there before.
    Created,
    /// It was there before.
    Replaced,
    /// It is gone; the event carries its last state at the revision of the removal.
    Removed,
}

/// One change of one object.
pub struct Event {
    /// What happened.
    pub change: Change,
    /// The object after the change, or its last state for a removal. Its revision is the event's.
    pub object: Arc<Object>,
    /// The object before the change: what a selector must see to tell that an object left it.
    pub previous: Option<Arc<Object>>,
    /// When the change was accepted.
    pub at: Timestamp,
    frames: Lock<Vec<(Variant, Frame)>>,
}

impl Event {
    /// An event that nobody has encoded yet.
    pub fn new(change: Change, object: Arc<Object>, previous: Option<Arc<Object>>, at: Timestamp) -> Event {
        Event { change, object, previous, at, frames: Lock::default() }
    }

    /// The revision of the change.
    pub fn revision(&self) -> Revision {
        self.object.revision
    }

    /// Whether somebody has written it in this form before.
    pub fn is_written(&self, variant: Variant) -> bool {
        self.made(variant).is_some()
    }

    /// The event as a session sends it, encoded by the first session that asks and shared by all others.
    pub fn frame<E>(&self, variant: Variant, make: impl FnOnce() -> Result<Bytes, E>) -> Result<Frame, E> {
        if let Some(made) = self.made(variant) {
            return Ok(made);
        }
        let frame = Frame::from(make()?);
        let mut frames = self.frames.lock();
        if frames.len() < FRAMES_KEPT && !frames.iter().any(|(known, _)| *known == variant) {
            frames.push((variant, frame.clone()));
        }
        Ok(frame)
    }

    fn made(&self, variant: Variant) -> Option<Frame> {
        let frames = self.frames.lock();
        frames.iter().find(|(known, _)| *known == variant).map(|(_, frame)| frame.clone())
    }

    /// What this event may add to the memory of its window: the object, two frames of about its length, since few types
    /// are watched in more than two forms, and the previous object, which this event alone holds once the event that
    /// made it has gone.
    pub(crate) fn weight(&self) -> usize {
        const OVERHEAD: usize = 256;
        let previous = self.previous.as_ref().map_or(0, |previous| previous.bytes.len());
        3 * self.object.bytes.len() + previous + OVERHEAD
    }
}

/// What is left of an event in memory when only the log holds it, or when nobody does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventStub {
    /// The revision of the change.
    pub revision: Revision,
    /// When it was accepted.
    pub at: Timestamp,
    /// The version that it superseded.
    pub superseded: Option<Revision>,
    /// Whether it was a removal.
    pub removed: bool,
}

impl From<&Event> for EventStub {
    fn from(event: &Event) -> EventStub {
        EventStub {
            revision: event.revision(),
            at: event.at,
            superseded: event.previous.as_ref().map(|previous| previous.revision),
            removed: event.change == Change::Removed,
        }
    }
}
