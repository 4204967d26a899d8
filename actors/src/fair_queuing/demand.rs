//! The recent seat demand of a level, which decides how many seats it lends and borrows.

use pilothouse_types::clock::Timestamp;

/// How much of the old smoothed demand remains after one look: half of it after five minutes. The reference's value.
const KEPT: f64 = 0.977;

/// A number of seats that is tracked over time.
#[derive(Debug)]
pub struct Demand {
    at: Timestamp,
    seats: f64,
    high: f64,
    /// Seconds, seat-seconds, and the same with seats squared.
    elapsed: f64,
    sum: f64,
    squares: f64,
}

/// The demand between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// The maximum.
    pub high: f64,
    /// The average, as of the last look with a nonzero duration.
    pub average: f64,
    /// The standard deviation.
    pub deviation: f64,
    /// The smoothed demand that decides: it rises at once and falls slowly.
    pub smoothed: f64,
}

impl Demand {
    /// Starts without demand.
    pub fn new(now: Timestamp) -> Demand {
        Demand { at: now, seats: 0.0, high: 0.0, elapsed: 0.0, sum: 0.0, squares: 0.0 }
    }

    /// Sets the demand from now on.
    pub fn set(&mut self, now: Timestamp, seats: f64) {
        self.pass(now);
        self.seats = seats;
        self.high = self.high.max(seats);
    }

    fn pass(&mut self, now: Timestamp) {
        let elapsed = now.since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.elapsed += elapsed;
        self.sum += self.seats * elapsed;
        self.squares += self.seats * self.seats * elapsed;
    }

    /// The demand since the last look; starts a new period. `before`: the result of the last look.
    pub fn look(&mut self, now: Timestamp, before: &Observed) -> Observed {
        self.pass(now);
        let mut found = Observed { high: self.high, ..*before };
        if self.elapsed > 0.0 {
            found.average = self.sum / self.elapsed;
            let variance = self.squares / self.elapsed - found.average * found.average;
            // Rounding can make the variance slightly negative.
            found.deviation = variance.max(0.0).sqrt();
            let wanted = found.average + found.deviation;
            found.smoothed = wanted.max(KEPT * before.smoothed + (1.0 - KEPT) * wanted);
        }
        *self = Demand { seats: self.seats, high: self.seats, ..Demand::new(self.at) };
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_is_weighed_by_how_long_it_lasted() {
        let second = |at: u64| Timestamp(at * 1_000_000);
        let mut demand = Demand::new(second(0));
        demand.set(second(2), 4.0);
        demand.set(second(3), 0.0);
        let found = demand.look(second(4), &Observed::default());
        assert_eq!((found.high, found.average, found.deviation), (4.0, 1.0, 3.0_f64.sqrt()));
        assert_eq!(found.smoothed, 1.0 + 3.0_f64.sqrt(), "it rises at once");
        let later = demand.look(second(5), &found);
        assert_eq!((later.high, later.average), (0.0, 0.0));
        assert_eq!(later.smoothed, KEPT * found.smoothed, "it falls slowly");
        let same = demand.look(second(5), &later);
        assert_eq!(same, later, "no time has passed");
        demand.set(second(1), 2.0);
        assert_eq!(demand.look(second(6), &later).average, 2.0, "a clock that is set back stands still");
    }
}
