//! Writes what was saved into a new file.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use pilothouse_types::object::{Key, Object, Revision, TypeName};

use super::super::backup::{Entries, NewPlace, OldStore, RestoreError, Restored, restore_entries};
use super::ledger::Place;
use super::log_reader::Remains;
use super::{Finding, FindingKind, LiveRecord, Salvage};
use crate::backup::{BackedUpType, Entry, Totals};
use crate::encryption::Encryption;
use crate::engine::record::{Operation, RecordDecoder};

/// How often a record that could be read is read again before it is given up.
const READS: usize = 3;
/// What is said of an object whose record is given up.
const UNREADABLE_NOW: &str = "its last state could be read at first, and then could not";

/// What a repair takes over besides what is certain and readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Objects of which nobody knows whether they are current.
    pub uncertain: bool,
    /// Objects that cannot be read. A server reports them as such, and what they guard stays closed.
    pub unreadable: bool,
}

impl Kept {
    fn has(self, record: &LiveRecord) -> bool {
        (self.uncertain || !record.is_uncertain) && (self.unreadable || record.is_readable)
    }
}

/// Writes the live objects of a store into a new file at `path`, as [`restore`](super::super::restore) does it: all types go on above
/// `first_revision`, and the history before is closed. Records are copied as they are. With `aside`, the store that was read must be the
/// one at `path`, and keeps that name.
///
/// A disk may not return the same bytes twice. What cannot be copied is added to the losses, and each of them says what became of its
/// object.
pub fn repair(
    salvage: &mut Salvage,
    kept: Kept,
    path: &Path,
    aside: Option<&Path>,
    first_revision: Revision,
) -> Result<Restored, RestoreError> {
    let old = aside.map(|aside| OldStore { file: &salvage.file, aside });
    let place = NewPlace { path, old, owner: Some(salvage.file.owner()) };
    let (totals, bytes, outcome) = (Totals::default(), Vec::new(), Outcome::default());
    let mut copy = Copy { salvage: &*salvage, kept, position: None, totals, bytes, outcome };
    let restored = restore_entries(&place, &mut copy, |highest| first_revision.max(highest))?;
    let outcome = copy.outcome;
    salvage.note(outcome);
    Ok(restored)
}

/// What became of the objects that are not simply saved.
#[derive(Default)]
struct Outcome {
    /// Objects in doubt that are in the new store: the index of their type, and their revision.
    saved: HashSet<(usize, u64)>,
    /// Objects that could be read at first, and then could not.
    lost: Vec<(usize, LiveRecord)>,
}

impl Salvage {
    /// Says in the losses what a repair has done.
    fn note(&mut self, outcome: Outcome) {
        let Outcome { saved, mut lost } = outcome;
        let indexes: HashMap<&TypeName, usize> =
            self.types.iter().enumerate().map(|(index, saved)| (&saved.name, index)).collect();
        let lost_now: HashMap<(usize, u64), bool> =
            lost.iter().map(|(index, record)| ((*index, record.revision), record.is_readable)).collect();
        let mut is_listed = HashSet::new();
        for finding in &mut self.losses {
            if !matches!(finding.kind, FindingKind::LostObject | FindingKind::Uncertain) {
                continue;
            }
            let index = finding.type_name.as_ref().and_then(|name| indexes.get(name));
            let Some(place) = index.copied().zip(finding.revisions.as_ref().map(|range| *range.start()))
            else {
                continue;
            };
            finding.is_saved = Some(saved.contains(&place));
            if let Some(was_readable) = lost_now.get(&place) {
                is_listed.insert(place);
                if *was_readable {
                    (finding.kind, finding.detail) = (FindingKind::LostObject, UNREADABLE_NOW.to_owned());
                }
            }
        }
        lost.retain(|(index, record)| !is_listed.contains(&(*index, record.revision)));
        for (index, record) in lost {
            let name = self.types.get(index).map(|saved| saved.name.clone());
            let revisions = record.revision..=record.revision;
            let finding = Finding::of_type(FindingKind::LostObject, &name, revisions, UNREADABLE_NOW);
            self.losses.push(Finding { is_saved: Some(false), ..finding.with_key(&record.key) });
        }
    }

    /// Passes on every object that a repair would save and that can be read, also decrypted; `None` for one that cannot be decrypted.
    pub fn for_each_object(
        &self,
        kept: Kept,
        encryption: &dyn Encryption,
        mut visit: impl FnMut(&TypeName, Option<&Object>),
    ) {
        for saved in &self.types {
            let decoder = RecordDecoder::new(saved.id, &saved.name, encryption);
            for record in saved.live.iter().filter(|record| record.is_readable && kept.has(record)) {
                let (revision, bytes) = (Revision(record.revision), self.record(record));
                if !matches!(Remains::read(saved.id, revision, &bytes), Remains::Whole(_)) {
                    continue;
                }
                let decoded = decoder.decode(revision, &bytes);
                match decoded.map(|record| record.operation) {
                    Ok(Operation::Create(object) | Operation::Replace(object, _)) => {
                        visit(&saved.name, Some(&*object).filter(|object| object.is_readable()));
                    }
                    Ok(Operation::Remove(..) | Operation::AdvanceRevision(_)) => {}
                    Err(_) => visit(&saved.name, None),
                }
            }
        }
    }

    /// Puts real keys in the place of hidden ones, as far as objects can be decrypted.
    pub fn reveal_keys(&mut self, encryption: &dyn Encryption) {
        let is_hidden =
            |finding: &Finding| finding.key.as_deref().is_some_and(|key| Key::HIDDEN.contains(&key));
        if !self.losses.iter().any(is_hidden) {
            return;
        }
        let mut keys: HashMap<(TypeName, u64), String> = HashMap::new();
        let all = Kept { uncertain: true, unreadable: false };
        self.for_each_object(all, encryption, |name, object| {
            let Some(object) = object else { return };
            keys.insert((name.clone(), object.revision.0), object.key.as_str().to_owned());
        });
        for finding in self.losses.iter_mut().filter(|finding| is_hidden(finding)) {
            let place = finding.type_name.clone().zip(finding.revisions.as_ref().map(|range| *range.start()));
            if let Some(key) = place.and_then(|place| keys.remove(&place)) {
                finding.key = Some(key);
            }
        }
    }

    pub(super) fn record(&self, record: &LiveRecord) -> Vec<u8> {
        let Place { offset, length } = record.place;
        self.file.read(offset..offset + length as u64)
    }
}

/// A copy in progress.
struct Copy<'a> {
    salvage: &'a Salvage,
    kept: Kept,
    /// The type that is being copied, and its next record; `None` before the first type.
    position: Option<(usize, usize)>,
    totals: Totals,
    bytes: Vec<u8>,
    outcome: Outcome,
}

impl Copy<'_> {
    /// Reads a record again, and says whether it is still what it was taken for.
    fn read(&mut self, type_id: u32, record: &LiveRecord) -> bool {
        for _ in 0..READS {
            self.bytes = self.salvage.record(record);
            match Remains::read(type_id, Revision(record.revision), &self.bytes) {
                Remains::Whole(_) => return true,
                Remains::Head(_) if !record.is_readable => return true,
                Remains::Head(_) | Remains::Nothing => {}
            }
        }
        false
    }

    /// Reads the next record of this type that can be copied, and returns its revision.
    fn next_record(&mut self) -> Option<u64> {
        let salvage = self.salvage;
        let (index, mut at) = self.position?;
        let saved = salvage.types.get(index)?;
        while let Some(record) = saved.live.get(at) {
            at += 1;
            self.position = Some((index, at));
            if !self.kept.has(record) {
                continue;
            }
            if self.read(saved.id, record) {
                if record.is_uncertain || !record.is_readable {
                    self.outcome.saved.insert((index, record.revision));
                }
                return Some(record.revision);
            }
            self.outcome.lost.push((index, record.clone()));
        }
        None
    }
}

impl Entries for Copy<'_> {
    fn next(&mut self) -> Result<Entry<'_>, RestoreError> {
        if let Some(revision) = self.next_record() {
            self.totals.records += 1;
            return Ok(Entry::Record(Revision(revision), &self.bytes));
        }
        let next_type = self.position.map_or(0, |(index, _)| index + 1);
        self.position = Some((next_type, 0));
        let Some(saved) = self.salvage.types.get(next_type) else { return Ok(Entry::End(self.totals)) };
        self.totals.types += 1;
        Ok(Entry::Type(BackedUpType { id: saved.id, name: saved.name.clone(), last: saved.last }))
    }
}
