//! The stored unit: a key, a revision, and the canonical bytes of one version of an object.

use std::fmt;
use std::sync::{Arc, Weak};

use bytes::{Bytes, BytesMut};

use crate::frame::{Frame, LargeFrame};
use crate::limits::VARIANTS_KEPT;
use crate::lock::Lock;
use crate::memory::{MemoryBudget, OutOfMemory, reserved_bytes};

/// The position of a change in the history of one type. Comparable only within that type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// Before all changes. No object ever has it.
    pub const ZERO: Revision = Revision(0);
    /// The revision of a type without writes: an empty list must not answer 0.
    pub const FIRST: Revision = Revision(1);

    /// The revision that follows this one.
    pub fn next(self) -> Revision {
        Revision(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of a resource type, `pods` or `deployments.apps`: the key of its store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeName(Arc<str>);

impl TypeName {
    /// Takes the name without checking it.
    pub fn new(name: &str) -> TypeName {
        TypeName(name.into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The identity of an object within its type: `namespace/name`, or just the name for cluster-scoped types. Keys sort by their
/// bytes, which is the order of lists.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// The key of a namespaced object. Neither part may contain a slash; names are validated before.
    pub fn namespaced(namespace: &str, name: &str) -> Key {
        let mut path = String::with_capacity(namespace.len() + 1 + name.len());
        path.push_str(namespace);
        path.push('/');
        path.push_str(name);
        Key(path.into())
    }

    /// The key of a cluster-scoped object.
    pub fn cluster(name: &str) -> Key {
        Key(name.into())
    }

    /// Takes a key as it was stored.
    pub fn from_path(path: &str) -> Key {
        Key(path.into())
    }

    /// The whole key.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The namespace, empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The name within the namespace.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl std::borrow::Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Sorted pairs of strings: the labels of an object, or its indexed fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs(Box<[(Box<str>, Box<str>)]>);

impl Pairs {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(k, _)| (**k).cmp(key)).ok()?;
        self.0.get(at).map(|(_, value)| &**value)
    }

    /// All pairs, by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }
}

impl<K: Into<Box<str>>, V: Into<Box<str>>> FromIterator<(K, V)> for Pairs {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Pairs {
        let mut all: Vec<(Box<str>, Box<str>)> =
            pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.dedup_by(|later, earlier| later.0 == earlier.0);
        Pairs(all.into_boxed_slice())
    }
}

/// An object that is to be stored: canonical bytes with a gap for the revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The identity of the object.
    pub key: Key,
    /// Canonical JSON with an empty resourceVersion string.
    pub bytes: Bytes,
    /// The offset in `bytes` for the digits of the revision.
    pub revision_at: usize,
    /// The offset in `bytes` of the fields after kind and apiVersion: list items omit those two.
    pub item_at: usize,
    /// The labels that selectors see.
    pub labels: Pairs,
    /// The fields that selectors see, besides name and namespace.
    pub fields: Pairs,
}

/// Identifies another form of an object's bytes: an encoding, or a served version that is not the stored one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Variant(pub u32);

/// One version of one object. Immutable and shared by pointer.
pub struct Object {
    /// The identity of the object.
    pub key: Key,
    /// The revision of this version, which `bytes` contain as well.
    pub revision: Revision,
    /// Canonical JSON of the stored version, kind and apiVersion first.
    pub bytes: Bytes,
    /// The labels that selectors see.
    pub labels: Pairs,
    /// The fields that selectors see, besides name and namespace.
    pub fields: Pairs,
    revision_at: usize,
    item_at: usize,
    variants: Lock<Vec<(Variant, Form)>>,
}

/// Another form of an object's bytes.
enum Form {
    /// Cached for as long as the version lives.
    Kept(Bytes),
    /// Shared by those who hold it now, and gone with the last of them.
    Shared(Weak<LargeFrame>),
}

impl Form {
    fn kept(&self) -> Option<&Bytes> {
        match self {
            Form::Kept(bytes) => Some(bytes),
            Form::Shared(_) => None,
        }
    }

    fn shared(&self) -> Option<Arc<LargeFrame>> {
        match self {
            Form::Kept(_) => None,
            Form::Shared(frame) => frame.upgrade(),
        }
    }
}

impl Object {
    /// Fills the gap: the only place where a revision enters the bytes.
    pub fn new(draft: Draft, revision: Revision) -> Object {
        let bytes = splice(&draft.bytes, draft.revision_at, 0, revision);
        Object {
            key: draft.key,
            revision,
            bytes,
            labels: draft.labels,
            fields: draft.fields,
            revision_at: draft.revision_at,
            item_at: draft.item_at,
            variants: Lock::default(),
        }
    }

    /// An object whose record is corrupt: only its key and revision are known. It has no bytes, labels or fields.
    pub fn unreadable(key: Key, revision: Revision) -> Object {
        Object {
            key,
            revision,
            bytes: Bytes::new(),
            labels: Pairs::default(),
            fields: Pairs::default(),
            revision_at: 0,
            item_at: 0,
            variants: Lock::default(),
        }
    }

    /// Whether the record is intact: see [`Object::unreadable`].
    pub fn is_readable(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// The same state at another revision: the object of a deletion event.
    pub fn at(&self, revision: Revision) -> Object {
        if !self.is_readable() {
            return Object::unreadable(self.key.clone(), revision);
        }
        let digits = itoa::Buffer::new().format(self.revision.0).len();
        Object {
            key: self.key.clone(),
            revision,
            bytes: splice(&self.bytes, self.revision_at, digits, revision),
            labels: self.labels.clone(),
            fields: self.fields.clone(),
            revision_at: self.revision_at,
            item_at: self.item_at,
            variants: Lock::default(),
        }
    }

    /// An object as the engine read it: its bytes contain the revision already. `None` if they do not, because the record is
    /// corrupt.
    pub fn restored(draft: Draft, revision: Revision) -> Option<Object> {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(revision.0).as_bytes();
        let end = draft.revision_at.checked_add(digits.len())?;
        if draft.bytes.get(draft.revision_at..end)? != digits || draft.item_at > draft.bytes.len() {
            return None;
        }
        Some(Object {
            key: draft.key,
            revision,
            bytes: draft.bytes,
            labels: draft.labels,
            fields: draft.fields,
            revision_at: draft.revision_at,
            item_at: draft.item_at,
            variants: Lock::default(),
        })
    }

    /// The offset of the revision's digits in the bytes.
    pub fn revision_at(&self) -> usize {
        self.revision_at
    }

    /// The offset of the fields after kind and apiVersion.
    pub fn item_at(&self) -> usize {
        self.item_at
    }

    /// The bytes after the opening brace when this object is an item of a list of its kind.
    pub fn item(&self) -> Bytes {
        self.bytes.slice(self.item_at.min(self.bytes.len())..)
    }

    /// Another form of the bytes, made by `make` on first use and cached. Only a few forms are cached: a client that asks for all
    /// of them must not multiply the memory of an object, nor may the forms of all objects take more than `kept`, unless
    /// this one is known to be small. Forms that `is_living` rejects, because their definition has changed, are dropped first.
    pub fn variant<E>(
        &self,
        kept: Option<&MemoryBudget>,
        variant: Variant,
        is_living: impl Fn(Variant) -> bool,
        make: impl FnOnce(&Object) -> Result<Bytes, E>,
    ) -> Result<Bytes, E> {
        if let Some(cached) = self.cached_variant(variant) {
            return Ok(cached);
        }
        // Made outside the lock: two threads may both make it, which costs time once and blocks nobody.
        let bytes = make(self)?;
        let mut variants = self.variants.lock();
        variants.retain(|(known, form)| form.kept().is_none() || is_living(*known));
        let mut kept_forms = variants.iter().filter(|(_, form)| form.kept().is_some());
        let has_room = kept_forms.clone().count() < VARIANTS_KEPT;
        if has_room && !kept_forms.any(|(known, _)| *known == variant) {
            let form = match kept.map(|kept| kept.take(bytes.len())) {
                None => Some(bytes.clone()),
                Some(Ok(share)) => Some(reserved_bytes(bytes.clone(), share)),
                Some(Err(OutOfMemory)) => None,
            };
            variants.extend(form.map(|form| (variant, Form::Kept(form))));
        }
        Ok(bytes)
    }

    /// Another form of the bytes, if it is cached. For those who make a form for one use.
    pub fn cached_variant(&self, variant: Variant) -> Option<Bytes> {
        let variants = self.variants.lock();
        variants.iter().find_map(|(known, form)| form.kept().filter(|_| *known == variant).cloned())
    }

    /// A frame that nobody caches, but that all share who hold it at the same time: thousands of watches that begin with the same
    /// large object, for instance. The numbers of these forms are their own.
    pub fn frame<E>(&self, variant: Variant, make: impl FnOnce() -> Result<Bytes, E>) -> Result<Frame, E> {
        if let Some(shared) = self.shared_frame(variant) {
            return Ok(Frame::Large(shared));
        }
        let frame = Frame::from(make()?);
        if let Frame::Large(frame) = &frame {
            let mut variants = self.variants.lock();
            variants.retain(|(_, form)| form.kept().is_some() || form.shared().is_some());
            variants.push((variant, Form::Shared(Arc::downgrade(frame))));
        }
        Ok(frame)
    }

    /// Whether somebody holds such a frame.
    pub fn has_frame(&self, variant: Variant) -> bool {
        self.shared_frame(variant).is_some()
    }

    fn shared_frame(&self, variant: Variant) -> Option<Arc<LargeFrame>> {
        let variants = self.variants.lock();
        variants.iter().find_map(|(known, form)| form.shared().filter(|_| *known == variant))
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.key.as_str(), self.revision)
    }
}

fn splice(bytes: &Bytes, at: usize, old_digits: usize, revision: Revision) -> Bytes {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(revision.0).as_bytes();
    let at = at.min(bytes.len());
    let rest = (at + old_digits).min(bytes.len());
    let mut whole = BytesMut::with_capacity(bytes.len() - (rest - at) + digits.len());
    whole.extend_from_slice(&bytes[..at]);
    whole.extend_from_slice(digits);
    whole.extend_from_slice(&bytes[rest..]);
    whole.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::HELD_FROM_BYTES;

    fn draft() -> Draft {
        let text = r#"{"kind":"K","apiVersion":"v1","metadata":{"name":"a","resourceVersion":""}}"#;
        Draft {
            key: Key::namespaced("n", "a"),
            bytes: Bytes::from_static(text.as_bytes()),
            revision_at: text.find(r#""}}"#).unwrap(),
            item_at: text.find(r#""metadata""#).unwrap(),
            labels: Pairs::from_iter([("b", "2"), ("a", "1")]),
            fields: Pairs::default(),
        }
    }

    #[test]
    fn the_revision_enters_the_bytes_once() {
        let object = Object::new(draft(), Revision(42));
        assert!(object.bytes.ends_with(br#""resourceVersion":"42"}}"#));
        let gone = object.at(Revision(1_000));
        assert!(gone.bytes.ends_with(br#""resourceVersion":"1000"}}"#));
        assert_eq!(gone.item(), Bytes::from_static(br#""metadata":{"name":"a","resourceVersion":"1000"}}"#));
    }

    #[test]
    fn a_restored_object_must_hold_its_revision() {
        let written = Object::new(draft(), Revision(42));
        let read = Draft { bytes: written.bytes, ..draft() };
        assert!(Object::restored(read.clone(), Revision(42)).is_some());
        assert!(Object::restored(read, Revision(43)).is_none());
    }

    #[test]
    fn what_cannot_be_read_stays_so_at_every_revision() {
        let gone = Object::unreadable(Key::cluster("a"), Revision(2)).at(Revision(3));
        assert!(!gone.is_readable() && gone.revision == Revision(3));
        assert!(Object::new(draft(), Revision(2)).is_readable());
    }

    #[test]
    fn keys_sort_by_bytes_and_fall_apart_again() {
        let key = Key::namespaced("kube-system", "a:b");
        assert_eq!((key.namespace(), key.name()), ("kube-system", "a:b"));
        assert_eq!((Key::cluster("n").namespace(), Key::cluster("n").name()), ("", "n"));
        assert!(Key::namespaced("a-b", "x") < Key::namespaced("a", "x"));
    }

    #[test]
    fn a_variant_is_made_once() {
        let object = Object::new(draft(), Revision(2));
        let make = |_: &Object| Ok::<_, ()>(Bytes::from_static(b"x"));
        let all = |_: Variant| true;
        assert_eq!(object.variant(None, Variant(1), all, make), Ok(Bytes::from_static(b"x")));
        assert_eq!(object.variant(None, Variant(1), all, |_| Err(())), Ok(Bytes::from_static(b"x")));
        assert_eq!(object.variant(None, Variant(2), all, |_| Err(())), Err(()));
    }

    #[test]
    fn forms_are_cached_while_there_is_memory_and_give_it_back_with_their_object() {
        let budget = MemoryBudget::alone(2);
        let (one, other) = (Object::new(draft(), Revision(2)), Object::new(draft(), Revision(3)));
        let make = |_: &Object| Ok::<_, ()>(Bytes::from_static(b"xy"));
        let all = |_: Variant| true;
        assert!(one.variant(Some(&budget), Variant(1), all, make).is_ok());
        assert!(other.variant(Some(&budget), Variant(1), all, make).is_ok(), "it is made, but not cached");
        assert_eq!(other.variant(Some(&budget), Variant(1), all, |_| Err(())), Err(()));
        drop(one);
        assert_eq!(budget.bytes(), 0);
        assert!(other.variant(Some(&budget), Variant(1), all, make).is_ok());
        assert!(other.variant(Some(&budget), Variant(1), all, |_| Err(())).is_ok());
    }

    #[test]
    fn a_large_frame_is_shared_as_long_as_somebody_holds_it() {
        let object = Object::new(draft(), Revision(2));
        let make = || Ok::<_, ()>(Bytes::from(vec![b'x'; HELD_FROM_BYTES]));
        let one = object.frame(Variant(1), make).unwrap();
        let other = object.frame(Variant(1), || Err(())).expect("it is made once");
        assert!(
            matches!((&one, &other), (Frame::Large(one), Frame::Large(other)) if Arc::ptr_eq(one, other))
        );
        assert_eq!(object.cached_variant(Variant(1)), None, "these numbers are not those of cached forms");
        assert!(object.frame(Variant(2), || Err(())).is_err());
        drop(one);
        assert!(object.frame(Variant(1), || Err(())).is_ok());
        drop(other);
        assert!(object.frame(Variant(1), || Err(())).is_err(), "nobody keeps it");
    }

    #[test]
    fn forms_of_what_is_no_more_make_room() {
        let object = Object::new(draft(), Revision(2));
        let make = |_: &Object| Ok::<_, ()>(Bytes::from_static(b"x"));
        let count = u32::try_from(VARIANTS_KEPT).unwrap();
        for generation in 0..5 {
            let living = |variant: Variant| variant.0 / count == generation;
            for form in generation * count..(generation + 1) * count {
                assert!(object.variant(None, Variant(form), living, make).is_ok());
            }
            for form in generation * count..(generation + 1) * count {
                assert!(object.variant(None, Variant(form), living, |_| Err(())).is_ok(), "{form} is kept");
            }
        }
    }
}
