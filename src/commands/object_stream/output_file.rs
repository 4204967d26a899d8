//! A file that appears under its name only when it is complete.

use std::fs::{File, OpenOptions, remove_file, rename};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use openssl::rand::rand_bytes;

/// The file is only for its owner: it may contain Secrets.
const MODE: u32 = 0o600;

/// A file in the making, under another name in the same directory. Dropped before [`OutputFile::publish`], it is removed.
pub(crate) struct OutputFile {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    is_published: bool,
}

impl OutputFile {
    /// Begins a file that will have this path.
    pub(crate) fn create(path: &Path) -> io::Result<OutputFile> {
        let Some(name) = path.file_name() else { return Err(io::ErrorKind::IsADirectory.into()) };
        let mut temporary_name = std::ffi::OsString::from(".");
        temporary_name.push(name);
        // Two exports to the same file do not write into each other. A process id would not do: in a container it is the same one
        // each time, and a file that a killed export has left behind would be in the way of all later ones.
        let mut suffix = [0; 8];
        rand_bytes(&mut suffix).map_err(io::Error::other)?;
        temporary_name.push(format!(".{:016x}.partial", u64::from_le_bytes(suffix)));
        let temporary = path.with_file_name(temporary_name);
        let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&temporary)?;
        Ok(OutputFile { file, temporary, path: path.to_owned(), is_published: false })
    }

    /// Reads what was written so far, from the beginning.
    pub(crate) fn reader(&self) -> io::Result<File> {
        File::open(&self.temporary)
    }

    /// Gives the file its name, once its contents are on the disk.
    pub(crate) fn publish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        rename(&self.temporary, &self.path)?;
        self.is_published = true;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if !self.is_published {
            // What is left behind says by its name that it is incomplete.
            let _ = remove_file(&self.temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn file_appears_complete_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("objects.jsonl");
        let entries = || fs::read_dir(directory.path()).unwrap().count();
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"a").unwrap();
        assert!(!path.exists());
        drop(file);
        assert_eq!(entries(), 0);
        fs::write(&path, "old").unwrap();
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        file.publish().unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), entries()), ("new", 1));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert!(OutputFile::create(&directory.path().join("no/such")).is_err());
    }

    #[test]
    fn file_of_a_killed_process_is_not_in_the_way() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("objects.jsonl");
        std::mem::forget(OutputFile::create(&path).unwrap());
        OutputFile::create(&path).unwrap().publish().unwrap();
        assert!(path.exists());
    }
}
