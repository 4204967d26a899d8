//! What the readable records of one type say: which objects live, and what may be missing.

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;

use pilothouse_types::object::{Key, Revision};

use super::super::pages::Trust;
use super::log_reader::Remains;

/// Where the bytes of a record are in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) length: usize,
}

/// What the newest record of an object says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Live,
    /// It lives, and its content cannot be read.
    Unreadable,
    Removed,
}

/// The newest record of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newest {
    pub(super) revision: u64,
    pub(super) state: State,
    pub(super) place: Place,
    pub(super) trust: Trust,
    /// Whether it removed an object that another record has, and is not proven.
    pub(super) is_doubtful_removal: bool,
}

impl Newest {
    /// Puts a later record in the place of this one.
    fn follow(&mut self, mut later: Newest) {
        let lived = self.state != State::Removed || self.is_doubtful_removal;
        later.is_doubtful_removal = later.state == State::Removed && later.trust != Trust::Proven && lived;
        *self = later;
    }
}

/// The records of a type, as far as they can be read.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) objects: HashMap<Box<str>, Newest>,
    /// The revisions of all records that can be read, at least their heads.
    present: Vec<u64>,
    /// Records and the records that they superseded.
    superseded: Vec<(u64, u64)>,
    /// The first record whose superseded version is still there.
    oldest_kept: Option<u64>,
    /// Records of which only the heads can be read: their revisions and keys.
    damaged: Vec<(u64, Box<str>)>,
    /// Records without a change, and the revisions that they follow.
    steps: Vec<(u64, u64)>,
    /// Records that do not follow from the one before: their revisions, those that they say they superseded, and the actual ones.
    breaks: Vec<(u64, u64, u64)>,
    pub(super) bytes: u64,
}

impl Ledger {
    /// Takes a record into account, of which at least the head can be read. Proven ones come in the order of their revisions; others may
    /// come late.
    pub(super) fn add(&mut self, revision: u64, remains: &Remains, place: Place, trust: Trust) {
        let (head, is_whole) = match remains {
            Remains::Whole(head) => (head, true),
            Remains::Head(head) => (head, false),
            Remains::Nothing => return,
        };
        self.present.push(revision);
        self.bytes += place.length as u64;
        if !is_whole {
            self.damaged.push((revision, head.key.as_str().into()));
        }
        let state = match (head.has_content(), head.key.as_str()) {
            (true, _) if is_whole => State::Live,
            (true, _) => State::Unreadable,
            (false, "") => return self.steps.push((revision, head.superseded.0)),
            (false, _) => State::Removed,
        };
        let superseded = head.superseded.0;
        if superseded != 0 {
            self.superseded.push((revision, superseded));
        }
        let newest = Newest { revision, state, place, trust, is_doubtful_removal: false };
        self.apply(head.key.as_str(), newest, superseded);
    }

    fn apply(&mut self, key: &str, newest: Newest, superseded: u64) {
        let Some(before) = self.objects.get_mut(key) else {
            self.objects.insert(key.into(), newest);
            return;
        };
        if before.revision >= newest.revision {
            return;
        }
        let lived = before.state != State::Removed;
        if newest.trust == Trust::Proven && lived && before.revision != superseded {
            self.breaks.push((newest.revision, superseded, before.revision));
        }
        before.follow(newest);
    }

    /// An object may be encrypted in some records and in clear text in others: its key is hidden there. Brings both together.
    /// `hidden_key` is what stands for a key.
    pub(super) fn join_hidden_keys(&mut self, hidden_key: impl Fn(&Key) -> Key) {
        let is_hidden = |key: &str| Key::HIDDEN.contains(&key);
        if !self.objects.keys().any(|key| is_hidden(key)) {
            return;
        }
        let (hidden, clear): (HashMap<_, _>, HashMap<_, _>) =
            self.objects.drain().partition(|(key, _)| is_hidden(key));
        self.objects = clear;
        let keys = self.objects.keys().map(|key| (hidden_key(&Key::from_path(key)), key.clone()));
        let clear_keys: HashMap<Key, Box<str>> = keys.collect();
        for (key, newest) in hidden {
            let key = clear_keys.get(&*key).cloned().unwrap_or(key);
            match self.objects.get_mut(&key) {
                Some(before) if before.revision < newest.revision => before.follow(newest),
                Some(_) => {}
                None => {
                    self.objects.insert(key, newest);
                }
            }
        }
    }

    /// Brings what came late into its order.
    pub(super) fn sort(&mut self) {
        self.present.sort_unstable();
        self.present.dedup();
        self.steps.sort_unstable();
        self.superseded.sort_unstable();
        let kept = self.superseded.iter().find(|(_, superseded)| self.has(*superseded));
        self.oldest_kept = kept.map(|(revision, _)| *revision);
    }

    pub(super) fn records(&self) -> u64 {
        self.present.len() as u64
    }

    /// Records of which only the heads can be read, with their keys, and whether they are the last states of objects.
    pub(super) fn damaged(&self) -> impl Iterator<Item = (u64, &str, bool)> {
        let last = self.objects.values().filter(|newest| newest.state == State::Unreadable);
        let last: BTreeSet<u64> = last.map(|newest| newest.revision).collect();
        let damaged = self.damaged.iter();
        damaged.map(move |(revision, key)| (*revision, &**key, last.contains(revision)))
    }

    /// Whether there is a record at this revision. Only after [`Ledger::sort`].
    pub(super) fn has(&self, revision: u64) -> bool {
        self.present.binary_search(&revision).is_ok()
    }

    /// The highest revision of a record.
    pub(super) fn highest(&self) -> Revision {
        self.present.last().map_or(Revision::FIRST, |revision| Revision(*revision))
    }

    /// Whether so many records at these revisions, of which nothing can be read, are all superseded by readable ones.
    pub(super) fn are_superseded(&self, revisions: &RangeInclusive<u64>, count: usize) -> bool {
        // As superseded versions leave the log in the order of history, none has left it that was superseded after one that is there.
        let is_there = |(revision, superseded): &(u64, u64)| {
            revisions.start() == revisions.end()
                || self.oldest_kept.is_some_and(|oldest| *revision > oldest) && !self.has(*superseded)
        };
        let first = self.superseded.partition_point(|(revision, _)| revision <= revisions.start());
        let later = self.superseded.iter().skip(first);
        let superseded = later.filter(|pair| revisions.contains(&pair.1) && is_there(pair));
        superseded.map(|(_, superseded)| superseded).collect::<BTreeSet<_>>().len() >= count
    }

    /// Records that do not follow from the one before, although nothing is missing between them.
    pub(super) fn breaks(&self, lost: &Lost) -> impl Iterator<Item = u64> {
        let is_explained = move |superseded: u64, actual: u64, revision: u64| match superseded {
            // Created: a removal in between may be lost.
            0 => lost.has_any(actual.saturating_add(1)..=revision.saturating_sub(1)),
            superseded => lost.has_any(superseded..=superseded),
        };
        // Under a hidden key it may have been superseded by another record.
        let superseded: BTreeSet<u64> = self.superseded.iter().map(|(_, superseded)| *superseded).collect();
        let broken = self.breaks.iter().filter(move |(revision, stated, actual)| {
            !superseded.contains(actual) && !is_explained(*stated, *actual, *revision)
        });
        broken.map(|(revision, _, _)| *revision)
    }

    /// The revision up to which superseded versions are known to have left the log. They leave it in the order of history
    /// (`trim_queue.rs`), so one that is missing and not lost shows that all before it have left, too. A record at or below this
    /// revision superseded nothing that is still there.
    ///
    /// `first` is the revision above which every revision was given to a record, if that is known.
    pub(super) fn trimmed_through(&self, lost: &Lost, first: Option<u64>, counter: Option<u64>) -> u64 {
        let gone = |revision: u64| !self.has(revision) && !lost.has_any(revision..=revision);
        let by_reference = self.superseded.iter().filter(|(_, superseded)| gone(*superseded));
        let by_reference = by_reference.map(|(revision, _)| *revision).max().unwrap_or_default();
        let Some(first) = first else { return by_reference };
        let mut by_gap = 0;
        let mut last = first;
        let ends = self.present.iter().copied().map(|revision| self.predecessor(revision));
        let starts = self.present.iter().copied();
        for (start, end) in starts.zip(ends).filter(|(start, _)| *start > first) {
            by_gap = by_gap.max(lost.highest_outside(last, end).unwrap_or_default());
            last = start;
        }
        if let Some(counter) = counter {
            by_gap = by_gap.max(lost.highest_outside(last, counter).unwrap_or_default());
        }
        by_reference.max(by_gap)
    }

    /// The revision that was the last one before this record.
    fn predecessor(&self, revision: u64) -> u64 {
        let first = self.steps.partition_point(|(at, _)| *at < revision);
        let step = self.steps.get(first).filter(|(at, _)| *at == revision);
        step.map_or(revision.saturating_sub(1), |(_, after)| *after)
    }
}

/// Revisions of one type whose records cannot be read, if there ever were any.
#[derive(Default)]
pub(super) struct Lost(Vec<RangeInclusive<u64>>);

impl Lost {
    pub(super) fn new(mut ranges: Vec<RangeInclusive<u64>>) -> Lost {
        ranges.retain(|range| !range.is_empty());
        ranges.sort_unstable_by_key(|range| *range.start());
        let mut merged: Vec<RangeInclusive<u64>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=*last.end().max(range.end());
                }
                _ => merged.push(range),
            }
        }
        Lost(merged)
    }

    pub(super) fn ranges(&self) -> &[RangeInclusive<u64>] {
        &self.0
    }

    /// Whether all of these revisions are lost.
    pub(super) fn has_all(&self, revisions: &RangeInclusive<u64>) -> bool {
        self.0.iter().any(|range| range.start() <= revisions.start() && revisions.end() <= range.end())
    }

    /// Whether one of these revisions is lost.
    fn has_any(&self, revisions: RangeInclusive<u64>) -> bool {
        let first = self.0.partition_point(|range| range.end() < revisions.start());
        !revisions.is_empty() && self.0.get(first).is_some_and(|range| range.start() <= revisions.end())
    }

    /// Whether a record later than this revision is lost.
    pub(super) fn has_later(&self, revision: u64) -> bool {
        self.0.last().is_some_and(|range| *range.end() > revision)
    }

    /// The highest revision above one and through another that is not lost.
    fn highest_outside(&self, above: u64, through: u64) -> Option<u64> {
        let mut highest = through;
        for range in self.0.iter().rev() {
            if range.contains(&highest) {
                highest = range.start().checked_sub(1)?;
            }
        }
        (highest > above).then_some(highest)
    }
}
