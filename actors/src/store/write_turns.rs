//! Turns at an object, for concurrent changes that would conflict.
//!
//! A change is computed from the state that was read. If several requests read the same state, one succeeds and the others start
//! over. So requests that change a contended object ask for a turn. They work one after the other, each from the result of the
//! one before, durable or not. The next one does not wait for the disk, so many of their writes become durable together. A turn
//! is an optimization, not a lock: a request without one may still write, and the store checks every write.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use actix::dev::{MessageResponse, OneshotSender};
use actix::{Addr, Context, Message};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Object};
use tokio::sync::oneshot;

use crate::limits::TURNS_WAITING_PER_KEY;
use crate::permit::Permit;
use crate::store::Store;

/// Asks for the state that a change of an object starts from, and for a turn. Answers after the turns of earlier requests, or
/// Busy if too many wait. Full and Closed as for [`crate::store::Create`].
#[derive(Message)]
#[rtype(result = "Result<BaseState, StoreError>")]
pub struct TakeTurn {
    /// The key of the object.
    pub key: Key,
    /// Whether to wait for a turn.
    pub turn: TurnMode,
    /// The seat of the request.
    pub permit: Permit,
}

/// Whether a request waits for a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnMode {
    /// Always wait.
    Always,
    /// Wait only while others write the object.
    IfContended,
    /// Never: the answer comes at once.
    Never,
}

/// The state that a change starts from.
#[derive(Debug)]
pub struct BaseState {
    /// The object after all pending writes; `None` if there is none.
    pub object: Option<Arc<Object>>,
    /// Whether all of these writes are durable. Until then their effects must not be revealed: a write based on them is answered
    /// after they are durable, and a reply without a write must wait, see [`crate::store::GetSettled`].
    pub is_durable: bool,
    /// How often the store has rolled writes back.
    pub rollbacks: u64,
    /// The turn, if there is one.
    pub turn: Option<WriteTurn>,
}

/// Ends a turn. Each turn has a handle of its own, so this message is never refused.
#[derive(Message)]
#[rtype(result = "()")]
pub struct EndTurn {
    /// The key of the turn.
    pub key: Key,
}

/// A turn, which ends when it is dropped.
#[derive(Debug)]
pub struct WriteTurn {
    store: Addr<Store>,
    key: Key,
}

impl WriteTurn {
    pub(crate) fn new(store: Addr<Store>, key: Key) -> WriteTurn {
        WriteTurn { store, key }
    }
}

impl Drop for WriteTurn {
    fn drop(&mut self) {
        // A new address has a slot of its own, so the mailbox cannot be full; and there is one per turn.
        let _ = self.store.clone().try_send(EndTurn { key: self.key.clone() });
    }
}

/// A request that waits for a turn.
pub(crate) struct TurnWaiter {
    reply: oneshot::Sender<Result<BaseState, StoreError>>,
}

impl TurnWaiter {
    /// A waiting request, and its receiver.
    pub(crate) fn new(permit: Permit) -> (TurnWaiter, PendingTurn) {
        let (reply, receiver) = oneshot::channel();
        (TurnWaiter { reply }, PendingTurn { receiver, _permit: permit })
    }

    /// Whether the request has given up, or its client has.
    fn is_gone(&self) -> bool {
        self.reply.is_closed()
    }

    /// Sends the answer.
    pub(crate) fn answer(self, result: Result<BaseState, StoreError>) {
        // If the receiver is gone, the turn is dropped here and ends.
        let _gone = self.reply.send(result);
    }
}

/// The receiver of a waiting request. It holds the request's seat as long as somebody waits: a request that gave up no longer
/// counts, even if its entry is still in the queue.
pub struct PendingTurn {
    receiver: oneshot::Receiver<Result<BaseState, StoreError>>,
    _permit: Permit,
}

impl MessageResponse<Store, TakeTurn> for PendingTurn {
    fn handle(self, _: &mut Context<Store>, sender: Option<OneshotSender<Result<BaseState, StoreError>>>) {
        let Some(mut sender) = sender else { return };
        actix::spawn(async move {
            let mut pending = self;
            tokio::select! {
                result = &mut pending.receiver => {
                    // If the receiver is gone, the turn is dropped here and ends.
                    drop(sender.send(result.unwrap_or(Err(StoreError::Unavailable))));
                }
                () = sender.closed() => {}
            }
        });
    }
}

/// The turns of one store: every key with a turn in progress, and its waiting requests.
#[derive(Default)]
pub(crate) struct WriteTurns(HashMap<Key, VecDeque<TurnWaiter>>);

impl WriteTurns {
    /// Whether no turn is in progress.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many requests wait for a turn.
    pub(crate) fn waiting(&self) -> usize {
        self.0.values().map(VecDeque::len).sum()
    }

    /// Whether a turn at this key is in progress.
    pub(crate) fn is_taken(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    /// Adds a request for a turn. Returns it if its turn is now.
    pub(crate) fn enter(&mut self, key: &Key, waiter: TurnWaiter) -> Option<TurnWaiter> {
        match self.0.get_mut(key) {
            None => {
                self.0.insert(key.clone(), VecDeque::new());
                Some(waiter)
            }
            Some(waiting) => {
                // Requests that gave up take no room from the others.
                if waiting.len() >= TURNS_WAITING_PER_KEY {
                    waiting.retain(|waiter| !waiter.is_gone());
                }
                if waiting.len() < TURNS_WAITING_PER_KEY {
                    waiting.push_back(waiter);
                } else {
                    waiter.answer(Err(StoreError::Busy));
                }
                None
            }
        }
    }

    /// Ends a turn at this key and returns the next request.
    pub(crate) fn end(&mut self, key: &Key) -> Option<TurnWaiter> {
        let waiting = self.0.get_mut(key)?;
        let next = std::iter::from_fn(|| waiting.pop_front()).find(|waiter| !waiter.is_gone());
        if next.is_none() {
            self.0.remove(key);
        }
        next
    }
}
