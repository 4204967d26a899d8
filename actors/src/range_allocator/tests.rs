//! Allocators over a record in memory, with the conflicts and faults of several servers.

use actix::Addr;
use futures::future::join_all;

use super::*;
use crate::shared_range::RangeContent;
use crate::shared_range::memory::{MemoryRange, WriteFault};

const TEXT: &str = "30000-30099";

fn content(items: impl IntoIterator<Item = usize>) -> RangeContent {
    RangeContent { range: TEXT.to_owned(), allocated: items.into_iter().collect() }
}

fn start(shared: &MemoryRange) -> Addr<RangeAllocator> {
    let range = ItemRange { text: TEXT.to_owned(), size: 100, lower_band: 16 };
    RangeAllocator::new(range, Arc::new(shared.clone()), Fatal::new()).start()
}

/// An allocator, and its record, in which these items are taken.
fn allocator(items: impl IntoIterator<Item = usize>) -> (MemoryRange, Addr<RangeAllocator>) {
    let shared = MemoryRange::default();
    shared.put(content(items));
    let allocator = start(&shared);
    (shared, allocator)
}

fn taken(shared: &MemoryRange) -> Vec<usize> {
    shared.content().unwrap().allocated.iter().collect()
}

async fn allocate(
    allocator: &Addr<RangeAllocator>,
    requests: &[ItemRequest],
) -> Result<Result<Vec<usize>, ItemRefusal>, RangeError> {
    allocator.send(AllocateItems { requests: requests.to_vec(), permit: Permit::none() }).await.unwrap()
}

async fn allocate_one(allocator: &Addr<RangeAllocator>, item: i64) -> Result<Vec<usize>, RefusalReason> {
    allocate(allocator, &[ItemRequest::Exactly(item)]).await.unwrap().map_err(|refusal| refusal.reason)
}

async fn release(allocator: &Addr<RangeAllocator>, items: &[usize]) -> Result<(), RangeError> {
    allocator.send(ReleaseItems { items: items.to_vec() }).await.unwrap()
}

async fn repair(allocator: &Addr<RangeAllocator>, items: RepairPlan) -> bool {
    repair_items(allocator, items).await.is_complete
}

async fn repair_items(allocator: &Addr<RangeAllocator>, items: RepairPlan) -> RepairOutcome {
    allocator.send(RepairItems(items)).await.unwrap().unwrap()
}

async fn read(allocator: &Addr<RangeAllocator>) -> Option<RangeRecord> {
    allocator.send(ReadItems).await.unwrap().unwrap()
}

fn is_error(result: &Result<Result<Vec<usize>, ItemRefusal>, RangeError>, expected: &StoreError) -> bool {
    matches!(result, Err(RangeError::Store(error)) if std::mem::discriminant(error) == std::mem::discriminant(expected))
}

#[actix_rt::test]
async fn items_are_allocated_all_or_none_and_released() {
    let (shared, allocator) = allocator([7]);
    let some = [ItemRequest::Exactly(8), ItemRequest::Exactly(7)];
    let refusal = allocate(&allocator, &some).await.unwrap().unwrap_err();
    assert_eq!(refusal, ItemRefusal { index: 1, reason: RefusalReason::Taken });
    assert_eq!((taken(&shared), shared.writes()), (vec![7], 0));
    assert_eq!(allocate_one(&allocator, 8).await, Ok(vec![8]));
    for outside in [-1, 100, i64::MAX] {
        assert_eq!(allocate_one(&allocator, outside).await, Err(RefusalReason::Outside), "{outside}");
    }
    release(&allocator, &[7, 8, 50]).await.unwrap();
    assert_eq!(taken(&shared), [0; 0]);
    assert_eq!(allocate_one(&allocator, 7).await, Ok(vec![7]));
    let rest = allocate(&allocator, &[ItemRequest::Any(3); 99]).await.unwrap().unwrap();
    assert!(rest[..84].iter().all(|item| *item >= 16), "the lower band comes last: {rest:?}");
    let full = allocate(&allocator, &[ItemRequest::Any(3)]).await.unwrap().unwrap_err();
    assert_eq!(full.reason, RefusalReason::Full);
}

#[actix_rt::test]
async fn check_changes_nothing_and_sees_what_others_wrote() {
    let (shared, allocator) = allocator([7]);
    let check = async |items: &[i64]| {
        allocator.send(CheckItems { items: items.to_vec(), permit: Permit::none() }).await.unwrap().unwrap()
    };
    assert_eq!(check(&[5, -1, 6, 1 << 40]).await, Ok(()));
    assert_eq!(check(&[5, 7]).await, Err(ItemRefusal { index: 1, reason: RefusalReason::Taken }));
    shared.put(content([5]));
    assert_eq!(check(&[7]).await, Ok(()));
    assert!(check(&[5]).await.is_err());
    assert_eq!(shared.writes(), 0);
}

/// An item that another server has released is free here, though this server has not seen that yet.
#[actix_rt::test]
async fn refusal_is_by_the_current_record() {
    let (shared, allocator) = allocator([7]);
    assert_eq!(allocate_one(&allocator, 7).await, Err(RefusalReason::Taken));
    shared.put(content([8]));
    assert_eq!(allocate_one(&allocator, 7).await, Ok(vec![7]));
    assert_eq!(allocate_one(&allocator, 8).await, Err(RefusalReason::Taken));
    assert_eq!(taken(&shared), [7, 8]);
}

#[actix_rt::test]
async fn several_servers_never_give_an_item_twice() {
    let (shared, one) = allocator([]);
    let allocators = [one, start(&shared), start(&shared)];
    let allocations = (0..90).map(|number| {
        let allocator = &allocators[number % 3];
        async move { allocate(allocator, &[ItemRequest::Any(number as u32)]).await.unwrap().unwrap()[0] }
    });
    let mut items = join_all(allocations).await;
    items.sort_unstable();
    assert_eq!(taken(&shared), items);
    items.dedup();
    assert_eq!(items.len(), 90);
    assert!(shared.writes() < 90, "those of one server share writes: {}", shared.writes());
    let explicit = join_all(allocators.iter().map(|allocator| {
        let free = (0..100).find(|item| !items.contains(item)).unwrap();
        allocate_one(allocator, free as i64)
    }));
    assert_eq!(explicit.await.iter().filter(|result| result.is_ok()).count(), 1);
}

#[actix_rt::test]
async fn allocations_of_one_server_share_a_write() {
    let (shared, allocator) = allocator([]);
    let results = join_all((0..64).map(|item| allocate_one(&allocator, item))).await;
    assert!(results.iter().all(Result::is_ok));
    // The first one, and those that came meanwhile.
    assert!(shared.writes() <= 2, "{}", shared.writes());
}

#[actix_rt::test]
async fn lost_answer_leaves_explicit_item_to_the_repair() {
    let (shared, allocator) = allocator([]);
    shared.fail_writes([Some(WriteFault::AnswerLost)]);
    let result = allocate(&allocator, &[ItemRequest::Exactly(4)]).await;
    assert!(is_error(&result, &StoreError::UnknownOutcome), "{result:?}");
    shared.fail_writes([Some(WriteFault::AnswerLost)]);
    let other = allocate(&allocator, &[ItemRequest::Any(0)]).await.unwrap().unwrap();
    assert!(taken(&shared).len() == 3 && taken(&shared).contains(&other[0]), "{:?}", taken(&shared));
}

#[actix_rt::test]
async fn lost_write_is_repeated() {
    let (shared, allocator) = allocator([9]);
    shared.fail_writes([Some(WriteFault::Lost), Some(WriteFault::Lost)]);
    assert_eq!(allocate_one(&allocator, 4).await, Ok(vec![4]));
    shared.fail_writes([Some(WriteFault::Lost)]);
    release(&allocator, &[9]).await.unwrap();
    assert_eq!((taken(&shared), shared.writes()), (vec![4], 2));
}

/// Otherwise the item could be taken from whoever has got it meanwhile.
#[actix_rt::test]
async fn release_without_answer_is_not_repeated() {
    let (shared, allocator) = allocator([4, 5]);
    let other = start(&shared);
    shared.fail_writes([Some(WriteFault::AnswerLost), None]);
    let (released, _) = futures::join!(release(&allocator, &[4]), async {
        while taken(&shared).contains(&4) {
            tokio::task::yield_now().await;
        }
        assert_eq!(allocate_one(&other, 4).await, Ok(vec![4]));
    });
    released.unwrap();
    assert_eq!(taken(&shared), [4, 5]);
}

#[actix_rt::test]
async fn outage_fails_everybody_at_once() {
    let (shared, allocator) = allocator([]);
    shared.cut_off(true);
    let results = join_all((0..10).map(|item| allocate_any(&allocator, item))).await;
    assert!(results.iter().all(|result| is_error(result, &StoreError::Unreachable)), "{results:?}");
    shared.cut_off(false);
    assert_eq!(allocate_one(&allocator, 3).await, Ok(vec![3]));
    shared.fail_writes([Some(WriteFault::Refused)]);
    assert!(is_error(&allocate_any(&allocator, 1).await, &StoreError::Unreachable));
    assert_eq!(taken(&shared), [3]);
}

async fn allocate_any(
    allocator: &Addr<RangeAllocator>,
    random: u32,
) -> Result<Result<Vec<usize>, ItemRefusal>, RangeError> {
    allocate(allocator, &[ItemRequest::Any(random)]).await
}

#[actix_rt::test]
async fn nothing_is_allocated_by_a_missing_or_foreign_record() {
    let shared = MemoryRange::default();
    let allocator = start(&shared);
    assert!(matches!(allocate_any(&allocator, 1).await, Err(RangeError::Missing)));
    let foreign = RangeContent { range: "30000-32767".to_owned(), ..content([1, 2]) };
    shared.put(foreign.clone());
    assert!(matches!(allocate_any(&allocator, 1).await, Err(RangeError::OtherRange)));
    assert!(matches!(release(&allocator, &[1]).await, Err(RangeError::OtherRange)));
    assert_eq!((shared.content(), shared.writes()), (Some(foreign), 0));
}

#[actix_rt::test]
async fn repair_makes_the_record_and_adds_what_is_missing() {
    let shared = MemoryRange::default();
    let allocator = start(&shared);
    assert_eq!(read(&allocator).await, None);
    let missing = RepairPlan { missing: vec![3, 4], ..RepairPlan::default() };
    // Another server is faster.
    shared.put(content([4, 9]));
    let patient = RepairPlan { if_changed: IfChanged::LookAgain, ..missing.clone() };
    assert_eq!(repair_items(&allocator, patient).await, RepairOutcome::default());
    assert_eq!(taken(&shared), [4, 9]);
    let done = repair_items(&allocator, missing.clone()).await;
    assert_eq!(done, RepairOutcome { added: vec![3], freed: Vec::new(), is_complete: true });
    assert_eq!(taken(&shared), [3, 4, 9]);
    assert!(repair(&allocator, missing).await);
    assert_eq!(shared.writes(), 1, "a record without faults is not written");

    let shared = MemoryRange::default();
    let allocator = start(&shared);
    assert!(repair(&allocator, RepairPlan::default()).await);
    assert_eq!(shared.content(), Some(content([])));
}

#[actix_rt::test]
async fn leak_is_freed_only_in_the_record_in_which_it_was_seen() {
    let (shared, allocator) = allocator([3, 4]);
    let seen = read(&allocator).await.unwrap().revision;
    let leaked = |seen| RepairPlan { seen: Some(seen), leaked: vec![4], ..RepairPlan::default() };
    // It may have been released and allocated since.
    shared.put(content([3, 4, 5]));
    assert!(!repair(&allocator, leaked(seen)).await);
    assert_eq!(taken(&shared), [3, 4, 5]);
    let seen = read(&allocator).await.unwrap().revision;
    assert!(repair(&allocator, leaked(seen)).await);
    assert_eq!(taken(&shared), [3, 5]);
}

#[actix_rt::test]
async fn record_of_another_range_is_adopted_by_a_repair() {
    let (shared, allocator) = allocator([]);
    shared.put(RangeContent { range: "20000-20099".to_owned(), ..content([1]) });
    let seen = read(&allocator).await.unwrap().revision;
    let kept = RepairPlan { seen: Some(seen), kept: vec![7, 8], ..RepairPlan::default() };
    shared.put(RangeContent { range: "20000-20099".to_owned(), ..content([1, 2]) });
    assert!(!repair(&allocator, kept.clone()).await, "it has changed since it was judged");
    let seen = read(&allocator).await.unwrap().revision;
    assert!(repair(&allocator, RepairPlan { seen: Some(seen), ..kept }).await);
    assert_eq!(shared.content(), Some(content([7, 8])));
}
