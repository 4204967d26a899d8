//! The verbs' access to the store actors: finds them and sends them messages.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use actix::Addr;
use actix::dev::ToEnvelope;
use actix::{Handler, MailboxError, Message};
use pilothouse_actors::directory::{Directory, Find, Release, Released, Types};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::store::write_turns::{BaseState, TakeTurn, TurnMode, WriteTurn};
use pilothouse_actors::store::{
    AdvanceRevision, Create, Get, GetSettled, OpenWatch, Position, Remove, Replace, Store, TakeSnapshot,
};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Key, Object, Revision, TypeName};
use tokio::time::timeout;

use crate::limits::TURN_TIMEOUT;

/// What a store answers.
pub type StoreResult<T> = Result<T, StoreError>;

/// The stores as one worker sees them.
pub struct Stores {
    directory: Addr<Directory>,
    /// Known addresses. A store lives as long as the server, unless its type is removed.
    found: RefCell<HashMap<TypeName, Addr<Store>>>,
}

impl Stores {
    /// Finds stores through this directory.
    pub fn new(directory: Addr<Directory>) -> Stores {
        Stores { directory, found: RefCell::default() }
    }

    /// The object with this key. A corrupt one is an error: if it were taken for an empty one, pods would be admitted into a
    /// namespace that forbids them, or dependents would be removed.
    pub async fn get(&self, of: &TypeName, key: Key, permit: &Permit) -> StoreResult<Arc<Object>> {
        let object: Arc<Object> = self.ask(of, Get { key, permit: permit.clone() }).await?;
        readable(object)
    }

    /// Adds an object.
    pub async fn create(&self, of: &TypeName, draft: Draft, permit: &Permit) -> StoreResult<Arc<Object>> {
        self.ask(of, Create { draft, permit: permit.clone() }).await
    }

    /// Replaces the version that was read.
    pub async fn replace(
        &self,
        of: &TypeName,
        draft: Draft,
        expected: Revision,
        permit: &Permit,
    ) -> StoreResult<Arc<Object>> {
        self.replace_in_turn(of, draft, expected, permit, None).await
    }

    /// Replaces the version that was read in a turn. The turn ends when the store has accepted the write.
    pub async fn replace_in_turn(
        &self,
        of: &TypeName,
        draft: Draft,
        expected: Revision,
        permit: &Permit,
        turn: Option<WriteTurn>,
    ) -> StoreResult<Arc<Object>> {
        self.ask(of, Replace { draft, expected, permit: permit.clone(), turn }).await
    }

    /// Removes the version that was read.
    pub async fn remove(
        &self,
        of: &TypeName,
        key: Key,
        expected: Revision,
        permit: &Permit,
    ) -> StoreResult<Arc<Object>> {
        self.ask(of, Remove { key, expected, permit: permit.clone() }).await
    }

    /// The object with this key, after all writes of it that were sent before.
    pub async fn settled(
        &self,
        of: &TypeName,
        key: Key,
        permit: &Permit,
    ) -> StoreResult<Option<Arc<Object>>> {
        self.ask(of, GetSettled { key, permit: permit.clone() }).await
    }

    /// The state that a change of an object starts from. If the queue for turns is full or too slow, it comes without a turn:
    /// then the write is just tried.
    pub async fn basis(
        &self,
        of: &TypeName,
        key: Key,
        turn: TurnMode,
        permit: &Permit,
    ) -> StoreResult<BaseState> {
        let ask = |turn| self.ask(of, TakeTurn { key: key.clone(), turn, permit: permit.clone() });
        let basis = match timeout(TURN_TIMEOUT, ask(turn)).await {
            Err(_) | Ok(Err(StoreError::Busy)) => ask(TurnMode::Never).await?,
            Ok(answer) => answer?,
        };
        Ok(BaseState { object: basis.object.map(readable).transpose()?, ..basis })
    }

    /// The object with this key once all its writes are durable, with a turn, so that a writer that had a conflict does not lose
    /// repeatedly. The turn lasts until it is dropped: after the write that follows.
    pub async fn alone(
        &self,
        of: &TypeName,
        key: Key,
        permit: &Permit,
    ) -> StoreResult<(Arc<Object>, Option<WriteTurn>)> {
        let BaseState { turn, .. } = self.basis(of, key.clone(), TurnMode::Always, permit).await?;
        let settled = self.settled(of, key, permit).await?;
        Ok((readable(settled.ok_or(StoreError::NotFound)?)?, turn))
    }

    /// Lets the type go on to a revision above this one, which has expired.
    pub async fn step(&self, of: &TypeName, above: Revision, permit: &Permit) -> StoreResult<()> {
        self.ask(of, AdvanceRevision { above, permit: permit.clone() }).await
    }

    /// All objects as they are now.
    pub async fn snapshot(&self, of: &TypeName, permit: &Permit) -> StoreResult<Snapshot> {
        self.ask(of, TakeSnapshot { permit: permit.clone() }).await
    }

    /// All objects as they are now, and the stream of later changes.
    pub async fn open_watch(&self, of: &TypeName, permit: &Permit) -> StoreResult<Position> {
        self.ask(of, OpenWatch { permit: permit.clone() }).await
    }

    /// Every type that was ever written to or asked for.
    pub async fn types(&self) -> StoreResult<Vec<TypeName>> {
        self.directory.send(Types).await.map_err(|_: MailboxError| StoreError::Unavailable)
    }

    /// Releases the store of a removed type. Answers whether work is left for later.
    pub async fn release(&self, of: &TypeName) -> StoreResult<Released> {
        self.found.borrow_mut().remove(of);
        let released = self.directory.send(Release { type_name: of.clone() }).await;
        released.map_err(|_: MailboxError| StoreError::Unavailable)
    }

    async fn ask<M, T>(&self, of: &TypeName, command: M) -> StoreResult<T>
    where
        M: Message<Result = StoreResult<T>> + Send + 'static,
        T: Send + 'static,
        Store: Handler<M>,
        <Store as actix::Actor>::Context: ToEnvelope<Store, M>,
    {
        let store = self.find(of).await?;
        // A closed mailbox: the store has died or the server is stopping. Whether the command took effect is unknown.
        store.send(command).await.map_err(|_: MailboxError| StoreError::Unavailable)?
    }

    async fn find(&self, of: &TypeName) -> StoreResult<Addr<Store>> {
        if let Some(store) = self.found.borrow().get(of)
            && store.connected()
        {
            return Ok(store.clone());
        }
        let found = self.directory.send(Find { type_name: of.clone() }).await;
        let store = found.map_err(|_: MailboxError| StoreError::Unavailable)??;
        let mut known = self.found.borrow_mut();
        // Definitions come and go, and with them their stores, of which others may have let go.
        known.retain(|_, store| store.connected());
        known.insert(of.clone(), store.clone());
        Ok(store)
    }
}

fn readable(object: Arc<Object>) -> StoreResult<Arc<Object>> {
    if object.is_readable() { Ok(object) } else { Err(StoreError::Unreadable(object)) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pilothouse_actors::directory::{Options, start};
    use pilothouse_actors::engine::memory::Memory;

    use super::*;

    #[actix_rt::test]
    async fn stores_that_others_let_go_are_forgotten() {
        let storage = start(Box::new(Memory::new()), Options::default()).unwrap();
        let stores = || Stores::new(storage.directory.clone());
        let (mine, others) = (stores(), stores());
        let [went, stays] = ["went", "stays"].map(TypeName::new);
        mine.snapshot(&went, &Permit::none()).await.unwrap();
        while others.release(&went).await.unwrap() == Released::Busy {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let ended = mine.found.borrow()[&went].clone();
        while ended.connected() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        mine.snapshot(&stays, &Permit::none()).await.unwrap();
        assert_eq!(mine.found.borrow().keys().collect::<Vec<_>>(), [&stays]);
    }
}
