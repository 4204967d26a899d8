//! Reads the records of a log whose pages may be damaged.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

use pilothouse_types::clock::Timestamp;
use pilothouse_types::object::Revision;

use super::super::pages::{Bounds, Leaf, PageFile, PageSet, Step, Tree, Trust, Widths, walk};
use super::ledger::{Ledger, Place};
use crate::engine::record::RecordHead;

/// The pairs of the log: its key is the id of a type and a revision.
pub(super) const LOG_WIDTHS: Widths = Widths { key: Some(12), value: None };

/// A key of the log as a number, in the order of the log.
pub(super) type LogKey = u128;

pub(super) fn log_key(type_id: u32, revision: u64) -> LogKey {
    (u128::from(type_id) << 64) | u128::from(revision)
}

pub(super) fn split(key: LogKey) -> (u32, u64) {
    #[expect(clippy::cast_possible_truncation, reason = "it takes the number apart")]
    ((key >> 64) as u32, key as u64)
}

pub(super) fn read_key(bytes: &[u8]) -> Option<LogKey> {
    let (type_id, revision) = bytes.split_first_chunk()?;
    Some(log_key(u32::from_le_bytes(*type_id), u64::from_le_bytes(revision.try_into().ok()?)))
}

/// What is left of a record.
pub(super) enum Remains {
    /// Everything.
    Whole(RecordHead),
    /// Its head.
    Head(RecordHead),
    /// Nothing that could be trusted.
    Nothing,
}

impl Remains {
    pub(super) fn read(type_id: u32, revision: Revision, bytes: &[u8]) -> Remains {
        let is_complete = || RecordHead::stated_length(revision, bytes) == Some(bytes.len());
        match RecordHead::split(type_id, revision, bytes) {
            Ok((head, Some(_))) if is_complete() => Remains::Whole(head),
            Ok((head, _)) => Remains::Head(head),
            Err(_) => Remains::Nothing,
        }
    }

    /// When it was written, by the clock.
    pub(super) fn accepted_at(&self) -> Option<Timestamp> {
        match self {
            Remains::Whole(head) | Remains::Head(head) => Some(head.accepted_at.wall),
            Remains::Nothing => None,
        }
    }
}

/// A damaged page of the log.
pub(super) struct DamagedPage {
    /// Where it is; `None` if it is not in the file.
    pub(super) offset: Option<u64>,
    /// The keys that it may have.
    pub(super) keys: RangeInclusive<LogKey>,
}

/// Places for records of which nothing can be read.
pub(super) struct BadRecords {
    /// The keys that they may have.
    pub(super) keys: RangeInclusive<LogKey>,
    /// How many they are.
    pub(super) count: usize,
    /// Where the first of them is.
    pub(super) offset: u64,
}

/// What was read of a log.
#[derive(Default)]
pub(super) struct LogContent {
    /// The readable records by the id of their type.
    pub(super) ledgers: BTreeMap<u32, Ledger>,
    /// The damaged pages, in the order of their keys.
    pub(super) damaged: Vec<DamagedPage>,
    /// The records of which nothing can be read.
    pub(super) bad: Vec<BadRecords>,
    /// The records of proven pages, and the places for records in damaged leaves.
    pub(super) slots: u64,
    /// Whether every damaged page is a leaf with a record that is not whole: then that may be all of the damage.
    pub(super) has_only_damaged_records: bool,
    /// The highest key of a proven page so far.
    last: Option<LogKey>,
    /// How many of the damaged pages and bad records precede the last proven page.
    closed: (usize, usize),
}

impl LogContent {
    /// Reads the log in this tree.
    pub(super) fn read(file: &PageFile, tree: Option<Tree>, pages: &mut PageSet) -> LogContent {
        let mut content = LogContent { has_only_damaged_records: true, ..LogContent::default() };
        if let Some(tree) = tree {
            walk(file, tree, LOG_WIDTHS, pages, &mut |step| content.step(step));
        }
        content
    }

    /// A log of which nothing can be read.
    pub(super) fn lost() -> LogContent {
        let keys = 0..=LogKey::MAX;
        LogContent { damaged: vec![DamagedPage { offset: None, keys }], ..LogContent::default() }
    }

    fn step(&mut self, step: Step<'_>) {
        match step {
            Step::Leaf { leaf, offset, trust: Trust::Damaged, bounds } => {
                self.has_only_damaged_records &= self.damaged_leaf(&leaf, offset, bounds);
            }
            Step::Leaf { leaf, offset, trust, .. } => self.whole_leaf(&leaf, offset, trust),
            Step::Damaged { offset, bounds } => {
                let keys = self.keys_within(bounds);
                self.damaged.push(DamagedPage { offset, keys });
            }
            Step::Unreachable => self.has_only_damaged_records = false,
        }
    }

    /// The keys of a page with these bounds, after the last proven page.
    fn keys_within(&self, bounds: &Bounds) -> RangeInclusive<LogKey> {
        let after = bounds.after.as_deref().and_then(read_key).max(self.last);
        let through = bounds.through.as_deref().and_then(read_key).unwrap_or(LogKey::MAX);
        after.map_or(0, |after| after.saturating_add(1))..=through
    }

    /// Limits what came before a proven page by the first key of it.
    fn close(&mut self, key: LogKey) {
        let (pages, records) = self.closed;
        let damaged = self.damaged.iter_mut().skip(pages).map(|page| &mut page.keys);
        for keys in damaged.chain(self.bad.iter_mut().skip(records).map(|bad| &mut bad.keys)) {
            *keys = *keys.start()..=(*keys.end()).min(key.saturating_sub(1));
        }
        self.closed = (self.damaged.len(), self.bad.len());
    }

    fn whole_leaf(&mut self, leaf: &Leaf<'_>, offset: u64, trust: Trust) {
        for (key, range) in leaf.iter() {
            let (Some(key), Some(bytes)) = (read_key(key), leaf.get(range.clone())) else { continue };
            let (type_id, revision) = split(key);
            let remains = Remains::read(type_id, Revision(revision), bytes);
            if trust == Trust::Proven {
                self.close(key);
                self.last = Some(key);
            }
            self.add(key, &remains, offset, &range, trust);
            if matches!(remains, Remains::Nothing) {
                self.bad.push(BadRecords { keys: key..=key, count: 1, offset: offset + range.start as u64 });
            }
        }
    }

    /// Reads what is left of a leaf. Returns whether that one of its records is not whole may be all of the damage.
    fn damaged_leaf(&mut self, leaf: &Leaf<'_>, offset: u64, bounds: &Bounds) -> bool {
        let within = self.keys_within(bounds);
        let (mut next, mut end) = (*within.start(), leaf.values_start());
        let (mut is_damaged, mut is_old, mut bad) = (false, false, None::<BadRecords>);
        for pair in 0..leaf.pairs {
            let start = end;
            end = leaf.value_end(pair);
            let record = leaf.key(pair).and_then(read_key).map(|key| {
                let (type_id, revision) = split(key);
                (key, salvage_record(leaf, start, end, type_id, Revision(revision)))
            });
            let is_in_place = |key: &LogKey| (next..=*within.end()).contains(key);
            // A whole record that belongs elsewhere: so the page is an old one, or belongs elsewhere as well.
            is_old |= matches!(&record, Some((key, (_, Remains::Whole(_)))) if !is_in_place(key));
            match record.filter(|(key, _)| is_in_place(key)) {
                Some((key, (range, remains))) if !matches!(remains, Remains::Nothing) => {
                    match &remains {
                        Remains::Whole(_) => end = Some(range.end),
                        _ => is_damaged = true,
                    }
                    // Its checksum covers its key, too, so it limits those beside it.
                    let before = bad.take().zip(key.checked_sub(1));
                    let limited = |(bad, last)| {
                        let bad: BadRecords = bad;
                        BadRecords { keys: *bad.keys.start()..=last, ..bad }
                    };
                    self.bad.extend(before.map(limited));
                    next = key.saturating_add(1);
                    self.add(key, &remains, offset, &range, Trust::Damaged);
                }
                // Its key may be damaged as well.
                _ => {
                    let place = offset + start.unwrap_or_default() as u64;
                    let keys = next..=*within.end();
                    bad.get_or_insert(BadRecords { keys, count: 0, offset: place }).count += 1;
                    (self.slots, is_damaged) = (self.slots + 1, true);
                }
            }
        }
        self.bad.extend(bad);
        is_damaged && !is_old
    }

    fn add(&mut self, key: LogKey, remains: &Remains, page: u64, range: &Range<usize>, trust: Trust) {
        let (type_id, revision) = split(key);
        self.slots += 1;
        let place = Place { offset: page + range.start as u64, length: range.len() };
        self.ledgers.entry(type_id).or_default().add(revision, remains, place, trust);
    }
}

/// Reads a record of a damaged leaf. Where it begins or ends may be damaged, too: a record says itself how long it is.
fn salvage_record(
    leaf: &Leaf<'_>,
    start: Option<usize>,
    end: Option<usize>,
    type_id: u32,
    revision: Revision,
) -> (Range<usize>, Remains) {
    let start = start.unwrap_or_default();
    let stated = end.filter(|end| *end >= start).map(|end| start..end);
    let by_itself = RecordHead::stated_length(revision, leaf.from(start)).map(|length| start..start + length);
    let mut best = (start..start, Remains::Nothing);
    for range in [stated, by_itself].into_iter().flatten() {
        let Some(bytes) = leaf.get(range.clone()) else { continue };
        match Remains::read(type_id, revision, bytes) {
            remains @ Remains::Whole(_) => return (range, remains),
            remains @ Remains::Head(_) if matches!(best.1, Remains::Nothing) => best = (range, remains),
            Remains::Head(_) | Remains::Nothing => {}
        }
    }
    best
}
