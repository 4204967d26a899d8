//! The leases of etcd by which events expire, as in the reference: every write of an event puts it under a lease that outlives it a
//! little, and etcd deletes it with the lease.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pilothouse_etcd::messages::LeaseGrantRequest;
use pilothouse_etcd::{Client, Error};
use pilothouse_etcd_layout::expiry_leases::{ExpiryLeases, LeaseChoice};
use pilothouse_types::clock::Clock;
use pilothouse_types::object::TypeName;
use tokio::sync::Mutex;

use crate::meter::Meter;

/// The type of events: those of the core group and of `events.k8s.io` are the same objects.
const EVENTS: &str = "events";

/// The leases that this server uses. See the module documentation.
pub(crate) struct EventLeases {
    /// How long an event lives.
    ttl_seconds: u64,
    clock: Clock,
    meter: Meter,
    /// How often etcd was asked for a lease.
    requests: AtomicU64,
    /// Locked while etcd is asked, so that it is asked once for all who come meanwhile.
    state: Mutex<State>,
}

struct State {
    leases: ExpiryLeases,
    /// Which request has failed last, counted from one, and why.
    failed: Option<(u64, Error)>,
}

impl EventLeases {
    /// Leases for events that live so long. `None` if they live forever: the reference counts whole seconds, and takes zero for that.
    pub(crate) fn new(
        ttl: Option<Duration>,
        reuse: Duration,
        clock: Clock,
        meter: Meter,
    ) -> Option<EventLeases> {
        let ttl_seconds = ttl.map(|ttl| ttl.as_secs()).filter(|seconds| *seconds > 0)?;
        let state = Mutex::new(State { leases: ExpiryLeases::new(reuse), failed: None });
        Some(EventLeases { ttl_seconds, clock, meter, requests: AtomicU64::new(0), state })
    }

    /// Whether objects of this type expire.
    pub(crate) fn is_of_events(type_name: &TypeName) -> bool {
        type_name.as_str() == EVENTS
    }

    /// The lease of an event that is written now.
    pub(crate) async fn lease(&self, client: &Client) -> Result<i64, Error> {
        let requests_before = self.requests.load(Ordering::SeqCst);
        let mut state = self.state.lock().await;
        // Before etcd is asked, so that no lease is believed to last longer than it does.
        let began = self.clock.moment();
        let lease_seconds = match state.leases.choose(self.ttl_seconds, began) {
            LeaseChoice::Reuse(id) => return Ok(id),
            LeaseChoice::Grant(seconds) => seconds,
        };
        // Whoever waited for an answer has it: if all asked one after another, the last would wait as many timeouts as there are writers.
        if let Some((number, error)) = &state.failed
            && *number > requests_before
        {
            return Err(error.clone());
        }
        let number = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
        let request = LeaseGrantRequest { ttl: i64::try_from(lease_seconds).unwrap_or(i64::MAX), id: 0 };
        match client.lease_grant(request).await {
            Ok(lease) => {
                if let Some(objects) = state.leases.granted(lease.id, lease_seconds, began) {
                    self.meter.count_lease(objects);
                }
                Ok(lease.id)
            }
            Err(error) => {
                state.failed = Some((number, error.clone()));
                Err(error)
            }
        }
    }

    /// etcd does not know this lease any more.
    pub(crate) async fn lost(&self, id: i64) {
        self.state.lock().await.leases.lost(id);
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use pilothouse_etcd::Settings;
    use tokio::runtime::Handle;

    use super::*;

    fn leases(ttl: Option<Duration>) -> Option<EventLeases> {
        let meter = Meter::new(Clock::system(), None);
        EventLeases::new(ttl, Duration::from_secs(60), Clock::system(), meter)
    }

    #[test]
    fn events_without_a_whole_second_to_live_live_forever() {
        for ttl in [None, Some(Duration::ZERO), Some(Duration::from_millis(999))] {
            assert!(leases(ttl).is_none(), "{ttl:?}");
        }
        assert_eq!(leases(Some(Duration::from_millis(2_500))).unwrap().ttl_seconds, 2);
    }

    #[test]
    fn events_of_both_groups_are_one_type() {
        let builtin = pilothouse_api::catalog::build::Builtin::load().unwrap();
        let events = builtin.resources().iter().filter(|resource| *resource.kind == *"Event");
        let stores: Vec<&TypeName> = events.map(|resource| &resource.stored().unwrap().store).collect();
        assert!(stores.len() >= 2 && stores.into_iter().all(EventLeases::is_of_events));
        assert!(!EventLeases::is_of_events(&TypeName::new("custom/events.toys.example")));
    }

    #[tokio::test]
    async fn writers_who_wait_for_a_lease_share_its_failure() {
        // Nothing listens there.
        let mut settings = Settings::new(["http://127.0.0.1:1"]);
        settings.request_timeout = Duration::from_millis(50);
        let client = Client::new(settings, Handle::current()).unwrap();
        let leases = leases(Some(Duration::from_secs(3_600))).unwrap();
        let results = join_all((0..100).map(|_| leases.lease(&client))).await;
        assert!(results.iter().all(Result::is_err), "{results:?}");
        let requests = leases.requests.load(Ordering::SeqCst);
        assert!(requests <= 2, "once, and once for those who came meanwhile: {requests}");
        assert!(leases.lease(&client).await.is_err());
        assert_eq!(leases.requests.load(Ordering::SeqCst), requests + 1, "who comes later asks again");
    }
}
