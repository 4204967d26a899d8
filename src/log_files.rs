//! The log files of this host that `--enable-logs-handler` serves: opened, listed and read on threads that may wait for the disk.
//!
//! Everything that is opened lies beneath one directory. Symbolic links are followed as long as they lead to a place beneath it: whoever
//! may write a link there is often a pod with this directory as a volume, and must not choose which files of the host are read with
//! the rights of this server. Pipes, sockets and devices are not opened, because to open one may wait for ever, or do something.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use crate::limits::{LOG_CHUNK_BYTES, LOG_NAME_OVERHEAD, LOG_NAMES_BYTES, LOG_OPEN_FILES};

/// The directory that is served.
const DIRECTORY: &str = "/var/log";

/// The served directory.
pub struct LogFiles {
    directory: PathBuf,
    slots: Arc<Semaphore>,
}

/// Why nothing was opened.
#[derive(Debug)]
pub enum OpenError {
    /// Too many files are open.
    Busy,
    /// The system said so.
    Failed(io::Error),
}

/// What a path names.
pub enum Entry {
    /// A regular file.
    File(OpenFile),
    /// A directory.
    Directory(OpenFile),
}

/// An open file or directory. Cheap to clone.
#[derive(Clone)]
pub struct OpenFile {
    handle: Arc<Handle>,
    /// Its size when it was opened.
    pub bytes: u64,
    /// When it was changed, if HTTP can say so.
    pub modified: Option<Modified>,
}

struct Handle {
    file: File,
    /// Until the last read has ended, also that of a client that is gone.
    _slot: OwnedSemaphorePermit,
}

/// The time of a change in whole seconds since 1970, which is later than that and earlier than the year 10000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Modified(u64);

/// A name in a directory.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedName {
    /// The name.
    pub name: OsString,
    /// Whether it is that of a directory itself, not of a link to one.
    pub is_directory: bool,
}

impl Modified {
    /// The beginning of the year 10000.
    const END: u64 = 253_402_300_800;

    /// This number of seconds, unless it is out of range.
    pub fn from_seconds(seconds: u64) -> Option<Modified> {
        (1..Modified::END).contains(&seconds).then_some(Modified(seconds))
    }

    /// The number of seconds.
    pub fn seconds(self) -> u64 {
        self.0
    }
}

impl LogFiles {
    /// The files of the usual directory, or of another one.
    pub fn new(directory: Option<PathBuf>) -> LogFiles {
        let directory = directory.unwrap_or_else(|| PathBuf::from(DIRECTORY));
        LogFiles { directory, slots: Arc::new(Semaphore::new(LOG_OPEN_FILES)) }
    }

    /// Opens what lies at a path of plain names beneath the directory.
    pub async fn open(&self, names: PathBuf) -> Result<Entry, OpenError> {
        let slot = self.slots.clone().try_acquire_owned().map_err(|_| OpenError::Busy)?;
        let directory = self.directory.clone();
        let opened = on_blocking_thread(move || {
            let (file, metadata) = open_beneath(&directory, &names)?;
            let open_file = OpenFile {
                handle: Arc::new(Handle { file, _slot: slot }),
                bytes: metadata.len(),
                modified: u64::try_from(metadata.mtime()).ok().and_then(Modified::from_seconds),
            };
            Ok(if metadata.is_dir() { Entry::Directory(open_file) } else { Entry::File(open_file) })
        });
        opened.await.map_err(OpenError::Failed)
    }
}

impl OpenFile {
    /// Reads a piece, at most [`LOG_CHUNK_BYTES`]. A file that has become shorter is an error.
    pub async fn read(&self, offset: u64, bytes: usize) -> io::Result<Bytes> {
        let handle = self.handle.clone();
        on_blocking_thread(move || {
            let mut piece = vec![0; bytes.min(LOG_CHUNK_BYTES)];
            handle.file.read_exact_at(&mut piece, offset)?;
            Ok(piece.into())
        })
        .await
    }

    /// Lists a directory, in order, and makes a page of the names, on the thread that has read them.
    pub async fn list(&self, render: fn(&[ListedName]) -> String) -> io::Result<String> {
        let handle = self.handle.clone();
        on_blocking_thread(move || Ok(render(&names(&handle.file)?))).await
    }
}

async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Opens a file or a directory. The path is resolved first; then no link is followed any more, so that none can be put there meanwhile.
fn open_beneath(directory: &Path, names: &Path) -> io::Result<(File, Metadata)> {
    let root = fs::canonicalize(directory)?;
    let target = fs::canonicalize(root.join(names))?;
    // As if it did not exist, because a link must not tell what exists elsewhere, either.
    let beneath = target.strip_prefix(&root).map_err(|_| io::Error::from(io::ErrorKind::NotFound))?;
    let place = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let through = place | OFlag::O_DIRECTORY;
    let mut parent = openat(nix::fcntl::AT_FDCWD, &root, through, Mode::empty())?;
    let mut components = beneath.iter().peekable();
    let mut last = std::ffi::OsStr::new(".");
    while let Some(component) = components.next() {
        if components.peek().is_some() {
            parent = openat(&parent, component, through, Mode::empty())?;
        } else {
            last = component;
        }
    }
    // The place is fixed and looked at before it is opened: to open a device may do something.
    let place = File::from(openat(&parent, last, place, Mode::empty())?);
    let metadata = place.metadata()?;
    if !metadata.is_file() && !metadata.is_dir() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is neither a file nor a directory"));
    }
    Ok((File::open(format!("/proc/self/fd/{}", place.as_raw_fd()))?, metadata))
}

/// The names in an open directory. It is read by its descriptor, because another one may have its path by now.
fn names(directory: &File) -> io::Result<Vec<ListedName>> {
    let mut names = Vec::new();
    let mut bytes = 0;
    for entry in fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))? {
        let entry = entry?;
        let name = entry.file_name();
        bytes += name.len() + LOG_NAME_OVERHEAD;
        if bytes > LOG_NAMES_BYTES {
            return Err(io::Error::other("the directory has too many entries to list"));
        }
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        names.push(ListedName { name, is_directory });
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn kind(directory: &Path, names: &str) -> io::ErrorKind {
        open_beneath(directory, Path::new(names)).unwrap_err().kind()
    }

    #[test]
    fn links_are_followed_beneath_the_directory_alone() {
        let outer = tempfile::tempdir().unwrap();
        let (root, outside) = (outer.path().join("log"), outer.path().join("secret"));
        fs::create_dir_all(root.join("pods/a")).unwrap();
        fs::write(root.join("pods/a/0.log"), "zero").unwrap();
        fs::write(&outside, "secret").unwrap();
        symlink(root.join("pods/a/0.log"), root.join("absolute")).unwrap();
        symlink("pods/a/0.log", root.join("relative")).unwrap();
        symlink("pods", root.join("directory")).unwrap();
        symlink(&outside, root.join("out")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        for names in ["pods/a/0.log", "absolute", "relative", "directory/a/0.log"] {
            let (file, metadata) = open_beneath(&root, Path::new(names)).unwrap();
            assert_eq!((io::read_to_string(file).unwrap().as_str(), metadata.len()), ("zero", 4), "{names}");
        }
        assert!(open_beneath(&root, Path::new("")).unwrap().1.is_dir());
        for names in ["out", "up", "up/secret", "../secret"] {
            assert_eq!(kind(&root, names), io::ErrorKind::NotFound, "{names}");
        }
        assert_eq!(kind(&root, "dangling"), io::ErrorKind::NotFound);
        // The directory itself may be a link.
        let link = outer.path().join("link");
        symlink(&root, &link).unwrap();
        assert!(open_beneath(&link, Path::new("absolute")).is_ok());
    }

    #[test]
    fn pipes_and_sockets_are_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let _listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        nix::unistd::mkfifo(&directory.path().join("pipe"), Mode::S_IRWXU).unwrap();
        for name in ["socket", "pipe"] {
            assert_eq!(kind(directory.path(), name), io::ErrorKind::PermissionDenied, "{name}");
        }
    }

    #[test]
    fn listing_is_sorted_and_bounded() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b", "a", "c"] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        fs::create_dir(directory.path().join("B")).unwrap();
        symlink("B", directory.path().join("link")).unwrap();
        let listed = names(&File::open(directory.path()).unwrap()).unwrap();
        let listed: Vec<_> =
            listed.iter().map(|listed| (listed.name.to_str().unwrap(), listed.is_directory)).collect();
        assert_eq!(listed, [("B", true), ("a", false), ("b", false), ("c", false), ("link", false)]);
        let long = |number: usize| format!("{number:0>200}");
        for number in 0..=LOG_NAMES_BYTES / (200 + LOG_NAME_OVERHEAD) {
            fs::write(directory.path().join(long(number)), "").unwrap();
        }
        assert!(names(&File::open(directory.path()).unwrap()).is_err());
    }

    #[actix_rt::test]
    async fn open_files_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a"), "0123456789").unwrap();
        let logs = LogFiles::new(Some(directory.path().to_owned()));
        let mut open = Vec::new();
        for _ in 0..LOG_OPEN_FILES {
            let Ok(Entry::File(file)) = logs.open("a".into()).await else { panic!("it can be opened") };
            open.push(file);
        }
        assert!(matches!(logs.open("a".into()).await, Err(OpenError::Busy)));
        let last = open.pop().unwrap();
        let copy = last.clone();
        drop(last);
        assert!(matches!(logs.open("a".into()).await, Err(OpenError::Busy)), "a copy is still open");
        assert_eq!(copy.read(8, 2).await.unwrap(), "89");
        assert_eq!(copy.read(8, 3).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        drop(copy);
        assert!(logs.open("a".into()).await.is_ok());
    }
}
