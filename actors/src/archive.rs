//! The part of the history that only the log holds: read back from disk for watches that are far behind.
//!
//! A window is bounded by bytes, the history by time. In between are events whose records are still in the log. A watch that
//! stalled, or that returns after minutes, gets them from there and then goes on in memory. Reading is slow and must not block
//! others, so it happens on blocking threads, few at a time.
//!
//! Late watches are seldom alone: after a restart or a network failure many of them resume at similar revisions. The last reads
//! are cached for them, so that the log is read, and each event is encoded, only once.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use pilothouse_types::lock::Lock;
use pilothouse_types::object::{Revision, TypeName};
use tokio::sync::Semaphore;

use crate::event::Event;
use crate::limits::{ARCHIVE_READ_BYTES, ARCHIVE_READERS, ARCHIVE_READS_CACHED};

/// The range of events to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Events after this revision,
    pub after: Revision,
    /// up to this one,
    pub through: Revision,
    /// at most this many,
    pub max_events: usize,
    /// and none after their objects exceed this many bytes.
    pub max_bytes: usize,
}

/// The reason why events cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// They were trimmed meanwhile.
    #[error("the history does not reach back that far")]
    Gone,
    /// The log cannot be read.
    #[error("the log cannot be read: {0}")]
    Broken(String),
}

/// A log that can be read while it is written.
pub trait Archive: Send + Sync {
    /// Reads events of a type, in order and without a gap; at least one if there are any. Blocks.
    fn read(&self, type_name: &TypeName, span: Span) -> Result<Vec<Event>, ArchiveError>;
}

/// The archive of one type. Cheap to clone.
#[derive(Clone)]
pub struct ArchiveReader {
    archive: Arc<dyn Archive>,
    type_name: TypeName,
    recent_reads: Arc<Lock<RecentReads>>,
}

/// The last reads, the newest at the end. Each is without a gap.
#[derive(Default)]
struct RecentReads(VecDeque<Vec<Arc<Event>>>);

impl RecentReads {
    /// The events of a span, if a cached read covers its beginning; else empty.
    fn find(&self, span: Span) -> Vec<Arc<Event>> {
        let is_in_span = |event: &Arc<Event>| event.revision() > span.after;
        let cached = self.0.iter().rev().find_map(|events| {
            let covers_start = events.first()?.revision() <= span.after.next();
            let start = events.iter().position(is_in_span).filter(|_| covers_start)?;
            events.get(start..)
        });
        let events = cached.unwrap_or_default().iter().take(span.max_events);
        events.take_while(|event| event.revision() <= span.through).cloned().collect()
    }

    fn push(&mut self, events: &[Arc<Event>]) {
        if self.0.len() == ARCHIVE_READS_CACHED {
            self.0.pop_front();
        }
        self.0.push_back(events.to_vec());
    }
}

impl fmt::Debug for ArchiveReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ArchiveReader").field(&self.type_name).finish()
    }
}

impl PartialEq for ArchiveReader {
    fn eq(&self, other: &ArchiveReader) -> bool {
        Arc::ptr_eq(&self.archive, &other.archive) && self.type_name == other.type_name
    }
}

/// One bound for all types and servers of the process: they share its disks and threads.
static READERS: Semaphore = Semaphore::const_new(ARCHIVE_READERS);

impl ArchiveReader {
    /// The archive of a type.
    pub fn new(archive: Arc<dyn Archive>, type_name: TypeName) -> ArchiveReader {
        ArchiveReader { archive, type_name, recent_reads: Arc::default() }
    }

    /// Drops the cached reads: the history has moved on.
    pub fn clear_cache(&self) {
        self.recent_reads.lock().0 = VecDeque::new();
    }

    /// Some events after a cursor, up to `through`, which must be the revision of an event: at least one.
    pub async fn read(
        &self,
        after: Revision,
        through: Revision,
        max_events: usize,
    ) -> Result<Vec<Arc<Event>>, ArchiveError> {
        let span = Span { after, through, max_events, max_bytes: ARCHIVE_READ_BYTES };
        let recent_reads = || self.recent_reads.lock();
        let cached = recent_reads().find(span);
        if !cached.is_empty() {
            return Ok(cached);
        }
        let _permit = READERS.acquire().await.map_err(|_| ArchiveError::Gone)?;
        // The previous reader may have read the same span.
        let cached = recent_reads().find(span);
        if !cached.is_empty() {
            return Ok(cached);
        }
        let archive_reader = self.clone();
        let read =
            tokio::task::spawn_blocking(move || archive_reader.archive.read(&archive_reader.type_name, span))
                .await;
        let events = read.map_err(|error| ArchiveError::Broken(error.to_string()))??;
        if events.is_empty() {
            return Err(ArchiveError::Gone);
        }
        let events: Vec<Arc<Event>> = events.into_iter().map(Arc::new).collect();
        recent_reads().push(&events);
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use pilothouse_types::object::{Draft, Key, Object, Pairs, Variant};

    use super::*;
    use crate::event::Change;
    use crate::log_time::WriteTime;

    /// A log of revisions 1 to 100 that counts how often it is read.
    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Archive for Counting {
        fn read(&self, _: &TypeName, span: Span) -> Result<Vec<Event>, ArchiveError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let revisions = (span.after.next().0..=span.through.0.min(100)).take(span.max_events);
            Ok(revisions.map(event).collect())
        }
    }

    fn event(revision: u64) -> Event {
        let draft = Draft {
            key: Key::cluster("a"),
            bytes: Bytes::from_static(br#"{"resourceVersion":""}"#),
            revision_offset: 20,
            item_offset: 1,
            labels: Pairs::default(),
            fields: Pairs::default(),
        };
        Event::new(
            Change::Created,
            Arc::new(Object::new(draft, Revision(revision))),
            None,
            WriteTime::default(),
        )
    }

    fn archive_reader() -> (Arc<Counting>, ArchiveReader) {
        let archive = Arc::new(Counting::default());
        (archive.clone(), ArchiveReader::new(archive, TypeName::new("pods")))
    }

    fn revisions(read: &Result<Vec<Arc<Event>>, ArchiveError>) -> Vec<u64> {
        read.as_ref().unwrap().iter().map(|event| event.revision().0).collect()
    }

    #[actix_rt::test]
    async fn concurrent_readers_share_reads_and_frames() {
        let (archive, archive_reader) = archive_reader();
        let reads =
            futures::future::join_all((0..50).map(|_| archive_reader.read(Revision(10), Revision(40), 20)))
                .await;
        // Concurrent readers do not know of each other's reads.
        assert!(archive.0.load(Ordering::Relaxed) <= ARCHIVE_READERS);
        for read in &reads {
            assert_eq!(revisions(read), (11..=30).collect::<Vec<_>>());
        }
        let last = archive_reader.read(Revision(10), Revision(40), 20).await.unwrap();
        last[0].frame(Variant(1), || Ok::<_, ()>(Bytes::from_static(b"once"))).unwrap();
        let again = archive_reader.read(Revision(10), Revision(40), 20).await.unwrap();
        again[0].frame::<()>(Variant(1), || unreachable!("it is encoded already")).unwrap();
    }

    #[actix_rt::test]
    async fn cached_read_serves_overlapping_spans() {
        let (archive, archive_reader) = archive_reader();
        archive_reader.read(Revision(10), Revision(40), 20).await.unwrap();
        assert_eq!(
            revisions(&archive_reader.read(Revision(15), Revision(40), 20).await),
            (16..=30).collect::<Vec<_>>()
        );
        assert_eq!(revisions(&archive_reader.read(Revision(15), Revision(18), 20).await), [16, 17, 18]);
        assert_eq!(revisions(&archive_reader.read(Revision(15), Revision(40), 2).await), [16, 17]);
        assert_eq!(archive.0.load(Ordering::Relaxed), 1, "all are served by the cached read");
        assert_eq!(revisions(&archive_reader.read(Revision(30), Revision(32), 20).await), [31, 32]);
        assert_eq!(revisions(&archive_reader.read(Revision(9), Revision(12), 20).await), [10, 11, 12]);
        assert_eq!(archive.0.load(Ordering::Relaxed), 3, "spans outside of it are read");
    }

    #[actix_rt::test]
    async fn oldest_cached_read_is_evicted() {
        let (archive, archive_reader) = archive_reader();
        for after in 0..=ARCHIVE_READS_CACHED as u64 {
            archive_reader.read(Revision(10 * after), Revision(100), 5).await.unwrap();
        }
        let before = archive.0.load(Ordering::Relaxed);
        archive_reader.read(Revision(0), Revision(100), 5).await.unwrap();
        assert_eq!(archive.0.load(Ordering::Relaxed), before + 1);
        assert_eq!(archive_reader.recent_reads.lock().0.len(), ARCHIVE_READS_CACHED);
    }
}
