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

use super::demand::{Demand, Observed};
use super::hand::Hand;
use super::requests::QueueSnapshot;
use super::utilization::{TimeByPart, Utilization};
use crate::limits::{CLOCK_SET_BACK, REQUESTS_WAITING_PER_LEVEL};

/// The estimated duration of a request; the reference's value.
const GUESS: Duration = Duration::from_millis(3);

/// What a level does with requests without a seat.
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
    pub after: u32,
    /// How long those are held.
    pub linger: Duration,
}

impl WorkEstimate {
    /// The usual cost: one seat, and nothing afterwards.
    pub const ONE: WorkEstimate = WorkEstimate { seats: 1, after: 0, linger: Duration::ZERO };

    /// The seats that it occupies: the maximum of both.
    pub fn width(&self) -> u32 {
        self.seats.max(self.after)
    }

    /// The estimated work, in seat-microseconds.
    fn amount(&self) -> u64 {
        u64::from(self.seats) * micros(GUESS) + u64::from(self.after) * micros(self.linger)
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
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
    Seated(Seated),
    /// The request waits.
    Waits(Ticket),
    /// The request is rejected.
    Refused(Refusal),
}

/// An executing request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seated {
    /// The queue that it came from, if the level has queues.
    queue: Option<u32>,
    work: WorkEstimate,
    began: Timestamp,
}

impl Seated {
    /// The queue that it came out of, if there are any.
    pub fn queue(&self) -> Option<u32> {
        self.queue
    }
}

/// The place of a request that waits.
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

    /// The place of this request once it was called.
    pub fn seated(self, began: Timestamp) -> Seated {
        Seated { queue: Some(self.queue), work: self.work, began }
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
    /// Seats that those need.
    pub seats_wanted: u32,
}

struct Waiting<T> {
    number: u64,
    work: WorkEstimate,
    /// The virtual time of its arrival.
    came: f64,
    token: T,
}

/// A queue with waiting or executing requests.
struct Queue<T> {
    waiting: VecDeque<Waiting<T>>,
    /// The estimated work of the waiting requests.
    amount: u64,
    /// The virtual time at which its next request starts.
    next: f64,
    executing: u32,
    seats: u32,
}

impl<T> Queue<T> {
    /// No request starts before its arrival, in virtual time either: a queue cannot save up an unused share.
    fn bound(&mut self) {
        if let Some(oldest) = self.waiting.front() {
            self.next = self.next.max(oldest.came);
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.executing == 0 && self.seats == 0
    }
}

/// The queues of one level. `T`: calls waiting requests.
pub struct Queues<T> {
    shape: LevelKind,
    limit: u32,
    queues: BTreeMap<u32, Queue<T>>,
    /// The virtual clock, in seat-microseconds.
    progress: f64,
    at: Timestamp,
    /// The queue that was served last: among equals the one after it is next.
    served: u32,
    came: u64,
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
            progress: 0.0,
            at: now,
            served: 0,
            came: 0,
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

    /// How many queues there are.
    pub fn many(&self) -> u32 {
        match self.shape {
            LevelKind::Queue { queues, .. } => queues,
            LevelKind::Exempt | LevelKind::Reject => 0,
        }
    }

    /// The queues that somebody is in, or came out of and is not done.
    pub fn told(&self) -> impl Iterator<Item = QueueSnapshot> {
        self.queues.iter().map(|(index, queue)| {
            let sum =
                |of: fn(&WorkEstimate) -> u32| queue.waiting.iter().map(|waiting| of(&waiting.work)).sum();
            QueueSnapshot {
                index: *index,
                waiting: queue.waiting.len(),
                executing: queue.executing,
                seats: queue.seats,
                next: queue.next,
                wanted: [sum(|work| work.seats), sum(WorkEstimate::width)],
                amount: queue.amount,
            }
        })
    }

    /// Those who wait, each with its place in its queue.
    pub fn waiting(&self) -> impl Iterator<Item = (usize, &T)> {
        self.queues.values().flat_map(|queue| {
            queue.waiting.iter().enumerate().map(|(place, waiting)| (place, &waiting.token))
        })
    }

    /// Whether nobody is here.
    pub fn is_idle(&self) -> bool {
        self.load.executing == 0 && self.load.waiting == 0
    }

    /// The demand since the last look.
    pub fn observe(&mut self, now: Timestamp, before: &Observed) -> Observed {
        self.demand.look(now, before)
    }

    /// For how long which part of the seats was taken.
    pub fn utilization(&mut self, now: Timestamp) -> TimeByPart {
        self.utilization.look(now)
    }

    /// Sets the number of seats that all of them are.
    pub fn measure_by(&mut self, now: Timestamp, seats: u32) {
        self.utilization.measure_by(now, seats);
    }

    /// When lingering seats become free that requests wait for.
    pub fn next_release(&self) -> Option<Timestamp> {
        let first = self.lingering.peek().map(|Reverse((at, ..))| *at);
        first.filter(|_| self.load.waiting > 0)
    }

    /// Changes the shape or the number of seats. Waiting requests stay in their queues.
    pub fn reshape(&mut self, shape: LevelKind, limit: u32, now: Timestamp) -> Dispatched<T> {
        self.pass(now);
        (self.shape, self.limit) = (shape, limit);
        self.call()
    }

    /// Frees lingering seats whose time is over.
    pub fn release(&mut self, now: Timestamp) -> Dispatched<T> {
        self.pass(now);
        self.call()
    }

    /// A request of this flow arrives. `token` is made if it has to wait; it may be among those called at once.
    pub fn arrive(
        &mut self,
        now: Timestamp,
        flow: u64,
        work: WorkEstimate,
        token: impl FnOnce() -> T,
    ) -> (Arrival, Dispatched<T>) {
        self.pass(now);
        let LevelKind::Queue { queues, hand, length } = self.shape else {
            let fits = self.fits(work.width());
            let arrival = if fits { self.seat(None, work) } else { Arrival::Refused(Refusal::NoSeat) };
            return (arrival, Vec::new());
        };
        let queue = self.emptiest(&Hand::deal(flow, queues, hand));
        if self.load.waiting == 0 && self.load.seats < self.limit && self.fits(work.width()) {
            let progress = self.progress;
            let into = self.queue(queue);
            // As for waiting requests, see [`Queue::bound`].
            into.next = into.next.max(progress);
            return (self.seat(Some(queue), work), Vec::new());
        }
        let before = self.queues.get(&queue).map_or(0, |queue| queue.waiting.len());
        let is_full = self.load.seats >= self.limit && before >= length;
        if is_full || self.load.waiting >= REQUESTS_WAITING_PER_LEVEL {
            return (Arrival::Refused(Refusal::QueueFull), Vec::new());
        }
        let (number, came) = (self.came, self.progress);
        let waiting = Waiting { number, work, came, token: token() };
        let into = self.queue(queue);
        into.amount += work.amount();
        into.waiting.push_back(waiting);
        into.bound();
        self.load.waiting += 1;
        self.load.seats_wanted += work.width();
        self.note_demand();
        let ticket = Ticket { queue, number, work, length: before + 1 };
        (Arrival::Waits(ticket), self.call())
    }

    /// A waiting request leaves. Answers whether it still waited; if not, its turn has come.
    pub fn leave(&mut self, now: Timestamp, ticket: &Ticket) -> (bool, Dispatched<T>) {
        self.pass(now);
        let Some(queue) = self.queues.get_mut(&ticket.queue) else { return (false, Vec::new()) };
        let Ok(at) = queue.waiting.binary_search_by_key(&ticket.number, |waiting| waiting.number) else {
            return (false, Vec::new());
        };
        queue.waiting.remove(at);
        queue.amount -= ticket.work.amount();
        queue.bound();
        self.tidy(ticket.queue);
        self.load.waiting -= 1;
        self.load.seats_wanted -= ticket.work.width();
        self.note_demand();
        // The request may have been wide and blocked narrower ones.
        (true, self.call())
    }

    /// A request has ended.
    pub fn finish(&mut self, now: Timestamp, seated: Seated) -> Dispatched<T> {
        self.pass(now);
        let Seated { queue: from, work, began } = seated;
        self.load.executing -= 1;
        if let Some(queue) = from.and_then(|from| self.queues.get_mut(&from)) {
            queue.executing -= 1;
            let (guess, took) = (micros(GUESS) as f64, now.0.saturating_sub(began.0) as f64);
            queue.next += (took - guess) * f64::from(work.seats);
            queue.bound();
        }
        if work.after > 0 && !work.linger.is_zero() && self.shape != LevelKind::Exempt {
            self.lingering.push(Reverse((now.plus(work.linger), from, work.width())));
        } else {
            self.free(from, work.width());
        }
        self.call()
    }

    /// Advances the virtual clock by the time since the last call.
    fn pass(&mut self, now: Timestamp) {
        let elapsed = now.0.saturating_sub(self.at.0) as f64;
        let back = Duration::from_micros(self.at.0.saturating_sub(now.0));
        if back < CLOCK_SET_BACK {
            self.at = self.at.max(now);
        } else {
            // The clock was set back: whoever lingers shall not do so until it has caught up.
            let lingering = std::mem::take(&mut self.lingering).into_iter();
            let earlier = |Reverse((at, from, seats)): Reverse<(Timestamp, _, _)>| {
                Reverse((at.minus(back), from, seats))
            };
            self.lingering = lingering.map(earlier).collect();
            self.at = now;
        }
        if self.queues.is_empty() {
            // No queue refers to an old reading.
            self.progress = 0.0;
        } else {
            // Seats that are free because the next request needs more of them serve nobody. If they were counted, the virtual
            // clock would run ahead of all queues.
            self.progress += elapsed * f64::from(self.load.seats) / self.queues.len() as f64;
        }
        while let Some(Reverse((at, from, seats))) = self.lingering.peek().copied()
            && at <= self.at
        {
            self.lingering.pop();
            self.free(from, seats);
        }
    }

    fn free(&mut self, from: Option<u32>, seats: u32) {
        self.load.seats -= seats;
        self.note_demand();
        if let Some(from) = from {
            if let Some(queue) = self.queues.get_mut(&from) {
                queue.seats -= seats;
            }
            self.tidy(from);
        }
    }

    fn tidy(&mut self, queue: u32) {
        if self.queues.get(&queue).is_some_and(Queue::is_idle) {
            self.queues.remove(&queue);
        }
    }

    fn note_demand(&mut self) {
        self.demand.set(self.at, f64::from(self.load.seats + self.load.seats_wanted));
        self.utilization.set(self.at, self.load.seats);
    }

    /// The queue of the hand with the least waiting work.
    fn emptiest(&mut self, hand: &Hand) -> u32 {
        let turn = usize::try_from(self.came).unwrap_or_default();
        self.came += 1;
        let amount = |queue: &u32| self.queues.get(queue).map_or(0, |queue| queue.amount);
        hand.from(turn).min_by_key(amount).unwrap_or_default()
    }

    fn queue(&mut self, index: u32) -> &mut Queue<T> {
        let next = self.progress;
        let make = || Queue { waiting: VecDeque::new(), amount: 0, next, executing: 0, seats: 0 };
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

    fn seat(&mut self, from: Option<u32>, work: WorkEstimate) -> Arrival {
        self.load.executing += 1;
        self.load.seats += work.width();
        self.note_demand();
        if let Some(queue) = from.and_then(|from| self.queues.get_mut(&from)) {
            queue.executing += 1;
            queue.seats += work.width();
            queue.next += work.amount() as f64;
            queue.bound();
            self.served = from.unwrap_or_default();
        }
        Arrival::Seated(Seated { queue: from, work, began: self.at })
    }

    /// Calls as many requests as there are seats for.
    fn call(&mut self) -> Dispatched<T> {
        let mut called = Vec::new();
        while self.load.waiting > 0
            && self.load.seats < self.limit
            && let Some(next) = self.next()
        {
            let Some(queue) = self.queues.get_mut(&next) else { break };
            let Some(Waiting { work, token, .. }) = queue.waiting.pop_front() else { break };
            queue.amount -= work.amount();
            self.load.waiting -= 1;
            self.load.seats_wanted -= work.width();
            self.seat(Some(next), work);
            called.push((token, self.at));
        }
        called
    }

    /// The queue whose oldest request has the earliest virtual finish; among equals the one after the last served. `None` if its
    /// seats are not free: otherwise wide requests would starve.
    fn next(&self) -> Option<u32> {
        let after = self.queues.range(self.served.saturating_add(1)..);
        let before = self.queues.range(..=self.served);
        let ends = after.chain(before).filter_map(|(index, queue)| {
            let oldest = queue.waiting.front()?;
            Some((queue.next + oldest.work.amount() as f64, *index, oldest.work.width()))
        });
        // The first of equals wins.
        let first = ends.reduce(|best, other| if other.0 < best.0 { other } else { best });
        first.filter(|(_, _, seats)| self.fits(*seats)).map(|(_, index, _)| index)
    }
}

#[cfg(test)]
#[path = "queues_tests.rs"]
mod tests;
