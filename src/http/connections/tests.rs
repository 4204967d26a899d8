use std::future::{pending, ready};

use futures::FutureExt as _;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::memory::MemoryLedger;
use proptest::prelude::*;

use super::*;
use crate::config::MemoryLimit;

const ALICE: &str = "10.0.0.1:1";
const BOB: &str = "10.0.0.2:1";
const LOOPBACK: &str = "127.0.0.1:1";

fn connections(bounds: Bounds) -> (Connections, Clock) {
    let clock = Clock::manual(Timestamp(1));
    (Connections::new(bounds, clock.clone()), clock)
}

fn bounds(total: usize, per_source: usize) -> Bounds {
    Bounds { total, per_source, handshakes: total, handshakes_per_source: total, reserve: 0 }
}

impl Connections {
    fn open(&self, address: &str) -> Result<OpenConnection, RefusalReason> {
        self.admit(Some(address.parse().unwrap()))
    }

    /// A connection whose client has this standing.
    fn open_as(&self, address: &str, standing: Standing) -> OpenConnection {
        let open = self.open(address).unwrap();
        open.state().note_handshake();
        assert!(open.state().note_caller(standing));
        open
    }
}

impl OpenConnection {
    fn is_evicted(&self) -> bool {
        self.state().0.in_flight.load(Ordering::SeqCst) == EVICTED
    }
}

#[test]
fn sources_are_addresses_and_networks_of_ipv6() {
    let source = |address: &str| Source::new(Some(address.parse().unwrap()));
    assert_eq!(source("127.0.0.1:7"), Source::Loopback);
    assert_eq!(source("[::1]:7"), Source::Loopback);
    assert_eq!(source("[::ffff:127.0.0.1]:7"), Source::Loopback);
    assert_ne!(source("127.0.0.2:7"), Source::Loopback);
    assert_eq!(source("10.0.0.1:7"), source("10.0.0.1:8"));
    assert_eq!(source("10.0.0.1:7"), source("[::ffff:10.0.0.1]:7"));
    assert_ne!(source("10.0.0.1:7"), source("10.0.0.2:7"));
    assert_eq!(source("[2001:db8:1:2:3::4]:7"), source("[2001:db8:1:2::]:7"));
    assert_ne!(source("[2001:db8:1:2::]:7"), source("[2001:db8:1:3::]:7"));
}

#[test]
fn one_source_has_its_own_bound_and_the_loopback_has_none() {
    let (connections, _) = connections(bounds(10, 2));
    let of_alice = [ALICE; 2].map(|address| connections.open_as(address, Standing::Authenticated));
    assert_eq!(connections.open(ALICE).err(), Some(RefusalReason::Source));
    let _of_bob = connections.open(BOB).unwrap();
    let _local: Vec<_> = (0..5).map(|_| connections.open_as(LOOPBACK, Standing::Authenticated)).collect();
    drop(of_alice);
    connections.open(ALICE).unwrap();
    assert_eq!(connections.counts().refused, [0, 1, 0, 0, 0]);
}

#[test]
fn a_connection_without_room_below_the_memory_limit_closes_an_idle_one_or_must_be_exempt() {
    const LIMIT: usize = 64 << 20;
    let (connections, _) = connections(bounds(100, 100));
    let ledger = MemoryLedger::new(Some(LIMIT));
    let memory =
        ledger.steady("connections", 2 * limits::CONNECTIONS_ASSURED_PART * limits::CONNECTION_BYTES);
    connections.count_in(memory.clone());
    ledger.observe(LIMIT);
    let known = connections.open_as(ALICE, Standing::Authenticated);
    let idle = connections.open_as(ALICE, Standing::Anonymous);
    assert_eq!(memory.bytes(), 2 * limits::CONNECTION_BYTES, "so many get in whatever takes the memory");
    let next = connections.open_as(BOB, Standing::Authenticated);
    assert!(idle.is_evicted());
    assert_eq!(memory.bytes(), 2 * limits::CONNECTION_BYTES, "one has gone for the other");
    let refused = connections.open(BOB).unwrap();
    refused.state().note_handshake();
    assert!(!refused.state().note_caller(Standing::Authenticated), "the rest is for exempt users");
    drop(refused);
    let exempt = connections.open_as(BOB, Standing::Exempt);
    let operator = connections.open(LOOPBACK).expect("an operator gets in");
    ledger.observe(LIMIT / 2);
    drop(connections.open(BOB).unwrap());
    drop((known, next, exempt, operator));
    assert_eq!(memory.bytes(), 0);
}

#[test]
fn a_memory_limit_bounds_the_number_of_connections() {
    let mut config = Config::default();
    (config.limits.memory_limit, config.serving.max_connections) = (MemoryLimit::Bytes(96 << 20), 100_000);
    let bounds = Bounds::new(&config);
    assert_eq!((bounds.total, bounds.per_source, bounds.reserve), (1_024, 512, 64));
}

#[test]
fn the_longest_idle_anonymous_connection_makes_room() {
    let (connections, clock) = connections(bounds(3, 3));
    let [first, second] = [ALICE; 2].map(|address| {
        clock.advance(Duration::from_secs(1));
        connections.open_as(address, Standing::Anonymous)
    });
    let _known = connections.open_as(ALICE, Standing::Authenticated);
    // The first was used last.
    clock.advance(Duration::from_secs(1));
    drop(first.state().begin_request());
    let third = connections.open_as(BOB, Standing::Authenticated);
    assert!(second.is_evicted() && !first.is_evicted());
    assert_eq!(second.serve(pending()).now_or_never(), Some(Served::Evicted));
    assert_eq!(first.serve(pending()).now_or_never(), None);
    // A request in flight is not cut.
    let in_flight = first.state().begin_request();
    assert_eq!(connections.open(BOB).err(), Some(RefusalReason::Total));
    drop(in_flight);
    let _fourth = connections.open_as(BOB, Standing::Authenticated);
    assert!(first.is_evicted());
    assert!(first.state().begin_request().is_none());
    assert!(!third.is_evicted());
    drop((first, second));
    assert_eq!(connections.counts().open, [0, 0, 3, 0]);
    assert_eq!(connections.counts().evicted, [2, 0]);
}

#[actix_rt::test]
async fn an_eviction_ends_a_quiet_connection_also_if_it_is_authenticated_at_that_moment() {
    let (connections, _) = connections(bounds(1, 1));
    let idle = connections.open_as(ALICE, Standing::Anonymous);
    let evict = async {
        let known = connections.open_as(ALICE, Standing::Authenticated);
        assert!(idle.state().note_caller(Standing::Authenticated));
        known
    };
    // The eviction itself has to wake who serves: nothing else does.
    let (served, known) = futures::join!(idle.serve(pending()), evict);
    assert_eq!(served, Served::Evicted);
    assert_eq!(known.serve(pending()).now_or_never(), None);
    assert_eq!(known.serve(ready(())).now_or_never(), Some(Served::Wholly));
}

#[test]
fn the_reserve_is_for_exempt_users_and_for_this_host() {
    let (connections, _) = connections(Bounds { reserve: 4, ..bounds(10, 10) });
    let mut known: Vec<_> = (0..6).map(|_| connections.open_as(ALICE, Standing::Authenticated)).collect();
    let guest = connections.open(BOB).unwrap();
    guest.state().note_handshake();
    assert!(!guest.state().note_caller(Standing::Anonymous));
    assert!(!guest.state().note_caller(Standing::Authenticated));
    assert!(guest.state().note_caller(Standing::Exempt));
    let node = connections.open_as(BOB, Standing::Exempt);
    assert_eq!(connections.open(BOB).err(), Some(RefusalReason::Total));
    let _local = [LOOPBACK; 2].map(|address| connections.open_as(address, Standing::Authenticated));
    assert_eq!(connections.open(LOOPBACK).err(), Some(RefusalReason::Total));
    // There is room again for everybody.
    known.truncate(1);
    assert!(node.state().note_caller(Standing::Authenticated));
    assert_eq!(connections.counts().refused, [2, 0, 0, 0, 2]);
}

#[test]
fn handshakes_are_bounded_and_slow_ones_make_room() {
    let (connections, clock) =
        connections(Bounds { handshakes: 3, handshakes_per_source: 2, ..bounds(9, 9) });
    let of_alice = [ALICE; 2].map(|address| connections.open(address).unwrap());
    assert_eq!(connections.open(ALICE).err(), Some(RefusalReason::SourceHandshakes));
    let of_bob = connections.open(BOB).unwrap();
    assert_eq!(connections.open(BOB).err(), Some(RefusalReason::Handshakes));
    let _local = [LOOPBACK; 3].map(|address| connections.open(address).unwrap());
    clock.advance(limits::HANDSHAKE_UNDISTURBED);
    let _next = connections.open(BOB).unwrap();
    assert!(of_alice[0].is_evicted() && !of_alice[1].is_evicted() && !of_bob.is_evicted());
    of_alice[1].state().note_handshake();
    of_bob.state().note_handshake();
    connections.open(ALICE).unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    Open(usize),
    Handshake(usize),
    Caller(usize, Standing),
    Begin(usize),
    End(usize),
    Close(usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let standing =
        prop_oneof![Just(Standing::Anonymous), Just(Standing::Authenticated), Just(Standing::Exempt)];
    let step = prop_oneof![
        4 => (0..4_usize).prop_map(Step::Open),
        2 => (0..16_usize).prop_map(Step::Handshake),
        2 => (0..16_usize, standing).prop_map(|(at, standing)| Step::Caller(at, standing)),
        2 => (0..16_usize).prop_map(Step::Begin),
        1 => (0..16_usize).prop_map(Step::End),
        1 => (0..16_usize).prop_map(Step::Close),
        1 => (0..5_u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    #[test]
    fn no_bound_is_passed_and_only_idle_anonymous_connections_are_closed(steps in steps()) {
        const SOURCES: [&str; 4] = [ALICE, BOB, "[2001:db8::1]:1", LOOPBACK];
        let bounds = Bounds { total: 12, per_source: 5, handshakes: 6, handshakes_per_source: 3, reserve: 4 };
        let (connections, clock) = connections(bounds);
        let mut held: Vec<(usize, OpenConnection, Standing, Option<RequestInFlight>)> = Vec::new();
        for step in steps {
            let length = held.len().max(1);
            let at = |wanted: usize| wanted % length;
            match step {
                Step::Open(source) => {
                    let before = held.len();
                    if let Ok(open) = connections.open(SOURCES[source]) {
                        held.push((source, open, Standing::Handshaking, None));
                    } else if source == 3 {
                        let is_closable = |(_, _, standing, in_flight): &(_, _, Standing, Option<_>)| {
                            *standing == Standing::Anonymous && in_flight.is_none()
                        };
                        prop_assert!(before >= bounds.total && !held.iter().any(is_closable));
                    }
                }
                Step::Handshake(wanted) => {
                    if let Some((_, open, standing, _)) = held.get_mut(at(wanted)) {
                        open.state().note_handshake();
                        *standing = (*standing).max(Standing::Anonymous);
                    }
                }
                Step::Caller(wanted, caller) => {
                    if let Some((_, open, standing, _)) = held.get_mut(at(wanted))
                        && *standing > Standing::Handshaking
                        && open.state().note_caller(caller)
                    {
                        *standing = (*standing).max(caller);
                    }
                }
                Step::Begin(wanted) => {
                    if let Some((_, open, standing, in_flight)) = held.get_mut(at(wanted))
                        && *standing > Standing::Handshaking
                    {
                        *in_flight = open.state().begin_request();
                    }
                }
                Step::End(wanted) => {
                    if let Some((_, _, _, in_flight)) = held.get_mut(at(wanted)) {
                        *in_flight = None;
                    }
                }
                Step::Close(wanted) => {
                    if !held.is_empty() {
                        drop(held.remove(at(wanted)));
                    }
                }
                Step::Wait(seconds) => clock.advance(Duration::from_secs(seconds)),
            }
            let evicted = held.extract_if(.., |(_, open, ..)| open.is_evicted());
            for (_, _, standing, in_flight) in evicted.collect::<Vec<_>>() {
                prop_assert!(standing < Standing::Authenticated && in_flight.is_none());
            }
            prop_assert!(connections.0.table.lock().is_consistent());
            prop_assert!(held.len() <= bounds.total);
            let counts = connections.counts();
            prop_assert_eq!(counts.open.iter().sum::<usize>() + counts.loopback, held.len());
            prop_assert!(counts.open[0] <= bounds.handshakes);
            for source in 0..3 {
                prop_assert!(held.iter().filter(|(of, ..)| *of == source).count() <= bounds.per_source);
            }
        }
    }
}
