//! Limits how often one call site writes log lines. A client that can cause a line with a request could otherwise fill the
//! disk and hide every other line. This holds for all call sites alike, those of libraries included.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::lock::Lock;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::log_queue::is_log_writer;
use crate::limits;

/// The call sites that have written lines: as many as the code has.
pub(super) struct CallSiteLimit {
    clock: Clock,
    sites: Lock<HashMap<Identifier, CallSite>>,
    /// When suppressed lines were last reported.
    reported: Lock<Moment>,
    /// Lines that were suppressed since the start.
    limited: AtomicU64,
}

struct CallSite {
    metadata: &'static Metadata<'static>,
    /// When the lines that were written so far would be due, at one in [`limits::LOG_LINE_INTERVAL`].
    due: Moment,
    /// Lines that were suppressed since the last report.
    unreported: u64,
}

impl CallSiteLimit {
    pub(super) fn new(clock: Clock) -> CallSiteLimit {
        let reported = Lock::new(clock.moment());
        CallSiteLimit { clock, sites: Lock::default(), reported, limited: AtomicU64::new(0) }
    }

    /// Whether a line may be written. Lines of levels that are off by default are not limited: the queue bounds them.
    /// The first lines of a call site always pass, and with them a fatal error, which is written once.
    fn allows(&self, metadata: &'static Metadata<'static>) -> bool {
        if *metadata.level() > Level::INFO || is_log_writer() {
            return true;
        }
        let now = self.clock.moment();
        let mut sites = self.sites.lock();
        let site = sites.entry(metadata.callsite()).or_insert(CallSite { metadata, due: now, unreported: 0 });
        let due = site.due.max(now);
        if due.since(now) >= limits::LOG_LINE_INTERVAL * limits::LOG_LINE_BURST {
            site.unreported += 1;
            self.limited.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        site.due = due.plus(limits::LOG_LINE_INTERVAL);
        true
    }

    /// Lines that were suppressed since the start.
    pub(super) fn limited(&self) -> u64 {
        self.limited.load(Ordering::Relaxed)
    }

    /// Logs how many lines of which call site were suppressed, if it is time for that. To be called by the thread that writes the
    /// log.
    pub(super) fn report(&self) {
        let (now, mut reported) = (self.clock.moment(), self.reported.lock());
        if now.since(*reported) < limits::LOG_LINE_INTERVAL {
            return;
        }
        *reported = now;
        for (metadata, lines) in self.take_unreported() {
            let (target, line) = (metadata.target(), metadata.line().unwrap_or_default());
            tracing::warn!("{lines} more log lines of {target}, line {line}, were suppressed");
        }
    }

    fn take_unreported(&self) -> Vec<(&'static Metadata<'static>, u64)> {
        let mut sites = self.sites.lock();
        let unreported = sites.values_mut().filter(|site| site.unreported > 0);
        unreported.map(|site| (site.metadata, std::mem::take(&mut site.unreported))).collect()
    }
}

/// The limit as a part of the subscriber.
pub(super) struct Limited(pub(super) &'static CallSiteLimit);

impl<S: Subscriber> Layer<S> for Limited {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.0.allows(event.metadata())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilothouse_types::clock::Timestamp;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// Counts the lines that would be written.
    #[derive(Clone, Default)]
    struct LineCounter(Arc<AtomicU64>);

    impl<S: Subscriber> Layer<S> for LineCounter {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn call_site_limit_suppresses_only_the_flooding_call_site() {
        let clock = Clock::manual(Timestamp(0));
        let limit: &'static CallSiteLimit = Box::leak(Box::new(CallSiteLimit::new(clock.clone())));
        let written = LineCounter::default();
        let count = || written.0.swap(0, Ordering::Relaxed);
        let subscriber = tracing_subscriber::registry().with(written.clone()).with(Limited(limit));
        tracing::subscriber::with_default(subscriber, || {
            let flood = || tracing::warn!("a client did something");
            (0..1_000).for_each(|_| flood());
            assert_eq!(count(), u64::from(limits::LOG_LINE_BURST));
            tracing::error!("another place");
            assert_eq!(count(), 1);
            clock.advance(limits::LOG_LINE_INTERVAL);
            (0..1_000).for_each(|_| flood());
            assert_eq!(count(), 1, "one more");
            (0..1_000).for_each(|_| tracing::debug!("asked for"));
            assert_eq!(count(), 1_000);
        });
        let unreported = limit.take_unreported();
        let suppressed = 1_999 - u64::from(limits::LOG_LINE_BURST);
        assert_eq!(unreported.iter().map(|(_, lines)| *lines).collect::<Vec<_>>(), [suppressed]);
        assert_eq!(limit.limited(), suppressed);
        assert!(limit.take_unreported().is_empty());
    }
}
