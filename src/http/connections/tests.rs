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

    /// A connection whose client is trusted this far.
    fn open_as(&self, address: &str, trust: ClientTrust) -> OpenConnection {
        let open = self.open(address).unwrap();
        open.state().note_handshake();
        assert!(open.state().note_caller(trust));
        open
    }
}

impl OpenConnection {
    fn is_evicted(&self) -> bool {
        self.state().0.in_flight.load(Ordering::SeqCst) == EVICTED
    }
}

#[test]
fn source_is_an_ipv4_address_or_an_ipv6_network() {
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
fn connections_per_source_are_bounded_except_for_the_loopback() {
    let (connections, _) = connections(bounds(10, 2));
    let alice_connections =
        [ALICE; 2].map(|address| connections.open_as(address, ClientTrust::Authenticated));
    assert_eq!(connections.open(ALICE).err(), Some(RefusalReason::Source));
    let _bob_connection = connections.open(BOB).unwrap();
    let _local: Vec<_> = (0..5).map(|_| connections.open_as(LOOPBACK, ClientTrust::Authenticated)).collect();
    drop(alice_connections);
    connections.open(ALICE).unwrap();
    assert_eq!(connections.counts().refused, [0, 1, 0, 0, 0]);
}

#[test]
fn connection_above_the_memory_limit_evicts_an_idle_one_or_must_be_exempt() {
    const LIMIT: usize = 64 << 20;
    let (connections, _) = connections(bounds(100, 100));
    let ledger = MemoryLedger::new(Some(LIMIT));
    let memory =
        ledger.steady("connections", 2 * limits::CONNECTIONS_GUARANTEED_DIVISOR * limits::CONNECTION_BYTES);
    connections.set_memory_budget(memory.clone());
    ledger.observe(LIMIT);
    let authenticated = connections.open_as(ALICE, ClientTrust::Authenticated);
    let idle = connections.open_as(ALICE, ClientTrust::Anonymous);
    assert_eq!(memory.bytes(), 2 * limits::CONNECTION_BYTES, "a minimum is admitted regardless of memory");
    let next = connections.open_as(BOB, ClientTrust::Authenticated);
    assert!(idle.is_evicted());
    assert_eq!(memory.bytes(), 2 * limits::CONNECTION_BYTES, "one was evicted for the other");
    let refused = connections.open(BOB).unwrap();
    refused.state().note_handshake();
    assert!(!refused.state().note_caller(ClientTrust::Authenticated), "the rest is for exempt users");
    drop(refused);
    let exempt = connections.open_as(BOB, ClientTrust::Exempt);
    let operator = connections.open(LOOPBACK).expect("the loopback is admitted");
    ledger.observe(LIMIT / 2);
    drop(connections.open(BOB).unwrap());
    drop((authenticated, next, exempt, operator));
    assert_eq!(memory.bytes(), 0);
}

#[test]
fn memory_limit_bounds_the_number_of_connections() {
    let mut config = Config::default();
    (config.limits.memory_limit, config.serving.max_connections) = (MemoryLimit::Bytes(96 << 20), 100_000);
    let bounds = Bounds::new(&config);
    assert_eq!((bounds.total, bounds.per_source, bounds.reserve), (1_024, 512, 64));
}

#[test]
fn longest_idle_anonymous_connection_is_evicted() {
    let (connections, clock) = connections(bounds(3, 3));
    let [first, second] = [ALICE; 2].map(|address| {
        clock.advance(Duration::from_secs(1));
        connections.open_as(address, ClientTrust::Anonymous)
    });
    let _authenticated = connections.open_as(ALICE, ClientTrust::Authenticated);
    // The first was used last.
    clock.advance(Duration::from_secs(1));
    drop(first.state().begin_request());
    let third = connections.open_as(BOB, ClientTrust::Authenticated);
    assert!(second.is_evicted() && !first.is_evicted());
    assert_eq!(second.serve(pending()).now_or_never(), Some(ConnectionEnd::Evicted));
    assert_eq!(first.serve(pending()).now_or_never(), None);
    // A request in flight is not cut.
    let in_flight = first.state().begin_request();
    assert_eq!(connections.open(BOB).err(), Some(RefusalReason::Total));
    drop(in_flight);
    let _fourth = connections.open_as(BOB, ClientTrust::Authenticated);
    assert!(first.is_evicted());
    assert!(first.state().begin_request().is_none());
    assert!(!third.is_evicted());
    drop((first, second));
    assert_eq!(connections.counts().open, [0, 0, 3, 0]);
    assert_eq!(connections.counts().evicted, [2, 0]);
}

#[actix_rt::test]
async fn eviction_ends_an_idle_connection_that_is_authenticated_meanwhile() {
    let (connections, _) = connections(bounds(1, 1));
    let idle = connections.open_as(ALICE, ClientTrust::Anonymous);
    let evict = async {
        let authenticated = connections.open_as(ALICE, ClientTrust::Authenticated);
        assert!(idle.state().note_caller(ClientTrust::Authenticated));
        authenticated
    };
    // The eviction itself has to wake the serving task: nothing else does.
    let (end, authenticated) = futures::join!(idle.serve(pending()), evict);
    assert_eq!(end, ConnectionEnd::Evicted);
    assert_eq!(authenticated.serve(pending()).now_or_never(), None);
    assert_eq!(authenticated.serve(ready(())).now_or_never(), Some(ConnectionEnd::Completed));
}

#[test]
fn connection_reserve_is_for_exempt_users_and_the_loopback() {
    let (connections, _) = connections(Bounds { reserve: 4, ..bounds(10, 10) });
    let mut authenticated: Vec<_> =
        (0..6).map(|_| connections.open_as(ALICE, ClientTrust::Authenticated)).collect();
    let reserved = connections.open(BOB).unwrap();
    reserved.state().note_handshake();
    assert!(!reserved.state().note_caller(ClientTrust::Anonymous));
    assert!(!reserved.state().note_caller(ClientTrust::Authenticated));
    assert!(reserved.state().note_caller(ClientTrust::Exempt));
    let node = connections.open_as(BOB, ClientTrust::Exempt);
    assert_eq!(connections.open(BOB).err(), Some(RefusalReason::Total));
    let _local = [LOOPBACK; 2].map(|address| connections.open_as(address, ClientTrust::Authenticated));
    assert_eq!(connections.open(LOOPBACK).err(), Some(RefusalReason::Total));
    // There is room again for everybody.
    authenticated.truncate(1);
    assert!(node.state().note_caller(ClientTrust::Authenticated));
    assert_eq!(connections.counts().refused, [2, 0, 0, 0, 2]);
}

#[test]
fn handshakes_are_bounded_and_slow_ones_are_evicted() {
    let (connections, clock) =
        connections(Bounds { handshakes: 3, handshakes_per_source: 2, ..bounds(9, 9) });
    let alice_connections = [ALICE; 2].map(|address| connections.open(address).unwrap());
    assert_eq!(connections.open(ALICE).err(), Some(RefusalReason::SourceHandshakes));
    let bob_connection = connections.open(BOB).unwrap();
    assert_eq!(connections.open(BOB).err(), Some(RefusalReason::Handshakes));
    let _local = [LOOPBACK; 3].map(|address| connections.open(address).unwrap());
    clock.advance(limits::HANDSHAKE_UNDISTURBED);
    let _next = connections.open(BOB).unwrap();
    assert!(
        alice_connections[0].is_evicted()
            && !alice_connections[1].is_evicted()
            && !bob_connection.is_evicted()
    );
    alice_connections[1].state().note_handshake();
    bob_connection.state().note_handshake();
    connections.open(ALICE).unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    Open(usize),
    Handshake(usize),
    Caller(usize, ClientTrust),
    Begin(usize),
    End(usize),
    Close(usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let trust = prop_oneof![
        Just(ClientTrust::Anonymous),
        Just(ClientTrust::Authenticated),
        Just(ClientTrust::Exempt)
    ];
    let step = prop_oneof![
        4 => (0..4_usize).prop_map(Step::Open),
        2 => (0..16_usize).prop_map(Step::Handshake),
        2 => (0..16_usize, trust).prop_map(|(index, trust)| Step::Caller(index, trust)),
        2 => (0..16_usize).prop_map(Step::Begin),
        1 => (0..16_usize).prop_map(Step::End),
        1 => (0..16_usize).prop_map(Step::Close),
        1 => (0..5_u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    #[test]
    fn connection_bounds_hold_and_only_idle_anonymous_connections_are_evicted(steps in steps()) {
        const SOURCES: [&str; 4] = [ALICE, BOB, "[2001:db8::1]:1", LOOPBACK];
        let bounds = Bounds { total: 12, per_source: 5, handshakes: 6, handshakes_per_source: 3, reserve: 4 };
        let (connections, clock) = connections(bounds);
        let mut open_connections: Vec<(usize, OpenConnection, ClientTrust, Option<RequestInFlight>)> = Vec::new();
        for step in steps {
            let length = open_connections.len().max(1);
            let index_of = |number: usize| number % length;
            match step {
                Step::Open(source) => {
                    let before = open_connections.len();
                    if let Ok(open) = connections.open(SOURCES[source]) {
                        open_connections.push((source, open, ClientTrust::Handshaking, None));
                    } else if source == 3 {
                        let is_closable = |(_, _, trust, in_flight): &(_, _, ClientTrust, Option<_>)| {
                            *trust == ClientTrust::Anonymous && in_flight.is_none()
                        };
                        prop_assert!(before >= bounds.total && !open_connections.iter().any(is_closable));
                    }
                }
                Step::Handshake(number) => {
                    if let Some((_, open, trust, _)) = open_connections.get_mut(index_of(number)) {
                        open.state().note_handshake();
                        *trust = (*trust).max(ClientTrust::Anonymous);
                    }
                }
                Step::Caller(number, caller) => {
                    if let Some((_, open, trust, _)) = open_connections.get_mut(index_of(number))
                        && *trust > ClientTrust::Handshaking
                        && open.state().note_caller(caller)
                    {
                        *trust = (*trust).max(caller);
                    }
                }
                Step::Begin(number) => {
                    if let Some((_, open, trust, in_flight)) = open_connections.get_mut(index_of(number))
                        && *trust > ClientTrust::Handshaking
                    {
                        *in_flight = open.state().begin_request();
                    }
                }
                Step::End(number) => {
                    if let Some((_, _, _, in_flight)) = open_connections.get_mut(index_of(number)) {
                        *in_flight = None;
                    }
                }
                Step::Close(number) => {
                    if !open_connections.is_empty() {
                        drop(open_connections.remove(index_of(number)));
                    }
                }
                Step::Wait(seconds) => clock.advance(Duration::from_secs(seconds)),
            }
            let evicted = open_connections.extract_if(.., |(_, open, ..)| open.is_evicted());
            for (_, _, trust, in_flight) in evicted.collect::<Vec<_>>() {
                prop_assert!(trust < ClientTrust::Authenticated && in_flight.is_none());
            }
            prop_assert!(connections.0.table.lock().is_consistent());
            prop_assert!(open_connections.len() <= bounds.total);
            let counts = connections.counts();
            prop_assert_eq!(counts.open.iter().sum::<usize>() + counts.loopback, open_connections.len());
            prop_assert!(counts.open[0] <= bounds.handshakes);
            for source in 0..3 {
                prop_assert!(open_connections.iter().filter(|(owner, ..)| *owner == source).count() <= bounds.per_source);
            }
        }
    }
}
