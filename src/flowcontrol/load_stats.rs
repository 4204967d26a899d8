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
    /// The number of watches per scope. The key is a keyed hash, because clients choose the text of a scope.
    watchers: Lock<HashMap<u64, usize>>,
    hasher: RandomState,
    /// The number of all watches.
    total: AtomicUsize,
}

impl LoadStats {
    /// Reports the number of objects of a type.
    pub fn set_objects(&self, type_name: &TypeName, objects: usize) {
        if self.objects(type_name) != Some(objects) {
            let mut counts = self.objects.write();
            counts.insert(type_name.clone(), objects);
        }
    }

    /// The number of objects of a type at its last list.
    pub fn objects(&self, type_name: &TypeName) -> Option<usize> {
        self.objects.read().get(type_name).copied()
    }

    /// Counts a watch of a type, a namespace or an object, until the guard is dropped.
    pub fn watch(self: &Arc<LoadStats>, type_name: &TypeName, namespace: &str, name: &str) -> Watcher {
        let scope = self.hasher.hash_one((type_name, namespace, name));
        *self.watchers.lock().entry(scope).or_default() += 1;
        self.total.fetch_add(1, Ordering::Relaxed);
        Watcher { load: self.clone(), scope }
    }

    /// The number of watches that a write of this object notifies; the name is empty if it has none yet. `least`: smaller numbers
    /// do not matter and are reported as 0.
    pub fn watchers(&self, type_name: &TypeName, namespace: &str, name: &str, least: usize) -> usize {
        if self.total.load(Ordering::Relaxed) < least {
            return 0;
        }
        let counts = self.watchers.lock();
        let count = |namespace: &str, name: &str| {
            counts.get(&self.hasher.hash_one((type_name, namespace, name))).copied().unwrap_or_default()
        };
        let in_namespace = if namespace.is_empty() { 0 } else { count(namespace, "") };
        let of_object = if name.is_empty() { 0 } else { count(namespace, name) };
        count("", "") + in_namespace + of_object
    }
}

/// A counted watch.
#[derive(Debug)]
pub struct Watcher {
    load: Arc<LoadStats>,
    scope: u64,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.load.total.fetch_sub(1, Ordering::Relaxed);
        let mut counts = self.load.watchers.lock();
        if let Some(count) = counts.get_mut(&self.scope) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.scope);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_stats_count_watchers_that_a_write_notifies() {
        let (load, pods) = (Arc::new(LoadStats::default()), TypeName::new("pods"));
        let guards: Vec<Watcher> = [("", ""), ("n", ""), ("n", ""), ("n", "a"), ("m", "")]
            .map(|(namespace, name)| load.watch(&pods, namespace, name))
            .into();
        assert_eq!(load.watchers(&pods, "n", "a", 1), 4);
        assert_eq!(load.watchers(&pods, "n", "", 1), 3);
        assert_eq!(load.watchers(&pods, "o", "a", 1), 1);
        assert_eq!(load.watchers(&TypeName::new("nodes"), "", "a", 1), 0);
        assert_eq!(load.watchers(&pods, "n", "a", 6), 0, "fewer than `least` are reported as 0");
        drop(guards);
        assert_eq!((load.watchers(&pods, "n", "a", 0), load.watchers.lock().len()), (0, 0));
    }

    #[test]
    fn load_stats_keep_last_object_count() {
        let (load, pods) = (LoadStats::default(), TypeName::new("pods"));
        assert_eq!(load.objects(&pods), None);
        load.set_objects(&pods, 3);
        load.set_objects(&pods, 7);
        assert_eq!(load.objects(&pods), Some(7));
    }
}
