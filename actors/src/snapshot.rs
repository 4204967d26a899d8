//! The objects of one type at one revision, shared by all readers.

use std::ops::{Bound, Range};
use std::sync::Arc;

use imbl::OrdMap;
use pilothouse_types::object::{Key, Object, Revision};

use crate::write_times::WriteTimes;

/// An immutable state: later writes do not change it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The newest revision of the type in this state.
    pub revision: Revision,
    /// Every object, by key.
    pub objects: OrdMap<Key, Arc<Object>>,
    /// How old those are that the log had at the start.
    pub written: Arc<WriteTimes>,
}

impl Snapshot {
    /// The state of a type without writes.
    pub fn empty(revision: Revision) -> Snapshot {
        Snapshot { revision, objects: OrdMap::new(), written: Arc::default() }
    }

    /// The object with this key.
    pub fn get(&self, key: &str) -> Option<&Arc<Object>> {
        self.objects.get(key)
    }

    /// The objects whose keys are not known, because they cannot be decrypted.
    pub fn hidden(&self) -> impl Iterator<Item = &Arc<Object>> {
        let Range { start, end } = Key::HIDDEN;
        self.objects.range::<_, str>((Bound::Included(start), Bound::Excluded(end))).map(|(_, object)| object)
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// All objects, by key.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.values()
    }

    /// The objects of one namespace, or of all, from `start` on, by key. An object with a hidden key may be in any namespace. The cost
    /// depends on the result, not on the size of the type.
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
        // Those without a namespace to look for are in the range of all.
        let hidden = prefix.iter().flat_map(|_| self.hidden()).collect::<Vec<_>>();
        let range = self.objects.range::<_, str>((first, Bound::Unbounded));
        let range = range
            .map(|(_, object)| object)
            .take_while(move |object| prefix.as_deref().is_none_or(|p| object.key.as_str().starts_with(p)));
        hidden.into_iter().chain(range)
    }

    /// Looks for an object of this name in each namespace that has objects, and returns each result, and the objects with hidden keys,
    /// which may have this name. The cost depends on the
    /// number of namespaces, not on the size of the type.
    pub fn in_each_namespace<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Option<&'a Arc<Object>>> {
        let mut rest = Bound::Unbounded;
        std::iter::from_fn(move || {
            let next = (rest.as_ref().map(String::as_str), Bound::Unbounded);
            let (key, object) = self.objects.range::<_, str>(next).next()?;
            match key.as_str().split_once('/') {
                Some(_) if key.is_hidden() => {
                    rest = Bound::Excluded(key.as_str().to_owned());
                    Some(Some(object))
                }
                Some((namespace, _)) => {
                    // The keys of a namespace go on with a slash, and after that comes the digit 0.
                    rest = Bound::Included(format!("{namespace}0"));
                    Some(self.get(&format!("{namespace}/{name}")))
                }
                None => {
                    rest = Bound::Excluded(key.as_str().to_owned());
                    Some((key.name() == name).then_some(object))
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pilothouse_types::object::{Draft, HIDDEN_KEY_BYTES, Pairs};

    use super::*;

    fn snapshot(keys: &[&str]) -> Snapshot {
        let mut snapshot = Snapshot::empty(Revision::FIRST);
        for key in keys {
            let draft = Draft {
                key: Key::from_path(key),
                bytes: Bytes::from_static(b"{}"),
                revision_offset: 1,
                item_offset: 1,
                labels: Pairs::default(),
                fields: Pairs::default(),
            };
            let object = Arc::new(Object::new(draft, Revision(2)));
            snapshot.objects.insert(object.key.clone(), object);
        }
        snapshot
    }

    fn keys<'a>(objects: impl Iterator<Item = &'a Arc<Object>>) -> Vec<&'a str> {
        objects.map(|object| object.key.as_str()).collect()
    }

    #[test]
    fn scan_returns_namespace_from_start_key() {
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
    fn name_lookup_visits_each_namespace_once() {
        let all = snapshot(&["a-b/x", "a/x", "a/y", "a/z", "a0/w", "ab/v", "ab/y", "b/x"]);
        let lookup = |snapshot: &Snapshot, name| {
            let objects = snapshot.in_each_namespace(name);
            let keys = objects.map(|object| object.map_or("", |object| object.key.as_str()).to_owned());
            keys.collect::<Vec<_>>()
        };
        assert_eq!(lookup(&all, "y"), ["", "a/y", "", "ab/y", ""], "a-b, a, a0, ab, b");
        assert_eq!(lookup(&all, "q"), [""; 5], "not once for each object");
        assert_eq!(lookup(&snapshot(&["a", "b"]), "b"), ["", "b"]);
        assert_eq!(lookup(&Snapshot::empty(Revision::FIRST), "b"), [""; 0]);
    }

    #[test]
    fn hidden_objects_are_in_every_namespace_and_have_every_name() {
        let hidden = Key::hidden(&[7; HIDDEN_KEY_BYTES]);
        let all = snapshot(&["a/x", hidden.as_str(), "b/y"]);
        assert_eq!(keys(all.scan(Some("a"), Bound::Unbounded)), [hidden.as_str(), "a/x"]);
        assert_eq!(keys(all.scan(Some("c"), Bound::Excluded("c/z"))), [hidden.as_str()]);
        assert_eq!(keys(all.scan(None, Bound::Unbounded)), [hidden.as_str(), "a/x", "b/y"]);
        let named: Vec<_> =
            all.in_each_namespace("x").map(|object| object.map(|object| &object.key)).collect();
        assert_eq!(named, [Some(&hidden), Some(&Key::namespaced("a", "x")), None]);
    }

    #[test]
    fn snapshot_is_not_changed_by_later_writes() {
        let mut live = snapshot(&["a"]);
        let snapshot = live.clone();
        live.objects.remove("a");
        assert!(live.get("a").is_none() && live.is_empty());
        assert!(snapshot.get("a").is_some());
        assert_eq!(snapshot.len(), 1);
    }
}
