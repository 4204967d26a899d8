//! In-memory views of stored objects: one view for all workers, never older than the last acknowledged write.
//!
//! A store appends to its window before it answers. So a reader first compares a few numbers. If a window has moved, the reader
//! applies the new events to the view, which takes microseconds. If the window no longer has all events, the objects are read
//! again, and only readers during that time wait.
//!
//! A large object whose expressions have to be compiled would hold its reader, and everybody who waits for the lock of the view. So
//! it is compiled first, on a thread of its own, and readers wait for that without holding theirs. That thread keeps the turn and
//! the result: of readers who hang up in the middle the next one uses what the first has begun.
//!
//! An object that cannot be read must not be ignored: it may guard something. Every view says what it does then
//! ([`StoreIndex::fail_closed`]), and [`LiveIndexes`], which is the only way to open a view, reports all such objects.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLockReadGuard, Weak};

use actix::Addr;
use pilothouse_actors::answer::Answer;
use pilothouse_actors::directory::{Directory, Find};
use pilothouse_actors::event::Change;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::store::{OpenWatch, Position};
use pilothouse_actors::window::{Read, Window};
use pilothouse_apimachinery::schema::Registry;
use pilothouse_types::error::StoreError;
use pilothouse_types::lock::{Lock, SharedLock};
use pilothouse_types::object::{Key, Object, Revision};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::spawn_blocking;

use super::stored_object::{FollowedType, ReadError, StoredObject};
use crate::limits::{HEAVY_BYTES, READ_ANEW_ATTEMPTS};

/// Events that are read from a window at a time.
const EVENTS_PER_READ: usize = 256;

/// A view. Types are numbered by their place in the list that the view follows.
pub trait StoreIndex: Send + Sync + 'static {
    /// Whether /readyz fails while one of its objects cannot be read.
    const IS_GUARD: bool;
    /// Whether large objects are prepared before they are put into the view.
    const PREPARES: bool = false;
    /// What takes long to make of a large object: compiled expressions.
    type Prepared: Send + 'static;

    /// Adds an object, or replaces its older state. After [`ReadError::Whole`] the view is told to fail closed.
    fn put(&mut self, of: usize, object: &StoredObject<'_>) -> Result<(), ReadError>;
    /// Prepares a large object for [`StoreIndex::put_prepared`], without the lock of the view and on any thread. `None` if there
    /// is nothing to prepare, or if it cannot be read.
    fn prepare(_of: usize, _object: &StoredObject<'_>) -> Option<Self::Prepared> {
        None
    }
    /// Like [`StoreIndex::put`], with what takes long done.
    fn put_prepared(
        &mut self,
        of: usize,
        object: &StoredObject<'_>,
        _prepared: Self::Prepared,
    ) -> Result<(), ReadError> {
        self.put(of, object)
    }
    /// Removes an object, readable or not.
    fn remove(&mut self, of: usize, key: &Key);
    /// Removes all objects of a type, readable or not.
    fn clear(&mut self, of: usize);
    /// Takes note of an object of which only the key is known, in place of its older state. Whatever it could refuse is refused,
    /// and nothing is granted on its account, until it is removed or replaced.
    fn fail_closed(&mut self, of: usize, key: &Key);
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

/// A view, whatever it is of.
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
        types: impl IntoIterator<Item = FollowedType>,
        mut view: V,
    ) -> Result<Arc<LiveIndex<V>>, StoreError> {
        let (mut sources, mut unreadable) = (Vec::new(), Unreadable::new());
        for (of, followed) in types.into_iter().enumerate() {
            let position = open(&self.directory, &followed).await?;
            let source = Source { followed, window: position.window.clone(), at: AtomicU64::new(0) };
            // Nobody waits for this thread before the server has started.
            let (prepared, registry) = (&mut Prepared::new(), &*self.registry);
            let (view, unreadable) = (&mut view, &mut unreadable);
            source.read_anew(&mut Target { of, view, unreadable, prepared, registry }, &position);
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
    followed: FollowedType,
    window: Arc<Window>,
    /// The revision that the view has reached.
    at: AtomicU64,
}

/// Why objects cannot be read, by type and key.
type Unreadable = BTreeMap<(usize, Key), String>;

/// A state of an object: its type, key and revision.
type ObjectState = (usize, Key, Revision);

/// What was made of large objects; `None` if nothing was to be made.
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
    of: usize,
    followed: FollowedType,
    object: Arc<Object>,
}

impl LargeObject {
    fn state(&self) -> ObjectState {
        (self.of, self.object.key.clone(), self.object.revision)
    }

    fn prepare<V: StoreIndex>(&self, registry: &Registry) -> Option<V::Prepared> {
        let stored = StoredObject::new(&self.followed, &self.object, registry).ok()?;
        V::prepare(self.of, &stored)
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
    /// Only changed by whoever holds `view` for writing.
    unreadable: SharedLock<Unreadable>,
    /// What the next events need. Whoever prepares objects has a share in it, and adds the result whether or not the reader still
    /// waits for it.
    prepared: Arc<Lock<Prepared<V::Prepared>>>,
    /// Held while large objects are prepared, by the thread that does it: of many readers one begins it, and the others wait.
    preparing: Arc<Mutex<()>>,
}

/// What events of one type are applied to.
struct Target<'a, V: StoreIndex> {
    of: usize,
    view: &'a mut V,
    unreadable: &'a mut Unreadable,
    prepared: &'a mut Prepared<V::Prepared>,
    registry: &'a Registry,
}

impl<V: StoreIndex> Target<'_, V> {
    fn put(&mut self, followed: &FollowedType, object: &Object) {
        let type_index = self.of;
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
            && !self.prepared.contains_key(&(self.of, object.key.clone(), object.revision))
    }

    /// Drops what was prepared of states that the view has passed.
    fn forget_prepared(&mut self, passed: Revision) {
        let type_index = self.of;
        self.prepared.retain(|(other, _, revision), _| *other != type_index || *revision > passed);
    }

    fn remove(&mut self, object: &Object) {
        self.unreadable.remove(&(self.of, object.key.clone()));
        self.view.remove(self.of, &object.key);
    }

    fn clear(&mut self) {
        let type_index = self.of;
        self.unreadable.retain(|(other, _), _| *other != type_index);
        self.view.clear(type_index);
    }
}

impl Source {
    /// The revision that the view has reached.
    fn reached(&self) -> Revision {
        Revision(self.at.load(Ordering::Acquire))
    }

    fn is_behind(&self) -> bool {
        self.window.latest() != self.reached()
    }

    /// Whether the window no longer has all events that the view lacks.
    fn is_expired(&self) -> bool {
        !matches!(self.window.read(self.reached(), 0), Read::Events(_))
    }

    /// Applies new events, up to the first that is not prepared.
    fn catch_up(&self, target: &mut Target<'_, impl StoreIndex>) -> CatchUp {
        loop {
            let (at, head) = (self.reached(), self.window.latest());
            let events = match self.window.read(at, EVENTS_PER_READ) {
                Read::Events(events) => events,
                // Reading the log would take longer than reading the current objects.
                Read::Expired(_) | Read::Archived(..) => return CatchUp::Expired,
            };
            let Some(last) = events.last().map(|event| event.revision()) else {
                self.at.store(at.max(head).0, Ordering::Release);
                return CatchUp::Done;
            };
            for event in &events {
                match event.change {
                    Change::Removed => target.remove(&event.object),
                    Change::Created | Change::Replaced if target.is_unprepared(&event.object) => {
                        return CatchUp::Unprepared;
                    }
                    Change::Created | Change::Replaced => target.put(&self.followed, &event.object),
                }
                self.at.store(event.revision().0, Ordering::Release);
            }
            self.at.store(last.0, Ordering::Release);
        }
    }

    /// The large objects among the new events that the window has.
    fn new_large_objects<V: StoreIndex>(&self, of: usize) -> Vec<LargeObject> {
        let Read::Events(events) = self.window.read(self.reached(), EVENTS_PER_READ) else {
            return Vec::new();
        };
        let puts = events.iter().filter(|event| event.change != Change::Removed);
        self.large_objects::<V>(of, puts.map(|event| &event.object))
    }

    /// Those of these objects that are prepared before they are put into the view.
    fn large_objects<'a, V: StoreIndex>(
        &self,
        of: usize,
        objects: impl Iterator<Item = &'a Arc<Object>>,
    ) -> Vec<LargeObject> {
        let large = objects.filter(|object| needs_preparation::<V>(object));
        large.map(|object| LargeObject { of, followed: self.followed, object: object.clone() }).collect()
    }

    /// Replaces the contents of the view by a snapshot.
    fn read_anew(&self, target: &mut Target<'_, impl StoreIndex>, position: &Position) {
        target.clear();
        position.snapshot.iter().for_each(|object| target.put(&self.followed, object));
        self.at.store(position.snapshot.revision.0, Ordering::Release);
    }
}

/// Whether such an object is large enough to be prepared before it is put into a view, whoever has done so already.
fn needs_preparation<V: StoreIndex>(object: &Object) -> bool {
    V::PREPARES && object.bytes.len() > HEAVY_BYTES
}

async fn open(directory: &Addr<Directory>, followed: &FollowedType) -> Result<Position, StoreError> {
    let found = directory.send(Find { type_name: followed.type_name() }).await;
    let store = found.map_err(|_| StoreError::Unavailable)??;
    store.send(OpenWatch { permit: Permit::none() }).await.map_err(|_| StoreError::Unavailable)?
}

impl<V: StoreIndex> LiveIndex<V> {
    /// Evaluates `look` on the current view. An error means that it could not be brought up to date.
    pub fn look<T: 'static>(
        self: &Arc<Self>,
        look: impl Fn(&V) -> T + 'static,
    ) -> Answer<Result<T, StoreError>> {
        if let Some(view) = self.fresh() {
            return Answer::Now(Ok(look(&view)));
        }
        let followed = Arc::clone(self);
        Answer::later(async move {
            followed.bring_up_to_date().await?;
            Ok(look(&followed.stale()))
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

    /// Changes the view, as to one of the types, while nobody else sees it.
    fn change<T>(&self, of: usize, change: impl FnOnce(&mut Target<'_, V>) -> T) -> T {
        let (mut view, mut unreadable) = (self.view.write(), self.unreadable.write());
        let (view, unreadable, registry) = (&mut *view, &mut *unreadable, &*self.registry);
        change(&mut Target { of, view, unreadable, prepared: &mut self.prepared.lock(), registry })
    }

    /// Applies what can be applied at once.
    fn catch_up(&self) -> CatchUp {
        let behind = self.sources.iter().enumerate().filter(|(_, source)| source.is_behind());
        // The events of all types, even if one of them has to wait.
        behind.fold(CatchUp::Done, |all, (of, source)| {
            let caught_up = self.change(of, |target| {
                let caught_up = source.catch_up(target);
                // A reader may be preparing all objects to read them again, among them old ones: that is not for others to drop.
                if caught_up != CatchUp::Expired {
                    target.forget_prepared(source.reached());
                }
                caught_up
            });
            if all == CatchUp::Done { caught_up } else { all }
        })
    }

    /// Applies all that was written before, and waits for whatever that needs.
    async fn bring_up_to_date(&self) -> Result<(), StoreError> {
        // Whoever writes large objects all the time must not keep readers waiting: later writes are not theirs to see.
        let heads: Vec<Revision> = self.sources.iter().map(|source| source.window.latest()).collect();
        let is_reached = |(source, head): (&Source, &Revision)| source.reached() >= *head;
        let mut attempts = 0;
        loop {
            let caught_up = self.catch_up();
            if caught_up == CatchUp::Done || self.sources.iter().zip(&heads).all(is_reached) {
                return Ok(());
            }
            match caught_up {
                CatchUp::Expired if attempts < READ_ANEW_ATTEMPTS => {
                    attempts += 1;
                    self.read_snapshots().await?;
                }
                CatchUp::Expired => return Err(StoreError::Unavailable),
                // Each time the view comes nearer to the heads.
                CatchUp::Done | CatchUp::Unprepared => self.prepare_events().await?,
            }
        }
    }

    /// Reads all objects of the types of which the window no longer has all events.
    async fn read_snapshots(&self) -> Result<(), StoreError> {
        // Of many readers one reads them: the others find nothing expired when it is their turn.
        let mut turn = self.preparing.clone().lock_owned().await;
        for (of, source) in self.sources.iter().enumerate().filter(|(_, source)| source.is_expired()) {
            let position = open(&self.directory, &source.followed).await?;
            let mut large = source.large_objects::<V>(of, position.snapshot.iter());
            {
                let mut prepared = self.prepared.lock();
                // What a reader who went away has prepared is of use if the object is still the same.
                let current: HashSet<ObjectState> = large.iter().map(LargeObject::state).collect();
                prepared.retain(|state, _| state.0 != of || current.contains(state));
                large.retain(|object| !prepared.contains_key(&object.state()));
            }
            turn = self.prepare(turn, large).await?;
            self.change(of, |target| {
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
            // Whoever moves the view on holds this lock, and stops at what is not prepared. So nothing is prepared twice, or after
            // the view has passed it.
            let prepared = self.prepared.lock();
            let behind = self.sources.iter().enumerate().filter(|(_, source)| source.is_behind());
            let mut large: Vec<LargeObject> =
                behind.flat_map(|(of, source)| source.new_large_objects::<V>(of)).collect();
            large.retain(|object| !prepared.contains_key(&object.state()));
            large
        };
        self.prepare(turn, large).await.map(drop)
    }

    /// Prepares objects on another thread, and returns the turn. Until then that thread has it, and it stores the result itself: if
    /// the reader goes away, no other begins before this is done, and nobody does it again.
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
                let made = object.prepare::<V>(&registry);
                prepared.lock().insert(object.state(), made);
            }
            turn
        });
        preparing.await.map_err(|_| StoreError::Unavailable)
    }
}

impl<V: StoreIndex> ReportUnreadable for LiveIndex<V> {
    fn refresh(self: Arc<Self>) -> Answer<Result<(), StoreError>> {
        self.look(|_| ())
    }

    fn unreadable(&self) -> Vec<UnreadableObject> {
        let unreadable = self.unreadable.read();
        let report = |((of, key), reason): (&(usize, Key), &String)| {
            let resource = self.sources.get(*of)?.followed.type_name().as_str().to_owned();
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
#[path = "live_index_tests.rs"]
mod tests;
