//! The actor that owns one resource type: its objects, its history, its counter.
//!
//! Request handlers send it reads and writes. What readers see is its [`TypeState`]; how a write gets there, and which revision it
//! gets, is the matter of its [`Order`]: the log of this server, or one that several servers share.
//!
//! Order: when a write is durable, the snapshot has it, then the window, then broadcasters are notified, then the writer
//! gets its reply; and writes appear in the order of their revisions. Readers see nothing that is not durable.
//!
//! A store that panics takes its type with it, so it raises [`Fatal`] on its way down: the server ends and starts again
//! from the log.

mod handlers;
mod log_order;
mod messages;
mod rollback;
mod shared_messages;
mod shared_order;
mod type_state;
pub mod write_turns;
mod writes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, AsyncContext, Context, Response};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Revision, TypeName};
use tokio::sync::oneshot;

use self::log_order::LogOrder;
use self::shared_order::SharedOrder;
pub use self::shared_order::SharedOrderSource;
use self::type_state::TypeState;
use self::write_turns::{BaseState, TurnWaiter, WriteTurn, WriteTurns};
use self::writes::WriteCommand;
use crate::committer::Committer;
use crate::encryption::Encryption;
use crate::fatal::Fatal;
use crate::limits::STORE_MAILBOX;
use crate::log_time::LogClock;
use crate::notifier::ChangeNotifiers;
use crate::permit::Permit;
use crate::recover::State;
use crate::shared_log::past::PastReader;
use crate::space::Space;
use crate::trim_queue::TrimQueue;
use crate::write_limiter::WriteLimiter;

pub use messages::{
    AdvanceRevision, Create, Expire, Freshness, Get, GetSettled, ObjectResult, OpenWatch, Position, Remove,
    Replace, Retire, Retired, Stop, TakeSnapshot,
};

/// The dependencies of every store. Cheap to clone.
#[derive(Clone)]
pub struct StoreDeps {
    /// Bounds the writes that the committer holds.
    pub write_limiter: WriteLimiter,
    /// The queue of records to remove.
    pub trims: TrimQueue,
    /// Notifies the broadcasters of changes.
    pub notifiers: ChangeNotifiers,
    /// Raised when a store dies.
    pub fatal: Fatal,
    /// Hides the keys of encrypted objects.
    pub encryption: Arc<dyn Encryption>,
    /// How much room is left on the disk.
    pub space: Space,
    /// The clock of the log.
    pub clock: LogClock,
    /// How long a superseded version stays readable and watchable.
    pub history: Duration,
    /// How often a store expires old history.
    pub housekeeping_interval: Duration,
}

/// What gives writes their order and makes them durable. Cheap to clone.
#[derive(Clone)]
pub enum OrderSource {
    /// The log of this server.
    Log(Addr<Committer>),
    /// A log that it shares with others.
    Shared(SharedOrderSource),
}

/// What gives the writes of each type their order. Cheap to clone.
#[derive(Clone)]
pub(crate) struct OrderSources {
    default: TypeOrder,
    /// The types with another one.
    by_type: Arc<HashMap<TypeName, TypeOrder>>,
}

/// What gives the writes of a type their order, and the revision of a type without writes. Cheap to clone.
#[derive(Clone)]
pub(crate) struct TypeOrder {
    pub(crate) source: OrderSource,
    pub(crate) first_revision: Revision,
}

impl OrderSources {
    /// The same for all types but these.
    pub(crate) fn new(default: TypeOrder, by_type: HashMap<TypeName, TypeOrder>) -> OrderSources {
        OrderSources { default, by_type: Arc::new(by_type) }
    }

    /// That of a type.
    pub(crate) fn for_type(&self, type_name: &TypeName) -> &TypeOrder {
        self.by_type.get(type_name).unwrap_or(&self.default)
    }

    /// The committer, if the log is one that only this server writes.
    pub(crate) fn committer(&self) -> Option<&Addr<Committer>> {
        match &self.default.source {
            OrderSource::Log(committer) => Some(committer),
            OrderSource::Shared(_) => None,
        }
    }
}

/// The writes of a type on their way.
enum Order {
    Log(LogOrder),
    Shared(SharedOrder),
}

impl Order {
    /// Whether writes or readers are on their way.
    fn is_busy(&self) -> bool {
        match self {
            Order::Log(order) => order.is_busy(),
            Order::Shared(order) => order.is_busy(),
        }
    }

    /// Whether a write of this key is on its way.
    fn has_write(&self, key: &Key) -> bool {
        match self {
            Order::Log(order) => order.in_flight.contains_key(key),
            Order::Shared(order) => order.has_write(key),
        }
    }

    /// How many writes are on their way.
    fn pending_writes(&self) -> usize {
        match self {
            Order::Log(order) => order.pending.len(),
            Order::Shared(order) => order.pending_writes(),
        }
    }

    /// Whether no write can succeed any more.
    fn is_unavailable(&self, state: &TypeState) -> bool {
        match self {
            Order::Log(order) => order.is_unavailable(state),
            Order::Shared(_) => state.deps.fatal.is_raised(),
        }
    }
}

/// The actor. See the module documentation.
pub struct Store {
    state: TypeState,
    order: Order,
    /// The turns of requests that change contended objects.
    turns: WriteTurns,
}

impl Store {
    /// The store of a type, with its recovered state.
    pub fn new(
        type_name: TypeName,
        state: State,
        source: OrderSource,
        deps: StoreDeps,
        ctx: &Context<Store>,
    ) -> Store {
        let State { snapshot, window, last, rollbacks } = state;
        let (order, past) = match source {
            OrderSource::Log(committer) => {
                (Order::Log(LogOrder::new(last, rollbacks, committer, ctx.address().recipient())), None)
            }
            OrderSource::Shared(source) => {
                let past = PastReader::new(Arc::clone(&source.log), type_name.clone());
                (Order::Shared(SharedOrder::new(source, ctx.address())), Some(past))
            }
        };
        let state = TypeState { type_name, snapshot, window, past, deps };
        Store { state, order, turns: WriteTurns::default() }
    }

    /// Accepts a write, or refuses it at once. `turn`: the turn in which it was made, if any.
    fn submit(
        &mut self,
        command: WriteCommand,
        permit: Permit,
        turn: Option<WriteTurn>,
    ) -> oneshot::Receiver<ObjectResult> {
        match &mut self.order {
            // The turn ends here: whoever has the next one works from the pending write.
            Order::Log(order) => order.submit(&self.state, command, permit),
            Order::Shared(order) => order.submit(&self.state, command, permit, turn),
        }
    }

    /// Reads a state: at once if this server has one that is recent enough, else when that has arrived.
    fn read<T: Send + 'static>(
        &mut self,
        freshness: Freshness,
        permit: Permit,
        read: impl FnOnce(&TypeState) -> Result<T, StoreError> + Send + 'static,
    ) -> Response<Result<T, StoreError>> {
        let order = match &mut self.order {
            Order::Log(_) => return Response::reply(read(&self.state)),
            Order::Shared(_) if self.state.satisfies(freshness) => return Response::reply(read(&self.state)),
            Order::Shared(order) => order,
        };
        let (reply, receiver) = oneshot::channel();
        order.read_latest(
            &self.state,
            Box::new(move |state| {
                // The reader may be gone.
                let _gone = reply.send(state.and_then(read));
                drop(permit);
            }),
        );
        Response::fut(async move { receiver.await.unwrap_or(Err(StoreError::Unavailable)) })
    }

    fn give_turn(&mut self, key: &Key, waiter: TurnWaiter, ctx: &Context<Store>) {
        let turn = WriteTurn::new(ctx.address(), key.clone());
        self.answer_turn(key, waiter, Some(turn));
    }

    /// Answers the state that a change starts from.
    fn answer_turn(&mut self, key: &Key, waiter: TurnWaiter, turn: Option<WriteTurn>) {
        match &mut self.order {
            // If the receiver is gone, the turn is dropped here and ends by itself.
            Order::Log(order) => waiter.answer(Ok(order.base_state(&self.state, key, turn))),
            Order::Shared(order) => {
                let key = key.clone();
                order.read_latest(
                    &self.state,
                    Box::new(move |state| {
                        let base = |state: &TypeState| BaseState {
                            object: state.lookup(&key),
                            is_durable: true,
                            rollbacks: 0,
                            turn,
                        };
                        waiter.answer(state.map(base));
                    }),
                );
            }
        }
    }
}

impl Actor for Store {
    type Context = Context<Store>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(STORE_MAILBOX);
        ctx.run_interval(self.state.deps.housekeeping_interval, |store, _| {
            if let Order::Shared(order) = &store.order {
                order.ask_for_progress(&store.state);
            }
            let state = &store.state;
            state.expire(state.deps.clock.now());
            let limit = state.expiration_limit();
            state.trim(&state.window.shrink(limit));
        });
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        match &mut self.order {
            Order::Log(order) => order.fail_pending(),
            Order::Shared(order) => order.fail_all(),
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.state.deps.fatal.raise(format!("the store of {} panicked", self.state.type_name));
        }
    }
}
