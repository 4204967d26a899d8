//! A level of priority as many threads use it: its queues behind a lock that is held for a few steps.
//!
//! Whoever has a [`Seat`] gives it back by dropping it, wherever that happens, and calls the next. Whoever waits leaves its queue
//! by dropping the [`Waiter`]: a client that hangs up does so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::demand::Observed;
use super::drops::Drops;
use super::queues::{Arrival, Called, Load, Queues, Refusal, Seated, Shape, Ticket, Work};
use crate::clock::{Clock, Timestamp};
use crate::lock::Lock;

/// What calls a request that waits: it is told when its turn came.
type Call = oneshot::Sender<Timestamp>;

struct State {
    queues: Queues<Call>,
    drops: Drops,
}

/// A level. See the module text.
pub struct Level {
    /// A std lock: it is held for a few steps, never across a wait.
    state: Lock<State>,
    /// The most seats that one request shall ask for.
    widest: AtomicU32,
    clock: Clock,
    /// Rung when somebody waits for seats that nobody gives back.
    alarm: Arc<Notify>,
}

/// What became of a request that came to a level.
pub enum Entry {
    /// It is worked on.
    Seated(Seat),
    /// It has to wait.
    Waits(Waiter),
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

impl Level {
    /// A level of this shape with so many seats.
    pub fn new(shape: Shape, limit: u32, clock: &Clock, alarm: &Arc<Notify>) -> Level {
        let queues = Queues::new(shape, limit, clock.now());
        Level {
            state: Lock::new(State { queues, drops: Drops::default() }),
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

    /// Whether nobody is here.
    pub fn is_idle(&self) -> bool {
        self.state.lock().queues.is_idle()
    }

    /// A request of this flow comes.
    pub fn enter(self: &Arc<Level>, now: Timestamp, flow: u64, work: Work) -> Entry {
        let mut turn = None;
        let mut state = self.state.lock();
        let (arrival, called) = state.queues.arrive(now, flow, work, || {
            let (call, called) = oneshot::channel();
            turn = Some(called);
            call
        });
        tell(called);
        match (arrival, turn) {
            (Arrival::Seated(seated), _) => Entry::Seated(Seat { level: self.clone(), seated: Some(seated) }),
            (Arrival::Waits(ticket), Some(turn)) => {
                self.mind(&state);
                Entry::Waits(Waiter { level: self.clone(), ticket, turn, is_over: false })
            }
            (Arrival::Refused(why), _) => Entry::Refused(Refused { why, seconds: state.drops.refuse(now) }),
            // A ticket comes with a call.
            (Arrival::Waits(_), None) => {
                Entry::Refused(Refused { why: Refusal::QueueFull, seconds: state.drops.refuse(now) })
            }
        }
    }

    /// Takes another shape or another number of seats.
    pub fn reshape(&self, shape: Shape, limit: u32) {
        let mut state = self.state.lock();
        tell(state.queues.reshape(shape, limit, self.clock.now()));
        self.mind(&state);
    }

    /// What the demand was since the last look.
    pub fn observe(&self, before: &Observed) -> Observed {
        self.state.lock().queues.observe(self.clock.now(), before)
    }

    /// When seats will be free that somebody waits for and nobody gives back.
    pub fn next_release(&self) -> Option<Timestamp> {
        self.state.lock().queues.next_release()
    }

    /// Frees seats whose time has come.
    pub fn release(&self) {
        let mut state = self.state.lock();
        tell(state.queues.release(self.clock.now()));
    }

    /// Sees to it that somebody comes back for seats that nobody gives back.
    fn mind(&self, state: &State) {
        if state.queues.next_release().is_some() {
            self.alarm.notify_one();
        }
    }

    fn finish(&self, now: Timestamp, seated: Seated) {
        let mut state = self.state.lock();
        tell(state.queues.finish(now, seated));
        self.mind(&state);
    }
}

/// Tells those whose turn has come. Under the lock: whoever leaves must find out that they were called.
fn tell(called: Called<Call>) {
    for (call, at) in called {
        // Whoever hung up this moment finds the seat when they leave.
        let _hung_up = call.send(at);
    }
}

/// The place of a request that is worked on; free when this is dropped.
pub struct Seat {
    level: Arc<Level>,
    /// Until it is given back.
    seated: Option<Seated>,
}

impl Seat {
    /// Gives it back, for whoever knows what time it is.
    pub fn give_back(mut self, now: Timestamp) {
        if let Some(seated) = self.seated.take() {
            self.level.finish(now, seated);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(seated) = self.seated.take() {
            self.level.finish(self.level.clock.now(), seated);
        }
    }
}

/// The place of a request that waits; left when this is dropped.
pub struct Waiter {
    level: Arc<Level>,
    ticket: Ticket,
    turn: oneshot::Receiver<Timestamp>,
    /// Whether it has left.
    is_over: bool,
}

impl Waiter {
    /// How many wait in its queue, itself among them.
    pub fn length(&self) -> usize {
        self.ticket.length
    }

    /// Waits for a seat, for so long.
    pub async fn wait(mut self, most: Duration) -> Result<Seat, Refused> {
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

    fn take(&mut self, began: Timestamp) -> Seat {
        self.is_over = true;
        Seat { level: self.level.clone(), seated: Some(self.ticket.seated(began)) }
    }

    /// Leaves the queue. Answers the seat if it was called before.
    fn leave(&mut self) -> Option<Seat> {
        let waited = {
            let mut state = self.level.state.lock();
            let (waited, called) = state.queues.leave(self.level.clock.now(), &self.ticket);
            tell(called);
            waited
        };
        self.is_over = true;
        if waited {
            return None;
        }
        let began = self.turn.try_recv().ok()?;
        Some(self.take(began))
    }
}

impl Drop for Waiter {
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
    const ONE_QUEUE: Shape = Shape::Queue { queues: 1, hand: 1, length: 2 };

    fn level(shape: Shape, limit: u32) -> (Arc<Level>, Clock) {
        let clock = Clock::manual(NOW);
        (Arc::new(Level::new(shape, limit, &clock, &Arc::default())), clock)
    }

    fn seated(entry: Entry) -> Seat {
        match entry {
            Entry::Seated(seat) => seat,
            _ => panic!("no seat"),
        }
    }

    fn waits(entry: Entry) -> Waiter {
        match entry {
            Entry::Waits(waiter) => waiter,
            _ => panic!("does not wait"),
        }
    }

    #[actix_rt::test]
    async fn a_seat_that_is_given_back_goes_to_who_waits() {
        let (level, _) = level(ONE_QUEUE, 1);
        let first = seated(level.enter(NOW, 1, Work::ONE));
        let second = waits(level.enter(NOW, 2, Work::ONE));
        let third = waits(level.enter(NOW, 2, Work::ONE));
        assert_eq!((second.length(), third.length()), (1, 2));
        assert!(matches!(
            level.enter(NOW, 1, Work::ONE),
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
        let first = seated(level.enter(NOW, 1, Work::ONE));
        let second = waits(level.enter(NOW, 2, Work::ONE));
        let third = waits(level.enter(NOW, 3, Work::ONE));
        drop(second);
        assert_eq!(level.load().waiting, 1);
        // It is called, and hangs up before it has heard of it.
        drop(first);
        assert_eq!(level.load().executing, 1);
        drop(third);
        assert_eq!(level.load(), Load::default());
        // The same in the middle of waiting.
        let held = seated(level.enter(NOW, 1, Work::ONE));
        let mut waiting = Box::pin(waits(level.enter(NOW, 2, Work::ONE)).wait(Duration::from_secs(5)));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(held);
        drop(waiting);
        assert_eq!(level.load(), Load::default());
    }

    #[actix_rt::test]
    async fn nobody_waits_for_longer_than_they_may() {
        let (level, _) = level(ONE_QUEUE, 1);
        let held = seated(level.enter(NOW, 1, Work::ONE));
        let refused =
            waits(level.enter(NOW, 2, Work::ONE)).wait(Duration::from_millis(1)).await.err().unwrap();
        assert_eq!(refused, Refused { why: Refusal::TimedOut, seconds: 1 });
        assert_eq!(level.load().waiting, 0);
        // A seat that comes with the end of the time is taken.
        let late = waits(level.enter(NOW, 2, Work::ONE));
        drop(held);
        assert!(late.wait(Duration::ZERO).await.is_ok());
    }

    #[actix_rt::test]
    async fn seats_that_linger_ring_the_alarm_if_somebody_waits_for_them() {
        let clock = Clock::manual(NOW);
        let alarm = Arc::new(Notify::new());
        let level = Arc::new(Level::new(ONE_QUEUE, 1, &clock, &alarm));
        let work = Work { after: 1, linger: Duration::from_millis(5), ..Work::ONE };
        drop(seated(level.enter(NOW, 1, work)));
        assert_eq!((level.load().seats, level.next_release()), (1, None), "nobody waits");
        let waiter = waits(level.enter(NOW, 2, Work::ONE));
        alarm.notified().await;
        assert_eq!(level.next_release(), Some(Timestamp(1_005_000)));
        clock.advance(Duration::from_millis(5));
        level.release();
        assert!(waiter.wait(Duration::from_secs(5)).await.is_ok());
        let held = seated(level.enter(NOW, 1, work));
        let waiter = waits(level.enter(NOW, 2, Work::ONE));
        drop(held);
        alarm.notified().await;
        drop(waiter);
    }
}
