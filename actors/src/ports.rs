//! The actor that allocates node ports.
//!
//! One per server: every writer of a Service allocates its ports here first, so two writers never get the same port, whichever
//! worker they run on.
//! It keeps nothing on disk: the stored Services contain their ports, and it is rebuilt from them at the start. Where several servers share
//! the store, [`range_allocator`](crate::range_allocator) takes its place.
//!
//! Commands are answered in order. A port becomes free when its owner returns it, and only its owner can.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use actix::{Actor, Context, Handler, Message, MessageResult};
use pilothouse_types::object::Key;

use crate::fatal::Fatal;
use crate::limits::ALLOCATOR_MAILBOX;
use crate::permit::Permit;

/// The range divided by this is the size of the lower band.
const LOWER_BAND_DIVISOR: u32 = 32;
/// The minimum size of the lower band. A range of no more ports has none.
const LOWER_BAND_MIN: u32 = 16;
/// The maximum size of the lower band.
const LOWER_BAND_MAX: u32 = 128;

/// One requested port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortRequest {
    /// This port and no other. It may be outside of the range of ports.
    Exactly(i64),
    /// Any free port, searched from a random number.
    Any(u32),
}

/// Why a port is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Another owner has it.
    Taken,
    /// It is outside of the range.
    Outside,
    /// No port is free.
    Full,
}

/// The refused port, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRefusal {
    /// The index of the requested port.
    pub index: usize,
    /// The reason.
    pub reason: Reason,
}

/// Allocates ports, all or none. Returns them in the order of the requests, or the first refusal. On Full the sender waits,
/// within its own permit; on Closed the server ends.
#[derive(Message)]
#[rtype(result = "Result<Vec<u16>, PortRefusal>")]
pub struct AllocatePorts {
    /// The new owner.
    pub owner: Key,
    /// The requested ports.
    pub requests: Vec<PortRequest>,
    /// The seat of the request.
    pub permit: Permit,
}

/// Checks whether these ports are free, without taking them. Returns the first refusal. Full and Closed as for [`AllocatePorts`].
#[derive(Message)]
#[rtype(result = "Result<(), PortRefusal>")]
pub struct CheckPorts {
    /// The ports to check.
    pub ports: Vec<i64>,
    /// The seat of the request.
    pub permit: Permit,
}

/// Returns ports. Ports of other owners are left alone. Full and Closed as for [`AllocatePorts`].
#[derive(Message)]
#[rtype(result = "()")]
pub struct ReleasePorts {
    /// The owner.
    pub owner: Key,
    /// The ports to return.
    pub ports: Vec<u16>,
}

/// Lists all taken ports with their owners. On Full the sender waits; on Closed the server ends.
#[derive(Clone, Copy, Message)]
#[rtype(result = "BTreeMap<u16, Key>")]
pub struct ListOwners;

/// How many ports of the range have owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Those that do.
    pub allocated: usize,
    /// Those that are free.
    pub free: usize,
}

/// Counts the ports of the range, for metrics. On Full the sender waits; on Closed the server ends.
#[derive(Clone, Copy, Message)]
#[rtype(result = "PortCounts")]
pub struct CountPorts;

/// The size of the lower band of a range of so many ports.
pub fn lower_band(size: u32) -> u32 {
    if size <= LOWER_BAND_MIN { 0 } else { (size / LOWER_BAND_DIVISOR).clamp(LOWER_BAND_MIN, LOWER_BAND_MAX) }
}

/// The ports of a range and their owners.
#[derive(Debug)]
pub struct PortPool {
    first: u16,
    last: u16,
    /// Includes ports outside of the range: they were taken when the range was different, and their owners still have them.
    owners: HashMap<u16, Key>,
    /// The free ports of the range, sorted, so that a search does not walk over taken ones.
    free: BTreeSet<u16>,
}

impl PortPool {
    /// The ports from `first` to `last`, with those that have owners already.
    pub fn new(first: u16, last: u16, taken: impl IntoIterator<Item = (u16, Key)>) -> PortPool {
        let owners: HashMap<u16, Key> = taken.into_iter().collect();
        let free = (first..=last).filter(|port| !owners.contains_key(port)).collect();
        PortPool { first, last, owners, free }
    }

    /// Allocates all ports, or none.
    pub fn allocate(&mut self, owner: &Key, requests: &[PortRequest]) -> Result<Vec<u16>, PortRefusal> {
        let mut allocated = Vec::with_capacity(requests.len());
        for (index, request) in requests.iter().enumerate() {
            let result = match *request {
                PortRequest::Exactly(port) => self.check_free(port),
                PortRequest::Any(random) => self.search(random).ok_or(Reason::Full),
            };
            match result {
                Ok(port) => {
                    self.owners.insert(port, owner.clone());
                    self.free.remove(&port);
                    allocated.push(port);
                }
                Err(reason) => {
                    self.release(owner, &allocated);
                    return Err(PortRefusal { index, reason });
                }
            }
        }
        Ok(allocated)
    }

    /// Checks that these ports have no owner. Like the reference's dry run it ignores the range.
    pub fn check_unowned(&self, ports: &[i64]) -> Result<(), PortRefusal> {
        let taken = |port: &i64| u16::try_from(*port).is_ok_and(|port| self.owners.contains_key(&port));
        match ports.iter().position(taken) {
            Some(index) => Err(PortRefusal { index, reason: Reason::Taken }),
            None => Ok(()),
        }
    }

    /// How many ports of the range are taken.
    pub fn counts(&self) -> PortCounts {
        let size = usize::from(self.last - self.first) + 1;
        PortCounts { allocated: size.saturating_sub(self.free.len()), free: self.free.len() }
    }

    /// Frees those of the ports that the owner has.
    pub fn release(&mut self, owner: &Key, ports: &[u16]) {
        for port in ports {
            if self.owners.get(port) == Some(owner) {
                self.owners.remove(port);
                if (self.first..=self.last).contains(port) {
                    self.free.insert(*port);
                }
            }
        }
    }

    fn check_free(&self, port: i64) -> Result<u16, Reason> {
        let in_range = u16::try_from(port).ok().filter(|port| (self.first..=self.last).contains(port));
        let port = in_range.ok_or(Reason::Outside)?;
        if self.owners.contains_key(&port) { Err(Reason::Taken) } else { Ok(port) }
    }

    /// Searches the upper band first and then the lower one, which is reserved for explicit choices.
    fn search(&self, random: u32) -> Option<u16> {
        let size = u32::from(self.last - self.first) + 1;
        let lower = lower_band(size);
        let search_band = |from: u32, count: u32| {
            let start = from + random.checked_rem(count)?;
            self.next_free(start, from + count).or_else(|| self.next_free(from, start))
        };
        search_band(lower, size - lower).or_else(|| search_band(0, lower))
    }

    /// The first free port between two offsets, excluding the second.
    fn next_free(&self, from: u32, to: u32) -> Option<u16> {
        let port = |offset: u32| u16::try_from(u32::from(self.first) + offset);
        let (from, last) = (port(from).ok()?, port(to.checked_sub(1)?).ok()?);
        if from > last { None } else { self.free.range(from..=last).next().copied() }
    }
}

/// The actor. See the module documentation.
pub struct PortAllocator {
    pool: PortPool,
    /// Raised if this actor dies: otherwise Services could be stored with ports of others.
    fatal: Fatal,
}

impl PortAllocator {
    /// The actor of these ports.
    pub fn new(pool: PortPool, fatal: Fatal) -> PortAllocator {
        PortAllocator { pool, fatal }
    }
}

impl Actor for PortAllocator {
    type Context = Context<PortAllocator>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(ALLOCATOR_MAILBOX);
    }
}

impl Drop for PortAllocator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fatal.raise("the port allocator panicked".to_owned());
        }
    }
}

impl Handler<AllocatePorts> for PortAllocator {
    type Result = Result<Vec<u16>, PortRefusal>;

    fn handle(&mut self, command: AllocatePorts, _: &mut Self::Context) -> Self::Result {
        self.pool.allocate(&command.owner, &command.requests)
    }
}

impl Handler<CheckPorts> for PortAllocator {
    type Result = Result<(), PortRefusal>;

    fn handle(&mut self, command: CheckPorts, _: &mut Self::Context) -> Self::Result {
        self.pool.check_unowned(&command.ports)
    }
}

impl Handler<ListOwners> for PortAllocator {
    type Result = MessageResult<ListOwners>;

    fn handle(&mut self, _: ListOwners, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.pool.owners.iter().map(|(port, owner)| (*port, owner.clone())).collect())
    }
}

impl Handler<CountPorts> for PortAllocator {
    type Result = MessageResult<CountPorts>;

    fn handle(&mut self, _: CountPorts, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.pool.counts())
    }
}

impl Handler<ReleasePorts> for PortAllocator {
    type Result = MessageResult<ReleasePorts>;

    fn handle(&mut self, command: ReleasePorts, _: &mut Self::Context) -> Self::Result {
        self.pool.release(&command.owner, &command.ports);
        MessageResult(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owner(name: &str) -> Key {
        Key::namespaced("n", name)
    }

    #[test]
    fn ports_are_allocated_all_or_none_and_released_only_by_owner() {
        let mut pool = PortPool::new(30_000, 30_009, [(30_001, owner("old")), (29_000, owner("old"))]);
        let allocate = |pool: &mut PortPool, requests: &[PortRequest]| pool.allocate(&owner("a"), requests);
        let refused = |index, reason| Err(PortRefusal { index, reason });
        let some = [PortRequest::Exactly(30_002), PortRequest::Exactly(30_001)];
        assert_eq!(allocate(&mut pool, &some), refused(1, Reason::Taken));
        assert_eq!(allocate(&mut pool, &[PortRequest::Exactly(30_002)]), Ok(vec![30_002]));
        for outside in [29_999, 30_010, 70_000, -1, 0] {
            assert_eq!(
                allocate(&mut pool, &[PortRequest::Exactly(outside)]),
                refused(0, Reason::Outside),
                "{outside}"
            );
        }
        assert_eq!(
            pool.check_unowned(&[30_003, 30_002]),
            Err(PortRefusal { index: 1, reason: Reason::Taken })
        );
        assert_eq!(pool.check_unowned(&[30_003, 70_000]), Ok(()));
        assert_eq!(
            pool.counts(),
            PortCounts { allocated: 2, free: 8 },
            "one outside of the range counts for none"
        );
        pool.release(&owner("b"), &[30_001, 30_002]);
        assert_eq!(allocate(&mut pool, &[PortRequest::Exactly(30_001)]), refused(0, Reason::Taken));
        pool.release(&owner("old"), &[30_001]);
        assert_eq!(allocate(&mut pool, &[PortRequest::Exactly(30_001)]), Ok(vec![30_001]));
        let rest = [PortRequest::Any(7); 8];
        assert_eq!(allocate(&mut pool, &rest).map(|allocated| allocated.len()), Ok(8));
        assert_eq!(allocate(&mut pool, &[PortRequest::Any(0)]), refused(0, Reason::Full));
    }

    #[test]
    fn dynamic_ports_come_from_lower_band_last() {
        let mut pool = PortPool::new(30_000, 32_767, []);
        let allocated = pool.allocate(&owner("a"), &[PortRequest::Any(5); 2_768 - 86]).unwrap();
        assert!(
            allocated.iter().all(|port| *port >= 30_086),
            "2768 / 32 ports are reserved for explicit choices"
        );
        assert!(pool.allocate(&owner("a"), &[PortRequest::Any(5)]).unwrap()[0] < 30_086);
    }

    /// One owner may ask for everything repeatedly: a search that walked over taken ports would block all others.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
    fn allocating_a_whole_range_is_fast() {
        let mut pool = PortPool::new(1, u16::MAX, []);
        let began = std::time::Instant::now();
        for _ in 0..8 {
            let refused = pool.allocate(&owner("a"), &[PortRequest::Any(77); 1 << 16]);
            assert_eq!(refused, Err(PortRefusal { index: 65_535, reason: Reason::Full }));
            assert_eq!((pool.owners.len(), pool.free.len()), (0, 65_535));
        }
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }

    proptest! {
        #[test]
        fn every_port_is_allocated_once(first in 1u16..60_000, count in 1u16..200, seeds: Vec<u32>) {
            let mut pool = PortPool::new(first, first + count - 1, []);
            let mut allocated = BTreeSet::new();
            for turn in 0..count {
                let seed = seeds.get(usize::from(turn)).copied().unwrap_or(u32::from(turn));
                let port = pool.allocate(&owner("a"), &[PortRequest::Any(seed)]).unwrap()[0];
                prop_assert!((first..first + count).contains(&port) && allocated.insert(port));
            }
            prop_assert!(pool.allocate(&owner("a"), &[PortRequest::Any(0)]).is_err());
        }
    }
}
