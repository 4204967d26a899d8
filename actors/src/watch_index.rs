//! An index of watch sessions by the objects that may concern them.
//!
//! Each session has exactly one key in the index: the most selective part of its filter that can be looked up. Finding the
//! sessions of an object takes a few lookups, however many sessions there are.
//!
//! Invariant: a session whose filter matches an object is found by that object. The reverse need not hold: the session itself
//! checks labels and further rules.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use pilothouse_types::filter::{FieldRule, Filter, MARK_FIELD};
use pilothouse_types::object::{Key, Object};

/// The key of a session in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexKey {
    /// One object.
    Key(Key),
    /// The objects of this name in any namespace.
    Name(Box<str>),
    /// The objects with this value of an indexed field; an absent field has the empty value. Objects whose fields were extracted
    /// under another mark always match.
    Field(IndexedField, Box<str>),
    /// The objects of one namespace.
    Namespace(Box<str>),
    /// Everything.
    All,
}

impl IndexKey {
    /// The most selective part of the filter: one object, one name, one field value, one namespace.
    pub fn from_filter(filter: &Filter) -> IndexKey {
        let mark = filter.reader.as_ref().map(|reader| Box::from(reader.mark()));
        let equality = filter.fields.iter().find_map(|rule| match rule {
            FieldRule::Equals(field, value) => Some((field, value)),
            FieldRule::Differs(..) => None,
        });
        match (filter.namespace.as_deref(), filter.name.as_deref(), equality) {
            (Some(""), Some(name), _) => IndexKey::Key(Key::cluster(name)),
            (Some(namespace), Some(name), _) => IndexKey::Key(Key::namespaced(namespace, name)),
            (None, Some(name), _) => IndexKey::Name(name.into()),
            (_, None, Some((field, value))) => IndexKey::Field((mark, field.clone()), value.clone()),
            (Some(namespace), None, None) => IndexKey::Namespace(namespace.into()),
            (None, None, None) => IndexKey::All,
        }
    }
}

/// A field, and the mark of objects whose stored fields are current; `None` if they always are.
pub type IndexedField = (Option<Box<str>>, Box<str>);

/// The sessions with the same index key, by number.
type Group<T> = BTreeMap<u64, T>;

/// Sessions by index key. Empty groups are removed.
pub struct WatchIndex<T> {
    all: Group<T>,
    namespaces: HashMap<Box<str>, Group<T>>,
    names: HashMap<Box<str>, Group<T>>,
    keys: HashMap<Key, Group<T>>,
    /// By field, then by value: an object is looked up once per field that any session selects by.
    fields: BTreeMap<IndexedField, HashMap<Box<str>, Group<T>>>,
}

impl<T> Default for WatchIndex<T> {
    fn default() -> WatchIndex<T> {
        WatchIndex {
            all: Group::new(),
            namespaces: HashMap::new(),
            names: HashMap::new(),
            keys: HashMap::new(),
            fields: BTreeMap::new(),
        }
    }
}

impl<T> WatchIndex<T> {
    /// Adds a session.
    pub fn insert(&mut self, number: u64, interest: &IndexKey, reader: T) {
        let group = match interest {
            IndexKey::All => &mut self.all,
            IndexKey::Namespace(namespace) => self.namespaces.entry(namespace.clone()).or_default(),
            IndexKey::Name(name) => self.names.entry(name.clone()).or_default(),
            IndexKey::Key(key) => self.keys.entry(key.clone()).or_default(),
            IndexKey::Field(field, value) => {
                self.fields.entry(field.clone()).or_default().entry(value.clone()).or_default()
            }
        };
        group.insert(number, reader);
    }

    /// Removes a session.
    pub fn remove(&mut self, number: u64, interest: &IndexKey) {
        match interest {
            IndexKey::All => drop(self.all.remove(&number)),
            IndexKey::Namespace(namespace) => remove_from(&mut self.namespaces, namespace, number),
            IndexKey::Name(name) => remove_from(&mut self.names, name, number),
            IndexKey::Key(key) => remove_from(&mut self.keys, key, number),
            IndexKey::Field(field, value) => {
                if let Some(values) = self.fields.get_mut(field) {
                    remove_from(values, value, number);
                    if values.is_empty() {
                        self.fields.remove(field);
                    }
                }
            }
        }
    }

    /// Calls `visit` once for each session that this object may concern. The fields of a corrupt object are unknown, so it
    /// matches all values.
    pub fn find(&self, object: &Object, mut visit: impl FnMut(&T)) {
        if object.key.is_hidden() {
            return self.all_sessions().for_each(visit);
        }
        let groups = [
            Some(&self.all),
            self.namespaces.get(object.key.namespace()),
            self.names.get(object.key.name()),
            self.keys.get(&object.key),
        ];
        let mark = object.fields.get(MARK_FIELD);
        let is_stored = |field: &IndexedField| {
            object.is_readable() && field.0.as_deref().is_none_or(|expected| mark == Some(expected))
        };
        let by_field = self.fields.iter().filter(|(field, _)| is_stored(field));
        let by_field = by_field
            .filter_map(|(field, values)| values.get(object.fields.get(&field.1).unwrap_or_default()));
        let by_any_field = self.fields.iter().filter(|(field, _)| !is_stored(field));
        let by_field = by_field.chain(by_any_field.flat_map(|(_, values)| values.values()));
        for group in groups.into_iter().flatten().chain(by_field) {
            group.values().for_each(&mut visit);
        }
    }
}

impl<T> WatchIndex<T> {
    /// Every session: a hidden key may be any.
    fn all_sessions(&self) -> impl Iterator<Item = &T> {
        let by_key = self.namespaces.values().chain(self.names.values()).chain(self.keys.values());
        let by_field = self.fields.values().flat_map(HashMap::values);
        [&self.all].into_iter().chain(by_key).chain(by_field).flat_map(Group::values)
    }
}

fn remove_from<P, Q, T>(groups: &mut HashMap<P, Group<T>>, key: &Q, number: u64)
where
    P: Eq + Hash + std::borrow::Borrow<Q>,
    Q: Eq + Hash + ?Sized,
{
    if let Some(group) = groups.get_mut(key) {
        group.remove(&number);
        if group.is_empty() {
            groups.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bytes::Bytes;
    use pilothouse_types::filter::{FieldReader, LabelRule};
    use pilothouse_types::object::{Draft, HIDDEN_KEY_BYTES, Pairs, Revision, UnreadableReason};
    use proptest::prelude::*;

    use super::*;

    /// The expected result, without an index.
    fn is_expected(interest: &IndexKey, object: &Object) -> bool {
        match interest {
            IndexKey::All => true,
            IndexKey::Namespace(namespace) => object.key.namespace() == &**namespace,
            IndexKey::Name(name) => object.key.name() == &**name,
            IndexKey::Key(key) => object.key == *key,
            IndexKey::Field((mark, field), value) => {
                mark.as_deref().is_some_and(|mark| object.fields.get(MARK_FIELD) != Some(mark))
                    || object.fields.get(field).unwrap_or_default() == &**value
            }
        }
    }

    fn text(choices: &'static [&'static str]) -> impl Strategy<Value = Box<str>> {
        prop::sample::select(choices).prop_map(Box::from)
    }

    fn rules() -> impl Strategy<Value = Vec<FieldRule>> {
        let rule = (text(&["node", "phase"]), text(&["", "1", "2"]), any::<bool>()).prop_map(
            |(field, value, equal)| match equal {
                true => FieldRule::Equals(field, value),
                false => FieldRule::Differs(field, value),
            },
        );
        prop::collection::vec(rule, 0..3)
    }

    fn filters() -> impl Strategy<Value = Filter> {
        let namespace = prop::option::of(text(&["", "x", "y"]));
        let name = prop::option::weighted(0.3, text(&["a", "b"]));
        let labels = prop::option::of(text(&["app"]).prop_map(LabelRule::Exists));
        (namespace, name, labels, rules(), any::<bool>()).prop_map(
            |(namespace, name, labels, fields, has_reader)| {
                Filter {
                    namespace,
                    name,
                    labels: labels.into_iter().collect(),
                    fields,
                    // Fields that are read may differ from stored ones.
                    reader: has_reader.then(|| {
                        FieldReader::new("1", |_| Pairs::from_iter([("node", "1"), ("phase", "2")]))
                    }),
                }
            },
        )
    }

    fn objects() -> impl Strategy<Value = Object> {
        // The mark is one of the fields.
        let fields = prop::collection::btree_map(text(&["node", "phase", ""]), text(&["", "1", "2"]), 0..4);
        let labels = prop::collection::btree_map(text(&["app"]), text(&["v"]), 0..2);
        (text(&["", "x", "y"]), text(&["a", "b"]), fields, labels).prop_map(
            |(namespace, name, fields, labels)| {
                let key = match &*namespace {
                    "" => Key::cluster(&name),
                    _ => Key::namespaced(&namespace, &name),
                };
                let draft = Draft {
                    key,
                    bytes: Bytes::from_static(b"{}"),
                    revision_offset: 1,
                    item_offset: 1,
                    labels: labels.into_iter().collect(),
                    fields: fields.into_iter().collect::<Pairs>(),
                };
                Object::new(draft, Revision(2))
            },
        )
    }

    proptest! {
        #[test]
        fn index_finds_the_same_sessions_as_a_full_scan(
            filters in prop::collection::vec((filters(), any::<bool>()), 0..24),
            object in objects(),
        ) {
            let mut index = WatchIndex::default();
            let keys: Vec<IndexKey> =
                filters.iter().map(|(filter, _)| IndexKey::from_filter(filter)).collect();
            for (number, key) in keys.iter().enumerate() {
                index.insert(number as u64, key, number);
            }
            for (number, key) in keys.iter().enumerate().filter(|(number, _)| filters[*number].1) {
                index.remove(number as u64, key);
            }
            let mut matches = Vec::new();
            index.find(&object, |number| matches.push(*number));
            let distinct: BTreeSet<usize> = matches.iter().copied().collect();
            prop_assert_eq!(distinct.len(), matches.len(), "each is found once");
            for (number, (filter, is_removed)) in filters.iter().enumerate() {
                let expected = !is_removed && is_expected(&keys[number], &object);
                prop_assert_eq!(distinct.contains(&number), expected, "{:?}", &keys[number]);
                let is_missed = filter.matches(&object) && !distinct.contains(&number);
                prop_assert!(*is_removed || !is_missed, "{:?}", filter);
            }
        }

        #[test]
        fn index_is_empty_after_all_sessions_are_removed(filters in prop::collection::vec(filters(), 0..24)) {
            let mut index = WatchIndex::default();
            for (number, filter) in filters.iter().enumerate() {
                index.insert(number as u64, &IndexKey::from_filter(filter), ());
            }
            for (number, filter) in filters.iter().enumerate() {
                index.remove(number as u64, &IndexKey::from_filter(filter));
            }
            prop_assert!(index.all.is_empty() && index.namespaces.is_empty() && index.names.is_empty());
            prop_assert!(index.keys.is_empty() && index.fields.is_empty());
        }
    }

    #[test]
    fn field_index_finds_only_matching_sessions() {
        let mut index = WatchIndex::default();
        for node in 0..10_000_u64 {
            index.insert(node, &IndexKey::Field((None, "node".into()), node.to_string().into()), node);
        }
        let draft = Draft {
            key: Key::namespaced("n", "a"),
            bytes: Bytes::from_static(b"{}"),
            revision_offset: 1,
            item_offset: 1,
            labels: Pairs::default(),
            fields: Pairs::from_iter([("node", "77")]),
        };
        let mut matches = Vec::new();
        index.find(&Object::new(draft, Revision(2)), |node| matches.push(*node));
        assert_eq!(matches, [77]);
    }

    #[test]
    fn hidden_key_may_concern_every_session() {
        let mut index = WatchIndex::default();
        let interests = [
            IndexKey::All,
            IndexKey::Namespace("x".into()),
            IndexKey::Name("a".into()),
            IndexKey::Key(Key::namespaced("x", "a")),
            IndexKey::Field((None, "phase".into()), "1".into()),
        ];
        for (number, interest) in (0..).zip(&interests) {
            index.insert(number, interest, number);
        }
        let hidden = Key::hidden(&[1; HIDDEN_KEY_BYTES]);
        let object = Object::unreadable(hidden, Revision(2), UnreadableReason::Damaged);
        let mut found = BTreeSet::new();
        index.find(&object, |number| found.extend([*number]));
        assert_eq!(found.len(), interests.len());
    }
}
