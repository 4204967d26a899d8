//! Writes what was saved into a new file.

use std::collections::HashMap;
use std::path::Path;

use pilothouse_types::object::{Key, Object, Revision, TypeName};

use super::super::backup::{Entries, RestoreError, Restored, restore_entries};
use super::ledger::Place;
use super::{Finding, LiveRecord, Salvage};
use crate::backup::{BackedUpType, Entry, Totals};
use crate::encryption::Encryption;
use crate::engine::record::{Operation, RecordDecoder};

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
/// `first_revision`, and the history before is closed. Records are copied as they are.
pub fn repair(
    salvage: &Salvage,
    kept: Kept,
    path: &Path,
    aside: Option<&Path>,
    first_revision: Revision,
) -> Result<Restored, RestoreError> {
    let copy = Copy { salvage, kept, position: None, totals: Totals::default(), bytes: Vec::new() };
    restore_entries(path, aside, copy, |highest| first_revision.max(highest))
}

impl Salvage {
    /// Passes on every object that a repair would save and that can be read, also decrypted.
    pub fn for_each_object(
        &self,
        kept: Kept,
        encryption: &dyn Encryption,
        mut visit: impl FnMut(&TypeName, &Object),
    ) {
        for saved in &self.types {
            let decoder = RecordDecoder::new(saved.id, &saved.name, encryption);
            for record in saved.live.iter().filter(|record| record.is_readable && kept.has(record)) {
                let decoded = decoder.decode(Revision(record.revision), &self.record(record));
                if let Ok(Operation::Create(object) | Operation::Replace(object, _)) =
                    decoded.map(|record| record.operation)
                    && object.is_readable()
                {
                    visit(&saved.name, &object);
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
}

impl Entries for Copy<'_> {
    fn next(&mut self) -> Result<Entry<'_>, RestoreError> {
        let next_type = match &mut self.position {
            None => 0,
            Some((index, next)) => {
                let live =
                    self.salvage.types.get(*index).map(|saved| saved.live.as_slice()).unwrap_or_default();
                let rest = live.get(*next..).unwrap_or_default();
                if let Some(skipped) = rest.iter().position(|record| self.kept.has(record))
                    && let Some(record) = rest.get(skipped)
                {
                    *next += skipped + 1;
                    self.totals.records += 1;
                    self.bytes = self.salvage.record(record);
                    return Ok(Entry::Record(Revision(record.revision), &self.bytes));
                }
                *index + 1
            }
        };
        self.position = Some((next_type, 0));
        let Some(saved) = self.salvage.types.get(next_type) else { return Ok(Entry::End(self.totals)) };
        self.totals.types += 1;
        Ok(Entry::Type(BackedUpType { id: saved.id, name: saved.name.clone(), last: saved.last }))
    }
}
