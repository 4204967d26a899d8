//! A bounded cache of remote answers with expiry.

use std::collections::HashMap;
use std::hash::Hash;

use pilothouse_types::clock::Timestamp;
use pilothouse_types::lock::Lock;

use crate::limits::WEBHOOK_ANSWERS_KEPT;

/// Answers by question, with their expiry. A std mutex: held for one lookup or one change.
pub struct ExpiringCache<K, V>(Lock<HashMap<K, (Timestamp, V)>>);

impl<K, V> Default for ExpiringCache<K, V> {
    fn default() -> Self {
        ExpiringCache(Lock::default())
    }
}

impl<K: Eq + Hash, V: Clone> ExpiringCache<K, V> {
    /// A cached answer that has not expired.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q, now: Timestamp) -> Option<V>
    where
        K: std::borrow::Borrow<Q>,
    {
        let all = self.0.lock();
        all.get(key).filter(|(until, _)| *until > now).map(|(_, said)| said.clone())
    }

    /// Caches an answer. A full cache drops expired entries, and then the half that expires first.
    pub fn put(&self, key: K, said: V, until: Timestamp, now: Timestamp) {
        if until <= now {
            return;
        }
        let mut all = self.0.lock();
        if all.len() >= WEBHOOK_ANSWERS_KEPT {
            all.retain(|_, (until, _)| *until > now);
            if all.len() >= WEBHOOK_ANSWERS_KEPT {
                let mut ends: Vec<Timestamp> = all.values().map(|(until, _)| *until).collect();
                let middle = ends.len() / 2;
                let (_, half, _) = ends.select_nth_unstable(middle);
                let half = *half;
                all.retain(|_, (until, _)| *until > half);
            }
        }
        all.insert(key, (until, said));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_count_for_a_while_and_never_grow_beyond_their_bound() {
        let kept = ExpiringCache::default();
        kept.put("a", 1, Timestamp(10), Timestamp(0));
        kept.put("b", 1, Timestamp(5), Timestamp(5));
        assert_eq!((kept.get("a", Timestamp(9)), kept.get("a", Timestamp(10))), (Some(1), None));
        assert_eq!(kept.get("b", Timestamp(0)), None, "it never counted");
        let kept = ExpiringCache::default();
        for at in 0..WEBHOOK_ANSWERS_KEPT as u64 * 3 {
            kept.put(at, (), Timestamp(1_000_000 + at), Timestamp(0));
            assert!(kept.0.lock().len() <= WEBHOOK_ANSWERS_KEPT);
            assert_eq!(kept.get(&at, Timestamp(0)), Some(()), "the newest stays");
        }
    }
}
