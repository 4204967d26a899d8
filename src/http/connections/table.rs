//! The table itself: plain bookkeeping under one lock.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pilothouse_types::limits::SMALL_REQUEST_BYTES;
use pilothouse_types::memory::{MemoryBudget, Reservation};

use super::{Bounds, ClientTrust, Counts, EvictionReason, RefusalReason, Source, State, micros};
use crate::limits;

/// Connections by the time since when they are idle or in their handshake, in microseconds, and by their id.
type Queue = BTreeSet<(u64, u64)>;

/// The connections that may be closed for others, the first in line first.
#[derive(Default)]
struct Candidates {
    handshaking: Queue,
    anonymous: Queue,
}

impl Candidates {
    fn queue(&mut self, trust: ClientTrust) -> Option<&mut Queue> {
        match trust {
            ClientTrust::Handshaking => Some(&mut self.handshaking),
            ClientTrust::Anonymous => Some(&mut self.anonymous),
            ClientTrust::Authenticated | ClientTrust::Exempt => None,
        }
    }
}

/// The connections of one source address.
#[derive(Default)]
struct SourceEntry {
    open: usize,
    candidates: Candidates,
}

struct Entry {
    state: Arc<State>,
    source: Source,
    trust: ClientTrust,
    /// Its position in the queues.
    since: u64,
    /// The memory that it takes, if that is counted. An evicted connection gives it back at once.
    _memory: Option<Reservation>,
}

/// The connections that may be closed.
#[derive(Clone, Copy)]
enum Victims {
    Of(Source),
    Remote,
}

/// Whether another connection fits below the memory limit. The last part of it is left to requests: a connection without them is
/// of no use. A part is always available: clients that fill the memory with objects must not keep out those that would delete them.
fn has_memory(memory: Option<&MemoryBudget>) -> bool {
    memory.is_none_or(|memory| {
        memory.bytes() < memory.limit() / limits::CONNECTIONS_GUARANTEED_DIVISOR
            || memory.has_room_for(SMALL_REQUEST_BYTES + 1)
    })
}

pub(super) struct Table {
    bounds: Bounds,
    open: HashMap<u64, Entry>,
    sources: HashMap<Source, SourceEntry>,
    /// The candidates of all sources except the loopback, whose candidates are in `sources` only.
    remote: Candidates,
    counts: Counts,
    last_id: u64,
    /// The last position in the queues that was given to a connection in use.
    last_position: u64,
}

impl Table {
    pub(super) fn new(bounds: Bounds) -> Table {
        Table {
            bounds,
            open: HashMap::new(),
            sources: HashMap::new(),
            remote: Candidates::default(),
            counts: Counts::default(),
            last_id: 0,
            last_position: 0,
        }
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn count_refusal(&mut self, reason: RefusalReason) {
        self.counts.refused[reason as usize] += 1;
    }

    /// Whether there is room for users who are not exempt.
    pub(super) fn has_room_outside_reserve(&self, memory: Option<&MemoryBudget>) -> bool {
        self.open.len() <= self.bounds.total.saturating_sub(self.bounds.reserve) && has_memory(memory)
    }

    /// Makes room for a connection from `source`, or returns the reason of its refusal. Returns whether it uses the reserve.
    pub(super) fn make_room(
        &mut self,
        source: Source,
        memory: Option<&MemoryBudget>,
        now: u64,
    ) -> Result<bool, RefusalReason> {
        let result = match source {
            Source::Loopback => self.make_room_for_loopback(memory, now),
            Source::Remote(_) => self.make_room_for_remote(source, memory, now),
        };
        result.inspect_err(|reason| {
            self.count_refusal(*reason);
            if let Some(memory) = memory.filter(|memory| !has_memory(Some(memory))) {
                memory.count_refusal();
            }
        })
    }

    /// Without memory another connection is closed, if one may be; the new one is admitted in any case. There are few of them, and
    /// an operator must get in when memory is short.
    fn make_room_for_loopback(
        &mut self,
        memory: Option<&MemoryBudget>,
        now: u64,
    ) -> Result<bool, RefusalReason> {
        let has_slot = self.open.len() < self.bounds.total;
        if has_slot && has_memory(memory) {
            return Ok(false);
        }
        let is_evicted =
            self.evict_any(Victims::Remote, now) || self.evict_any(Victims::Of(Source::Loopback), now);
        if is_evicted || has_slot {
            return Ok(false);
        }
        Err(RefusalReason::Total)
    }

    fn make_room_for_remote(
        &mut self,
        source: Source,
        memory: Option<&MemoryBudget>,
        now: u64,
    ) -> Result<bool, RefusalReason> {
        let Bounds { total, per_source, handshakes, handshakes_per_source, reserve } = self.bounds;
        let source_entry = self.sources.get(&source);
        let (open, handshaking) = source_entry
            .map_or((0, 0), |source_entry| (source_entry.open, source_entry.candidates.handshaking.len()));
        if handshaking >= handshakes_per_source && !self.evict_slow_handshake(Victims::Of(source), now) {
            return Err(RefusalReason::SourceHandshakes);
        }
        if self.remote.handshaking.len() >= handshakes && !self.evict_slow_handshake(Victims::Remote, now) {
            return Err(RefusalReason::Handshakes);
        }
        if open >= per_source && !self.evict_any(Victims::Of(source), now) {
            return Err(RefusalReason::Source);
        }
        let has_room = self.open.len() < total.saturating_sub(reserve) && has_memory(memory);
        if has_room || self.evict_any(Victims::Remote, now) {
            return Ok(false);
        }
        // The reserve is small, so that memory does not bound it.
        if self.open.len() < total.saturating_sub(reserve / 2) {
            return Ok(true);
        }
        Err(RefusalReason::Total)
    }

    pub(super) fn insert(
        &mut self,
        state: Arc<State>,
        source: Source,
        memory: Option<Reservation>,
        now: u64,
    ) {
        let (id, trust) = (state.id, ClientTrust::Handshaking);
        self.sources.entry(source).or_default().open += 1;
        *self.counter(source, trust) += 1;
        self.open.insert(id, Entry { state, source, trust, since: now, _memory: memory });
        self.enqueue(id);
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.dequeue(id);
        let Some(Entry { source, trust, .. }) = self.open.remove(&id) else { return };
        *self.counter(source, trust) -= 1;
        if let Some(source_entry) = self.sources.get_mut(&source) {
            source_entry.open -= 1;
            if source_entry.open == 0 {
                self.sources.remove(&source);
            }
        }
    }

    /// Notes that more is known about a client.
    pub(super) fn raise_trust(&mut self, id: u64, trust: ClientTrust, now: u64) {
        self.dequeue(id);
        let Some(entry) = self.open.get_mut(&id) else { return };
        let (source, before) = (entry.source, entry.trust);
        (entry.trust, entry.since) = (trust, now);
        *self.counter(source, before) -= 1;
        *self.counter(source, trust) += 1;
        self.enqueue(id);
    }

    fn counter(&mut self, source: Source, trust: ClientTrust) -> &mut usize {
        match source {
            Source::Loopback => &mut self.counts.loopback,
            Source::Remote(_) => &mut self.counts.open[trust as usize],
        }
    }

    /// Puts a connection into the queues of those that may be closed, if it may.
    fn enqueue(&mut self, id: u64) {
        self.change_queues(id, |queue, position| {
            queue.insert(position);
        });
    }

    fn dequeue(&mut self, id: u64) {
        self.change_queues(id, |queue, position| {
            queue.remove(&position);
        });
    }

    fn change_queues(&mut self, id: u64, change: impl Fn(&mut Queue, (u64, u64))) {
        let Some(Entry { source, trust, since, .. }) = self.open.get(&id) else { return };
        if let Some(queue) =
            self.sources.get_mut(source).and_then(|source_entry| source_entry.candidates.queue(*trust))
        {
            change(queue, (*since, id));
        }
        if let (Source::Remote(_), Some(queue)) = (source, self.remote.queue(*trust)) {
            change(queue, (*since, id));
        }
    }

    fn evict_any(&mut self, victims: Victims, now: u64) -> bool {
        self.evict_idle(victims, now) || self.evict_slow_handshake(victims, now)
    }

    /// Closes the anonymous connection that is idle the longest. Positions in the queue are not updated with each request: a
    /// connection that was used since moves to its right position now. The number of attempts is bounded, because the table is
    /// locked.
    fn evict_idle(&mut self, victims: Victims, now: u64) -> bool {
        for _ in 0..limits::CONNECTIONS_EXAMINED {
            let Some((since, id)) = self.first(victims, ClientTrust::Anonymous) else { return false };
            let Some(entry) = self.open.get(&id) else { return false };
            let idle_since = entry.state.idle_since.load(Ordering::Relaxed);
            if idle_since <= since && entry.state.evict_if_idle() {
                self.remove(id);
                self.counts.evicted[EvictionReason::Idle as usize] += 1;
                return true;
            }
            let position = if idle_since > since { idle_since } else { self.position_behind_all(now) };
            self.dequeue(id);
            if let Some(entry) = self.open.get_mut(&id) {
                entry.since = position;
            }
            self.enqueue(id);
        }
        false
    }

    /// A position for a connection in use: behind all others, also those of the same moment.
    fn position_behind_all(&mut self, now: u64) -> u64 {
        self.last_position = self.last_position.max(now) + 1;
        self.last_position
    }

    /// Closes the connection that is in its handshake the longest, if that is long.
    fn evict_slow_handshake(&mut self, victims: Victims, now: u64) -> bool {
        let Some((since, id)) = self.first(victims, ClientTrust::Handshaking) else { return false };
        let is_slow = now.saturating_sub(since) >= micros(limits::HANDSHAKE_UNDISTURBED);
        let Some(entry) = self.open.get(&id).filter(|_| is_slow) else { return false };
        if !entry.state.evict_if_idle() {
            return false;
        }
        self.remove(id);
        self.counts.evicted[EvictionReason::SlowHandshake as usize] += 1;
        true
    }

    fn first(&mut self, victims: Victims, trust: ClientTrust) -> Option<(u64, u64)> {
        let candidates = match victims {
            Victims::Of(source) => &mut self.sources.get_mut(&source)?.candidates,
            Victims::Remote => &mut self.remote,
        };
        candidates.queue(trust)?.first().copied()
    }

    /// Whether all numbers agree with each other.
    #[cfg(test)]
    pub(super) fn is_consistent(&self) -> bool {
        let sum_of_sources: usize = self.sources.values().map(|source| source.open).sum();
        let counted = self.counts.open.iter().sum::<usize>() + self.counts.loopback;
        let queued = |trust: ClientTrust, remote_only: bool| {
            let is_counted =
                |entry: &&Entry| entry.trust == trust && (!remote_only || entry.source != Source::Loopback);
            self.open.values().filter(is_counted).count()
        };
        let sum_of_queues = |queue: fn(&Candidates) -> usize| -> usize {
            self.sources.values().map(|source| queue(&source.candidates)).sum()
        };
        sum_of_sources == self.open.len()
            && counted == self.open.len()
            && self.sources.values().all(|source| source.open > 0)
            && self.remote.handshaking.len() == queued(ClientTrust::Handshaking, true)
            && self.remote.anonymous.len() == queued(ClientTrust::Anonymous, true)
            && sum_of_queues(|candidates| candidates.handshaking.len())
                == queued(ClientTrust::Handshaking, false)
            && sum_of_queues(|candidates| candidates.anonymous.len()) == queued(ClientTrust::Anonymous, false)
    }
}
