//! Who may change an object next, when several want to and each would undo the work of the others.
//!
//! A change is worked out of the state that was read, so of all who read the same state one gets through and the rest begin
//! anew. Whoever has lost once asks for a turn: those who have one work one after the other. A turn is a courtesy and no lock:
//! whoever has none may still write, and the store checks every write as ever.

use std::collections::{HashMap, VecDeque};

use actix::{Addr, Message};
use tokio::sync::oneshot;

use crate::error::StoreError;
use crate::limits::TURNS_WAITING_PER_KEY;
use crate::object::Key;
use crate::permit::Permit;
use crate::store::Store;

/// Asks for a turn at an object. Answers it when those who came before are done, or Busy if they are too many. Full and
/// Closed as for [`crate::store::Create`].
#[derive(Message)]
#[rtype(result = "Result<Turn, StoreError>")]
pub struct TakeTurn {
    /// Which object.
    pub key: Key,
    /// The place of the request.
    pub permit: Permit,
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

impl Drop for Turn {
    fn drop(&mut self) {
        // A new address has a slot of its own, so this cannot find the mailbox full; and there is one per turn.
        let _ = self.store.clone().try_send(EndTurn { key: self.key.clone() });
    }
}

struct Waiting {
    reply: oneshot::Sender<Result<Turn, StoreError>>,
    _permit: Permit,
}

/// The turns of one store: every key at which somebody has one, and who waits for the next.
#[derive(Default)]
pub(crate) struct Turns(HashMap<Key, VecDeque<Waiting>>);

impl Turns {
    /// Gives a turn now or later.
    pub(crate) fn take(
        &mut self,
        TakeTurn { key, permit }: TakeTurn,
        store: Addr<Store>,
    ) -> oneshot::Receiver<Result<Turn, StoreError>> {
        let (reply, answer) = oneshot::channel();
        // Nobody listens any more: then the turn is dropped here and ends by itself.
        match self.0.get_mut(&key) {
            None => {
                self.0.insert(key.clone(), VecDeque::new());
                let _gone = reply.send(Ok(Turn { store, key }));
            }
            Some(waiting) if waiting.len() < TURNS_WAITING_PER_KEY => {
                waiting.push_back(Waiting { reply, _permit: permit });
            }
            Some(_) => {
                let _gone = reply.send(Err(StoreError::Busy));
            }
        }
        answer
    }

    /// Passes the turn on to whoever waits longest.
    pub(crate) fn end(&mut self, key: Key, store: Addr<Store>) {
        let Some(waiting) = self.0.get_mut(&key) else { return };
        match waiting.pop_front() {
            Some(next) => {
                let _gone = next.reply.send(Ok(Turn { store, key }));
            }
            None => {
                self.0.remove(&key);
            }
        }
    }
}
