//! The stored unit: a key, a revision, and the canonical bytes of one version of an object.

mod splice;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

use bytes::Bytes;

use self::splice::splice;
use crate::frame::{Frame, LargeFrame};
use crate::limits::MAX_CACHED_VARIANTS;
use crate::lock::Lock;
use crate::memory::{MemoryBudget, OutOfMemory, reserved_bytes};
use crate::stored_form::StoredForm;

pub use crate::stored_form::{EncryptionKeyId, StoredDraft, UnreadableReason};

/// The position of a change in the history of one type. Comparable only within that type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// Before all changes. No object ever has it.
    pub const ZERO: Revision = Revision(0);
    /// The revision of a type without writes: an empty list must not have resourceVersion 0.
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

/// What a hidden key begins with. Real keys begin with a namespace or a name, and neither contains a slash.
const HIDDEN_KEY_MARK: &str = "/";
/// The end of the range of hidden keys: what follows the slash.
const HIDDEN_KEYS_END: &str = "0";
/// The length of the hash in a hidden key: enough that two keys of a type never have the same.
pub const HIDDEN_KEY_BYTES: usize = 16;

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

    /// All hidden keys, and nothing else.
    pub const HIDDEN: Range<&str> = HIDDEN_KEY_MARK..HIDDEN_KEYS_END;

    /// Stands for the key of an encrypted object that cannot be decrypted: `hash` is computed from the real key.
    pub fn hidden(hash: &[u8; HIDDEN_KEY_BYTES]) -> Key {
        let mut path = String::with_capacity(HIDDEN_KEY_MARK.len() + 2 * HIDDEN_KEY_BYTES);
        path.push_str(HIDDEN_KEY_MARK);
        for byte in hash {
            path.extend(
                [byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16).unwrap_or('0')),
            );
        }
        Key(path.into())
    }

    /// Whether it stands for a key that is not known: it may be in any namespace and have any name.
    pub fn is_hidden(&self) -> bool {
        self.0.starts_with(HIDDEN_KEY_MARK)
    }

    /// The whole key.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The namespace, empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// Whether this is the namespace. Cheaper than comparing [`Key::namespace`], which has to search for its end.
    pub fn is_in(&self, namespace: &str) -> bool {
        if namespace.is_empty() {
            return self.namespace().is_empty();
        }
        self.0.strip_prefix(namespace).is_some_and(|rest| rest.starts_with('/'))
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
        let index = self.0.binary_search_by(|(k, _)| (**k).cmp(key)).ok()?;
        self.0.get(index).map(|(_, value)| &**value)
    }

    /// All pairs, by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }
}

impl<K: Into<Box<str>>, V: Into<Box<str>>> FromIterator<(K, V)> for Pairs {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Pairs {
        let mut pairs: Vec<(Box<str>, Box<str>)> =
            pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        pairs.sort_by(|a, b| a.0.cmp(&b.0));
        pairs.dedup_by(|later, earlier| later.0 == earlier.0);
        Pairs(pairs.into_boxed_slice())
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
    pub revision_offset: usize,
    /// The offset in `bytes` of the fields after kind and apiVersion: list items omit those two.
    pub item_offset: usize,
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
    // Objects are many: their offsets take four bytes each.
    revision_offset: u32,
    item_offset: u32,
    stored_form: StoredForm,
    variants: Lock<Vec<(Variant, Form)>>,
}

/// Another form of an object's bytes.
enum Form {
    /// Cached for as long as the version lives.
    Kept(Bytes),
    /// Alive only while a watch holds it.
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
        let bytes = splice_revision(&draft.bytes, draft.revision_offset, 0, revision);
        Object {
            key: draft.key,
            revision,
            bytes,
            labels: draft.labels,
            fields: draft.fields,
            revision_offset: offset(draft.revision_offset),
            item_offset: offset(draft.item_offset),
            stored_form: StoredForm::Clear,
            variants: Lock::default(),
        }
    }

    /// An object of which only the key and the revision are known. It has no bytes, labels or fields.
    pub fn unreadable(key: Key, revision: Revision, reason: UnreadableReason) -> Object {
        Object {
            key,
            revision,
            bytes: Bytes::new(),
            labels: Pairs::default(),
            fields: Pairs::default(),
            revision_offset: 0,
            item_offset: 0,
            stored_form: StoredForm::Unreadable(Box::new(reason)),
            variants: Lock::default(),
        }
    }

    /// The same object, stored in the form that this key encrypted, if any.
    #[must_use]
    pub fn with_encryption(self, key_id: Option<EncryptionKeyId>) -> Object {
        Object { stored_form: key_id.map_or(StoredForm::Clear, StoredForm::Encrypted), ..self }
    }

    /// What encrypted the stored form; `None` if it is in clear text or cannot be read.
    pub fn encryption_key_id(&self) -> Option<EncryptionKeyId> {
        match self.stored_form {
            StoredForm::Encrypted(key_id) => Some(key_id),
            StoredForm::Clear | StoredForm::Unreadable(_) => None,
        }
    }

    /// Why the object cannot be read, if so.
    pub fn unreadable_reason(&self) -> Option<&UnreadableReason> {
        match &self.stored_form {
            StoredForm::Unreadable(reason) => Some(reason),
            StoredForm::Clear | StoredForm::Encrypted(_) => None,
        }
    }

    /// Whether its content is known: see [`Object::unreadable`].
    pub fn is_readable(&self) -> bool {
        self.unreadable_reason().is_none()
    }

    /// The same state at another revision: the object of a deletion event.
    pub fn at_revision(&self, revision: Revision) -> Object {
        if let Some(reason) = self.unreadable_reason() {
            return Object::unreadable(self.key.clone(), revision, reason.clone());
        }
        let digits = itoa::Buffer::new().format(self.revision.0).len();
        Object {
            key: self.key.clone(),
            revision,
            bytes: splice_revision(&self.bytes, self.revision_offset(), digits, revision),
            labels: self.labels.clone(),
            fields: self.fields.clone(),
            revision_offset: self.revision_offset,
            item_offset: self.item_offset,
            stored_form: self.stored_form.clone(),
            variants: Lock::default(),
        }
    }

    /// Whether it was made of a draft with these bytes.
    pub fn has_bytes_of(&self, draft: &Draft) -> bool {
        let digits = itoa::Buffer::new().format(self.revision.0).len();
        let (start, end) = (self.revision_offset(), self.revision_offset() + digits);
        self.is_readable()
            && draft.revision_offset == start
            && self.bytes.get(..start) == draft.bytes.get(..start)
            && self.bytes.get(end..) == draft.bytes.get(start..)
    }

    /// The object as it was before it got its revision. One that cannot be read has no such state.
    pub fn to_draft(&self) -> Draft {
        let digits = itoa::Buffer::new().format(self.revision.0).len();
        Draft {
            key: self.key.clone(),
            bytes: splice(&self.bytes, self.revision_offset(), digits, b""),
            revision_offset: self.revision_offset(),
            item_offset: self.item_offset(),
            labels: self.labels.clone(),
            fields: self.fields.clone(),
        }
    }

    /// An object as the engine read it: its bytes contain the revision already. `None` if they do not, because the record is
    /// corrupt.
    pub fn restored(draft: Draft, revision: Revision) -> Option<Object> {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(revision.0).as_bytes();
        let end = draft.revision_offset.checked_add(digits.len())?;
        if draft.bytes.get(draft.revision_offset..end)? != digits || draft.item_offset > draft.bytes.len() {
            return None;
        }
        Some(Object {
            key: draft.key,
            revision,
            bytes: draft.bytes,
            labels: draft.labels,
            fields: draft.fields,
            revision_offset: offset(draft.revision_offset),
            item_offset: offset(draft.item_offset),
            stored_form: StoredForm::Clear,
            variants: Lock::default(),
        })
    }

    /// The offset of the revision's digits in the bytes.
    pub fn revision_offset(&self) -> usize {
        self.revision_offset as usize
    }

    /// The offset of the fields after kind and apiVersion.
    pub fn item_offset(&self) -> usize {
        self.item_offset as usize
    }

    /// The bytes after the opening brace when this object is an item of a list of its kind.
    pub fn item(&self) -> Bytes {
        self.bytes.slice(self.item_offset().min(self.bytes.len())..)
    }

    /// The bytes in another encoding or version, made by `make` on first use and cached. Few variants are cached per object, so
    /// that a client that requests all of them does not multiply the memory of an object, and those of all objects stay below
    /// `cache`; `None` if this one is known to be small. Variants that `is_living` rejects, because their definition has
    /// changed, are dropped first.
    pub fn variant<E>(
        &self,
        cache: Option<&MemoryBudget>,
        variant: Variant,
        is_living: impl Fn(Variant) -> bool,
        make: impl FnOnce(&Object) -> Result<Bytes, E>,
    ) -> Result<Bytes, E> {
        if let Some(cached) = self.cached_variant(variant) {
            return Ok(cached);
        }
        // Made outside the lock: two threads may both make it, but neither blocks the other.
        let bytes = make(self)?;
        let mut variants = self.variants.lock();
        variants.retain(|(key, form)| form.kept().is_none() || is_living(*key));
        let mut kept_forms = variants.iter().filter(|(_, form)| form.kept().is_some());
        let has_room = kept_forms.clone().count() < MAX_CACHED_VARIANTS;
        if has_room && !kept_forms.any(|(key, _)| *key == variant) {
            let form = match cache.map(|cache| cache.take(bytes.len())) {
                None => Some(bytes.clone()),
                Some(Ok(share)) => Some(reserved_bytes(bytes.clone(), share)),
                Some(Err(OutOfMemory)) => None,
            };
            variants.extend(form.map(|form| (variant, Form::Kept(form))));
        }
        Ok(bytes)
    }

    /// A cached variant. For callers that otherwise encode into a buffer of their own.
    pub fn cached_variant(&self, variant: Variant) -> Option<Bytes> {
        let variants = self.variants.lock();
        variants.iter().find_map(|(key, form)| form.kept().filter(|_| *key == variant).cloned())
    }

    /// A frame that is not cached but shared by all who hold it at the same time, such as thousands of watches that start with
    /// the same large object. Its variant numbers are separate from those of cached variants.
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

    /// Whether a watch holds such a frame.
    pub fn has_frame(&self, variant: Variant) -> bool {
        self.shared_frame(variant).is_some()
    }

    fn shared_frame(&self, variant: Variant) -> Option<Arc<LargeFrame>> {
        let variants = self.variants.lock();
        variants.iter().find_map(|(key, form)| form.shared().filter(|_| *key == variant))
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.key.as_str(), self.revision)
    }
}

/// Stores refuse objects long before their offsets exceed four bytes.
fn offset(offset: usize) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

fn splice_revision(bytes: &Bytes, offset: usize, old_digits: usize, revision: Revision) -> Bytes {
    let mut digits = itoa::Buffer::new();
    splice(bytes, offset, old_digits, digits.format(revision.0).as_bytes())
}

#[cfg(test)]
mod tests;
