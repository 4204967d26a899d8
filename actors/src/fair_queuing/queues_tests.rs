use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// A level whose time the test controls, with all its requests.
struct World {
    queues: Queues<u64>,
    now: Timestamp,
    seated: BTreeMap<u64, Seated>,
    waiting: BTreeMap<u64, Ticket>,
    /// All requests that were called, in order.
    called: Vec<u64>,
    next: u64,
}

impl World {
    fn new(shape: LevelKind, limit: u32) -> World {
        let now = Timestamp(1_000_000);
        World {
            queues: Queues::new(shape, limit, now),
            now,
            seated: BTreeMap::new(),
            waiting: BTreeMap::new(),
            called: Vec::new(),
            next: 0,
        }
    }

    fn hear(&mut self, called: Dispatched<u64>) {
        for (who, at) in called {
            let ticket = self.waiting.remove(&who).expect("called twice, or never came");
            self.seated.insert(who, ticket.seated(at));
            self.called.push(who);
        }
    }

    /// Answers the request's number, unless it was rejected.
    fn arrive(&mut self, flow: u64, work: WorkEstimate) -> Option<u64> {
        let who = self.next;
        self.next += 1;
        let (arrival, called) = self.queues.arrive(self.now, flow, work, || who);
        let is_in = match arrival {
            Arrival::Seated(seated) => self.seated.insert(who, seated).is_none(),
            Arrival::Waits(ticket) => self.waiting.insert(who, ticket).is_none(),
            Arrival::Refused(_) => false,
        };
        self.hear(called);
        is_in.then_some(who)
    }

    fn finish(&mut self, who: u64) {
        let seated = self.seated.remove(&who).expect("is worked on");
        let called = self.queues.finish(self.now, seated);
        self.hear(called);
    }

    fn leave(&mut self, who: u64) {
        let ticket = self.waiting.remove(&who).expect("waits");
        let (waited, called) = self.queues.leave(self.now, &ticket);
        assert!(waited, "nobody called it");
        self.hear(called);
    }

    fn pass(&mut self, micros: u64) {
        self.now = Timestamp(self.now.0 + micros);
        let called = self.queues.release(self.now);
        self.hear(called);
    }

    /// The invariants.
    fn check(&self) {
        let (load, limit) = (self.queues.load(), self.queues.limit());
        assert_eq!(
            (load.executing as usize, load.waiting),
            (self.seated.len(), self.waiting.len()),
            "nobody is lost"
        );
        let wanted: u32 = self.waiting.values().map(|ticket| ticket.work.width()).sum();
        assert_eq!(load.seats_wanted, wanted);
        let lingering: u32 = self.queues.lingering.iter().map(|Reverse((.., seats))| seats).sum();
        let seated: u32 = self.seated.values().map(|seated| seated.work.width()).sum();
        assert_eq!(load.seats, seated + lingering);
        for (index, queue) in &self.queues.queues {
            let of = |seated: &&Seated| seated.queue == Some(*index);
            assert_eq!(queue.executing as usize, self.seated.values().filter(of).count());
            assert!(!queue.is_idle(), "nothing is kept of who is gone");
            let amount: u64 = queue.waiting.iter().map(|waiting| waiting.work.amount()).sum();
            assert_eq!(queue.amount, amount);
            let numbers = queue.waiting.iter().map(|waiting| waiting.number);
            assert!(numbers.is_sorted_by(|one, other| one < other), "who came first is first");
        }
        let narrow = self.waiting.values().all(|ticket| ticket.work.width() == 1);
        if !self.waiting.is_empty() && narrow {
            assert!(load.seats >= limit, "somebody waits for a seat that is free");
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
    Pass(u64),
    Reshape(u32, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u64..6, 1_u32..4, 0_u32..3).prop_map(|(flow, seats, after)| Step::Arrive(flow, seats, after)),
        3 => any::<prop::sample::Index>().prop_map(|at| Step::Finish(at.index(1_000))),
        1 => any::<prop::sample::Index>().prop_map(|at| Step::Leave(at.index(1_000))),
        2 => (0_u64..10_000).prop_map(Step::Pass),
        1 => (0_u32..8, any::<bool>()).prop_map(|(limit, queues)| Step::Reshape(limit, queues)),
    ]
}

fn pick<V>(from: &BTreeMap<u64, V>, at: usize) -> Option<u64> {
    (!from.is_empty()).then(|| *from.keys().nth(at % from.len()).expect("within"))
}

proptest! {
    #[test]
    fn nobody_is_lost_and_nothing_is_taken_twice(steps in prop::collection::vec(step(), 1..200)) {
        let mut world = World::new(SHAPE, 4);
        let mut came = BTreeSet::new();
        for step in steps {
            let (before, limit) = (world.queues.load().seats, world.queues.limit());
            match step {
                Step::Arrive(flow, seats, after) => {
                    let work = WorkEstimate { seats, after, linger: Duration::from_millis(2) };
                    came.extend(world.arrive(flow, work));
                }
                Step::Finish(at) => if let Some(who) = pick(&world.seated, at) { world.finish(who) },
                Step::Leave(at) => if let Some(who) = pick(&world.waiting, at) { world.leave(who) },
                Step::Pass(micros) => world.pass(micros),
                Step::Reshape(limit, queues) => {
                    let shape = if queues { SHAPE } else { LevelKind::Reject };
                    let called = world.queues.reshape(shape, limit, world.now);
                    world.hear(called);
                }
            }
            world.check();
            let (after, limit) = (world.queues.load(), world.queues.limit().max(limit));
            prop_assert!(
                after.seats <= limit.max(before) || after.executing == 1,
                "more seats than there are: {:?} of {}", after, limit
            );
        }
        let called = world.queues.reshape(SHAPE, 4, world.now);
        world.hear(called);
        world.pass(2_000);
        while let Some(who) = pick(&world.seated, 0) {
            world.pass(1_000);
            world.finish(who);
            world.check();
            world.pass(2_000);
        }
        prop_assert_eq!(world.waiting.len(), 0, "everybody had their turn");
        prop_assert_eq!(world.queues.load(), Load::default());
        prop_assert!(world.queues.queues.is_empty());
    }

    #[test]
    fn who_came_first_to_a_queue_is_first(widths in prop::collection::vec(1_u32..4, 1..15)) {
        let mut world = World::new(LevelKind::Queue { queues: 1, hand: 1, length: 20 }, 3);
        let held = world.arrive(0, wide(3)).expect("there is room");
        let came: Vec<u64> = widths.iter().filter_map(|width| world.arrive(0, wide(*width))).collect();
        world.finish(held);
        while let Some(who) = pick(&world.seated, 0) {
            world.pass(100);
            world.finish(who);
        }
        prop_assert_eq!(world.called, came);
    }
}

/// Lets flows send as fast as they can, each with a backlog, and answers the seat-time of each.
fn compete(limit: u32, flows: &[(u64, WorkEstimate, u64)], backlog: usize, turns: usize) -> Vec<u64> {
    let mut world = World::new(LevelKind::Queue { queues: 64, hand: 1, length: 1_000 }, limit);
    let mut of = BTreeMap::new();
    let mut ends: BTreeSet<(u64, u64)> = BTreeSet::new();
    let mut got = vec![0; flows.len()];
    let mut known = BTreeSet::new();
    for (at, (flow, work, _)) in flows.iter().enumerate() {
        for _ in 0..backlog {
            of.insert(world.arrive(*flow, *work).expect("there is room"), at);
        }
    }
    for _ in 0..turns {
        for who in world.seated.keys() {
            if known.insert(*who) {
                let (_, _, takes) = flows[of[who]];
                ends.insert((world.now.0 + takes, *who));
            }
        }
        let (at, who) = ends.pop_first().expect("somebody is worked on");
        world.pass(at - world.now.0);
        world.finish(who);
        let (flow, work, takes) = flows[of[&who]];
        got[of[&who]] += takes * u64::from(work.seats);
        of.insert(world.arrive(flow, work).expect("there is room"), of[&who]);
        world.check();
    }
    got
}

/// Flows that are dealt different queues.
const FLOWS: [u64; 3] = [1, 2, 3];

#[test]
fn flows_share_the_time_of_the_seats_whatever_each_request_takes() {
    let [one, other, third] = FLOWS;
    let got = compete(1, &[(one, WorkEstimate::ONE, 30_000), (other, WorkEstimate::ONE, 10_000)], 5, 400);
    assert!(got[0].abs_diff(got[1]) <= 60_000, "{got:?}");
    let got = compete(
        6,
        &[(one, wide(3), 10_000), (other, WorkEstimate::ONE, 10_000), (third, wide(2), 5_000)],
        20,
        2_000,
    );
    let (least, most) = (got.iter().min().expect("three"), got.iter().max().expect("three"));
    assert!(most - least <= most / 10, "{got:?}");
}

#[test]
fn a_flow_that_floods_does_not_keep_another_from_its_share() {
    let [flood, gentle, _] = FLOWS;
    let mut world = World::new(LevelKind::Queue { queues: 64, hand: 1, length: 100 }, 2);
    let floods = |world: &mut World| while world.arrive(flood, WorkEstimate::ONE).is_some() {};
    floods(&mut world);
    for _ in 0..50 {
        let who = world.arrive(gentle, WorkEstimate::ONE).expect("its queue is empty");
        let mut waited = 0;
        while world.waiting.contains_key(&who) {
            let first = *world.seated.keys().next().expect("somebody is worked on");
            world.pass(10_000);
            world.finish(first);
            floods(&mut world);
            waited += 1;
        }
        assert!(waited <= 2, "the hundred that came before it are another flow's");
        world.pass(10_000);
        world.finish(who);
        world.check();
    }
}

#[test]
fn a_flow_that_floods_its_hand_leaves_most_others_a_queue() {
    let shape = LevelKind::Queue { queues: 64, hand: 4, length: 5 };
    let mut world = World::new(shape, 1);
    while world.arrive(u64::MAX / 3, WorkEstimate::ONE).is_some() {}
    assert_eq!(world.waiting.len(), 4 * 5, "it has its hand and no more");
    let refused = (0..1_000_u64)
        .filter(|flow| {
            world
                .arrive(flow.wrapping_mul(0x9E37_79B9_7F4A_7C15), WorkEstimate::ONE)
                .map(|who| world.leave(who))
                .is_none()
        })
        .count();
    assert_eq!(refused, 0, "none has the same hand");
}

#[test]
fn what_is_too_wide_for_its_level_has_it_alone() {
    let mut world = World::new(SHAPE, 2);
    let first = world.arrive(1, WorkEstimate::ONE).expect("there is room");
    let wide = world.arrive(2, wide(5)).expect("it waits");
    let later = world.arrive(2, WorkEstimate::ONE).expect("it waits");
    assert!(world.waiting.contains_key(&wide));
    world.finish(first);
    assert!(world.seated.contains_key(&wide) || world.seated.contains_key(&later));
    world.check();
}

#[test]
fn without_queues_what_finds_no_seat_is_refused_and_the_exempt_never_are() {
    let mut world = World::new(LevelKind::Reject, 2);
    let in_it: Vec<bool> = (0..3).map(|_| world.arrive(1, WorkEstimate::ONE).is_some()).collect();
    assert_eq!(in_it, [true, true, false]);
    let (refused, _) = world.queues.arrive(world.now, 1, WorkEstimate::ONE, || 0);
    assert_eq!(refused, Arrival::Refused(Refusal::NoSeat));
    let mut world = World::new(LevelKind::Exempt, 0);
    assert!((0..1_000).all(|_| world.arrive(1, wide(10)).is_some()));
    world.check();
}

#[test]
fn there_is_a_bound_whatever_is_configured() {
    let mut world = World::new(LevelKind::Queue { queues: 10_000_000, hand: 2, length: 10_000_000 }, 1);
    let came = (0..=REQUESTS_WAITING_PER_LEVEL as u64 + 5)
        .filter(|flow| world.arrive(flow * 77, WorkEstimate::ONE).is_some());
    assert_eq!(came.count(), REQUESTS_WAITING_PER_LEVEL + 1, "one is worked on");
    let (full, _) = world.queues.arrive(world.now, 1, WorkEstimate::ONE, || 0);
    assert_eq!(full, Arrival::Refused(Refusal::QueueFull));
}

#[test]
fn seats_linger_for_what_a_request_makes_others_do() {
    let mut world = World::new(SHAPE, 2);
    let work = WorkEstimate { seats: 1, after: 2, linger: Duration::from_millis(4) };
    let first = world.arrive(1, work).expect("there is room");
    let second = world.arrive(2, WorkEstimate::ONE).expect("it waits");
    world.finish(first);
    assert_eq!((world.queues.load().executing, world.queues.load().seats), (0, 2));
    assert_eq!(world.queues.next_release(), Some(Timestamp(world.now.0 + 4_000)));
    world.pass(3_999);
    assert!(world.waiting.contains_key(&second));
    world.pass(1);
    assert!(world.seated.contains_key(&second));
    world.finish(second);
    assert_eq!(world.queues.load(), Load::default());
}
