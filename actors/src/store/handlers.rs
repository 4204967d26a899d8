//! How the store handles each message.

use std::sync::Arc;

use actix::{ActorContext, Handler, MessageResult, Response, ResponseFuture};
use pilothouse_types::activity::{Activity, QueueDepth};
use pilothouse_types::error::StoreError;
use tokio::sync::oneshot;

use crate::committer::Committed;
use crate::describe::Describe;
use crate::key_queue::{QueuedReader, ReadResult};
use crate::log_time::LogTime;
use crate::recover::State;
use crate::snapshot::Snapshot;
use crate::store::write_turns::{self, EndTurn, TakeTurn, TurnMode};

use super::messages::{
    AdvanceRevision, Create, Expire, Get, GetSettled, ObjectResult, OpenWatch, Position, Remove, Replace,
    Retire, Retired, Stop, TakeSnapshot,
};
use super::shared_order::Reader;
use super::writes::{NewObject, Responder, WriteCommand};
use super::{Order, Store};

/// Waits for the reply of a request that the store has accepted.
fn wait_for_reply<T: Send + 'static>(
    receiver: oneshot::Receiver<Result<T, StoreError>>,
) -> ResponseFuture<Result<T, StoreError>> {
    Box::pin(async move { receiver.await.unwrap_or(Err(StoreError::Unavailable)) })
}

impl Handler<Describe> for Store {
    type Result = MessageResult<Describe>;

    fn handle(&mut self, _: Describe, _: &mut Self::Context) -> Self::Result {
        let (state, extent) = (&self.state, self.state.window.extent());
        let queues = vec![
            QueueDepth::unbounded("writes", self.order.pending_writes()),
            QueueDepth::unbounded("turns", self.turns.waiting()),
        ];
        let numbers = vec![
            ("objects", state.snapshot.len() as u64),
            ("revision", state.snapshot.revision.0),
            ("window_events", extent.events as u64),
            ("window_bytes", extent.bytes as u64),
        ];
        MessageResult(Activity::here(queues, numbers))
    }
}

impl Handler<Create> for Store {
    type Result = ResponseFuture<ObjectResult>;

    fn handle(&mut self, command: Create, _: &mut Self::Context) -> Self::Result {
        let Create { draft, stored, permit } = command;
        wait_for_reply(self.submit(WriteCommand::Create(NewObject { draft, stored }), permit, None))
    }
}

impl Handler<Replace> for Store {
    type Result = ResponseFuture<ObjectResult>;

    fn handle(&mut self, command: Replace, _: &mut Self::Context) -> Self::Result {
        let Replace { draft, stored, expected, permit, turn } = command;
        wait_for_reply(self.submit(
            WriteCommand::Replace(NewObject { draft, stored }, expected),
            permit,
            turn,
        ))
    }
}

impl Handler<Remove> for Store {
    type Result = ResponseFuture<ObjectResult>;

    fn handle(&mut self, command: Remove, _: &mut Self::Context) -> Self::Result {
        let Remove { key, expected, permit } = command;
        wait_for_reply(self.submit(WriteCommand::Remove(key, expected), permit, None))
    }
}

impl Handler<Get> for Store {
    type Result = Response<ObjectResult>;

    fn handle(&mut self, Get { key, freshness, permit }: Get, _: &mut Self::Context) -> Self::Result {
        self.read(freshness, permit, move |state| state.lookup(&key).ok_or(StoreError::NotFound))
    }
}

impl Handler<AdvanceRevision> for Store {
    type Result = ResponseFuture<Result<(), StoreError>>;

    fn handle(
        &mut self,
        AdvanceRevision { above, permit }: AdvanceRevision,
        _: &mut Self::Context,
    ) -> Self::Result {
        let (reply, receiver) = oneshot::channel();
        if self.order.is_unavailable(&self.state) {
            return Box::pin(async { Err(StoreError::Unavailable) });
        }
        // A shared log counts the changes of all types, so its revision rises by itself.
        let Order::Log(order) = &mut self.order else { return Box::pin(async { Ok(()) }) };
        let Some(slot) = self.state.deps.write_limiter.take(0) else {
            return Box::pin(async { Err(StoreError::Busy) });
        };
        order.advance_revision(&self.state, above, Responder::new(reply, permit, slot));
        wait_for_reply(receiver)
    }
}

impl Handler<GetSettled> for Store {
    type Result = ResponseFuture<ReadResult>;

    fn handle(&mut self, command: GetSettled, _: &mut Self::Context) -> Self::Result {
        let GetSettled { key, rollbacks, permit } = command;
        let (reader, receiver) = QueuedReader::new(permit);
        match &mut self.order {
            Order::Log(order) => order.read_settled(&self.state, &key, rollbacks, reader),
            Order::Shared(order) => {
                let lookup_key = key.clone();
                let reader: Reader = Box::new(move |state| {
                    reader.answer(state.map(|state| state.lookup(&lookup_key)));
                });
                // What a server has seen of a shared log was never rolled back.
                match rollbacks {
                    None => order.read_settled(&self.state, &key, reader),
                    Some(_) => order.read_latest(&self.state, reader),
                }
            }
        }
        wait_for_reply(receiver)
    }
}

impl Handler<TakeTurn> for Store {
    type Result = write_turns::PendingTurn;

    fn handle(&mut self, command: TakeTurn, ctx: &mut Self::Context) -> Self::Result {
        let TakeTurn { key, turn, permit } = command;
        let (waiter, pending) = write_turns::TurnWaiter::new(permit);
        let waits = match turn {
            TurnMode::Always => true,
            TurnMode::IfContended => self.order.has_write(&key) || self.turns.is_taken(&key),
            TurnMode::Never => false,
        };
        if self.order.is_unavailable(&self.state) {
            waiter.answer(Err(StoreError::Unavailable));
        } else if !waits {
            self.answer_turn(&key, waiter, None);
        } else if let Some(first) = self.turns.enter(&key, waiter) {
            self.give_turn(&key, first, ctx);
        }
        pending
    }
}

impl Handler<EndTurn> for Store {
    type Result = ();

    fn handle(&mut self, EndTurn { key }: EndTurn, ctx: &mut Self::Context) {
        if let Some(next) = self.turns.end(&key) {
            self.give_turn(&key, next, ctx);
        }
    }
}

impl Handler<TakeSnapshot> for Store {
    type Result = Response<Result<Snapshot, StoreError>>;

    fn handle(
        &mut self,
        TakeSnapshot { freshness, permit }: TakeSnapshot,
        _: &mut Self::Context,
    ) -> Self::Result {
        self.read(freshness, permit, |state| Ok(state.snapshot.clone()))
    }
}

impl Handler<OpenWatch> for Store {
    type Result = Response<Result<Position, StoreError>>;

    fn handle(&mut self, OpenWatch { freshness, permit }: OpenWatch, _: &mut Self::Context) -> Self::Result {
        self.read(freshness, permit, |state| {
            let (window, snapshot, past) =
                (Arc::clone(&state.window), state.snapshot.clone(), state.past.clone());
            Ok(Position { window, snapshot, past, history: state.deps.history, now: state.deps.clock.now() })
        })
    }
}

impl Handler<Committed> for Store {
    type Result = ();

    fn handle(&mut self, event: Committed, _: &mut Self::Context) {
        if let Order::Log(order) = &mut self.order {
            order.handle_committed(&mut self.state, &event);
        }
    }
}

impl Handler<Expire> for Store {
    type Result = usize;

    fn handle(&mut self, _: Expire, _: &mut Self::Context) -> Self::Result {
        self.state.expire(self.state.deps.clock.now())
    }
}

impl Handler<Retire> for Store {
    type Result = MessageResult<Retire>;

    fn handle(&mut self, _: Retire, ctx: &mut Self::Context) -> Self::Result {
        let Store { state, order, turns } = self;
        let in_flight = order.is_busy() || !turns.is_empty();
        let extent = state.window.extent();
        MessageResult(if !state.snapshot.objects.is_empty() {
            Retired::HasObjects
        } else if order.is_unavailable(state)
            || in_flight
            || (extent.events + extent.archived) > state.deps.trims.room() / 2
        {
            Retired::Busy
        } else {
            let dropped = state.window.forget_before(LogTime::MAX, usize::MAX);
            state.trim(&dropped);
            ctx.stop();
            let (snapshot, window) = (state.snapshot.clone(), Arc::clone(&state.window));
            let (last, rollbacks) = match order {
                Order::Log(order) => (order.last, order.rollbacks),
                // Only types that the log does not know any more are released, so no change can be on its way.
                Order::Shared(_) => (state.snapshot.revision, 0),
            };
            Retired::Ended(State { snapshot, window, last, rollbacks })
        })
    }
}

impl Handler<Stop> for Store {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.stop();
    }
}
