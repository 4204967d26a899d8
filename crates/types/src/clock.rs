//! Injected time. Only this module reads the system clocks, so tests can control time.
//!
//! A [`Timestamp`] says when something happened, by a wall clock that may be set. A [`Moment`] only measures how long something
//! takes, by a clock that never jumps. They are types of their own, so that they cannot be mixed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const MICROS_PER_SECOND: u64 = 1_000_000;

/// Microseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Whole seconds since the Unix epoch.
    pub fn seconds(self) -> u64 {
        self.0 / MICROS_PER_SECOND
    }

    /// From whole seconds since the Unix epoch. Earlier times become the epoch.
    pub fn from_unix(seconds: i64) -> Timestamp {
        Timestamp(u64::try_from(seconds).unwrap_or_default().saturating_mul(MICROS_PER_SECOND))
    }

    /// Whole seconds since the Unix epoch, signed.
    pub fn unix_seconds(self) -> i64 {
        self.seconds().cast_signed()
    }

    /// Seconds since the Unix epoch with a fraction, as metrics expose timestamps.
    pub fn fractional_seconds(self) -> f64 {
        self.0 as f64 / MICROS_PER_SECOND as f64
    }

    /// The microseconds within the second.
    pub fn subsec_micros(self) -> u32 {
        (self.0 % MICROS_PER_SECOND) as u32
    }

    /// The time since `earlier`; zero if it is not earlier, because wall clocks can be set back.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// The timestamp `span` earlier, but not before the epoch.
    pub fn minus(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(micros(span)))
    }

    /// The timestamp `span` later.
    pub fn plus(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(micros(span)))
    }
}

/// A point on the monotonic clock, for measuring how long something takes. It has no date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// The time since `earlier`; zero if it is not earlier.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment that is `span` later.
    pub fn plus(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(span))
    }

    /// The moment that is `span` earlier, but not long before the start of the process.
    pub fn minus(self, span: Duration) -> Moment {
        Moment(self.0.saturating_sub(span))
    }
}

/// How long before the start of this process its moments begin, so that a span can be subtracted from the first ones.
const BEFORE_START: Duration = Duration::from_secs(86_400);

/// The start of this process.
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// The source of time. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System,
    Manual(Arc<ManualTime>),
}

/// The two clocks of a test, in microseconds.
#[derive(Debug)]
struct ManualTime {
    wall: AtomicU64,
    monotonic: AtomicU64,
}

impl Clock {
    /// The wall clock of this machine.
    pub fn system() -> Clock {
        Clock(Source::System)
    }

    /// A clock that stands still until [`Clock::advance`] moves it.
    pub fn manual(start: Timestamp) -> Clock {
        let time = ManualTime { wall: AtomicU64::new(start.0), monotonic: AtomicU64::new(start.0) };
        Clock(Source::Manual(Arc::new(time)))
    }

    /// The present time.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => {
                Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).map(micros).unwrap_or_default())
            }
            Source::Manual(time) => Timestamp(time.wall.load(Ordering::SeqCst)),
        }
    }

    /// The present moment of the monotonic clock.
    pub fn moment(&self) -> Moment {
        match &self.0 {
            Source::System => Moment(BEFORE_START + ORIGIN.elapsed()),
            Source::Manual(time) => Moment(Duration::from_micros(time.monotonic.load(Ordering::SeqCst))),
        }
    }

    /// How long ago a moment was.
    pub fn elapsed(&self, since: Moment) -> Duration {
        self.moment().since(since)
    }

    /// Moves a manual clock forward; the system clock ignores it.
    pub fn advance(&self, span: Duration) {
        if let Source::Manual(time) = &self.0 {
            time.wall.fetch_add(micros(span), Ordering::SeqCst);
            time.monotonic.fetch_add(micros(span), Ordering::SeqCst);
        }
    }

    /// Sets the wall clock of a manual clock, as an administrator would; the system clock ignores it.
    pub fn set_wall(&self, now: Timestamp) {
        if let Source::Manual(time) = &self.0 {
            time.wall.store(now.0, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_converts_to_seconds_and_microseconds() {
        let timestamp = Timestamp(1_700_000_000_250_000);
        assert_eq!(
            (timestamp.seconds(), timestamp.unix_seconds(), timestamp.subsec_micros()),
            (1_700_000_000, 1_700_000_000, 250_000)
        );
        assert_eq!(timestamp.fractional_seconds(), 1_700_000_000.25);
        assert_eq!(Timestamp(u64::MAX).unix_seconds(), 18_446_744_073_709);
        assert_eq!(Timestamp::from_unix(1_700_000_000).plus(Duration::from_micros(250_000)), timestamp);
        assert_eq!(
            (Timestamp::from_unix(-1), Timestamp::from_unix(i64::MAX)),
            (Timestamp(0), Timestamp(u64::MAX))
        );
    }

    #[test]
    fn manual_clock_measures_elapsed_time() {
        let clock = Clock::manual(Timestamp(7));
        let start = clock.moment();
        clock.advance(Duration::from_secs(2));
        assert_eq!(
            (clock.elapsed(start), start.since(clock.moment())),
            (Duration::from_secs(2), Duration::ZERO)
        );
        assert_eq!(start.plus(Duration::from_secs(2)), clock.moment());
        let clock = Clock::system();
        assert!(clock.moment() <= clock.moment());
    }

    #[test]
    fn since_is_zero_for_a_later_timestamp() {
        assert_eq!(Timestamp(5).since(Timestamp(2)), Duration::from_micros(3));
        assert_eq!(Timestamp(2).since(Timestamp(5)), Duration::ZERO);
    }
}
