//! A priority level that threads share: its queues behind a lock that is held for a few steps.
//!
//! A dropped [`Seat`] is free again, and the next requests are dispatched. A dropped [`Waiter`] leaves its queue: this happens when
//! a client disconnects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::lock::Lock;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::alarm::Alarm;
use super::demand::DemandStats;
use super::drops::DropTracker;
use super::queues::{
    Arrival, Dispatched, ExecutingRequest, LevelKind, Load, Queues, RejectReason, Ticket, WorkEstimate,
};
use super::requests::{Counts, QueueSnapshot, RequestEntry, RequestPosition, RequestTable};
use super::utilization::UtilizationHistogram;

/// Wakes a waiting request with the time of its dispatch.
struct WakeHandle {
    /// The number of the request in the [`RequestTable`].
    number: u64,
    sender: oneshot::Sender<Timestamp>,
}

struct State<G> {
    queues: Queues<WakeHandle>,
    drops: DropTracker,
    requests: RequestTable<G>,
}

impl<G> State<G> {
    /// Wakes dispatched requests. Called with the lock held: a waiter that leaves must see that it was dispatched.
    fn wake(&mut self, dispatched: Dispatched<WakeHandle>) {
        for (WakeHandle { number, sender }, start) in dispatched {
            // A waiter that leaves at this moment finds the seat and frees it.
            let is_connected = sender.send(start).is_ok();
            self.requests.start(number, start, is_connected);
        }
    }

    fn reject(&mut self, now: Timestamp, reason: RejectReason) -> Rejection {
        self.requests.counts.rejected += 1;
        Rejection { reason, retry_after: self.drops.record(now) }
    }
}

/// A priority level. See the module documentation. `G`: the caller's record of each request, for [`Level::requests`].
pub struct Level<G> {
    /// A std lock: it is held for a few steps, never across a wait.
    state: Lock<State<G>>,
    /// The maximum number of seats of one request.
    max_seats: AtomicU32,
    clock: Clock,
    /// Wakes the task that frees lingering seats, if a request waits for them.
    alarm: Arc<Alarm>,
}

/// The result of a request's arrival at a level.
pub enum Entry<G> {
    /// The request executes.
    Seated(Seat<G>),
    /// The request has to wait.
    Queued(Waiter<G>),
    /// The request is rejected.
    Rejected(Rejection),
}

/// A rejection with its Retry-After.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The reason, as in the metrics.
    pub reason: RejectReason,
    /// The Retry-After in seconds.
    pub retry_after: u64,
}

impl<G> Level<G> {
    /// A level without requests. `limit`: its number of seats.
    pub fn new(shape: LevelKind, limit: u32, clock: &Clock, alarm: &Arc<Alarm>) -> Level<G> {
        let queues = Queues::new(shape, limit, clock.now());
        Level {
            state: Lock::new(State {
                queues,
                drops: DropTracker::default(),
                requests: RequestTable::default(),
            }),
            max_seats: AtomicU32::new(1),
            clock: clock.clone(),
            alarm: alarm.clone(),
        }
    }

    /// The maximum number of seats of one request.
    pub fn max_seats(&self) -> u32 {
        self.max_seats.load(Ordering::Relaxed)
    }

    /// Sets the maximum number of seats of one request.
    pub fn set_max_seats(&self, max_seats: u32) {
        self.max_seats.store(max_seats, Ordering::Relaxed);
    }

    /// The current numbers of requests and seats.
    pub fn load(&self) -> Load {
        self.state.lock().queues.load()
    }

    /// The counters of requests since the start.
    pub fn counts(&self) -> Counts {
        self.state.lock().requests.counts
    }

    /// The configured number of queues, and the queues with waiting or executing requests.
    pub fn queues(&self) -> (u32, Vec<QueueSnapshot>) {
        let state = self.state.lock();
        (state.queues.queue_count(), state.queues.snapshots().collect())
    }

    /// Whether no request executes or waits.
    pub fn is_idle(&self) -> bool {
        self.state.lock().queues.is_idle()
    }

    /// A request of this flow arrives.
    pub fn enter(self: &Arc<Level<G>>, now: Timestamp, flow: u64, work: WorkEstimate, record: G) -> Entry<G> {
        let mut receiver = None;
        let mut state = self.state.lock();
        let number = state.requests.next_number();
        let (arrival, dispatched) = state.queues.arrive(now, flow, work, || {
            let (sender, created) = oneshot::channel();
            receiver = Some(created);
            WakeHandle { number, sender }
        });
        let entry = |queue| RequestEntry { record, work, arrival: now, queue, start: None };
        match (arrival, receiver) {
            (Arrival::Seated(request), _) => {
                state.requests.insert(number, entry(request.queue()));
                state.requests.start(number, now, true);
                state.wake(dispatched);
                Entry::Seated(Seat { level: self.clone(), request: Some(request), number })
            }
            (Arrival::Queued(ticket), Some(receiver)) => {
                state.requests.insert(number, entry(Some(ticket.queue())));
                state.wake(dispatched);
                self.schedule_release(&state);
                Entry::Queued(Waiter { level: self.clone(), ticket, receiver, number, has_left: false })
            }
            (Arrival::Rejected(reason), _) => {
                state.wake(dispatched);
                Entry::Rejected(state.reject(now, reason))
            }
            // Cannot happen: the wake handle is created before the ticket.
            (Arrival::Queued(_), None) => Entry::Rejected(state.reject(now, RejectReason::QueueFull)),
        }
    }

    /// Changes the shape or the number of seats. Waiting requests stay in their queues.
    pub fn reshape(&self, shape: LevelKind, limit: u32) {
        let mut state = self.state.lock();
        let dispatched = state.queues.reshape(shape, limit, self.clock.now());
        state.wake(dispatched);
        self.schedule_release(&state);
    }

    /// The demand since the last call. `previous`: the result of the last call.
    pub fn observe_demand(&self, previous: &DemandStats) -> DemandStats {
        self.state.lock().queues.observe_demand(self.clock.now(), previous)
    }

    /// The histogram of the utilization of the seats.
    pub fn utilization(&self) -> UtilizationHistogram {
        self.state.lock().queues.utilization(self.clock.now())
    }

    /// Sets the number of seats that counts as full utilization. It differs from the limit for exempt levels, which have none.
    pub fn set_capacity(&self, seats: u32) {
        self.state.lock().queues.set_capacity(self.clock.now(), seats);
    }

    /// When lingering seats become free that requests wait for.
    pub fn next_release(&self) -> Option<Timestamp> {
        self.state.lock().queues.next_release()
    }

    /// Frees lingering seats whose time is over.
    pub fn release(&self) {
        let mut state = self.state.lock();
        let dispatched = state.queues.release(self.clock.now());
        state.wake(dispatched);
    }

    /// Makes sure that lingering seats are freed in time for the requests that wait for them.
    fn schedule_release(&self, state: &State<G>) {
        if let Some(due) = state.queues.next_release() {
            self.alarm.schedule(due);
        }
    }

    fn finish(&self, now: Timestamp, request: ExecutingRequest, number: u64) {
        let mut state = self.state.lock();
        let dispatched = state.queues.finish(now, request);
        state.wake(dispatched);
        self.schedule_release(&state);
        let entry = state.requests.remove(number);
        // The entry is freed without the lock.
        drop(state);
        drop(entry);
    }
}

impl<G: Clone> Level<G> {
    /// All requests of the level, queue by queue: first the waiting requests in order, then the executing ones that came from the
    /// queue. Executing requests without a queue come last.
    pub fn requests(&self) -> Vec<RequestPosition<G>> {
        let state = self.state.lock();
        let mut positions = Vec::new();
        for (position, handle) in state.queues.waiting() {
            let entry = state.requests.get(handle.number).cloned();
            positions.extend(entry.map(|entry| RequestPosition { entry, position: Some(position) }));
        }
        let executing = state.requests.executing().cloned();
        positions.extend(executing.map(|entry| RequestPosition { entry, position: None }));
        positions.sort_by_key(|request| {
            let RequestPosition { entry, position } = request;
            (entry.queue.is_none(), entry.queue, position.is_none(), *position)
        });
        positions
    }
}

/// The seats of an executing request, freed on drop.
pub struct Seat<G> {
    level: Arc<Level<G>>,
    /// `None` once the seats are freed.
    request: Option<ExecutingRequest>,
    number: u64,
}

impl<G> Seat<G> {
    /// Frees the seats, for callers that know the current time: saves a read of the clock.
    pub fn give_back(mut self, now: Timestamp) {
        if let Some(request) = self.request.take() {
            self.level.finish(now, request, self.number);
        }
    }
}

impl<G> Drop for Seat<G> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.level.finish(self.level.clock.now(), request, self.number);
        }
    }
}

/// A waiting request, which leaves its queue on drop.
pub struct Waiter<G> {
    level: Arc<Level<G>>,
    ticket: Ticket,
    receiver: oneshot::Receiver<Timestamp>,
    number: u64,
    has_left: bool,
}

impl<G> Waiter<G> {
    /// The length of its queue at its arrival, including itself.
    pub fn length(&self) -> usize {
        self.ticket.length
    }

    /// Waits for a seat, at most for `limit`.
    pub async fn wait(mut self, limit: Duration) -> Result<Seat<G>, Rejection> {
        let dispatch = timeout(limit, &mut self.receiver).await;
        if let Ok(Ok(start)) = dispatch {
            return Ok(self.seat(start));
        }
        match self.leave() {
            // It was dispatched at the last moment.
            Some(seat) => Ok(seat),
            None => {
                let now = self.level.clock.now();
                let retry_after = self.level.state.lock().drops.record(now);
                Err(Rejection { reason: RejectReason::TimedOut, retry_after })
            }
        }
    }

    fn seat(&mut self, start: Timestamp) -> Seat<G> {
        self.has_left = true;
        Seat {
            level: self.level.clone(),
            request: Some(self.ticket.into_executing(start)),
            number: self.number,
        }
    }

    /// Leaves the queue. Returns the seat if the request was dispatched before.
    fn leave(&mut self) -> Option<Seat<G>> {
        let (waited, entry) = {
            let mut state = self.level.state.lock();
            let (waited, dispatched) = state.queues.leave(self.level.clock.now(), &self.ticket);
            state.wake(dispatched);
            (waited, if waited { state.requests.cancel(self.number) } else { None })
        };
        // The entry is freed without the lock.
        drop(entry);
        self.has_left = true;
        if waited {
            return None;
        }
        let start = self.receiver.try_recv().ok()?;
        Some(self.seat(start))
    }
}

impl<G> Drop for Waiter<G> {
    fn drop(&mut self) {
        if !self.has_left {
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

    fn expect_seat<G>(entry: Entry<G>) -> Seat<G> {
        match entry {
            Entry::Seated(seat) => seat,
            _ => panic!("no seat"),
        }
    }

    fn expect_waiter<G>(entry: Entry<G>) -> Waiter<G> {
        match entry {
            Entry::Queued(waiter) => waiter,
            _ => panic!("does not wait"),
        }
    }

    #[actix_rt::test]
    async fn level_dispatches_waiting_request_when_seat_is_freed() {
        let (level, _) = level(ONE_QUEUE, 1);
        let first = expect_seat(level.enter(NOW, 1, WorkEstimate::ONE, ""));
        let second = expect_waiter(level.enter(NOW, 2, WorkEstimate::ONE, ""));
        let third = expect_waiter(level.enter(NOW, 2, WorkEstimate::ONE, ""));
        assert_eq!((second.length(), third.length()), (1, 2));
        assert!(matches!(
            level.enter(NOW, 1, WorkEstimate::ONE, ""),
            Entry::Rejected(Rejection { reason: RejectReason::QueueFull, retry_after: 1 })
        ));
        drop(first);
        let second = second.wait(Duration::from_secs(5)).await.ok().unwrap();
        assert_eq!(level.load(), Load { executing: 1, seats: 1, waiting: 1, seats_wanted: 1 });
        drop(second);
        drop(third.wait(Duration::from_secs(5)).await.ok().unwrap());
        assert_eq!(level.load(), Load::default());
    }

    #[actix_rt::test]
    async fn dropped_waiter_leaves_queue_and_frees_seat() {
        let (level, _) = level(ONE_QUEUE, 1);
        let first = expect_seat(level.enter(NOW, 1, WorkEstimate::ONE, ""));
        let second = expect_waiter(level.enter(NOW, 2, WorkEstimate::ONE, ""));
        let third = expect_waiter(level.enter(NOW, 3, WorkEstimate::ONE, ""));
        drop(second);
        assert_eq!(level.load().waiting, 1);
        // It is dispatched, and dropped before it is polled.
        drop(first);
        assert_eq!(level.load().executing, 1);
        drop(third);
        assert_eq!(level.load(), Load::default());
        // The same while it is being polled.
        let held = expect_seat(level.enter(NOW, 1, WorkEstimate::ONE, ""));
        let mut waiting =
            Box::pin(expect_waiter(level.enter(NOW, 2, WorkEstimate::ONE, "")).wait(Duration::from_secs(5)));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(held);
        drop(waiting);
        assert_eq!(level.load(), Load::default());
    }

    #[actix_rt::test]
    async fn waiter_is_rejected_after_its_time_limit() {
        let (level, _) = level(ONE_QUEUE, 1);
        let held = expect_seat(level.enter(NOW, 1, WorkEstimate::ONE, ""));
        let rejection = expect_waiter(level.enter(NOW, 2, WorkEstimate::ONE, ""))
            .wait(Duration::from_millis(1))
            .await
            .err()
            .unwrap();
        assert_eq!(rejection, Rejection { reason: RejectReason::TimedOut, retry_after: 1 });
        assert_eq!(level.load().waiting, 0);
        // A seat that becomes free at the time limit is used.
        let late = expect_waiter(level.enter(NOW, 2, WorkEstimate::ONE, ""));
        drop(held);
        assert!(late.wait(Duration::ZERO).await.is_ok());
    }

    #[actix_rt::test]
    async fn lingering_seats_wake_the_alarm_if_a_request_waits() {
        let clock = Clock::manual(NOW);
        let alarm = Arc::new(Alarm::default());
        let level = Arc::new(Level::new(ONE_QUEUE, 1, &clock, &alarm));
        let work = WorkEstimate { final_seats: 1, linger: Duration::from_millis(5), ..WorkEstimate::ONE };
        drop(expect_seat(level.enter(NOW, 1, work, "")));
        assert_eq!((level.load().seats, level.next_release()), (1, None), "no request waits");
        let waiter = expect_waiter(level.enter(NOW, 2, WorkEstimate::ONE, ""));
        alarm.wait().await;
        assert_eq!(level.next_release(), Some(Timestamp(1_005_000)));
        clock.advance(Duration::from_millis(5));
        level.release();
        assert!(waiter.wait(Duration::from_secs(5)).await.is_ok());
        let held = expect_seat(level.enter(NOW, 1, work, ""));
        let waiter = expect_waiter(level.enter(NOW, 2, WorkEstimate::ONE, ""));
        drop(held);
        alarm.wait().await;
        drop(waiter);
    }

    #[actix_rt::test]
    async fn level_lists_requests_by_queue_and_counts_them() {
        let (level, clock) = level(LevelKind::Queue { queues: 4, hand: 1, length: 2 }, 1);
        let requests =
            |level: &Level<&'static str>| -> Vec<(&'static str, Option<usize>, Option<Timestamp>)> {
                level
                    .requests()
                    .iter()
                    .map(|request| (request.entry.record, request.position, request.entry.start))
                    .collect()
            };
        let first = expect_seat(level.enter(NOW, 1, WorkEstimate::ONE, "first"));
        let wide = WorkEstimate { seats: 2, final_seats: 3, linger: Duration::from_millis(1) };
        let second = expect_waiter(level.enter(NOW, 1, wide, "second"));
        let third = expect_waiter(level.enter(NOW, 1, WorkEstimate::ONE, "third"));
        assert!(matches!(level.enter(NOW, 1, WorkEstimate::ONE, "no"), Entry::Rejected(_)));
        assert_eq!(
            requests(&level),
            [("second", Some(0), None), ("third", Some(1), None), ("first", None, Some(NOW))]
        );
        let (queue_count, queues) = level.queues();
        assert_eq!((queue_count, queues.len()), (4, 1));
        let QueueSnapshot { waiting, executing, seats, waiting_seats, queued_work, .. } = queues[0];
        assert_eq!((waiting, executing, seats, waiting_seats, queued_work), (2, 1, 1, [3, 4], 12_000));
        drop(third);
        clock.advance(Duration::from_secs(1));
        drop(first);
        let second = second.wait(Duration::from_secs(5)).await.ok().unwrap();
        assert_eq!(requests(&level), [("second", None, Some(clock.now()))]);
        drop(second);
        assert_eq!(requests(&level), []);
        assert_eq!(level.counts(), Counts { dispatched: 2, rejected: 2, cancelled: 1 });
    }

    #[test]
    fn level_without_queues_lists_executing_requests() {
        let (level, _) = level(LevelKind::Reject, 1);
        let held = expect_seat(level.enter(NOW, 1, WorkEstimate::ONE, "held"));
        assert!(matches!(level.enter(NOW, 1, WorkEstimate::ONE, "no"), Entry::Rejected(_)));
        let requests = level.requests();
        assert_eq!((requests.len(), requests[0].entry.queue, requests[0].position), (1, None, None));
        assert_eq!(level.queues(), (0, Vec::new()));
        drop(held);
        assert!(level.requests().is_empty());
        assert_eq!(level.counts(), Counts { dispatched: 1, rejected: 1, cancelled: 0 });
    }
}
