//! Statistics from which API Priority and Fairness estimates the cost of a request: the number of objects and watchers per type.
//! Verbs report them.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pilothouse_types::lock::{Lock, SharedLock};
use pilothouse_types::object::TypeName;

/// The statistics of one server.
#[derive(Debug, Default)]
pub struct LoadStats {
    /// The number of objects of each type at its last list.
    objects: SharedLock<HashMap<TypeName, usize>>,
    /// The number of watches with the same scope, by a keyed hash of the scope, because clients choose its text.
    watchers: Lock<HashMap<u64, usize>>,
    secret: RandomState,
    /// The number of all watches.
    all: AtomicUsize,
}

impl LoadStats {
    /// Reports the number of objects of a type.
    pub fn note(&self, of: &TypeName, objects: usize) {
        if self.objects(of) != Some(objects) {
            let mut known = self.objects.write();
            known.insert(of.clone(), objects);
        }
    }

    /// The number of objects of a type at its last list.
    pub fn objects(&self, of: &TypeName) -> Option<usize> {
        self.objects.read().get(of).copied()
    }

    /// Counts a watch of a type, a namespace or an object, until the guard is dropped.
    pub fn watch(self: &Arc<LoadStats>, of: &TypeName, namespace: &str, name: &str) -> Watcher {
        let what = self.secret.hash_one((of, namespace, name));
        *self.watchers.lock().entry(what).or_default() += 1;
        self.all.fetch_add(1, Ordering::Relaxed);
        Watcher { load: self.clone(), what }
    }

    /// The number of watches that a write of this object notifies; the name is empty if it has none yet. `least`: smaller numbers
    /// do not matter and are reported as 0.
    pub fn watchers(&self, of: &TypeName, namespace: &str, name: &str, least: usize) -> usize {
        if self.all.load(Ordering::Relaxed) < least {
            return 0;
        }
        let known = self.watchers.lock();
        let count = |namespace: &str, name: &str| {
            known.get(&self.secret.hash_one((of, namespace, name))).copied().unwrap_or_default()
        };
        let of_namespace = if namespace.is_empty() { 0 } else { count(namespace, "") };
        let of_name = if name.is_empty() { 0 } else { count(namespace, name) };
        count("", "") + of_namespace + of_name
    }
}

/// A counted watch.
#[derive(Debug)]
pub struct Watcher {
    load: Arc<LoadStats>,
    what: u64,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.load.all.fetch_sub(1, Ordering::Relaxed);
        let mut known = self.load.watchers.lock();
        if let Some(count) = known.get_mut(&self.what) {
            *count -= 1;
            if *count == 0 {
                known.remove(&self.what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_are_counted_who_will_hear_of_a_write() {
        let (load, pods) = (Arc::new(LoadStats::default()), TypeName::new("pods"));
        let all: Vec<Watcher> = [("", ""), ("n", ""), ("n", ""), ("n", "a"), ("m", "")]
            .map(|(namespace, name)| load.watch(&pods, namespace, name))
            .into();
        assert_eq!(load.watchers(&pods, "n", "a", 1), 4);
        assert_eq!(load.watchers(&pods, "n", "", 1), 3);
        assert_eq!(load.watchers(&pods, "o", "a", 1), 1);
        assert_eq!(load.watchers(&TypeName::new("nodes"), "", "a", 1), 0);
        assert_eq!(load.watchers(&pods, "n", "a", 6), 0, "so few do not matter");
        drop(all);
        assert_eq!((load.watchers(&pods, "n", "a", 0), load.watchers.lock().len()), (0, 0));
    }

    #[test]
    fn the_last_count_of_a_type_is_known() {
        let (load, pods) = (LoadStats::default(), TypeName::new("pods"));
        assert_eq!(load.objects(&pods), None);
        load.note(&pods, 3);
        load.note(&pods, 7);
        assert_eq!(load.objects(&pods), Some(7));
    }
}
