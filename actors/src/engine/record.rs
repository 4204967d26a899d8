//! The encoding of one version of one object in the log.
//!
//! Layout, integers little endian, texts and bytes preceded by their length as u32:
//!
//! ```text
//! format u8 · operation u8 · checksum u32 · checksum of the head u32 · accepted at u64 · log time u64 · superseded revision u64 · key
//! and, if an object was written:
//! offset of the revision u32 · offset of the item u32 · labels · fields · body
//! ```
//!
//! Labels and fields are a count as u32 and that many pairs of texts: loading never parses the body. The checksum covers
//! everything else and also the log key (type and revision), so a misplaced record is detected, too. The head, which is the
//! first line, has a checksum of its own: damage behind it costs one object and not the store.
//!
//! Records of format 2 have no log time. They count as written when the log was new: they stay in the history for the whole time
//! that the first server of this format keeps them.

use std::sync::Arc;

use bytes::Bytes;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::object::{Draft, Key, Object, Pairs, Revision};

use crate::engine::EngineError;
use crate::log_time::{LogTime, WriteTime};

/// The format this code writes.
const FORMAT: u8 = 3;
/// The oldest format that it reads.
const OLDEST_FORMAT: u8 = 2;
const CHECKSUM_OFFSET: usize = 2;
const CHECKSUM_END: usize = 6;
const HEAD_OFFSET: usize = 10;

/// The operation of a write.
#[derive(Clone, Debug)]
pub enum Operation {
    /// The object was created.
    Create(Arc<Object>),
    /// The object superseded the version at this revision.
    Replace(Arc<Object>, Revision),
    /// The object with this key was deleted; its last version is at this revision. That record has the body.
    Remove(Key, Revision),
    /// No change: the type advanced from the revision beside it. The record shows that no other record is missing between the two;
    /// revisions in between were given to writes that failed.
    AdvanceRevision(Revision),
}

/// A write, and when it was accepted.
#[derive(Clone, Debug)]
pub struct Record {
    /// The operation.
    pub operation: Operation,
    /// When a store accepted it: its age decides how long the superseded version is kept.
    pub accepted_at: WriteTime,
}

impl Record {
    /// The key of the object that was written; empty if none was.
    pub fn key(&self) -> &str {
        match &self.operation {
            Operation::Create(object) | Operation::Replace(object, _) => object.key.as_str(),
            Operation::Remove(key, _) => key.as_str(),
            Operation::AdvanceRevision(_) => "",
        }
    }

    /// The revision of its type before this record at `revision`.
    pub fn predecessor(&self, revision: Revision) -> Revision {
        match self.operation {
            Operation::AdvanceRevision(after) => after,
            Operation::Create(_) | Operation::Replace(..) | Operation::Remove(..) => {
                Revision(revision.0.saturating_sub(1))
            }
        }
    }

    /// The size that this record counts for in a batch.
    pub fn weight(&self) -> usize {
        const OVERHEAD: usize = 128;
        match &self.operation {
            Operation::Create(object) | Operation::Replace(object, _) => object.bytes.len() + OVERHEAD,
            Operation::Remove(..) | Operation::AdvanceRevision(_) => OVERHEAD,
        }
    }

    /// Encodes the record for its key in the log. Replaces the content of `out`.
    pub fn encode(&self, type_id: u32, revision: Revision, out: &mut Vec<u8>) {
        let (code, superseded, object) = match &self.operation {
            Operation::Create(object) => (1, Revision::ZERO, Some(object)),
            Operation::Replace(object, superseded) => (2, *superseded, Some(object)),
            Operation::Remove(_, superseded) => (3, *superseded, None),
            Operation::AdvanceRevision(after) => (4, *after, None),
        };
        out.clear();
        out.extend_from_slice(&[FORMAT, code, 0, 0, 0, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&self.accepted_at.wall.0.to_le_bytes());
        out.extend_from_slice(&self.accepted_at.log.0.to_le_bytes());
        out.extend_from_slice(&superseded.0.to_le_bytes());
        put(out, self.key().as_bytes());
        let head = head_checksum(type_id, revision, out, out.len()).to_le_bytes();
        if let Some(field) = out.get_mut(CHECKSUM_END..HEAD_OFFSET) {
            field.copy_from_slice(&head);
        }
        if let Some(object) = object {
            put_length(out, object.revision_offset());
            put_length(out, object.item_offset());
            put_pairs(out, &object.labels);
            put_pairs(out, &object.fields);
            put(out, &object.bytes);
        }
        let checksum = checksum(type_id, revision, out).to_le_bytes();
        if let Some(field) = out.get_mut(CHECKSUM_OFFSET..CHECKSUM_END) {
            field.copy_from_slice(&checksum);
        }
    }

    /// Decodes the record with this key in the log. If only the part behind the head is damaged, the object is
    /// [`Object::unreadable`].
    pub fn decode(type_id: u32, revision: Revision, bytes: &[u8]) -> Result<Record, EngineError> {
        let damaged = |problem: &str| {
            EngineError::Damaged(format!("the record at revision {revision} of type {type_id} {problem}"))
        };
        let stored = bytes.get(CHECKSUM_OFFSET..CHECKSUM_END).ok_or_else(|| damaged("is cut short"))?;
        if stored != checksum(type_id, revision, bytes).to_le_bytes() {
            return salvage(type_id, revision, bytes).ok_or_else(|| damaged("has a wrong checksum"));
        }
        let format = bytes.first().copied().unwrap_or_default();
        if !is_known_format(format) {
            return Err(damaged(&format!("is in the unknown format {format}")));
        }
        parse(revision, bytes).ok_or_else(|| damaged("does not parse"))
    }
}

fn parse(revision: Revision, bytes: &[u8]) -> Option<Record> {
    let mut rest = Reader(bytes.get(HEAD_OFFSET..)?);
    let record = rest.record(revision, bytes, Reader::object)?;
    rest.0.is_empty().then_some(record)
}

/// Decodes a record whose head is intact and whose rest is not.
fn salvage(type_id: u32, revision: Revision, bytes: &[u8]) -> Option<Record> {
    let mut rest = Reader(bytes.get(HEAD_OFFSET..)?);
    let unreadable = |_: &mut Reader<'_>, key, revision| Some(Arc::new(Object::unreadable(key, revision)));
    let record = rest.record(revision, bytes, unreadable)?;
    let head = head_checksum(type_id, revision, bytes, bytes.len() - rest.0.len());
    let stored = bytes.get(CHECKSUM_END..HEAD_OFFSET)?;
    (stored == head.to_le_bytes() && bytes.first().copied().is_some_and(is_known_format)).then_some(record)
}

fn is_known_format(format: u8) -> bool {
    (OLDEST_FORMAT..=FORMAT).contains(&format)
}

/// The checksum of the head: everything before `end` but the checksums.
fn head_checksum(type_id: u32, revision: Revision, bytes: &[u8], end: usize) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&type_id.to_le_bytes());
    hasher.update(&revision.0.to_le_bytes());
    hasher.update(bytes.get(..CHECKSUM_OFFSET).unwrap_or_default());
    hasher.update(bytes.get(HEAD_OFFSET..end).unwrap_or_default());
    hasher.finalize()
}

/// The checksum of everything but the checksum itself.
fn checksum(type_id: u32, revision: Revision, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&type_id.to_le_bytes());
    hasher.update(&revision.0.to_le_bytes());
    hasher.update(bytes.get(..CHECKSUM_OFFSET).unwrap_or_default());
    hasher.update(bytes.get(CHECKSUM_END..).unwrap_or_default());
    hasher.finalize()
}

#[expect(clippy::expect_used, reason = "limits::RECORD_BYTES, checked by the store, is far below 4 GiB")]
fn put_length(out: &mut Vec<u8>, length: usize) {
    let length = u32::try_from(length).expect("a record is smaller than 4 GiB");
    out.extend_from_slice(&length.to_le_bytes());
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_pairs(out: &mut Vec<u8>, pairs: &Pairs) {
    put_length(out, pairs.iter().len());
    for (key, value) in pairs.iter() {
        put(out, key.as_bytes());
        put(out, value.as_bytes());
    }
}

/// Reads from the front of the remaining bytes; `None` if they end too early.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(u32::from_le_bytes(self.take(4)?.try_into().ok()?)).ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        self.take(length)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    fn pairs(&mut self) -> Option<Pairs> {
        let count = self.length()?;
        let mut is_truncated = false;
        let pairs = std::iter::from_fn(|| {
            let pair = self.text().and_then(|key| Some((key, self.text()?)));
            is_truncated |= pair.is_none();
            pair
        });
        let pairs = Pairs::from_iter(pairs.take(count));
        (!is_truncated).then_some(pairs)
    }

    /// The record whose head begins here; `object` reads the rest.
    fn record(
        &mut self,
        revision: Revision,
        bytes: &[u8],
        object: impl FnOnce(&mut Reader<'a>, Key, Revision) -> Option<Arc<Object>>,
    ) -> Option<Record> {
        let wall = Timestamp(self.u64()?);
        let log = if *bytes.first()? == OLDEST_FORMAT { LogTime::ZERO } else { LogTime(self.u64()?) };
        let accepted_at = WriteTime { wall, log };
        let superseded = Revision(self.u64()?);
        let key = Key::from_path(self.text()?);
        let operation = match *bytes.get(1)? {
            1 if superseded == Revision::ZERO => Operation::Create(object(self, key, revision)?),
            2 if superseded < revision => Operation::Replace(object(self, key, revision)?, superseded),
            3 if superseded < revision => Operation::Remove(key, superseded),
            4 if superseded < revision && key.as_str().is_empty() => match superseded {
                // Format 2 does not say it, because it has no gaps.
                Revision::ZERO => Operation::AdvanceRevision(Revision(revision.0 - 1)),
                after => Operation::AdvanceRevision(after),
            },
            _ => return None,
        };
        Some(Record { operation, accepted_at })
    }

    fn object(&mut self, key: Key, revision: Revision) -> Option<Arc<Object>> {
        let draft = Draft {
            key,
            revision_offset: self.length()?,
            item_offset: self.length()?,
            labels: self.pairs()?,
            fields: self.pairs()?,
            bytes: Bytes::copy_from_slice(self.bytes()?),
        };
        Object::restored(draft, revision).map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn object(body: &str, labels: Vec<(String, String)>, revision: Revision) -> Arc<Object> {
        let text = format!(r#"{{"kind":"K","resourceVersion":"","data":"{body}"}}"#);
        let draft = Draft {
            key: Key::namespaced("n", "a"),
            revision_offset: text.find(r#"","data"#).unwrap(),
            item_offset: 12,
            bytes: Bytes::from(text),
            fields: labels.iter().map(|(key, value)| (value.as_str(), key.as_str())).collect(),
            labels: labels.into_iter().collect(),
        };
        Arc::new(Object::new(draft, revision))
    }

    fn records() -> impl Strategy<Value = (Record, Revision)> {
        let labels = prop::collection::vec(("[a-z]{0,8}", "[a-z]{0,8}"), 0..4);
        (0u8..4, "[a-z]{0,40}", labels, 3u64..u64::MAX, any::<(u64, u64)>()).prop_map(
            |(kind, body, labels, revision, (wall, log))| {
                let revision = Revision(revision);
                let operation = match kind {
                    0 => Operation::Create(object(&body, labels, revision)),
                    1 => Operation::Replace(object(&body, labels, revision), Revision(revision.0 - 1)),
                    2 => Operation::Remove(Key::cluster("gone"), Revision(2)),
                    _ => Operation::AdvanceRevision(Revision(revision.0 - 1)),
                };
                let accepted_at = WriteTime { wall: Timestamp(wall), log: LogTime(log) };
                (Record { operation, accepted_at }, revision)
            },
        )
    }

    /// Whether `read` has the head of the record and no content.
    fn is_remnant(read: &Record, record: &Record) -> bool {
        let is_unreadable = |object: &Arc<Object>| !object.is_readable();
        (read.key(), read.accepted_at) == (record.key(), record.accepted_at)
            && match (&read.operation, &record.operation) {
                (Operation::Create(a), Operation::Create(b)) => is_unreadable(a) && a.revision == b.revision,
                (Operation::Replace(a, x), Operation::Replace(b, y)) => {
                    is_unreadable(a) && a.revision == b.revision && x == y
                }
                (Operation::Remove(_, x), Operation::Remove(_, y)) => x == y,
                (Operation::AdvanceRevision(x), Operation::AdvanceRevision(y)) => x == y,
                _ => false,
            }
    }

    fn same(a: &Record, b: &Record) -> bool {
        let objects = |a: &Arc<Object>, b: &Arc<Object>| {
            a.key == b.key
                && a.revision == b.revision
                && a.bytes == b.bytes
                && a.labels == b.labels
                && a.fields == b.fields
                && (a.revision_offset(), a.item_offset()) == (b.revision_offset(), b.item_offset())
        };
        a.accepted_at == b.accepted_at
            && match (&a.operation, &b.operation) {
                (Operation::Create(a), Operation::Create(b)) => objects(a, b),
                (Operation::Replace(a, x), Operation::Replace(b, y)) => objects(a, b) && x == y,
                (Operation::Remove(a, x), Operation::Remove(b, y)) => (a, x) == (b, y),
                (Operation::AdvanceRevision(x), Operation::AdvanceRevision(y)) => x == y,
                _ => false,
            }
    }

    proptest! {
        #[test]
        fn record_round_trips((record, revision) in records()) {
            let mut bytes = Vec::new();
            record.encode(7, revision, &mut bytes);
            prop_assert!(same(&Record::decode(7, revision, &bytes).unwrap(), &record));
        }

        #[test]
        fn damaged_record_is_detected((record, revision) in records(), flip: prop::sample::Index, bit in 0u8..8, cut: prop::sample::Index) {
            let mut bytes = Vec::new();
            record.encode(7, revision, &mut bytes);
            let whole = bytes.clone();
            let head = HEAD_OFFSET + 8 + 8 + 8 + 4 + record.key().len();
            let (flip, cut) = (flip.index(whole.len()), cut.index(whole.len()));
            bytes[flip] ^= 1 << bit;
            for (damaged, first) in [(&bytes[..], flip), (&whole[..cut], cut)] {
                let read = Record::decode(7, revision, damaged);
                let in_head = first < head && !(CHECKSUM_OFFSET..CHECKSUM_END).contains(&first);
                prop_assert_eq!(read.is_err(), in_head || damaged.len() < head);
                // Only its key and operation are left.
                if let Ok(read) = read {
                    prop_assert!(is_remnant(&read, &record));
                }
            }
            prop_assert!(Record::decode(8, revision, &whole).is_err());
            prop_assert!(Record::decode(7, Revision(revision.0 - 1), &whole).is_err());
        }
    }

    #[test]
    fn record_of_unknown_format_is_reported_as_such() {
        let operation = Operation::Remove(Key::cluster("a"), Revision(2));
        let record = Record { operation, accepted_at: WriteTime::default() };
        let mut bytes = Vec::new();
        record.encode(1, Revision(3), &mut bytes);
        bytes[0] = FORMAT + 1;
        let sum = checksum(1, Revision(3), &bytes).to_le_bytes();
        bytes[CHECKSUM_OFFSET..CHECKSUM_END].copy_from_slice(&sum);
        let error = Record::decode(1, Revision(3), &bytes).unwrap_err();
        assert!(error.to_string().ends_with("is in the unknown format 4"), "{error}");
    }
}
