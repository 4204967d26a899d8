//! The fraction of a level's seats that is occupied, over time.

use pilothouse_types::clock::Timestamp;

/// The bucket bounds of the histogram; the reference's.
pub const BOUNDS: [f64; 13] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];

/// The histogram of the utilization, weighted by time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UtilizationHistogram {
    /// Microseconds per bucket: the first of [`BOUNDS`] that the utilization did not exceed. The last bucket is above all bounds.
    pub micros: [u64; BOUNDS.len() + 1],
    /// The sum of utilization times microseconds.
    pub sum: f64,
}

/// Tracks occupied seats relative to the capacity of a level.
#[derive(Debug)]
pub struct Utilization {
    last_update: Timestamp,
    occupied: u32,
    capacity: u32,
    histogram: UtilizationHistogram,
}

impl Utilization {
    /// A level without occupied seats.
    pub fn new(now: Timestamp) -> Utilization {
        Utilization { last_update: now, occupied: 0, capacity: 1, histogram: UtilizationHistogram::default() }
    }

    /// Sets the number of occupied seats from now on.
    pub fn set(&mut self, now: Timestamp, occupied: u32) {
        self.advance(now);
        self.occupied = occupied;
    }

    /// Sets the number of seats from now on.
    pub fn set_capacity(&mut self, now: Timestamp, seats: u32) {
        self.advance(now);
        self.capacity = seats.max(1);
    }

    /// Returns the histogram of all time until now.
    pub fn histogram(&mut self, now: Timestamp) -> UtilizationHistogram {
        self.advance(now);
        self.histogram
    }

    fn advance(&mut self, now: Timestamp) {
        let elapsed = now.0.saturating_sub(self.last_update.0);
        self.last_update = now;
        if elapsed == 0 {
            return;
        }
        let fraction = f64::from(self.occupied) / f64::from(self.capacity);
        let bucket = BOUNDS.partition_point(|bound| *bound < fraction);
        if let Some(micros) = self.histogram.micros.get_mut(bucket) {
            *micros += elapsed;
        }
        self.histogram.sum += fraction * elapsed as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilization_histogram_is_weighted_by_time() {
        let mut utilization = Utilization::new(Timestamp(1_000));
        utilization.set_capacity(Timestamp(1_100), 4);
        utilization.set(Timestamp(1_200), 1);
        utilization.set(Timestamp(1_500), 4);
        utilization.set_capacity(Timestamp(1_510), 2);
        // A clock that is set back counts nothing.
        utilization.set(Timestamp(1_500), 2);
        let histogram = utilization.histogram(Timestamp(1_600));
        let mut expected = [0; 14];
        (expected[0], expected[3], expected[12]) = (200, 300, 110);
        assert_eq!((histogram.micros, histogram.sum), (expected, 0.25 * 300.0 + 110.0));
        utilization.set(Timestamp(1_600), 3);
        assert_eq!(
            utilization.histogram(Timestamp(1_650)).micros[13],
            50,
            "more seats occupied than there are"
        );
    }
}
