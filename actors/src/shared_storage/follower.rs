//! Follows a shared log, and hands its changes to the stores.
//!
//! All changes of all types come in one stream, so "this server has seen revision R" is one number. A store that must read the latest
//! state asks for a barrier: the log is asked for its revision, and the store is told when everything up to that has been handed to it.
//! All stores that come while a question is on its way share the next one.

use std::collections::HashMap;
use std::sync::Arc;

use actix::{Addr, Handler, Message, Recipient};
use futures::StreamExt as _;
use futures::future::{BoxFuture, OptionFuture};
use futures::stream::BoxStream;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Revision, TypeName};
use tokio::sync::{Semaphore, watch};

use crate::directory::{Directory, Find, Types};
use crate::fatal::Fatal;
use crate::limits::{FOLLOW_PAUSE, UNAPPLIED_BYTES};
use crate::shared_log::messages::{ApplyChanges, BarrierPassed, BarrierQueue, Resynchronize};
use crate::shared_log::{ChangeBatch, FollowError, SharedChange, SharedEntry, SharedLog, SharedLogError};
use crate::store::Store;

/// How far the log was followed, for health checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowStatus {
    /// Every change up to this revision has been handed to its store.
    pub seen: Revision,
    /// Why the log could not be asked for its revision the last time, if it could not.
    pub failure: Option<SharedLogError>,
}

/// What a follower needs.
pub struct Follower {
    log: Arc<dyn SharedLog>,
    directory: Addr<Directory>,
    stores: HashMap<TypeName, Addr<Store>>,
    /// Bytes of changes that stores have not applied yet.
    credit: Arc<Semaphore>,
    status: watch::Sender<FollowStatus>,
    fatal: Fatal,
}

/// Stores that wait until everything up to a revision was handed to them.
struct Waiting {
    revision: Revision,
    stores: Vec<Recipient<BarrierPassed>>,
}

impl Follower {
    /// A follower of a log whose changes up to this revision are known.
    pub fn new(
        log: Arc<dyn SharedLog>,
        directory: Addr<Directory>,
        seen: Revision,
        fatal: Fatal,
    ) -> (Follower, watch::Receiver<FollowStatus>) {
        let (status, receiver) = watch::channel(FollowStatus { seen, failure: None });
        let credit = Arc::new(Semaphore::new(UNAPPLIED_BYTES));
        (Follower { log, directory, stores: HashMap::new(), credit, status, fatal }, receiver)
    }

    /// Follows the log until the server ends.
    pub async fn run(mut self, mut queue: BarrierQueue) {
        let mut changes = self.log.follow(self.seen());
        let mut question: OptionFuture<BoxFuture<'static, Result<Revision, SharedLogError>>> = None.into();
        let (mut is_asking, mut asking, mut next) = (false, Vec::new(), Vec::new());
        let mut waiting: Vec<Waiting> = Vec::new();
        loop {
            tokio::select! {
                batch = changes.next() => match batch {
                    Some(Ok(batch)) => self.dispatch(batch).await,
                    failed => match self.recover(failed.and_then(Result::err)).await {
                        Some(stream) => changes = stream,
                        None => return,
                    },
                },
                store = queue.recv() => match store {
                    Some(store) => next.push(store),
                    None => return,
                },
                Some(answer) = &mut question, if is_asking => {
                    is_asking = false;
                    let stores = std::mem::take(&mut asking);
                    match self.note(answer) {
                        Ok(revision) => waiting.push(Waiting { revision, stores }),
                        Err(error) => pass(stores, &Err(error)),
                    }
                }
            }
            let seen = self.seen();
            for passed in waiting.extract_if(.., |waiting| waiting.revision <= seen) {
                pass(passed.stores, &Ok(passed.revision));
            }
            if !is_asking && !next.is_empty() {
                asking = std::mem::take(&mut next);
                question = Some(self.log.current_revision()).into();
                is_asking = true;
            }
        }
    }

    fn seen(&self) -> Revision {
        self.status.borrow().seen
    }

    /// Notes for health checks whether the log answers.
    fn note(&self, answer: Result<Revision, SharedLogError>) -> Result<Revision, StoreError> {
        let failure = answer.as_ref().err().cloned();
        self.status.send_if_modified(|status| {
            let is_news = status.failure != failure;
            status.failure = failure;
            is_news
        });
        answer.map_err(StoreError::from)
    }

    /// Hands changes to their stores.
    async fn dispatch(&mut self, batch: ChangeBatch) {
        let mut by_type: HashMap<TypeName, Vec<SharedChange>> = HashMap::new();
        for change in batch.changes {
            by_type.entry(change.type_name.clone()).or_default().push(change);
        }
        for (type_name, changes) in by_type {
            let bytes: usize = changes.iter().map(SharedChange::weight).sum();
            // A batch that exceeds the credit alone takes all of it.
            let permits = u32::try_from(bytes.min(UNAPPLIED_BYTES)).unwrap_or(u32::MAX);
            let credit = Arc::clone(&self.credit).acquire_many_owned(permits).await.ok();
            if let Some(store) = self.store(&type_name).await {
                deliver(&store, ApplyChanges { revision: batch.revision, changes, credit });
            }
        }
        self.status.send_modify(|status| status.seen = status.seen.max(batch.revision));
    }

    /// The store of a type. `None` if the server ends.
    async fn store(&mut self, type_name: &TypeName) -> Option<Addr<Store>> {
        if let Some(store) = self.stores.get(type_name).filter(|store| store.connected()) {
            return Some(store.clone());
        }
        let store = self.directory.send(Find { type_name: type_name.clone() }).await.ok()?.ok()?;
        self.stores.insert(type_name.clone(), store.clone());
        Some(store)
    }

    /// Reads everything anew if the changes since the last batch are no longer known, and follows from there. `None` if nothing helps.
    async fn recover(
        &mut self,
        error: Option<FollowError>,
    ) -> Option<BoxStream<'static, Result<ChangeBatch, FollowError>>> {
        match error {
            Some(FollowError::WentBack(_)) => {
                let error = error.map(|error| error.to_string()).unwrap_or_default();
                self.fatal.raise(format!("{error}: all clients have to list again"));
                None
            }
            Some(FollowError::Compacted) => {
                while let Err(error) = self.resynchronize().await {
                    tracing::warn!(%error, "the shared log cannot be read");
                    tokio::time::sleep(FOLLOW_PAUSE).await;
                }
                Some(self.log.follow(self.seen()))
            }
            None => {
                tokio::time::sleep(FOLLOW_PAUSE).await;
                Some(self.log.follow(self.seen()))
            }
        }
    }

    async fn resynchronize(&mut self) -> Result<(), SharedLogError> {
        let loaded = self.log.load().await?;
        // Also those that nothing has changed since the start: all of their objects may be gone.
        let known = self.directory.send(Types).await.unwrap_or_default();
        let mut by_type: HashMap<TypeName, Vec<SharedEntry>> =
            known.into_iter().chain(self.stores.keys().cloned()).map(|name| (name, Vec::new())).collect();
        for entry in loaded.entries {
            by_type.entry(entry.type_name.clone()).or_default().push(entry);
        }
        for (type_name, entries) in by_type {
            if let Some(store) = self.store(&type_name).await {
                deliver(&store, Resynchronize { revision: loaded.revision, entries });
            }
        }
        self.status.send_modify(|status| status.seen = loaded.revision);
        Ok(())
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

/// Tells stores that their barrier is passed. Each sent a handle of its own, see [`deliver`].
fn pass(stores: Vec<Recipient<BarrierPassed>>, passed: &Result<Revision, StoreError>) {
    for store in stores {
        let _ended = store.try_send(BarrierPassed(passed.clone()));
    }
}
