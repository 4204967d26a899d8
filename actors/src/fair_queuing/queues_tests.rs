use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// A level whose time the test controls, with all its requests.
struct Simulation {
    queues: Queues<u64>,
    now: Timestamp,
    executing: BTreeMap<u64, ExecutingRequest>,
    waiting: BTreeMap<u64, Ticket>,
    /// All requests that were dispatched after waiting, in order.
    dispatched: Vec<u64>,
    next: u64,
}

impl Simulation {
    fn new(shape: LevelKind, limit: u32) -> Simulation {
        let now = Timestamp(1_000_000);
        Simulation {
            queues: Queues::new(shape, limit, now),
            now,
            executing: BTreeMap::new(),
            waiting: BTreeMap::new(),
            dispatched: Vec::new(),
            next: 0,
        }
    }

    fn record_dispatched(&mut self, dispatched: Dispatched<u64>) {
        for (request, start) in dispatched {
            let ticket = self.waiting.remove(&request).expect("dispatched twice, or never arrived");
            self.executing.insert(request, ticket.into_executing(start));
            self.dispatched.push(request);
        }
    }

    /// Returns the request's number, unless it was rejected.
    fn arrive(&mut self, flow: u64, work: WorkEstimate) -> Option<u64> {
        let request = self.next;
        self.next += 1;
        let (arrival, dispatched) = self.queues.arrive(self.now, flow, work, || request);
        let is_accepted = match arrival {
            Arrival::Seated(executing) => self.executing.insert(request, executing).is_none(),
            Arrival::Queued(ticket) => self.waiting.insert(request, ticket).is_none(),
            Arrival::Rejected(_) => false,
        };
        self.record_dispatched(dispatched);
        is_accepted.then_some(request)
    }

    fn finish(&mut self, request: u64) {
        let executing = self.executing.remove(&request).expect("executes");
        let dispatched = self.queues.finish(self.now, executing);
        self.record_dispatched(dispatched);
    }

    fn leave(&mut self, request: u64) {
        let ticket = self.waiting.remove(&request).expect("waits");
        let (waited, dispatched) = self.queues.leave(self.now, &ticket);
        assert!(waited, "not dispatched before");
        self.record_dispatched(dispatched);
    }

    fn advance(&mut self, micros: u64) {
        self.now = Timestamp(self.now.0 + micros);
        let dispatched = self.queues.release(self.now);
        self.record_dispatched(dispatched);
    }

    /// The invariants.
    fn check(&self) {
        let (load, limit) = (self.queues.load(), self.queues.limit());
        assert_eq!(
            (load.executing as usize, load.waiting),
            (self.executing.len(), self.waiting.len()),
            "no request is lost"
        );
        let expected: u32 = self.waiting.values().map(|ticket| ticket.work.width()).sum();
        assert_eq!(load.seats_wanted, expected);
        let lingering: u32 = self.queues.lingering.iter().map(|Reverse((.., seats))| seats).sum();
        let executing: u32 = self.executing.values().map(|request| request.work.width()).sum();
        assert_eq!(load.seats, executing + lingering);
        for (index, queue) in &self.queues.queues {
            let is_of_queue = |request: &&ExecutingRequest| request.queue == Some(*index);
            assert_eq!(queue.executing as usize, self.executing.values().filter(is_of_queue).count());
            assert!(!queue.is_idle(), "idle queues are removed");
            let queued_work: u64 = queue.waiting.iter().map(|waiting| waiting.work.total_work()).sum();
            assert_eq!(queue.queued_work, queued_work);
            let numbers = queue.waiting.iter().map(|waiting| waiting.number);
            assert!(numbers.is_sorted_by(|first, second| first < second), "first in, first out");
        }
        let narrow = self.waiting.values().all(|ticket| ticket.work.width() == 1);
        if !self.waiting.is_empty() && narrow {
            assert!(load.seats >= limit, "a request waits for a free seat");
        }
    }
}

const SHAPE: LevelKind = LevelKind::Queue { queues: 8, hand: 2, length: 20 };

fn wide(seats: u32) -> WorkEstimate {
    WorkEstimate { seats, ..WorkEstimate::ONE }
}

#[derive(Clone, Debug)]
enum Step {
    Arrive(u64, u32, u32),
    Finish(usize),
    Leave(usize),
    Advance(u64),
    Reshape(u32, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u64..6, 1_u32..4, 0_u32..3).prop_map(|(flow, seats, final_seats)| Step::Arrive(flow, seats, final_seats)),
        3 => any::<prop::sample::Index>().prop_map(|index| Step::Finish(index.index(1_000))),
        1 => any::<prop::sample::Index>().prop_map(|index| Step::Leave(index.index(1_000))),
        2 => (0_u64..10_000).prop_map(Step::Advance),
        1 => (0_u32..8, any::<bool>()).prop_map(|(limit, queues)| Step::Reshape(limit, queues)),
    ]
}

fn pick<V>(requests: &BTreeMap<u64, V>, index: usize) -> Option<u64> {
    (!requests.is_empty()).then(|| *requests.keys().nth(index % requests.len()).expect("within"))
}

proptest! {
    #[test]
    fn queues_lose_no_request_and_never_exceed_the_limit(steps in prop::collection::vec(step(), 1..200)) {
        let mut simulation = Simulation::new(SHAPE, 4);
        let mut accepted = BTreeSet::new();
        for step in steps {
            let (before, limit) = (simulation.queues.load().seats, simulation.queues.limit());
            match step {
                Step::Arrive(flow, seats, final_seats) => {
                    let work = WorkEstimate { seats, final_seats, linger: Duration::from_millis(2) };
                    accepted.extend(simulation.arrive(flow, work));
                }
                Step::Finish(index) => if let Some(request) = pick(&simulation.executing, index) { simulation.finish(request) },
                Step::Leave(index) => if let Some(request) = pick(&simulation.waiting, index) { simulation.leave(request) },
                Step::Advance(micros) => simulation.advance(micros),
                Step::Reshape(limit, queues) => {
                    let shape = if queues { SHAPE } else { LevelKind::Reject };
                    let dispatched = simulation.queues.reshape(shape, limit, simulation.now);
                    simulation.record_dispatched(dispatched);
                }
            }
            simulation.check();
            let (after, limit) = (simulation.queues.load(), simulation.queues.limit().max(limit));
            prop_assert!(
                after.seats <= limit.max(before) || after.executing == 1,
                "more seats in use than the limit: {:?} of {}", after, limit
            );
        }
        let dispatched = simulation.queues.reshape(SHAPE, 4, simulation.now);
        simulation.record_dispatched(dispatched);
        simulation.advance(2_000);
        while let Some(request) = pick(&simulation.executing, 0) {
            simulation.advance(1_000);
            simulation.finish(request);
            simulation.check();
            simulation.advance(2_000);
        }
        prop_assert_eq!(simulation.waiting.len(), 0, "every request was dispatched");
        prop_assert_eq!(simulation.queues.load(), Load::default());
        prop_assert!(simulation.queues.queues.is_empty());
    }

    #[test]
    fn queue_is_first_in_first_out_for_any_width(widths in prop::collection::vec(1_u32..4, 1..15)) {
        let mut simulation = Simulation::new(LevelKind::Queue { queues: 1, hand: 1, length: 20 }, 3);
        let held = simulation.arrive(0, wide(3)).expect("accepted");
        let arrived: Vec<u64> = widths.iter().filter_map(|width| simulation.arrive(0, wide(*width))).collect();
        simulation.finish(held);
        while let Some(request) = pick(&simulation.executing, 0) {
            simulation.advance(100);
            simulation.finish(request);
        }
        prop_assert_eq!(simulation.dispatched, arrived);
    }
}

/// Lets flows send as fast as they can, each with a backlog, and returns the seat-time of each.
fn compete(limit: u32, flows: &[(u64, WorkEstimate, u64)], backlog: usize, turns: usize) -> Vec<u64> {
    let mut simulation = Simulation::new(LevelKind::Queue { queues: 64, hand: 1, length: 1_000 }, limit);
    let mut flow_of = BTreeMap::new();
    let mut finishes: BTreeSet<(u64, u64)> = BTreeSet::new();
    let mut seat_time = vec![0; flows.len()];
    let mut started = BTreeSet::new();
    for (index, (flow, work, _)) in flows.iter().enumerate() {
        for _ in 0..backlog {
            flow_of.insert(simulation.arrive(*flow, *work).expect("accepted"), index);
        }
    }
    for _ in 0..turns {
        for request in simulation.executing.keys() {
            if started.insert(*request) {
                let (_, _, duration) = flows[flow_of[request]];
                finishes.insert((simulation.now.0 + duration, *request));
            }
        }
        let (time, request) = finishes.pop_first().expect("a request executes");
        simulation.advance(time - simulation.now.0);
        simulation.finish(request);
        let (flow, work, duration) = flows[flow_of[&request]];
        seat_time[flow_of[&request]] += duration * u64::from(work.seats);
        flow_of.insert(simulation.arrive(flow, work).expect("accepted"), flow_of[&request]);
        simulation.check();
    }
    seat_time
}

/// Flows that are dealt different queues.
const FLOWS: [u64; 3] = [1, 2, 3];

#[test]
fn flows_share_seat_time_evenly_for_any_duration_and_width() {
    let [first, second, third] = FLOWS;
    let seat_time =
        compete(1, &[(first, WorkEstimate::ONE, 30_000), (second, WorkEstimate::ONE, 10_000)], 5, 400);
    assert!(seat_time[0].abs_diff(seat_time[1]) <= 60_000, "{seat_time:?}");
    let seat_time = compete(
        6,
        &[(first, wide(3), 10_000), (second, WorkEstimate::ONE, 10_000), (third, wide(2), 5_000)],
        20,
        2_000,
    );
    let (least, most) = (seat_time.iter().min().expect("three"), seat_time.iter().max().expect("three"));
    assert!(most - least <= most / 10, "{seat_time:?}");
}

#[test]
fn flooding_flow_does_not_delay_another_flow() {
    let [flood, gentle, _] = FLOWS;
    let mut simulation = Simulation::new(LevelKind::Queue { queues: 64, hand: 1, length: 100 }, 2);
    let floods = |simulation: &mut Simulation| while simulation.arrive(flood, WorkEstimate::ONE).is_some() {};
    floods(&mut simulation);
    for _ in 0..50 {
        let request = simulation.arrive(gentle, WorkEstimate::ONE).expect("its queue is empty");
        let mut waited = 0;
        while simulation.waiting.contains_key(&request) {
            let first = *simulation.executing.keys().next().expect("a request executes");
            simulation.advance(10_000);
            simulation.finish(first);
            floods(&mut simulation);
            waited += 1;
        }
        assert!(waited <= 2, "the earlier requests belong to another flow");
        simulation.advance(10_000);
        simulation.finish(request);
        simulation.check();
    }
}

#[test]
fn flooding_flow_fills_only_its_hand() {
    let shape = LevelKind::Queue { queues: 64, hand: 4, length: 5 };
    let mut simulation = Simulation::new(shape, 1);
    while simulation.arrive(u64::MAX / 3, WorkEstimate::ONE).is_some() {}
    assert_eq!(simulation.waiting.len(), 4 * 5, "all queues of the hand are full, and no others");
    let rejected = (0..1_000_u64)
        .filter(|flow| {
            simulation
                .arrive(flow.wrapping_mul(0x9E37_79B9_7F4A_7C15), WorkEstimate::ONE)
                .map(|request| simulation.leave(request))
                .is_none()
        })
        .count();
    assert_eq!(rejected, 0, "none has the same hand");
}

#[test]
fn request_wider_than_level_executes_alone() {
    let mut simulation = Simulation::new(SHAPE, 2);
    let first = simulation.arrive(1, WorkEstimate::ONE).expect("accepted");
    let wide = simulation.arrive(2, wide(5)).expect("it waits");
    let later = simulation.arrive(2, WorkEstimate::ONE).expect("it waits");
    assert!(simulation.waiting.contains_key(&wide));
    simulation.finish(first);
    assert!(simulation.executing.contains_key(&wide) || simulation.executing.contains_key(&later));
    simulation.check();
}

#[test]
fn reject_level_rejects_without_free_seat_and_exempt_level_never() {
    let mut simulation = Simulation::new(LevelKind::Reject, 2);
    let accepted: Vec<bool> = (0..3).map(|_| simulation.arrive(1, WorkEstimate::ONE).is_some()).collect();
    assert_eq!(accepted, [true, true, false]);
    let (arrival, _) = simulation.queues.arrive(simulation.now, 1, WorkEstimate::ONE, || 0);
    assert_eq!(arrival, Arrival::Rejected(RejectReason::NoSeat));
    let mut simulation = Simulation::new(LevelKind::Exempt, 0);
    assert!((0..1_000).all(|_| simulation.arrive(1, wide(10)).is_some()));
    simulation.check();
}

#[test]
fn waiting_requests_per_level_are_bounded_for_any_configuration() {
    let mut simulation =
        Simulation::new(LevelKind::Queue { queues: 10_000_000, hand: 2, length: 10_000_000 }, 1);
    let accepted = (0..=REQUESTS_WAITING_PER_LEVEL as u64 + 5)
        .filter(|flow| simulation.arrive(flow * 77, WorkEstimate::ONE).is_some());
    assert_eq!(accepted.count(), REQUESTS_WAITING_PER_LEVEL + 1, "one executes");
    let (full, _) = simulation.queues.arrive(simulation.now, 1, WorkEstimate::ONE, || 0);
    assert_eq!(full, Arrival::Rejected(RejectReason::QueueFull));
}

#[test]
fn final_seats_linger_after_request_ends() {
    let mut simulation = Simulation::new(SHAPE, 2);
    let work = WorkEstimate { seats: 1, final_seats: 2, linger: Duration::from_millis(4) };
    let first = simulation.arrive(1, work).expect("accepted");
    let second = simulation.arrive(2, WorkEstimate::ONE).expect("it waits");
    simulation.finish(first);
    assert_eq!((simulation.queues.load().executing, simulation.queues.load().seats), (0, 2));
    assert_eq!(simulation.queues.next_release(), Some(Timestamp(simulation.now.0 + 4_000)));
    simulation.advance(3_999);
    assert!(simulation.waiting.contains_key(&second));
    simulation.advance(1);
    assert!(simulation.executing.contains_key(&second));
    simulation.finish(second);
    assert_eq!(simulation.queues.load(), Load::default());
}
