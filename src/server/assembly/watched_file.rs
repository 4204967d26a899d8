//! A configuration file that is checked while the server runs.

use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use pilothouse_types::clock::Timestamp;

use crate::limits::CONFIG_FILE_READ_INTERVAL;

/// A file that is checked periodically.
pub(super) struct WatchedFile {
    path: PathBuf,
    /// The text that was used or rejected last.
    text: Vec<u8>,
    /// Modification time and size at the last check. `None` at first, so that the first check finds changes since the start.
    last_stamp: Option<(SystemTime, u64)>,
    read_at: Timestamp,
}

impl WatchedFile {
    /// A file whose text was used.
    pub(super) fn new(path: PathBuf, text: Vec<u8>, now: Timestamp) -> WatchedFile {
        WatchedFile { path, text, last_stamp: None, read_at: now }
    }

    /// The text of the file, if it differs from the last one. Reads only if the file looks changed, or was not read for a while.
    pub(super) fn read_if_changed(&mut self, now: Timestamp) -> Option<io::Result<Vec<u8>>> {
        let metadata = std::fs::metadata(&self.path).ok();
        let stamp = metadata.and_then(|metadata| Some((metadata.modified().ok()?, metadata.len())));
        if stamp == self.last_stamp && now < self.read_at.plus(CONFIG_FILE_READ_INTERVAL) {
            return None;
        }
        (self.last_stamp, self.read_at) = (stamp, now);
        match std::fs::read(&self.path) {
            Ok(text) if text == self.text => None,
            result => Some(result),
        }
    }

    /// Remembers a text that was used or rejected, so that it is not tried again.
    pub(super) fn settle(&mut self, text: Vec<u8>) {
        self.text = text;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn watched_file_is_read_when_changed_and_now_and_then() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "one").unwrap();
        let start = Timestamp(1);
        let mut file = WatchedFile::new(path.clone(), b"zero".to_vec(), start);
        let mut read = |now: Timestamp| {
            let text = file.read_if_changed(now)?.unwrap();
            file.settle(text.clone());
            Some(String::from_utf8(text).unwrap())
        };
        assert_eq!(read(start).as_deref(), Some("one"), "changed since the start");
        assert_eq!(read(start), None);
        std::fs::write(&path, "three").unwrap();
        assert_eq!(read(start).as_deref(), Some("three"));
        // A change that leaves time and size as they are is found later.
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        std::fs::write(&path, "seven").unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert_eq!(read(start.plus(Duration::from_secs(1))), None);
        assert_eq!(read(start.plus(CONFIG_FILE_READ_INTERVAL)).as_deref(), Some("seven"));
        std::fs::remove_file(&path).unwrap();
        assert!(
            file.read_if_changed(start.plus(CONFIG_FILE_READ_INTERVAL)).is_some_and(|read| read.is_err())
        );
    }
}
