//! Follows a shared log, and hands its changes to the stores.
//!
//! The objects of a type that becomes known later are read when it does ([`TypeChange`]). What changes meanwhile waits here, so that
//! its store begins with one state and goes on from there.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;

use actix::Addr;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered};
use pilothouse_types::object::{Revision, TypeName};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use super::PanicGuard;
use super::deliveries::{Deliveries, Delivery, Released};
use crate::directory::{Directory, Find, Types};
use crate::fatal::Fatal;
use crate::limits::{FOLLOW_PAUSE, LOADING_BYTES, UNAPPLIED_BYTES};
use crate::shared_log::decoding::DecodedValues;
use crate::shared_log::messages::FollowStatus;
use crate::shared_log::scope::TypeScope;
use crate::shared_log::type_changes::TypeChange;
use crate::shared_log::{
    ChangeBatch, FollowError, Followed, Loaded, SharedChange, SharedEntry, SharedLog, SharedLogError,
};
use crate::store::Store;

/// What a follower needs.
pub(super) struct Follower {
    pub(super) log: Arc<dyn SharedLog>,
    /// The types whose objects are in the log.
    pub(super) scope: TypeScope,
    pub(super) directory: Addr<Directory>,
    pub(super) status: Arc<watch::Sender<FollowStatus>>,
    pub(super) fatal: Fatal,
    pub(super) type_changes: mpsc::Receiver<TypeChange>,
    /// The types that are known from the start.
    pub(super) known: HashSet<TypeName>,
}

/// The task.
struct Following {
    log: Arc<dyn SharedLog>,
    scope: TypeScope,
    directory: Addr<Directory>,
    stores: HashMap<TypeName, Addr<Store>>,
    deliveries: Deliveries,
    /// Bytes of changes that are held, or that stores have not applied yet.
    credit: Arc<Semaphore>,
    status: Arc<watch::Sender<FollowStatus>>,
    fatal: Fatal,
    /// The types that were added, or are known from the start.
    known: HashSet<TypeName>,
    loading: HashMap<TypeName, Loading>,
    loads: FuturesUnordered<BoxFuture<'static, (TypeName, Result<Loaded, SharedLogError>)>>,
}

/// A type whose objects are being read.
struct Loading {
    /// They must have been read at this revision, or later.
    min_revision: Revision,
    /// What has changed since.
    changes: Vec<SharedChange>,
    bytes: usize,
    /// Whether they are being read now, or could not be.
    is_reading: bool,
    done: Vec<oneshot::Sender<Result<(), SharedLogError>>>,
}

impl Follower {
    /// Follows the log until nobody needs its status any more.
    pub(super) async fn run(self) {
        let _guard = PanicGuard::new(&self.fatal, "the follower of the shared log");
        let mut type_changes = self.type_changes;
        let mut following = Following {
            deliveries: Deliveries::new(Arc::clone(&self.log)),
            log: self.log,
            scope: self.scope,
            directory: self.directory,
            stores: HashMap::new(),
            credit: Arc::new(Semaphore::new(UNAPPLIED_BYTES)),
            status: self.status,
            fatal: self.fatal,
            known: self.known,
            loading: HashMap::new(),
            loads: FuturesUnordered::new(),
        };
        let (status, fatal) = (Arc::clone(&following.status), following.fatal.clone());
        let mut changes = following.log.follow(following.seen());
        loop {
            tokio::select! {
                () = status.closed() => return,
                _ = fatal.wait() => return,
                followed = changes.next() => match followed {
                    Some(Ok(Followed::Changes(batch))) => following.dispatch(batch).await,
                    Some(Ok(Followed::Connected)) => following.set_disconnected(None),
                    Some(Ok(Followed::Disconnected(error))) => following.set_disconnected(Some(error)),
                    failed => match following.recover(failed.and_then(Result::err)).await {
                        Some(stream) => changes = stream,
                        None => return,
                    },
                },
                // The log learns of a type between two batches, so none of its changes is missed.
                Some(change) = type_changes.recv() => following.change_types(change),
                Some((type_name, loaded)) = following.loads.next() => {
                    following.finish_load(type_name, loaded).await;
                }
                Some(released) = following.deliveries.next() => following.send(released).await,
            }
        }
    }
}

impl Following {
    fn seen(&self) -> Revision {
        self.status.borrow().seen
    }

    fn set_disconnected(&self, disconnected: Option<SharedLogError>) {
        self.status.send_modify(|status| status.disconnected = disconnected);
    }

    /// Hands changes to their stores.
    async fn dispatch(&mut self, batch: ChangeBatch) {
        let mut by_type: HashMap<TypeName, Vec<SharedChange>> = HashMap::new();
        for change in batch.changes {
            by_type.entry(change.type_name.clone()).or_default().push(change);
        }
        for (type_name, changes) in by_type {
            match self.loading.get_mut(&type_name) {
                Some(loading) => loading.keep(changes, batch.revision),
                None => {
                    let credit = self.acquire_credit(&changes).await;
                    let delivery = Delivery::Changes { revision: batch.revision, changes, credit };
                    self.hand_over(&type_name, delivery).await;
                }
            }
        }
        self.status.send_modify(|status| {
            status.seen = status.seen.max(batch.revision);
            status.disconnected = None;
        });
    }

    /// Waits until there is room for changes.
    async fn acquire_credit(&mut self, changes: &[SharedChange]) -> Option<OwnedSemaphorePermit> {
        let bytes: usize = changes.iter().map(SharedChange::weight).sum();
        // A batch that exceeds the credit alone takes all of it.
        let permits = u32::try_from(bytes.min(UNAPPLIED_BYTES)).unwrap_or(u32::MAX);
        let mut credit = pin!(Arc::clone(&self.credit).acquire_many_owned(permits));
        loop {
            tokio::select! {
                credit = &mut credit => return credit.ok(),
                // Else what is held would keep its credit for ever.
                Some(released) = self.deliveries.next() => self.send(released).await,
            }
        }
    }

    /// Hands something to a store, perhaps later.
    async fn hand_over(&mut self, type_name: &TypeName, delivery: Delivery) {
        match self.deliveries.enter(type_name, delivery) {
            Some(delivery) => {
                if let Some(store) = self.store(type_name).await {
                    delivery.send(&store, DecodedValues::default());
                }
            }
            // Before the status says that everything up to it has been handed over.
            None => self.status.send_modify(|status| {
                status.held.entry(type_name.clone()).or_insert(status.seen);
            }),
        }
    }

    /// Hands over what was held.
    async fn send(&mut self, released: Released) {
        let Released { type_name, deliveries, is_all } = released;
        let Some(store) = self.store(&type_name).await else { return };
        let mut revision = None;
        for (delivery, decoded) in deliveries {
            revision = Some(delivery.revision());
            delivery.send(&store, decoded);
        }
        self.status.send_modify(|status| {
            match revision.filter(|_| !is_all) {
                Some(revision) => status.held.insert(type_name, revision),
                None => status.held.remove(&type_name),
            };
        });
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

    fn change_types(&mut self, change: TypeChange) {
        let (type_name, register, done) = match change {
            TypeChange::Add { type_name, register, done } => (type_name, register, done),
            TypeChange::Remove { type_name, unregister, done } => {
                unregister();
                self.known.remove(&type_name);
                self.loading.remove(&type_name);
                self.stores.remove(&type_name);
                self.deliveries.forget(&type_name);
                self.status.send_modify(|status| {
                    status.held.remove(&type_name);
                });
                let _gone = done.send(());
                return;
            }
        };
        let min_revision = self.seen();
        if !register() {
            // Whoever waits is told that it was dropped.
            drop(done);
        } else if let Some(loading) = self.loading.get_mut(&type_name) {
            loading.done.push(done);
            if !std::mem::replace(&mut loading.is_reading, true) {
                self.start_load(type_name);
            }
        } else if self.known.contains(&type_name) {
            if let Some(done) = self.deliveries.when_adopted(&type_name, done) {
                let _gone = done.send(Ok(()));
            }
        } else {
            let (changes, bytes, is_reading) = (Vec::new(), 0, true);
            let loading = Loading { min_revision, changes, bytes, is_reading, done: vec![done] };
            self.loading.insert(type_name.clone(), loading);
            self.start_load(type_name);
        }
    }

    fn start_load(&mut self, type_name: TypeName) {
        let loaded = self.log.load_type(&type_name);
        self.loads.push(Box::pin(async move { (type_name, loaded.await) }));
    }

    /// The objects of a type have been read.
    async fn finish_load(&mut self, type_name: TypeName, loaded: Result<Loaded, SharedLogError>) {
        let Some(mut loading) = self.loading.remove(&type_name) else { return };
        let loaded = match loaded {
            // Changes after it are missing: they did not fit, or were compacted.
            Ok(loaded) if loaded.revision < loading.min_revision => {
                self.loading.insert(type_name.clone(), loading);
                return self.start_load(type_name);
            }
            Ok(loaded) => loaded,
            Err(error) => {
                for done in loading.done.drain(..) {
                    let _gone = done.send(Err(error.clone()));
                }
                // Its changes are kept from the store until somebody asks again.
                loading.forget(self.seen());
                loading.is_reading = false;
                self.loading.insert(type_name, loading);
                return;
            }
        };
        let Loaded { revision, entries } = loaded;
        let Loading { changes, done, .. } = loading;
        self.hand_over(&type_name, Delivery::Adoption { revision, entries, changes, done }).await;
        self.known.insert(type_name);
    }

    /// Reads everything anew if the changes since the last batch are no longer known, and follows from there. `None` if nothing helps.
    async fn recover(
        &mut self,
        error: Option<FollowError>,
    ) -> Option<BoxStream<'static, Result<Followed, FollowError>>> {
        match error {
            Some(error @ FollowError::WentBack(_)) => {
                self.went_back(&error);
                return None;
            }
            Some(FollowError::Compacted) => {
                let reason = "its changes were compacted before they were seen, so it is read anew";
                self.set_disconnected(Some(SharedLogError::Unavailable(reason.into())));
                while let Err(error) = self.resynchronize().await {
                    tracing::warn!(%error, "the shared log cannot be read");
                    self.set_disconnected(Some(error));
                    tokio::time::sleep(FOLLOW_PAUSE).await;
                }
            }
            None => tokio::time::sleep(FOLLOW_PAUSE).await,
        }
        (!self.fatal.is_raised()).then(|| self.log.follow(self.seen()))
    }

    fn went_back(&self, error: &FollowError) {
        self.fatal.raise(format!("{error}: all clients have to list again"));
    }

    async fn resynchronize(&mut self) -> Result<(), SharedLogError> {
        let loaded = self.log.load().await?;
        if loaded.revision < self.seen() {
            self.went_back(&FollowError::WentBack(loaded.revision));
            return Ok(());
        }
        // Also those that nothing has changed since the start: all of their objects may be gone.
        let known = self.directory.send(Types).await.unwrap_or_default();
        let known = known.into_iter().filter(|name| self.scope.has(name));
        let mut by_type: HashMap<TypeName, Vec<SharedEntry>> =
            known.chain(self.stores.keys().cloned()).map(|name| (name, Vec::new())).collect();
        for entry in loaded.entries {
            by_type.entry(entry.type_name.clone()).or_default().push(entry);
        }
        for (type_name, entries) in by_type {
            match self.loading.get_mut(&type_name) {
                Some(loading) => loading.forget(loaded.revision),
                None => {
                    let revision = loaded.revision;
                    self.hand_over(&type_name, Delivery::Resynchronization { revision, entries }).await;
                }
            }
        }
        self.status.send_modify(|status| {
            status.seen = loaded.revision;
            status.disconnected = None;
        });
        Ok(())
    }
}

impl Loading {
    /// Keeps changes until the objects are here.
    fn keep(&mut self, changes: Vec<SharedChange>, revision: Revision) {
        self.bytes += changes.iter().map(SharedChange::weight).sum::<usize>();
        self.changes.extend(changes);
        if self.bytes > LOADING_BYTES {
            self.forget(revision);
        }
    }

    /// Forgets what has changed up to a revision: the objects must be read at that, or later.
    fn forget(&mut self, through: Revision) {
        self.min_revision = self.min_revision.max(through);
        (self.changes, self.bytes) = (Vec::new(), 0);
    }
}
