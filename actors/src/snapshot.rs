//! The objects of one type at one revision, shared by all readers.

use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;

use crate::object::{Key, Object, Revision};

/// An immutable state: later writes do not change it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The newest revision of the type in this state.
    pub revision: Revision,
    /// Every object, by key.
    pub objects: OrdMap<Key, Arc<Object>>,
}

impl Snapshot {
    /// The state of a type without writes.
    pub fn empty() -> Snapshot {
        Snapshot { revision: Revision::FIRST, objects: OrdMap::new() }
    }

    /// The object with this key.
    pub fn get(&self, key: &str) -> Option<&Arc<Object>> {
        self.objects.get(key)
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// All objects, by key.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.values()
    }

    /// The objects of one namespace, or of all, from `start` on, by key. The cost depends on the result, not on the size of the
    /// type.
    pub fn scan<'a>(
        &'a self,
        namespace: Option<&str>,
        start: Bound<&str>,
    ) -> impl Iterator<Item = &'a Arc<Object>> {
        let prefix = namespace.map(|namespace| format!("{namespace}/"));
        let first = match (prefix.as_deref(), start) {
            (Some(prefix), Bound::Included(start) | Bound::Excluded(start)) if start < prefix => {
                Bound::Included(prefix)
            }
            (Some(prefix), Bound::Unbounded) => Bound::Included(prefix),
            (_, start) => start,
        };
        let found = self.objects.range::<_, str>((first, Bound::Unbounded));
        found
            .map(|(_, object)| object)
            .take_while(move |object| prefix.as_deref().is_none_or(|p| object.key.as_str().starts_with(p)))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::object::{Draft, Pairs};

    fn snapshot(keys: &[&str]) -> Snapshot {
        let mut snapshot = Snapshot::empty();
        for key in keys {
            let draft = Draft {
                key: Key::from_path(key),
                bytes: Bytes::from_static(b"{}"),
                revision_at: 1,
                item_at: 1,
                labels: Pairs::default(),
                fields: Pairs::default(),
            };
            let object = Arc::new(Object::new(draft, Revision(2)));
            snapshot.objects.insert(object.key.clone(), object);
        }
        snapshot
    }

    fn keys<'a>(found: impl Iterator<Item = &'a Arc<Object>>) -> Vec<&'a str> {
        found.map(|object| object.key.as_str()).collect()
    }

    #[test]
    fn a_namespace_is_a_range_of_keys() {
        let all = snapshot(&["a-b/x", "a/x", "a/y", "a/z", "ab/x", "b/x"]);
        assert_eq!(keys(all.iter()), ["a-b/x", "a/x", "a/y", "a/z", "ab/x", "b/x"]);
        assert_eq!(keys(all.scan(Some("a"), Bound::Unbounded)), ["a/x", "a/y", "a/z"]);
        assert_eq!(keys(all.scan(Some("a"), Bound::Included("a/y"))), ["a/y", "a/z"]);
        assert_eq!(keys(all.scan(Some("a"), Bound::Excluded("a/y"))), ["a/z"]);
        assert_eq!(keys(all.scan(Some("a"), Bound::Excluded("a-b/x"))), ["a/x", "a/y", "a/z"]);
        assert_eq!(keys(all.scan(Some("a"), Bound::Included("b"))), [""; 0]);
        assert_eq!(keys(all.scan(None, Bound::Excluded("a/z"))), ["ab/x", "b/x"]);
        assert_eq!(keys(all.scan(Some("c"), Bound::Unbounded)), [""; 0]);
    }

    #[test]
    fn a_snapshot_does_not_move() {
        let mut live = snapshot(&["a"]);
        let taken = live.clone();
        live.objects.remove("a");
        assert!(live.get("a").is_none() && live.is_empty());
        assert!(taken.get("a").is_some());
        assert_eq!(taken.len(), 1);
    }
}
