//! The messages that stores get from a shared log, and how they ask for barriers.

use std::collections::HashMap;

use actix::{Message, Recipient};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Revision, TypeName};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::decoding::DecodedValues;
use super::{SharedChange, SharedEntry, SharedLogError};

/// How far a log was followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowStatus {
    /// Every change up to this revision has been handed to its store, or is kept until the objects of its type are read, or is held.
    pub seen: Revision,
    /// The types whose changes are held until they are decoded: the revision up to which they have been handed over.
    pub held: HashMap<TypeName, Revision>,
    /// Why the log is not followed now, if it is not.
    pub disconnected: Option<SharedLogError>,
}

impl FollowStatus {
    /// Everything has been handed over up to this revision.
    pub fn new(seen: Revision) -> FollowStatus {
        FollowStatus { seen, held: HashMap::new(), disconnected: None }
    }

    /// The revision up to which the changes of a type have been handed to its store.
    pub fn seen_of(&self, type_name: &TypeName) -> Revision {
        self.held.get(type_name).copied().unwrap_or(self.seen)
    }

    /// Whether every store has been handed the changes up to this revision.
    pub fn is_complete(&self, revision: Revision) -> bool {
        self.seen >= revision && self.held.values().all(|seen| *seen >= revision)
    }
}

/// Changes of the type that arrived in order. Sent by the follower alone. Never Full: the follower holds back what exceeds its credit.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ApplyChanges {
    /// Every change of the type up to this revision is in here or came before.
    pub revision: Revision,
    /// The changes, in order.
    pub changes: Vec<SharedChange>,
    /// What some of them mean.
    pub decoded: DecodedValues,
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
    /// What they mean.
    pub decoded: DecodedValues,
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
    /// What both mean.
    pub decoded: DecodedValues,
}

/// Everything has arrived that the log had when the store asked, or why nobody knows. Sent by the barrier gate, which is no part of the
/// follower. Never Full: a store asks once at a time.
#[derive(Message)]
#[rtype(result = "()")]
pub struct BarrierPassed(pub Result<Revision, StoreError>);

/// A store that asks for a barrier.
pub struct BarrierRequest {
    /// Its type.
    pub type_name: TypeName,
    /// Where it wants the answer.
    pub store: Recipient<BarrierPassed>,
}

/// Where stores ask for barriers. Cheap to clone.
#[derive(Clone)]
pub struct Barriers(mpsc::UnboundedSender<BarrierRequest>);

impl Barriers {
    /// A queue, and its other end. It is bounded by the number of stores: each asks once at a time.
    pub fn new() -> (Barriers, BarrierQueue) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Barriers(sender), receiver)
    }

    /// The store gets [`BarrierPassed`].
    pub fn ask(&self, request: BarrierRequest) {
        if let Err(error) = self.0.send(request) {
            // A fresh handle always has a free place in the mailbox.
            let _ended = error.0.store.try_send(BarrierPassed(Err(StoreError::Unavailable)));
        }
    }
}

/// The barriers that stores have asked for.
pub type BarrierQueue = mpsc::UnboundedReceiver<BarrierRequest>;
