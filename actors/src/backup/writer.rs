//! Writes a backup.

use std::io::{self, Write};

use pilothouse_types::object::Revision;

use super::{About, BackedUpType, FORMAT, MAGIC, Totals, kind};

/// Writes the frames of a backup into `W`.
pub struct BackupWriter<W> {
    out: W,
    /// The checksums of all frames so far.
    frames: crc32fast::Hasher,
    totals: Totals,
    /// A buffer for frames, kept so that a record allocates nothing.
    scratch: Vec<u8>,
}

impl<W: Write> BackupWriter<W> {
    /// Writes the head of the file.
    pub fn begin(mut out: W, about: &About) -> io::Result<BackupWriter<W>> {
        out.write_all(MAGIC)?;
        out.write_all(&FORMAT.to_le_bytes())?;
        let (frames, totals) = (crc32fast::Hasher::new(), Totals::default());
        let mut writer = BackupWriter { out, frames, totals, scratch: Vec::new() };
        let text = format!("{}\n{}", about.created.0, about.version);
        writer.frame(kind::ABOUT, &[text.as_bytes()])?;
        Ok(writer)
    }

    /// Begins the next type.
    pub fn begin_type(&mut self, backed_up: &BackedUpType) -> io::Result<()> {
        self.totals.types += 1;
        let BackedUpType { id, name, last } = backed_up;
        self.frame(kind::TYPE, &[&id.to_le_bytes(), &last.0.to_le_bytes(), name.as_str().as_bytes()])
    }

    /// Adds a record of that type, as it is in the log.
    pub fn record(&mut self, revision: Revision, bytes: &[u8]) -> io::Result<()> {
        self.totals.records += 1;
        self.frame(kind::RECORD, &[&revision.0.to_le_bytes(), bytes])
    }

    /// Writes the end. Without it the file counts as cut.
    pub fn finish(mut self) -> io::Result<(W, Totals)> {
        let Totals { types, records } = self.totals;
        let frames = self.frames.clone().finalize();
        self.frame(kind::END, &[&types.to_le_bytes(), &records.to_le_bytes(), &frames.to_le_bytes()])?;
        self.out.flush()?;
        Ok((self.out, self.totals))
    }

    fn frame(&mut self, kind: u8, parts: &[&[u8]]) -> io::Result<()> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let length = u32::try_from(length).map_err(io::Error::other)?;
        self.scratch.clear();
        self.scratch.push(kind);
        self.scratch.extend_from_slice(&length.to_le_bytes());
        for part in parts {
            self.scratch.extend_from_slice(part);
        }
        let checksum = crc32fast::hash(&self.scratch).to_le_bytes();
        self.frames.update(&checksum);
        self.scratch.extend_from_slice(&checksum);
        self.out.write_all(&self.scratch)
    }
}
