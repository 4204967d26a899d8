//! Removes events after their TTL, as if their etcd lease had expired. Their age is that of the log, so nobody changes it by setting a
//! clock.
//!
//! Runs in every server, whichever controllers are enabled.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_apimachinery::status::Result;
use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::object::{Key, Revision, TypeName};

use crate::limits::DELETIONS_IN_FLIGHT;

use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// The name in health checks and metrics.
pub const NAME: &str = "event-expiry";
const STORE: &str = "events";

/// Removes expired events.
pub struct Expiry {
    client: Client,
    clock: Clock,
    /// The lifetime of an event.
    ttl: Duration,
    /// The revision of each event, and its expiry. An event may be due and then be updated before it is removed.
    expirations: RefCell<HashMap<Key, (Revision, Moment)>>,
}

impl Expiry {
    /// A controller with this TTL.
    pub fn new(client: Client, clock: Clock, ttl: Duration) -> Expiry {
        Expiry { client, clock, ttl, expirations: RefCell::default() }
    }

    async fn expire(&self, key: &Key) -> Result<Outcome> {
        let Ok(resource) = self.client.resource(STORE) else { return Ok(Outcome::Done) };
        let object = self.client.cached(ObjectRef::new(&resource, key)).await?;
        let expiration = self.expirations.borrow().get(key).copied();
        let Some((revision, due)) = expiration else { return Ok(Outcome::Done) };
        let Some(object) = object else {
            self.expirations.borrow_mut().remove(key);
            return Ok(Outcome::Done);
        };
        // A newer version has an expiry of its own.
        if object.revision != revision {
            return Ok(Outcome::Done);
        }
        let now = self.clock.moment();
        if now < due {
            return Ok(Outcome::RequeueAfter(due.since(now)));
        }
        self.client.expire(&TypeName::new(STORE), &object).await?;
        Ok(Outcome::Done)
    }
}

impl Controller for Expiry {
    type Key = Key;

    fn needs_leader_election(&self) -> bool {
        false
    }

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[STORE])
    }

    fn workers(&self) -> usize {
        DELETIONS_IN_FLIGHT
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        let key = &change.object.key;
        queue.forget(key);
        if change.is_deleted {
            self.expirations.borrow_mut().remove(key);
            return;
        }
        let revision = change.object.revision;
        // A list that comes again says nothing new.
        let known = self.expirations.borrow().get(key).filter(|(known, _)| *known == revision).copied();
        let due = known.map(|(_, due)| due);
        let due = due.unwrap_or_else(|| self.clock.moment().plus(self.ttl.saturating_sub(change.age)));
        self.expirations.borrow_mut().insert(key.clone(), (revision, due));
        queue.add_at(key.clone(), due);
    }

    fn reconcile(self: Rc<Self>, key: Key) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.expire(&key).await }.boxed_local()
    }
}
