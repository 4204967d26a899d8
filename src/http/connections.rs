//! The table of open connections: their number per source, and which one is evicted when there are too many.
//!
//! A connection proves nothing about its client until a request on it was authenticated. So there are bounds on all connections,
//! on those of one source address and on those that are still in their TLS handshake; with a memory limit each must also fit below
//! it. At a bound, the longest idle connection
//! without an authenticated request makes room for the new one. If there is none, the new one is closed at once: it does not wait
//! in the kernel's queue, where it would keep out clients of this host, for whom there is always room.
//!
//! The table is locked when a connection opens, completes its handshake, is authenticated for the first time, and closes. A
//! request on an authenticated connection costs one load.

mod table;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use pilothouse_actors::watch_memory::CutSignal;
use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::lock::Lock;
use pilothouse_types::memory::MemoryBudget;

use self::table::Table;
use crate::config::Config;
use crate::limits;

/// The bits of an IPv6 address that count: a client usually owns the rest.
const IPV6_NETWORK: u128 = !(u64::MAX as u128);

/// The value of [`State::in_flight`] once the connection must close.
const EVICTED: usize = usize::MAX;

/// The bounds of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// All open connections.
    pub total: usize,
    /// Those of one source address; see [`Source`].
    pub per_source: usize,
    /// Those in their TLS handshake.
    pub handshakes: usize,
    /// Those of one source address in their TLS handshake.
    pub handshakes_per_source: usize,
    /// The last of all connections: one half for exempt users and nodes, the other for clients on this host.
    pub reserve: usize,
}

impl Bounds {
    /// The bounds that the flags set. Without them the number of workers and of files that may be open decides.
    pub fn new(config: &Config) -> Bounds {
        let (files, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((u64::MAX, u64::MAX));
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        let by_default = (config.workers() * limits::CONNECTIONS_PER_WORKER).min(files / 4 * 3);
        let by_memory = config.limits.memory_limit.bytes().map_or(usize::MAX, |limit| {
            limit / limits::CONNECTIONS_MEMORY_DIVISOR / limits::CONNECTION_BYTES
        });
        let total = flag_or(config.serving.max_connections, by_default).min(by_memory).max(1);
        let per_source = flag_or(config.serving.max_connections_per_source, total / 2).min(total).max(1);
        let handshakes = limits::HANDSHAKES.min(total);
        Bounds {
            total,
            per_source,
            handshakes,
            handshakes_per_source: (handshakes / 2).max(1),
            reserve: (total / limits::CONNECTIONS_RESERVED_DIVISOR).min(limits::MAX_CONNECTIONS_RESERVED),
        }
    }
}

/// The value of a flag whose zero means a default.
fn flag_or(flag: usize, default: usize) -> usize {
    if flag == 0 { default } else { flag }
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// From this host's own loopback address, 127.0.0.1 or ::1: health checks and operators. Not bounded by source.
    Loopback,
    /// From another address; of an IPv6 address its first 64 bits count.
    Remote(IpAddr),
}

impl Source {
    fn new(address: Option<SocketAddr>) -> Source {
        match address.map(|address| address.ip().to_canonical()) {
            Some(IpAddr::V4(Ipv4Addr::LOCALHOST) | IpAddr::V6(Ipv6Addr::LOCALHOST)) => Source::Loopback,
            Some(IpAddr::V4(address)) => Source::Remote(address.into()),
            Some(IpAddr::V6(address)) => {
                Source::Remote(Ipv6Addr::from_bits(address.to_bits() & IPV6_NETWORK).into())
            }
            // The peer is gone already.
            None => Source::Remote(Ipv4Addr::UNSPECIFIED.into()),
        }
    }
}

/// What is known about the client of a connection. It only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ClientTrust {
    /// The TLS handshake is not complete.
    Handshaking,
    /// No request was authenticated yet.
    Anonymous,
    /// A request was authenticated.
    Authenticated,
    /// A request was authenticated as a node or as a user who is exempt from limits.
    Exempt,
}

/// The reason why a connection was refused, or a request on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// There are too many.
    Total,
    /// There are too many of its source address.
    Source,
    /// Too many are in their TLS handshake.
    Handshakes,
    /// Too many of its source address are in their TLS handshake.
    SourceHandshakes,
    /// It was admitted to the reserve, and its user is not exempt.
    Reserve,
}

/// The reason why an open connection was closed for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionReason {
    /// No request was authenticated on it, and none was in flight.
    Idle,
    /// Its TLS handshake took long.
    SlowHandshake,
}

/// A snapshot of the table, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections in their TLS handshake, and those that are anonymous, authenticated and exempt.
    pub open: [usize; 4],
    /// Connections from this host, which are not in `open`.
    pub loopback: usize,
    /// Refused ones, in the order of [`RefusalReason`].
    pub refused: [u64; 5],
    /// Evicted ones, in the order of [`EvictionReason`].
    pub evicted: [u64; 2],
}

impl Counts {
    /// Open connections, by the label of their state.
    pub fn by_state(&self) -> [(&'static str, usize); 5] {
        let [handshaking, anonymous, authenticated, exempt] = self.open;
        [
            ("handshaking", handshaking),
            ("anonymous", anonymous),
            ("authenticated", authenticated),
            ("exempt", exempt),
            ("loopback", self.loopback),
        ]
    }

    /// Refused ones, by the label of the reason.
    pub fn by_refusal(&self) -> [(&'static str, u64); 5] {
        let [total, source, handshakes, source_handshakes, reserve] = self.refused;
        [
            ("total", total),
            ("source", source),
            ("handshakes", handshakes),
            ("source_handshakes", source_handshakes),
            ("reserve", reserve),
        ]
    }

    /// Evicted ones, by the label of the reason.
    pub fn by_eviction(&self) -> [(&'static str, u64); 2] {
        let [idle, slow_handshake] = self.evicted;
        [("idle", idle), ("slow_handshake", slow_handshake)]
    }
}

/// All open connections of a server, shared by its workers. Cheap to clone.
#[derive(Clone)]
pub struct Connections(Arc<Shared>);

struct Shared {
    clock: Clock,
    table: Lock<Table>,
    /// The budget of all connections; empty until the memory of the server is divided, before it serves.
    memory: OnceLock<MemoryBudget>,
    failed_handshakes: AtomicU64,
}

impl Connections {
    /// An empty table.
    pub fn new(bounds: Bounds, clock: Clock) -> Connections {
        Connections(Arc::new(Shared {
            clock,
            table: Lock::new(Table::new(bounds)),
            memory: OnceLock::new(),
            failed_handshakes: AtomicU64::new(0),
        }))
    }

    /// Counts the connections from now on in this budget. The first one that is given stays.
    pub fn set_memory_budget(&self, memory: MemoryBudget) {
        self.0.memory.get_or_init(|| memory);
    }

    /// Admits a connection, or refuses it. Room may be made by closing another.
    pub fn admit(&self, address: Option<SocketAddr>) -> Result<OpenConnection, RefusalReason> {
        let source = Source::new(address);
        let now = self.now();
        let mut table = self.0.table.lock();
        let memory = self.0.memory.get();
        let is_in_reserve = table.make_room(source, memory, now)?;
        let state = Arc::new(State {
            id: table.next_id(),
            connections: self.clone(),
            trust: AtomicU8::new(ClientTrust::Handshaking as u8),
            is_in_reserve: AtomicBool::new(is_in_reserve),
            in_flight: AtomicUsize::new(0),
            idle_since: AtomicU64::new(now),
            eviction: CutSignal::default(),
        });
        // There was room a moment ago, and it stays reserved until the connection leaves the table.
        let reservation = memory.map(|memory| memory.charge(limits::CONNECTION_BYTES));
        table.insert(Arc::clone(&state), source, reservation, now);
        Ok(OpenConnection(ConnectionState(state)))
    }

    /// Counts a connection whose TLS handshake has failed.
    pub fn note_failed_handshake(&self) {
        self.0.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were.
    pub fn failed_handshakes(&self) -> u64 {
        self.0.failed_handshakes.load(Ordering::Relaxed)
    }

    /// What is open, and what was refused and evicted so far.
    pub fn counts(&self) -> Counts {
        self.0.table.lock().counts()
    }

    /// Microseconds on the monotonic clock.
    fn now(&self) -> u64 {
        micros(self.0.clock.moment().since(Moment::default()))
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// A connection in the table, which leaves it when this is dropped.
pub struct OpenConnection(ConnectionState);

impl OpenConnection {
    /// The state of the connection, for its requests.
    pub fn state(&self) -> &ConnectionState {
        &self.0
    }

    /// Serves the connection by `driving` it, until that ends or the connection has to make room for another one.
    pub async fn serve(&self, driving: impl Future<Output = ()>) -> ConnectionEnd {
        let mut driving = pin!(driving);
        let mut can_be_evicted = true;
        poll_fn(|cx| {
            if driving.as_mut().poll(cx).is_ready() {
                return Poll::Ready(ConnectionEnd::Completed);
            }
            if can_be_evicted {
                if self.0.0.eviction.poll_raised(cx).is_ready() {
                    return Poll::Ready(ConnectionEnd::Evicted);
                }
                // An authenticated connection is never evicted, so its watches need not check the signal with every event.
                can_be_evicted = !self.0.is_authenticated();
            }
            Poll::Pending
        })
        .await
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The client or the server has ended it.
    Completed,
    /// It was evicted for another connection.
    Evicted,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let state = &self.0.0;
        state.connections.0.table.lock().remove(state.id);
    }
}

/// The state of one connection. Every request on it has a clone in its [`super::peer::Peer`].
#[derive(Clone)]
pub struct ConnectionState(Arc<State>);

struct State {
    id: u64,
    connections: Connections,
    /// A [`ClientTrust`]. Also in the table; this copy is read without its lock.
    trust: AtomicU8,
    /// Whether only exempt users may use this connection.
    is_in_reserve: AtomicBool,
    /// Requests in flight, as long as the connection is anonymous; [`EVICTED`] once it has to close.
    in_flight: AtomicUsize,
    /// When the last request ended, in microseconds.
    idle_since: AtomicU64,
    eviction: CutSignal,
}

impl ConnectionState {
    /// Notes that the TLS handshake is complete.
    pub fn note_handshake(&self) {
        self.raise_trust(ClientTrust::Anonymous);
    }

    /// Notes who sent a request. `false` if the request must be refused and the connection closed: it was admitted to the reserve,
    /// and this user has no place there.
    pub fn note_caller(&self, caller: ClientTrust) -> bool {
        let state = &*self.0;
        if state.is_in_reserve.load(Ordering::Relaxed) && caller < ClientTrust::Exempt {
            let mut table = state.connections.0.table.lock();
            if !table.has_room_outside_reserve(state.connections.0.memory.get()) {
                table.count_refusal(RefusalReason::Reserve);
                return false;
            }
            state.is_in_reserve.store(false, Ordering::Relaxed);
        }
        self.raise_trust(caller);
        true
    }

    fn is_authenticated(&self) -> bool {
        self.0.trust.load(Ordering::Relaxed) >= ClientTrust::Authenticated as u8
    }

    fn raise_trust(&self, trust: ClientTrust) {
        let state = &*self.0;
        if state.trust.load(Ordering::Relaxed) >= trust as u8 {
            return;
        }
        state.trust.store(trust as u8, Ordering::Relaxed);
        state.connections.0.table.lock().raise_trust(state.id, trust, state.connections.now());
    }

    /// Keeps the connection from being evicted until the guard is dropped. `None` if nothing has to be kept, because the connection
    /// is authenticated.
    pub fn begin_request(&self) -> Option<RequestInFlight> {
        if self.is_authenticated() {
            return None;
        }
        let state = &*self.0;
        let increment = |requests: usize| (requests != EVICTED).then(|| requests + 1);
        let counted = state.in_flight.fetch_update(Ordering::AcqRel, Ordering::Acquire, increment);
        counted.is_ok().then(|| RequestInFlight(self.clone()))
    }
}

impl State {
    /// Marks the connection for closing, unless a request is in flight.
    fn evict_if_idle(&self) -> bool {
        let idle = self.in_flight.compare_exchange(0, EVICTED, Ordering::AcqRel, Ordering::Acquire);
        if idle.is_ok() {
            self.eviction.raise();
        }
        idle.is_ok()
    }
}

/// A request in flight on an anonymous connection.
pub struct RequestInFlight(ConnectionState);

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        let state = &*self.0.0;
        state.idle_since.store(state.connections.now(), Ordering::Relaxed);
        state.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

impl std::fmt::Debug for ConnectionState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionState").field("id", &self.0.id).finish_non_exhaustive()
    }
}
