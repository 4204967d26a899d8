//! Stores with random histories and random damage: what is saved, and what is listed.

mod repairs;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pilothouse_types::object::{Draft, Key, Object, Pairs};
use proptest::prelude::*;
use proptest::sample::Index;

use super::super::Redb;
use super::*;
use crate::engine::masking::MaskingEncryption;
use crate::engine::record::{EncryptedRecord, Operation, Record, RecordDecoder};
use crate::engine::{Batch, Engine as _, Write};
use crate::log_time::{LogTime, WriteTime};
use crate::recover::{State, recover};

const TYPES: [&str; 3] = ["pods", "configmaps", "leases.coordination.k8s.io"];
/// Events that are still in the history of a type: what earlier ones superseded has left the log.
const HISTORY: usize = 8;
const ALL: Kept = Kept { uncertain: true, unreadable: false };

/// An object of a type: its index in [`TYPES`], and its key.
type Id = (usize, String);
/// A version: its revision and its bytes.
type Version = (u64, Bytes);

/// What was written.
#[derive(Clone, Debug, Default)]
struct Model {
    live: BTreeMap<Id, Version>,
    /// All versions, also those that are written later.
    ever: BTreeMap<(usize, u64), (String, Bytes)>,
    last: [u64; TYPES.len()],
    /// What may leave the log when the event before it leaves the history.
    events: [VecDeque<Vec<u64>>; TYPES.len()],
}

/// One write: the type, the object, whether it is removed if it lives, and the size of its body.
#[derive(Clone, Debug)]
struct Choice {
    of_type: usize,
    object: usize,
    removes: bool,
    is_step: bool,
    /// Whether the key and the content are encrypted, whatever the earlier versions are.
    is_encrypted: bool,
    size: usize,
}

fn encryption() -> MaskingEncryption {
    MaskingEncryption::default()
}

fn choices() -> impl Strategy<Value = Vec<Choice>> {
    let size = prop_oneof![8 => 0usize..1_500, 1 => 5_000usize..40_000];
    let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.05), any::<bool>());
    let choice = (0..TYPES.len(), 0usize..30, flags, size);
    let choice = choice.prop_map(|(of_type, object, (removes, is_step, is_encrypted), size)| {
        // One type is never encrypted.
        let is_encrypted = is_encrypted && of_type > 0;
        Choice { of_type, object, removes, is_step, is_encrypted, size }
    });
    prop::collection::vec(choice, 80..240)
}

impl Model {
    /// The next write.
    fn write(&mut self, choice: &Choice) -> Write {
        let Choice { of_type, object, removes, is_step, is_encrypted, size } = choice;
        let last = self.last.get_mut(*of_type).unwrap();
        if *last == 0 {
            *last = 1;
        }
        // A rolled back write leaves a gap, which a step closes.
        let after = *last;
        *last += if *is_step { 3 } else { 1 };
        let revision = *last;
        let id = (*of_type, format!("default/o{object}"));
        let key = Key::from_path(&id.1);
        let body = format!(r#"{{"resourceVersion":"","x":"{}"}}"#, "x".repeat(*size));
        let draft = Draft {
            key: key.clone(),
            bytes: Bytes::from(body),
            revision_offset: 20,
            item_offset: 1,
            labels: Pairs::from_iter([("app", "a")]),
            fields: Pairs::default(),
        };
        let type_name = TypeName::new(TYPES[*of_type]);
        let encrypted = (*is_encrypted && !is_step).then(|| EncryptedRecord {
            hidden_key: encryption().hidden_key(&type_name, &key),
            content: encryption().encrypt(&type_name, &draft).unwrap().unwrap().bytes,
        });
        let object = Arc::new(Object::new(draft, Revision(revision)));
        let before = self.live.get(&id).map(|(revision, _)| *revision);
        let (operation, freed) = match before {
            _ if *is_step => (Operation::AdvanceRevision(Revision(after)), vec![revision]),
            Some(before) if *removes => (Operation::Remove(key, Revision(before)), vec![before, revision]),
            Some(before) => (Operation::Replace(Arc::clone(&object), Revision(before)), vec![before]),
            None => (Operation::Create(Arc::clone(&object)), vec![]),
        };
        self.events.get_mut(*of_type).unwrap().push_back(freed);
        match &operation {
            Operation::Remove(..) => drop(self.live.remove(&id)),
            Operation::AdvanceRevision(_) => {}
            Operation::Create(_) | Operation::Replace(..) => {
                self.ever.insert((*of_type, revision), (id.1.clone(), object.bytes.clone()));
                self.live.insert(id, (revision, object.bytes.clone()));
            }
        }
        let accepted_at = WriteTime { log: LogTime(revision), ..WriteTime::default() };
        let record = Record { operation, accepted_at, encrypted };
        Write { type_name, revision: Revision(revision), record }
    }

    fn trims(&mut self) -> Vec<(TypeName, Revision)> {
        let mut trims = Vec::new();
        for (name, events) in TYPES.iter().zip(&mut self.events) {
            while events.len() > HISTORY {
                let freed = events.pop_front().unwrap();
                trims.extend(freed.into_iter().map(|revision| (TypeName::new(name), Revision(revision))));
            }
        }
        trims
    }
}

/// A store in a file, as it was at several moments, the last one closed.
struct Stored {
    /// Each with what was in it then.
    images: Vec<(Vec<u8>, Model)>,
}

impl Stored {
    fn new(path: &Path, choices: &[Choice]) -> Stored {
        let mut engine = Box::new(Redb::open(path).unwrap());
        let (mut model, mut images) = (Model::default(), Vec::new());
        for batch in choices.chunks(12) {
            let writes = batch.iter().map(|choice| model.write(choice)).collect();
            engine.commit(&Batch { writes, trims: model.trims() }).unwrap();
            images.push((fs::read(path).unwrap(), model.clone()));
        }
        engine.close(LogTime(1_000)).unwrap();
        images.push((fs::read(path).unwrap(), model.clone()));
        fs::remove_file(path).unwrap();
        for (_, earlier) in &mut images {
            earlier.ever.clone_from(&model.ever);
        }
        Stored { images }
    }

    /// The closed file, and what is in it.
    fn closed(&self) -> &(Vec<u8>, Model) {
        self.images.last().unwrap()
    }
}

/// The index of a name; of a damaged one, that of none.
fn name_index(name: &TypeName) -> usize {
    TYPES.iter().position(|known| *known == name.as_str()).unwrap_or(TYPES.len())
}

/// What is saved, by the places that the salvage has of it.
fn saved(salvage: &Salvage) -> BTreeMap<Id, Version> {
    let mut saved = BTreeMap::new();
    salvage.for_each_object(ALL, &encryption(), |name, object| {
        let object = object.expect("the key is known");
        let version = (object.revision.0, object.bytes.clone());
        let twice = saved.insert((name_index(name), object.key.as_str().to_owned()), version);
        assert!(twice.is_none(), "each object is saved once");
    });
    saved
}

fn hidden_key(id: &Id) -> String {
    let name = TypeName::new(TYPES.get(id.0).copied().unwrap_or_default());
    encryption().hidden_key(&name, &Key::from_path(&id.1)).as_str().to_owned()
}

/// Whether a finding of this kind covers an object at a revision.
fn is_listed(salvage: &Salvage, kind: FindingKind, id: &Id, revision: u64) -> bool {
    salvage.losses.iter().any(|finding| {
        finding.kind == kind
            && finding.type_name.as_ref().is_some_and(|name| name_index(name) == id.0)
            && finding.key.as_ref().is_none_or(|key| *key == id.1 || *key == hidden_key(id))
            && (finding.key.is_some()
                || finding.revisions.as_ref().is_some_and(|range| range.contains(&revision)))
    })
}

/// Checks what must hold for every damage. Returns the live objects that are not saved as they were.
fn check_laws(salvage: &Salvage, model: &Model) -> Result<Vec<Id>, TestCaseError> {
    let saved = saved(salvage);
    let may_miss_all = salvage
        .losses
        .iter()
        .any(|finding| matches!(finding.kind, FindingKind::Transaction | FindingKind::LostType));
    let mut differing = Vec::new();
    for (id, (revision, bytes)) in &saved {
        if id.0 == TYPES.len() {
            prop_assert!(may_miss_all && is_listed(salvage, FindingKind::Uncertain, id, *revision), "{id:?}");
            continue;
        }
        let written = model.ever.get(&(id.0, *revision));
        prop_assert_eq!(written, Some(&(id.1.clone(), bytes.clone())), "nothing is invented: {:?}", id);
        if model.live.get(id) != Some(&(*revision, bytes.clone())) {
            let is_listed = may_miss_all || is_listed(salvage, FindingKind::Uncertain, id, *revision);
            prop_assert!(
                is_listed,
                "{id:?} at {revision} is old and not listed: {:?} {:?}",
                salvage.losses,
                salvage.damage
            );
            differing.extend(Some(id.clone()).filter(|id| model.live.contains_key(id)));
        }
    }
    for (id, (revision, _)) in model.live.iter().filter(|(id, _)| !saved.contains_key(*id)) {
        let kinds = [FindingKind::LostObject, FindingKind::LostRecords];
        let is_listed = may_miss_all || kinds.iter().any(|kind| is_listed(salvage, *kind, id, *revision));
        prop_assert!(
            is_listed,
            "{id:?} at {revision} is lost and not listed: {:?} {:?}",
            salvage.losses,
            salvage.damage
        );
        differing.push(id.clone());
    }
    if salvage.is_whole() && salvage.losses.is_empty() {
        prop_assert!(differing.is_empty(), "not noticed: {differing:?}");
    }
    Ok(differing)
}

/// Makes a new store of what was saved, and reads it as a server would.
fn repaired(salvage: &mut Salvage, path: &Path) -> BTreeMap<Id, Version> {
    let first = Revision(salvage.highest.0 + 1_000);
    let restored = repair(salvage, ALL, path, None, first).unwrap();
    assert_eq!(restored.first_revision, first);
    let objects = served(path, |state| {
        assert_eq!((state.window.floor(), state.window.head()), (first, first), "the history is closed");
    });
    let again = open(path);
    assert!(again.is_whole() && again.losses.is_empty(), "{:?} {:?}", again.damage, again.losses);
    drop(again);
    fs::remove_file(path).unwrap();
    let _none = fs::remove_file(path.with_extension("reserve"));
    objects
}

/// What a server has that starts on this file.
fn served(path: &Path, mut check: impl FnMut(&State)) -> BTreeMap<Id, Version> {
    let mut engine = Redb::open(path).unwrap().with_encryption(Arc::new(encryption()));
    let recovered = recover(&mut engine, Duration::MAX, 1 << 20).unwrap();
    let mut objects = BTreeMap::new();
    for (name, state) in &recovered.types {
        check(state);
        for object in state.snapshot.iter() {
            let id = (name_index(name), object.key.as_str().to_owned());
            objects.insert(id, (object.revision.0, object.bytes.clone()));
        }
    }
    objects
}

fn open(path: &Path) -> Salvage {
    let mut salvage = Salvage::read(path, &encryption()).unwrap();
    salvage.reveal_keys(&encryption());
    salvage
}

fn read(path: &Path, bytes: &[u8]) -> Salvage {
    fs::write(path, bytes).unwrap();
    open(path)
}

/// The offsets of bytes that are not zero: others are hardly used.
fn used(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len()).filter(|offset| bytes[*offset] != 0).collect()
}

/// The pages in which anything is.
fn used_pages(bytes: &[u8]) -> Vec<usize> {
    let page = PAGE;
    (0..bytes.len() / page)
        .filter(|index| bytes[index * page..][..page].iter().any(|byte| *byte != 0))
        .collect()
}

const PAGE: usize = super::super::pages::PAGE_BYTES as usize;
/// The byte of the header that says which transaction counts.
const GOD_BYTE: usize = 9;

/// The objects whose newest record lies in these bytes of the file, or in the same large page.
fn objects_in(intact: &Salvage, bytes: std::ops::Range<usize>) -> Vec<Id> {
    let (mut objects, encryption) = (Vec::new(), encryption());
    for saved in &intact.types {
        for record in &saved.live {
            let start = usize::try_from(record.place.offset).unwrap();
            if start < bytes.end && bytes.start < start + record.place.length {
                let decoder = RecordDecoder::new(saved.id, &saved.name, &encryption);
                let record = decoder.decode(Revision(record.revision), &intact.record(record)).unwrap();
                objects.push((name_index(&saved.name), record.key().to_owned()));
            }
        }
    }
    objects
}

/// Histories with each test run; `PILOTHOUSE_FUZZ_CASES` sets another number.
const CASES: u32 = 6;

fn config() -> ProptestConfig {
    let configured = std::env::var("PILOTHOUSE_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(configured.unwrap_or(CASES)) }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn whole_store_has_no_findings_at_any_moment(choices in choices()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        for (bytes, model) in Stored::new(&path, &choices).images {
            let salvage = read(&path, &bytes);
            prop_assert!(salvage.is_whole() && salvage.losses.is_empty(), "{:?} {:?}", salvage.damage, salvage.losses);
            prop_assert_eq!(&saved(&salvage), &model.live);
            prop_assert_eq!(fs::read(&path).unwrap(), bytes, "nothing is written");
        }
    }

    #[test]
    fn flipped_byte_costs_one_object_or_one_page(choices in choices(), flips in prop::collection::vec((any::<Index>(), 1u8..), 24)) {
        let folder = tempfile::tempdir().unwrap();
        let (path, to) = (folder.path().join("log"), folder.path().join("new"));
        let stored = Stored::new(&path, &choices);
        let (bytes, model) = stored.closed();
        fs::write(&path, bytes).unwrap();
        let intact = open(&path);
        let broken = folder.path().join("broken");
        let used = used(bytes);
        for (index, (at, mask)) in flips.iter().enumerate() {
            let at = *at.get(&used);
            let mut damaged = bytes.clone();
            damaged[at] ^= mask;
            let mut salvage = read(&broken, &damaged);
            let differing = check_laws(&salvage, model)?;
            let hit = objects_in(&intact, at..at + 1);
            if hit.is_empty() {
                // In the numbers of a page.
                let page = at / PAGE * PAGE;
                let possible = objects_in(&intact, page..page + PAGE);
                prop_assert!(differing.iter().all(|id| possible.contains(id)), "byte {at}: {differing:?}");
            } else {
                prop_assert_eq!(&differing, &hit, "byte {}", at);
                let uncertain = salvage.losses.iter().filter(|finding| finding.kind == FindingKind::Uncertain).count();
                // If not even its head can be read, it may have been the next state of an older object.
                let is_named = salvage.losses.iter().any(|finding| finding.kind == FindingKind::LostObject);
                prop_assert!(!is_named || uncertain == 0, "byte {at}: {:?}", salvage.losses);
            }
            if index % 8 == 0 {
                prop_assert_eq!(repaired(&mut salvage, &to), saved(&salvage));
            }
        }
    }

    #[test]
    fn lost_page_costs_what_is_in_it(choices in choices(), pages in prop::collection::vec((any::<Index>(), any::<u8>()), 16)) {
        let folder = tempfile::tempdir().unwrap();
        let (path, to) = (folder.path().join("log"), folder.path().join("new"));
        let stored = Stored::new(&path, &choices);
        let (bytes, model) = stored.closed();
        fs::write(&path, bytes).unwrap();
        let intact = open(&path);
        let broken = folder.path().join("broken");
        let used = used_pages(bytes);
        for (index, (page, fill)) in pages.iter().enumerate() {
            let page = page.get(&used) * PAGE;
            let mut damaged = bytes.clone();
            damaged[page..page + PAGE].fill(*fill);
            let mut salvage = read(&broken, &damaged);
            let differing = check_laws(&salvage, model)?;
            let possible = objects_in(&intact, page..page + PAGE);
            prop_assert!(differing.iter().all(|id| possible.contains(id)), "page {page}: {differing:?} of {possible:?} {:?} {:?}", salvage.losses, salvage.damage);
            if index % 8 == 0 {
                prop_assert_eq!(repaired(&mut salvage, &to), saved(&salvage));
            }
        }
    }

    /// Pages that a disk has not written, although it said so, and pages that it has written elsewhere: each is right by itself.
    #[test]
    fn old_or_misplaced_pages_are_never_taken_for_current(
        choices in choices(),
        pages in prop::collection::vec((any::<Index>(), any::<Index>(), any::<Index>(), any::<bool>()), 16),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let stored = Stored::new(&path, &choices);
        for (image, source, page, is_misplaced) in &pages {
            let (bytes, model) = image.get(&stored.images);
            let (older, _) = source.get(&stored.images);
            let used = used_pages(bytes);
            let mut damaged = bytes.clone();
            let page = page.get(&used) * PAGE;
            let from = if *is_misplaced { source.get(&used) * PAGE } else { page };
            // A file with the header of an earlier transaction, all of whose pages are still there, is that earlier file.
            if (page, from) == (0, 0) {
                continue;
            }
            let Some(content) = older.get(from..from + PAGE) else { continue };
            damaged[page..page + PAGE].copy_from_slice(content);
            check_laws(&read(&path, &damaged), model)?;
        }
    }

    /// A crash while a transaction is written is no damage: as a server would, the reader takes the transaction before.
    #[test]
    fn torn_transaction_is_left_out_and_named(choices in choices(), pages in prop::collection::vec((any::<Index>(), any::<Index>()), 24)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let stored = Stored::new(&path, &choices);
        let crashes: Vec<_> = stored.images[..stored.images.len() - 1].windows(2).collect();
        for (moment, page) in &pages {
            let [(before, older), (after, newer)] = moment.get(&crashes) else { panic!("two moments") };
            let is_written = |page: &usize| before.get(page * PAGE..(page + 1) * PAGE) != after.get(page * PAGE..(page + 1) * PAGE);
            let written: Vec<usize> = (1..after.len() / PAGE).filter(is_written).collect();
            let mut torn = after.clone();
            torn[page.get(&written) * PAGE..][..PAGE].fill(0);
            let salvage = read(&path, &torn);
            prop_assert!(salvage.is_whole(), "{:?}", salvage.damage);
            match salvage.losses.as_slice() {
                [] => prop_assert_eq!(&saved(&salvage), &newer.live),
                [finding] => {
                    prop_assert_eq!(finding.kind, FindingKind::Transaction);
                    prop_assert_eq!(&saved(&salvage), &older.live);
                }
                losses => prop_assert!(false, "{losses:?}"),
            }
        }
    }

    /// A commit in two phases says when it is complete. redb takes nothing that is newer, however whole it looks, and so does the reader.
    #[test]
    fn transaction_after_one_in_two_phases_is_left_out_and_named(choices in choices(), pages in prop::collection::vec((any::<Index>(), any::<Index>(), any::<bool>()), 12)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let stored = Stored::new(&path, &choices);
        let crashes: Vec<_> = stored.images[..stored.images.len() - 1].windows(2).collect();
        for (moment, page, is_torn) in &pages {
            let [(before, older), (after, _)] = moment.get(&crashes) else { panic!("two moments") };
            let is_written = |page: &usize| before.get(page * PAGE..(page + 1) * PAGE) != after.get(page * PAGE..(page + 1) * PAGE);
            let written: Vec<usize> = (1..after.len() / PAGE).filter(is_written).collect();
            let mut ended = after.clone();
            // As if the transaction before had two phases, and the first phase of this one were on the disk.
            ended[GOD_BYTE] = (ended[GOD_BYTE] ^ 1) | 4;
            // The file becomes shorter last of all.
            ended.extend(before.get(after.len()..).unwrap_or_default());
            if *is_torn {
                ended[page.get(&written) * PAGE..][..PAGE].fill(0);
            }
            let salvage = read(&path, &ended);
            prop_assert!(salvage.is_whole(), "{:?}", salvage.damage);
            prop_assert_eq!(&saved(&salvage), &older.live);
            let kinds: Vec<FindingKind> = salvage.losses.iter().map(|finding| finding.kind).collect();
            prop_assert_eq!(kinds, [FindingKind::Transaction]);
            drop(salvage);
            prop_assert_eq!(&served(&path, |_| ()), &older.live);
        }
    }

    /// However much is damaged: nothing panics, nothing is invented, and nothing old is silently current.
    #[test]
    fn heavy_damage_is_listed(
        choices in choices(),
        damages in prop::collection::vec((any::<Index>(), prop::collection::vec((any::<Index>(), 1usize..6_000, any::<u8>()), 1..12)), 12),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let stored = Stored::new(&path, &choices);
        for (image, damages) in &damages {
            let (bytes, model) = image.get(&stored.images);
            let used = used(bytes);
            let mut damaged = bytes.clone();
            for (at, length, fill) in damages {
                let at = *at.get(&used);
                let end = (at + length).min(bytes.len());
                damaged[at..end].fill(*fill);
            }
            fs::write(&path, &damaged).unwrap();
            match Salvage::read(&path, &encryption()) {
                Ok(salvage) => drop(check_laws(&salvage, model)?),
                Err(error) => prop_assert!(matches!(error, EngineError::Damaged(_)), "{error}"),
            }
        }
    }
}
