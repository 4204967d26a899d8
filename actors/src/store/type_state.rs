//! What a store knows of its type: what readers see. How writes get there is the matter of its order.

use std::sync::Arc;

use pilothouse_types::object::{Key, Object, TypeName};

use super::{Freshness, StoreDeps};
use crate::event::{Change, Event, EventStub};
use crate::limits::EXPIRE_PER_TURN;
use crate::log_time::LogTime;
use crate::shared_log::past::PastReader;
use crate::snapshot::Snapshot;
use crate::trim_queue::freed_by;
use crate::window::Window;

/// The durable state of a type.
pub(super) struct TypeState {
    pub(super) type_name: TypeName,
    pub(super) snapshot: Snapshot,
    pub(super) window: Arc<Window>,
    /// Reads states from before the window; `None` if the log is this server's own.
    pub(super) past: Option<PastReader>,
    pub(super) deps: StoreDeps,
}

impl TypeState {
    /// Makes events visible: in the snapshot, then in the window. Broadcasters are not notified yet, so that they are notified once
    /// for many. `events` has all events of its last revision.
    pub(super) fn apply(&mut self, events: impl IntoIterator<Item = Event>) {
        let snapshot = &mut self.snapshot;
        let applied = events.into_iter().map(|event| {
            let object = &event.object;
            match event.change {
                Change::Removed => snapshot.objects.remove(&object.key),
                Change::Created | Change::Replaced => {
                    snapshot.objects.insert(object.key.clone(), Arc::clone(object))
                }
            };
            snapshot.revision = object.revision;
            Arc::new(event)
        });
        let dropped = self.window.append_all(applied);
        self.trim(&dropped);
    }

    /// Whether a reader who wants such a state may have this one.
    pub(super) fn satisfies(&self, freshness: Freshness) -> bool {
        match freshness {
            Freshness::Latest => false,
            Freshness::AtLeast(revision) => self.snapshot.revision >= revision,
            Freshness::Seen => true,
        }
    }

    /// What stands for a key in the log.
    pub(super) fn hidden_key(&self, key: &Key) -> Key {
        if key.is_hidden() { key.clone() } else { self.deps.encryption.hidden_key(&self.type_name, key) }
    }

    /// The hidden key of an object that cannot be decrypted, if it is the one with this key.
    pub(super) fn undecryptable(&self, key: &Key) -> Option<&Arc<Object>> {
        self.snapshot.hidden().next()?;
        self.snapshot.get(self.hidden_key(key).as_str())
    }

    /// The durable state of a key. Of an object that cannot be decrypted, the caller is the one who knows the key.
    pub(super) fn lookup(&self, key: &Key) -> Option<Arc<Object>> {
        let known = self.snapshot.get(key.as_str()).cloned();
        known.or_else(|| {
            let object = self.undecryptable(key)?;
            let reason = object.unreadable_reason()?.clone();
            Some(Arc::new(Object::unreadable(key.clone(), object.revision, reason)))
        })
    }

    /// Drops a bounded number of events that are older than the history, and trims the records that only they needed.
    pub(super) fn expire(&self, now: LogTime) -> usize {
        let dropped = self.window.forget_before(now.minus(self.deps.history), self.expiration_limit());
        self.trim(&dropped);
        dropped.len()
    }

    /// How many events may expire in one turn. An event frees at most two records. Without room for them in the trim queue it
    /// stays: see `TrimQueue`.
    pub(super) fn expiration_limit(&self) -> usize {
        EXPIRE_PER_TURN.min(self.deps.trims.room() / 2)
    }

    pub(super) fn trim(&self, dropped: &[EventStub]) {
        if !dropped.is_empty() {
            self.deps.trims.push(&self.type_name, dropped.iter().flat_map(freed_by));
        }
    }
}
