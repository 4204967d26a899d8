//! What a store file still holds, however damaged it is: for `pilothouse check`, and for `pilothouse repair`, which makes a new file of
//! it.
//!
//! Everything is read past redb (`pages.rs`), and the file is never written. A page counts as it was written only if its checksum and
//! those of all pages that lead to it are right. Records have checksums of their own, over their place as well, so they are looked for
//! in damaged pages too and, where pages are missing, in the whole file. Such a record was written once, but nobody knows whether it
//! was superseded or removed since. So each object is in one of three states:
//!
//! - its newest record is proven, and no later one is lost that could have changed it: it is saved as it was;
//! - its newest readable record is not proven, or a later record is lost: it is saved and named as uncertain;
//! - its newest record is known and cannot be read: it is named as lost. An older version never takes its place.
//!
//! A lost record can only concern an object whose version before it is still in the log. Superseded versions leave the log in the order
//! of history (`trim_queue.rs`), so a lost record that is older than the history casts no doubt on any other object.

mod conclusion;
mod copy;
mod finding;
mod ledger;
mod log_reader;
mod roots;
mod stray;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::Path;

use pilothouse_types::object::{Revision, TypeName};

pub use self::copy::{Kept, repair};
pub use self::finding::{Finding, FindingKind};

use self::conclusion::{Conclusion, Evidence};
use self::ledger::{Ledger, Place};
use self::log_reader::{LogContent, LogKey, Remains, log_key, split};
use self::roots::Root;
use self::tables::{Names, Tables};
use super::pages::{Header, PageFile, PageSet, Trust, read_header};
use super::{FORMAT, OLDEST_FORMAT};
use crate::encryption::Encryption;
use crate::engine::EngineError;

/// What a store file holds.
pub struct Salvage {
    file: PageFile,
    /// What the file says about itself.
    pub about: StoreAbout,
    /// The types whose names are known, by their ids.
    pub types: Vec<SavedType>,
    /// Everything in the file that is not as it was written.
    pub damage: Vec<Finding>,
    /// What a repair loses, and what it saves without knowing whether it is current.
    pub losses: Vec<Finding>,
    /// The highest revision that anything in the file names.
    pub highest: Revision,
}

/// What a store file says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreAbout {
    /// The format of the file, if it can be read.
    pub format: Option<u64>,
    /// The version of the server that gave the file its format, if it can be read.
    pub version: Option<String>,
    /// The size of the file.
    pub bytes: u64,
    /// Whether the last process that wrote it has closed it.
    pub is_clean: bool,
    /// The number of records that the log should have, if it can be read.
    pub expected_records: Option<u64>,
}

/// A type, as far as it can be read.
#[derive(Clone, Debug)]
pub struct SavedType {
    /// Its number in the log.
    pub id: u32,
    /// Its name.
    pub name: TypeName,
    /// Its counter, or the highest revision that is known.
    pub last: Revision,
    /// The number of its records, readable or not.
    pub records: u64,
    /// The bytes of its records.
    pub bytes: u64,
    /// The newest records of its live objects, by their revisions.
    live: Vec<LiveRecord>,
}

impl SavedType {
    /// The number of objects that can be read.
    pub fn objects(&self) -> u64 {
        self.live.iter().filter(|record| record.is_readable).count() as u64
    }
}

/// The newest record of a live object.
#[derive(Clone, Debug)]
struct LiveRecord {
    key: Box<str>,
    revision: u64,
    place: Place,
    is_readable: bool,
    is_uncertain: bool,
}

/// A reading of the file from one root.
struct Reading<'a> {
    root: &'a Root,
    /// Whether nothing newer was ever in the file, as far as anybody can say.
    is_newest: bool,
    /// The damage to redb's own tables.
    system: Vec<Finding>,
    tables: Tables,
    pages: PageSet,
    content: LogContent,
}

impl<'a> Reading<'a> {
    fn new(file: &PageFile, root: &'a Root, is_newest: bool) -> Reading<'a> {
        let mut pages = PageSet::new(file);
        let tables = Tables::read(file, root, &mut pages);
        let content = match &tables.log {
            Some(log) => LogContent::read(file, log.tree, &mut pages),
            None => LogContent::lost(),
        };
        let system = tables::damage_of_redb(file, root.system);
        Reading { root, is_newest, system, tables, pages, content }
    }

    fn is_whole(&self) -> bool {
        self.root.damaged.is_empty()
            && self.system.is_empty()
            && self.tables.damaged.is_empty()
            && self.content.damaged.is_empty()
    }

    /// Whether what cannot be read is known record by record: nothing but records is damaged, and no record is missing.
    fn is_exact(&self) -> bool {
        let content = &self.content;
        content.damaged.is_empty()
            || self.is_newest
                && content.has_only_damaged_records
                && self.tables.expected_records() == Some(content.slots)
    }

    /// The keys between which anything may have been.
    fn lost_keys(&self) -> Vec<RangeInclusive<LogKey>> {
        if self.is_exact() {
            return Vec::new();
        }
        self.content.damaged.iter().map(|page| page.keys.clone()).collect()
    }

    /// What is known of a type beside its records.
    fn evidence(&self, id: u32, names: &Names, lost_keys: &[RangeInclusive<LogKey>]) -> Evidence {
        let counter = self.tables.counters.get(&id).copied();
        let bound = counter.filter(|_| self.is_newest);
        let bad = self.content.bad.iter();
        Evidence {
            id,
            name: names.get(id),
            counter,
            is_newest: self.is_newest,
            is_exact: self.is_exact(),
            lost: lost_keys.iter().filter_map(|keys| revisions_within(id, keys, bound)).collect(),
            bad: bad.filter_map(|bad| Some((revisions_within(id, &bad.keys, bound)?, bad.count))).collect(),
            first: self.tables.first_revision.filter(|_| self.is_newest),
        }
    }

    /// Adds the records of pages that no tree leads to, where something is missing.
    fn add_stray(&mut self, file: &PageFile) {
        let lost = self.lost_keys();
        if lost.is_empty() && self.is_newest {
            return;
        }
        let (tables, is_newest) = (&self.tables, self.is_newest);
        let is_wanted = |key: LogKey| {
            let (type_id, revision) = split(key);
            let counter = tables.counters.get(&type_id).copied();
            match is_newest {
                // What is later was never committed.
                true => {
                    counter.is_none_or(|counter| revision <= counter)
                        && lost.iter().any(|keys| keys.contains(&key))
                }
                false => {
                    counter.is_none_or(|counter| revision > counter)
                        || lost.iter().any(|keys| keys.contains(&key))
                }
            }
        };
        let ledgers = &mut self.content.ledgers;
        ledgers.values_mut().for_each(Ledger::sort);
        let mut found: BTreeMap<LogKey, (Remains, Place)> = BTreeMap::new();
        stray::find_records(file, &self.pages, is_wanted, |key, remains, place| {
            let (type_id, revision) = split(key);
            let is_known = ledgers.get(&type_id).is_some_and(|ledger| ledger.has(revision));
            // A revision of a transaction that was not completed was given again, to a later write.
            let is_later =
                found.get(&key).is_none_or(|(known, _)| known.accepted_at() < remains.accepted_at());
            if !is_known && is_later {
                found.insert(key, (remains, place));
            }
        });
        for (key, (remains, place)) in found {
            let (type_id, revision) = split(key);
            ledgers.entry(type_id).or_default().add(revision, &remains, place, Trust::Stray);
        }
    }
}

impl Salvage {
    /// Reads a file. No server can open it as long as the result exists. `encryption` says what stands for keys.
    pub fn read(path: &Path, encryption: &dyn Encryption) -> Result<Salvage, EngineError> {
        Salvage::read_file(PageFile::open(path)?, path, encryption)
    }

    /// The same for a file in whose place a repair puts a new one: nobody else can open it, so no other repair replaces it meanwhile.
    pub fn read_alone(path: &Path, encryption: &dyn Encryption) -> Result<Salvage, EngineError> {
        Salvage::read_file(PageFile::open_alone(path)?, path, encryption)
    }

    fn read_file(file: PageFile, path: &Path, encryption: &dyn Encryption) -> Result<Salvage, EngineError> {
        let header = read_header(&file);
        let roots = roots::find(&file, &header);
        let nothing = Root::default();
        let (mut reading, transaction) = choose(&file, &header, &roots, &nothing);
        reading.tables.check_format(&[OLDEST_FORMAT, FORMAT])?;
        reading.add_stray(&file);
        let names = Names::read(&file, &roots, reading.content.ledgers.keys().copied());
        if names.is_empty() && reading.content.ledgers.is_empty() && !reading.is_whole() {
            return Err(EngineError::Damaged(format!("nothing in {} can be read", path.display())));
        }
        let conclusion = conclude(&header, &mut reading, &names, transaction, encryption);
        let Conclusion { types, damage, losses, highest } = conclusion;
        let about = StoreAbout {
            format: reading.tables.format,
            version: reading.tables.version.clone(),
            bytes: file.len(),
            is_clean: header.is_clean,
            expected_records: reading.tables.expected_records(),
        };
        Ok(Salvage { file, about, types, damage, losses, highest })
    }

    /// Whether the file is as it was written.
    pub fn is_whole(&self) -> bool {
        self.damage.is_empty()
    }
}

/// Reads from the best root, and says what is left out by that.
fn choose<'a>(
    file: &PageFile,
    header: &Header,
    roots: &'a [Root],
    nothing: &'a Root,
) -> (Reading<'a>, Option<Finding>) {
    let root = roots.first().unwrap_or(nothing);
    let reading = Reading::new(file, root, root.is_newest);
    let is_torn = header.may_be_torn && header.has_newest && !(root.is_newest && reading.is_whole());
    let older = roots.iter().find(|root| is_torn && root.age == Some(1));
    if let Some(older) = older.map(|root| Reading::new(file, root, true)).filter(Reading::is_whole) {
        // A crash leaves this behind, too. redb starts from the older one, whatever the reason.
        let detail = "the newest transaction is not whole: either it was being written when the server ended, and then nobody was \
                      told that it succeeded, or its pages are damaged, and what it wrote is lost";
        return (older, Some(Finding::new(FindingKind::Transaction, detail)));
    }
    // And so it does here, where the header says that what is newer was never complete.
    let unfinished = (header.has_unfinished && root.age == Some(0)).then(|| {
        let detail = "the newest transaction was not complete: either it was being written when the server ended, and then nobody \
                      was told that it succeeded, or the header of the file is damaged, and what it wrote is lost";
        Finding::new(FindingKind::Transaction, detail)
    });
    (reading, unfinished)
}

/// Puts everything together that was read.
fn conclude(
    header: &Header,
    reading: &mut Reading<'_>,
    names: &Names,
    transaction: Option<Finding>,
    encryption: &dyn Encryption,
) -> Conclusion {
    let mut conclusion = Conclusion::default();
    let problems = header.problems.iter();
    conclusion
        .damage
        .extend(problems.map(|problem| Finding::new(FindingKind::Header, *problem).with_offset(Some(0))));
    conclusion.add_tables(&reading.tables, &reading.root.damaged, names);
    conclusion.damage.append(&mut reading.system);
    conclusion.losses.extend(transaction);
    if !reading.is_newest {
        let detail = "the newest transaction cannot be found: what it wrote may be missing, and what it deleted may be back";
        conclusion.damage.push(Finding::new(FindingKind::Transaction, detail));
        conclusion.losses.push(Finding::new(FindingKind::Transaction, detail));
    }
    conclusion.add_log(&reading.content, reading.tables.expected_records(), names);
    let mut ledgers = std::mem::take(&mut reading.content.ledgers);
    let lost_keys = reading.lost_keys();
    let ids: BTreeSet<u32> = names.ids().chain(ledgers.keys().copied()).collect();
    for id in ids {
        let mut ledger = ledgers.remove(&id).unwrap_or_default();
        ledger.sort();
        if let Some((name, _)) = names.get(id) {
            ledger.join_hidden_keys(|key| encryption.hidden_key(&name, key));
        }
        conclusion.add_type(&reading.evidence(id, names, &lost_keys), &ledger);
    }
    let counters = reading.tables.counters.values().copied().chain(reading.tables.first_revision);
    conclusion.highest = conclusion.highest.max(counters.max().map_or(Revision::FIRST, Revision));
    conclusion
}

/// The revisions of a type in a range of keys, up to its counter.
fn revisions_within(
    id: u32,
    keys: &RangeInclusive<LogKey>,
    counter: Option<u64>,
) -> Option<RangeInclusive<u64>> {
    let first = (*keys.start()).max(log_key(id, 1));
    let last = (*keys.end()).min(log_key(id, counter.unwrap_or(u64::MAX)));
    (first <= last).then(|| split(first).1..=split(last).1)
}
