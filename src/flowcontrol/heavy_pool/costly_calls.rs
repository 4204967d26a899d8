//! Remembers whose writes of which resource were costly a moment ago. Such a call starts on a thread for heavy work: on a worker,
//! it would be aborted and repeated, which calls its webhooks twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pilothouse_types::bounded::ExpiringCache;
use pilothouse_types::clock::Moment;
use pilothouse_types::lock::Lock;

use crate::limits::{COSTLY_CALL_MEMORY, COSTLY_CALLS};

/// A resource, and a user who writes it.
type Caller = (Arc<str>, Arc<str>);

/// The costly calls of a server. By user as well, so that no user can send the requests of others to a queue.
#[derive(Default)]
pub struct CostlyCalls {
    /// Until when a call of a caller is expected to be costly.
    expected: Lock<ExpiringCache<Caller, (), COSTLY_CALLS, Moment>>,
    /// The latest of these moments, in nanoseconds. Most requests come later than that, and need no lock.
    latest: AtomicU64,
}

impl CostlyCalls {
    /// Notes that a call was costly.
    pub fn note(&self, resource: &str, user: &str, now: Moment) {
        let (caller, expiry): (Caller, Moment) =
            ((resource.into(), user.into()), now.plus(COSTLY_CALL_MEMORY));
        let evicted = self.expected.lock().insert(caller, (), expiry, now);
        drop(evicted);
        self.latest.fetch_max(nanoseconds(expiry), Ordering::AcqRel);
    }

    /// Whether such a call was costly lately.
    pub fn is_expected(&self, resource: &str, user: &str, now: Moment) -> bool {
        if !self.is_any_expected(now) {
            return false;
        }
        let caller: Caller = (resource.into(), user.into());
        self.expected.lock().get(&caller, now).is_some()
    }

    /// Whether any costly call was noted lately.
    fn is_any_expected(&self, now: Moment) -> bool {
        self.latest.load(Ordering::Acquire) > nanoseconds(now)
    }
}

fn nanoseconds(moment: Moment) -> u64 {
    u64::try_from(moment.since(Moment::default()).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {

    use pilothouse_types::clock::Clock;

    use super::*;

    #[test]
    fn costly_call_is_expected_of_the_same_user_for_a_while() {
        let (calls, now) = (CostlyCalls::default(), Clock::system().moment());
        assert!(!calls.is_expected("widgets", "alice", now));
        calls.note("widgets", "mallory", now);
        assert!(calls.is_expected("widgets", "mallory", now));
        assert!(!calls.is_expected("widgets", "alice", now) && !calls.is_expected("gadgets", "mallory", now));
        let later = now.plus(COSTLY_CALL_MEMORY);
        assert!(!calls.is_expected("widgets", "mallory", later));
        assert!(
            calls.is_any_expected(now) && !calls.is_any_expected(later),
            "even if the user does not return"
        );
        for number in 0..2 * COSTLY_CALLS {
            calls.note("widgets", &format!("user-{number}"), now);
        }
        assert!(calls.expected.lock().len() <= COSTLY_CALLS);
    }
}
