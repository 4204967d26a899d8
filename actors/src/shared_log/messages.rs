//! The messages that stores get from a shared log, and how they ask for barriers.

use actix::{Message, Recipient};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::Revision;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::{SharedChange, SharedEntry, SharedLogError};

/// How far a log was followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowStatus {
    /// Every change up to this revision has been handed to its store, or is kept until the objects of its type are read.
    pub seen: Revision,
    /// Why the log could not be asked for its revision the last time, if it could not.
    pub failure: Option<SharedLogError>,
    /// Why the log is not followed now, if it is not.
    pub disconnected: Option<SharedLogError>,
}

/// Changes of the type that arrived in order. Sent by the follower alone. Never Full: the follower holds back what exceeds its credit.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ApplyChanges {
    /// Every change of the type up to this revision is in here or came before.
    pub revision: Revision,
    /// The changes, in order.
    pub changes: Vec<SharedChange>,
    /// Given back when they are applied, so that a slow store holds the follower back.
    pub credit: Option<OwnedSemaphorePermit>,
}

/// The objects of the type at a revision, because the changes up to it are no longer known. Sent by the follower alone. Never Full.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Resynchronize {
    /// The revision.
    pub revision: Revision,
    /// Every object of the type.
    pub entries: Vec<SharedEntry>,
}

/// All objects of a type that is known from now on. Whatever the store has is forgotten. Sent by the follower alone. Never Full.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Adopt {
    /// The revision at which they were read.
    pub revision: Revision,
    /// Every object of the type.
    pub entries: Vec<SharedEntry>,
    /// What has changed since, in order, and perhaps what came before.
    pub changes: Vec<SharedChange>,
}

/// Everything has arrived that the log had when the store asked, or why nobody knows. Sent by the barrier gate, which is no part of the
/// follower. Never Full: a store asks once at a time.
#[derive(Message)]
#[rtype(result = "()")]
pub struct BarrierPassed(pub Result<Revision, StoreError>);

/// Where stores ask for barriers. Cheap to clone.
#[derive(Clone)]
pub struct Barriers(mpsc::UnboundedSender<Recipient<BarrierPassed>>);

impl Barriers {
    /// A queue, and its other end. It is bounded by the number of stores: each asks once at a time.
    pub fn new() -> (Barriers, BarrierQueue) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Barriers(sender), receiver)
    }

    /// The store gets [`BarrierPassed`].
    pub fn ask(&self, store: Recipient<BarrierPassed>) {
        if let Err(error) = self.0.send(store) {
            // A fresh handle always has a free place in the mailbox.
            let _ended = error.0.try_send(BarrierPassed(Err(StoreError::Unavailable)));
        }
    }
}

/// The barriers that stores have asked for.
pub type BarrierQueue = mpsc::UnboundedReceiver<Recipient<BarrierPassed>>;
