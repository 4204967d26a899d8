//! One version of one object as it lies in the log.
//!
//! Layout, integers little endian, texts and bytes preceded by their length as u32:
//!
//! ```text
//! format u8 · operation u8 · checksum u32 · accepted at u64 · superseded revision u64 · key
//! and, unless it is a removal:
//! place of the revision u32 · start of the item u32 · labels · fields · body
//! ```
//!
//! Labels and fields are a count as u32 and that many pairs of texts: loading never parses the body. The checksum covers
//! everything else and also the place in the log, so a record that lies where it does not belong is found out too.

use std::sync::Arc;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::engine::EngineError;
use crate::object::{Draft, Key, Object, Pairs, Revision};

/// The format this code writes. It reads this one only.
const FORMAT: u8 = 1;
const CHECKSUM_AT: usize = 2;
const CHECKSUM_END: usize = 6;

/// What a write did.
#[derive(Clone, Debug)]
pub enum Operation {
    /// The object was not there.
    Create(Arc<Object>),
    /// The object superseded the version at this revision.
    Replace(Arc<Object>, Revision),
    /// The object with this key is gone; its last version is at this revision. No body: it lies in that version.
    Remove(Key, Revision),
}

/// A write, and when it was accepted.
#[derive(Clone, Debug)]
pub struct Record {
    /// What it did.
    pub operation: Operation,
    /// When a store accepted it: its age decides how long what it superseded is kept.
    pub at: Timestamp,
}

impl Record {
    /// The key of the object that was written.
    pub fn key(&self) -> &Key {
        match &self.operation {
            Operation::Create(object) | Operation::Replace(object, _) => &object.key,
            Operation::Remove(key, _) => key,
        }
    }

    /// What this record weighs in a batch.
    pub fn weight(&self) -> usize {
        const OVERHEAD: usize = 128;
        match &self.operation {
            Operation::Create(object) | Operation::Replace(object, _) => object.bytes.len() + OVERHEAD,
            Operation::Remove(..) => OVERHEAD,
        }
    }

    /// Writes the record for its place in the log over what `out` held.
    pub fn encode(&self, type_id: u32, revision: Revision, out: &mut Vec<u8>) {
        let (code, superseded, object) = match &self.operation {
            Operation::Create(object) => (1, Revision::ZERO, Some(object)),
            Operation::Replace(object, superseded) => (2, *superseded, Some(object)),
            Operation::Remove(_, superseded) => (3, *superseded, None),
        };
        out.clear();
        out.extend_from_slice(&[FORMAT, code, 0, 0, 0, 0]);
        out.extend_from_slice(&self.at.0.to_le_bytes());
        out.extend_from_slice(&superseded.0.to_le_bytes());
        put(out, self.key().as_str().as_bytes());
        if let Some(object) = object {
            put_length(out, object.revision_at());
            put_length(out, object.item_at());
            put_pairs(out, &object.labels);
            put_pairs(out, &object.fields);
            put(out, &object.bytes);
        }
        let checksum = checksum(type_id, revision, out).to_le_bytes();
        if let Some(gap) = out.get_mut(CHECKSUM_AT..CHECKSUM_END) {
            gap.copy_from_slice(&checksum);
        }
    }

    /// Reads back what lies at this place in the log.
    pub fn decode(type_id: u32, revision: Revision, bytes: &[u8]) -> Result<Record, EngineError> {
        let damaged = |what: &str| {
            EngineError::Damaged(format!("the record at revision {revision} of type {type_id} {what}"))
        };
        let stored = bytes.get(CHECKSUM_AT..CHECKSUM_END).ok_or_else(|| damaged("is cut short"))?;
        if stored != checksum(type_id, revision, bytes).to_le_bytes() {
            return Err(damaged("has a wrong checksum"));
        }
        if bytes.first() != Some(&FORMAT) {
            let found = bytes.first().copied().unwrap_or_default().into();
            return Err(EngineError::Format { found, known: FORMAT.into() });
        }
        parse(revision, bytes).ok_or_else(|| damaged("does not parse"))
    }
}

fn parse(revision: Revision, bytes: &[u8]) -> Option<Record> {
    let code = *bytes.get(1)?;
    let mut rest = Reader(bytes.get(CHECKSUM_END..)?);
    let at = Timestamp(rest.long()?);
    let superseded = Revision(rest.long()?);
    let key = Key::from_path(rest.text()?);
    let operation = match code {
        1 if superseded == Revision::ZERO => Operation::Create(rest.object(key, revision)?),
        2 if superseded < revision => Operation::Replace(rest.object(key, revision)?, superseded),
        3 if superseded < revision => Operation::Remove(key, superseded),
        _ => return None,
    };
    rest.0.is_empty().then_some(Record { operation, at })
}

/// The checksum of everything but the checksum itself.
fn checksum(type_id: u32, revision: Revision, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&type_id.to_le_bytes());
    hasher.update(&revision.0.to_le_bytes());
    hasher.update(bytes.get(..CHECKSUM_AT).unwrap_or_default());
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

/// Reads from the front of what is left; `None` where it ends too early.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn long(&mut self) -> Option<u64> {
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
        let mut missing = false;
        let pairs = std::iter::from_fn(|| {
            let pair = self.text().and_then(|key| Some((key, self.text()?)));
            missing |= pair.is_none();
            pair
        });
        let pairs = Pairs::from_iter(pairs.take(count));
        (!missing).then_some(pairs)
    }

    fn object(&mut self, key: Key, revision: Revision) -> Option<Arc<Object>> {
        let draft = Draft {
            key,
            revision_at: self.length()?,
            item_at: self.length()?,
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
            revision_at: text.find(r#"","data"#).unwrap(),
            item_at: 12,
            bytes: Bytes::from(text),
            fields: labels.iter().map(|(key, value)| (value.as_str(), key.as_str())).collect(),
            labels: labels.into_iter().collect(),
        };
        Arc::new(Object::new(draft, revision))
    }

    fn records() -> impl Strategy<Value = (Record, Revision)> {
        let labels = prop::collection::vec(("[a-z]{0,8}", "[a-z]{0,8}"), 0..4);
        (0u8..3, "[a-z]{0,40}", labels, 3u64..u64::MAX, any::<u64>()).prop_map(
            |(kind, body, labels, revision, at)| {
                let revision = Revision(revision);
                let operation = match kind {
                    0 => Operation::Create(object(&body, labels, revision)),
                    1 => Operation::Replace(object(&body, labels, revision), Revision(revision.0 - 1)),
                    _ => Operation::Remove(Key::cluster("gone"), Revision(2)),
                };
                (Record { operation, at: Timestamp(at) }, revision)
            },
        )
    }

    fn same(a: &Record, b: &Record) -> bool {
        let objects = |a: &Arc<Object>, b: &Arc<Object>| {
            a.key == b.key
                && a.revision == b.revision
                && a.bytes == b.bytes
                && a.labels == b.labels
                && a.fields == b.fields
                && (a.revision_at(), a.item_at()) == (b.revision_at(), b.item_at())
        };
        a.at == b.at
            && match (&a.operation, &b.operation) {
                (Operation::Create(a), Operation::Create(b)) => objects(a, b),
                (Operation::Replace(a, x), Operation::Replace(b, y)) => objects(a, b) && x == y,
                (Operation::Remove(a, x), Operation::Remove(b, y)) => (a, x) == (b, y),
                _ => false,
            }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back((record, revision) in records()) {
            let mut bytes = Vec::new();
            record.encode(7, revision, &mut bytes);
            prop_assert!(same(&Record::decode(7, revision, &bytes).unwrap(), &record));
        }

        #[test]
        fn damage_is_found((record, revision) in records(), at: prop::sample::Index, bit in 0u8..8, cut: prop::sample::Index) {
            let mut bytes = Vec::new();
            record.encode(7, revision, &mut bytes);
            let whole = bytes.clone();
            bytes[at.index(whole.len())] ^= 1 << bit;
            prop_assert!(Record::decode(7, revision, &bytes).is_err());
            prop_assert!(Record::decode(7, revision, &whole[..cut.index(whole.len())]).is_err());
            prop_assert!(Record::decode(8, revision, &whole).is_err());
            prop_assert!(Record::decode(7, Revision(revision.0 - 1), &whole).is_err());
        }
    }

    #[test]
    fn a_sound_record_of_another_format_is_named_as_such() {
        let record =
            Record { operation: Operation::Remove(Key::cluster("a"), Revision(2)), at: Timestamp(0) };
        let mut bytes = Vec::new();
        record.encode(1, Revision(3), &mut bytes);
        bytes[0] = FORMAT + 1;
        let sum = checksum(1, Revision(3), &bytes).to_le_bytes();
        bytes[CHECKSUM_AT..CHECKSUM_END].copy_from_slice(&sum);
        let error = Record::decode(1, Revision(3), &bytes).unwrap_err();
        assert!(matches!(error, EngineError::Format { found: 2, known: 1 }), "{error}");
    }
}
