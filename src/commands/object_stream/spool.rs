//! A temporary file with objects, which are read again in another order.

use std::fs::{File, OpenOptions, remove_file};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use pilothouse_apimachinery::json;
use pilothouse_apimachinery::value::Value;

/// Names that are tried before giving up: a process leaves at most one file behind.
const MAX_ATTEMPTS: u32 = 100;
const BUFFER_BYTES: usize = 256 << 10;

/// The place of an object in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    offset: u64,
    length: u32,
}

/// The file while it is written.
pub(crate) struct SpoolWriter {
    file: BufWriter<File>,
    offset: u64,
    buffer: Vec<u8>,
}

/// The file while it is read.
pub(crate) struct Spool {
    file: File,
}

impl SpoolWriter {
    /// An empty file in this directory. It has no name, so that it is gone with the process however that ends, and nobody else can
    /// read the Secrets in it.
    pub(crate) fn create(directory: &Path) -> io::Result<SpoolWriter> {
        let mut attempt = 0;
        let file = loop {
            let path = directory.join(format!(".pilothouse-import-{}-{attempt}", std::process::id()));
            let opened = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
            match opened {
                Ok(file) => {
                    remove_file(&path)?;
                    break file;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < MAX_ATTEMPTS => {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        };
        Ok(SpoolWriter { file: BufWriter::with_capacity(BUFFER_BYTES, file), offset: 0, buffer: Vec::new() })
    }

    /// Appends an object.
    pub(crate) fn push(&mut self, object: &Value) -> io::Result<Span> {
        self.buffer.clear();
        json::write_value(&mut self.buffer, object);
        self.file.write_all(&self.buffer)?;
        let length = u32::try_from(self.buffer.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let span = Span { offset: self.offset, length };
        self.offset += u64::from(length);
        Ok(span)
    }

    /// Everything is written.
    pub(crate) fn finish(self) -> io::Result<Spool> {
        Ok(Spool { file: self.file.into_inner().map_err(io::IntoInnerError::into_error)? })
    }
}

impl Spool {
    /// Reads an object.
    pub(crate) fn read(&self, span: Span) -> io::Result<Value> {
        let mut bytes = vec![0; span.length as usize];
        self.file.read_exact_at(&mut bytes, span.offset)?;
        json::read(&bytes).map_err(io::Error::from)
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec::yaml;

    use super::*;

    #[test]
    fn objects_are_read_in_any_order_from_a_nameless_file() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = SpoolWriter::create(directory.path()).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let objects = ["{a: 1}", "{b: [x, 2.5]}"].map(|text| yaml::read(text.as_bytes()).unwrap());
        let spans = objects.each_ref().map(|object| writer.push(object).unwrap());
        let spool = writer.finish().unwrap();
        assert_eq!(spool.read(spans[1]).unwrap(), objects[1]);
        assert_eq!(spool.read(spans[0]).unwrap(), objects[0]);
    }
}
