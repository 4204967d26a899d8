//! Reads a backup, and refuses everything that is not as it was written.

use std::io::{self, Read};

use pilothouse_types::clock::Timestamp;
use pilothouse_types::object::{Revision, TypeName};

use super::{About, BackedUpType, BackupError, FORMAT, MAGIC, MAX_FRAME_BYTES, Totals, kind};

/// The next content of a backup.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// A type. Its records follow.
    Type(BackedUpType),
    /// A record of the last type, as it was in the log.
    Record(Revision, &'a [u8]),
    /// The backup is whole.
    End(Totals),
}

/// Reads the frames of a backup from `R`, each once and in order. It holds one frame in memory.
pub struct BackupReader<R> {
    input: R,
    /// Where the next frame begins.
    offset: u64,
    frames: crc32fast::Hasher,
    totals: Totals,
    payload: Vec<u8>,
}

impl<R: Read> BackupReader<R> {
    /// Reads the head of the file.
    pub fn open(mut input: R) -> Result<(BackupReader<R>, About), BackupError> {
        let mut magic = [0; MAGIC.len()];
        let mut format = [0; 4];
        match input.read_exact(&mut magic) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(BackupError::NotABackup);
            }
            outcome => outcome?,
        }
        if magic != *MAGIC {
            return Err(BackupError::NotABackup);
        }
        let offset = magic.len() as u64;
        read_exact(&mut input, &mut format, offset)?;
        let format = u32::from_le_bytes(format);
        if format != FORMAT {
            return Err(BackupError::Format(format));
        }
        let (frames, totals, payload) = (crc32fast::Hasher::new(), Totals::default(), Vec::new());
        let mut reader = BackupReader { input, offset: offset + 4, frames, totals, payload };
        let begin = reader.offset;
        let damaged = |problem| BackupError::Damaged { offset: begin, problem };
        if reader.frame()? != kind::ABOUT {
            return Err(damaged("it does not begin with its description"));
        }
        let text = std::str::from_utf8(&reader.payload).ok().and_then(|text| text.split_once('\n'));
        let about = text.and_then(|(created, version)| {
            Some(About { created: Timestamp(created.parse().ok()?), version: version.to_owned() })
        });
        Ok((reader, about.ok_or_else(|| damaged("its description does not parse"))?))
    }

    /// The next entry. After [`Entry::End`] there is none.
    #[expect(
        clippy::should_implement_trait,
        reason = "entries borrow from the reader, which an iterator cannot express"
    )]
    pub fn next(&mut self) -> Result<Entry<'_>, BackupError> {
        let offset = self.offset;
        let frames = self.frames.clone().finalize();
        let damaged = |problem| BackupError::Damaged { offset, problem };
        let kind = self.frame()?;
        let payload = self.payload.as_slice();
        let unparsed = || damaged("a frame does not parse");
        match kind {
            kind::TYPE => {
                self.totals.types += 1;
                Ok(Entry::Type(parse_type(payload).ok_or_else(unparsed)?))
            }
            kind::RECORD if self.totals.types > 0 => {
                self.totals.records += 1;
                let (revision, bytes) = payload.split_first_chunk().ok_or_else(unparsed)?;
                Ok(Entry::Record(Revision(u64::from_le_bytes(*revision)), bytes))
            }
            kind::END => {
                let expected = [self.totals.types.to_le_bytes(), self.totals.records.to_le_bytes()].concat();
                if payload.split_last_chunk() != Some((expected.as_slice(), &frames.to_le_bytes())) {
                    return Err(damaged("frames are missing, or not in order"));
                }
                match self.input.read(&mut [0])? {
                    0 => Ok(Entry::End(self.totals)),
                    _ => Err(damaged("something follows the end")),
                }
            }
            _ => Err(damaged("a frame is of an unknown kind")),
        }
    }

    /// Reads the payload of the next frame, and returns its kind.
    fn frame(&mut self) -> Result<u8, BackupError> {
        let offset = self.offset;
        let mut head = [0; 5];
        read_exact(&mut self.input, &mut head, offset)?;
        let [kind, length @ ..] = head;
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > MAX_FRAME_BYTES {
            return Err(BackupError::Damaged { offset, problem: "a frame is too long" });
        }
        // Not before the bytes are there: the length may be damaged.
        self.payload.clear();
        let read = (&mut self.input).take(length as u64).read_to_end(&mut self.payload)?;
        if read < length {
            return Err(BackupError::Cut(offset));
        }
        let mut stored = [0; 4];
        read_exact(&mut self.input, &mut stored, offset)?;
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&head);
        checksum.update(&self.payload);
        if checksum.finalize().to_le_bytes() != stored {
            return Err(BackupError::Damaged { offset, problem: "a checksum is wrong" });
        }
        self.frames.update(&stored);
        self.offset += (head.len() + length + stored.len()) as u64;
        Ok(kind)
    }
}

fn read_exact(input: &mut impl Read, out: &mut [u8], offset: u64) -> Result<(), BackupError> {
    input.read_exact(out).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => BackupError::Cut(offset),
        _ => BackupError::Io(error),
    })
}

fn parse_type(payload: &[u8]) -> Option<BackedUpType> {
    let (id, rest) = payload.split_first_chunk()?;
    let (last, name) = rest.split_first_chunk()?;
    Some(BackedUpType {
        id: u32::from_le_bytes(*id),
        last: Revision(u64::from_le_bytes(*last)),
        name: TypeName::new(std::str::from_utf8(name).ok()?),
    })
}
