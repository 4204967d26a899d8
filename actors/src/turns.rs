//! Who may change an object next, when several want to and each would undo the work of the others.
//!
//! A change is worked out of the state that was read, so of all who read the same state one gets through and the rest begin
//! anew. Where several write one object, those who change it ask for a turn: they work one after the other, each from what the one
//! before it made, durable or not. Nobody waits for the disk before the next begins, so many of their writes become durable
//! together. A turn is a courtesy and no lock: whoever has none may still write, and the store checks every write as ever.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use actix::dev::{MessageResponse, OneshotSender};
use actix::{Addr, Context, Message};
use tokio::sync::oneshot;

use crate::error::StoreError;
use crate::limits::TURNS_WAITING_PER_KEY;
use crate::object::{Key, Object};
use crate::permit::Permit;
use crate::store::Store;

/// Asks for the state that a change of an object shall be worked out of, and for a turn. Answers when those who came before
/// have had theirs, or Busy if they are too many. Full and Closed as for [`crate::store::Create`].
#[derive(Message)]
#[rtype(result = "Result<Basis, StoreError>")]
pub struct TakeTurn {
    /// Which object.
    pub key: Key,
    /// Whether a turn is waited for.
    pub turn: Turning,
    /// The place of the request.
    pub permit: Permit,
}

/// Whether whoever asks for a state waits for a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turning {
    /// Always.
    Always,
    /// Only while others write the object.
    IfContended,
    /// Never: the answer comes at once.
    Never,
}

/// What a change is worked out of.
#[derive(Debug)]
pub struct Basis {
    /// The object as the writes before this leave it, if they leave one.
    pub object: Option<Arc<Object>>,
    /// Whether all of these are durable. While they are not, nobody may hear of them: a write that builds on them is answered
    /// after they are, and whoever answers without a write waits first: see [`crate::store::Settled`].
    pub is_durable: bool,
    /// The turn, if there is one.
    pub turn: Option<Turn>,
}

/// Tells the store that a turn is over. It comes through a handle of its own, one for each turn, so it is never refused.
#[derive(Message)]
#[rtype(result = "()")]
pub struct EndTurn {
    /// Whose turn.
    pub key: Key,
}

/// A turn. Dropped, it is over.
#[derive(Debug)]
pub struct Turn {
    store: Addr<Store>,
    key: Key,
}

impl Turn {
    pub(crate) fn new(store: Addr<Store>, key: Key) -> Turn {
        Turn { store, key }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A new address has a slot of its own, so this cannot find the mailbox full; and there is one per turn.
        let _ = self.store.clone().try_send(EndTurn { key: self.key.clone() });
    }
}

/// One that waits for a turn.
pub(crate) struct Waiting {
    reply: oneshot::Sender<Result<Basis, StoreError>>,
}

impl Waiting {
    /// One that waits, and where it hears.
    pub(crate) fn new(permit: Permit) -> (Waiting, Awaited) {
        let (reply, basis) = oneshot::channel();
        (Waiting { reply }, Awaited { basis, _permit: permit })
    }

    /// Whether nobody waits any more: the request gave up, or its client did.
    fn is_gone(&self) -> bool {
        self.reply.is_closed()
    }

    /// Tells it.
    pub(crate) fn answer(self, basis: Result<Basis, StoreError>) {
        // Where nobody listens any more a turn is dropped here, and ends by itself.
        let _gone = self.reply.send(basis);
    }
}

/// What one that waits will hear. It holds the place of the request for as long as somebody wants to hear it: a request that gives
/// up works no more, whatever is left of it in the line.
pub struct Awaited {
    basis: oneshot::Receiver<Result<Basis, StoreError>>,
    _permit: Permit,
}

impl MessageResponse<Store, TakeTurn> for Awaited {
    fn handle(self, _: &mut Context<Store>, asked: Option<OneshotSender<Result<Basis, StoreError>>>) {
        let Some(mut asked) = asked else { return };
        actix::spawn(async move {
            let mut waiting = self;
            tokio::select! {
                basis = &mut waiting.basis => {
                    // Where nobody listens any more a turn is dropped here, and ends by itself.
                    drop(asked.send(basis.unwrap_or(Err(StoreError::Unavailable))));
                }
                () = asked.closed() => {}
            }
        });
    }
}

/// The turns of one store: every key at which somebody has one, and who waits for the next.
#[derive(Default)]
pub(crate) struct Turns(HashMap<Key, VecDeque<Waiting>>);

impl Turns {
    /// Whether nobody has a turn.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether somebody has a turn at this key.
    pub(crate) fn is_taken(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    /// Takes in one that wants a turn. Gives it back if its turn is now.
    pub(crate) fn enter(&mut self, key: &Key, one: Waiting) -> Option<Waiting> {
        match self.0.get_mut(key) {
            None => {
                self.0.insert(key.clone(), VecDeque::new());
                Some(one)
            }
            Some(waiting) => {
                // Those who gave up take no room from the others.
                if waiting.len() >= TURNS_WAITING_PER_KEY {
                    waiting.retain(|waiting| !waiting.is_gone());
                }
                if waiting.len() < TURNS_WAITING_PER_KEY {
                    waiting.push_back(one);
                } else {
                    one.answer(Err(StoreError::Busy));
                }
                None
            }
        }
    }

    /// A turn at this key is over: whose is the next.
    pub(crate) fn end(&mut self, key: &Key) -> Option<Waiting> {
        let waiting = self.0.get_mut(key)?;
        let next = std::iter::from_fn(|| waiting.pop_front()).find(|waiting| !waiting.is_gone());
        if next.is_none() {
            self.0.remove(key);
        }
        next
    }
}
