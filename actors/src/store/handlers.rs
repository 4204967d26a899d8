//! How the store handles each message.

use std::sync::Arc;

use actix::{ActorContext, Handler, MessageResult, ResponseFuture};
use pilothouse_types::error::StoreError;
use tokio::sync::oneshot;

use crate::committer::Committed;
use crate::key_queue::{QueuedReader, ReadResult};
use crate::log_time::LogTime;
use crate::recover::State;
use crate::snapshot::Snapshot;
use crate::store::write_turns::{self, EndTurn, TakeTurn, TurnMode};

use super::Store;
use super::messages::{
    AdvanceRevision, Create, Expire, Get, GetSettled, ObjectResult, OpenWatch, Position, Remove, Replace,
    Retire, Retired, Stop, TakeSnapshot,
};
use super::writes::{NewObject, Responder, WriteCommand};

/// Waits for the reply of a request that the store has accepted.
fn wait_for_reply<T: Send + 'static>(
    receiver: oneshot::Receiver<Result<T, StoreError>>,
) -> ResponseFuture<Result<T, StoreError>> {
    Box::pin(async move { receiver.await.unwrap_or(Err(StoreError::Unavailable)) })
}

impl Handler<Create> for Store {
    type Result = ResponseFuture<ObjectResult>;

    fn handle(&mut self, command: Create, _: &mut Self::Context) -> Self::Result {
        let Create { draft, encrypted, permit } = command;
        wait_for_reply(self.submit(WriteCommand::Create(NewObject { draft, encrypted }), permit))
    }
}

impl Handler<Replace> for Store {
    type Result = ResponseFuture<ObjectResult>;

    fn handle(&mut self, command: Replace, _: &mut Self::Context) -> Self::Result {
        let Replace { draft, encrypted, expected, permit, turn } = command;
        let receiver = self.submit(WriteCommand::Replace(NewObject { draft, encrypted }, expected), permit);
        drop(turn);
        wait_for_reply(receiver)
    }
}

impl Handler<Remove> for Store {
    type Result = ResponseFuture<ObjectResult>;

    fn handle(&mut self, command: Remove, _: &mut Self::Context) -> Self::Result {
        let Remove { key, expected, permit } = command;
        wait_for_reply(self.submit(WriteCommand::Remove(key, expected), permit))
    }
}

impl Handler<Get> for Store {
    type Result = ObjectResult;

    fn handle(&mut self, command: Get, _: &mut Self::Context) -> Self::Result {
        self.lookup(&command.key).ok_or(StoreError::NotFound)
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
        if self.is_unavailable() {
            return Box::pin(async { Err(StoreError::Unavailable) });
        }
        let Some(slot) = self.deps.write_limiter.take(0) else {
            return Box::pin(async { Err(StoreError::Busy) });
        };
        self.advance_revision(above, Responder::new(reply, permit, slot));
        wait_for_reply(receiver)
    }
}

impl Handler<GetSettled> for Store {
    type Result = ResponseFuture<ReadResult>;

    fn handle(&mut self, command: GetSettled, _: &mut Self::Context) -> Self::Result {
        let GetSettled { key, rollbacks, permit } = command;
        let (reader, receiver) = QueuedReader::new(permit);
        let is_unavailable = self.is_unavailable();
        match self.in_flight.get_mut(&key) {
            _ if is_unavailable => reader.answer(Err(StoreError::Unavailable)),
            _ if rollbacks.is_some_and(|rollbacks| rollbacks != self.rollbacks) => {
                reader.answer(Err(StoreError::NoSpace));
            }
            Some(entry) => entry.queue.push_reader(entry.last, reader),
            None => reader.answer(Ok(self.lookup(&key))),
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
            TurnMode::IfContended => self.in_flight.contains_key(&key) || self.turns.is_taken(&key),
            TurnMode::Never => false,
        };
        if self.is_unavailable() {
            waiter.answer(Err(StoreError::Unavailable));
        } else if !waits {
            waiter.answer(Ok(self.base_state(&key, None)));
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
    type Result = Result<Snapshot, StoreError>;

    fn handle(&mut self, _: TakeSnapshot, _: &mut Self::Context) -> Self::Result {
        Ok(self.snapshot.clone())
    }
}

impl Handler<OpenWatch> for Store {
    type Result = Result<Position, StoreError>;

    fn handle(&mut self, _: OpenWatch, _: &mut Self::Context) -> Self::Result {
        let (window, snapshot) = (Arc::clone(&self.window), self.snapshot.clone());
        Ok(Position { window, snapshot, history: self.deps.history, now: self.deps.clock.now() })
    }
}

impl Handler<Committed> for Store {
    type Result = ();

    fn handle(&mut self, event: Committed, _: &mut Self::Context) {
        match event.through {
            Ok(revision) => self.publish(revision),
            // Every batch with writes of that time reports it; the first report has undone all of them.
            Err(StoreError::NoSpace) if event.rollbacks < self.rollbacks => {}
            Err(StoreError::NoSpace) => self.roll_back(),
            Err(_) => self.fail_pending(),
        }
    }
}

impl Handler<Expire> for Store {
    type Result = usize;

    fn handle(&mut self, _: Expire, _: &mut Self::Context) -> Self::Result {
        self.expire(self.deps.clock.now())
    }
}

impl Handler<Retire> for Store {
    type Result = MessageResult<Retire>;

    fn handle(&mut self, _: Retire, ctx: &mut Self::Context) -> Self::Result {
        let in_flight = !self.pending.is_empty() || !self.in_flight.is_empty() || !self.turns.is_empty();
        let extent = self.window.extent();
        MessageResult(if !self.snapshot.objects.is_empty() {
            Retired::HasObjects
        } else if self.is_unavailable()
            || in_flight
            || (extent.events + extent.archived) > self.deps.trims.room() / 2
        {
            Retired::Busy
        } else {
            let dropped = self.window.forget_before(LogTime::MAX, usize::MAX);
            self.trim(&dropped);
            ctx.stop();
            let (snapshot, window) = (self.snapshot.clone(), Arc::clone(&self.window));
            Retired::Ended(State { snapshot, window, last: self.last, rollbacks: self.rollbacks })
        })
    }
}

impl Handler<Stop> for Store {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.stop();
    }
}
