//! The queues of one level, and which waiting request is next.
//!
//! Classic fair queueing, with requests in the place of packets. A virtual clock tells how much work every non-empty queue would
//! have completed by now if all were served at the same speed. A queue notes the virtual time at which its next request starts.
//! Among the oldest requests of all queues, the one with the earliest virtual finish is next. A request is charged an estimate
//! when it starts, and its real duration when it ends.
//!
//! Empty queues take no memory, so their number is not limited.
//!
//! Laws, each with its test: seats in use never exceed the limit, except for one request that is wider than the level and has it
//! alone; no request is lost; each queue is first-in first-out; a flow that floods cannot take another flow's share.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use pilothouse_types::clock::Timestamp;

use super::demand::{Demand, DemandStats};
use super::hand::Hand;
use super::requests::QueueSnapshot;
use super::utilization::{Utilization, UtilizationHistogram};
use crate::limits::{CLOCK_SET_BACK, REQUESTS_WAITING_PER_LEVEL};

/// The estimated duration of a request; the reference's value.
const ESTIMATED_DURATION: Duration = Duration::from_millis(3);

/// What a level does with requests that find no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelKind {
    /// Every request gets a seat.
    Exempt,
    /// They are rejected.
    Reject,
    /// They are queued.
    Queue {
        /// The number of queues.
        queues: u32,
        /// The number of queues that one flow may use.
        hand: usize,
        /// The maximum length of each queue.
        length: usize,
    },
}

/// The cost of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkEstimate {
    /// Seats while it executes.
    pub seats: u32,
    /// Seats after that, for the watch events that it causes.
    pub final_seats: u32,
    /// How long those are held.
    pub linger: Duration,
}

impl WorkEstimate {
    /// The usual cost: one seat, and nothing afterwards.
    pub const ONE: WorkEstimate = WorkEstimate { seats: 1, final_seats: 0, linger: Duration::ZERO };

    /// The seats that it occupies: the maximum of both.
    pub fn width(&self) -> u32 {
        self.seats.max(self.final_seats)
    }

    /// The estimated work, in seat-microseconds.
    fn total_work(&self) -> u64 {
        u64::from(self.seats) * micros(ESTIMATED_DURATION) + u64::from(self.final_seats) * micros(self.linger)
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// No seat is free, and the level has no queues.
    NoSeat,
    /// The queue is full.
    QueueFull,
    /// The request has waited too long.
    TimedOut,
}

/// The result of an arrival.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The request executes.
    Seated(ExecutingRequest),
    /// The request waits.
    Queued(Ticket),
    /// The request is rejected.
    Rejected(RejectReason),
}

/// An executing request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutingRequest {
    /// The queue that it came from, if the level has queues.
    queue: Option<u32>,
    work: WorkEstimate,
    start: Timestamp,
}

impl ExecutingRequest {
    /// The index of the queue that it came from, if the level has queues.
    pub fn queue(&self) -> Option<u32> {
        self.queue
    }
}

/// Identifies a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    queue: u32,
    number: u64,
    work: WorkEstimate,
    /// The length of its queue, including itself.
    pub length: usize,
}

impl Ticket {
    /// The queue that it waits in.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// The request once it is dispatched.
    pub fn into_executing(self, start: Timestamp) -> ExecutingRequest {
        ExecutingRequest { queue: Some(self.queue), work: self.work, start }
    }
}

/// The numbers of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Executing requests.
    pub executing: u32,
    /// Occupied seats.
    pub seats: u32,
    /// Waiting requests.
    pub waiting: usize,
    /// Seats that the waiting requests need.
    pub seats_wanted: u32,
}

struct WaitingRequest<T> {
    number: u64,
    work: WorkEstimate,
    /// The virtual time of its arrival.
    virtual_arrival: f64,
    token: T,
}

/// A queue with waiting or executing requests.
struct Queue<T> {
    waiting: VecDeque<WaitingRequest<T>>,
    /// The estimated work of the waiting requests.
    queued_work: u64,
    /// The virtual time at which its next request starts.
    next_start: f64,
    executing: u32,
    seats: u32,
}

impl<T> Queue<T> {
    /// No request starts before its arrival, in virtual time either: a queue cannot save up an unused share.
    fn limit_next_start(&mut self) {
        if let Some(oldest) = self.waiting.front() {
            self.next_start = self.next_start.max(oldest.virtual_arrival);
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.executing == 0 && self.seats == 0
    }
}

/// The queues of one level. `T`: a token of the caller for each waiting request, returned when the request is dispatched.
pub struct Queues<T> {
    shape: LevelKind,
    limit: u32,
    queues: BTreeMap<u32, Queue<T>>,
    /// The virtual clock, in seat-microseconds.
    virtual_time: f64,
    /// The time of the last call.
    now: Timestamp,
    /// The queue that was served last: among equals the one after it is next.
    last_served: u32,
    /// The number of requests that arrived; numbers them, and rotates the hands.
    arrivals: u64,
    load: Load,
    /// Lingering seats, by when they become free.
    lingering: BinaryHeap<Reverse<(Timestamp, Option<u32>, u32)>>,
    demand: Demand,
    utilization: Utilization,
}

/// Requests whose turn has come, and the time of it.
pub type Dispatched<T> = Vec<(T, Timestamp)>;

impl<T> Queues<T> {
    /// A level without requests.
    pub fn new(shape: LevelKind, limit: u32, now: Timestamp) -> Queues<T> {
        Queues {
            shape,
            limit,
            queues: BTreeMap::new(),
            virtual_time: 0.0,
            now,
            last_served: 0,
            arrivals: 0,
            load: Load::default(),
            lingering: BinaryHeap::new(),
            demand: Demand::new(now),
            utilization: Utilization::new(now),
        }
    }

    /// The numbers of the level.
    pub fn load(&self) -> Load {
        self.load
    }

    /// The number of seats.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The configured number of queues.
    pub fn queue_count(&self) -> u32 {
        match self.shape {
            LevelKind::Queue { queues, .. } => queues,
            LevelKind::Exempt | LevelKind::Reject => 0,
        }
    }

    /// The queues with waiting or executing requests.
    pub fn snapshots(&self) -> impl Iterator<Item = QueueSnapshot> {
        self.queues.iter().map(|(index, queue)| {
            let sum = |seats: fn(&WorkEstimate) -> u32| {
                queue.waiting.iter().map(|waiting| seats(&waiting.work)).sum()
            };
            QueueSnapshot {
                index: *index,
                waiting: queue.waiting.len(),
                executing: queue.executing,
                seats: queue.seats,
                next_start: queue.next_start,
                waiting_seats: [sum(|work| work.seats), sum(WorkEstimate::width)],
                queued_work: queue.queued_work,
            }
        })
    }

    /// The tokens of the waiting requests, each with its position in its queue.
    pub fn waiting(&self) -> impl Iterator<Item = (usize, &T)> {
        self.queues.values().flat_map(|queue| {
            queue.waiting.iter().enumerate().map(|(position, waiting)| (position, &waiting.token))
        })
    }

    /// Whether no request executes or waits.
    pub fn is_idle(&self) -> bool {
        self.load.executing == 0 && self.load.waiting == 0
    }

    /// The demand since the last call. `previous`: the result of the last call.
    pub fn observe_demand(&mut self, now: Timestamp, previous: &DemandStats) -> DemandStats {
        self.demand.finish_period(now, previous)
    }

    /// The histogram of the utilization of the seats.
    pub fn utilization(&mut self, now: Timestamp) -> UtilizationHistogram {
        self.utilization.histogram(now)
    }

    /// Sets the number of seats that counts as full utilization.
    pub fn set_capacity(&mut self, now: Timestamp, seats: u32) {
        self.utilization.set_capacity(now, seats);
    }

    /// When lingering seats become free that requests wait for.
    pub fn next_release(&self) -> Option<Timestamp> {
        let first = self.lingering.peek().map(|Reverse((due, ..))| *due);
        first.filter(|_| self.load.waiting > 0)
    }

    /// Changes the shape or the number of seats. Waiting requests stay in their queues.
    pub fn reshape(&mut self, shape: LevelKind, limit: u32, now: Timestamp) -> Dispatched<T> {
        self.advance(now);
        (self.shape, self.limit) = (shape, limit);
        self.dispatch()
    }

    /// Frees lingering seats whose time is over.
    pub fn release(&mut self, now: Timestamp) -> Dispatched<T> {
        self.advance(now);
        self.dispatch()
    }

    /// A request of this flow arrives. `token` is called if the request has to wait; its result may be among those dispatched at
    /// once.
    pub fn arrive(
        &mut self,
        now: Timestamp,
        flow: u64,
        work: WorkEstimate,
        token: impl FnOnce() -> T,
    ) -> (Arrival, Dispatched<T>) {
        self.advance(now);
        let LevelKind::Queue { queues, hand, length } = self.shape else {
            let fits = self.fits(work.width());
            let arrival = if fits { self.start(None, work) } else { Arrival::Rejected(RejectReason::NoSeat) };
            return (arrival, Vec::new());
        };
        let queue = self.choose_queue(&Hand::deal(flow, queues, hand));
        if self.load.waiting == 0 && self.load.seats < self.limit && self.fits(work.width()) {
            let virtual_time = self.virtual_time;
            let target = self.queue_mut(queue);
            // As for waiting requests, see [`Queue::limit_next_start`].
            target.next_start = target.next_start.max(virtual_time);
            return (self.start(Some(queue), work), Vec::new());
        }
        let waiting_before = self.queues.get(&queue).map_or(0, |queue| queue.waiting.len());
        let is_full = self.load.seats >= self.limit && waiting_before >= length;
        if is_full || self.load.waiting >= REQUESTS_WAITING_PER_LEVEL {
            return (Arrival::Rejected(RejectReason::QueueFull), Vec::new());
        }
        let number = self.arrivals;
        let waiting = WaitingRequest { number, work, virtual_arrival: self.virtual_time, token: token() };
        let target = self.queue_mut(queue);
        target.queued_work += work.total_work();
        target.waiting.push_back(waiting);
        target.limit_next_start();
        self.load.waiting += 1;
        self.load.seats_wanted += work.width();
        self.record_load();
        let ticket = Ticket { queue, number, work, length: waiting_before + 1 };
        (Arrival::Queued(ticket), self.dispatch())
    }

    /// A waiting request leaves. Returns whether it still waited; if not, it was dispatched before.
    pub fn leave(&mut self, now: Timestamp, ticket: &Ticket) -> (bool, Dispatched<T>) {
        self.advance(now);
        let Some(queue) = self.queues.get_mut(&ticket.queue) else { return (false, Vec::new()) };
        let Ok(index) = queue.waiting.binary_search_by_key(&ticket.number, |waiting| waiting.number) else {
            return (false, Vec::new());
        };
        queue.waiting.remove(index);
        queue.queued_work -= ticket.work.total_work();
        queue.limit_next_start();
        self.remove_if_idle(ticket.queue);
        self.load.waiting -= 1;
        self.load.seats_wanted -= ticket.work.width();
        self.record_load();
        // The request may have been wide and blocked narrower ones.
        (true, self.dispatch())
    }

    /// A request has ended.
    pub fn finish(&mut self, now: Timestamp, request: ExecutingRequest) -> Dispatched<T> {
        self.advance(now);
        let ExecutingRequest { queue: from, work, start } = request;
        self.load.executing -= 1;
        if let Some(queue) = from.and_then(|from| self.queues.get_mut(&from)) {
            queue.executing -= 1;
            let (estimated, actual) =
                (micros(ESTIMATED_DURATION) as f64, now.0.saturating_sub(start.0) as f64);
            queue.next_start += (actual - estimated) * f64::from(work.seats);
            queue.limit_next_start();
        }
        if work.final_seats > 0 && !work.linger.is_zero() && self.shape != LevelKind::Exempt {
            self.lingering.push(Reverse((now.plus(work.linger), from, work.width())));
        } else {
            self.free_seats(from, work.width());
        }
        self.dispatch()
    }

    /// Advances the virtual clock by the time since the last call.
    fn advance(&mut self, now: Timestamp) {
        let elapsed = now.0.saturating_sub(self.now.0) as f64;
        let set_back = Duration::from_micros(self.now.0.saturating_sub(now.0));
        if set_back < CLOCK_SET_BACK {
            self.now = self.now.max(now);
        } else {
            // The clock was set back: lingering seats must not stay until it has caught up.
            let lingering = std::mem::take(&mut self.lingering).into_iter();
            let earlier = |Reverse((due, from, seats)): Reverse<(Timestamp, _, _)>| {
                Reverse((due.minus(set_back), from, seats))
            };
            self.lingering = lingering.map(earlier).collect();
            self.now = now;
        }
        if self.queues.is_empty() {
            // No queue refers to an old virtual time.
            self.virtual_time = 0.0;
        } else {
            // Seats that are free because the next request needs more of them serve nobody. If they were counted, the virtual
            // clock would run ahead of all queues.
            self.virtual_time += elapsed * f64::from(self.load.seats) / self.queues.len() as f64;
        }
        while let Some(Reverse((due, from, seats))) = self.lingering.peek().copied()
            && due <= self.now
        {
            self.lingering.pop();
            self.free_seats(from, seats);
        }
    }

    fn free_seats(&mut self, from: Option<u32>, seats: u32) {
        self.load.seats -= seats;
        self.record_load();
        if let Some(from) = from {
            if let Some(queue) = self.queues.get_mut(&from) {
                queue.seats -= seats;
            }
            self.remove_if_idle(from);
        }
    }

    fn remove_if_idle(&mut self, queue: u32) {
        if self.queues.get(&queue).is_some_and(Queue::is_idle) {
            self.queues.remove(&queue);
        }
    }

    fn record_load(&mut self) {
        self.demand.set(self.now, f64::from(self.load.seats + self.load.seats_wanted));
        self.utilization.set(self.now, self.load.seats);
    }

    /// The queue of the hand with the least waiting work.
    fn choose_queue(&mut self, hand: &Hand) -> u32 {
        let turn = usize::try_from(self.arrivals).unwrap_or_default();
        self.arrivals += 1;
        let queued_work = |queue: &u32| self.queues.get(queue).map_or(0, |queue| queue.queued_work);
        hand.iter_from(turn).min_by_key(queued_work).unwrap_or_default()
    }

    fn queue_mut(&mut self, index: u32) -> &mut Queue<T> {
        let next_start = self.virtual_time;
        let make = || Queue { waiting: VecDeque::new(), queued_work: 0, next_start, executing: 0, seats: 0 };
        self.queues.entry(index).or_insert_with(make)
    }

    /// Whether so many seats are free. A request wider than the level is admitted when no other executes.
    fn fits(&self, seats: u32) -> bool {
        match self.shape {
            LevelKind::Exempt => true,
            _ if seats > self.limit => self.load.executing == 0,
            _ => self.load.seats + seats <= self.limit,
        }
    }

    fn start(&mut self, from: Option<u32>, work: WorkEstimate) -> Arrival {
        self.load.executing += 1;
        self.load.seats += work.width();
        self.record_load();
        if let Some(queue) = from.and_then(|from| self.queues.get_mut(&from)) {
            queue.executing += 1;
            queue.seats += work.width();
            queue.next_start += work.total_work() as f64;
            queue.limit_next_start();
            self.last_served = from.unwrap_or_default();
        }
        Arrival::Seated(ExecutingRequest { queue: from, work, start: self.now })
    }

    /// Dispatches as many requests as there are seats for.
    fn dispatch(&mut self) -> Dispatched<T> {
        let mut dispatched = Vec::new();
        while self.load.waiting > 0
            && self.load.seats < self.limit
            && let Some(next) = self.next_queue()
        {
            let Some(queue) = self.queues.get_mut(&next) else { break };
            let Some(WaitingRequest { work, token, .. }) = queue.waiting.pop_front() else { break };
            queue.queued_work -= work.total_work();
            self.load.waiting -= 1;
            self.load.seats_wanted -= work.width();
            self.start(Some(next), work);
            dispatched.push((token, self.now));
        }
        dispatched
    }

    /// The queue whose oldest request has the earliest virtual finish; among equals the one after the last served. `None` if its
    /// seats are not free: otherwise wide requests would starve.
    fn next_queue(&self) -> Option<u32> {
        let after = self.queues.range(self.last_served.saturating_add(1)..);
        let before = self.queues.range(..=self.last_served);
        let finishes = after.chain(before).filter_map(|(index, queue)| {
            let oldest = queue.waiting.front()?;
            Some((queue.next_start + oldest.work.total_work() as f64, *index, oldest.work.width()))
        });
        // The first of equals wins.
        let first = finishes.reduce(|best, other| if other.0 < best.0 { other } else { best });
        first.filter(|(_, _, seats)| self.fits(*seats)).map(|(_, index, _)| index)
    }
}

#[cfg(test)]
#[path = "queues_tests.rs"]
mod tests;
