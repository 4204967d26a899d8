//! How stores notify broadcasters of changes.
//!
//! A store only marks its type and notifies; the events are read from the window. So notifications coalesce: however many writes
//! happen before a broadcaster gets its turn, one message waits for it, and nothing is lost.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::{Message, Recipient};
use pilothouse_types::lock::{Lock, SharedLock};
use pilothouse_types::object::TypeName;

/// Some types have changed: the receiver drains its [`ChangeNotifier`] to learn which.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Published;

/// The notifier of one broadcaster.
pub struct ChangeNotifier {
    /// A std mutex: it is held for one insertion or one swap, never across a wait.
    dirty: Lock<HashSet<TypeName>>,
    /// Whether a `Published` is on its way that will see everything marked by now.
    notified: AtomicBool,
    broadcaster: Recipient<Published>,
}

impl ChangeNotifier {
    /// A notifier that wakes this broadcaster.
    pub fn new(broadcaster: Recipient<Published>) -> ChangeNotifier {
        ChangeNotifier { dirty: Lock::default(), notified: AtomicBool::new(false), broadcaster }
    }

    /// Marks the type and wakes the broadcaster unless a wake is on its way already.
    pub fn notify(&self, type_name: &TypeName) {
        let mut dirty = self.dirty.lock();
        if !dirty.contains(type_name) {
            dirty.insert(type_name.clone());
        }
        drop(dirty);
        if !self.notified.swap(true, Ordering::SeqCst) {
            // A mailbox counts its bound per handle, and a fresh handle always has one free place. So clients that filled the
            // mailbox cannot prevent this wake, and `notified` keeps it to one at a time. Only a broadcaster that is gone refuses
            // it, and it needs no wake.
            let _gone = self.broadcaster.clone().try_send(Published);
        }
    }

    /// The types that changed since the last call.
    pub fn drain(&self) -> Vec<TypeName> {
        // In this order: a type that is marked after the flag is cleared notifies again. In the other order, a mark made in between
        // would wait for the next write.
        self.notified.store(false, Ordering::SeqCst);
        let mut dirty = self.dirty.lock();
        std::mem::take(&mut *dirty).into_iter().collect()
    }
}

/// The notifiers of all broadcasters, handed to all stores. Cheap to clone.
#[derive(Clone, Default)]
pub struct ChangeNotifiers(Arc<SharedLock<Vec<Arc<ChangeNotifier>>>>);

impl ChangeNotifiers {
    /// Adds a broadcaster's notifier. The broadcaster keeps it to drain it, and to remove it.
    pub fn add(&self, notifier: ChangeNotifier) -> Arc<ChangeNotifier> {
        let notifier = Arc::new(notifier);
        self.0.write().push(Arc::clone(&notifier));
        notifier
    }

    /// Removes a broadcaster's notifier.
    pub fn remove(&self, notifier: &Arc<ChangeNotifier>) {
        self.0.write().retain(|known| !Arc::ptr_eq(known, notifier));
    }

    /// Notifies every broadcaster of a change of the type.
    pub fn notify(&self, type_name: &TypeName) {
        for notifier in self.0.read().iter() {
            notifier.notify(type_name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use actix::{Actor, Context, Handler};

    use super::*;

    /// Counts how often it is woken.
    struct Sleeper(Arc<AtomicUsize>);

    impl Actor for Sleeper {
        type Context = Context<Sleeper>;

        fn started(&mut self, ctx: &mut Self::Context) {
            ctx.set_mailbox_capacity(1);
        }
    }

    impl Handler<Published> for Sleeper {
        type Result = ();

        fn handle(&mut self, _: Published, _: &mut Self::Context) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[actix_rt::test]
    async fn notifications_coalesce_until_drained() {
        let woken = Arc::new(AtomicUsize::new(0));
        let sleeper = Sleeper(Arc::clone(&woken)).start();
        let notifiers = ChangeNotifiers::default();
        let notifier = notifiers.add(ChangeNotifier::new(sleeper.clone().recipient()));
        let (pods, nodes) = (TypeName::new("pods"), TypeName::new("nodes"));
        for _ in 0..10 {
            notifiers.notify(&pods);
            notifiers.notify(&nodes);
        }
        // A round trip: notifications before it have been handled.
        sleeper.send(Published).await.unwrap();
        assert_eq!(woken.load(Ordering::SeqCst), 2);
        let mut dirty = notifier.drain();
        dirty.sort();
        assert_eq!(dirty, [nodes, pods.clone()]);
        assert!(notifier.drain().is_empty());

        notifiers.notify(&pods);
        sleeper.send(Published).await.unwrap();
        assert_eq!(woken.load(Ordering::SeqCst), 4);

        notifiers.remove(&notifier);
        notifier.drain();
        notifiers.notify(&pods);
        assert!(notifier.drain().is_empty());
    }

    #[actix_rt::test]
    async fn full_mailbox_does_not_lose_the_wake() {
        let woken = Arc::new(AtomicUsize::new(0));
        let sleeper = Sleeper(Arc::clone(&woken)).start();
        sleeper.send(Published).await.unwrap();
        let notifier = ChangeNotifier::new(sleeper.clone().recipient());
        // Fill the mailbox through another handle; nothing is handled until this test yields.
        let other = sleeper.clone();
        while other.try_send(Published).is_ok() {}
        notifier.notify(&TypeName::new("pods"));
        notifier.drain();
        notifier.notify(&TypeName::new("pods"));
        let before = woken.load(Ordering::SeqCst);
        sleeper.send(Published).await.unwrap();
        // One message that filled it, the two wakes, and the round trip.
        assert_eq!(woken.load(Ordering::SeqCst) - before, 4);
    }
}
