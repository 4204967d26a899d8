//! From etcd into a data directory. The new store gets its name when it is whole, as that of a restoration.

use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;
use std::vec;

use pilothouse_actors::engine::redb::{NewEntry, RestoreError, Restored, create};
use pilothouse_actors::log_time::{LogTime, WriteTime};
use pilothouse_etcd_log::{CopyEntry, CopyObject, CopyPage, CopySource};
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::object::{Revision, TypeName};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::etcd_side::EtcdSide;
use super::report::Report;
use super::{Failure, Options};
use crate::commands::restore::{LEAST_RISE, print_warnings};
use crate::encryption::StoredEncryption;
use crate::server::{STORE_FILE, create_data_directory};

/// Pages that wait to be written.
const PAGES_WAITING: usize = 1;

/// What the thread that writes the store gets.
enum Piece {
    Entries(Vec<NewEntry>),
    /// There is no more. Without it, the store is not made.
    End,
}

/// Copies everything from these servers into this directory.
pub(super) async fn copy(options: &Options, servers: Vec<String>, directory: &Path) -> Result<(), Failure> {
    let store = directory.join(STORE_FILE);
    if store.try_exists()? {
        return Err(RestoreError::Exists(store).into());
    }
    let config = options.encryption_provider_config.as_deref();
    let encryption = StoredEncryption::load(config).map_err(Failure::Settings)?;
    let side = EtcdSide::new(options, servers, encryption.clone())?;
    let source = side.log.copy_source().await?;
    side.add_types(&source).await?;
    create_data_directory(directory)?;
    let now = Clock::system().now();
    // As after a restoration: by the clock, because the same etcd may be copied more than once.
    let first_revision = Revision(now.0.max(source.revision().0.saturating_add(LEAST_RISE)));
    let (sender, receiver) = mpsc::channel(PAGES_WAITING);
    let writer = spawn_blocking(move || {
        let stored = StoredEncryption::new(encryption);
        let mut queue = EntryQueue { receiver, entries: Vec::new().into_iter() };
        create(&store, first_revision, &stored, || queue.next())
    });
    let mut reader = EtcdReader {
        prefix: options.etcd.prefix().as_str().to_owned(),
        event_ttl: options.event_ttl,
        now,
        current: None,
        report: Report::new(options.drop_unreadable),
        sender,
    };
    let sent = reader.send_all(&source).await;
    let EtcdReader { mut report, sender, .. } = reader;
    // Now a writer that has no end gives up, and removes what it has made.
    drop(sender);
    let made = writer.await.map_err(|error| Failure::Io(io::Error::other(error)))?;
    let restored = match (sent, made) {
        (Err(failure @ Failure::WriterEnded), made) => return Err(made.err().map_or(failure, Failure::from)),
        (Err(failure), _) => return Err(failure),
        (Ok(()), made) => made?,
    };
    report.print_left_out();
    print_summary(&restored, source.revision(), directory)
}

fn print_summary(restored: &Restored, revision: Revision, directory: &Path) -> Result<(), Failure> {
    print_warnings(restored);
    writeln!(
        io::stdout(),
        "Copied {} objects of {} resources, as they were at revision {revision} of etcd, into {}.\n\
         Revisions go on from {}: clients that continue from before will list again.",
        restored.totals.records,
        restored.totals.types,
        directory.display(),
        restored.first_revision,
    )?;
    if restored.is_durable { Ok(()) } else { Err(Failure::NotDurable) }
}

/// What the thread that writes the store takes entries from.
struct EntryQueue {
    receiver: mpsc::Receiver<Piece>,
    entries: vec::IntoIter<NewEntry>,
}

impl EntryQueue {
    fn next(&mut self) -> Result<Option<NewEntry>, String> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Ok(Some(entry));
            }
            match self.receiver.blocking_recv() {
                Some(Piece::Entries(entries)) => self.entries = entries.into_iter(),
                Some(Piece::End) => return Ok(None),
                None => return Err("interrupted".to_owned()),
            }
        }
    }
}

/// Passes on what is in etcd.
struct EtcdReader {
    prefix: String,
    event_ttl: Duration,
    now: Timestamp,
    /// The type of the last object.
    current: Option<TypeName>,
    report: Report,
    sender: mpsc::Sender<Piece>,
}

impl EtcdReader {
    async fn send_all(&mut self, source: &CopySource) -> Result<(), Failure> {
        let (mut pages, mut total) = (source.all(), None);
        while let Some(page) = pages.next().await? {
            let keys_left = page.keys_left;
            let (total, keys) = (*total.get_or_insert(keys_left), page.entries.len() as u64);
            let entries = self.entries(page);
            if !self.report.is_failed() {
                self.send(Piece::Entries(entries)).await?;
            }
            self.report.show((total.saturating_sub(keys_left) + keys).min(total), total);
        }
        self.report.check()?;
        self.send(Piece::End).await
    }

    async fn send(&self, piece: Piece) -> Result<(), Failure> {
        self.sender.send(piece).await.map_err(|_| Failure::WriterEnded)
    }

    fn entries(&mut self, page: CopyPage) -> Vec<NewEntry> {
        let mut entries = Vec::with_capacity(page.entries.len() + 1);
        for entry in page.entries {
            match entry {
                CopyEntry::Object(object) => self.add(object, &mut entries),
                CopyEntry::Record => self.report.records += 1,
                CopyEntry::Foreign(key) => self.report.add_foreign_key(&self.prefix, &key),
            }
        }
        entries
    }

    fn add(&mut self, object: CopyObject, entries: &mut Vec<NewEntry>) {
        let CopyObject { type_name, key, revision, seconds_left, draft } = object;
        let draft = match draft {
            Ok(draft) => draft,
            Err(reason) => return self.report.add_unreadable(&type_name, &key, &reason),
        };
        if self.current.as_ref() != Some(&type_name) {
            entries.push(NewEntry::Type(type_name.clone()));
            self.current = Some(type_name);
        }
        let written = WriteTime { wall: self.now, log: log_time(seconds_left, self.event_ttl) };
        entries.push(NewEntry::Object { draft, revision, written });
        self.report.copied += 1;
    }
}

/// When an object counts as written that still lives so long. The log of the new store begins at zero and ends when the newest object was
/// written, and events live so long from their last write.
fn log_time(seconds_left: Option<u64>, event_ttl: Duration) -> LogTime {
    let newest = LogTime::ZERO.plus(event_ttl);
    seconds_left.map_or(newest, |seconds| LogTime::ZERO.plus(Duration::from_secs(seconds)).min(newest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_as_old_as_the_time_that_they_have_left() {
        let hour = Duration::from_secs(3_600);
        let age = |seconds_left| LogTime::ZERO.plus(hour).since(log_time(seconds_left, hour)).as_secs();
        assert_eq!((age(None), age(Some(600)), age(Some(3_660))), (0, 3_000, 0));
        assert_eq!(log_time(Some(600), Duration::ZERO), LogTime::ZERO);
    }

    #[test]
    fn store_is_not_made_without_an_end() {
        let (sender, receiver) = mpsc::channel(PAGES_WAITING);
        let mut queue = EntryQueue { receiver, entries: Vec::new().into_iter() };
        let name = TypeName::new("pods");
        sender.try_send(Piece::Entries(vec![NewEntry::Type(name)])).map_err(drop).unwrap();
        assert!(matches!(queue.next(), Ok(Some(NewEntry::Type(_)))));
        drop(sender);
        assert_eq!(queue.next().unwrap_err(), "interrupted");
        let (sender, receiver) = mpsc::channel(PAGES_WAITING);
        sender.try_send(Piece::End).map_err(drop).unwrap();
        let mut queue = EntryQueue { receiver, entries: Vec::new().into_iter() };
        assert!(matches!(queue.next(), Ok(None)));
    }
}
