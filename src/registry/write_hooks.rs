//! Hooks of a kind: what happens around the writes of its objects beyond storing them. Like BeginCreate, BeginUpdate and
//! AfterDelete of the reference's registry store, a hook runs before the write and returns what is left to do afterwards. The
//! verbs call the hook of every write and know no kind; most kinds have none.

use std::collections::HashMap;
use std::rc::Rc;

use futures::future::LocalBoxFuture;
use pilothouse_apimachinery::options::WriteMode;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Object, TypeName};

use super::Call;

/// The hook of one kind.
pub trait WriteHook {
    /// Prepares the create of an object, which is admitted and not validated yet. May change it.
    fn begin_create<'a>(
        self: Rc<Self>,
        call: &'a Call<'a>,
        object: &'a mut Value,
        mode: WriteMode,
    ) -> LocalBoxFuture<'a, Result<PendingWrite>>;

    /// Prepares an update of an object or one of its subresources. May change the new state, which is admitted and not validated
    /// yet. The update may turn out to remove the object: see [`pilothouse_api::deletion::is_complete`].
    fn begin_update<'a>(
        self: Rc<Self>,
        call: &'a Call<'a>,
        object: &'a mut Value,
        old: &'a Value,
        mode: WriteMode,
    ) -> LocalBoxFuture<'a, Result<PendingWrite>>;

    /// Prepares the removal of an object from its store. A deletion that only marks the object has none, and neither has a dry
    /// run.
    fn begin_removal(self: Rc<Self>, call: &Call<'_>, object: &Object) -> PendingWrite;
}

/// How a write has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEnd {
    /// It is stored.
    Stored,
    /// It is not, and never will be.
    NotStored,
    /// Nobody knows whether it is, or will be.
    Unknown,
}

impl WriteEnd {
    /// The end of a write that a store has refused.
    pub fn of_error(error: &StoreError) -> WriteEnd {
        if matches!(error, StoreError::UnknownOutcome) { WriteEnd::Unknown } else { WriteEnd::NotStored }
    }

    /// The end of a write with this result, which is stored if the condition holds for it.
    pub fn of_result<T>(
        result: &std::result::Result<T, WriteFailure>,
        is_stored: impl FnOnce(&T) -> bool,
    ) -> WriteEnd {
        match result {
            Ok(success) if is_stored(success) => WriteEnd::Stored,
            Ok(_) => WriteEnd::NotStored,
            Err(failure) => failure.end,
        }
    }
}

/// Why a write has failed.
pub struct WriteFailure {
    /// The response.
    pub status: Box<Status>,
    /// How it has ended all the same.
    end: WriteEnd,
}

impl WriteFailure {
    /// The failure of a write that a store has refused.
    pub fn from_store(error: &StoreError, resource: GroupResource<'_>, name: &str) -> WriteFailure {
        let status = Status::from_store(error, resource, name);
        WriteFailure { status, end: WriteEnd::of_error(error) }
    }

    /// The failure to respond to a write that is stored.
    pub fn of_response(status: Box<Status>) -> WriteFailure {
        WriteFailure { status, end: WriteEnd::Stored }
    }
}

/// The failure before the store was asked.
impl From<Box<Status>> for WriteFailure {
    fn from(status: Box<Status>) -> WriteFailure {
        WriteFailure { status, end: WriteEnd::NotStored }
    }
}

impl From<WriteFailure> for Box<Status> {
    fn from(failure: WriteFailure) -> Box<Status> {
        failure.status
    }
}

/// What is left to do when a write is over. If the client disconnects before that, it is dropped instead.
pub trait FinishWrite {
    /// The store is going to be asked: from now on the write may be stored although nobody learns of it.
    fn propose(&mut self);

    /// Ends the write.
    fn finish(self: Box<Self>, end: WriteEnd) -> LocalBoxFuture<'static, ()>;
}

/// A write that its hook has prepared.
#[must_use]
pub struct PendingWrite(Option<Box<dyn FinishWrite>>);

impl PendingWrite {
    /// A write that leaves nothing to do.
    pub fn none() -> PendingWrite {
        PendingWrite(None)
    }

    /// The store is going to be asked.
    pub fn propose(&mut self) {
        if let Some(pending) = &mut self.0 {
            pending.propose();
        }
    }

    /// Ends the write.
    pub async fn finish(self, end: WriteEnd) {
        if let Some(pending) = self.0 {
            pending.finish(end).await;
        }
    }
}

impl<T: FinishWrite + 'static> From<T> for PendingWrite {
    fn from(pending: T) -> PendingWrite {
        PendingWrite(Some(Box::new(pending)))
    }
}

/// The hooks of all kinds that have one, by their store. One set per worker.
#[derive(Default)]
pub struct WriteHooks(HashMap<TypeName, Rc<dyn WriteHook>>);

impl WriteHooks {
    /// Adds the hook of a kind.
    #[must_use]
    pub fn with(mut self, store: TypeName, hook: Rc<dyn WriteHook>) -> WriteHooks {
        self.0.insert(store, hook);
        self
    }

    /// See [`WriteHook::begin_create`].
    pub async fn begin_create(
        &self,
        call: &Call<'_>,
        object: &mut Value,
        mode: WriteMode,
    ) -> Result<PendingWrite> {
        match self.for_call(call) {
            Some(hook) => hook.begin_create(call, object, mode).await,
            None => Ok(PendingWrite::none()),
        }
    }

    /// See [`WriteHook::begin_update`].
    pub async fn begin_update(
        &self,
        call: &Call<'_>,
        object: &mut Value,
        old: &Value,
        mode: WriteMode,
    ) -> Result<PendingWrite> {
        match self.for_call(call) {
            Some(hook) => hook.begin_update(call, object, old, mode).await,
            None => Ok(PendingWrite::none()),
        }
    }

    /// See [`WriteHook::begin_removal`].
    pub fn begin_removal(&self, call: &Call<'_>, object: &Object) -> PendingWrite {
        self.for_call(call).map_or_else(PendingWrite::none, |hook| hook.begin_removal(call, object))
    }

    fn for_call(&self, call: &Call<'_>) -> Option<Rc<dyn WriteHook>> {
        self.0.get(&call.stored().store).cloned()
    }
}
