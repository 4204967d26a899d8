//! How old the objects of a type were when the log was opened.
//!
//! An object does not carry the time of its last write: memory for that would be needed for each of them. A few points in the order of
//! revisions say it well enough: whoever asks for an age gets at most the real one.

use std::time::Duration;

use pilothouse_types::object::Revision;

use crate::limits::{WRITE_TIME_POINTS, WRITE_TIME_STEP};
use crate::log_time::LogTime;

/// Points of the log in the order of revisions.
#[derive(Clone, Debug)]
pub struct WriteTimes {
    /// Revisions and their times, at least a step apart.
    points: Vec<(Revision, LogTime)>,
    step: Duration,
    /// The newest record.
    last: (Revision, LogTime),
    /// When the log was opened.
    opened: LogTime,
}

impl Default for WriteTimes {
    fn default() -> WriteTimes {
        let (last, opened) = ((Revision::default(), LogTime::ZERO), LogTime::ZERO);
        WriteTimes { points: Vec::new(), step: WRITE_TIME_STEP, last, opened }
    }
}

impl WriteTimes {
    /// Takes the next record of the log into account.
    pub(crate) fn add(&mut self, revision: Revision, time: LogTime) {
        // A later record is not older, whatever it says.
        let time = time.max(self.last.1);
        self.last = (revision, time);
        let newest = self.points.last().map_or(LogTime::ZERO, |(_, time)| *time);
        if !self.points.is_empty() && time < newest.plus(self.step) {
            return;
        }
        if self.points.len() >= WRITE_TIME_POINTS {
            self.step *= 2;
            let mut index = 0;
            self.points.retain(|_| {
                index += 1;
                index % 2 == 0
            });
        }
        self.points.push((revision, time));
    }

    /// Called after the last record of the log, whose time this is.
    pub(crate) fn set_opened(&mut self, opened: LogTime) {
        self.opened = opened;
    }

    /// How old the version of an object at this revision was at least when the log was opened. Zero if it was written since.
    pub fn age_at_start(&self, revision: Revision) -> Duration {
        if revision > self.last.0 {
            return Duration::ZERO;
        }
        let later = self.points.partition_point(|(point, _)| *point < revision);
        let written_before = self.points.get(later).map_or(self.last.1, |(_, time)| *time);
        self.opened.since(written_before)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn age_is_known_to_the_step() {
        let mut times = WriteTimes::default();
        for minute in 0..60 {
            times.add(Revision(10 + 2 * minute), LogTime(60 * SECOND * minute));
            times.add(Revision(11 + 2 * minute), LogTime(60 * SECOND * minute + 30 * SECOND));
        }
        times.set_opened(LogTime(3_600 * SECOND));
        let age = |revision| times.age_at_start(Revision(revision)).as_secs();
        assert_eq!((age(10), age(12), age(13)), (3_600, 3_540, 3_480));
        assert_eq!((age(128), age(129), age(130)), (60, 30, 0));
        assert_eq!(WriteTimes::default().age_at_start(Revision(3)), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn age_is_never_more_than_the_real_one(steps in prop::collection::vec((1_u64..4, 0_u64..90), 1..3_000)) {
            let mut times = WriteTimes::default();
            let (mut revision, mut seconds, mut records) = (1, 0, Vec::new());
            for (advance, pause) in steps {
                (revision, seconds) = (revision + advance, seconds + pause);
                times.add(Revision(revision), LogTime(seconds * SECOND));
                records.push((revision, seconds));
            }
            times.set_opened(LogTime(seconds * SECOND));
            prop_assert!(times.points.len() <= WRITE_TIME_POINTS);
            for (revision, written) in records {
                let (age, real) = (times.age_at_start(Revision(revision)).as_secs(), seconds - written);
                prop_assert!(age <= real, "{age} > {real}");
                prop_assert!(real - age <= 3 * times.step.as_secs(), "{real} is much more than {age}");
            }
        }
    }
}
