//! A bounded cache of remote responses with expiry.

use std::collections::HashMap;
use std::hash::Hash;

use pilothouse_types::clock::Timestamp;
use pilothouse_types::lock::Lock;

use crate::limits::WEBHOOK_CACHE_ENTRIES;

/// Values by key, with their expiry. A std mutex: held for one lookup or one change.
pub struct ExpiringCache<K, V>(Lock<HashMap<K, (Timestamp, V)>>);

impl<K, V> Default for ExpiringCache<K, V> {
    fn default() -> Self {
        ExpiringCache(Lock::default())
    }
}

impl<K: Eq + Hash, V: Clone> ExpiringCache<K, V> {
    /// The cached value of a key, unless it has expired.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q, now: Timestamp) -> Option<V>
    where
        K: std::borrow::Borrow<Q>,
    {
        let entries = self.0.lock();
        entries.get(key).filter(|(expiry, _)| *expiry > now).map(|(_, value)| value.clone())
    }

    /// Caches a value. A full cache drops expired entries, and then the half that expires first.
    pub fn put(&self, key: K, value: V, expiry: Timestamp, now: Timestamp) {
        if expiry <= now {
            return;
        }
        let mut entries = self.0.lock();
        if entries.len() >= WEBHOOK_CACHE_ENTRIES {
            entries.retain(|_, (expiry, _)| *expiry > now);
            if entries.len() >= WEBHOOK_CACHE_ENTRIES {
                let mut expiries: Vec<Timestamp> = entries.values().map(|(expiry, _)| *expiry).collect();
                let middle = expiries.len() / 2;
                let (_, half, _) = expiries.select_nth_unstable(middle);
                let half = *half;
                entries.retain(|_, (expiry, _)| *expiry > half);
            }
        }
        entries.insert(key, (expiry, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiring_cache_drops_expired_entries_and_stays_bounded() {
        let cache = ExpiringCache::default();
        cache.put("a", 1, Timestamp(10), Timestamp(0));
        cache.put("b", 1, Timestamp(5), Timestamp(5));
        assert_eq!((cache.get("a", Timestamp(9)), cache.get("a", Timestamp(10))), (Some(1), None));
        assert_eq!(cache.get("b", Timestamp(0)), None, "already expired when inserted");
        let cache = ExpiringCache::default();
        for key in 0..WEBHOOK_CACHE_ENTRIES as u64 * 3 {
            cache.put(key, (), Timestamp(1_000_000 + key), Timestamp(0));
            assert!(cache.0.lock().len() <= WEBHOOK_CACHE_ENTRIES);
            assert_eq!(cache.get(&key, Timestamp(0)), Some(()), "the newest stays");
        }
    }
}
