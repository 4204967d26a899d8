//! A disk that is slow, refuses writes for a while, or has a page that cannot be read.

use std::collections::HashSet;

use pilothouse_actors::archive::ArchiveError;
use pilothouse_actors::backup::{About, BackupError, Totals};
use pilothouse_actors::engine::redb::DiskFaults;
use pilothouse_actors::limits::COMMITTER_BYTES;
use pilothouse_actors::point_in_time::{PointInTimeError, snapshot_at};
use pilothouse_actors::store::Position;
use tempfile::TempDir;

use super::*;

/// The size of an object, and how many make more bytes than redb caches: most reads go to the disk. They take 40 MiB of a file that redb
/// has made 64 MiB large: nothing can be read while a sync is held that belongs to its growth.
const OBJECT_BYTES: usize = 200_000;
const OBJECTS: usize = 160;
const WINDOW_BYTES: usize = 1 << 20;

/// A store on a disk that fails on demand.
struct FaultyDisk {
    folder: TempDir,
    faults: DiskFaults,
}

impl FaultyDisk {
    fn new() -> FaultyDisk {
        FaultyDisk { folder: tempfile::tempdir().unwrap(), faults: DiskFaults::default() }
    }

    /// Starts the stores. They keep little history in memory.
    fn start(&self) -> Stores {
        let engine = Redb::open_on(&self.faults, &self.folder.path().join("log.redb")).unwrap();
        start_stores(Box::new(engine), &Options { window_bounds: WINDOW_BYTES.into(), ..manual_options() })
    }
}

fn body(n: usize) -> String {
    format!("{n}{}", "x".repeat(OBJECT_BYTES))
}

async fn back_up(stores: &Stores) -> Result<Totals, BackupError> {
    let source = stores.backup.clone().unwrap();
    let about = About { version: "1".to_owned(), created: Timestamp(0) };
    let written = tokio::task::spawn_blocking(move || source.write_to(&about, &mut std::io::sink()));
    written.await.unwrap()
}

#[actix_rt::test]
async fn page_that_cannot_be_read_fails_the_backup_and_nothing_else() {
    let disk = FaultyDisk::new();
    let stores = disk.start();
    let pods = find(&stores, "pods").await;
    for n in 0..OBJECTS {
        create(&pods, &format!("k{n}"), &body(n)).await.unwrap();
    }
    disk.faults.take_reads();
    let whole = back_up(&stores).await.unwrap();
    let reads = disk.faults.take_reads();
    // One that the rest of the backup has driven out of the cache.
    disk.faults.set_unreadable(Some(reads[reads.len() / 4]));
    for attempt in 0..2 {
        let error = back_up(&stores).await.unwrap_err().to_string();
        assert!(error.ends_with("a page cannot be read"), "{error}");
        create(&pods, &format!("more-{attempt}"), "").await.unwrap();
    }
    disk.faults.set_unreadable(None);
    assert_eq!(back_up(&stores).await.unwrap().records, whole.records + 2);
    assert_eq!(stores.fatal.raised(), None);
    stores.directory.send(Stop).await.unwrap().unwrap();
}

/// Reads some events from the log.
async fn read_archive(position: &Position, after: Revision) -> Result<(), ArchiveError> {
    match position.window.read(after, 3) {
        Read::Archived(reader, through) => reader.read(after, through, 3).await.map(drop),
        _ => panic!("the events are in memory"),
    }
}

#[actix_rt::test]
async fn page_that_cannot_be_read_fails_reads_of_its_history_and_nothing_else() {
    let disk = FaultyDisk::new();
    let stores = disk.start();
    let pods = find(&stores, "pods").await;
    let mut last = create(&pods, "hot", "").await.unwrap().revision;
    for n in 0..OBJECTS {
        last = replace(&pods, "hot", &body(n), last).await.unwrap().revision;
    }
    let position = open_watch(&pods).await;
    let oldest = position.window.floor();
    let whole = window_events(&position).await.len();
    disk.faults.take_reads();
    assert_eq!(read_archive(&position, oldest).await, Ok(()));
    let page = disk.faults.take_reads().pop().unwrap();
    // Drives it out of the caches.
    assert_eq!(window_events(&position).await.len(), whole);
    disk.faults.set_unreadable(Some(page));
    for attempt in 0..2 {
        let error = read_archive(&position, oldest).await.unwrap_err();
        assert!(matches!(&error, ArchiveError::Broken(reason) if reason.ends_with("a page cannot be read")));
        let past = snapshot_at(&position, oldest, |_| true).await;
        assert!(matches!(past, Err(PointInTimeError::Broken(_))), "an older state");
        assert_eq!(read_archive(&position, Revision(oldest.0 + 50)).await, Ok(()), "newer history");
        last = replace(&pods, "hot", &format!("more-{attempt}"), last).await.unwrap().revision;
    }
    disk.faults.set_unreadable(None);
    assert_eq!(window_events(&open_watch(&pods).await).await.len(), whole + 2);
    assert_eq!(stores.fatal.raised(), None);
    stores.directory.send(Stop).await.unwrap().unwrap();
}

#[actix_rt::test]
async fn slow_sync_delays_writes_alone_and_all_are_made_once() {
    let disk = FaultyDisk::new();
    let stores = disk.start();
    let pods = find(&stores, "pods").await;
    let mut last = create(&pods, "hot", "").await.unwrap().revision;
    for n in 0..OBJECTS {
        last = replace(&pods, "hot", &body(n), last).await.unwrap().revision;
    }
    let before = open_watch(&pods).await;
    disk.faults.hold_syncs();
    let most = COMMITTER_BYTES / OBJECT_BYTES + 10;
    let (keys, body) = ((0..most).map(|n| format!("k{n}")).collect::<Vec<_>>(), body(0));
    let others = async {
        while stores.write_limiter.bytes() + OBJECT_BYTES < COMMITTER_BYTES {
            actix_rt::task::yield_now().await;
        }
        let late = create(&pods, "late", &body).await;
        assert!(matches!(late, Err(StoreError::Busy)), "the limit of waiting bytes");
        let faults = disk.faults.clone();
        tokio::task::spawn_blocking(move || faults.wait_for_held_sync()).await.unwrap();
        let read = pods
            .send(Get { freshness: Freshness::Latest, key: Key::cluster("hot"), permit: Permit::none() })
            .await
            .unwrap();
        assert_eq!(read.unwrap().revision, last, "what is durable can be read");
        let present = open_watch(&pods).await;
        assert_eq!((present.snapshot.len(), present.snapshot.revision), (1, last), "nothing else can");
        assert_eq!(read_archive(&before, before.window.floor()).await, Ok(()), "so can the history");
        assert_eq!(back_up(&stores).await.unwrap().records, OBJECTS as u64 + 1, "and a backup is made");
        disk.faults.release_syncs();
    };
    let (results, ()) = futures::join!(join_all(keys.iter().map(|key| create(&pods, key, &body))), others);
    let made = results.iter().filter(|result| result.is_ok()).count();
    let busy = results.iter().filter(|result| matches!(result, Err(StoreError::Busy))).count();
    assert_eq!(made + busy, most);
    assert!(busy > 0 && made > OBJECTS, "{made} made, {busy} refused");
    let events = window_events(&before).await;
    let told = events.iter().filter(|event| event.revision() > last).map(|event| event.object.key.as_str());
    let (told, keys): (Vec<&str>, HashSet<&str>) = told.map(|key| (key, key)).unzip();
    assert_eq!((told.len(), keys.len()), (made, made), "each is told once");
    stores.directory.send(Stop).await.unwrap().unwrap();
    let stores = disk.start();
    let snapshot = open_watch(&find(&stores, "pods").await).await.snapshot;
    assert_eq!(snapshot.len(), made + 1);
    stores.directory.send(Stop).await.unwrap().unwrap();
}

#[actix_rt::test]
async fn disk_that_refuses_for_a_while_loses_nothing_that_was_acknowledged() {
    let disk = FaultyDisk::new();
    let mut acknowledged = 0;
    for (round, refuse) in [DiskFaults::refuse_writes, DiskFaults::refuse_syncs].into_iter().enumerate() {
        let stores = disk.start();
        let pods = find(&stores, "pods").await;
        create(&pods, &format!("before-{round}"), "").await.unwrap();
        acknowledged += 1;
        refuse(&disk.faults, true);
        assert!(matches!(create(&pods, &format!("during-{round}"), "").await, Err(StoreError::Unavailable)));
        let reason = stores.fatal.raised().unwrap();
        assert!(reason.starts_with("the log cannot be written: the store cannot be used: "), "{reason}");
        refuse(&disk.faults, false);
        // Without asking the disk again: it may have dropped what it could not write.
        assert!(matches!(create(&pods, &format!("after-{round}"), "").await, Err(StoreError::Unavailable)));

        let stores = disk.start();
        let snapshot = open_watch(&find(&stores, "pods").await).await.snapshot;
        for known in 0..=round {
            assert!(snapshot.get(&format!("before-{known}")).is_some());
            assert!(snapshot.get(&format!("after-{known}")).is_none());
        }
        let in_doubt = (0..=round).filter(|known| snapshot.get(&format!("during-{known}")).is_some()).count();
        assert_eq!(snapshot.len(), acknowledged + in_doubt);
        stores.directory.send(Stop).await.unwrap().unwrap();
    }
}
