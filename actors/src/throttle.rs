//! Limits how often something happens, such as log lines that clients cause, or the relief of the memory of watches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pilothouse_types::clock::Moment;

/// The default: at most once in this time.
const DEFAULT_SPAN: Duration = Duration::from_secs(1);

/// Allows the first event of each time span.
#[derive(Debug)]
pub struct Throttle {
    /// No event is allowed before this moment, in microseconds.
    quiet_until: AtomicU64,
    span: Duration,
}

impl Default for Throttle {
    fn default() -> Throttle {
        Throttle::with_span(DEFAULT_SPAN)
    }
}

impl Throttle {
    /// Allows one event per `span`.
    pub fn with_span(span: Duration) -> Throttle {
        Throttle { quiet_until: AtomicU64::new(0), span }
    }

    /// Whether an event is allowed now. If so, it counts as happened.
    pub fn allows(&self, now: Moment) -> bool {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let now = micros(now.since(Moment::default()));
        let until = self.quiet_until.load(Ordering::Relaxed);
        let next = now.saturating_add(micros(self.span));
        // Of several threads at the same moment, only one is allowed.
        now >= until
            && self.quiet_until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttle_allows_one_event_per_second() {
        let moment = |millis| Moment::default().plus(Duration::from_millis(millis));
        let throttle = Throttle::default();
        let results = [0, 0, 999, 1_000, 1_500, 2_500].map(|millis| throttle.allows(moment(millis)));
        assert_eq!(results, [true, false, false, true, false, true]);
    }
}
