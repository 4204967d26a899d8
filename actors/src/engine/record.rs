//! The encoding of one version of one object in the log.
//!
//! Layout, integers little endian, texts and bytes preceded by their length as u32:
//!
//! ```text
//! format u8 · operation u8 · checksum u32 · checksum of the head u32 · accepted at u64 · log time u64 · superseded revision u64 · key
//! and, if an object was written:
//! offset of the revision u32 · offset of the item u32 · labels · fields · body
//! or, if it is encrypted:
//! the encrypted content
//! ```
//!
//! Labels and fields are a count as u32 and that many pairs of texts: loading never parses the body. The checksum covers
//! everything else and also the log key (type and revision), so a misplaced record is detected, too. The head, which is the
//! first line, has a checksum of its own: damage behind it costs one object and not the store.
//!
//! The head of an encrypted record has a [hidden key](Key::hidden); `encryption.rs` describes the content.
//!
//! Records of format 2 have no log time. They count as written when the log was new: they stay in the history for the whole time
//! that the first server of this format keeps them. Records of format 3 are never encrypted.

use std::sync::Arc;

use bytes::Bytes;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::object::{Draft, Key, Object, Pairs, Revision, TypeName, UnreadableReason};

use crate::encryption::{DecryptionError, Encryption};
use crate::engine::EngineError;
use crate::log_time::{LogTime, WriteTime};

/// The format this code writes.
const FORMAT: u8 = 4;
/// The oldest format that it reads.
const OLDEST_FORMAT: u8 = 2;
const CHECKSUM_OFFSET: usize = 2;
const CHECKSUM_END: usize = 6;
const HEAD_OFFSET: usize = 10;
/// What key, labels and offsets take beside the body, usually.
const CONTENT_OVERHEAD: usize = 512;

/// The operations of records.
mod code {
    pub(super) const CREATE: u8 = 1;
    pub(super) const REPLACE: u8 = 2;
    pub(super) const REMOVE: u8 = 3;
    pub(super) const ADVANCE_REVISION: u8 = 4;
    pub(super) const CREATE_ENCRYPTED: u8 = 5;
    pub(super) const REPLACE_ENCRYPTED: u8 = 6;
}

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
    /// What the log gets instead of the object; `None` for clear text.
    pub encrypted: Option<EncryptedRecord>,
}

/// What is written of an encrypted object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptedRecord {
    /// Stands for its key.
    pub hidden_key: Key,
    /// Its content; empty if it was removed.
    pub content: Bytes,
}

impl Record {
    /// A record in clear text.
    pub fn clear(operation: Operation, accepted_at: WriteTime) -> Record {
        Record { operation, accepted_at, encrypted: None }
    }

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
        OVERHEAD
            + match (&self.encrypted, &self.operation) {
                (Some(encrypted), _) => encrypted.content.len(),
                (None, Operation::Create(object) | Operation::Replace(object, _)) => object.bytes.len(),
                (None, Operation::Remove(..) | Operation::AdvanceRevision(_)) => 0,
            }
    }

    /// Encodes the record for its key in the log. Replaces the content of `out`.
    pub fn encode(&self, type_id: u32, revision: Revision, out: &mut Vec<u8>) {
        let is_encrypted = self.encrypted.is_some();
        let (code, superseded, object) = match &self.operation {
            Operation::Create(object) if is_encrypted => {
                (code::CREATE_ENCRYPTED, Revision::ZERO, Some(object))
            }
            Operation::Create(object) => (code::CREATE, Revision::ZERO, Some(object)),
            Operation::Replace(object, superseded) if is_encrypted => {
                (code::REPLACE_ENCRYPTED, *superseded, Some(object))
            }
            Operation::Replace(object, superseded) => (code::REPLACE, *superseded, Some(object)),
            Operation::Remove(_, superseded) => (code::REMOVE, *superseded, None),
            Operation::AdvanceRevision(after) => (code::ADVANCE_REVISION, *after, None),
        };
        out.clear();
        out.extend_from_slice(&[FORMAT, code, 0, 0, 0, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&self.accepted_at.wall.0.to_le_bytes());
        out.extend_from_slice(&self.accepted_at.log.0.to_le_bytes());
        out.extend_from_slice(&superseded.0.to_le_bytes());
        let key = self.encrypted.as_ref().map_or(self.key(), |encrypted| encrypted.hidden_key.as_str());
        put(out, key.as_bytes());
        let head = head_checksum(type_id, revision, out, out.len()).to_le_bytes();
        if let Some(field) = out.get_mut(CHECKSUM_END..HEAD_OFFSET) {
            field.copy_from_slice(&head);
        }
        match (object, &self.encrypted) {
            (Some(_), Some(encrypted)) => put(out, &encrypted.content),
            (Some(object), None) => {
                put_offsets(out, object.revision_offset(), object.item_offset());
                put_pairs(out, &object.labels);
                put_pairs(out, &object.fields);
                put(out, &object.bytes);
            }
            (None, _) => {}
        }
        let checksum = checksum(type_id, revision, out).to_le_bytes();
        if let Some(field) = out.get_mut(CHECKSUM_OFFSET..CHECKSUM_END) {
            field.copy_from_slice(&checksum);
        }
    }
}

/// The content of an encrypted record, before it is encrypted.
pub fn encode_content(draft: &Draft) -> Vec<u8> {
    let mut out = Vec::with_capacity(draft.bytes.len() + CONTENT_OVERHEAD);
    put(&mut out, draft.key.as_str().as_bytes());
    put_offsets(&mut out, draft.revision_offset, draft.item_offset);
    put_pairs(&mut out, &draft.labels);
    put_pairs(&mut out, &draft.fields);
    put(&mut out, &draft.bytes);
    out
}

fn parse_content(content: &[u8]) -> Option<Draft> {
    let mut rest = Reader(content);
    let key = Key::from_path(rest.text()?);
    let draft = rest.draft(key)?;
    let fits = |offset| offset <= draft.bytes.len();
    (rest.0.is_empty() && fits(draft.revision_offset) && fits(draft.item_offset)).then_some(draft)
}

/// Decodes the records of one type.
pub struct RecordDecoder<'a> {
    type_id: u32,
    type_name: &'a TypeName,
    encryption: &'a dyn Encryption,
    /// Why its records may not be in clear text.
    clear: Result<(), String>,
}

impl<'a> RecordDecoder<'a> {
    /// A decoder for the records of this type.
    pub fn new(type_id: u32, type_name: &'a TypeName, encryption: &'a dyn Encryption) -> RecordDecoder<'a> {
        RecordDecoder { type_id, type_name, encryption, clear: encryption.check_clear(type_name) }
    }

    /// Decodes the record at this revision. An object is [`Object::unreadable`] if only the part behind the head is damaged, or if
    /// it cannot be decrypted.
    pub fn decode(&self, revision: Revision, bytes: &[u8]) -> Result<Record, EngineError> {
        let (head, content) = RecordHead::split(self.type_id, revision, bytes)?;
        let object = || match content {
            Some(content) => self.object(&head, revision, content),
            None => Ok(head.unreadable(revision, UnreadableReason::Damaged)),
        };
        let operation = match head.code {
            code::CREATE | code::CREATE_ENCRYPTED => Operation::Create(object()?),
            code::REPLACE | code::REPLACE_ENCRYPTED => Operation::Replace(object()?, head.superseded),
            code::REMOVE => Operation::Remove(head.key, head.superseded),
            _ => Operation::AdvanceRevision(head.superseded),
        };
        Ok(Record::clear(operation, head.accepted_at))
    }

    fn object(
        &self,
        head: &RecordHead,
        revision: Revision,
        content: &[u8],
    ) -> Result<Arc<Object>, EngineError> {
        let object = match head.is_encrypted() {
            true => self.decrypt(head, revision, content)?,
            false => self.clear_object(head, revision, content),
        };
        object.map(Arc::new).ok_or_else(|| damaged(self.type_id, revision, "does not parse"))
    }

    fn clear_object(&self, head: &RecordHead, revision: Revision, content: &[u8]) -> Option<Object> {
        if let Err(reason) = &self.clear {
            return Some(head.undecryptable(revision, reason));
        }
        let mut rest = Reader(content);
        let draft = rest.draft(head.key.clone())?;
        Object::restored(draft, revision).filter(|_| rest.0.is_empty())
    }

    fn decrypt(
        &self,
        head: &RecordHead,
        revision: Revision,
        content: &[u8],
    ) -> Result<Option<Object>, EngineError> {
        let mut rest = Reader(content);
        let Some(encrypted) = rest.bytes().filter(|_| rest.0.is_empty()) else { return Ok(None) };
        let decrypted = match self.encryption.decrypt(self.type_name, &head.key, encrypted) {
            Ok(decrypted) => decrypted,
            Err(DecryptionError::Impossible(reason)) => {
                return Ok(Some(head.undecryptable(revision, &reason)));
            }
            Err(DecryptionError::Unavailable(reason)) => {
                return Err(EngineError::DecryptionUnavailable(reason));
            }
        };
        // Not every cipher notices that its text belongs to another object, or that a wrong key has made noise of it.
        let draft = parse_content(&decrypted.content)
            .filter(|draft| self.encryption.hidden_key(self.type_name, &draft.key) == head.key);
        Ok(Some(match draft {
            Some(draft) => Object::new(draft, revision).with_encryption(Some(decrypted.key_id)),
            None => head.undecryptable(revision, "it was decrypted to something else than this object"),
        }))
    }
}

/// The head of a record: all that the order of a type is made of. It is never encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHead {
    code: u8,
    /// When a store accepted the write.
    pub accepted_at: WriteTime,
    /// The version that it superseded; for a revision without a change the one before it.
    pub superseded: Revision,
    /// The key of the object; a hidden one if the object is encrypted.
    pub key: Key,
}

impl RecordHead {
    /// The head of a record, and what follows it; `None` if that is damaged.
    pub fn split(
        type_id: u32,
        revision: Revision,
        bytes: &[u8],
    ) -> Result<(RecordHead, Option<&[u8]>), EngineError> {
        let damaged = |problem: &str| damaged(type_id, revision, problem);
        let stored = bytes.get(CHECKSUM_OFFSET..CHECKSUM_END).ok_or_else(|| damaged("is cut short"))?;
        let is_whole = stored == checksum(type_id, revision, bytes).to_le_bytes();
        let format = bytes.first().copied().unwrap_or_default();
        if is_whole && !is_known_format(format) {
            return Err(damaged(&format!("is in the unknown format {format}")));
        }
        let mut rest = Reader(bytes.get(HEAD_OFFSET..).unwrap_or_default());
        let Some(head) = rest.head(revision, bytes).filter(|_| is_known_format(format)) else {
            return Err(damaged(if is_whole { "does not parse" } else { "has a wrong checksum" }));
        };
        if is_whole {
            let is_complete = head.has_content() || rest.0.is_empty();
            return if is_complete { Ok((head, Some(rest.0))) } else { Err(damaged("does not parse")) };
        }
        let expected = head_checksum(type_id, revision, bytes, bytes.len() - rest.0.len());
        match bytes.get(CHECKSUM_END..HEAD_OFFSET) == Some(&expected.to_le_bytes()[..]) {
            true => Ok((head, None)),
            false => Err(damaged("has a wrong checksum")),
        }
    }

    /// How long the record is that these bytes begin with, by what it says itself.
    pub fn stated_length(revision: Revision, bytes: &[u8]) -> Option<usize> {
        let mut rest = Reader(bytes.get(HEAD_OFFSET..)?);
        let head = rest.head(revision, bytes)?;
        if head.is_encrypted() {
            rest.bytes()?;
        } else if head.has_content() {
            rest.draft(head.key)?;
        }
        Some(bytes.len() - rest.0.len())
    }

    /// Whether the record has an object, so that something follows the head.
    pub fn has_content(&self) -> bool {
        !matches!(self.code, code::REMOVE | code::ADVANCE_REVISION)
    }

    /// Whether it is a revision without a change.
    pub fn is_step(&self) -> bool {
        self.code == code::ADVANCE_REVISION
    }

    fn is_encrypted(&self) -> bool {
        matches!(self.code, code::CREATE_ENCRYPTED | code::REPLACE_ENCRYPTED)
    }

    fn unreadable(&self, revision: Revision, reason: UnreadableReason) -> Arc<Object> {
        Arc::new(Object::unreadable(self.key.clone(), revision, reason))
    }

    fn undecryptable(&self, revision: Revision, reason: &str) -> Object {
        Object::unreadable(self.key.clone(), revision, UnreadableReason::Undecryptable(reason.to_owned()))
    }
}

fn damaged(type_id: u32, revision: Revision, problem: &str) -> EngineError {
    EngineError::Damaged(format!("the record at revision {revision} of type {type_id} {problem}"))
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

fn put_offsets(out: &mut Vec<u8>, revision_offset: usize, item_offset: usize) {
    put_length(out, revision_offset);
    put_length(out, item_offset);
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

    /// The head that begins here, of the record with these bytes.
    fn head(&mut self, revision: Revision, bytes: &[u8]) -> Option<RecordHead> {
        let wall = Timestamp(self.u64()?);
        let log = if *bytes.first()? == OLDEST_FORMAT { LogTime::ZERO } else { LogTime(self.u64()?) };
        let accepted_at = WriteTime { wall, log };
        let mut superseded = Revision(self.u64()?);
        let key = Key::from_path(self.text()?);
        let code = *bytes.get(1)?;
        let is_valid = match code {
            code::CREATE | code::CREATE_ENCRYPTED => superseded == Revision::ZERO,
            code::REPLACE | code::REPLACE_ENCRYPTED | code::REMOVE => superseded < revision,
            code::ADVANCE_REVISION => superseded < revision && key.as_str().is_empty(),
            _ => false,
        };
        if code == code::ADVANCE_REVISION && superseded == Revision::ZERO {
            // Format 2 does not say it, because it has no gaps.
            superseded = Revision(revision.0.checked_sub(1)?);
        }
        is_valid.then_some(RecordHead { code, accepted_at, superseded, key })
    }

    fn draft(&mut self, key: Key) -> Option<Draft> {
        Some(Draft {
            key,
            revision_offset: self.length()?,
            item_offset: self.length()?,
            labels: self.pairs()?,
            fields: self.pairs()?,
            bytes: Bytes::copy_from_slice(self.bytes()?),
        })
    }
}

#[cfg(test)]
mod tests;
