//! Decrypted data keys, by a hash of what is stored of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::lock::SharedLock;

/// The hash of an encrypted data key with everything that belongs to it.
pub type CacheKey = [u8; 32];

/// Data keys, as many as a bound that is known when the cache is made. The caches of `pilothouse_types` have theirs in the type, and
/// keep no time of use.
pub struct KeyCache<V> {
    entries: SharedLock<HashMap<CacheKey, Entry<V>>>,
    capacity: usize,
    unused_ttl: Duration,
    clock: Clock,
}

struct Entry<V> {
    value: Arc<V>,
    /// Seconds of the monotonic clock. Readers change it under a shared lock.
    last_use: AtomicU64,
}

impl<V> KeyCache<V> {
    /// An empty cache. One without capacity stays empty.
    pub fn new(capacity: usize, unused_ttl: Duration, clock: Clock) -> KeyCache<V> {
        KeyCache { entries: SharedLock::default(), capacity, unused_ttl, clock }
    }

    /// The data key, which counts as used.
    pub fn get(&self, key: &CacheKey) -> Option<Arc<V>> {
        let entries = self.entries.read();
        let entry = entries.get(key)?;
        entry.last_use.store(self.seconds(), Ordering::Relaxed);
        Some(entry.value.clone())
    }

    /// Remembers a data key, and forgets those that were not used for long. A full cache forgets the half that was not used for
    /// longest. Returns the number of data keys.
    pub fn insert(&self, key: CacheKey, value: Arc<V>) -> usize {
        if self.capacity == 0 {
            return 0;
        }
        let now = self.seconds();
        let mut entries = self.entries.write();
        let oldest = now.saturating_sub(self.unused_ttl.as_secs());
        let mut evicted: Vec<Entry<V>> = extract(&mut entries, |last_use| last_use < oldest);
        if entries.len() >= self.capacity && !entries.contains_key(&key) {
            let mut uses: Vec<u64> =
                entries.values().map(|entry| entry.last_use.load(Ordering::Relaxed)).collect();
            let middle = uses.len() / 2;
            let (_, median, _) = uses.select_nth_unstable(middle);
            let median = *median;
            evicted.extend(extract(&mut entries, |last_use| last_use < median));
            // Many may have been used within the same second.
            if entries.len() >= self.capacity {
                evicted.extend(extract(&mut entries, |_| true));
            }
        }
        entries.insert(key, Entry { value, last_use: AtomicU64::new(now) });
        let size = entries.len();
        drop(entries);
        drop(evicted);
        size
    }

    fn seconds(&self) -> u64 {
        self.clock.elapsed(Moment::default()).as_secs()
    }
}

fn extract<V>(entries: &mut HashMap<CacheKey, Entry<V>>, is_evicted: impl Fn(u64) -> bool) -> Vec<Entry<V>> {
    let extracted = entries.extract_if(|_, entry| is_evicted(entry.last_use.load(Ordering::Relaxed)));
    extracted.map(|(_, entry)| entry).collect()
}

#[cfg(test)]
mod tests {
    use pilothouse_types::clock::Timestamp;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn cache(capacity: usize) -> (KeyCache<u8>, Clock) {
        let clock = Clock::manual(Timestamp::from_unix(1_000_000));
        (KeyCache::new(capacity, HOUR, clock.clone()), clock)
    }

    #[test]
    fn keys_that_nobody_uses_are_forgotten() {
        let (cache, clock) = cache(10);
        assert_eq!((cache.insert([1; 32], Arc::new(1)), cache.insert([2; 32], Arc::new(2))), (1, 2));
        clock.advance(HOUR);
        assert_eq!(cache.get(&[1; 32]), Some(Arc::new(1)));
        clock.advance(Duration::from_secs(1));
        assert_eq!(cache.get(&[2; 32]).as_deref(), Some(&2), "forgotten only when another comes");
        clock.advance(HOUR);
        assert_eq!(cache.insert([3; 32], Arc::new(3)), 2);
        assert_eq!((cache.get(&[1; 32]), cache.get(&[2; 32]).as_deref()), (None, Some(&2)));
    }

    #[test]
    fn full_cache_forgets_the_keys_that_were_not_used_for_longest() {
        let (cache, clock) = cache(4);
        for key in 0..4 {
            cache.insert([key; 32], Arc::new(key));
            clock.advance(Duration::from_secs(1));
        }
        cache.get(&[0; 32]);
        assert_eq!(cache.insert([4; 32], Arc::new(4)), 3);
        let kept: Vec<bool> = (0..5).map(|key| cache.get(&[key; 32]).is_some()).collect();
        assert_eq!(kept, [true, false, false, true, true]);
    }

    #[test]
    fn cache_stays_bounded_and_keeps_the_newest_key() {
        let (cache, _clock) = cache(8);
        for key in 0..100 {
            assert!(cache.insert([key; 32], Arc::new(key)) <= 8);
            assert_eq!(cache.get(&[key; 32]).as_deref(), Some(&key));
        }
        let (none, _clock) = self::cache(0);
        assert_eq!((none.insert([1; 32], Arc::new(1)), none.get(&[1; 32])), (0, None));
    }
}
