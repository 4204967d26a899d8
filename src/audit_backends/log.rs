//! The audit log in a file or on standard output. A full file is renamed with a timestamp, and a new one is started; old files
//! are compressed and removed as the flags say, on a thread of its own.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
const FOLDER_MODE: u32 = 0o700;
/// The suffix of compressed files.
const PACKED: &str = ".gz";
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
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists()) {
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(FOLDER_MODE))?;
    }
    opened(path, FILE_MODE).map(drop)
}

fn opened(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(mode).open(path)
}

/// A target of lines.
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
            Ok(more) => rest = rest.get(more..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Err(error),
        }
        if rest.is_empty() {
            break Ok(());
        }
    };
    let half = line.len() - rest.len();
    if written.is_err()
        && half > 0
        && let Err(error) = target.shorten(half as u64)
    {
        tracing::warn!(%error, "an audit log line was written only in part");
    }
    written
}

/// A rotated log file.
pub struct LogFile {
    path: PathBuf,
    keeping: Retention,
    clock: Clock,
    open: Option<(File, u64)>,
    /// Whether old files are being cleaned up right now.
    tidying: Arc<AtomicBool>,
}

impl LogFile {
    /// The file at this path.
    pub fn new(path: PathBuf, keeping: Retention, clock: Clock) -> LogFile {
        LogFile { path, keeping, clock, open: None, tidying: Arc::default() }
    }

    /// Appends a line.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let (length, most) = (line.len() as u64, self.keeping.bytes);
        if length > most {
            return Err(io::Error::other(format!("write length {length} exceeds maximum file size {most}")));
        }
        let (mut file, size) = match self.open.take() {
            Some(open) => open,
            None => {
                let file = opened(&self.path, FILE_MODE)?;
                let size = file.metadata()?.len();
                self.tidy();
                (file, size)
            }
        };
        let mut size = size;
        if size + length > most {
            drop(file);
            file = self.put_aside()?;
            size = 0;
        }
        append_whole(&mut file, line)?;
        self.open = Some((file, size + length));
        Ok(())
    }

    /// Renames the file with a timestamp, and starts a new one.
    fn put_aside(&mut self) -> io::Result<File> {
        let mode = fs::metadata(&self.path).map_or(FILE_MODE, |known| known.permissions().mode());
        let mut now = self.clock.now();
        while aside(&self.path, now).exists() {
            // Two rotations at the same time must not overwrite each other.
            now = now.plus(MILLISECOND);
        }
        fs::rename(&self.path, aside(&self.path, now))?;
        let file = opened(&self.path, mode)?;
        self.tidy();
        Ok(file)
    }

    /// Cleans up old files in the background.
    fn tidy(&self) {
        let Retention { files, days, compress, .. } = self.keeping;
        if (files == 0 && days == 0 && !compress) || self.tidying.swap(true, Ordering::AcqRel) {
            return;
        }
        let (path, keeping, now) = (self.path.clone(), self.keeping.clone(), self.clock.now());
        let busy = self.tidying.clone();
        let work = move || {
            if let Err(error) = tidied(&path, &keeping, now) {
                tracing::warn!(%error, "old audit logs cannot be removed");
            }
            busy.store(false, Ordering::Release);
        };
        if std::thread::Builder::new().name("audit-tidy".to_owned()).spawn(work).is_err() {
            self.tidying.store(false, Ordering::Release);
        }
    }
}

/// The stem and the extension of a file's name.
fn parts(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
    let ending = text(path.extension()).map(|ending| format!(".{ending}")).unwrap_or_default();
    (text(path.file_stem()).unwrap_or_default(), ending)
}

/// The name of a rotated file at this time.
fn aside(path: &Path, now: Timestamp) -> PathBuf {
    let (stem, ending) = parts(path);
    let moment = time::format_seconds(now.unix_seconds()).trim_end_matches('Z').replace(':', "-");
    let millis = now.subsec_micros() / 1_000;
    path.with_file_name(format!("{stem}-{moment}.{millis:03}{ending}"))
}

/// The rotation time of a file, if it belongs to this log.
fn put_aside_at(path: &Path, name: &str) -> Option<Timestamp> {
    let (stem, ending) = parts(path);
    let name = name.strip_suffix(PACKED).filter(|_| ending != PACKED).unwrap_or(name);
    let moment = name.strip_prefix(&stem)?.strip_prefix('-')?.strip_suffix(ending.as_str())?;
    let (day, of_day) = moment.split_once('T')?;
    let (seconds, micros) = time::parse_micros(&format!("{day}T{}000Z", of_day.replace('-', ":"))).ok()?;
    Some(Timestamp(u64::try_from(seconds).ok()?.checked_mul(1_000_000)? + u64::from(micros)))
}

/// Removes old files beyond the limits, and compresses the others.
fn tidied(path: &Path, keeping: &Retention, now: Timestamp) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut old = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if let Some(at) = entry.file_name().to_str().and_then(|name| put_aside_at(path, name)) {
            old.push((at, entry.path()));
        }
    }
    old.sort_unstable_by(|one, other| other.cmp(one));
    let oldest = now.minus(Duration::from_secs(keeping.days.saturating_mul(DAY_SECONDS)));
    // A file and its compressed copy, if the server ended in between, count as one.
    let mut moments: Vec<Timestamp> = old.iter().map(|(at, _)| *at).collect();
    moments.dedup();
    let kept = if keeping.files == 0 { moments.len() } else { keeping.files.min(moments.len()) };
    let kept = moments.get(..kept).unwrap_or_default();
    let stays = |at: &Timestamp| kept.contains(at) && !(keeping.days > 0 && *at < oldest);
    let (staying, going): (Vec<_>, Vec<_>) = old.into_iter().partition(|(at, _)| stays(at));
    // Removal comes first to free space for compression, and an error does not stop the others: the disk may be full.
    let removed = each(&going, |file| fs::remove_file(file));
    let plain = |file: &Path| file.extension().is_none_or(|ending| ending != "gz");
    let packed = each(&staying, |file| if keeping.compress && plain(file) { pack(file) } else { Ok(()) });
    removed.and(packed)
}

/// Applies an action to each file, and answers the first error.
fn each(files: &[(Timestamp, PathBuf)], act: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    files.iter().map(|(_, file)| act(file)).fold(Ok(()), io::Result::and)
}

/// Compresses a file and removes the original.
fn pack(path: &Path) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(PACKED);
    let packed = pack_into(path, Path::new(&name));
    if packed.is_err() {
        // A partial result is useless. It may not exist.
        let _ = fs::remove_file(&name);
    }
    packed?;
    fs::remove_file(path)
}

fn pack_into(path: &Path, name: &Path) -> io::Result<()> {
    const PIECE: usize = 64 << 10;
    let mode = fs::metadata(path)?.permissions().mode();
    let out = OpenOptions::new().create(true).write(true).truncate(true).mode(mode).open(name)?;
    let mut out = GzEncoder::new(out, Compression::default());
    let (mut file, mut piece) = (File::open(path)?, vec![0; PIECE]);
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            break;
        }
        out.write_all(piece.get(..read).unwrap_or_default())?;
    }
    out.finish()?.sync_all()
}

/// The target of the log.
pub enum Out {
    /// The standard output.
    Standard,
    /// A file.
    File(LogFile),
}

/// Writes events as lines.
pub struct Log {
    /// The target.
    pub out: Out,
    /// Whether events are written in the legacy text format.
    pub is_legacy: bool,
    /// The audit metrics.
    pub counts: Counts,
}

impl Log {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        match &mut self.out {
            Out::File(file) => file.append(line),
            Out::Standard => {
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
                self.counts.lost("log", 1, &error.to_string());
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

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    fn settled(file: &LogFile) {
        while file.tidying.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_file_that_is_full_is_put_aside_under_the_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        prepare(&path).unwrap();
        let clock = Clock::manual(START);
        let keeping = Retention { bytes: 10, files: 2, ..Retention::default() };
        let mut file = LogFile::new(path.clone(), keeping.clone(), clock.clone());
        for line in ["aaaa\n", "bbbb\n", "cccc\n"] {
            file.append(line.as_bytes()).unwrap();
        }
        settled(&file);
        assert_eq!(names(folder.path()), ["audit-2023-11-14T22-13-20.123.log", "audit.log"]);
        assert_eq!(fs::read(&path).unwrap(), b"cccc\n");
        for _ in 0..4 {
            clock.advance(Duration::from_millis(5));
            file.append(b"dddddddd\n").unwrap();
            settled(&file);
        }
        assert_eq!(
            names(folder.path()),
            ["audit-2023-11-14T22-13-20.138.log", "audit-2023-11-14T22-13-20.143.log", "audit.log"]
        );
        assert!(file.append(&[b'x'; 11]).unwrap_err().to_string().contains("exceeds maximum file size 10"));
        drop(file);
        let mut again = LogFile::new(path.clone(), keeping, clock);
        again.append(b"e\n").unwrap_or_default();
        assert_eq!(fs::read(&path).unwrap(), b"e\n", "what was there counts");
    }

    #[test]
    fn old_files_are_compressed_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        for name in ["audit-2023-11-14T22-13-20.123.log", "audit-2023-11-10T00-00-00.000.log", "other-1.log"]
        {
            fs::write(folder.path().join(name), b"line\n").unwrap();
        }
        let keeping = Retention { bytes: 10, days: 2, compress: true, ..Retention::default() };
        tidied(&path, &keeping, START).unwrap();
        assert_eq!(names(folder.path()), ["audit-2023-11-14T22-13-20.123.log.gz", "other-1.log"]);
        let packed = File::open(folder.path().join("audit-2023-11-14T22-13-20.123.log.gz")).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
        assert_eq!(text, "line\n");
        tidied(&path, &keeping, START).unwrap();
        assert_eq!(names(folder.path()).len(), 2, "what is compressed stays so");
    }

    #[test]
    fn one_old_file_that_cannot_be_dealt_with_keeps_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        // A directory cannot be removed or compressed like a file: it simulates a full disk.
        fs::create_dir(folder.path().join("audit-2023-11-14T22-13-20.300.log")).unwrap();
        fs::create_dir(folder.path().join("audit-2023-11-14T22-13-20.090.log")).unwrap();
        for name in ["audit-2023-11-14T22-13-20.200.log", "audit-2023-11-14T22-13-20.050.log"] {
            fs::write(folder.path().join(name), b"line\n").unwrap();
        }
        let keeping = Retention { bytes: 10, files: 2, compress: true, ..Retention::default() };
        assert!(tidied(&path, &keeping, START).is_err());
        assert_eq!(
            names(folder.path()),
            [
                "audit-2023-11-14T22-13-20.090.log",
                "audit-2023-11-14T22-13-20.200.log.gz",
                "audit-2023-11-14T22-13-20.300.log"
            ],
            "nothing half made is left either"
        );
    }

    #[test]
    fn half_a_line_never_stays() {
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
    fn only_files_of_the_log_are_its_own() {
        let path = Path::new("/x/audit.log");
        let at = Timestamp(1_700_000_000_123_000);
        let name = aside(path, at).file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(put_aside_at(path, &name), Some(at));
        assert_eq!(put_aside_at(path, &format!("{name}.gz")), Some(at));
        for other in ["audit.log", "audit-x.log", "audit-2023-11-14T22-13-20.123.txt", "b-2023.log"] {
            assert_eq!(put_aside_at(path, other), None, "{other}");
        }
    }
}
