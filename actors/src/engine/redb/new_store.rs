//! A new store of objects that come from elsewhere, such as from etcd.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use pilothouse_types::object::{Draft, Object, Revision, StoredDraft, TypeName};

use super::backup::{Entries, NewPlace, RestoreError, Restored, restore_entries};
use crate::backup::{BackedUpType, Entry, Totals};
use crate::encryption::Encryption;
use crate::engine::record::{EncryptedRecord, Operation, Record};
use crate::log_time::WriteTime;

/// What a new store is made of, one after the other.
#[derive(Clone, Debug)]
pub enum NewEntry {
    /// A type. Its objects follow.
    Type(TypeName),
    /// An object of that type.
    Object {
        /// The object.
        draft: Draft,
        /// Its revision. If another object of the type has the same, it gets a later one.
        revision: Revision,
        /// When it was written.
        written: WriteTime,
    },
}

/// Makes a store at `path`, where there is none, of all entries that `next` returns before `None`. As after a restoration, all types go
/// on above `first_revision`, which must be above every revision of an object, and there is no history.
///
/// Objects are encrypted as `encryption` says. If anything fails, also `next`, nothing is left at `path`.
pub fn create(
    path: &Path,
    first_revision: Revision,
    encryption: &dyn Encryption,
    next: impl FnMut() -> Result<Option<NewEntry>, String>,
) -> Result<Restored, RestoreError> {
    let place = NewPlace { path, old: None, owner: None };
    let mut entries = NewEntries {
        next,
        encryption,
        first_revision,
        current: None,
        names: HashSet::new(),
        revisions: HashSet::new(),
        free_revision: below(first_revision),
        totals: Totals::default(),
        bytes: Vec::new(),
    };
    restore_entries(&place, &mut entries, |_| first_revision)
}

fn below(revision: Revision) -> Revision {
    Revision(revision.0.saturating_sub(1))
}

/// Makes records of new entries.
struct NewEntries<'a, N> {
    next: N,
    encryption: &'a dyn Encryption,
    first_revision: Revision,
    /// The number and name of the type whose objects come.
    current: Option<(u32, TypeName)>,
    /// The types so far.
    names: HashSet<TypeName>,
    /// The revisions that objects of this type have.
    revisions: HashSet<u64>,
    /// The revision of the next object whose own is taken; they go down from the first that is given later.
    free_revision: Revision,
    totals: Totals,
    /// The record that was made last.
    bytes: Vec<u8>,
}

impl<N> NewEntries<'_, N> {
    fn begin_type(&mut self, name: TypeName) -> Result<Entry<'_>, RestoreError> {
        if !self.names.insert(name.clone()) {
            return Err(RestoreError::Invalid("a type comes twice"));
        }
        self.totals.types += 1;
        let id = u32::try_from(self.totals.types)
            .map_err(|_| RestoreError::Invalid("there are too many types"))?;
        self.current = Some((id, name.clone()));
        self.revisions.clear();
        self.free_revision = below(self.first_revision);
        Ok(Entry::Type(BackedUpType { id, name, last: self.first_revision }))
    }

    /// A revision that no other object of the type has: this one, if it is free.
    fn own_revision(&mut self, wanted: Revision) -> Revision {
        if self.revisions.insert(wanted.0) {
            return wanted;
        }
        while !self.revisions.insert(self.free_revision.0) {
            self.free_revision = below(self.free_revision);
        }
        self.free_revision
    }

    fn add(
        &mut self,
        draft: Draft,
        revision: Revision,
        accepted_at: WriteTime,
    ) -> Result<Entry<'_>, RestoreError> {
        let Some((id, type_name)) = self.current.clone() else {
            return Err(RestoreError::Invalid("an object has no type"));
        };
        let revision = self.own_revision(revision);
        let stored = self.encryption.encrypt(&type_name, &draft).map_err(RestoreError::Source)?;
        let encrypted = match stored {
            None => None,
            Some(StoredDraft { bytes: content, key_id: Some(_) }) => Some(EncryptedRecord {
                hidden_key: self.encryption.hidden_key(&type_name, &draft.key),
                content,
            }),
            // In clear text it would be legible.
            Some(StoredDraft { key_id: None, .. }) => {
                return Err(RestoreError::Invalid("an object has no key"));
            }
        };
        let operation = Operation::Create(Arc::new(Object::new(draft, revision)));
        Record { operation, accepted_at, encrypted }.encode(id, revision, &mut self.bytes);
        self.totals.records += 1;
        Ok(Entry::Record(revision, &self.bytes))
    }
}

impl<N: FnMut() -> Result<Option<NewEntry>, String>> Entries for NewEntries<'_, N> {
    fn next(&mut self) -> Result<Entry<'_>, RestoreError> {
        match (self.next)().map_err(RestoreError::Source)? {
            Some(NewEntry::Type(name)) => self.begin_type(name),
            Some(NewEntry::Object { draft, revision, written }) => self.add(draft, revision, written),
            None => Ok(Entry::End(self.totals)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use pilothouse_types::object::{Key, Pairs};

    use super::*;
    use crate::encryption::NoEncryption;
    use crate::engine::masking::MaskingEncryption;
    use crate::engine::redb::{Redb, StoppedStore};
    use crate::log_time::LogTime;
    use crate::recover::recover;

    fn draft(name: &str) -> Draft {
        Draft {
            key: Key::namespaced("n", name),
            bytes: Bytes::from_static(br#"{"resourceVersion":""}"#),
            revision_offset: 20,
            item_offset: 1,
            labels: Pairs::default(),
            fields: Pairs::default(),
        }
    }

    fn object(name: &str, revision: u64) -> NewEntry {
        let written = WriteTime { log: LogTime(7), ..WriteTime::default() };
        NewEntry::Object { draft: draft(name), revision: Revision(revision), written }
    }

    fn create_from(
        path: &Path,
        encryption: &dyn Encryption,
        entries: Vec<NewEntry>,
    ) -> Result<Restored, RestoreError> {
        let mut entries = entries.into_iter();
        create(path, Revision(1_000), encryption, || Ok(entries.next()))
    }

    fn type_entry(name: &str) -> NewEntry {
        NewEntry::Type(TypeName::new(name))
    }

    #[test]
    fn store_has_the_objects_and_no_history() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        // In the order of keys; two were written in one transaction.
        let entries = vec![
            type_entry("pods"),
            object("a", 30),
            object("b", 20),
            object("c", 30),
            type_entry("nodes"),
            object("a", 30),
        ];
        let restored = create_from(&path, &NoEncryption, entries).unwrap();
        assert_eq!(
            (restored.totals, restored.first_revision),
            (Totals { types: 2, records: 4 }, Revision(1_000))
        );
        let mut engine = Redb::open(&path).unwrap();
        let recovered = recover(&mut engine, Duration::from_secs(99), 1 << 20).unwrap();
        let pods = &recovered.types[&TypeName::new("pods")];
        let live: Vec<_> =
            pods.snapshot.iter().map(|object| (object.key.name(), object.revision.0)).collect();
        assert_eq!(live, [("a", 30), ("b", 20), ("c", 999)]);
        assert_eq!((pods.last, pods.window.floor()), (Revision(1_000), Revision(1_000)));
        assert_eq!(recovered.newest, LogTime(7));
    }

    #[test]
    fn live_objects_of_a_new_store_are_read_in_pages() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        let count = crate::limits::LIVE_PAGE_OBJECTS + 1;
        let objects = (0..count).map(|number| object(&number.to_string(), 2 + number as u64));
        let entries = std::iter::once(type_entry("pods")).chain(objects).collect();
        let encryption = MaskingEncryption::default();
        create_from(&path, &encryption, entries).unwrap();
        let store = StoppedStore::open(&path).unwrap();
        let live = store.live_objects().unwrap();
        assert_eq!((live.types.len(), live.types[0].len(), live.newest), (1, count, LogTime(7)));
        let page = store.read_live(&live.types[0], 0, &encryption).unwrap();
        assert_eq!(page.len(), count - 1);
        let last = store.read_live(&live.types[0], count - 1, &encryption).unwrap();
        assert_eq!((last.len(), last[0].object.key.name()), (1, &*(count - 1).to_string()));
        let hidden = store.read_live(&live.types[0], 0, &NoEncryption).unwrap();
        assert!(hidden.iter().all(|live| !live.object.is_readable() && live.object.key.is_hidden()));
    }

    #[test]
    fn nothing_is_left_if_the_source_fails() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        let mut entries = vec![type_entry("pods"), object("a", 2)].into_iter();
        let failed = create(&path, Revision(1_000), &NoEncryption, || {
            entries.next().map(Some).ok_or_else(|| "interrupted".to_owned())
        });
        assert_eq!(failed.unwrap_err().to_string(), "interrupted");
        let twice = vec![type_entry("pods"), type_entry("nodes"), type_entry("pods")];
        let twice = create_from(&path, &NoEncryption, twice).unwrap_err();
        assert!(twice.to_string().contains("a type comes twice"), "{twice}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        create_from(&path, &NoEncryption, Vec::new()).unwrap();
        let exists = create_from(&path, &NoEncryption, Vec::new()).unwrap_err();
        assert!(matches!(exists, RestoreError::Exists(_)), "{exists}");
    }
}
