//! Leases of objects that are copied, each with a time of its own to live: those with about as long share one.

use std::collections::HashMap;

use pilothouse_etcd::messages::LeaseGrantRequest;
use pilothouse_etcd::{Client, Error};
use pilothouse_etcd_layout::expiry_leases::MAX_OBJECTS;

/// An object lives longer than it should by this part of its time at most.
const PART: u64 = 20;
/// And by this many seconds at most.
const LONGEST_STEP: u64 = 60;

/// The leases so far: one for each rounded time to live.
#[derive(Debug, Default)]
pub(super) struct CopyLeases(HashMap<u64, Lease>);

#[derive(Clone, Copy, Debug)]
struct Lease {
    id: i64,
    objects: u32,
}

impl CopyLeases {
    /// The lease of an object that lives so many seconds from now on.
    pub(super) async fn lease(&mut self, client: &Client, seconds: u64) -> Result<i64, Error> {
        let seconds = round_up(seconds);
        if let Some(lease) = self.0.get_mut(&seconds).filter(|lease| lease.objects < MAX_OBJECTS) {
            lease.objects += 1;
            return Ok(lease.id);
        }
        let request = LeaseGrantRequest { ttl: i64::try_from(seconds).unwrap_or(i64::MAX), id: 0 };
        let id = client.lease_grant(request).await?.id;
        self.0.insert(seconds, Lease { id, objects: 1 });
        Ok(id)
    }

    /// The lease with this id has ended: nothing uses it from now on.
    pub(super) fn lost(&mut self, id: i64) {
        self.0.retain(|_, lease| lease.id != id);
    }
}

/// A time to live that many objects share.
fn round_up(seconds: u64) -> u64 {
    let step = (seconds / PART).clamp(1, LONGEST_STEP);
    seconds.div_ceil(step).saturating_mul(step).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_a_little() {
        for (seconds, expected) in
            [(0, 1), (1, 1), (39, 39), (41, 42), (100, 100), (101, 105), (3_541, 3_600), (3_600, 3_600)]
        {
            assert_eq!(round_up(seconds), expected, "{seconds}");
        }
    }
}
