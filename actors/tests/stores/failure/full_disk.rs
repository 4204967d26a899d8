//! A disk that is full for one commit: that batch is undone, and everything else goes on.

use pilothouse_actors::encryption::Encryption;
use pilothouse_actors::engine::{Batch, Disk, Stats, Visitor};
use pilothouse_actors::log_time::LogTime;
use pilothouse_types::lock::Lock;

use super::*;

#[actix_rt::test]
async fn type_that_was_released_after_a_rollback_accepts_writes_again() {
    let (stores, faults) = faulty(&Memory::new());
    let kites = find(&stores, "kites").await;
    faults.fail_after(0, Fault::NoSpace);
    assert!(matches!(create(&kites, "a", "").await, Err(StoreError::NoSpace)));
    while committer(&stores).send(Tidy).await.unwrap().unwrap() > 0 {}
    let release = Release { type_name: TypeName::new("kites") };
    assert_eq!(stores.directory.send(release).await.unwrap(), Released::Done);
    let created = create(&find(&stores, "kites").await, "a", "").await.unwrap();
    assert_eq!(created.revision, Revision(4), "2 was rolled back, 3 closes the gap");
    assert_eq!(stores.fatal.raised(), None);
}

#[actix_rt::test]
async fn state_that_was_rolled_back_is_never_called_durable() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    create(&pods, "a", "").await.unwrap();
    let base_state = async || {
        let take = TakeTurn { key: Key::cluster("a"), turn: TurnMode::Never, permit: Permit::none() };
        pods.send(take).await.unwrap().unwrap()
    };
    let settled = async |rollbacks| {
        let key = Key::cluster("a");
        pods.send(GetSettled { key, rollbacks: Some(rollbacks), permit: Permit::none() }).await.unwrap()
    };
    let before = base_state().await;
    assert!(settled(before.rollbacks).await.is_ok());
    faults.fail_after(0, Fault::NoSpace);
    let growing = "lost".repeat(GROWTH_WHEN_FULL);
    assert!(matches!(replace(&pods, "a", &growing, Revision(2)).await, Err(StoreError::NoSpace)));
    assert!(matches!(settled(before.rollbacks).await, Err(StoreError::NoSpace)));
    let after = base_state().await;
    assert_eq!(after.object.unwrap().revision, Revision(2));
    assert!(settled(after.rollbacks).await.is_ok());
}

#[actix_rt::test]
async fn writes_that_need_no_space_are_made_when_a_batch_finds_the_disk_full() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    for key in ["changed", "removed", "grown"] {
        create(&pods, key, "").await.unwrap();
    }
    faults.hold();
    faults.fail_after(0, Fault::NoSpace);
    let growing = "x".repeat(2 * GROWTH_WHEN_FULL);
    let writes = async {
        futures::join!(
            create(&pods, "created", ""),
            replace(&pods, "changed", "small", Revision(2)),
            remove(&pods, "removed", Revision(3)),
            replace(&pods, "grown", &growing, Revision(4)),
        )
    };
    let release = async {
        wait_for_writes(&stores, 4).await;
        faults.release();
    };
    let ((created, changed, removed, grown), ()) = futures::join!(writes, release);
    assert!(matches!((created, grown), (Err(StoreError::NoSpace), Err(StoreError::NoSpace))));
    let revisions = (changed.unwrap().revision, removed.unwrap().revision);
    // 5 to 8 were rolled back, 9 closes the gap.
    assert_eq!(revisions, (Revision(10), Revision(11)));
    let position = open_watch(&pods).await;
    let keys: Vec<&str> = position.snapshot.iter().map(|object| object.key.as_str()).collect();
    assert_eq!(keys, ["changed", "grown"]);
    assert_eq!(window_events(&position).await.len(), 5, "each is told once");
    wait_for_writes(&stores, 0).await;
}

#[actix_rt::test]
async fn disk_that_stays_full_refuses_removals_at_last() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    create(&pods, "a", "").await.unwrap();
    faults.set_lasting(Some(Fault::NoSpace));
    assert!(matches!(remove(&pods, "a", Revision(2)).await, Err(StoreError::NoSpace)));
    assert_eq!(faults.commits().len(), 2 + FULL_DISK_REPEATS as usize);
    faults.set_lasting(None);
    remove(&pods, "a", Revision(2)).await.unwrap();
    assert_eq!(stores.fatal.raised(), None);
}

#[actix_rt::test]
async fn idle_work_pauses_longer_and_longer_while_the_disk_is_full() {
    let (stores, faults) = faulty(&Memory::new());
    let pods = find(&stores, "pods").await;
    faults.set_lasting(Some(Fault::NoSpace));
    let failures = async |rounds: usize| {
        let mut failures = 0;
        for _ in 0..rounds {
            failures += usize::from(committer(&stores).send(Tidy).await.unwrap().is_err());
        }
        failures
    };
    assert_eq!(failures(30).await, 5, "after 1, 2, 4 and 8 rounds that are left out");
    faults.set_lasting(None);
    create(&pods, "a", "").await.unwrap();
    faults.set_lasting(Some(Fault::NoSpace));
    assert_eq!(failures(1).await, 1, "a commit ends the pause");
}

#[actix_rt::test]
async fn full_disk_separates_small_writes_from_large_ones() {
    let (stores, faults) = faulty(&Memory::new());
    let (pods, nodes) = (find(&stores, "pods").await, find(&stores, "nodes").await);
    let services = find(&stores, "services").await;
    let large = "x".repeat(RESERVED_BATCH_BYTES);
    create(&pods, "large", &large).await.unwrap();
    create(&nodes, "small", "").await.unwrap();
    faults.hold();
    faults.fail_after(0, Fault::NoSpace);
    let others = async {
        // They come while the commit is under way after which the disk is known to be full.
        faults.wait_for_commits(3);
        let release = async {
            wait_for_writes(&stores, 3).await;
            faults.release();
        };
        futures::join!(
            remove(&nodes, "small", Revision(2)),
            replace(&pods, "large", &large, Revision(2)),
            release
        )
    };
    let (failing, (small, equal, ())) = futures::join!(create(&services, "failing", ""), others);
    assert!(failing.is_err() && small.is_ok() && equal.is_ok());
    assert_eq!(faults.commits(), [1, 1, 1, 1, 1]);
}

/// A log in memory that says how much space its disk has.
struct OnDisk(Memory, Arc<Lock<Disk>>);

impl Engine for OnDisk {
    fn load(&mut self, visitor: &mut dyn Visitor) -> Result<(), EngineError> {
        self.0.load(visitor)
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        self.0.commit(batch)
    }

    fn settle(&mut self, now: LogTime) -> Result<(), EngineError> {
        self.0.settle(now)
    }

    fn encryption(&self) -> Arc<dyn Encryption> {
        self.0.encryption()
    }

    fn restore_reserve(&mut self) {
        let mut disk = self.1.lock();
        disk.free_bytes -= disk.kept_bytes;
        disk.kept_bytes = 0;
    }

    fn log_time(&self) -> LogTime {
        self.0.log_time()
    }

    fn stats(&self) -> Result<Stats, EngineError> {
        Ok(Stats { disk: Some(*self.1.lock()), ..self.0.stats()? })
    }

    fn close(self: Box<Self>, now: LogTime) -> Result<(), EngineError> {
        Box::new(self.0).close(now)
    }
}

#[actix_rt::test]
async fn reserve_that_was_released_is_taken_back_before_the_store_may_grow() {
    const MIB: u64 = 1 << 20;
    let disk = Disk { free_bytes: 4 * MIB, total_bytes: 64 * MIB, file_bytes: 0, kept_bytes: 4 * MIB };
    let disk = Arc::new(Lock::new(disk));
    let stores = start_stores(Box::new(OnDisk(Memory::new(), Arc::clone(&disk))), &manual_options());
    let pods = find(&stores, "pods").await;
    let tidy = async || committer(&stores).send(Tidy).await.unwrap().unwrap();
    tidy().await;
    assert!(matches!(create(&pods, "a", "").await, Err(StoreError::NoSpace)), "only the reserve is left");
    disk.lock().free_bytes = 12 * MIB;
    tidy().await;
    let now = *disk.lock();
    assert_eq!((now.free_bytes, now.kept_bytes), (8 * MIB, 0));
    create(&pods, "a", "").await.unwrap();
}
