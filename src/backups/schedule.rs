//! Backups into a folder, by a schedule.
//!
//! A backup has the time of its beginning in its name, so that the names sort by age, and gets that name only when it is whole and on
//! disk. The oldest are removed, but only after a new one was made: a server that cannot make backups keeps those that it has.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use pilothouse_actors::backup::{BackupError, Totals};
use pilothouse_actors::disk_bytes::DiskBytes;
use pilothouse_types::clock::{Clock, Timestamp};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval};

use super::paced_writer::PacedWriter;
use super::{Backups, NoBackup, PendingBackup};
use crate::limits::{BACKUP_CHUNK_BYTES, BACKUP_RETRY_INTERVAL};
use crate::metrics::backups::BackupMetrics;

/// The beginning and the end of the names.
const PREFIX: &str = "pilothouse-";
const SUFFIX: &str = ".backup";
/// The end of the name, instead of that, while it is being written.
const UNFINISHED_EXTENSION: &str = "unfinished";

/// Where backups are kept, how often they are made, and how many stay.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The folder.
    pub directory: PathBuf,
    /// The time between the beginnings of two backups.
    pub interval: Duration,
    /// How many are kept.
    pub retention: usize,
}

/// Why a backup was not made.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Refused(#[from] NoBackup),
    #[error(transparent)]
    Backup(#[from] BackupError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Schedule {
    /// Makes backups until the task is dropped. The first one comes at once if the newest in the folder is older than the interval.
    pub async fn run(self, backups: Arc<Backups>, clock: Clock, metrics: BackupMetrics) {
        let newest = newest(&self.directory);
        metrics.interval.set(self.interval.as_secs_f64());
        metrics.last_success.set(newest.map_or(0.0, Timestamp::fractional_seconds));
        let age = newest.map(|newest| clock.now().since(newest));
        let first = age.map_or(Duration::ZERO, |age| self.interval.saturating_sub(age));
        tokio::time::sleep(first).await;
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            while let Err(failure) = self.make(&backups, &clock).await {
                tracing::error!(error = %failure, directory = %self.directory.display(), "no backup was made");
                metrics.failures.inc();
                tokio::time::sleep(BACKUP_RETRY_INTERVAL.min(self.interval)).await;
            }
            metrics.last_success.set(clock.now().fractional_seconds());
        }
    }

    async fn make(&self, backups: &Backups, clock: &Clock) -> Result<(), Failure> {
        let pending = backups.begin(clock)?;
        let (directory, retention) = (self.directory.clone(), self.retention);
        let (sender, receiver) = oneshot::channel();
        let clock = clock.clone();
        // It reads and writes the disk for seconds. A thread of its own, because the end of a runtime waits for its blocking threads.
        thread::Builder::new().name("backup".to_owned()).spawn(move || {
            let written = write(&directory, pending, &clock);
            if let Ok((path, _)) = &written
                && let Err(error) = prune(&directory, path, retention)
            {
                tracing::warn!(%error, directory = %directory.display(), "old backups cannot be removed");
            }
            let _stopping = sender.send(written);
        })?;
        let (path, totals) = receiver.await.map_err(io::Error::other)??;
        let (records, types) = (totals.records, totals.types);
        tracing::info!(path = %path.display(), records, types, "a backup was made");
        Ok(())
    }
}

/// Writes a backup and gives it its name.
fn write(directory: &Path, pending: PendingBackup, clock: &Clock) -> Result<(PathBuf, Totals), Failure> {
    let PendingBackup { source, about, slot: _slot } = pending;
    fs::create_dir_all(directory)?;
    let path = directory.join(file_name(about.created));
    let unfinished = path.with_extension(UNFINISHED_EXTENSION);
    let written = (|| -> Result<Totals, Failure> {
        // It contains Secrets.
        let _absent = fs::remove_file(&unfinished);
        let options = OpenOptions::new().write(true).create_new(true).mode(0o600).clone();
        let file = SparingFile { file: options.open(&unfinished)?, directory };
        let mut file = BufWriter::with_capacity(BACKUP_CHUNK_BYTES, file);
        let totals = source.write_to(&about, &mut PacedWriter::new(&mut file, clock))?;
        file.flush()?;
        file.get_ref().file.sync_all()?;
        fs::rename(&unfinished, &path)?;
        File::open(directory)?.sync_all()?;
        Ok(totals)
    })();
    if written.is_err() {
        let _absent = fs::remove_file(&unfinished);
    }
    Ok((path, written?))
}

/// A file that ends before the disk is full: the store may be on the same one.
struct SparingFile<'a> {
    file: File,
    directory: &'a Path,
}

impl Write for SparingFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if DiskBytes::measure(self.directory)?.is_low() {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the disk of the backups has too little space",
            ));
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Removes all but the newest backups, and what was left unfinished. Names from the future were given while the clock was wrong: they
/// count as the oldest.
fn prune(directory: &Path, newest: &Path, retention: usize) -> io::Result<()> {
    let newest = newest.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut names = names(directory)?;
    names.sort_unstable_by(|a, b| (*a > newest).cmp(&(*b > newest)).then(b.cmp(a)));
    for name in names.iter().skip(retention.max(1)) {
        fs::remove_file(directory.join(name))?;
    }
    for name in list(directory)?
        .iter()
        .filter(|name| name.starts_with(PREFIX) && name.ends_with(UNFINISHED_EXTENSION))
    {
        fs::remove_file(directory.join(name))?;
    }
    Ok(())
}

/// When the newest backup in a folder was begun.
fn newest(directory: &Path) -> Option<Timestamp> {
    let newest = names(directory).ok()?.into_iter().max()?;
    let time: jiff::civil::DateTime = newest.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()?;
    let zoned = time.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some(Timestamp::from_unix(zoned.timestamp().as_second()))
}

/// The names of the backups in a folder.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let is_backup = |name: &String| name.starts_with(PREFIX) && name.ends_with(SUFFIX);
    Ok(list(directory)?.into_iter().filter(is_backup).collect())
}

fn list(directory: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(directory)?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn file_name(created: Timestamp) -> String {
    let time = jiff::Timestamp::from_second(created.unix_seconds()).unwrap_or_default();
    format!("{PREFIX}{}{SUFFIX}", time.strftime("%Y%m%dT%H%M%S"))
}

#[cfg(test)]
mod tests {
    use pilothouse_actors::backup::{About, BackupSource, BackupWriter};

    use super::*;

    struct Empty;

    impl BackupSource for Empty {
        fn write_to(&self, about: &About, out: &mut dyn io::Write) -> Result<Totals, BackupError> {
            Ok(BackupWriter::begin(out, about)?.finish()?.1)
        }
    }

    #[actix_rt::test]
    async fn schedule_keeps_the_newest_backups_and_nothing_unfinished() {
        let directory = tempfile::tempdir().unwrap();
        let schedule = Schedule {
            directory: directory.path().join("new"),
            interval: Duration::from_secs(3_600),
            retention: 2,
        };
        let backups = Backups::new(Ok(Arc::new(Empty)), "1".to_owned());
        let clock = Clock::manual(Timestamp::from_unix(1_700_000_000));
        assert_eq!(newest(&schedule.directory), None);
        for hour in 0..3 {
            schedule.make(&backups, &clock).await.unwrap();
            if hour == 0 {
                assert_eq!(newest(&schedule.directory), Some(clock.now()));
            }
            fs::write(schedule.directory.join("pilothouse-20200101T000000.unfinished"), "").unwrap();
            fs::write(schedule.directory.join("notes.txt"), "").unwrap();
            fs::write(schedule.directory.join("pilothouse-29990101T000000.backup"), "").unwrap();
            clock.advance(Duration::from_secs(3_600));
        }
        schedule.make(&backups, &clock).await.unwrap();
        let mut names = list(&schedule.directory).unwrap();
        names.sort_unstable();
        let expected =
            ["notes.txt", "pilothouse-20231115T001320.backup", "pilothouse-20231115T011320.backup"];
        assert_eq!(names, expected);
    }

    #[actix_rt::test]
    async fn failed_backup_removes_no_older_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let schedule = Schedule { directory: path, interval: Duration::from_secs(1), retention: 1 };
        let clock = Clock::manual(Timestamp::from_unix(1_700_000_000));
        let backups = Backups::new(Ok(Arc::new(Empty)), "1".to_owned());
        schedule.make(&backups, &clock).await.unwrap();
        let in_progress = backups.begin(&clock).unwrap();
        clock.advance(Duration::from_secs(1));
        assert!(matches!(schedule.make(&backups, &clock).await, Err(Failure::Refused(NoBackup::Busy))));
        assert_eq!(names(directory.path()).unwrap().len(), 1);
        drop(in_progress);
        assert!(schedule.make(&backups, &clock).await.is_ok());
        let memory = Backups::new(Err(NoBackup::InMemory), String::new());
        assert!(matches!(schedule.make(&memory, &clock).await, Err(Failure::Refused(NoBackup::InMemory))));
    }
}
