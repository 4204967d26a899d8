//! The messages of the store, and its replies.

use std::sync::Arc;
use std::time::Duration;

use actix::Message;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Key, Object, Revision, StoredDraft};

use crate::log_time::LogTime;
use crate::permit::Permit;
use crate::recover::State;
use crate::shared_log::past::PastReader;
use crate::snapshot::Snapshot;
use crate::store::write_turns::WriteTurn;
use crate::window::Window;

/// The result of a write: the object as it is now, or for a removal its last state at the revision of the removal.
pub type ObjectResult = Result<Arc<Object>, StoreError>;

/// Stores an object that must not exist yet.
/// Returns it, Exists, TooLarge, NoSpace, Busy or Unavailable. On Full the sender answers as for Busy, on Closed as for Unavailable.
#[derive(Message)]
#[rtype(result = "ObjectResult")]
pub struct Create {
    /// The object.
    pub draft: Draft,
    /// What is written to the log instead: its encrypted form, or the form of a shared log.
    pub stored: Option<StoredDraft>,
    /// The seat of the request.
    pub permit: Permit,
}

/// Replaces the version of an object at a revision.
/// Returns the new object, NotFound, Conflict, TooLarge, NoSpace, Busy or Unavailable. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "ObjectResult")]
pub struct Replace {
    /// The object.
    pub draft: Draft,
    /// What is written to the log instead: its encrypted form, or the form of a shared log.
    pub stored: Option<StoredDraft>,
    /// The version it was made from.
    pub expected: Revision,
    /// The seat of the request.
    pub permit: Permit,
    /// The turn in which it was made. It ends once the write is pending: the next may build on it.
    pub turn: Option<WriteTurn>,
}

/// Removes the object if it is at a revision.
/// Returns its last state at the revision of the removal, NotFound, Conflict, Busy or Unavailable. Full and Closed as for
/// [`Create`].
#[derive(Message)]
#[rtype(result = "ObjectResult")]
pub struct Remove {
    /// The key of the object.
    pub key: Key,
    /// The version that the removal was decided on.
    pub expected: Revision,
    /// The seat of the request.
    pub permit: Permit,
}

/// How recent the state must be that a reader gets. The store of a log that only this server writes has no older one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Every write that was answered before the read, by any server.
    Latest,
    /// Everything up to this revision, if there is such a revision yet.
    AtLeast(Revision),
    /// What this server has seen, its own answered writes among it.
    Seen,
}

/// Reads one object. Returns it or NotFound. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "ObjectResult")]
pub struct Get {
    /// The key of the object.
    pub key: Key,
    /// How recent its state must be.
    pub freshness: Freshness,
    /// The seat of the request.
    pub permit: Permit,
}

/// Reads one object after all writes that came before are durable.
/// Returns it, `None` if there is none, NoSpace or Unavailable; never Busy, because readers are not bounded by the queue of the key.
/// UnknownOutcome: nobody knows how one of those writes has ended.
/// Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "Result<Option<Arc<Object>>, StoreError>")]
pub struct GetSettled {
    /// The key of the object.
    pub key: Key,
    /// The rollbacks of a [base state](crate::store::write_turns::BaseState) that the caller has used: if there were more since, that
    /// state never came to be, and the answer is NoSpace.
    pub rollbacks: Option<u64>,
    /// The seat of the request. It bounds how many of these wait.
    pub permit: Permit,
}

/// Advances the type to a new revision above this one, without a change of an object, unless it is there already. A client that
/// got "expired" for a revision must not get the same revision for a new list.
/// Returns when that is durable, or Busy or Unavailable. Does nothing if there was a write within the history: then no newer
/// revision has expired, and readers must not be able to make the log grow. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "Result<(), StoreError>")]
pub struct AdvanceRevision {
    /// The revision that has expired.
    pub above: Revision,
    /// The seat of the request.
    pub permit: Permit,
}

/// Reads the whole current state, which costs a pointer. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "Result<Snapshot, StoreError>")]
pub struct TakeSnapshot {
    /// How recent the state must be.
    pub freshness: Freshness,
    /// The seat of the request.
    pub permit: Permit,
}

/// Reads the state from which a watch starts. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "Result<Position, StoreError>")]
pub struct OpenWatch {
    /// How recent the state must be.
    pub freshness: Freshness,
    /// The seat of the request.
    pub permit: Permit,
}

/// The state from which a watch starts: the window holds every change after the snapshot.
#[derive(Clone)]
pub struct Position {
    /// The history to read from.
    pub window: Arc<Window>,
    /// The current state.
    pub snapshot: Snapshot,
    /// What knows states from before it; `None` if the log is this server's own.
    pub past: Option<PastReader>,
    /// How long that history is.
    pub history: Duration,
    /// The present time of the log.
    pub now: LogTime,
}

/// Expires events that are older than the history. Returns their number. The store does this by itself; tests use it to avoid
/// waiting.
#[derive(Message)]
#[rtype(result = "usize")]
pub struct Expire;

/// Ends the store. Writes that are not durable yet get Unavailable.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Stop;

/// Ends the store and drops its history, because its type was removed. Refused if it has objects or pending requests. Sent by the
/// directory, which keeps the state for the next store of that type.
#[derive(Message)]
#[rtype(result = "Retired")]
pub struct Retire;

/// The result of a [`Retire`].
pub enum Retired {
    /// The store has ended. The next store continues its counter and its window, so readers of the window see later events.
    Ended(State),
    /// It has objects and stays.
    HasObjects,
    /// Requests are pending, or the trim queue has no room for the records of its history: retry later.
    Busy,
}
