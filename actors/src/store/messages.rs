//! The messages of the store, and its answers.

use std::sync::Arc;
use std::time::Duration;

use actix::Message;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Key, Object, Revision};

use crate::permit::Permit;
use crate::recover::State;
use crate::snapshot::Snapshot;
use crate::store::write_turns::WriteTurn;
use crate::window::Window;

/// What a write answers: the object as it is now, or for a removal its last state at the revision of the removal.
pub type ObjectResult = Result<Arc<Object>, StoreError>;

/// Asks to store an object that must not be there yet.
/// Answers it, Exists, TooLarge, Busy or Unavailable. On Full the sender answers as for Busy, on Closed as for Unavailable.
#[derive(Message)]
#[rtype(result = "ObjectResult")]
pub struct Create {
    /// The object.
    pub draft: Draft,
    /// The place of the request.
    pub permit: Permit,
}

/// Asks to store an object in place of the version at a revision.
/// Answers it, NotFound, Conflict, TooLarge, Busy or Unavailable. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "ObjectResult")]
pub struct Replace {
    /// The object.
    pub draft: Draft,
    /// The version it was made from.
    pub expected: Revision,
    /// The place of the request.
    pub permit: Permit,
    /// The turn in which it was made. It is over once the write is under way: the next may build on it.
    pub turn: Option<WriteTurn>,
}

/// Asks to remove the object if it is at a revision.
/// Answers its last state at the revision of the removal, NotFound, Conflict, Busy or Unavailable. Full and Closed as for
/// [`Create`].
#[derive(Message)]
#[rtype(result = "ObjectResult")]
pub struct Remove {
    /// Which object.
    pub key: Key,
    /// The version that the removal was decided on.
    pub expected: Revision,
    /// The place of the request.
    pub permit: Permit,
}

/// Asks for one object. Answers it or NotFound. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "ObjectResult")]
pub struct Get {
    /// Which object.
    pub key: Key,
    /// The place of the request.
    pub permit: Permit,
}

/// Asks for one object as every write of it that came before this leaves it.
/// Answers it, that there is none, or Unavailable; never Busy, because it waits without a place among the writes: whoever
/// asks may have to know. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "Result<Option<Arc<Object>>, StoreError>")]
pub struct GetSettled {
    /// Which object.
    pub key: Key,
    /// The place of the request. It bounds how many of these wait.
    pub permit: Permit,
}

/// Asks that the type go on to a revision above this one, if it has not: at a new revision at which nothing changes. Whoever was
/// told that a revision has expired takes the same one for the same list.
/// Answers when that is durable, or Busy or Unavailable. Nothing happens where something did within the history: no revision above
/// has expired then, and readers must not be able to make a log grow. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "Result<(), StoreError>")]
pub struct AdvanceRevision {
    /// The revision that has expired.
    pub above: Revision,
    /// The place of the request.
    pub permit: Permit,
}

/// Asks for the whole present state, which costs a pointer. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "Result<Snapshot, StoreError>")]
pub struct TakeSnapshot {
    /// The place of the request.
    pub permit: Permit,
}

/// Asks for what a watch begins with. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "Result<Position, StoreError>")]
pub struct OpenWatch {
    /// The place of the request.
    pub permit: Permit,
}

/// What a watch begins with: the window holds every change after the snapshot.
#[derive(Clone)]
pub struct Position {
    /// The history to read from.
    pub window: Arc<Window>,
    /// The state now.
    pub snapshot: Snapshot,
    /// How long that history is.
    pub history: Duration,
}

/// Asks to let go of what is older than the history. Answers how many events went. The store does this by itself; a test
/// need not wait for it.
#[derive(Message)]
#[rtype(result = "usize")]
pub struct Expire;

/// Asks the store to end. Writes that are not durable yet are answered Unavailable.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Stop;

/// Asks the store to let go of its history and to end, because its type is no more. It does if it has no objects, and nothing is
/// under way. Sent by the directory, which then keeps what the next store of that type goes on from.
#[derive(Message)]
#[rtype(result = "Retired")]
pub struct Retire;

/// What became of a [`Retire`].
pub enum Retired {
    /// The store has ended. The counter goes on here, and so does the window: whoever has it hears of what comes later.
    Ended(State),
    /// It has objects and stays.
    HasObjects,
    /// Something is under way, or the records of its history have no room yet on their way out: it is worth asking again.
    Busy,
}
