//! The leases of etcd by which events expire: many events share one, because a lease costs etcd more than an event.
//!
//! A lease lasts a little longer than the events under it, and takes new ones as long as none of them would expire too early or much
//! too late. Servers share nothing here, but they should expire events alike.

use std::time::Duration;

use pilothouse_types::clock::Moment;

/// The default of `--lease-reuse-duration-seconds`.
pub const DEFAULT_REUSE: Duration = Duration::from_secs(60);
/// The most objects of one lease: etcd deletes them all at once.
pub const MAX_OBJECTS: u32 = 1_000;
/// A lease is reused for at most this part of the time to live.
const REUSED_PART: u64 = 20;

/// The lease that new objects share, if there is one.
#[derive(Debug)]
pub struct ExpiryLeases {
    reuse: Duration,
    current: Option<Lease>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    id: i64,
    expires: Moment,
    objects: u32,
}

/// What a write with a time to live does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseChoice {
    /// It uses this lease.
    Reuse(i64),
    /// It asks etcd for a lease of so many seconds, and reports it with [`ExpiryLeases::granted`].
    Grant(u64),
}

impl ExpiryLeases {
    /// Without a lease. `reuse` is `--lease-reuse-duration-seconds`.
    pub fn new(reuse: Duration) -> ExpiryLeases {
        ExpiryLeases { reuse, current: None }
    }

    /// The lease of an object that is written now and lives so many seconds.
    pub fn choose(&mut self, ttl_seconds: u64, now: Moment) -> LeaseChoice {
        let reuse = self.reuse_seconds(ttl_seconds);
        if let Some(lease) = &mut self.current {
            let lives_until = now.plus(Duration::from_secs(ttl_seconds));
            let latest = lives_until.plus(Duration::from_secs(reuse));
            if lives_until < lease.expires && lease.expires < latest && lease.objects < MAX_OBJECTS {
                lease.objects += 1;
                return LeaseChoice::Reuse(lease.id);
            }
        }
        LeaseChoice::Grant(ttl_seconds.saturating_add(reuse))
    }

    /// etcd has granted a lease of so many seconds, which was asked for at `began`. Returns how many objects the lease before it has, if
    /// there was one.
    pub fn granted(&mut self, id: i64, lease_seconds: u64, began: Moment) -> Option<u32> {
        let expires = began.plus(Duration::from_secs(lease_seconds));
        let before = self.current.replace(Lease { id, expires, objects: 1 });
        before.map(|lease| lease.objects)
    }

    /// etcd does not have this lease any more: nothing uses it from now on.
    pub fn lost(&mut self, id: i64) {
        self.current = self.current.filter(|lease| lease.id != id);
    }

    /// How long a lease is reused.
    fn reuse_seconds(&self, ttl_seconds: u64) -> u64 {
        (ttl_seconds / REUSED_PART).min(self.reuse.as_secs())
    }
}

impl Default for ExpiryLeases {
    fn default() -> ExpiryLeases {
        ExpiryLeases::new(DEFAULT_REUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time to live of events.
    const HOUR: u64 = 3_600;

    fn at(seconds: u64) -> Moment {
        Moment::default().plus(Duration::from_secs(seconds))
    }

    #[test]
    fn lease_is_reused_for_a_minute() {
        let mut leases = ExpiryLeases::default();
        assert_eq!(leases.choose(HOUR, at(10)), LeaseChoice::Grant(HOUR + 60));
        leases.granted(7, HOUR + 60, at(10));
        // At the very moment of the grant it would live a whole minute too long.
        assert_eq!(leases.choose(HOUR, at(10)), LeaseChoice::Grant(HOUR + 60));
        for second in [11, 69] {
            assert_eq!(leases.choose(HOUR, at(second)), LeaseChoice::Reuse(7), "{second}");
        }
        assert_eq!(leases.choose(HOUR, at(70)), LeaseChoice::Grant(HOUR + 60));
    }

    #[test]
    fn lease_is_reused_for_a_small_part_of_a_short_life() {
        let mut leases = ExpiryLeases::default();
        assert_eq!(leases.choose(100, at(0)), LeaseChoice::Grant(105));
        leases.granted(7, 105, at(0));
        assert_eq!(leases.choose(100, at(4)), LeaseChoice::Reuse(7));
        assert_eq!(leases.choose(HOUR, at(4)), LeaseChoice::Grant(HOUR + 60), "it would expire too early");
        assert_eq!(leases.choose(10, at(4)), LeaseChoice::Grant(10), "it would expire too late");
        assert_eq!(leases.choose(100, at(5)), LeaseChoice::Grant(105));
    }

    #[test]
    fn lease_has_a_bounded_number_of_objects() {
        let mut leases = ExpiryLeases::default();
        assert_eq!(leases.granted(7, HOUR + 60, at(0)), None);
        let reused =
            (0..2 * MAX_OBJECTS).filter(|_| leases.choose(HOUR, at(1)) == LeaseChoice::Reuse(7)).count();
        assert_eq!(reused, MAX_OBJECTS as usize - 1, "the first one had it granted");
        assert_eq!(leases.granted(8, HOUR + 60, at(1)), Some(MAX_OBJECTS));
    }

    #[test]
    fn lost_lease_is_not_reused() {
        let mut leases = ExpiryLeases::default();
        leases.granted(7, HOUR + 60, at(0));
        leases.lost(6);
        assert_eq!(leases.choose(HOUR, at(1)), LeaseChoice::Reuse(7), "another one is lost");
        leases.lost(7);
        assert_eq!(leases.choose(HOUR, at(1)), LeaseChoice::Grant(HOUR + 60));
    }

    #[test]
    fn lease_is_not_reused_if_that_is_turned_off() {
        let mut leases = ExpiryLeases::new(Duration::ZERO);
        assert_eq!(leases.choose(HOUR, at(0)), LeaseChoice::Grant(HOUR));
        leases.granted(7, HOUR, at(0));
        assert_eq!(leases.choose(HOUR, at(1)), LeaseChoice::Grant(HOUR));
    }
}
