//! How much of a level's seats is taken, over time.

use pilothouse_types::clock::Timestamp;

/// The bounds of the parts that are told apart; the reference's.
pub const BOUNDS: [f64; 13] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];

/// For how long which part of the seats was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimeByPart {
    /// Microseconds by the first of [`BOUNDS`] that the part did not exceed; the last are those beyond all of them.
    pub micros: [u64; BOUNDS.len() + 1],
    /// The parts themselves, each times its microseconds.
    pub sum: f64,
}

/// The part of the seats that is taken.
#[derive(Debug)]
pub struct Utilization {
    at: Timestamp,
    taken: u32,
    seats: u32,
    time: TimeByPart,
}

impl Utilization {
    /// Nothing is taken yet.
    pub fn new(now: Timestamp) -> Utilization {
        Utilization { at: now, taken: 0, seats: 1, time: TimeByPart::default() }
    }

    /// From now on so many are taken.
    pub fn set(&mut self, now: Timestamp, taken: u32) {
        self.pass(now);
        self.taken = taken;
    }

    /// From now on there are so many seats.
    pub fn measure_by(&mut self, now: Timestamp, seats: u32) {
        self.pass(now);
        self.seats = seats.max(1);
    }

    /// The time until now.
    pub fn look(&mut self, now: Timestamp) -> TimeByPart {
        self.pass(now);
        self.time
    }

    fn pass(&mut self, now: Timestamp) {
        let elapsed = now.0.saturating_sub(self.at.0);
        self.at = now;
        if elapsed == 0 {
            return;
        }
        let part = f64::from(self.taken) / f64::from(self.seats);
        let class = BOUNDS.partition_point(|bound| *bound < part);
        if let Some(micros) = self.time.micros.get_mut(class) {
            *micros += elapsed;
        }
        self.time.sum += part * elapsed as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_for_the_part_that_was_taken() {
        let mut seats = Utilization::new(Timestamp(1_000));
        seats.measure_by(Timestamp(1_100), 4);
        seats.set(Timestamp(1_200), 1);
        seats.set(Timestamp(1_500), 4);
        seats.measure_by(Timestamp(1_510), 2);
        // A clock that is set back counts nothing.
        seats.set(Timestamp(1_500), 2);
        let found = seats.look(Timestamp(1_600));
        let mut wanted = [0; 14];
        (wanted[0], wanted[3], wanted[12]) = (200, 300, 110);
        assert_eq!((found.micros, found.sum), (wanted, 0.25 * 300.0 + 110.0));
        seats.set(Timestamp(1_600), 3);
        assert_eq!(seats.look(Timestamp(1_650)).micros[13], 50, "more than there are");
    }
}
