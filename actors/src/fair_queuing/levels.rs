//! All priority levels of a server: the division of seats among them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::lock::Lock;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::alarm::Alarm;
use super::demand::Observed;
use super::level::Level;
use super::queues::LevelKind;
use super::shares::{Bounds, LendingLevel, Share, divide, lend};
use super::utilization::TimeByPart;

/// How often seats are lent anew; the reference's value.
const LENT_EVERY: Duration = Duration::from_secs(10);
/// The maximum seats of one request, absolutely and as a part of its level; the reference's values.
const WIDEST: u32 = 10;
const WIDEST_PART: f64 = 0.15;

/// What counts as all seats of a level without a limit, as a part of all; the reference's value.
const EXEMPT_PART: f64 = 0.1;

/// The configuration of a level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The name of the PriorityLevelConfiguration.
    pub name: String,
    /// Its share of the seats.
    pub share: Share,
    /// What happens to requests without a seat.
    pub shape: LevelKind,
}

/// A level, and what it has.
struct LevelState<G> {
    level: Arc<Level<G>>,
    share: Share,
    shape: LevelKind,
    bounds: Bounds,
    observed: Observed,
    target: f64,
    seats: u32,
    /// Whether it is still configured; if not, it is dropped once unused.
    is_wanted: bool,
}

/// The state of a level, for metrics.
#[derive(Clone, Debug)]
pub struct LevelSnapshot {
    /// The name of the level.
    pub name: String,
    /// Its nominal, lower and upper number of seats.
    pub bounds: Bounds,
    /// Its current number of seats.
    pub seats: u32,
    /// Its recent demand.
    pub observed: Observed,
    /// The target of the last lending.
    pub target: f64,
    /// For how long which part of its seats was taken.
    pub utilization: TimeByPart,
}

/// All levels that share the seats of a server. `G`: what is known of those who are in them.
pub struct Levels<G> {
    total: u32,
    clock: Clock,
    alarm: Arc<Alarm>,
    known: Lock<LevelTable<G>>,
}

struct LevelTable<G> {
    standing: BTreeMap<String, LevelState<G>>,
    fair: f64,
}

impl<G> Levels<G> {
    /// No levels yet that share so many seats.
    pub fn new(total: u32, clock: Clock) -> Levels<G> {
        let known = LevelTable { standing: BTreeMap::new(), fair: 0.0 };
        Levels { total, clock, alarm: Arc::default(), known: Lock::new(known) }
    }

    /// Makes the levels these. One that was there stays, with all who are in it.
    pub fn configure(&self, specs: &[Spec]) -> BTreeMap<String, Arc<Level<G>>> {
        let mut known = self.known.lock();
        known.standing.values_mut().for_each(|standing| standing.is_wanted = false);
        for spec in specs {
            let make = || LevelState {
                level: Arc::new(Level::new(spec.shape, 0, &self.clock, &self.alarm)),
                share: spec.share,
                shape: spec.shape,
                bounds: Bounds::default(),
                observed: Observed::default(),
                target: 0.0,
                seats: 0,
                is_wanted: true,
            };
            let standing = known.standing.entry(spec.name.clone()).or_insert_with(make);
            (standing.share, standing.shape, standing.is_wanted) = (spec.share, spec.shape, true);
        }
        known.divide(self.total);
        let wanted = known.standing.iter().filter(|(_, standing)| standing.is_wanted);
        wanted.map(|(name, standing)| (name.clone(), standing.level.clone())).collect()
    }

    /// Lends seats anew, based on the demand since the last time.
    pub fn adjust(&self) {
        self.known.lock().divide(self.total);
    }

    /// The state of each level.
    pub fn told(&self) -> Vec<LevelSnapshot> {
        let known = self.known.lock();
        let told = known.standing.iter().map(|(name, standing)| LevelSnapshot {
            name: name.clone(),
            bounds: standing.bounds,
            seats: standing.seats,
            observed: standing.observed,
            target: standing.target,
            utilization: standing.level.utilization(),
        });
        told.collect()
    }

    /// The levels by their names, and whether each is still meant to be there.
    pub fn named(&self) -> Vec<(String, bool, Arc<Level<G>>)> {
        let known = self.known.lock();
        let named = known.standing.iter();
        named.map(|(name, standing)| (name.clone(), standing.is_wanted, standing.level.clone())).collect()
    }

    /// How much of its target every level has that is not at a bound.
    pub fn fair_part(&self) -> f64 {
        self.known.lock().fair
    }

    fn all(&self) -> Vec<Arc<Level<G>>> {
        self.known.lock().standing.values().map(|standing| standing.level.clone()).collect()
    }

    /// Frees lingering seats whose time is over. Answers when the next ones become free that requests wait for.
    fn release(&self) -> Option<Timestamp> {
        self.alarm.begin_look();
        let all = self.all();
        all.iter().for_each(|level| level.release());
        let next = all.iter().filter_map(|level| level.next_release()).min();
        self.alarm.end_look(next);
        next
    }

    /// Lends seats periodically, and frees lingering ones. Never ends.
    pub async fn keep(&self) {
        let mut turns = interval(LENT_EVERY);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = self.release();
            let release = async {
                match due {
                    Some(due) => sleep(due.since(self.clock.now())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = turns.tick() => self.adjust(),
                () = self.alarm.rung() => {}
                () = release => {}
            }
        }
    }
}

impl<G> LevelTable<G> {
    /// Gives every level its seats. Those that are not wanted have some until they are empty.
    fn divide(&mut self, total: u32) {
        // A request that is about to enter holds its level: it must not wait in one that was dropped.
        let is_held =
            |standing: &LevelState<G>| !standing.level.is_idle() || Arc::strong_count(&standing.level) > 1;
        self.standing.retain(|_, standing| standing.is_wanted || is_held(standing));
        let shares: Vec<Share> = self.standing.values().map(|standing| standing.share).collect();
        for (standing, bounds) in self.standing.values_mut().zip(divide(total, &shares)) {
            standing.bounds = bounds;
            standing.level.widen(widest(standing.shape, bounds.nominal));
            standing.observed = standing.level.observe(&standing.observed);
        }
        let level = |standing: &LevelState<G>| LendingLevel {
            is_exempt: standing.share.is_exempt,
            bounds: standing.bounds,
            wanted: standing.observed,
        };
        let lent = lend(&self.standing.values().map(level).collect::<Vec<_>>());
        self.fair = lent.fair;
        for ((standing, seats), target) in self.standing.values_mut().zip(lent.seats).zip(lent.targets) {
            (standing.seats, standing.target) = (seats, target);
            standing.level.reshape(standing.shape, seats);
            let exempt_seats = || (f64::from(total) * EXEMPT_PART).round() as u32;
            standing.level.measure_by(if standing.share.is_exempt { exempt_seats() } else { seats });
        }
    }
}

/// The maximum number of seats of one request of a level.
fn widest(shape: LevelKind, nominal: u32) -> u32 {
    match shape {
        LevelKind::Queue { hand, .. } => {
            let part = (f64::from(nominal) * WIDEST_PART).ceil() as u32;
            let of_hand = nominal / u32::try_from(hand.max(1)).unwrap_or(u32::MAX);
            part.min(of_hand).clamp(1, WIDEST)
        }
        LevelKind::Exempt | LevelKind::Reject => WIDEST,
    }
}

#[cfg(test)]
mod tests {
    use super::super::level::Entry;
    use super::super::queues::WorkEstimate;
    use super::*;

    const QUEUE: LevelKind = LevelKind::Queue { queues: 4, hand: 2, length: 10 };

    fn spec(name: &str, shares: u32, shape: LevelKind) -> Spec {
        let share = Share { shares, is_exempt: shape == LevelKind::Exempt, ..Share::default() };
        Spec { name: name.to_owned(), share, shape }
    }

    fn seats(levels: &Levels<()>) -> Vec<(String, u32)> {
        levels.told().into_iter().map(|told| (told.name, told.seats)).collect()
    }

    #[test]
    fn levels_stay_while_they_are_used_and_come_back_as_they_were() {
        let clock = Clock::manual(Timestamp(0));
        let levels = Levels::new(10, clock);
        let both = [spec("a", 1, QUEUE), spec("b", 1, LevelKind::Reject)];
        let first = levels.configure(&both);
        assert_eq!(seats(&levels), [("a".to_owned(), 5), ("b".to_owned(), 5)]);
        let Entry::Seated(seat) = first["b"].enter(Timestamp(0), 1, WorkEstimate::ONE, ()) else {
            panic!("no seat")
        };
        let left = levels.configure(&both[..1]);
        assert_eq!((left.len(), levels.told().len()), (1, 2), "somebody is in it");
        let again = levels.configure(&both);
        assert!(Arc::ptr_eq(&again["b"], &first["b"]) && Arc::ptr_eq(&again["a"], &first["a"]));
        levels.configure(&both[..1]);
        drop(seat);
        levels.adjust();
        assert_eq!(levels.told().len(), 2, "somebody may be about to enter it");
        drop((first, again));
        levels.adjust();
        assert_eq!(seats(&levels), [("a".to_owned(), 10)]);
    }

    #[test]
    fn seats_that_are_lent_come_to_who_waits_for_them() {
        let clock = Clock::manual(Timestamp(0));
        let levels = Levels::new(10, clock.clone());
        let mut lender = spec("b", 1, LevelKind::Reject);
        lender.share.lendable = 100;
        let made = levels.configure(&[spec("a", 1, QUEUE), lender]);
        let mut here = Vec::new();
        for flow in 0..9 {
            here.push(made["a"].enter(Timestamp(0), flow, WorkEstimate::ONE, ()));
        }
        clock.advance(LENT_EVERY);
        levels.adjust();
        assert!(levels.told()[0].seats >= 9, "{:?}", levels.told());
        assert_eq!(made["a"].load().waiting, 0);
    }

    #[test]
    fn no_request_is_wider_than_its_level_can_bear() {
        assert_eq!(widest(QUEUE, 100), 10);
        assert_eq!(widest(QUEUE, 20), 3);
        assert_eq!(widest(LevelKind::Queue { queues: 8, hand: 8, length: 1 }, 20), 2);
        assert_eq!(widest(QUEUE, 0), 1);
        assert_eq!(widest(LevelKind::Reject, 1), WIDEST);
    }
}
