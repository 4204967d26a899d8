//! In-memory views of stored objects: one view for all workers, never older than the last acknowledged write.
//!
//! A store appends to its window before it answers. So a reader first compares a few numbers. If a window has moved, the reader
//! applies the new events to the view, which takes microseconds. If the window no longer has all events, the objects are read
//! again, and only readers during that time wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLockReadGuard};

use actix::Addr;
use pilothouse_actors::answer::Answer;
use pilothouse_actors::directory::{Directory, Find};
use pilothouse_actors::error::StoreError;
use pilothouse_actors::lock::SharedLock;
use pilothouse_actors::object::{Object, Revision, TypeName};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::store::{OpenWatch, Position};
use pilothouse_actors::window::{Change, Read, Window};

use crate::limits::READ_ANEW_ATTEMPTS;

/// Events that are read from a window at a time.
const EVENTS_PER_READ: usize = 256;

/// A view. Types are numbered by their place in the list that the view follows.
pub trait StoreIndex: Send + Sync + 'static {
    /// Adds an object, or replaces its older state.
    fn put(&mut self, of: usize, object: &Object);
    /// Removes an object.
    fn remove(&mut self, of: usize, object: &Object);
    /// Removes all objects of a type.
    fn clear(&mut self, of: usize);
}

/// One of the followed types.
struct Source {
    type_name: TypeName,
    window: Arc<Window>,
    /// The revision that the view has reached.
    at: AtomicU64,
}

/// A view that is kept up to date. See the module documentation.
pub struct LiveIndex<V> {
    directory: Addr<Directory>,
    sources: Vec<Source>,
    /// A std lock: it is held for one lookup or one change, never across a wait.
    view: SharedLock<V>,
}

impl Source {
    fn is_behind(&self) -> bool {
        self.window.latest().0 != self.at.load(Ordering::Acquire)
    }

    /// Applies new events. Answers whether the window still had all of them.
    fn catch_up(&self, of: usize, view: &mut impl StoreIndex) -> bool {
        loop {
            let (at, head) = (Revision(self.at.load(Ordering::Acquire)), self.window.latest());
            let events = match self.window.read(at, EVENTS_PER_READ) {
                Read::Events(events) => events,
                // Reading the log would take longer than reading the current objects.
                Read::Expired(_) | Read::Archived(..) => return false,
            };
            let Some(last) = events.last().map(|event| event.revision()) else {
                self.at.store(at.max(head).0, Ordering::Release);
                return true;
            };
            for event in &events {
                match event.change {
                    Change::Removed => view.remove(of, &event.object),
                    Change::Created | Change::Replaced => view.put(of, &event.object),
                }
            }
            self.at.store(last.0, Ordering::Release);
        }
    }

    /// Replaces the contents of the view by a snapshot.
    fn read_anew(&self, of: usize, view: &mut impl StoreIndex, position: &Position) {
        view.clear(of);
        position.snapshot.iter().for_each(|object| view.put(of, object));
        self.at.store(position.snapshot.revision.0, Ordering::Release);
    }
}

async fn open(directory: &Addr<Directory>, type_name: &TypeName) -> Result<Position, StoreError> {
    let found = directory.send(Find { type_name: type_name.clone() }).await;
    let store = found.map_err(|_| StoreError::Unavailable)??;
    store.send(OpenWatch { permit: Permit::none() }).await.map_err(|_| StoreError::Unavailable)?
}

impl<V: StoreIndex> LiveIndex<V> {
    /// Reads all objects of these types into an empty view.
    pub async fn open(
        directory: Addr<Directory>,
        types: impl IntoIterator<Item = TypeName>,
        mut view: V,
    ) -> Result<LiveIndex<V>, StoreError> {
        let mut sources = Vec::new();
        for (of, type_name) in types.into_iter().enumerate() {
            let position = open(&directory, &type_name).await?;
            let source = Source { type_name, window: position.window.clone(), at: AtomicU64::new(0) };
            source.read_anew(of, &mut view, &position);
            sources.push(source);
        }
        Ok(LiveIndex { directory, sources, view: SharedLock::new(view) })
    }

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
            followed.read_anew().await?;
            Ok(look(&followed.stale()))
        })
    }

    /// The view, if it can be brought up to date without waiting for a store.
    pub fn fresh(&self) -> Option<RwLockReadGuard<'_, V>> {
        self.catch_up().then(|| self.stale())
    }

    /// The view as it is, which may lack the latest writes.
    pub fn stale(&self) -> RwLockReadGuard<'_, V> {
        self.view.read()
    }

    /// Brings the view up to date. Answers whether that was possible.
    fn catch_up(&self) -> bool {
        if !self.sources.iter().any(Source::is_behind) {
            return true;
        }
        let mut view = self.view.write();
        let behind = self.sources.iter().enumerate().filter(|(_, source)| source.is_behind());
        // Apply the events of all types, even if one of them has to be read again.
        behind.fold(true, |fresh, (of, source)| source.catch_up(of, &mut *view) && fresh)
    }

    async fn read_anew(&self) -> Result<(), StoreError> {
        for _ in 0..READ_ANEW_ATTEMPTS {
            for (of, source) in self.sources.iter().enumerate().filter(|(_, source)| source.is_behind()) {
                let position = open(&self.directory, &source.type_name).await?;
                let mut view = self.view.write();
                // Another reader may have done it: then only newer events are applied.
                if !source.catch_up(of, &mut *view)
                    && position.snapshot.revision.0 > source.at.load(Ordering::Acquire)
                {
                    source.read_anew(of, &mut *view, &position);
                }
            }
            if self.catch_up() {
                return Ok(());
            }
        }
        Err(StoreError::Unavailable)
    }
}
