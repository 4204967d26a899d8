//! The number of seats of each level: its nominal share, and what it lends or borrows.

use super::demand::DemandStats;

/// The minimum target, because it is a divisor.
const SMALLEST_TARGET: f64 = 0.001;

/// The configured share of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Whether every request of it gets a seat.
    pub is_exempt: bool,
    /// Its concurrency shares, relative to those of the others.
    pub shares: u32,
    /// The percentage of its seats that others may borrow.
    pub lendable: u32,
    /// The percentage by which it may exceed its seats; `None` for no limit.
    pub borrowing: Option<u32>,
}

/// The seat bounds of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The seats of its share.
    pub nominal: u32,
    /// The seats that others cannot borrow.
    pub lower: u32,
    /// The maximum that it can have.
    pub upper: u32,
}

/// Divides all seats. Each share is rounded up, so that every level with a share gets a seat.
pub fn divide(total: u32, shares: &[Share]) -> Vec<Bounds> {
    let sum: f64 = shares.iter().map(|share| f64::from(share.shares)).sum();
    let percent = |seats: u32, percent: u32| (f64::from(seats) * f64::from(percent) / 100.0).round() as u32;
    let bounds = |share: &Share| {
        let exact = f64::from(total) * f64::from(share.shares) / sum.max(1.0);
        let nominal = exact.ceil() as u32;
        let lends = percent(nominal, share.lendable.min(100));
        let borrows = share.borrowing.map_or(total, |borrowing| percent(nominal, borrowing));
        Bounds { nominal, lower: nominal - lends, upper: nominal.saturating_add(borrows) }
    };
    shares.iter().map(bounds).collect()
}

/// A level that lends and borrows.
#[derive(Clone, Copy, Debug)]
pub struct LendingLevel {
    /// Whether every request of it gets a seat; the seats that it uses are not available to others.
    pub is_exempt: bool,
    /// Its bounds.
    pub bounds: Bounds,
    /// Its recent demand.
    pub demand: DemandStats,
}

impl LendingLevel {
    /// The seats that it keeps in any case: the ones of its own that it used.
    fn min_seats(&self) -> u32 {
        let high = self.demand.high.round() as u32;
        let used = if self.is_exempt { high } else { high.min(self.bounds.nominal) };
        self.bounds.lower.max(used)
    }

    /// Every level with a share keeps one seat.
    fn at_least_one(&self, seats: u32) -> u32 {
        seats.max(self.bounds.nominal.min(1))
    }
}

/// The seats of all levels after lending, in the order of the levels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeatAllocation {
    /// The current seats of each level.
    pub seats: Vec<u32>,
    /// The target of each level.
    pub targets: Vec<f64>,
    /// The fraction of its target that every level gets which is not at a bound.
    pub fair_fraction: f64,
}

/// Lends seats according to demand. Every level with a share keeps one seat: the next request of an unused level must not wait
/// for the next adjustment.
pub fn lend(levels: &[LendingLevel]) -> SeatAllocation {
    let total: u32 = levels.iter().map(|level| level.bounds.nominal).sum();
    let exempt: u32 = levels.iter().filter(|level| level.is_exempt).map(LendingLevel::min_seats).sum();
    let available = total.saturating_sub(exempt);
    let limited = || levels.iter().filter(|level| !level.is_exempt);
    let lower: u32 = limited().map(|level| level.bounds.lower).sum();
    let min_seats: u32 = limited().map(LendingLevel::min_seats).sum();
    let target = |level: &LendingLevel| f64::from(level.min_seats()).max(level.demand.smoothed);
    let targets = levels.iter().map(target).collect();
    if available <= min_seats {
        // Exempt levels use so much that the others cannot keep what they used.
        let ratio =
            f64::from(available.saturating_sub(lower)) / f64::from(min_seats.saturating_sub(lower).max(1));
        let seats = levels.iter().map(|level| {
            let above_lower = f64::from(level.min_seats() - level.bounds.lower) * ratio;
            if level.is_exempt {
                level.min_seats()
            } else {
                level.at_least_one(level.bounds.lower + above_lower.round() as u32)
            }
        });
        return SeatAllocation { seats: seats.collect(), targets, fair_fraction: 0.0 };
    }
    let demands: Vec<SeatDemand> = limited()
        .map(|level| SeatDemand {
            lower: f64::from(level.min_seats()),
            upper: f64::from(level.bounds.upper),
            target: target(level).max(SMALLEST_TARGET),
        })
        .collect();
    let fair_fraction = fair_fraction(f64::from(total), &demands);
    let mut granted = demands.iter().map(|demand| demand.seats_at(fair_fraction).round() as u32);
    let seats = levels.iter().map(|level| {
        if level.is_exempt {
            level.min_seats()
        } else {
            level.at_least_one(granted.next().unwrap_or_default())
        }
    });
    SeatAllocation { seats: seats.collect(), targets, fair_fraction }
}

/// The target of a level within its bounds.
struct SeatDemand {
    lower: f64,
    upper: f64,
    target: f64,
}

impl SeatDemand {
    /// The seats of the level if every level gets this fraction of its target.
    fn seats_at(&self, fraction: f64) -> f64 {
        (self.target * fraction).min(self.upper).max(self.lower)
    }
}

/// The fraction of its target that every level can get of `total` seats, within its bounds. The sum of seats grows with the
/// fraction, linearly between the points where some level reaches a bound.
fn fair_fraction(total: f64, demands: &[SeatDemand]) -> f64 {
    let sum_at = |fraction: f64| demands.iter().map(|demand| demand.seats_at(fraction)).sum::<f64>();
    let mut breakpoints: Vec<f64> = demands
        .iter()
        .flat_map(|demand| [demand.lower / demand.target, demand.upper / demand.target])
        .collect();
    breakpoints.sort_by(f64::total_cmp);
    let index = breakpoints.partition_point(|fraction| sum_at(*fraction) < total);
    let (Some(before), Some(after)) = (breakpoints.get(index.wrapping_sub(1)), breakpoints.get(index)) else {
        // Less than the lower bounds, or more than the upper ones.
        let end = if index == 0 { breakpoints.first() } else { breakpoints.last() };
        return end.copied().unwrap_or_default();
    };
    let (sum_before, sum_after) = (sum_at(*before), sum_at(*after));
    if sum_after > sum_before {
        before + (after - before) * (total - sum_before) / (sum_after - sum_before)
    } else {
        *after
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(shares: u32, lendable: u32) -> Share {
        Share { shares, lendable, ..Share::default() }
    }

    /// The levels of a fresh cluster, with their recent demand.
    fn default_levels(high_demand: [f64; 8]) -> Vec<LendingLevel> {
        let shares = [
            Share { is_exempt: true, ..Share::default() },
            share(5, 0),
            share(20, 50),
            share(10, 0),
            share(40, 25),
            share(30, 33),
            share(40, 50),
            share(100, 90),
        ];
        let bounds = divide(600, &shares).into_iter();
        let stats = |high| DemandStats { high, smoothed: high, ..DemandStats::default() };
        let levels = shares.iter().zip(bounds).zip(high_demand);
        levels
            .map(|((share, bounds), high)| LendingLevel {
                is_exempt: share.is_exempt,
                bounds,
                demand: stats(high),
            })
            .collect()
    }

    #[test]
    fn divide_gives_default_levels_the_bounds_of_the_reference() {
        let bounds: Vec<(u32, u32, u32)> = default_levels([0.0; 8])
            .iter()
            .map(|level| (level.bounds.nominal, level.bounds.lower, level.bounds.upper))
            .collect();
        assert_eq!(
            bounds,
            [
                (0, 0, 600),
                (13, 13, 613),
                (49, 24, 649),
                (25, 25, 625),
                (98, 73, 698),
                (74, 50, 674),
                (98, 49, 698),
                (245, 24, 845)
            ]
        );
        let none = divide(10, &[share(0, 0), share(1, 0)]);
        assert_eq!((none[0].nominal, none[1].nominal), (0, 10));
        assert_eq!(divide(10, &[share(0, 0)])[0].nominal, 0);
        let strict = divide(10, &[Share { borrowing: Some(0), ..share(1, 0) }, share(245, 0)]);
        assert_eq!(strict[0], Bounds { nominal: 1, lower: 1, upper: 1 });
    }

    #[test]
    fn lend_moves_unused_seats_to_levels_with_demand() {
        let idle = lend(&default_levels([0.0; 8]));
        assert_eq!(idle.seats[0], 0);
        let few = divide(10, &[share(1, 100), share(245, 0)]);
        let idle = |bounds: &Bounds| LendingLevel {
            is_exempt: false,
            bounds: *bounds,
            demand: DemandStats::default(),
        };
        assert_eq!(
            lend(&few.iter().map(idle).collect::<Vec<_>>()).seats,
            [1, 11],
            "every level with a share keeps a seat"
        );
        let busy = lend(&default_levels([0.0, 0.0, 400.0, 0.0, 0.0, 0.0, 0.0, 0.0]));
        assert!(busy.seats[2] > 300, "{busy:?}");
        let reclaimed = lend(&default_levels([0.0, 0.0, 400.0, 0.0, 0.0, 0.0, 0.0, 245.0]));
        assert!(reclaimed.seats[7] >= 245, "seats in use are not lent: {reclaimed:?}");
    }

    #[test]
    fn lend_subtracts_seats_of_exempt_levels() {
        let partial = lend(&default_levels([400.0, 13.0, 49.0, 25.0, 98.0, 74.0, 98.0, 245.0]));
        assert_eq!((partial.seats[0], partial.seats[1]), (400, 13));
        assert!(partial.seats[7] < 245 && partial.seats[7] >= 24, "{partial:?}");
        let exhausted = lend(&default_levels([9_000.0, 13.0, 49.0, 25.0, 98.0, 74.0, 98.0, 245.0]));
        assert_eq!(exhausted.seats[1..], [13, 24, 25, 73, 50, 49, 24], "seats that are not lendable stay");
    }

    proptest! {
        #[test]
        fn lend_stays_within_bounds_and_total(
            levels in prop::collection::vec((0_u32..200, 0_u32..=100, prop::option::of(0_u32..300), 0.0..2_000.0), 1..12),
            total in 1_u32..2_000,
        ) {
            let shares: Vec<Share> = levels
                .iter()
                .map(|(shares, lendable, borrowing, _)| Share { borrowing: *borrowing, ..share(*shares, *lendable) })
                .collect();
            let bounds = divide(total, &shares);
            let levels: Vec<LendingLevel> = bounds
                .iter()
                .zip(&levels)
                .map(|(bounds, (.., high))| {
                    let demand = DemandStats { high: *high, smoothed: *high, ..DemandStats::default() };
                    LendingLevel { is_exempt: false, bounds: *bounds, demand }
                })
                .collect();
            let allocation = lend(&levels);
            prop_assert_eq!(allocation.seats.len(), levels.len());
            for (level, seats) in levels.iter().zip(&allocation.seats) {
                prop_assert!(*seats >= level.bounds.lower && *seats <= level.bounds.upper, "{:?} {}", level, seats);
            }
            let nominal: u32 = bounds.iter().map(|bounds| bounds.nominal).sum();
            let upper: u32 = bounds.iter().map(|bounds| bounds.upper).sum();
            let allocated: u32 = allocation.seats.iter().sum();
            // Each is rounded, and each has at least one seat.
            let rounding = 2 * u32::try_from(levels.len()).unwrap_or_default();
            prop_assert!(allocated <= nominal + rounding, "more than the total: {} of {}", allocated, nominal);
            prop_assert!(allocated + rounding >= nominal.min(upper), "less than the total: {} of {}", allocated, nominal);
        }
    }
}
