//! The number of seats of each level: its nominal share, and what it lends or borrows.

use super::demand::Observed;

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
    let percent = |of: u32, percent: u32| (f64::from(of) * f64::from(percent) / 100.0).round() as u32;
    let bounds = |share: &Share| {
        let part = f64::from(total) * f64::from(share.shares) / sum.max(1.0);
        let nominal = part.ceil() as u32;
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
    pub wanted: Observed,
}

impl LendingLevel {
    /// The seats that it keeps in any case: the ones of its own that it used.
    fn kept(&self) -> u32 {
        let high = self.wanted.high.round() as u32;
        let used = if self.is_exempt { high } else { high.min(self.bounds.nominal) };
        self.bounds.lower.max(used)
    }

    fn at_least(&self, seats: u32) -> u32 {
        seats.max(self.bounds.nominal.min(1))
    }
}

/// The result of lending.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lent {
    /// The current seats of each level.
    pub seats: Vec<u32>,
    /// The target of each level.
    pub targets: Vec<f64>,
    /// The part of its target that every level gets which is not at a bound.
    pub fair: f64,
}

/// Lends seats according to demand. Every level with a share keeps one seat: the next request of an unused level must not wait
/// for the next adjustment.
pub fn lend(levels: &[LendingLevel]) -> Lent {
    let total: u32 = levels.iter().map(|level| level.bounds.nominal).sum();
    let exempt: u32 = levels.iter().filter(|level| level.is_exempt).map(LendingLevel::kept).sum();
    let left = total.saturating_sub(exempt);
    let limited = || levels.iter().filter(|level| !level.is_exempt);
    let lower: u32 = limited().map(|level| level.bounds.lower).sum();
    let kept: u32 = limited().map(LendingLevel::kept).sum();
    let target = |level: &LendingLevel| f64::from(level.kept()).max(level.wanted.smoothed);
    let targets = levels.iter().map(target).collect();
    if left <= kept {
        // Exempt levels use so much that the others cannot keep what they used.
        let part = f64::from(left.saturating_sub(lower)) / f64::from(kept.saturating_sub(lower).max(1));
        let seats = levels.iter().map(|level| {
            let more = f64::from(level.kept() - level.bounds.lower) * part;
            if level.is_exempt {
                level.kept()
            } else {
                level.at_least(level.bounds.lower + more.round() as u32)
            }
        });
        return Lent { seats: seats.collect(), targets, fair: 0.0 };
    }
    let wishes: Vec<SeatDemand> = limited()
        .map(|level| SeatDemand {
            lower: f64::from(level.kept()),
            upper: f64::from(level.bounds.upper),
            target: target(level).max(SMALLEST_TARGET),
        })
        .collect();
    let fair = fair_part(f64::from(total), &wishes);
    let mut granted = wishes.iter().map(|wish| wish.at(fair).round() as u32);
    let seats = levels.iter().map(|level| {
        if level.is_exempt { level.kept() } else { level.at_least(granted.next().unwrap_or_default()) }
    });
    Lent { seats: seats.collect(), targets, fair }
}

/// A target within bounds.
struct SeatDemand {
    lower: f64,
    upper: f64,
    target: f64,
}

impl SeatDemand {
    /// Its result if everybody gets this part of their target.
    fn at(&self, part: f64) -> f64 {
        (self.target * part).min(self.upper).max(self.lower)
    }
}

/// The part of their targets that all can get of `total` within their bounds. The sum grows with the part, linearly between the
/// points where some wish meets a bound.
fn fair_part(total: f64, wishes: &[SeatDemand]) -> f64 {
    let all = |part: f64| wishes.iter().map(|wish| wish.at(part)).sum::<f64>();
    let mut turns: Vec<f64> =
        wishes.iter().flat_map(|wish| [wish.lower / wish.target, wish.upper / wish.target]).collect();
    turns.sort_by(f64::total_cmp);
    let enough = turns.partition_point(|part| all(*part) < total);
    let (Some(before), Some(after)) = (turns.get(enough.wrapping_sub(1)), turns.get(enough)) else {
        // Less than the lower bounds, or more than the upper ones.
        let end = if enough == 0 { turns.first() } else { turns.last() };
        return end.copied().unwrap_or_default();
    };
    let (less, more) = (all(*before), all(*after));
    if more > less { before + (after - before) * (total - less) / (more - less) } else { *after }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(shares: u32, lendable: u32) -> Share {
        Share { shares, lendable, ..Share::default() }
    }

    /// The levels of a fresh cluster, with their recent demand.
    fn fresh(wanted: [f64; 8]) -> Vec<LendingLevel> {
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
        let seen = |high| Observed { high, smoothed: high, ..Observed::default() };
        let levels = shares.iter().zip(bounds).zip(wanted);
        levels
            .map(|((share, bounds), high)| LendingLevel {
                is_exempt: share.is_exempt,
                bounds,
                wanted: seen(high),
            })
            .collect()
    }

    #[test]
    fn seats_are_divided_as_the_reference_does() {
        let bounds: Vec<(u32, u32, u32)> = fresh([0.0; 8])
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
    fn who_wants_more_borrows_of_who_wants_less() {
        let idle = lend(&fresh([0.0; 8]));
        assert_eq!(idle.seats[0], 0);
        let few = divide(10, &[share(1, 100), share(245, 0)]);
        let idle =
            |bounds: &Bounds| LendingLevel { is_exempt: false, bounds: *bounds, wanted: Observed::default() };
        assert_eq!(lend(&few.iter().map(idle).collect::<Vec<_>>()).seats, [1, 11], "nobody has none");
        let busy = lend(&fresh([0.0, 0.0, 400.0, 0.0, 0.0, 0.0, 0.0, 0.0]));
        assert!(busy.seats[2] > 300, "{busy:?}");
        let back = lend(&fresh([0.0, 0.0, 400.0, 0.0, 0.0, 0.0, 0.0, 245.0]));
        assert!(back.seats[7] >= 245, "what is wanted of one's own is not lent: {back:?}");
    }

    #[test]
    fn what_the_exempt_use_is_not_there_for_others() {
        let some = lend(&fresh([400.0, 13.0, 49.0, 25.0, 98.0, 74.0, 98.0, 245.0]));
        assert_eq!((some.seats[0], some.seats[1]), (400, 13));
        assert!(some.seats[7] < 245 && some.seats[7] >= 24, "{some:?}");
        let all = lend(&fresh([9_000.0, 13.0, 49.0, 25.0, 98.0, 74.0, 98.0, 245.0]));
        assert_eq!(all.seats[1..], [13, 24, 25, 73, 50, 49, 24], "but what nobody else can have stays");
    }

    proptest! {
        #[test]
        fn nobody_gets_less_than_they_keep_nor_more_than_they_may(
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
                    let wanted = Observed { high: *high, smoothed: *high, ..Observed::default() };
                    LendingLevel { is_exempt: false, bounds: *bounds, wanted }
                })
                .collect();
            let lent = lend(&levels);
            prop_assert_eq!(lent.seats.len(), levels.len());
            for (level, seats) in levels.iter().zip(&lent.seats) {
                prop_assert!(*seats >= level.bounds.lower && *seats <= level.bounds.upper, "{:?} {}", level, seats);
            }
            let nominal: u32 = bounds.iter().map(|bounds| bounds.nominal).sum();
            let upper: u32 = bounds.iter().map(|bounds| bounds.upper).sum();
            let given: u32 = lent.seats.iter().sum();
            // Each is rounded, and each has at least one seat.
            let rounding = 2 * u32::try_from(levels.len()).unwrap_or_default();
            prop_assert!(given <= nominal + rounding, "no more than there is: {} of {}", given, nominal);
            prop_assert!(given + rounding >= nominal.min(upper), "and all of it: {} of {}", given, nominal);
        }
    }
}
