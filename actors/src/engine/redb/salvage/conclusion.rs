//! What follows from everything that was read: what is damaged, which objects are saved, and which are not.

use std::ops::RangeInclusive;

use pilothouse_types::object::{Revision, TypeName};

use super::super::pages::Trust;
use super::finding::{Finding, FindingKind};
use super::ledger::{Ledger, Lost, Newest, State};
use super::log_reader::{BadRecords, DamagedPage, LogContent, LogKey, split};
use super::tables::{Names, Tables};
use super::{LiveRecord, SavedType};

/// What follows.
#[derive(Default)]
pub(super) struct Conclusion {
    pub(super) types: Vec<SavedType>,
    pub(super) damage: Vec<Finding>,
    pub(super) losses: Vec<Finding>,
    pub(super) highest: Revision,
}

/// What is known of a type beside its records.
pub(super) struct Evidence {
    pub(super) id: u32,
    /// Its name, and whether that is proven.
    pub(super) name: Option<(TypeName, bool)>,
    pub(super) counter: Option<u64>,
    /// Whether nothing newer was ever in the file.
    pub(super) is_newest: bool,
    /// Whether each lost record is known by its revision.
    pub(super) is_exact: bool,
    /// The revisions in damaged pages, unless each lost record is known.
    pub(super) lost: Vec<RangeInclusive<u64>>,
    /// The revisions of records of which nothing can be read, and how many they are.
    pub(super) bad: Vec<(RangeInclusive<u64>, usize)>,
    /// The revision above which every revision was given to a record.
    pub(super) first: Option<u64>,
}

/// Why an object may be outdated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    LaterIsLost,
    InDamagedPage,
    Stray,
    Name,
}

impl Doubt {
    fn as_str(self) -> &'static str {
        match self {
            Doubt::LaterIsLost => {
                "a later record of this resource is lost, which may have changed or deleted it"
            }
            Doubt::InDamagedPage => {
                "it was found in a damaged page: it may have been changed or deleted since"
            }
            Doubt::Stray => {
                "it was found in a page that nothing leads to: it may have been changed or deleted since"
            }
            Doubt::Name => "the name of the resource was found in a damaged page",
        }
    }
}

impl Conclusion {
    /// Adds the small tables.
    pub(super) fn add_tables(&mut self, tables: &Tables, definitions: &[u64], names: &Names) {
        let page = |table: &str, offset| {
            Finding::new(FindingKind::Page, format!("in the table `{table}`")).with_offset(offset)
        };
        let definitions = definitions.iter().map(|offset| {
            Finding::new(FindingKind::Page, "in the list of tables").with_offset(Some(*offset))
        });
        self.damage.extend(definitions);
        self.damage.extend(tables.damaged.iter().map(|(table, offset)| page(table, *offset)));
        let missing = |what: String| Finding::new(FindingKind::Table, what);
        if tables.format.is_none() && tables.log.is_some() {
            self.damage.push(missing("the format of the store cannot be read".to_owned()));
        }
        if tables.log.is_none() {
            self.damage.push(missing("the table of records cannot be found".to_owned()));
        }
        let without = tables.types_without_counter.iter();
        self.damage
            .extend(without.map(|id| missing(format!("there is no counter for {}", names.label(*id)))));
    }

    /// Adds the damage to the log, without that to single objects.
    pub(super) fn add_log(&mut self, content: &LogContent, expected: Option<u64>, names: &Names) {
        for page in &content.damaged {
            self.add_page(page, names);
        }
        for bad in &content.bad {
            self.add_bad(bad, names);
        }
        let actual = content.slots;
        if let Some(expected) = expected.filter(|expected| content.damaged.is_empty() && *expected != actual)
        {
            let detail = format!("the log has {actual} records and should have {expected}");
            self.damage.push(Finding::new(FindingKind::Count, detail));
        }
    }

    /// Adds a damaged page of the log.
    fn add_page(&mut self, page: &DamagedPage, names: &Names) {
        let DamagedPage { offset, keys } = page;
        let finding = Finding::new(FindingKind::Page, format!("in the log, {}", describe(keys, names)));
        self.damage.push(finding.with_offset(*offset));
    }

    /// Adds records of which nothing can be read.
    fn add_bad(&mut self, bad: &BadRecords, names: &Names) {
        let BadRecords { keys, count, offset } = bad;
        let (type_id, first) = split(*keys.start());
        let (last_id, last) = split(*keys.end());
        let type_name = names.get(type_id).filter(|_| type_id == last_id).map(|(name, _)| name);
        let what = if *count == 1 { "a record".to_owned() } else { format!("{count} records") };
        let mut detail = format!("{what} of which nothing can be read");
        let revisions = (type_id == last_id).then_some(first..=last);
        if revisions.is_none() {
            detail = format!("{detail}, {}", describe(keys, names));
        }
        let finding = Finding { type_name, revisions, ..Finding::new(FindingKind::Record, detail) };
        self.damage.push(finding.with_offset(Some(*offset)));
    }

    /// Adds the records of a type.
    pub(super) fn add_type(&mut self, evidence: &Evidence, ledger: &Ledger) {
        self.highest = self.highest.max(ledger.highest());
        let name = evidence.name.as_ref().map(|(name, _)| name.clone());
        let bad = evidence.bad.iter().map(|(revisions, _)| revisions.clone());
        let missing = Lost::new(bad.chain(evidence.lost.iter().cloned()).collect());
        self.add_damage(evidence, &name, ledger, &missing);
        let Some(name) = name else {
            if ledger.records() > 0 {
                let objects = ledger.objects.values().filter(|newest| newest.state != State::Removed).count();
                let detail =
                    format!("the name of type {} is lost, and with it {objects} objects", evidence.id);
                self.losses.push(Finding::new(FindingKind::LostType, detail));
            }
            return;
        };
        if evidence.name.as_ref().is_some_and(|(_, is_proven)| !is_proven) {
            let detail = "the name of the resource was found in a damaged page: it may be wrong, and others may be missing";
            let finding = Finding::new(FindingKind::LostType, detail);
            self.losses.push(Finding { type_name: Some(name.clone()), ..finding });
        }
        let lost = self.add_lost_records(evidence, &name, ledger);
        let live = self.add_objects(evidence, &name, ledger, &missing, &lost);
        let last = evidence.counter.map_or(Revision::FIRST, Revision).max(ledger.highest());
        let (id, records, bytes) = (evidence.id, ledger.records(), ledger.bytes);
        self.types.push(SavedType { id, name, last, records, bytes, live });
    }

    /// Adds the records that cannot be read and matter, and returns where they are.
    fn add_lost_records(&mut self, evidence: &Evidence, name: &TypeName, ledger: &Ledger) -> Lost {
        let mut add = |revisions: &RangeInclusive<u64>, detail: String| {
            let name = Some(name.clone());
            self.losses.push(Finding::of_type(FindingKind::LostRecords, &name, revisions.clone(), detail));
        };
        let in_pages = Lost::new(evidence.lost.clone());
        // What a readable record superseded is not missed.
        let is_missed = |(revisions, count): &&(_, usize)| {
            !in_pages.has_all(revisions) && !ledger.are_superseded(revisions, *count)
        };
        let mut lost = evidence.lost.clone();
        for (revisions, count) in evidence.bad.iter().filter(is_missed) {
            add(
                revisions,
                format!("{count} of the records, each the last state of an object or its deletion"),
            );
            lost.push(revisions.clone());
        }
        for revisions in in_pages.ranges() {
            add(revisions, "whatever was written at these revisions and is not found elsewhere".to_owned());
        }
        Lost::new(lost)
    }

    fn add_damage(&mut self, evidence: &Evidence, name: &Option<TypeName>, ledger: &Ledger, missing: &Lost) {
        let mut add = |kind, revision: u64, key: Option<&str>, detail: &str| {
            let finding = Finding::of_type(kind, name, revision..=revision, detail);
            self.damage.push(key.map_or(finding.clone(), |key| finding.with_key(key)));
        };
        for (revision, key, is_last) in ledger.damaged() {
            let detail = match is_last {
                true => "the object cannot be read",
                false => "the record cannot be read; the object does not need it any more",
            };
            add(FindingKind::Object, revision, Some(key), detail);
        }
        for revision in ledger.breaks(missing) {
            add(FindingKind::Order, revision, None, "the record does not follow from the version before it");
        }
        let highest = ledger.highest().0;
        if evidence.is_newest
            && ledger.records() > 0
            && evidence.counter.is_some_and(|counter| highest > counter)
        {
            add(FindingKind::Order, highest, None, "the record is later than the counter of its resource");
        }
        if name.is_none() && ledger.records() > 0 {
            let detail = format!("the log has records of type {}, whose name cannot be read", evidence.id);
            self.damage.push(Finding::new(FindingKind::Table, detail));
        }
    }

    /// Sorts out which objects are saved. `missing` are the revisions of all records that cannot be read, `lost` those that matter.
    fn add_objects(
        &mut self,
        evidence: &Evidence,
        name: &TypeName,
        ledger: &Ledger,
        missing: &Lost,
        lost: &Lost,
    ) -> Vec<LiveRecord> {
        let counter = evidence.counter.filter(|_| evidence.is_newest);
        let trimmed = ledger.trimmed_through(missing, evidence.first, counter);
        let is_name_proven = evidence.name.as_ref().is_some_and(|(_, is_proven)| *is_proven);
        let doubt = |newest: &Newest| match newest.trust {
            _ if !is_name_proven => Some(Doubt::Name),
            Trust::BelowDamage | Trust::Damaged if !evidence.is_exact => Some(Doubt::InDamagedPage),
            Trust::Stray => Some(Doubt::Stray),
            _ => lost.has_later(newest.revision.max(trimmed)).then_some(Doubt::LaterIsLost),
        };
        let mut objects: Vec<(&Box<str>, &Newest)> = ledger.objects.iter().collect();
        objects.sort_unstable_by_key(|(_, newest)| newest.revision);
        let mut live = Vec::new();
        for (key, newest) in objects {
            let revision = newest.revision;
            let mut add = |kind, detail: &str| {
                let finding = Finding::of_type(kind, &Some(name.clone()), revision..=revision, detail);
                self.losses.push(finding.with_key(key));
            };
            let doubt = doubt(newest);
            match newest.state {
                State::Removed
                    if newest.is_doubtful_removal
                        && matches!(doubt, Some(Doubt::InDamagedPage | Doubt::Stray)) =>
                {
                    add(FindingKind::LostObject, "a record in a damaged page says that it was deleted");
                    continue;
                }
                State::Removed => continue,
                State::Unreadable => add(FindingKind::LostObject, "its last state cannot be read"),
                State::Live => {
                    if let Some(doubt) = doubt {
                        add(FindingKind::Uncertain, doubt.as_str());
                    }
                }
            }
            live.push(LiveRecord {
                key: key.clone(),
                revision,
                place: newest.place,
                is_readable: newest.state == State::Live,
                is_uncertain: doubt.is_some(),
            });
        }
        live
    }
}

/// Keys of the log in words.
fn describe(keys: &RangeInclusive<LogKey>, names: &Names) -> String {
    let ((first, from), (last, through)) = (split(*keys.start()), split(*keys.end()));
    let label = |id: u32| match id {
        u32::MAX => "the end".to_owned(),
        id => names.label(id),
    };
    match (first, last) {
        (0, u32::MAX) => "which is all of it".to_owned(),
        _ if first == last && through == u64::MAX => format!("{} from revision {from} on", label(first)),
        _ if first == last => format!("{} from revision {from} through {through}", label(first)),
        (0, _) => format!("from the beginning through {} at revision {through}", label(last)),
        (_, u32::MAX) => format!("from {} at revision {from} to the end", label(first)),
        _ => {
            format!("from {} at revision {from} through {} at revision {through}", label(first), label(last))
        }
    }
}
