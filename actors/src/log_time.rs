//! The time by which the log measures the age of its events.
//!
//! Ages by the wall clock would be wrong as soon as somebody sets that clock: a day forward, and all history is gone; a day back, and
//! it stays for a day. So every record also has a [`LogTime`]. It advances with the monotonic clock while a server runs and stands
//! still while none does. A restart continues from the newest record, so nobody can set it.

use std::time::Duration;

use pilothouse_types::clock::{Clock, Moment, Timestamp};

/// Microseconds during which this log was in use. It never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogTime(pub u64);

impl LogTime {
    /// Before all records.
    pub const ZERO: LogTime = LogTime(0);
    /// After all records.
    pub const MAX: LogTime = LogTime(u64::MAX);

    /// The time `span` earlier, but not before the first record.
    pub fn minus(self, span: Duration) -> LogTime {
        LogTime(self.0.saturating_sub(micros(span)))
    }

    /// The time `span` later.
    pub fn plus(self, span: Duration) -> LogTime {
        LogTime(self.0.saturating_add(micros(span)))
    }

    /// The time since `earlier`; zero if it is not earlier.
    pub fn since(self, earlier: LogTime) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// When a write was accepted, by both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteTime {
    /// By the wall clock, for people. It may go back.
    pub wall: Timestamp,
    /// By the log, for ages.
    pub log: LogTime,
}

/// The clock of an open log. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LogClock {
    clock: Clock,
    /// The log time at `origin`.
    base: LogTime,
    origin: Moment,
}

impl LogClock {
    /// Continues from the newest record of a log.
    pub fn resume(clock: Clock, newest: LogTime) -> LogClock {
        LogClock { origin: clock.moment(), base: newest, clock }
    }

    /// The present log time.
    pub fn now(&self) -> LogTime {
        self.base.plus(self.clock.elapsed(self.origin))
    }

    /// The present time by both clocks, for a new record.
    pub fn write_time(&self) -> WriteTime {
        WriteTime { wall: self.clock.now(), log: self.now() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_clock_continues_from_the_newest_record() {
        let clock = Clock::manual(Timestamp(1_000_000_000));
        let first = LogClock::resume(clock.clone(), LogTime::ZERO);
        clock.advance(Duration::from_secs(3));
        assert_eq!(first.now(), LogTime(3_000_000));
        let wall = Timestamp(1_003_000_000);
        assert_eq!(first.write_time(), WriteTime { wall, log: LogTime(3_000_000) });

        clock.advance(Duration::from_secs(86_400));
        let second = LogClock::resume(clock.clone(), LogTime(3_000_000));
        assert_eq!(second.now(), LogTime(3_000_000), "it stands still while no server runs");
        clock.advance(Duration::from_secs(1));
        assert_eq!(second.now().since(LogTime(3_000_000)), Duration::from_secs(1));
    }

    #[test]
    fn setting_the_wall_clock_does_not_change_log_time() {
        let clock = Clock::manual(Timestamp(1_000_000_000));
        let log_clock = LogClock::resume(clock.clone(), LogTime(7));
        clock.set_wall(Timestamp(5));
        assert_eq!(log_clock.write_time(), WriteTime { wall: Timestamp(5), log: LogTime(7) });
        clock.advance(Duration::from_micros(2));
        assert_eq!(log_clock.write_time(), WriteTime { wall: Timestamp(7), log: LogTime(9) });
    }
}
