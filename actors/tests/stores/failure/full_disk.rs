//! A disk that is full for one commit: that batch is undone, and everything else goes on.

use super::*;

#[actix_rt::test]
async fn type_that_was_released_after_a_rollback_accepts_writes_again() {
    let (stores, faults) = faulty(&Memory::new());
    let kites = find(&stores, "kites").await;
    faults.fail_after(0, Fault::NoSpace);
    assert!(matches!(create(&kites, "a", "").await, Err(StoreError::NoSpace)));
    while stores.committer.send(Tidy).await.unwrap().unwrap() > 0 {}
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
    assert!(matches!(replace(&pods, "a", "lost", Revision(2)).await, Err(StoreError::NoSpace)));
    assert!(matches!(settled(before.rollbacks).await, Err(StoreError::NoSpace)));
    let after = base_state().await;
    assert_eq!(after.object.unwrap().revision, Revision(2));
    assert!(settled(after.rollbacks).await.is_ok());
}
