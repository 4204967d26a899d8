//! All priority levels of a server: the division of seats among them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::lock::Lock;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::alarm::Alarm;
use super::demand::DemandStats;
use super::level::Level;
use super::queues::LevelKind;
use super::shares::{Bounds, LendingLevel, Share, divide, lend};
use super::utilization::UtilizationHistogram;

/// How often seats are lent anew; the reference's value.
const ADJUSTMENT_PERIOD: Duration = Duration::from_secs(10);
/// The maximum seats of one request, absolutely and as a fraction of its level; the reference's values.
const MAX_SEATS: u32 = 10;
const MAX_SEATS_FRACTION: f64 = 0.15;

/// The seats that count as full utilization of an exempt level, as a fraction of the server's seats; the reference's value.
const EXEMPT_FRACTION: f64 = 0.1;

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

/// A level with its configuration and its current seats.
struct LevelState<G> {
    level: Arc<Level<G>>,
    share: Share,
    shape: LevelKind,
    bounds: Bounds,
    observed: DemandStats,
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
    pub observed: DemandStats,
    /// The target of the last lending.
    pub target: f64,
    /// The histogram of the utilization of its seats.
    pub utilization: UtilizationHistogram,
}

/// All levels that share the seats of a server. `G`: the caller's record of each request.
pub struct Levels<G> {
    total: u32,
    clock: Clock,
    alarm: Arc<Alarm>,
    table: Lock<LevelTable<G>>,
}

struct LevelTable<G> {
    levels: BTreeMap<String, LevelState<G>>,
    fair_fraction: f64,
}

impl<G> Levels<G> {
    /// Without levels. `total`: the seats of the server.
    pub fn new(total: u32, clock: Clock) -> Levels<G> {
        let table = LevelTable { levels: BTreeMap::new(), fair_fraction: 0.0 };
        Levels { total, clock, alarm: Arc::default(), table: Lock::new(table) }
    }

    /// Replaces the configuration. A level that existed before keeps its requests.
    pub fn configure(&self, specs: &[Spec]) -> BTreeMap<String, Arc<Level<G>>> {
        let mut table = self.table.lock();
        table.levels.values_mut().for_each(|state| state.is_wanted = false);
        for spec in specs {
            let make = || LevelState {
                level: Arc::new(Level::new(spec.shape, 0, &self.clock, &self.alarm)),
                share: spec.share,
                shape: spec.shape,
                bounds: Bounds::default(),
                observed: DemandStats::default(),
                target: 0.0,
                seats: 0,
                is_wanted: true,
            };
            let state = table.levels.entry(spec.name.clone()).or_insert_with(make);
            (state.share, state.shape, state.is_wanted) = (spec.share, spec.shape, true);
        }
        table.divide(self.total);
        let wanted = table.levels.iter().filter(|(_, state)| state.is_wanted);
        wanted.map(|(name, state)| (name.clone(), state.level.clone())).collect()
    }

    /// Lends seats anew, based on the demand since the last time.
    pub fn adjust(&self) {
        self.table.lock().divide(self.total);
    }

    /// The state of each level.
    pub fn snapshots(&self) -> Vec<LevelSnapshot> {
        let table = self.table.lock();
        let snapshots = table.levels.iter().map(|(name, state)| LevelSnapshot {
            name: name.clone(),
            bounds: state.bounds,
            seats: state.seats,
            observed: state.observed,
            target: state.target,
            utilization: state.level.utilization(),
        });
        snapshots.collect()
    }

    /// The levels with their names, and whether each is still configured.
    pub fn list(&self) -> Vec<(String, bool, Arc<Level<G>>)> {
        let table = self.table.lock();
        let levels = table.levels.iter();
        levels.map(|(name, state)| (name.clone(), state.is_wanted, state.level.clone())).collect()
    }

    /// The fraction of its target that every level has which is not at a bound.
    pub fn fair_fraction(&self) -> f64 {
        self.table.lock().fair_fraction
    }

    fn all(&self) -> Vec<Arc<Level<G>>> {
        self.table.lock().levels.values().map(|state| state.level.clone()).collect()
    }

    /// Frees lingering seats whose time is over. Returns when the next ones become free that requests wait for.
    fn release(&self) -> Option<Timestamp> {
        self.alarm.begin_check();
        let all = self.all();
        all.iter().for_each(|level| level.release());
        let next = all.iter().filter_map(|level| level.next_release()).min();
        self.alarm.end_check(next);
        next
    }

    /// Lends seats periodically, and frees lingering ones. Never ends.
    pub async fn run(&self) {
        let mut adjustments = interval(ADJUSTMENT_PERIOD);
        adjustments.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = self.release();
            let release = async {
                match due {
                    Some(due) => sleep(due.since(self.clock.now())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = adjustments.tick() => self.adjust(),
                () = self.alarm.wait() => {}
                () = release => {}
            }
        }
    }
}

impl<G> LevelTable<G> {
    /// Sets the seats of every level. A level that is no longer configured keeps some until it is unused.
    fn divide(&mut self, total: u32) {
        // A request that is about to enter holds its level: it must not wait in one that was dropped.
        let is_held = |state: &LevelState<G>| !state.level.is_idle() || Arc::strong_count(&state.level) > 1;
        self.levels.retain(|_, state| state.is_wanted || is_held(state));
        let shares: Vec<Share> = self.levels.values().map(|state| state.share).collect();
        for (state, bounds) in self.levels.values_mut().zip(divide(total, &shares)) {
            state.bounds = bounds;
            state.level.set_max_seats(max_seats(state.shape, bounds.nominal));
            state.observed = state.level.observe_demand(&state.observed);
        }
        let level = |state: &LevelState<G>| LendingLevel {
            is_exempt: state.share.is_exempt,
            bounds: state.bounds,
            demand: state.observed,
        };
        let allocation = lend(&self.levels.values().map(level).collect::<Vec<_>>());
        self.fair_fraction = allocation.fair_fraction;
        for ((state, seats), target) in self.levels.values_mut().zip(allocation.seats).zip(allocation.targets)
        {
            (state.seats, state.target) = (seats, target);
            state.level.reshape(state.shape, seats);
            let exempt_seats = || (f64::from(total) * EXEMPT_FRACTION).round() as u32;
            state.level.set_capacity(if state.share.is_exempt { exempt_seats() } else { seats });
        }
    }
}

/// The maximum number of seats of one request of a level.
fn max_seats(shape: LevelKind, nominal: u32) -> u32 {
    match shape {
        LevelKind::Queue { hand, .. } => {
            let by_level = (f64::from(nominal) * MAX_SEATS_FRACTION).ceil() as u32;
            let by_hand = nominal / u32::try_from(hand.max(1)).unwrap_or(u32::MAX);
            by_level.min(by_hand).clamp(1, MAX_SEATS)
        }
        LevelKind::Exempt | LevelKind::Reject => MAX_SEATS,
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
        levels.snapshots().into_iter().map(|snapshot| (snapshot.name, snapshot.seats)).collect()
    }

    #[test]
    fn unconfigured_level_stays_while_in_use_and_is_reused() {
        let clock = Clock::manual(Timestamp(0));
        let levels = Levels::new(10, clock);
        let both = [spec("a", 1, QUEUE), spec("b", 1, LevelKind::Reject)];
        let first = levels.configure(&both);
        assert_eq!(seats(&levels), [("a".to_owned(), 5), ("b".to_owned(), 5)]);
        let Entry::Seated(seat) = first["b"].enter(Timestamp(0), 1, WorkEstimate::ONE, ()) else {
            panic!("no seat")
        };
        let remaining = levels.configure(&both[..1]);
        assert_eq!((remaining.len(), levels.snapshots().len()), (1, 2), "a request executes in it");
        let again = levels.configure(&both);
        assert!(Arc::ptr_eq(&again["b"], &first["b"]) && Arc::ptr_eq(&again["a"], &first["a"]));
        levels.configure(&both[..1]);
        drop(seat);
        levels.adjust();
        assert_eq!(levels.snapshots().len(), 2, "a request may be about to enter it");
        drop((first, again));
        levels.adjust();
        assert_eq!(seats(&levels), [("a".to_owned(), 10)]);
    }

    #[test]
    fn lent_seats_dispatch_waiting_requests() {
        let clock = Clock::manual(Timestamp(0));
        let levels = Levels::new(10, clock.clone());
        let mut lender = spec("b", 1, LevelKind::Reject);
        lender.share.lendable = 100;
        let configured = levels.configure(&[spec("a", 1, QUEUE), lender]);
        let mut entries = Vec::new();
        for flow in 0..9 {
            entries.push(configured["a"].enter(Timestamp(0), flow, WorkEstimate::ONE, ()));
        }
        clock.advance(ADJUSTMENT_PERIOD);
        levels.adjust();
        assert!(levels.snapshots()[0].seats >= 9, "{:?}", levels.snapshots());
        assert_eq!(configured["a"].load().waiting, 0);
    }

    #[test]
    fn max_seats_of_request_depend_on_level() {
        assert_eq!(max_seats(QUEUE, 100), 10);
        assert_eq!(max_seats(QUEUE, 20), 3);
        assert_eq!(max_seats(LevelKind::Queue { queues: 8, hand: 8, length: 1 }, 20), 2);
        assert_eq!(max_seats(QUEUE, 0), 1);
        assert_eq!(max_seats(LevelKind::Reject, 1), MAX_SEATS);
    }
}
