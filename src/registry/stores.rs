//! The verbs' access to the store actors: finds them and sends them messages.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use actix::Addr;
use actix::dev::ToEnvelope;
use actix::{Handler, MailboxError, Message};
use pilothouse_actors::directory::{Directory, Find, Release, Released, Stores as Storage, Types};
use pilothouse_actors::encryption::Encryption;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::store::write_turns::{BaseState, TakeTurn, TurnMode, WriteTurn};
use pilothouse_actors::store::{
    AdvanceRevision, Create, Freshness, Get, GetSettled, OpenWatch, Position, Remove, Replace, Store,
    TakeSnapshot,
};
use pilothouse_types::clock::Moment;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Key, Object, Revision, StoredDraft, TypeName};
use pilothouse_types::trace::OpenSpan;
use pilothouse_types::trace::span::Attribute;
use tokio::time::timeout;

use crate::limits::TURN_TIMEOUT;
use crate::metrics::storage::{WriteMeter, WriteOperation};

/// The result of a store command.
pub type StoreResult<T> = Result<T, StoreError>;

/// Access to the stores. One per worker.
pub struct Stores {
    directory: Addr<Directory>,
    encryption: Arc<dyn Encryption>,
    /// Cached addresses. A store lives as long as the server, unless its type is removed.
    addresses: RefCell<HashMap<TypeName, Addr<Store>>>,
    /// Counts writes, if anybody does.
    meter: Option<WriteMeter>,
}

impl Stores {
    /// Access to the stores of this storage.
    pub fn new(storage: &Storage) -> Stores {
        let (directory, encryption) = (storage.directory.clone(), Arc::clone(&storage.encryption));
        Stores { directory, encryption, addresses: RefCell::default(), meter: None }
    }

    /// The same, with writes that are counted.
    #[must_use]
    pub fn with_meter(self, meter: Option<WriteMeter>) -> Stores {
        Stores { meter, ..self }
    }

    /// Whether the stored form of an object has the encryption that it would get if it were written now.
    pub fn is_encryption_current(&self, type_name: &TypeName, object: &Object) -> bool {
        self.encryption.is_current(type_name, object)
    }

    /// The form in which the log gets a draft, if its type is encrypted at rest. Every write passes here: what cannot be encrypted
    /// is not written.
    fn encrypt(&self, type_name: &TypeName, draft: &Draft) -> StoreResult<Option<StoredDraft>> {
        self.encryption.encrypt(type_name, draft).map_err(StoreError::NotEncrypted)
    }

    /// The object with this key. A corrupt object is an error: treated as an empty one, it could let pods into a
    /// namespace that forbids them, or cause dependents to be deleted.
    pub async fn get(&self, type_name: &TypeName, key: Key, permit: &Permit) -> StoreResult<Arc<Object>> {
        self.get_at(type_name, key, Freshness::Latest, permit).await
    }

    /// Like [`Stores::get`], but as this server has seen it, for what is read with every write: on a shared log the latest state is a
    /// question to the log. One that was not seen is asked for: another server may have created it just now.
    pub async fn get_seen(
        &self,
        type_name: &TypeName,
        key: Key,
        permit: &Permit,
    ) -> StoreResult<Arc<Object>> {
        match self.get_at(type_name, key.clone(), Freshness::Seen, permit).await {
            Err(StoreError::NotFound) => self.get(type_name, key, permit).await,
            seen => seen,
        }
    }

    /// Like [`Stores::get`], of a state that is recent enough.
    pub async fn get_at(
        &self,
        type_name: &TypeName,
        key: Key,
        freshness: Freshness,
        permit: &Permit,
    ) -> StoreResult<Arc<Object>> {
        let (_step, permit) = begin_step(permit, "Get from store", type_name, Some(&key));
        let object: Arc<Object> = self.send(type_name, Get { key, freshness, permit }).await?;
        check_readable(object)
    }

    /// Adds an object.
    pub async fn create(
        &self,
        type_name: &TypeName,
        draft: Draft,
        permit: &Permit,
    ) -> StoreResult<Arc<Object>> {
        let stored = self.encrypt(type_name, &draft)?;
        let began = self.meter.as_ref().map(WriteMeter::now);
        let (_step, permit) = begin_step(permit, "Create in store", type_name, Some(&draft.key));
        let written = self.send(type_name, Create { draft, stored, permit }).await;
        self.count(WriteOperation::Create, type_name, began, &written);
        written
    }

    /// Replaces an object if its revision is still the expected one.
    pub async fn replace(
        &self,
        type_name: &TypeName,
        draft: Draft,
        expected: Revision,
        permit: &Permit,
    ) -> StoreResult<Arc<Object>> {
        self.replace_in_turn(type_name, draft, expected, permit, None).await
    }

    /// Like [`Stores::replace`], in a write turn. The turn ends when the store has accepted the write.
    pub async fn replace_in_turn(
        &self,
        type_name: &TypeName,
        draft: Draft,
        expected: Revision,
        permit: &Permit,
        turn: Option<WriteTurn>,
    ) -> StoreResult<Arc<Object>> {
        let stored = self.encrypt(type_name, &draft)?;
        let began = self.meter.as_ref().map(WriteMeter::now);
        let (_step, permit) = begin_step(permit, "Replace in store", type_name, Some(&draft.key));
        let written = self.send(type_name, Replace { draft, stored, expected, permit, turn }).await;
        self.count(WriteOperation::Update, type_name, began, &written);
        written
    }

    /// Removes an object if its revision is still the expected one.
    pub async fn remove(
        &self,
        type_name: &TypeName,
        key: Key,
        expected: Revision,
        permit: &Permit,
    ) -> StoreResult<Arc<Object>> {
        let began = self.meter.as_ref().map(WriteMeter::now);
        let (_step, permit) = begin_step(permit, "Remove from store", type_name, Some(&key));
        let written = self.send(type_name, Remove { key, expected, permit }).await;
        self.count(WriteOperation::Delete, type_name, began, &written);
        written
    }

    /// Counts a write. After it, so that its future stays as small as it is.
    fn count<T>(
        &self,
        operation: WriteOperation,
        type_name: &TypeName,
        began: Option<Moment>,
        written: &StoreResult<T>,
    ) {
        if let (Some(meter), Some(began)) = (&self.meter, began) {
            meter.count(operation, type_name, began, written);
        }
    }

    /// The object with this key, after all writes of it that were sent before.
    pub async fn get_settled(
        &self,
        type_name: &TypeName,
        key: Key,
        permit: &Permit,
    ) -> StoreResult<Option<Arc<Object>>> {
        let (_step, permit) = begin_step(permit, "Get settled from store", type_name, Some(&key));
        let command = GetSettled { key, rollbacks: None, permit };
        self.send(type_name, command).await
    }

    /// Waits until a base state is durable. NoSpace means that it never will be.
    pub async fn wait_until_durable(
        &self,
        type_name: &TypeName,
        key: Key,
        rollbacks: u64,
        permit: &Permit,
    ) -> StoreResult<()> {
        let (_step, permit) = begin_step(permit, "Wait for commit", type_name, Some(&key));
        let command = GetSettled { key, rollbacks: Some(rollbacks), permit };
        self.send(type_name, command).await.map(drop)
    }

    /// The state that a change of an object starts from. If the queue for write turns is full or too slow, it comes
    /// without a turn, and the write may run into a conflict.
    pub async fn base_state(
        &self,
        type_name: &TypeName,
        key: Key,
        turn: TurnMode,
        permit: &Permit,
    ) -> StoreResult<BaseState> {
        let (_step, permit) = begin_step(permit, "Take write turn", type_name, Some(&key));
        let command = |turn| TakeTurn { key: key.clone(), turn, permit: permit.clone() };
        let send = |turn| self.send(type_name, command(turn));
        let base = match timeout(TURN_TIMEOUT, send(turn)).await {
            Err(_) | Ok(Err(StoreError::Busy)) => send(TurnMode::Never).await?,
            Ok(answer) => answer?,
        };
        Ok(BaseState { object: base.object.map(check_readable).transpose()?, ..base })
    }

    /// The object with this key once all its writes are durable, with a turn, so that a writer that had a conflict does not lose
    /// repeatedly. The turn lasts until it is dropped: after the write that follows.
    pub async fn get_with_turn(
        &self,
        type_name: &TypeName,
        key: Key,
        permit: &Permit,
    ) -> StoreResult<(Arc<Object>, Option<WriteTurn>)> {
        let BaseState { turn, .. } =
            self.base_state(type_name, key.clone(), TurnMode::Always, permit).await?;
        let object = self.get_settled(type_name, key, permit).await?;
        Ok((check_readable(object.ok_or(StoreError::NotFound)?)?, turn))
    }

    /// Advances the type to a revision above this one, which has expired.
    pub async fn advance_revision(
        &self,
        type_name: &TypeName,
        above: Revision,
        permit: &Permit,
    ) -> StoreResult<()> {
        let (_step, permit) = begin_step(permit, "Advance revision of store", type_name, None);
        self.send(type_name, AdvanceRevision { above, permit }).await
    }

    /// All objects as they are now.
    pub async fn snapshot(&self, type_name: &TypeName, permit: &Permit) -> StoreResult<Snapshot> {
        self.snapshot_at(type_name, Freshness::Latest, permit).await
    }

    /// All objects, of a state that is recent enough.
    pub async fn snapshot_at(
        &self,
        type_name: &TypeName,
        freshness: Freshness,
        permit: &Permit,
    ) -> StoreResult<Snapshot> {
        let (_step, permit) = begin_step(permit, "List from store", type_name, None);
        self.send(type_name, TakeSnapshot { freshness, permit }).await
    }

    /// All objects, of a state that is recent enough, and the stream of later changes.
    pub async fn open_watch(
        &self,
        type_name: &TypeName,
        freshness: Freshness,
        permit: &Permit,
    ) -> StoreResult<Position> {
        let (_step, permit) = begin_step(permit, "List from store", type_name, None);
        self.send(type_name, OpenWatch { freshness, permit }).await
    }

    /// Every type that was ever written or read.
    pub async fn types(&self) -> StoreResult<Vec<TypeName>> {
        self.directory.send(Types).await.map_err(|_: MailboxError| StoreError::Unavailable)
    }

    /// Releases the store of a removed type.
    pub async fn release(&self, type_name: &TypeName) -> StoreResult<Released> {
        self.addresses.borrow_mut().remove(type_name);
        let released = self.directory.send(Release { type_name: type_name.clone() }).await;
        released.map_err(|_: MailboxError| StoreError::Unavailable)
    }

    async fn send<M, T>(&self, type_name: &TypeName, command: M) -> StoreResult<T>
    where
        M: Message<Result = StoreResult<T>> + Send + 'static,
        T: Send + 'static,
        Store: Handler<M>,
        <Store as actix::Actor>::Context: ToEnvelope<Store, M>,
    {
        let store = self.find(type_name).await?;
        // A closed mailbox: the store has died or the server is stopping. Whether the command took effect is unknown.
        store.send(command).await.map_err(|_: MailboxError| StoreError::Unavailable)?
    }

    async fn find(&self, type_name: &TypeName) -> StoreResult<Addr<Store>> {
        if let Some(store) = self.addresses.borrow().get(type_name)
            && store.connected()
        {
            return Ok(store.clone());
        }
        let address = self.directory.send(Find { type_name: type_name.clone() }).await;
        let store = address.map_err(|_: MailboxError| StoreError::Unavailable)??;
        let mut addresses = self.addresses.borrow_mut();
        // Stores of removed definitions, which another worker may have released.
        addresses.retain(|_, store| store.connected());
        addresses.insert(type_name.clone(), store.clone());
        Ok(store)
    }
}

/// Begins the step of a request that asks a store, and makes the permit that the command carries.
fn begin_step(
    permit: &Permit,
    name: &'static str,
    type_name: &TypeName,
    key: Option<&Key>,
) -> (OpenSpan, Permit) {
    let mut step = permit.trace().open(name);
    step.describe(|| {
        let resource = Attribute::text("resource", type_name.as_str().to_owned());
        let key = key.map(|key| Attribute::text("key", key.as_str().to_owned()));
        [resource].into_iter().chain(key).collect()
    });
    let permit = permit.for_other_thread(&step);
    (step, permit)
}

fn check_readable(object: Arc<Object>) -> StoreResult<Arc<Object>> {
    if object.is_readable() { Ok(object) } else { Err(StoreError::Unreadable(object)) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pilothouse_actors::directory::{Options, start};
    use pilothouse_actors::engine::memory::Memory;

    use super::*;

    #[actix_rt::test]
    async fn stores_drop_addresses_released_by_others() {
        let storage = start(Box::new(Memory::new()), Options::default()).unwrap();
        let stores = || Stores::new(&storage);
        let (mine, others) = (stores(), stores());
        let [released, remaining] = ["went", "stays"].map(TypeName::new);
        mine.snapshot(&released, &Permit::none()).await.unwrap();
        while others.release(&released).await.unwrap() == Released::Busy {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let released_store = mine.addresses.borrow()[&released].clone();
        while released_store.connected() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        mine.snapshot(&remaining, &Permit::none()).await.unwrap();
        assert_eq!(mine.addresses.borrow().keys().collect::<Vec<_>>(), [&remaining]);
    }
}
