//! What the follower of a shared log hands to stores, in order.
//!
//! Some values must be decoded before ([`crate::shared_log::decoding`]). Until then they are held, and with them everything that comes
//! later for the same store. Other stores go on.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use actix::{Addr, Handler, Message};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use pilothouse_types::object::{Key, Revision, TypeName};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::shared_log::decoding::DecodedValues;
use crate::shared_log::messages::{Adopt, ApplyChanges, Resynchronize};
use crate::shared_log::{SharedChange, SharedEntry, SharedLog, SharedLogError};
use crate::store::Store;

/// What a store gets.
pub(super) enum Delivery {
    /// Changes that follow each other.
    Changes {
        /// Every change of the type up to this revision is in here or came before.
        revision: Revision,
        changes: Vec<SharedChange>,
        /// Bounds what is held and what stores have not applied yet.
        credit: Option<OwnedSemaphorePermit>,
    },
    /// Everything that the log has of the type, because changes are missing.
    Resynchronization { revision: Revision, entries: Vec<SharedEntry> },
    /// The objects of a type that is known from now on, and what has changed since they were read.
    Adoption {
        revision: Revision,
        entries: Vec<SharedEntry>,
        changes: Vec<SharedChange>,
        /// Those who wait for it.
        done: Vec<oneshot::Sender<Result<(), SharedLogError>>>,
    },
}

/// Deliveries that are held.
pub(super) struct Deliveries {
    log: Arc<dyn SharedLog>,
    held: HashMap<TypeName, Held>,
    decoding: FuturesUnordered<BoxFuture<'static, (TypeName, u64, DecodedValues)>>,
    /// How often decoding was begun.
    begun: u64,
}

/// The deliveries of a store. The values of the first one are being decoded.
struct Held {
    /// Tells this decoding from that of an earlier type of the same name.
    number: u64,
    waiting: VecDeque<Delivery>,
}

/// Deliveries that a store may have now.
pub(super) struct Released {
    pub(super) type_name: TypeName,
    pub(super) deliveries: Vec<(Delivery, DecodedValues)>,
    /// Whether nothing is held for the store any more.
    pub(super) is_all: bool,
}

impl Deliveries {
    pub(super) fn new(log: Arc<dyn SharedLog>) -> Deliveries {
        Deliveries { log, held: HashMap::new(), decoding: FuturesUnordered::new(), begun: 0 }
    }

    /// Returns a delivery that its store may have now; or holds it.
    pub(super) fn enter(&mut self, type_name: &TypeName, delivery: Delivery) -> Option<Delivery> {
        if let Some(held) = self.held.get_mut(type_name) {
            held.push(delivery);
            return None;
        }
        let Some(number) = self.begin_decoding(type_name, &delivery) else { return Some(delivery) };
        self.held.insert(type_name.clone(), Held { number, waiting: VecDeque::from([delivery]) });
        None
    }

    /// What a store may have next. `None` if nothing is being decoded.
    pub(super) async fn next(&mut self) -> Option<Released> {
        loop {
            let (type_name, number, decoded) = self.decoding.next().await?;
            // That of a type which was removed concerns nobody.
            if self.held.get(&type_name).is_some_and(|held| held.number == number)
                && let Some(held) = self.held.remove(&type_name)
            {
                return Some(self.release(type_name, held.waiting, decoded));
            }
        }
    }

    /// Releases the first delivery, and those behind it up to the next one that must be decoded.
    fn release(
        &mut self,
        type_name: TypeName,
        mut waiting: VecDeque<Delivery>,
        decoded: DecodedValues,
    ) -> Released {
        let first = waiting.pop_front().map(|delivery| (delivery, decoded));
        let mut deliveries: Vec<_> = first.into_iter().collect();
        while let Some(next) = waiting.pop_front() {
            if let Some(number) = self.begin_decoding(&type_name, &next) {
                waiting.push_front(next);
                self.held.insert(type_name.clone(), Held { number, waiting });
                return Released { type_name, deliveries, is_all: false };
            }
            deliveries.push((next, DecodedValues::default()));
        }
        Released { type_name, deliveries, is_all: true }
    }

    /// Forgets what is held for the store of a type that was removed.
    pub(super) fn forget(&mut self, type_name: &TypeName) {
        self.held.remove(type_name);
    }

    /// Tells somebody when the objects of a type are handed over, if they are held. Otherwise they were, and the sender is returned.
    pub(super) fn when_adopted(
        &mut self,
        type_name: &TypeName,
        sender: oneshot::Sender<Result<(), SharedLogError>>,
    ) -> Option<oneshot::Sender<Result<(), SharedLogError>>> {
        let held = self.held.get_mut(type_name).into_iter().flat_map(|held| &mut held.waiting);
        for delivery in held {
            if let Delivery::Adoption { done, .. } = delivery {
                done.push(sender);
                return None;
            }
        }
        Some(sender)
    }

    /// Begins to decode what a store must not decode itself. `None` if there is nothing like that.
    fn begin_decoding(&mut self, type_name: &TypeName, delivery: &Delivery) -> Option<u64> {
        let values = delivery.values(&*self.log);
        if values.is_empty() {
            return None;
        }
        self.begun += 1;
        let (log, type_name, number) = (Arc::clone(&self.log), type_name.clone(), self.begun);
        self.decoding.push(Box::pin(async move {
            let decoded = DecodedValues::decode(&*log, &type_name, values).await;
            (type_name, number, decoded)
        }));
        Some(number)
    }
}

impl Held {
    fn push(&mut self, delivery: Delivery) {
        if matches!(delivery, Delivery::Resynchronization { .. }) {
            // It has everything that waits. The first one is being decoded.
            self.waiting.truncate(1);
        }
        self.waiting.push_back(delivery);
    }
}

impl Delivery {
    /// Every change up to this revision was handed over with it.
    pub(super) fn revision(&self) -> Revision {
        match self {
            Delivery::Changes { revision, .. }
            | Delivery::Resynchronization { revision, .. }
            | Delivery::Adoption { revision, .. } => *revision,
        }
    }

    /// The values that the store must not decode itself.
    fn values(&self, log: &dyn SharedLog) -> Vec<(Key, Revision, Bytes)> {
        let of_changes = |changes: &[SharedChange], is_wanted: &dyn Fn(&Bytes) -> bool| {
            let values = changes.iter().filter_map(|change| {
                let value = change.value.as_ref().filter(|value| is_wanted(value))?;
                Some((change.key.clone(), change.revision, value.clone()))
            });
            values.collect::<Vec<_>>()
        };
        let of_entries = |entries: &[SharedEntry]| {
            let values = entries.iter().map(|entry| (entry.key.clone(), entry.revision, entry.value.clone()));
            values.collect::<Vec<_>>()
        };
        match self {
            Delivery::Changes { changes, .. } => of_changes(changes, &|value| log.may_wait(value)),
            Delivery::Resynchronization { entries, .. } => of_entries(entries),
            Delivery::Adoption { entries, changes, .. } => {
                let mut values = of_entries(entries);
                values.extend(of_changes(changes, &|_| true));
                values
            }
        }
    }

    /// Hands it over.
    pub(super) fn send(self, store: &Addr<Store>, decoded: DecodedValues) {
        match self {
            Delivery::Changes { revision, changes, credit } => {
                deliver(store, ApplyChanges { revision, changes, decoded, credit });
            }
            Delivery::Resynchronization { revision, entries } => {
                deliver(store, Resynchronize { revision, entries, decoded });
            }
            Delivery::Adoption { revision, entries, changes, done } => {
                // In one message: the store may learn in between how far the log was followed, and would take the changes for old ones.
                deliver(store, Adopt { revision, entries, changes, decoded });
                for done in done {
                    let _gone = done.send(Ok(()));
                }
            }
        }
    }
}

/// Puts a message into the mailbox of a store, behind all others. A mailbox counts its bound per handle, and a fresh handle always has
/// one free place: only a store that has ended refuses it.
fn deliver<M>(store: &Addr<Store>, message: M)
where
    M: Message<Result = ()> + Send + 'static,
    Store: Handler<M>,
{
    let _ended = store.clone().try_send(message);
}
