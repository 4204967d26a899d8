//! Collections with a maximum size: caches, and a set of recent values. The size is a part of the type.
//!
//! Libraries for this read a clock of their own (`moka`) or keep an order of use that nobody needs here (`lru`).
//!
//! A cache that is full frees many entries at once, so that inserting is cheap on average and no order of use is kept. The freed
//! entries are returned: most caches are behind a lock, and freeing thousands of entries takes a while.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;

use crate::clock::Timestamp;

/// At most `MAX` values by key. A full cache drops all entries.
#[derive(Debug)]
pub struct BoundedCache<K, V, const MAX: usize>(HashMap<K, V>);

/// Entries that a full cache has dropped.
#[must_use = "free them after the lock of the cache is released"]
#[derive(Debug)]
pub struct Evicted<K, V> {
    /// Only held: dropping them takes a while.
    _entries: HashMap<K, V>,
}

impl<K, V, const MAX: usize> Default for BoundedCache<K, V, MAX> {
    fn default() -> Self {
        BoundedCache(HashMap::new())
    }
}

impl<K, V> Default for Evicted<K, V> {
    fn default() -> Self {
        Evicted { _entries: HashMap::new() }
    }
}

impl<K: Eq + Hash, V, const MAX: usize> BoundedCache<K, V, MAX> {
    /// The value of a key.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(key)
    }

    /// Adds or replaces a value.
    pub fn insert(&mut self, key: K, value: V) -> Evicted<K, V> {
        let evicted = match self.has_room(&key) {
            true => Evicted::default(),
            false => self.clear(),
        };
        self.0.insert(key, value);
        evicted
    }

    /// Drops all entries.
    pub fn clear(&mut self) -> Evicted<K, V> {
        Evicted { _entries: std::mem::take(&mut self.0) }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has_room(&self, key: &K) -> bool {
        self.len() < MAX || self.0.contains_key(key)
    }
}

/// At most `MAX` values by key, each with its expiry. A full cache drops expired entries, and then the half that expires first.
#[derive(Debug)]
pub struct ExpiringCache<K, V, const MAX: usize, T = Timestamp>(BoundedCache<K, (T, V), MAX>);

impl<K, V, const MAX: usize, T> Default for ExpiringCache<K, V, MAX, T> {
    fn default() -> Self {
        ExpiringCache(BoundedCache::default())
    }
}

impl<K: Eq + Hash, V, const MAX: usize, T: Copy + Ord> ExpiringCache<K, V, MAX, T> {
    /// The value of a key, unless it has expired.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q, now: T) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(key).filter(|(expiry, _)| *expiry > now).map(|(_, value)| value)
    }

    /// Adds or replaces a value, unless it has expired already.
    pub fn insert(&mut self, key: K, value: V, expiry: T, now: T) -> Evicted<K, (T, V)> {
        if expiry <= now {
            return Evicted::default();
        }
        let evicted = match self.0.has_room(&key) {
            true => Evicted::default(),
            false => self.make_room(now),
        };
        self.0.0.insert(key, (expiry, value));
        evicted
    }

    fn make_room(&mut self, now: T) -> Evicted<K, (T, V)> {
        let entries = &mut self.0.0;
        let mut evicted: HashMap<K, (T, V)> = entries.extract_if(|_, (expiry, _)| *expiry <= now).collect();
        if evicted.is_empty() && !entries.is_empty() {
            let mut expiries: Vec<T> = entries.values().map(|(expiry, _)| *expiry).collect();
            let middle = expiries.len() / 2;
            let (_, last, _) = expiries.select_nth_unstable(middle);
            evicted.extend(entries.extract_if(|_, (expiry, _)| *expiry <= *last));
        }
        Evicted { _entries: evicted }
    }

    /// The number of entries, expired ones included.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no entries, not even expired ones.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The last `MAX` different values. The value that was added first is dropped first.
#[derive(Debug)]
pub struct RecentSet<T, const MAX: usize> {
    values: HashSet<T>,
    by_age: VecDeque<T>,
}

impl<T, const MAX: usize> Default for RecentSet<T, MAX> {
    fn default() -> Self {
        RecentSet { values: HashSet::new(), by_age: VecDeque::new() }
    }
}

impl<T: Copy + Eq + Hash, const MAX: usize> RecentSet<T, MAX> {
    /// Whether this is one of the last values.
    pub fn contains(&self, value: &T) -> bool {
        self.values.contains(value)
    }

    /// Adds a value. One that is contained keeps its age.
    pub fn insert(&mut self, value: T) {
        if self.values.insert(value) {
            self.by_age.push_back(value);
        }
        if self.by_age.len() > MAX
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.values.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_cache_is_cleared_when_full() {
        let mut cache = BoundedCache::<_, _, 2>::default();
        assert!(
            cache.is_empty()
                && cache.insert("a", 1)._entries.is_empty()
                && cache.insert("b", 2)._entries.is_empty()
        );
        assert!(cache.insert("b", 3)._entries.is_empty(), "replacing a value takes no room");
        assert_eq!((cache.get("a"), cache.get("b"), cache.len()), (Some(&1), Some(&3), 2));
        assert_eq!(cache.insert("c", 4)._entries, HashMap::from([("a", 1), ("b", 3)]));
        assert_eq!((cache.get("a"), cache.get("c"), cache.len()), (None, Some(&4), 1));
        assert_eq!((cache.clear()._entries.len(), cache.len()), (1, 0));
    }

    #[test]
    fn expiring_cache_hides_expired_entries() {
        let mut cache = ExpiringCache::<_, _, 2>::default();
        let _none = cache.insert("a", 1, Timestamp(10), Timestamp(0));
        assert_eq!((cache.get("a", Timestamp(9)), cache.get("a", Timestamp(10))), (Some(&1), None));
        let _none = cache.insert("b", 1, Timestamp(5), Timestamp(5));
        assert_eq!((cache.get("b", Timestamp(0)), cache.len()), (None, 1), "already expired when inserted");
    }

    #[test]
    fn expiring_cache_drops_expired_entries_before_others() {
        let mut cache = ExpiringCache::<_, (), 4, u64>::default();
        for (key, expiry) in [("a", 10), ("b", 40), ("c", 20), ("d", 30)] {
            assert!(cache.insert(key, (), expiry, 0)._entries.is_empty());
        }
        let evicted: HashSet<&str> = cache.insert("e", (), 50, 20)._entries.into_keys().collect();
        assert_eq!(evicted, HashSet::from(["a", "c"]), "these have expired");
        assert!(cache.insert("f", (), 50, 20)._entries.is_empty());
        assert!(cache.insert("f", (), 60, 20)._entries.is_empty(), "replacing a value takes no room");
        let evicted: HashSet<&str> = cache.insert("g", (), 50, 20)._entries.into_keys().collect();
        assert_eq!(evicted, HashSet::from(["b", "d", "e"]), "up to the middle one of 30, 40, 50, 60");
        assert_eq!(cache.len(), 2);
    }

    #[test]
    fn expiring_cache_stays_bounded_and_keeps_the_newest_entry() {
        let mut cache = ExpiringCache::<_, _, 64>::default();
        let mut evicted = 0;
        for key in 0..1_000 {
            evicted += cache.insert(key, (), Timestamp(1_000 + key), Timestamp(0))._entries.len();
            assert!(cache.len() <= 64 && cache.get(&key, Timestamp(0)).is_some());
        }
        assert_eq!(evicted + cache.len(), 1_000);
        let mut simultaneous = ExpiringCache::<_, _, 64>::default();
        for key in 0..1_000 {
            let _all = simultaneous.insert(key, (), Timestamp(1), Timestamp(0));
            assert!(simultaneous.len() <= 64 && simultaneous.get(&key, Timestamp(0)).is_some());
        }
    }

    #[test]
    fn recent_set_drops_the_oldest_value() {
        let mut recent = RecentSet::<_, 3>::default();
        for value in [1, 2, 1, 3, 3, 4] {
            recent.insert(value);
        }
        assert_eq!([1, 2, 3, 4].map(|value| recent.contains(&value)), [false, true, true, true]);
        assert_eq!((recent.values.len(), recent.by_age.len()), (3, 3));
    }
}
