//! The actor that limits the rate of events.
//!
//! One per server: a limit holds for all workers together. It keeps nothing on disk: after a start all buckets are full.
//!
//! Commands are answered in order. Each limit has one token bucket per key, which fills at a steady rate up to its burst. A
//! request takes one token from a bucket of each limit. Each limit remembers its most recently used keys; a forgotten key starts
//! again with a full bucket.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};

use actix::{Actor, Context, Handler, Message, MessageResult};
use pilothouse_types::clock::{Clock, Moment};

use crate::limits::RATES_MAILBOX;
use crate::permit::Permit;

/// One token, in units: a bucket that gains `n` tokens a second gains `n` of these units a microsecond.
const TOKEN: u64 = 1_000_000;

/// The rate limit of events with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Tokens per second.
    pub per_second: u32,
    /// The maximum number of tokens.
    pub burst: u32,
    /// The number of keys that are remembered.
    pub keys: usize,
}

/// Takes one token from the bucket of each key: the first key is for the first limit, and so on. Returns for each limit whether a
/// token was left. On Full the sender waits, within its own permit; on Closed the server ends.
#[derive(Message)]
#[rtype(result = "Vec<bool>")]
pub struct Spend {
    /// One key per limit.
    pub keys: Vec<String>,
    /// The seat of the request.
    pub permit: Permit,
}

/// The tokens of one key.
#[derive(Debug)]
struct Bucket {
    tokens: u64,
    last_filled: Moment,
    /// The number of the last call that used it.
    last_used: u64,
}

/// A hashed key, because clients choose the texts. Two hashes with independent secrets do not collide by chance, nor by intent.
type HashedKey = (u64, u64);

/// One limit and its buckets.
struct Buckets {
    limit: Limit,
    buckets: HashMap<HashedKey, Bucket>,
    /// The keys, least recently used first.
    by_age: BTreeMap<u64, HashedKey>,
    calls: u64,
    secrets: (RandomState, RandomState),
}

impl Buckets {
    fn new(limit: Limit) -> Buckets {
        let (buckets, by_age) = (HashMap::new(), BTreeMap::new());
        Buckets { limit, buckets, by_age, calls: 0, secrets: (RandomState::new(), RandomState::new()) }
    }

    fn spend(&mut self, key: &str, now: Moment) -> bool {
        let key = (self.secrets.0.hash_one(key), self.secrets.1.hash_one(key));
        let max = u64::from(self.limit.burst) * TOKEN;
        self.calls += 1;
        let last_used = self.calls;
        let bucket =
            self.buckets.entry(key).or_insert_with(|| Bucket { tokens: max, last_filled: now, last_used });
        self.by_age.remove(&bucket.last_used);
        self.by_age.insert(last_used, key);
        bucket.last_used = last_used;
        let elapsed = u64::try_from(now.since(bucket.last_filled).as_micros()).unwrap_or(u64::MAX);
        let gained = elapsed.saturating_mul(u64::from(self.limit.per_second));
        bucket.tokens = bucket.tokens.saturating_add(gained).min(max);
        bucket.last_filled = now;
        let remaining = bucket.tokens.checked_sub(TOKEN);
        bucket.tokens = remaining.unwrap_or(bucket.tokens);
        if self.buckets.len() > self.limit.keys.max(1)
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.buckets.remove(&oldest);
        }
        remaining.is_some()
    }
}

/// The actor. See the module documentation.
pub struct Rates {
    limits: Vec<Buckets>,
    clock: Clock,
}

impl Rates {
    /// The actor of these limits.
    pub fn new(limits: impl IntoIterator<Item = Limit>, clock: Clock) -> Rates {
        Rates { limits: limits.into_iter().map(Buckets::new).collect(), clock }
    }

    fn spend(&mut self, keys: &[String]) -> Vec<bool> {
        let now = self.clock.moment();
        self.limits.iter_mut().zip(keys).map(|(buckets, key)| buckets.spend(key, now)).collect()
    }
}

impl Actor for Rates {
    type Context = Context<Rates>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(RATES_MAILBOX);
    }
}

impl Handler<Spend> for Rates {
    type Result = MessageResult<Spend>;

    fn handle(&mut self, command: Spend, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.spend(&command.keys))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pilothouse_types::clock::Timestamp;
    use proptest::prelude::*;

    use super::*;

    fn rates(limits: &[Limit]) -> (Rates, Clock) {
        let clock = Clock::manual(Timestamp(1));
        (Rates::new(limits.iter().copied(), clock.clone()), clock)
    }

    fn spend(rates: &mut Rates, key: &str) -> bool {
        rates.spend(&[key.to_owned()])[0]
    }

    #[test]
    fn bucket_fills_at_its_rate_up_to_its_burst() {
        let (mut rates, clock) = rates(&[Limit { per_second: 2, burst: 3, keys: 10 }]);
        let mut taken = |times| (0..times).filter(|_| spend(&mut rates, "a")).count();
        assert_eq!(taken(5), 3);
        clock.advance(Duration::from_millis(499));
        assert_eq!(taken(2), 0);
        clock.advance(Duration::from_millis(1));
        assert_eq!(taken(2), 1);
        clock.advance(Duration::from_secs(1));
        assert_eq!(taken(5), 2);
        clock.advance(Duration::from_secs(3_600));
        assert_eq!(taken(9), 3);
    }

    #[test]
    fn each_key_has_its_own_bucket_until_evicted() {
        let (mut rates, _) = rates(&[Limit { per_second: 1, burst: 1, keys: 2 }]);
        assert!(spend(&mut rates, "a") && spend(&mut rates, "b"));
        assert!(!spend(&mut rates, "a") && !spend(&mut rates, "b"));
        assert!(!spend(&mut rates, "a"), "used last: stays");
        assert!(spend(&mut rates, "c"), "b is evicted");
        assert!(!spend(&mut rates, "a"));
        assert!(spend(&mut rates, "b"), "starts with a full bucket");
        assert_eq!((rates.limits[0].buckets.len(), rates.limits[0].by_age.len()), (2, 2));
    }

    #[test]
    fn spend_checks_every_limit() {
        let limit = Limit { per_second: 1, burst: 1, keys: 1 };
        let (mut rates, _) = rates(&[limit, Limit { burst: 2, ..limit }]);
        let both = ["".to_owned(), "a".to_owned()];
        assert_eq!(rates.spend(&both), [true, true]);
        assert_eq!(rates.spend(&both), [false, true], "the second limit still allows it");
        assert_eq!(rates.spend(&both), [false, false]);
    }

    proptest! {
        /// No key gets more than its burst and the tokens gained since.
        #[test]
        fn spend_never_exceeds_burst_plus_rate_and_memory_is_bounded(
            steps in prop::collection::vec((0u64..2_000, 0u8..6), 1..200),
            per_second in 1u32..20, burst in 1u32..20, keys in 1usize..5,
        ) {
            let (mut rates, clock) = rates(&[Limit { per_second, burst, keys }]);
            let (mut passed, mut taken) = (0, 0);
            for (pause, key) in steps {
                clock.advance(Duration::from_millis(pause));
                passed += pause;
                // The first key is used in every step, so it is never forgotten.
                taken += u64::from(spend(&mut rates, "0"));
                if keys > 1 {
                    spend(&mut rates, &key.to_string());
                }
                prop_assert!(taken <= u64::from(burst) + passed * u64::from(per_second) / 1_000);
                prop_assert!(rates.limits[0].buckets.len() <= keys);
                prop_assert_eq!(rates.limits[0].buckets.len(), rates.limits[0].by_age.len());
            }
        }
    }
}
