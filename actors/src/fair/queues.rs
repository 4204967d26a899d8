//! The queues of one level, and who of those that wait is next.
//!
//! Fair queueing as of old, with requests for packets. A meter of progress says how much work every queue that has any would
//! have had done by now, if each had been served at the same speed. A queue notes at which reading of the meter its next request
//! begins in that ideal world; of the oldest requests of all queues the one is next that would end there first. A request
//! is charged with a guess when it begins, and with what it really took when it ends.
//!
//! Nothing is kept of queues that are empty, so there may be as many as somebody likes.
//!
//! Laws, each with its test: never more seats in use than allowed, but for one request that is too wide for the level and
//! has it alone; nobody is lost; who has waited longest in a queue is the next of it; a flow that floods does not keep
//! another from its share.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use super::demand::{Demand, Observed};
use super::guests::QueueTold;
use super::hand::Hand;
use crate::clock::Timestamp;
use crate::limits::REQUESTS_WAITING_PER_LEVEL;

/// How long a request is thought to take before anybody knows; the reference server's value.
const GUESS: Duration = Duration::from_millis(3);

/// What a level does with requests for which it has no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// It has one for everybody.
    Exempt,
    /// They are refused.
    Reject,
    /// They wait.
    Queue {
        /// How many queues there are.
        queues: u32,
        /// How many of them one flow may use.
        hand: usize,
        /// How many requests wait in each.
        length: usize,
    },
}

/// What a request asks of its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Seats while it is worked on.
    pub seats: u32,
    /// Seats after that, for what it makes others do.
    pub after: u32,
    /// How long those.
    pub linger: Duration,
}

impl Work {
    /// What most requests are: one seat, and nothing after.
    pub const ONE: Work = Work { seats: 1, after: 0, linger: Duration::ZERO };

    /// The seats that it holds: the most that it ever needs.
    pub fn width(&self) -> u32 {
        self.seats.max(self.after)
    }

    /// What it is thought to take, in seats and microseconds.
    fn amount(&self) -> u64 {
        u64::from(self.seats) * micros(GUESS) + u64::from(self.after) * micros(self.linger)
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no seat, and nothing to wait in.
    NoSeat,
    /// Too many wait already.
    QueueFull,
    /// It has waited for too long.
    TimedOut,
}

/// What became of a request that came.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is worked on.
    Seated(Seated),
    /// It waits.
    Waits(Ticket),
    /// It is refused.
    Refused(Refusal),
}

/// The place of a request that is worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seated {
    /// The queue that it came out of, if there are any.
    queue: Option<u32>,
    work: Work,
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
    work: Work,
    /// How many wait in its queue, itself among them.
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

/// How much there is of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that are worked on.
    pub executing: u32,
    /// Seats that are taken.
    pub seats: u32,
    /// Requests that wait.
    pub waiting: usize,
    /// Seats that those want.
    pub seats_wanted: u32,
}

struct Waiting<T> {
    number: u64,
    work: Work,
    /// The reading of the meter when it came.
    came: f64,
    token: T,
}

/// A queue that somebody is in, or has come out of and is not done.
struct Queue<T> {
    waiting: VecDeque<Waiting<T>>,
    /// What those are thought to take.
    amount: u64,
    /// The reading of the meter at which the next request begins in the ideal world.
    next: f64,
    executing: u32,
    seats: u32,
}

impl<T> Queue<T> {
    /// Nothing begins before it has come, in the ideal world either: a queue that did not need its share does not save it.
    fn bound(&mut self) {
        if let Some(oldest) = self.waiting.front() {
            self.next = self.next.max(oldest.came);
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.executing == 0 && self.seats == 0
    }
}

/// The queues of one level. `T`: what calls those who wait.
pub struct Queues<T> {
    shape: Shape,
    limit: u32,
    queues: BTreeMap<u32, Queue<T>>,
    /// The meter, in seats and microseconds.
    progress: f64,
    at: Timestamp,
    /// The queue that was served last: of equals the one after it is next.
    served: u32,
    came: u64,
    load: Load,
    /// Seats that are held for what requests make others do, by when they are free.
    lingering: BinaryHeap<Reverse<(Timestamp, Option<u32>, u32)>>,
    demand: Demand,
}

/// Those whose turn has come, and when it came.
pub type Called<T> = Vec<(T, Timestamp)>;

impl<T> Queues<T> {
    /// A level without requests.
    pub fn new(shape: Shape, limit: u32, now: Timestamp) -> Queues<T> {
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
        }
    }

    /// How much there is of everything.
    pub fn load(&self) -> Load {
        self.load
    }

    /// How many seats there are.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// How many queues there are.
    pub fn many(&self) -> u32 {
        match self.shape {
            Shape::Queue { queues, .. } => queues,
            Shape::Exempt | Shape::Reject => 0,
        }
    }

    /// The queues that somebody is in, or came out of and is not done.
    pub fn told(&self) -> impl Iterator<Item = QueueTold> {
        self.queues.iter().map(|(index, queue)| {
            let sum = |of: fn(&Work) -> u32| queue.waiting.iter().map(|waiting| of(&waiting.work)).sum();
            QueueTold {
                index: *index,
                waiting: queue.waiting.len(),
                executing: queue.executing,
                seats: queue.seats,
                next: queue.next,
                wanted: [sum(|work| work.seats), sum(Work::width)],
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

    /// What the demand was since the last look.
    pub fn observe(&mut self, now: Timestamp, before: &Observed) -> Observed {
        self.demand.look(now, before)
    }

    /// When seats will be free that somebody waits for and nobody gives back.
    pub fn next_release(&self) -> Option<Timestamp> {
        let first = self.lingering.peek().map(|Reverse((at, ..))| *at);
        first.filter(|_| self.load.waiting > 0)
    }

    /// Takes another shape or another number of seats. Those who wait go on to wait where they are.
    pub fn reshape(&mut self, shape: Shape, limit: u32, now: Timestamp) -> Called<T> {
        self.pass(now);
        (self.shape, self.limit) = (shape, limit);
        self.call()
    }

    /// Frees seats whose time has come.
    pub fn release(&mut self, now: Timestamp) -> Called<T> {
        self.pass(now);
        self.call()
    }

    /// A request of this flow comes. `token` is made if it has to wait; it may be among those whose turn has come.
    pub fn arrive(
        &mut self,
        now: Timestamp,
        flow: u64,
        work: Work,
        token: impl FnOnce() -> T,
    ) -> (Arrival, Called<T>) {
        self.pass(now);
        let Shape::Queue { queues, hand, length } = self.shape else {
            let fits = self.fits(work.width());
            let arrival = if fits { self.seat(None, work) } else { Arrival::Refused(Refusal::NoSeat) };
            return (arrival, Vec::new());
        };
        let queue = self.emptiest(&Hand::deal(flow, queues, hand));
        if self.load.waiting == 0 && self.load.seats < self.limit && self.fits(work.width()) {
            let progress = self.progress;
            let into = self.queue(queue);
            // As for those that wait, see [`Queue::bound`].
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

    /// Whoever waits with this ticket does not want to any more. Answers whether it still did; else its turn has come.
    pub fn leave(&mut self, now: Timestamp, ticket: &Ticket) -> (bool, Called<T>) {
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
        // It may have been too wide, and kept others that are not.
        (true, self.call())
    }

    /// A request is done.
    pub fn finish(&mut self, now: Timestamp, seated: Seated) -> Called<T> {
        self.pass(now);
        let Seated { queue: from, work, began } = seated;
        self.load.executing -= 1;
        if let Some(queue) = from.and_then(|from| self.queues.get_mut(&from)) {
            queue.executing -= 1;
            let (guess, took) = (micros(GUESS) as f64, now.0.saturating_sub(began.0) as f64);
            queue.next += (took - guess) * f64::from(work.seats);
            queue.bound();
        }
        if work.after > 0 && !work.linger.is_zero() && self.shape != Shape::Exempt {
            self.lingering.push(Reverse((now.plus(work.linger), from, work.width())));
        } else {
            self.free(from, work.width());
        }
        self.call()
    }

    /// Moves the meter on to this moment, by what was there until now.
    fn pass(&mut self, now: Timestamp) {
        let elapsed = now.0.saturating_sub(self.at.0) as f64;
        self.at = self.at.max(now);
        if self.queues.is_empty() {
            // Nobody has taken a reading that still counts.
            self.progress = 0.0;
        } else {
            // Seats that are free because whoever is next needs more of them serve nobody: were they counted, the meter would
            // run ahead of all queues.
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
    }

    /// Of these queues the one in which the least work waits.
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

    /// Whether there are so many seats. What is wider than the level is let in when nobody else is worked on.
    fn fits(&self, seats: u32) -> bool {
        match self.shape {
            Shape::Exempt => true,
            _ if seats > self.limit => self.load.executing == 0,
            _ => self.load.seats + seats <= self.limit,
        }
    }

    fn seat(&mut self, from: Option<u32>, work: Work) -> Arrival {
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

    /// Calls as many as there are seats for.
    fn call(&mut self) -> Called<T> {
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

    /// The queue whose oldest request would end first in the ideal world; of equals the one after that which was served last.
    /// `None` if there are not enough seats for it: whoever is wide would else wait for ever.
    fn next(&self) -> Option<u32> {
        let after = self.queues.range(self.served.saturating_add(1)..);
        let before = self.queues.range(..=self.served);
        let ends = after.chain(before).filter_map(|(index, queue)| {
            let oldest = queue.waiting.front()?;
            Some((queue.next + oldest.work.amount() as f64, *index, oldest.work.width()))
        });
        // The first of equals stays.
        let first = ends.reduce(|best, other| if other.0 < best.0 { other } else { best });
        first.filter(|(_, _, seats)| self.fits(*seats)).map(|(_, index, _)| index)
    }
}

#[cfg(test)]
#[path = "queues_tests.rs"]
mod tests;
