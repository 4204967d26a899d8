//! The file of a backup: everything that a log held at one moment, with checksums, so that a damaged or cut file is never restored
//! for a whole one.
//!
//! The file is [`MAGIC`], the version of its format as u32, and frames. A frame is its kind as u8, the length of its payload as u32,
//! the payload, and the CRC-32 of all that. Integers are little endian. In order:
//!
//! | frame | payload |
//! |---|---|
//! | about | when it was begun in microseconds, a line feed, the version of the server |
//! | type | id u32, last revision u64, name; followed by its records |
//! | record | revision u64, and the record as it is in the log: encrypted if it is encrypted there |
//! | end | number of types u64, number of records u64, CRC-32 of the checksums of all frames before |
//!
//! A file without its end is cut.

mod reader;
mod writer;

pub use reader::{BackupReader, Entry};
pub use writer::BackupWriter;

use std::io::{self, Write};

use pilothouse_types::clock::Timestamp;
use pilothouse_types::object::{Revision, TypeName};

/// The first bytes of every backup.
const MAGIC: &[u8; 17] = b"pilothouse-backup";
/// The format that this code writes, and the only one that it reads.
const FORMAT: u32 = 1;
/// The most bytes of one frame: a record with its head, and some more. A larger length is damage.
const MAX_FRAME_BYTES: usize = 64 << 20;

/// The kinds of frames.
mod kind {
    pub(super) const ABOUT: u8 = 1;
    pub(super) const TYPE: u8 = 2;
    pub(super) const RECORD: u8 = 3;
    pub(super) const END: u8 = 4;
}

/// What a backup says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The version of the server that wrote it.
    pub version: String,
    /// When it was begun.
    pub created: Timestamp,
}

/// A type in a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackedUpType {
    /// Its number in the log, to which the checksums of its records refer.
    pub id: u32,
    /// Its name.
    pub name: TypeName,
    /// Its counter.
    pub last: Revision,
}

/// A log that can be backed up while it is written.
pub trait BackupSource: Send + Sync {
    /// Writes everything that the log holds at this moment. It blocks its thread, and ends with the first error of `out`.
    fn write_to(&self, about: &About, out: &mut dyn Write) -> Result<Totals, BackupError>;
}

/// How much a backup holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Types, with or without records.
    pub types: u64,
    /// Records of all types.
    pub records: u64,
}

/// Why a backup cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The file is no backup.
    #[error("this is not a backup of pilothouse")]
    NotABackup,
    /// A later version wrote it.
    #[error("the backup is in format {0}, this version reads format {FORMAT}: use a newer version")]
    Format(u32),
    /// The file ends too early.
    #[error("the backup is cut: it ends before its last frame, at byte {0}")]
    Cut(u64),
    /// The content was changed.
    #[error("the backup is damaged at byte {offset}: {problem}")]
    Damaged {
        /// Where the frame begins.
        offset: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The log cannot be read.
    #[error("the store cannot be backed up: {0}")]
    Source(String),
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Types: their last revisions, and their records.
    type Content = Vec<(u64, Vec<Vec<u8>>)>;

    fn written(types: &[(u64, Vec<Vec<u8>>)]) -> Vec<u8> {
        let about = About { version: "1.2.3".to_owned(), created: Timestamp(5_000_000) };
        let mut writer = BackupWriter::begin(Vec::new(), &about).unwrap();
        for ((last, records), id) in types.iter().zip(1..) {
            let name = TypeName::new(&format!("type-{id}"));
            writer.begin_type(&BackedUpType { id, name, last: Revision(*last) }).unwrap();
            for (record, revision) in records.iter().zip(2..) {
                writer.record(Revision(revision), record).unwrap();
            }
        }
        writer.finish().unwrap().0
    }

    /// The types and records of a backup, or why it cannot be read.
    fn read(bytes: &[u8]) -> Result<Content, BackupError> {
        let (mut reader, about) = BackupReader::open(bytes)?;
        assert_eq!(about, About { version: "1.2.3".to_owned(), created: Timestamp(5_000_000) });
        let mut types: Content = Vec::new();
        loop {
            match reader.next()? {
                Entry::Type(backed_up) => types.push((backed_up.last.0, Vec::new())),
                Entry::Record(_, bytes) => types.last_mut().unwrap().1.push(bytes.to_vec()),
                Entry::End(totals) => {
                    assert_eq!(totals.types, types.len() as u64);
                    assert_eq!(totals.records, types.iter().map(|(_, records)| records.len() as u64).sum());
                    return Ok(types);
                }
            }
        }
    }

    fn types() -> impl Strategy<Value = Content> {
        let record = prop::collection::vec(any::<u8>(), 0..40);
        prop::collection::vec((1u64..99, prop::collection::vec(record, 0..5)), 0..5)
    }

    proptest! {
        #[test]
        fn backup_round_trips(types in types()) {
            prop_assert_eq!(read(&written(&types)).unwrap(), types);
        }

        #[test]
        fn damaged_or_cut_backup_is_refused(types in types(), flip: prop::sample::Index, bit in 0u8..8, cut: prop::sample::Index) {
            let whole = written(&types);
            let (flip, cut) = (flip.index(whole.len()), cut.index(whole.len()));
            prop_assert!(read(&whole[..cut]).is_err());
            let mut damaged = whole.clone();
            damaged[flip] ^= 1 << bit;
            prop_assert!(read(&damaged).is_err());
            let mut longer = whole;
            longer.push(0);
            prop_assert!(read(&longer).is_err(), "nothing follows the end");
        }
    }

    #[test]
    fn frames_that_were_swapped_are_refused() {
        let whole = written(&[(9, vec![b"one".to_vec(), b"two".to_vec()])]);
        let length = 1 + 4 + 8 + 3 + 4;
        let end = 1 + 4 + 8 + 8 + 4 + 4;
        let first = whole.len() - end - 2 * length;
        let mut swapped = whole.clone();
        swapped[first..first + length].copy_from_slice(&whole[first + length..first + 2 * length]);
        swapped[first + length..first + 2 * length].copy_from_slice(&whole[first..first + length]);
        assert!(matches!(read(&swapped), Err(BackupError::Damaged { .. })));
    }

    #[test]
    fn other_files_and_later_formats_are_named_as_such() {
        assert!(matches!(read(b"").unwrap_err(), BackupError::NotABackup));
        assert!(matches!(
            read(b"some other file, which is long enough").unwrap_err(),
            BackupError::NotABackup
        ));
        let mut later = written(&[]);
        later[MAGIC.len()] = 2;
        assert!(matches!(read(&later).unwrap_err(), BackupError::Format(2)));
    }
}
