//! The simplest controllers: each checks an object of one type whenever it changes.

use std::rc::Rc;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_apimachinery::status::Result;
use pilothouse_types::object::Key;

use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// A controller that looks at one object at a time.
pub trait PerObject: 'static {
    /// The types that it watches.
    const WATCHED_TYPES: &'static [&'static str];

    /// Checks one object. An error makes it retry later.
    fn sync(&self, key: &Key) -> impl Future<Output = Result<Outcome>>;
}

impl<C: PerObject> Controller for C {
    type Key = Key;

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(C::WATCHED_TYPES)
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        if !change.is_deleted {
            queue.add(change.object.key.clone());
        }
    }

    fn reconcile(self: Rc<Self>, key: Key) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.sync(&key).await }.boxed_local()
    }
}
