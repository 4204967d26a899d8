//! The recent seat demand of a level, which decides how many seats it lends and borrows.

use pilothouse_types::clock::Timestamp;

/// The weight of the old smoothed demand after one period: its half-life is five minutes. The reference's value.
const SMOOTHING_COEFFICIENT: f64 = 0.977;

/// A number of seats that is tracked over time.
#[derive(Debug)]
pub struct Demand {
    last_update: Timestamp,
    seats: f64,
    high: f64,
    /// Seconds, seat-seconds, and the same with seats squared.
    elapsed: f64,
    sum: f64,
    squares: f64,
}

/// The statistics of one period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DemandStats {
    /// The maximum.
    pub high: f64,
    /// The average, of the last period with a nonzero duration.
    pub average: f64,
    /// The standard deviation.
    pub deviation: f64,
    /// The smoothed demand that decides: it rises at once and falls slowly.
    pub smoothed: f64,
}

impl Demand {
    /// Starts without demand.
    pub fn new(now: Timestamp) -> Demand {
        Demand { last_update: now, seats: 0.0, high: 0.0, elapsed: 0.0, sum: 0.0, squares: 0.0 }
    }

    /// Sets the demand from now on.
    pub fn set(&mut self, now: Timestamp, seats: f64) {
        self.advance(now);
        self.seats = seats;
        self.high = self.high.max(seats);
    }

    fn advance(&mut self, now: Timestamp) {
        let elapsed = now.since(self.last_update).as_secs_f64();
        self.last_update = self.last_update.max(now);
        self.elapsed += elapsed;
        self.sum += self.seats * elapsed;
        self.squares += self.seats * self.seats * elapsed;
    }

    /// Ends the current period and starts a new one. `previous`: the statistics of the period before.
    pub fn finish_period(&mut self, now: Timestamp, previous: &DemandStats) -> DemandStats {
        self.advance(now);
        let mut stats = DemandStats { high: self.high, ..*previous };
        if self.elapsed > 0.0 {
            stats.average = self.sum / self.elapsed;
            let variance = self.squares / self.elapsed - stats.average * stats.average;
            // Rounding can make the variance slightly negative.
            stats.deviation = variance.max(0.0).sqrt();
            let envelope = stats.average + stats.deviation;
            stats.smoothed = envelope
                .max(SMOOTHING_COEFFICIENT * previous.smoothed + (1.0 - SMOOTHING_COEFFICIENT) * envelope);
        }
        *self = Demand { seats: self.seats, high: self.seats, ..Demand::new(self.last_update) };
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_stats_are_weighted_by_duration() {
        let second = |seconds: u64| Timestamp(seconds * 1_000_000);
        let mut demand = Demand::new(second(0));
        demand.set(second(2), 4.0);
        demand.set(second(3), 0.0);
        let stats = demand.finish_period(second(4), &DemandStats::default());
        assert_eq!((stats.high, stats.average, stats.deviation), (4.0, 1.0, 3.0_f64.sqrt()));
        assert_eq!(stats.smoothed, 1.0 + 3.0_f64.sqrt(), "it rises at once");
        let later = demand.finish_period(second(5), &stats);
        assert_eq!((later.high, later.average), (0.0, 0.0));
        assert_eq!(later.smoothed, SMOOTHING_COEFFICIENT * stats.smoothed, "it falls slowly");
        let same = demand.finish_period(second(5), &later);
        assert_eq!(same, later, "no time has passed");
        demand.set(second(1), 2.0);
        assert_eq!(
            demand.finish_period(second(6), &later).average,
            2.0,
            "a clock that is set back stands still"
        );
    }
}
