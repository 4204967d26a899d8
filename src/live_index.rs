//! In-memory views of stored objects: one view for all workers, never older than the last acknowledged write.
//!
//! A store appends to its window before it answers. So a reader first compares a few numbers. If a window has moved, the reader
//! applies the new events to the view, which takes microseconds. If the window no longer has all events, the objects are read
//! again, and only readers during that time wait.
//!
//! Compiling the expressions of a large object would block its reader and everybody who waits for the lock of the view. So it is
//! compiled first, on a thread of its own, and readers await that thread. The thread holds the turn and stores the result: if a
//! reader is cancelled, the next one uses what the first has started.
//!
//! An object that cannot be decoded must not be ignored: it may restrict something. Every view defines how it fails closed
//! ([`StoreIndex::fail_closed`]), and [`LiveIndexes`], which is the only way to open a view, reports all such objects.

pub(crate) mod defined_type;
pub(crate) mod stored_object;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLockReadGuard, Weak};

use actix::Addr;
use pilothouse_actors::answer::Answer;
use pilothouse_actors::directory::{Directory, Find};
use pilothouse_actors::event::Change;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::store::{Freshness, OpenWatch, Position};
use pilothouse_actors::window::{Read, Window};
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::stored_type::StoredType;
use pilothouse_types::error::StoreError;
use pilothouse_types::lock::{Lock, SharedLock};
use pilothouse_types::object::{Key, Object, Revision};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::spawn_blocking;

use self::stored_object::{ReadError, StoredObject};
use crate::limits::{HEAVY_BYTES, INDEX_READ_ATTEMPTS};

/// Events that are read from a window at a time.
const EVENTS_PER_READ: usize = 256;

/// A view. Types are numbered by their place in the list that the view follows.
pub trait StoreIndex: Send + Sync + 'static {
    /// Whether /readyz fails while one of its objects cannot be read.
    const IS_GUARD: bool;
    /// Whether large objects are prepared before they are put into the view.
    const PREPARES: bool = false;
    /// The expensive part of a large object: its compiled expressions.
    type Prepared: Send + 'static;

    /// Adds an object, or replaces its older state. After [`ReadError::Whole`] [`StoreIndex::fail_closed`] is called.
    fn put(&mut self, type_index: usize, object: &StoredObject<'_>) -> Result<(), ReadError>;
    /// Prepares a large object for [`StoreIndex::put_prepared`], without the lock of the view and on any thread. `None` if there
    /// is nothing to prepare, or if it cannot be read.
    fn prepare(_type_index: usize, _object: &StoredObject<'_>) -> Option<Self::Prepared> {
        None
    }
    /// Like [`StoreIndex::put`], with the expensive part already done.
    fn put_prepared(
        &mut self,
        type_index: usize,
        object: &StoredObject<'_>,
        _prepared: Self::Prepared,
    ) -> Result<(), ReadError> {
        self.put(type_index, object)
    }
    /// Removes an object, including one that failed closed.
    fn remove(&mut self, type_index: usize, key: &Key);
    /// Removes all objects of a type, including those that failed closed.
    fn clear(&mut self, type_index: usize);
    /// Replaces an object by one of which only the key is known. Until it is removed or replaced, the view denies whatever the object
    /// could deny and grants nothing because of it.
    fn fail_closed(&mut self, type_index: usize, key: &Key);
}

/// An object that a view follows and cannot read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableObject {
    /// The resource and group, `roles.rbac.authorization.k8s.io`.
    pub resource: String,
    /// The key of the object.
    pub key: Key,
    /// Why it cannot be read.
    pub reason: String,
    /// Whether /readyz fails over it.
    pub is_guard: bool,
}

/// Opens views, and knows which objects they cannot read.
pub struct LiveIndexes {
    directory: Addr<Directory>,
    registry: Arc<Registry>,
    opened: SharedLock<Vec<Weak<dyn ReportUnreadable>>>,
}

/// A view of any type, as seen by the report of unreadable objects.
trait ReportUnreadable: Send + Sync {
    /// Brings the view up to date.
    fn refresh(self: Arc<Self>) -> Answer<Result<(), StoreError>>;
    fn unreadable(&self) -> Vec<UnreadableObject>;
}

impl LiveIndexes {
    /// Views of the stores of this directory.
    pub fn new(directory: Addr<Directory>, registry: Arc<Registry>) -> LiveIndexes {
        LiveIndexes { directory, registry, opened: SharedLock::default() }
    }

    /// Reads all objects of these types into an empty view.
    pub async fn open<V: StoreIndex>(
        &self,
        types: impl IntoIterator<Item = StoredType>,
        mut view: V,
    ) -> Result<Arc<LiveIndex<V>>, StoreError> {
        let (mut sources, mut unreadable) = (Vec::new(), Unreadable::new());
        for (type_index, followed) in types.into_iter().enumerate() {
            let position = open(&self.directory, &followed).await?;
            let source = Source { followed, window: position.window.clone(), revision: AtomicU64::new(0) };
            // At start this thread serves no requests yet, so large objects are not prepared elsewhere.
            let (prepared, registry) = (&mut Prepared::new(), &*self.registry);
            let (view, unreadable) = (&mut view, &mut unreadable);
            source.read_anew(&mut Target { type_index, view, unreadable, prepared, registry }, &position);
            sources.push(source);
        }
        let index = Arc::new(LiveIndex {
            directory: self.directory.clone(),
            registry: self.registry.clone(),
            sources,
            view: SharedLock::new(view),
            unreadable: SharedLock::new(unreadable),
            prepared: Arc::default(),
            preparing: Arc::default(),
        });
        let opened: Arc<dyn ReportUnreadable> = index.clone();
        self.opened.write().push(Arc::downgrade(&opened));
        Ok(index)
    }

    /// The objects that the views follow and cannot read, each once.
    pub async fn unreadable(&self) -> Vec<UnreadableObject> {
        let opened: Vec<_> = self.opened.read().iter().filter_map(Weak::upgrade).collect();
        for index in &opened {
            // If a store does not answer, the last known state counts; other checks report the store.
            if let Answer::Later(refreshed) = index.clone().refresh() {
                let _unavailable = refreshed.await;
            }
        }
        let mut all: Vec<UnreadableObject> = opened.iter().flat_map(|index| index.unreadable()).collect();
        // Guards first: several views may follow a type, and it is a guard if it is one to any of them.
        all.sort_by(|a, b| (&a.resource, &a.key, !a.is_guard).cmp(&(&b.resource, &b.key, !b.is_guard)));
        all.dedup_by(|a, b| (&a.resource, &a.key) == (&b.resource, &b.key));
        all
    }
}

/// One of the followed types.
struct Source {
    followed: StoredType,
    window: Arc<Window>,
    /// The revision that the view has reached.
    revision: AtomicU64,
}

/// Why objects cannot be read, by type and key.
type Unreadable = BTreeMap<(usize, Key), String>;

/// A state of an object: its type, key and revision.
type ObjectState = (usize, Key, Revision);

/// Prepared large objects; `None` if there was nothing to prepare.
type Prepared<P> = HashMap<ObjectState, Option<P>>;

/// How far a view could be brought up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CatchUp {
    /// Up to the latest write.
    Done,
    /// Up to events that the window no longer has: the objects have to be read again.
    Expired,
    /// Up to a large object, which has to be prepared first.
    Unprepared,
}

/// A large object, which is prepared before it is put into a view.
struct LargeObject {
    type_index: usize,
    followed: StoredType,
    object: Arc<Object>,
}

impl LargeObject {
    fn state(&self) -> ObjectState {
        (self.type_index, self.object.key.clone(), self.object.revision)
    }

    fn prepare<V: StoreIndex>(&self, registry: &Registry) -> Option<V::Prepared> {
        let stored = StoredObject::new(&self.followed, &self.object, registry).ok()?;
        V::prepare(self.type_index, &stored)
    }
}

/// The right to prepare objects for a view, which one reader has at a time.
type PreparingTurn = OwnedMutexGuard<()>;

/// A view that is kept up to date. See the module documentation.
pub struct LiveIndex<V: StoreIndex> {
    directory: Addr<Directory>,
    registry: Arc<Registry>,
    sources: Vec<Source>,
    /// A std lock: it is held for one lookup or one change, never across a wait.
    view: SharedLock<V>,
    /// Changed only while `view` is locked for writing.
    unreadable: SharedLock<Unreadable>,
    /// Prepared objects for the next events. Shared with the preparing thread, which adds its result even if the reader has gone.
    prepared: Arc<Lock<Prepared<V::Prepared>>>,
    /// Held while large objects are prepared, by the thread that does it: of many readers one begins it, and the others wait.
    preparing: Arc<Mutex<()>>,
}

/// The parts of a view that events of one type are applied to.
struct Target<'a, V: StoreIndex> {
    type_index: usize,
    view: &'a mut V,
    unreadable: &'a mut Unreadable,
    prepared: &'a mut Prepared<V::Prepared>,
    registry: &'a Registry,
}

impl<V: StoreIndex> Target<'_, V> {
    fn put(&mut self, followed: &StoredType, object: &Object) {
        let type_index = self.type_index;
        let prepared = self.prepared.remove(&(type_index, object.key.clone(), object.revision)).flatten();
        let put = StoredObject::new(followed, object, self.registry).and_then(|stored| match prepared {
            Some(prepared) => self.view.put_prepared(type_index, &stored, prepared),
            None => self.view.put(type_index, &stored),
        });
        let place = (type_index, object.key.clone());
        let Err(error) = put else {
            self.unreadable.remove(&place);
            return;
        };
        if matches!(error, ReadError::Whole(_)) {
            self.view.fail_closed(type_index, &object.key);
        }
        let reason = error.to_string();
        if self.unreadable.get(&place) != Some(&reason) {
            let resource = followed.type_name();
            tracing::error!(%resource, object = ?object.key, reason, "an object cannot be read; what depends on it fails closed");
        }
        self.unreadable.insert(place, reason);
    }

    /// Whether an object has yet to be prepared.
    fn is_unprepared(&self, object: &Object) -> bool {
        needs_preparation::<V>(object)
            && !self.prepared.contains_key(&(self.type_index, object.key.clone(), object.revision))
    }

    /// Drops what was prepared of states that the view has passed.
    fn forget_prepared(&mut self, passed: Revision) {
        let type_index = self.type_index;
        self.prepared.retain(|(other, _, revision), _| *other != type_index || *revision > passed);
    }

    fn remove(&mut self, object: &Object) {
        self.unreadable.remove(&(self.type_index, object.key.clone()));
        self.view.remove(self.type_index, &object.key);
    }

    fn clear(&mut self) {
        let type_index = self.type_index;
        self.unreadable.retain(|(other, _), _| *other != type_index);
        self.view.clear(type_index);
    }
}

impl Source {
    /// The revision that the view has reached.
    fn reached(&self) -> Revision {
        Revision(self.revision.load(Ordering::Acquire))
    }

    fn is_behind(&self) -> bool {
        self.window.head() > self.reached()
    }

    /// Whether the window no longer has all events that the view lacks.
    fn is_expired(&self) -> bool {
        !matches!(self.window.read(self.reached(), 0), Read::Events(_))
    }

    /// Applies new events, up to the first that is not prepared.
    fn catch_up(&self, target: &mut Target<'_, impl StoreIndex>) -> CatchUp {
        loop {
            let (revision, head) = (self.reached(), self.window.head());
            let events = match self.window.read(revision, EVENTS_PER_READ) {
                Read::Events(events) => events,
                // Reading the log would take longer than reading the current objects.
                Read::Expired(_) | Read::Archived(..) => return CatchUp::Expired,
            };
            let Some(last) = events.last().map(|event| event.revision()) else {
                self.revision.store(revision.max(head).0, Ordering::Release);
                return CatchUp::Done;
            };
            let mut current = revision;
            for event in &events {
                // A shared log may change several objects at one revision: it is reached with the last of them.
                if event.revision() > current {
                    self.revision.store(current.0, Ordering::Release);
                    current = event.revision();
                }
                match event.change {
                    Change::Removed => target.remove(&event.object),
                    Change::Created | Change::Replaced if target.is_unprepared(&event.object) => {
                        return CatchUp::Unprepared;
                    }
                    Change::Created | Change::Replaced => target.put(&self.followed, &event.object),
                }
            }
            self.revision.store(last.0, Ordering::Release);
        }
    }

    /// The large objects among the new events that the window has.
    fn new_large_objects<V: StoreIndex>(&self, type_index: usize) -> Vec<LargeObject> {
        let Read::Events(events) = self.window.read(self.reached(), EVENTS_PER_READ) else {
            return Vec::new();
        };
        let puts = events.iter().filter(|event| event.change != Change::Removed);
        self.large_objects::<V>(type_index, puts.map(|event| &event.object))
    }

    /// Those of these objects that are prepared before they are put into the view.
    fn large_objects<'a, V: StoreIndex>(
        &self,
        type_index: usize,
        objects: impl Iterator<Item = &'a Arc<Object>>,
    ) -> Vec<LargeObject> {
        let large = objects.filter(|object| needs_preparation::<V>(object));
        large
            .map(|object| LargeObject { type_index, followed: self.followed, object: object.clone() })
            .collect()
    }

    /// Replaces the contents of the view by a snapshot.
    fn read_anew(&self, target: &mut Target<'_, impl StoreIndex>, position: &Position) {
        target.clear();
        position.snapshot.iter().for_each(|object| target.put(&self.followed, object));
        self.revision.store(position.snapshot.revision.0, Ordering::Release);
    }
}

/// Whether an object is large enough to be prepared before it is put into a view, prepared already or not.
fn needs_preparation<V: StoreIndex>(object: &Object) -> bool {
    V::PREPARES && object.bytes.len() > HEAVY_BYTES
}

async fn open(directory: &Addr<Directory>, followed: &StoredType) -> Result<Position, StoreError> {
    let lookup = directory.send(Find { type_name: followed.type_name() }).await;
    let store = lookup.map_err(|_| StoreError::Unavailable)??;
    store
        .send(OpenWatch { freshness: Freshness::Seen, permit: Permit::none() })
        .await
        .map_err(|_| StoreError::Unavailable)?
}

impl<V: StoreIndex> LiveIndex<V> {
    /// Evaluates `read` on the current view. An error means that it could not be brought up to date.
    pub fn query<T: 'static>(
        self: &Arc<Self>,
        read: impl Fn(&V) -> T + 'static,
    ) -> Answer<Result<T, StoreError>> {
        if let Some(view) = self.fresh() {
            return Answer::Now(Ok(read(&view)));
        }
        let followed = Arc::clone(self);
        Answer::later(async move {
            followed.bring_up_to_date().await?;
            Ok(read(&followed.stale()))
        })
    }

    /// The view, if it can be brought up to date without waiting for a store.
    pub fn fresh(&self) -> Option<RwLockReadGuard<'_, V>> {
        (self.catch_up() == CatchUp::Done).then(|| self.stale())
    }

    /// The view as it is, which may lack the latest writes.
    pub fn stale(&self) -> RwLockReadGuard<'_, V> {
        self.view.read()
    }

    /// Changes the view for one of its types under the write lock.
    fn change<T>(&self, type_index: usize, change: impl FnOnce(&mut Target<'_, V>) -> T) -> T {
        let (mut view, mut unreadable) = (self.view.write(), self.unreadable.write());
        let (view, unreadable, registry) = (&mut *view, &mut *unreadable, &*self.registry);
        change(&mut Target { type_index, view, unreadable, prepared: &mut self.prepared.lock(), registry })
    }

    /// Applies the events that need no waiting.
    fn catch_up(&self) -> CatchUp {
        let behind = self.sources.iter().enumerate().filter(|(_, source)| source.is_behind());
        // The events of all types, even if one of them has to wait.
        behind.fold(CatchUp::Done, |all, (type_index, source)| {
            let caught_up = self.change(type_index, |target| {
                let caught_up = source.catch_up(target);
                // Another reader may be preparing all objects for a new snapshot, among them old ones: do not drop those.
                if caught_up != CatchUp::Expired {
                    target.forget_prepared(source.reached());
                }
                caught_up
            });
            if all == CatchUp::Done { caught_up } else { all }
        })
    }

    /// Applies all earlier writes, waiting for snapshots and preparation as needed.
    async fn bring_up_to_date(&self) -> Result<(), StoreError> {
        // Only writes up to now: a stream of large writes must not keep readers waiting.
        let heads: Vec<Revision> = self.sources.iter().map(|source| source.window.head()).collect();
        let is_reached = |(source, head): (&Source, &Revision)| source.reached() >= *head;
        let mut attempts = 0;
        loop {
            let caught_up = self.catch_up();
            if caught_up == CatchUp::Done || self.sources.iter().zip(&heads).all(is_reached) {
                return Ok(());
            }
            match caught_up {
                CatchUp::Expired if attempts < INDEX_READ_ATTEMPTS => {
                    attempts += 1;
                    self.read_snapshots().await?;
                }
                CatchUp::Expired => return Err(StoreError::Unavailable),
                // Each pass brings the view nearer to the heads.
                CatchUp::Done | CatchUp::Unprepared => self.prepare_events().await?,
            }
        }
    }

    /// Reads all objects of the types of which the window no longer has all events.
    async fn read_snapshots(&self) -> Result<(), StoreError> {
        // One of many readers reads them: the others find nothing expired when it is their turn.
        let mut turn = self.preparing.clone().lock_owned().await;
        for (type_index, source) in self.sources.iter().enumerate().filter(|(_, source)| source.is_expired())
        {
            let position = open(&self.directory, &source.followed).await?;
            let mut large = source.large_objects::<V>(type_index, position.snapshot.iter());
            {
                let mut prepared = self.prepared.lock();
                // Objects that a cancelled reader has prepared are reused if they have not changed.
                let current: HashSet<ObjectState> = large.iter().map(LargeObject::state).collect();
                prepared.retain(|state, _| state.0 != type_index || current.contains(state));
                large.retain(|object| !prepared.contains_key(&object.state()));
            }
            turn = self.prepare(turn, large).await?;
            self.change(type_index, |target| {
                // The view may have been less far behind than it seemed: then only newer events are applied.
                if source.catch_up(target) == CatchUp::Expired
                    && position.snapshot.revision > source.reached()
                {
                    source.read_anew(target, &position);
                }
                target.forget_prepared(source.reached());
            });
        }
        Ok(())
    }

    /// Prepares the large objects of new events.
    async fn prepare_events(&self) -> Result<(), StoreError> {
        let turn = self.preparing.clone().lock_owned().await;
        let large = {
            // Events are applied under this lock, up to the first unprepared object. So nothing is prepared twice, or after the view
            // has passed it.
            let prepared = self.prepared.lock();
            let behind = self.sources.iter().enumerate().filter(|(_, source)| source.is_behind());
            let mut large: Vec<LargeObject> =
                behind.flat_map(|(type_index, source)| source.new_large_objects::<V>(type_index)).collect();
            large.retain(|object| !prepared.contains_key(&object.state()));
            large
        };
        self.prepare(turn, large).await.map(drop)
    }

    /// Prepares objects on another thread, and returns the turn. The thread holds the turn and stores the result itself: if the
    /// reader is cancelled, the next one waits for the thread and repeats nothing.
    async fn prepare(
        &self,
        turn: PreparingTurn,
        large: Vec<LargeObject>,
    ) -> Result<PreparingTurn, StoreError> {
        if large.is_empty() {
            return Ok(turn);
        }
        let (prepared, registry) = (self.prepared.clone(), self.registry.clone());
        let preparing = spawn_blocking(move || {
            for object in large {
                let result = object.prepare::<V>(&registry);
                prepared.lock().insert(object.state(), result);
            }
            turn
        });
        preparing.await.map_err(|_| StoreError::Unavailable)
    }
}

impl<V: StoreIndex> ReportUnreadable for LiveIndex<V> {
    fn refresh(self: Arc<Self>) -> Answer<Result<(), StoreError>> {
        self.query(|_| ())
    }

    fn unreadable(&self) -> Vec<UnreadableObject> {
        let unreadable = self.unreadable.read();
        let report = |((type_index, key), reason): (&(usize, Key), &String)| {
            let resource = self.sources.get(*type_index)?.followed.type_name().as_str().to_owned();
            Some(UnreadableObject {
                resource,
                key: key.clone(),
                reason: reason.clone(),
                is_guard: V::IS_GUARD,
            })
        };
        unreadable.iter().filter_map(report).collect()
    }
}

#[cfg(test)]
mod tests;
