//! The audit log in a file or on standard output. A full file is renamed with a timestamp, and a new one is started; old files
//! are compressed and removed according to the flags, on a thread of their own.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use pilothouse_api::audit::event::Event;
use pilothouse_apimachinery::time;
use pilothouse_types::clock::{Clock, Timestamp};

use super::batches::{EncodedEvent, Writer};
use crate::metrics::audit::Audit as Counts;

/// The mode of a new log file.
const FILE_MODE: u32 = 0o600;
/// The mode of a new directory.
const DIRECTORY_MODE: u32 = 0o700;
/// The suffix of compressed files.
const COMPRESSED_SUFFIX: &str = ".gz";
const DAY_SECONDS: u64 = 86_400;
const MILLISECOND: Duration = Duration::from_millis(1);

/// The rotation settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The maximum size of a file.
    pub bytes: u64,
    /// The maximum number of old files; 0 for no limit.
    pub files: usize,
    /// The maximum age of old files in days; 0 for no limit.
    pub days: u64,
    /// Whether old files are compressed.
    pub compress: bool,
}

/// Creates the file and its directory if missing.
pub fn prepare(path: &Path) -> io::Result<()> {
    if let Some(directory) =
        path.parent().filter(|directory| !directory.as_os_str().is_empty() && !directory.exists())
    {
        fs::create_dir_all(directory)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(DIRECTORY_MODE))?;
    }
    open_append(path, FILE_MODE).map(drop)
}

fn open_append(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(mode).open(path)
}

/// The destination of log lines.
trait Target: io::Write {
    /// Truncates it by this many bytes.
    fn shorten(&mut self, bytes: u64) -> io::Result<()>;
}

impl Target for File {
    fn shorten(&mut self, bytes: u64) -> io::Result<()> {
        // Relative to the current length: another process may have truncated the file.
        self.set_len(self.metadata()?.len().saturating_sub(bytes))
    }
}

/// Appends a whole line or nothing: on a full disk half a line may be written, and the next event would be joined to it.
fn append_whole(target: &mut impl Target, line: &[u8]) -> io::Result<()> {
    let mut rest = line;
    let written = loop {
        match target.write(rest) {
            Ok(0) if !rest.is_empty() => break Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Err(error),
        }
        if rest.is_empty() {
            break Ok(());
        }
    };
    let partial = line.len() - rest.len();
    if written.is_err()
        && partial > 0
        && let Err(error) = target.shorten(partial as u64)
    {
        tracing::warn!(%error, "an audit log line was written only in part");
    }
    written
}

/// A rotated log file.
pub struct LogFile {
    path: PathBuf,
    retention: Retention,
    clock: Clock,
    open: Option<(File, u64)>,
    /// The rotations that cleaning up has not seen; not zero while it runs.
    uncleaned: Arc<AtomicUsize>,
}

impl LogFile {
    /// The file at this path.
    pub fn new(path: PathBuf, retention: Retention, clock: Clock) -> LogFile {
        LogFile { path, retention, clock, open: None, uncleaned: Arc::default() }
    }

    /// Appends a line.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let (length, max_bytes) = (line.len() as u64, self.retention.bytes);
        if length > max_bytes {
            return Err(io::Error::other(format!(
                "write length {length} exceeds maximum file size {max_bytes}"
            )));
        }
        let (mut file, size) = match self.open.take() {
            Some(open) => open,
            None => {
                let file = open_append(&self.path, FILE_MODE)?;
                let size = file.metadata()?.len();
                self.clean_up();
                (file, size)
            }
        };
        let mut size = size;
        if size + length > max_bytes {
            drop(file);
            file = self.rotate()?;
            size = 0;
        }
        append_whole(&mut file, line)?;
        self.open = Some((file, size + length));
        Ok(())
    }

    /// Renames the file with a timestamp, and starts a new one.
    fn rotate(&mut self) -> io::Result<File> {
        let mode = fs::metadata(&self.path).map_or(FILE_MODE, |metadata| metadata.permissions().mode());
        let mut now = self.clock.now();
        while rotated_path(&self.path, now).exists() {
            // Two rotations at the same time must not overwrite each other.
            now = now.plus(MILLISECOND);
        }
        fs::rename(&self.path, rotated_path(&self.path, now))?;
        let file = open_append(&self.path, mode)?;
        self.clean_up();
        Ok(file)
    }

    /// Cleans up old files in the background.
    fn clean_up(&self) {
        let Retention { files, days, compress, .. } = self.retention;
        // Whoever is cleaning up sees the number rise, and does it once more.
        if (files == 0 && days == 0 && !compress) || self.uncleaned.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let (path, retention, now) = (self.path.clone(), self.retention.clone(), self.clock.now());
        let uncleaned = self.uncleaned.clone();
        let work = move || {
            repeat_while_requested(&uncleaned, || {
                if let Err(error) = remove_old_files(&path, &retention, now) {
                    tracing::warn!(%error, "old audit logs cannot be removed");
                }
            });
        };
        if std::thread::Builder::new().name("audit-tidy".to_owned()).spawn(work).is_err() {
            self.uncleaned.store(0, Ordering::Release);
        }
    }
}

/// Does the work until nobody has asked for it since it began.
fn repeat_while_requested(requests: &AtomicUsize, mut work: impl FnMut()) {
    loop {
        let begun = requests.load(Ordering::Acquire);
        work();
        if requests.compare_exchange(begun, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return;
        }
    }
}

/// The stem and the extension of a file's name.
fn stem_and_extension(path: &Path) -> (String, String) {
    let text = |name: Option<&std::ffi::OsStr>| name.map(|name| name.to_string_lossy().into_owned());
    let extension = text(path.extension()).map(|extension| format!(".{extension}")).unwrap_or_default();
    (text(path.file_stem()).unwrap_or_default(), extension)
}

/// The name of a rotated file at this time.
fn rotated_path(path: &Path, now: Timestamp) -> PathBuf {
    let (stem, extension) = stem_and_extension(path);
    let time_text = time::format_seconds(now.unix_seconds()).trim_end_matches('Z').replace(':', "-");
    let millis = now.subsec_micros() / 1_000;
    path.with_file_name(format!("{stem}-{time_text}.{millis:03}{extension}"))
}

/// The rotation time of a file, if it belongs to this log.
fn rotation_time(path: &Path, name: &str) -> Option<Timestamp> {
    let (stem, extension) = stem_and_extension(path);
    let name =
        name.strip_suffix(COMPRESSED_SUFFIX).filter(|_| extension != COMPRESSED_SUFFIX).unwrap_or(name);
    let time_text = name.strip_prefix(&stem)?.strip_prefix('-')?.strip_suffix(extension.as_str())?;
    let (day, time_of_day) = time_text.split_once('T')?;
    let (seconds, micros) =
        time::parse_micros(&format!("{day}T{}000Z", time_of_day.replace('-', ":"))).ok()?;
    Some(Timestamp(u64::try_from(seconds).ok()?.checked_mul(1_000_000)? + u64::from(micros)))
}

/// Removes old files beyond the limits, and compresses the others.
fn remove_old_files(path: &Path, retention: &Retention, now: Timestamp) -> io::Result<()> {
    let directory =
        path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut old = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if let Some(timestamp) = entry.file_name().to_str().and_then(|name| rotation_time(path, name)) {
            old.push((timestamp, entry.path()));
        }
    }
    old.sort_unstable_by(|a, b| b.cmp(a));
    let oldest = now.minus(Duration::from_secs(retention.days.saturating_mul(DAY_SECONDS)));
    // A file and its compressed copy, if the server ended in between, count as one.
    let mut times: Vec<Timestamp> = old.iter().map(|(timestamp, _)| *timestamp).collect();
    times.dedup();
    let count = if retention.files == 0 { times.len() } else { retention.files.min(times.len()) };
    let kept = times.get(..count).unwrap_or_default();
    let is_kept =
        |timestamp: &Timestamp| kept.contains(timestamp) && !(retention.days > 0 && *timestamp < oldest);
    let (kept_files, removed_files): (Vec<_>, Vec<_>) =
        old.into_iter().partition(|(timestamp, _)| is_kept(timestamp));
    // Removal comes first to free space for compression, and an error does not stop the others: the disk may be full.
    let removed = for_each_file(&removed_files, |file| fs::remove_file(file));
    let is_uncompressed = |file: &Path| file.extension().is_none_or(|extension| extension != "gz");
    let compressed = for_each_file(&kept_files, |file| {
        if retention.compress && is_uncompressed(file) { compress_file(file) } else { Ok(()) }
    });
    removed.and(compressed)
}

/// Applies an action to each file, and returns the first error.
fn for_each_file(files: &[(Timestamp, PathBuf)], action: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    files.iter().map(|(_, file)| action(file)).fold(Ok(()), io::Result::and)
}

/// Compresses a file and removes the original.
fn compress_file(path: &Path) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(COMPRESSED_SUFFIX);
    let compressed = compress_into(path, Path::new(&name));
    if compressed.is_err() {
        // A partial result is useless. It may not exist.
        let _ = fs::remove_file(&name);
    }
    compressed?;
    fs::remove_file(path)
}

fn compress_into(path: &Path, name: &Path) -> io::Result<()> {
    const CHUNK: usize = 64 << 10;
    let mode = fs::metadata(path)?.permissions().mode();
    let out = OpenOptions::new().create(true).write(true).truncate(true).mode(mode).open(name)?;
    let mut out = GzEncoder::new(out, Compression::default());
    let (mut file, mut chunk) = (File::open(path)?, vec![0; CHUNK]);
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            break;
        }
        out.write_all(chunk.get(..read).unwrap_or_default())?;
    }
    out.finish()?.sync_all()
}

/// The target of the log.
pub enum LogTarget {
    /// The standard output.
    Stdout,
    /// A file.
    File(LogFile),
}

/// Writes events as lines.
pub struct Log {
    /// The target.
    pub out: LogTarget,
    /// Whether events are written in the legacy text format.
    pub is_legacy: bool,
    /// The audit metrics.
    pub counts: Counts,
}

impl Log {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        match &mut self.out {
            LogTarget::File(file) => file.append(line),
            LogTarget::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(line)?;
                out.flush()
            }
        }
    }
}

impl Writer for Log {
    fn text(&self, event: &Event) -> Vec<u8> {
        let mut text = Vec::new();
        if self.is_legacy {
            text.extend_from_slice(event.line().as_bytes());
        } else {
            event.write_json(&mut text, true);
        }
        text.push(b'\n');
        text
    }

    async fn write(&mut self, lines: Vec<EncodedEvent>) {
        for line in lines {
            let written = self.append(&line.text);
            if let Err(error) = &written {
                self.counts.count_lost("log", 1, &error.to_string());
            }
            line.done(written.is_ok());
        }
    }

    async fn finish(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp(1_700_000_000_123_456);

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    fn wait_for_cleanup(file: &LogFile) {
        while file.uncleaned.load(Ordering::Acquire) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn file_that_is_rotated_during_a_clean_up_is_cleaned_up_as_well() {
        let (requests, mut runs) = (AtomicUsize::new(1), 0);
        repeat_while_requested(&requests, || {
            runs += 1;
            if runs < 3 {
                requests.fetch_add(1, Ordering::AcqRel);
            }
        });
        assert_eq!((runs, requests.into_inner()), (3, 0));
    }

    #[test]
    fn full_audit_log_is_rotated_with_timestamp() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        prepare(&path).unwrap();
        let clock = Clock::manual(START);
        let retention = Retention { bytes: 10, files: 2, ..Retention::default() };
        let mut file = LogFile::new(path.clone(), retention.clone(), clock.clone());
        for line in ["aaaa\n", "bbbb\n", "cccc\n"] {
            file.append(line.as_bytes()).unwrap();
        }
        wait_for_cleanup(&file);
        assert_eq!(names(directory.path()), ["audit-2023-11-14T22-13-20.123.log", "audit.log"]);
        assert_eq!(fs::read(&path).unwrap(), b"cccc\n");
        for _ in 0..4 {
            clock.advance(Duration::from_millis(5));
            file.append(b"dddddddd\n").unwrap();
            wait_for_cleanup(&file);
        }
        assert_eq!(
            names(directory.path()),
            ["audit-2023-11-14T22-13-20.138.log", "audit-2023-11-14T22-13-20.143.log", "audit.log"]
        );
        assert!(file.append(&[b'x'; 11]).unwrap_err().to_string().contains("exceeds maximum file size 10"));
        drop(file);
        let mut reopened = LogFile::new(path.clone(), retention, clock);
        reopened.append(b"e\n").unwrap_or_default();
        assert_eq!(fs::read(&path).unwrap(), b"e\n", "the size of an existing file counts");
    }

    #[test]
    fn old_audit_logs_are_compressed_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        for name in ["audit-2023-11-14T22-13-20.123.log", "audit-2023-11-10T00-00-00.000.log", "other-1.log"]
        {
            fs::write(directory.path().join(name), b"line\n").unwrap();
        }
        let retention = Retention { bytes: 10, days: 2, compress: true, ..Retention::default() };
        remove_old_files(&path, &retention, START).unwrap();
        assert_eq!(names(directory.path()), ["audit-2023-11-14T22-13-20.123.log.gz", "other-1.log"]);
        let compressed = File::open(directory.path().join("audit-2023-11-14T22-13-20.123.log.gz")).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(compressed).read_to_string(&mut text).unwrap();
        assert_eq!(text, "line\n");
        remove_old_files(&path, &retention, START).unwrap();
        assert_eq!(names(directory.path()).len(), 2, "compressed files are kept");
    }

    #[test]
    fn failing_audit_log_cleanup_continues_with_other_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        // A directory cannot be removed or compressed like a file: it simulates a full disk.
        fs::create_dir(directory.path().join("audit-2023-11-14T22-13-20.300.log")).unwrap();
        fs::create_dir(directory.path().join("audit-2023-11-14T22-13-20.090.log")).unwrap();
        for name in ["audit-2023-11-14T22-13-20.200.log", "audit-2023-11-14T22-13-20.050.log"] {
            fs::write(directory.path().join(name), b"line\n").unwrap();
        }
        let retention = Retention { bytes: 10, files: 2, compress: true, ..Retention::default() };
        assert!(remove_old_files(&path, &retention, START).is_err());
        assert_eq!(
            names(directory.path()),
            [
                "audit-2023-11-14T22-13-20.090.log",
                "audit-2023-11-14T22-13-20.200.log.gz",
                "audit-2023-11-14T22-13-20.300.log"
            ],
            "no partial file is left"
        );
    }

    #[test]
    fn partial_audit_log_line_is_truncated() {
        /// Accepts a limited number of bytes.
        struct Full(Vec<u8>, usize);
        impl io::Write for Full {
            fn write(&mut self, text: &[u8]) -> io::Result<usize> {
                let fits = text.len().min(self.1 - self.0.len());
                if fits == 0 {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                self.0.extend_from_slice(&text[..fits]);
                Ok(fits)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        impl Target for Full {
            fn shorten(&mut self, bytes: u64) -> io::Result<()> {
                self.0.truncate(self.0.len() - usize::try_from(bytes).unwrap());
                Ok(())
            }
        }
        let mut disk = Full(b"first\n".to_vec(), 10);
        assert_eq!(append_whole(&mut disk, b"second\n").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.0, b"first\n");
        append_whole(&mut disk, b"3rd\n").unwrap();
        assert_eq!(disk.0, b"first\n3rd\n");
    }

    #[test]
    fn only_rotated_files_of_the_log_are_recognized() {
        let path = Path::new("/x/audit.log");
        let timestamp = Timestamp(1_700_000_000_123_000);
        let name = rotated_path(path, timestamp).file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(rotation_time(path, &name), Some(timestamp));
        assert_eq!(rotation_time(path, &format!("{name}.gz")), Some(timestamp));
        for other in ["audit.log", "audit-x.log", "audit-2023-11-14T22-13-20.123.txt", "b-2023.log"] {
            assert_eq!(rotation_time(path, other), None, "{other}");
        }
    }
}
