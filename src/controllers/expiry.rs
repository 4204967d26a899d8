//! Removes events after their TTL, as if their etcd lease had expired.
//!
//! Runs in every server, whichever controllers are enabled.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::time;
use pilothouse_types::clock::{Clock, Moment, Timestamp};
use pilothouse_types::object::{Key, Revision, TypeName};
use serde::Deserialize;

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

/// The timestamps of an event.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Times {
    metadata: Created,
    event_time: Option<String>,
    first_timestamp: Option<String>,
    last_timestamp: Option<String>,
    deprecated_last_timestamp: Option<String>,
    series: Option<Series>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Created {
    creation_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Series {
    last_observed_time: Option<String>,
}

/// The last write of an event from before the start, as far as its timestamps tell; never in the future.
fn last_write(event: &[u8], now: Timestamp) -> Timestamp {
    let times: Times = serde_json::from_slice(event).unwrap_or_default();
    let all = [
        times.metadata.creation_timestamp,
        times.event_time,
        times.first_timestamp,
        times.last_timestamp,
        times.deprecated_last_timestamp,
        times.series.and_then(|series| series.last_observed_time),
    ];
    let seconds = all.into_iter().flatten().filter_map(|text| time::parse_seconds(&text).ok()).max();
    seconds.filter(|seconds| *seconds >= 0).map_or(now, Timestamp::from_unix).min(now)
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
        // An event that was just written lives for the whole time, whatever the wall clock says meanwhile. Of one from before the start
        // nothing but the times in it is known.
        let age = match change.time {
            Some(_) => Duration::ZERO,
            None => self.clock.now().since(last_write(&change.object.bytes, self.clock.now())),
        };
        let due = self.clock.moment().plus(self.ttl.saturating_sub(age));
        self.expirations.borrow_mut().insert(key.clone(), (change.object.revision, due));
        queue.add_at(key.clone(), due);
    }

    fn reconcile(self: Rc<Self>, key: Key) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.expire(&key).await }.boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_expiry_counts_from_the_newest_timestamp() {
        let now = Timestamp(2_000_000_000_000_000);
        let last_write_of = |text: &str| last_write(text.as_bytes(), now).seconds();
        let old = r#""eventTime":"1970-01-01T00:00:05.000000Z","firstTimestamp":null"#;
        assert_eq!(
            last_write_of(&format!(r#"{{"metadata":{{"creationTimestamp":"1970-01-01T00:01:00Z"}},{old}}}"#)),
            60
        );
        assert_eq!(last_write_of(&format!("{{{old}}}")), 5);
        let series = r#"{"series":{"count":2,"lastObservedTime":"1970-01-01T00:00:09.500000Z"}}"#;
        assert_eq!(last_write_of(series), 9);
        assert_eq!(last_write_of(r#"{"lastTimestamp":"2999-01-01T00:00:00Z"}"#), now.seconds());
        assert_eq!(last_write_of("{}"), now.seconds());
    }
}
