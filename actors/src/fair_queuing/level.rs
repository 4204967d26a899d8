//! A level of priority as many threads use it: its queues behind a lock that is held for a few steps.
//!
//! Whoever has a [`Seat`] gives it back by dropping it, wherever that happens, and calls the next. Whoever waits leaves its queue
//! by dropping the [`Waiter`]: a client that hangs up does so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::lock::Lock;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::alarm::Alarm;
use super::demand::Observed;
use super::drops::Drops;
use super::queues::{Arrival, Dispatched, LevelKind, Load, Queues, Refusal, Seated, Ticket, WorkEstimate};
use super::requests::{Counts, QueueSnapshot, RequestEntry, RequestPosition, RequestTable};
use super::utilization::TimeByPart;

/// What calls a request that waits: it is told when its turn came.
struct WakeHandle {
    /// Which request it is.
    number: u64,
    turn: oneshot::Sender<Timestamp>,
}

struct State<G> {
    queues: Queues<WakeHandle>,
    drops: Drops,
    book: RequestTable<G>,
}

impl<G> State<G> {
    /// Tells those whose turn has come. Under the lock: whoever leaves must find out that they were called.
    fn tell(&mut self, called: Dispatched<WakeHandle>) {
        for (WakeHandle { number, turn }, at) in called {
            // Whoever hung up this moment finds the seat when they leave.
            let is_there = turn.send(at).is_ok();
            self.book.seat(number, at, is_there);
        }
    }

    fn refuse(&mut self, now: Timestamp, why: Refusal) -> Refused {
        self.book.counts.rejected += 1;
        Refused { why, seconds: self.drops.refuse(now) }
    }
}

/// A level. See the module text. `G`: what is known of those who are in it, for whoever asks.
pub struct Level<G> {
    /// A std lock: it is held for a few steps, never across a wait.
    state: Lock<State<G>>,
    /// The most seats that one request shall ask for.
    widest: AtomicU32,
    clock: Clock,
    /// Rung when somebody waits for seats that nobody gives back.
    alarm: Arc<Alarm>,
}

/// What became of a request that came to a level.
pub enum Entry<G> {
    /// It is worked on.
    Seated(Seat<G>),
    /// It has to wait.
    Waits(Waiter<G>),
    /// It is refused.
    Refused(Refused),
}

/// A refusal, and after how many seconds to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub why: Refusal,
    /// When to come back.
    pub seconds: u64,
}

impl<G> Level<G> {
    /// A level of this shape with so many seats.
    pub fn new(shape: LevelKind, limit: u32, clock: &Clock, alarm: &Arc<Alarm>) -> Level<G> {
        let queues = Queues::new(shape, limit, clock.now());
        Level {
            state: Lock::new(State { queues, drops: Drops::default(), book: RequestTable::default() }),
            widest: AtomicU32::new(1),
            clock: clock.clone(),
            alarm: alarm.clone(),
        }
    }

    /// The most seats that one request shall ask for.
    pub fn widest(&self) -> u32 {
        self.widest.load(Ordering::Relaxed)
    }

    /// Sets that.
    pub fn widen(&self, widest: u32) {
        self.widest.store(widest, Ordering::Relaxed);
    }

    /// How much there is of everything.
    pub fn load(&self) -> Load {
        self.state.lock().queues.load()
    }

    /// What has become of those who came.
    pub fn counts(&self) -> Counts {
        self.state.lock().book.counts
    }

    /// How many queues there are, and those that somebody is in.
    pub fn queues(&self) -> (u32, Vec<QueueSnapshot>) {
        let state = self.state.lock();
        (state.queues.many(), state.queues.told().collect())
    }

    /// Whether nobody is here.
    pub fn is_idle(&self) -> bool {
        self.state.lock().queues.is_idle()
    }

    /// A request of this flow comes.
    pub fn enter(self: &Arc<Level<G>>, now: Timestamp, flow: u64, work: WorkEstimate, about: G) -> Entry<G> {
        let mut turn = None;
        let mut state = self.state.lock();
        let number = state.book.number();
        let (arrival, called) = state.queues.arrive(now, flow, work, || {
            let (call, called) = oneshot::channel();
            turn = Some(called);
            WakeHandle { number, turn: call }
        });
        let entry = |queue| RequestEntry { about, work, came: now, queue, began: None };
        match (arrival, turn) {
            (Arrival::Seated(seated), _) => {
                state.book.enter(number, entry(seated.queue()));
                state.book.seat(number, now, true);
                state.tell(called);
                Entry::Seated(Seat { level: self.clone(), seated: Some(seated), number })
            }
            (Arrival::Waits(ticket), Some(turn)) => {
                state.book.enter(number, entry(Some(ticket.queue())));
                state.tell(called);
                self.mind(&state);
                Entry::Waits(Waiter { level: self.clone(), ticket, turn, number, is_over: false })
            }
            (Arrival::Refused(why), _) => {
                state.tell(called);
                Entry::Refused(state.refuse(now, why))
            }
            // A ticket comes with a call.
            (Arrival::Waits(_), None) => Entry::Refused(state.refuse(now, Refusal::QueueFull)),
        }
    }

    /// Takes another shape or another number of seats.
    pub fn reshape(&self, shape: LevelKind, limit: u32) {
        let mut state = self.state.lock();
        let called = state.queues.reshape(shape, limit, self.clock.now());
        state.tell(called);
        self.mind(&state);
    }

    /// What the demand was since the last look.
    pub fn observe(&self, before: &Observed) -> Observed {
        self.state.lock().queues.observe(self.clock.now(), before)
    }

    /// For how long which part of the seats was taken.
    pub fn utilization(&self) -> TimeByPart {
        self.state.lock().queues.utilization(self.clock.now())
    }

    /// Sets the number of seats that all of them are, where there is no limit.
    pub fn measure_by(&self, seats: u32) {
        self.state.lock().queues.measure_by(self.clock.now(), seats);
    }

    /// When seats will be free that somebody waits for and nobody gives back.
    pub fn next_release(&self) -> Option<Timestamp> {
        self.state.lock().queues.next_release()
    }

    /// Frees seats whose time has come.
    pub fn release(&self) {
        let mut state = self.state.lock();
        let called = state.queues.release(self.clock.now());
        state.tell(called);
    }

    /// Sees to it that somebody comes back for seats that nobody gives back.
    fn mind(&self, state: &State<G>) {
        if let Some(due) = state.queues.next_release() {
            self.alarm.mind(due);
        }
    }

    fn finish(&self, now: Timestamp, seated: Seated, number: u64) {
        let mut state = self.state.lock();
        let called = state.queues.finish(now, seated);
        state.tell(called);
        self.mind(&state);
        let gone = state.book.leave(number);
        // What is known of it is put away without keeping others.
        drop(state);
        drop(gone);
    }
}

impl<G: Clone> Level<G> {
    /// Those who are here: queue by queue those who wait in their order, then those who came out of it and are worked on; in
    /// the end those who are worked on and never were in one.
    pub fn requests(&self) -> Vec<RequestPosition<G>> {
        let state = self.state.lock();
        let mut here = Vec::new();
        for (place, call) in state.queues.waiting() {
            let entry = state.book.get(call.number).cloned();
            here.extend(entry.map(|entry| RequestPosition { entry, place: Some(place) }));
        }
        let seated = state.book.seated().cloned();
        here.extend(seated.map(|entry| RequestPosition { entry, place: None }));
        // Those without a queue come last, and who waits before who does not.
        here.sort_by_key(|one| (one.entry.queue.is_none(), one.entry.queue, one.place.is_none(), one.place));
        here
    }
}

/// The place of a request that is worked on; free when this is dropped.
pub struct Seat<G> {
    level: Arc<Level<G>>,
    /// Until it is given back.
    seated: Option<Seated>,
    number: u64,
}

impl<G> Seat<G> {
    /// Gives it back, for whoever knows what time it is.
    pub fn give_back(mut self, now: Timestamp) {
        if let Some(seated) = self.seated.take() {
            self.level.finish(now, seated, self.number);
        }
    }
}

impl<G> Drop for Seat<G> {
    fn drop(&mut self) {
        if let Some(seated) = self.seated.take() {
            self.level.finish(self.level.clock.now(), seated, self.number);
        }
    }
}

/// The place of a request that waits; left when this is dropped.
pub struct Waiter<G> {
    level: Arc<Level<G>>,
    ticket: Ticket,
    turn: oneshot::Receiver<Timestamp>,
    number: u64,
    /// Whether it has left.
    is_over: bool,
}

impl<G> Waiter<G> {
    /// How many wait in its queue, itself among them.
    pub fn length(&self) -> usize {
        self.ticket.length
    }

    /// Waits for a seat, for so long.
    pub async fn wait(mut self, most: Duration) -> Result<Seat<G>, Refused> {
        let turn = timeout(most, &mut self.turn).await;
        if let Ok(Ok(began)) = turn {
            return Ok(self.take(began));
        }
        match self.leave() {
            // It came in the last moment.
            Some(seat) => Ok(seat),
            None => {
                let now = self.level.clock.now();
                let seconds = self.level.state.lock().drops.refuse(now);
                Err(Refused { why: Refusal::TimedOut, seconds })
            }
        }
    }

    fn take(&mut self, began: Timestamp) -> Seat<G> {
        self.is_over = true;
        Seat { level: self.level.clone(), seated: Some(self.ticket.seated(began)), number: self.number }
    }

    /// Leaves the queue. Answers the seat if it was called before.
    fn leave(&mut self) -> Option<Seat<G>> {
        let (waited, gone) = {
            let mut state = self.level.state.lock();
            let (waited, called) = state.queues.leave(self.level.clock.now(), &self.ticket);
            state.tell(called);
            (waited, if waited { state.book.give_up(self.number) } else { None })
        };
        drop(gone);
        self.is_over = true;
        if waited {
            return None;
        }
        let began = self.turn.try_recv().ok()?;
        Some(self.take(began))
    }
}

impl<G> Drop for Waiter<G> {
    fn drop(&mut self) {
        if !self.is_over {
            self.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000);
    const ONE_QUEUE: LevelKind = LevelKind::Queue { queues: 1, hand: 1, length: 2 };

    fn level(shape: LevelKind, limit: u32) -> (Arc<Level<&'static str>>, Clock) {
        let clock = Clock::manual(NOW);
        (Arc::new(Level::new(shape, limit, &clock, &Arc::default())), clock)
    }

    fn seated<G>(entry: Entry<G>) -> Seat<G> {
        match entry {
            Entry::Seated(seat) => seat,
            _ => panic!("no seat"),
        }
    }

    fn waits<G>(entry: Entry<G>) -> Waiter<G> {
        match entry {
            Entry::Waits(waiter) => waiter,
            _ => panic!("does not wait"),
        }
    }

    #[actix_rt::test]
    async fn a_seat_that_is_given_back_goes_to_who_waits() {
        let (level, _) = level(ONE_QUEUE, 1);
        let first = seated(level.enter(NOW, 1, WorkEstimate::ONE, ""));
        let second = waits(level.enter(NOW, 2, WorkEstimate::ONE, ""));
        let third = waits(level.enter(NOW, 2, WorkEstimate::ONE, ""));
        assert_eq!((second.length(), third.length()), (1, 2));
        assert!(matches!(
            level.enter(NOW, 1, WorkEstimate::ONE, ""),
            Entry::Refused(Refused { why: Refusal::QueueFull, seconds: 1 })
        ));
        drop(first);
        let second = second.wait(Duration::from_secs(5)).await.ok().unwrap();
        assert_eq!(level.load(), Load { executing: 1, seats: 1, waiting: 1, seats_wanted: 1 });
        drop(second);
        drop(third.wait(Duration::from_secs(5)).await.ok().unwrap());
        assert_eq!(level.load(), Load::default());
    }

    #[actix_rt::test]
    async fn whoever_hangs_up_leaves_its_queue_and_its_seat() {
        let (level, _) = level(ONE_QUEUE, 1);
        let first = seated(level.enter(NOW, 1, WorkEstimate::ONE, ""));
        let second = waits(level.enter(NOW, 2, WorkEstimate::ONE, ""));
        let third = waits(level.enter(NOW, 3, WorkEstimate::ONE, ""));
        drop(second);
        assert_eq!(level.load().waiting, 1);
        // It is called, and hangs up before it has heard of it.
        drop(first);
        assert_eq!(level.load().executing, 1);
        drop(third);
        assert_eq!(level.load(), Load::default());
        // The same in the middle of waiting.
        let held = seated(level.enter(NOW, 1, WorkEstimate::ONE, ""));
        let mut waiting =
            Box::pin(waits(level.enter(NOW, 2, WorkEstimate::ONE, "")).wait(Duration::from_secs(5)));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(held);
        drop(waiting);
        assert_eq!(level.load(), Load::default());
    }

    #[actix_rt::test]
    async fn nobody_waits_for_longer_than_they_may() {
        let (level, _) = level(ONE_QUEUE, 1);
        let held = seated(level.enter(NOW, 1, WorkEstimate::ONE, ""));
        let refused = waits(level.enter(NOW, 2, WorkEstimate::ONE, ""))
            .wait(Duration::from_millis(1))
            .await
            .err()
            .unwrap();
        assert_eq!(refused, Refused { why: Refusal::TimedOut, seconds: 1 });
        assert_eq!(level.load().waiting, 0);
        // A seat that comes with the end of the time is taken.
        let late = waits(level.enter(NOW, 2, WorkEstimate::ONE, ""));
        drop(held);
        assert!(late.wait(Duration::ZERO).await.is_ok());
    }

    #[actix_rt::test]
    async fn seats_that_linger_ring_the_alarm_if_somebody_waits_for_them() {
        let clock = Clock::manual(NOW);
        let alarm = Arc::new(Alarm::default());
        let level = Arc::new(Level::new(ONE_QUEUE, 1, &clock, &alarm));
        let work = WorkEstimate { after: 1, linger: Duration::from_millis(5), ..WorkEstimate::ONE };
        drop(seated(level.enter(NOW, 1, work, "")));
        assert_eq!((level.load().seats, level.next_release()), (1, None), "nobody waits");
        let waiter = waits(level.enter(NOW, 2, WorkEstimate::ONE, ""));
        alarm.rung().await;
        assert_eq!(level.next_release(), Some(Timestamp(1_005_000)));
        clock.advance(Duration::from_millis(5));
        level.release();
        assert!(waiter.wait(Duration::from_secs(5)).await.is_ok());
        let held = seated(level.enter(NOW, 1, work, ""));
        let waiter = waits(level.enter(NOW, 2, WorkEstimate::ONE, ""));
        drop(held);
        alarm.rung().await;
        drop(waiter);
    }

    #[actix_rt::test]
    async fn who_is_here_is_told_queue_by_queue() {
        let (level, clock) = level(LevelKind::Queue { queues: 4, hand: 1, length: 2 }, 1);
        let here = |level: &Level<&'static str>| -> Vec<(&'static str, Option<usize>, Option<Timestamp>)> {
            level.requests().iter().map(|one| (one.entry.about, one.place, one.entry.began)).collect()
        };
        let first = seated(level.enter(NOW, 1, WorkEstimate::ONE, "first"));
        let wide = WorkEstimate { seats: 2, after: 3, linger: Duration::from_millis(1) };
        let second = waits(level.enter(NOW, 1, wide, "second"));
        let third = waits(level.enter(NOW, 1, WorkEstimate::ONE, "third"));
        assert!(matches!(level.enter(NOW, 1, WorkEstimate::ONE, "no"), Entry::Refused(_)));
        assert_eq!(
            here(&level),
            [("second", Some(0), None), ("third", Some(1), None), ("first", None, Some(NOW))]
        );
        let (many, queues) = level.queues();
        assert_eq!((many, queues.len()), (4, 1));
        let QueueSnapshot { waiting, executing, seats, wanted, amount, .. } = queues[0];
        assert_eq!((waiting, executing, seats, wanted, amount), (2, 1, 1, [3, 4], 12_000));
        drop(third);
        clock.advance(Duration::from_secs(1));
        drop(first);
        let second = second.wait(Duration::from_secs(5)).await.ok().unwrap();
        assert_eq!(here(&level), [("second", None, Some(clock.now()))]);
        drop(second);
        assert_eq!(here(&level), []);
        assert_eq!(level.counts(), Counts { dispatched: 2, rejected: 2, cancelled: 1 });
    }

    #[test]
    fn a_level_without_queues_tells_who_is_here_all_the_same() {
        let (level, _) = level(LevelKind::Reject, 1);
        let held = seated(level.enter(NOW, 1, WorkEstimate::ONE, "held"));
        assert!(matches!(level.enter(NOW, 1, WorkEstimate::ONE, "no"), Entry::Refused(_)));
        let requests = level.requests();
        assert_eq!((requests.len(), requests[0].entry.queue, requests[0].place), (1, None, None));
        assert_eq!(level.queues(), (0, Vec::new()));
        drop(held);
        assert!(level.requests().is_empty());
        assert_eq!(level.counts(), Counts { dispatched: 1, rejected: 1, cancelled: 0 });
    }
}
