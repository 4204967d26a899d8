//! Lets something happen only now and then: a log line that clients cause, the relief of the memory of watches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pilothouse_types::clock::Moment;

/// At most one line in this time.
const SPAN: Duration = Duration::from_secs(1);

/// Decides about the events of one kind: the first of many counts. Metrics count all of them.
#[derive(Debug)]
pub struct Throttle {
    /// Nothing before this moment, in microseconds.
    quiet_until: AtomicU64,
    span: Duration,
}

impl Default for Throttle {
    fn default() -> Throttle {
        Throttle::with_span(SPAN)
    }
}

impl Throttle {
    /// Allows something once in this time.
    pub fn with_span(span: Duration) -> Throttle {
        Throttle { quiet_until: AtomicU64::new(0), span }
    }

    /// Whether it may happen now.
    pub fn allows(&self, now: Moment) -> bool {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let now = micros(now.since(Moment::default()));
        let until = self.quiet_until.load(Ordering::Relaxed);
        let next = now.saturating_add(micros(self.span));
        // Of several threads at the same moment, one writes.
        now >= until
            && self.quiet_until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second() {
        let at = |millis| Moment::default().plus(Duration::from_millis(millis));
        let throttle = Throttle::default();
        let lines = [0, 0, 999, 1_000, 1_500, 2_500].map(|millis| throttle.allows(at(millis)));
        assert_eq!(lines, [true, false, false, true, false, true]);
    }
}
