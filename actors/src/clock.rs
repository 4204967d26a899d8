//! Time is injected, so that tests own it. Nothing else in either crate reads a clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Whole seconds since the Unix epoch.
    pub fn seconds(self) -> u64 {
        self.0 / 1_000_000
    }

    /// This moment moved back by `span`, not before the epoch.
    pub fn minus(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(micros(span)))
    }

    /// This moment moved forward by `span`.
    pub fn plus(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(micros(span)))
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// The source of time. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System,
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The wall clock of this machine.
    pub fn system() -> Clock {
        Clock(Source::System)
    }

    /// A clock that stands still until [`Clock::advance`] moves it.
    pub fn manual(start: Timestamp) -> Clock {
        Clock(Source::Manual(Arc::new(AtomicU64::new(start.0))))
    }

    /// The present moment.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => {
                Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).map(micros).unwrap_or_default())
            }
            Source::Manual(at) => Timestamp(at.load(Ordering::SeqCst)),
        }
    }

    /// Moves a manual clock forward; the system clock ignores it.
    pub fn advance(&self, span: Duration) {
        if let Source::Manual(at) = &self.0 {
            at.fetch_add(micros(span), Ordering::SeqCst);
        }
    }
}
