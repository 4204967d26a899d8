//! Records of several servers that do not match the stored Services.

use std::net::IpAddr;

use pilothouse_actors::ports::{PortRequest, Reason};
use pilothouse_actors::shared_range::RangeContent;
use pilothouse_actors::shared_range::memory::MemoryRange;
use pilothouse_kinds::services::addresses::Family;
use pilothouse_types::object::Revision;

use super::super::node_ports::PortError;
use super::super::testing::{start_services, start_sharing_services, store};
use super::*;

const PORTS: &str = "30000-30009";
const ADDRESSES_RANGE: &str = "10.77.0.0/24";

fn content(range: &str, items: &[usize]) -> RangeContent {
    RangeContent { range: range.to_owned(), allocated: items.iter().copied().collect() }
}

fn items(record: &MemoryRange) -> Vec<usize> {
    record.content().unwrap().allocated.iter().collect()
}

fn set(items: &[usize]) -> BTreeSet<usize> {
    items.iter().copied().collect()
}

#[test]
fn leak_is_freed_when_it_was_found_three_times_in_a_row() {
    let (used, mut leaks) = (set(&[1, 5]), LeakCounts::new());
    let taken = set(&[1, 2, 3]);
    for round in 1..=3 {
        count_leaks(&mut leaks, &taken, &used);
        let repaired = repair_plan(None, &taken, &used, &leaks, true);
        assert_eq!(repaired.missing, [5]);
        let (leaked, kept) = if round < 3 { (vec![], vec![1, 2, 3, 5]) } else { (vec![2, 3], vec![1, 5]) };
        assert_eq!((repaired.leaked, repaired.kept), (leaked, kept), "{round}");
        assert_eq!(repair_plan(None, &taken, &used, &leaks, false).leaked, [0; 0]);
    }
    // It was in use meanwhile.
    count_leaks(&mut leaks, &taken, &set(&[2]));
    count_leaks(&mut leaks, &taken, &used);
    assert_eq!(repair_plan(None, &taken, &used, &leaks, true).leaked, [3]);
}

#[test]
fn ranges_of_other_flags_are_translated() {
    let record = |range: &str| RangeRecord { revision: Revision(1), content: content(range, &[0, 1, 7, 40]) };
    let translate = |range: &str| {
        let first = first_port(range)?;
        let item = move |item: usize| (item + first).checked_sub(30_000).filter(|item| *item < 10);
        Some(Box::new(item) as Box<dyn Fn(usize) -> Option<usize>>)
    };
    for (range, expected) in
        [(PORTS, &[0, 1, 7][..]), ("", &[0, 1, 7]), ("29999-30100", &[0, 6]), ("30000", &[0, 1, 7])]
    {
        let taken = taken_items(Some(&record(range)), PORTS, 10, translate).unwrap();
        assert_eq!(taken, set(expected), "{range}");
    }
    for foreign in ["10.0.0.0/24", "2-1", "70000-70001", "x"] {
        let error = taken_items(Some(&record(foreign)), PORTS, 10, translate).unwrap_err();
        assert!(error.to_string().contains(foreign), "{error}");
    }
    assert_eq!(taken_items(None, PORTS, 10, translate).unwrap(), set(&[]));
}

#[actix_rt::test]
async fn records_follow_services_and_faults_of_ports_are_found() {
    let (ports, addresses) = (MemoryRange::default(), MemoryRange::default());
    let (_storage, services) = start_sharing_services(&ports, &addresses);
    let owner = |name: &str| Key::namespaced("n", name);
    store(&services, &owner("a"), "10.77.0.1", 30_005).await;
    store(&services, &owner("b"), "10.77.0.2", 30_005).await;
    store(&services, &owner("c"), "10.77.0.3", 31_000).await;
    let fault = |name: &str, port, kind| PortFault { owner: owner(name), port, kind };
    let mut leaks = RecordLeaks::default();
    let lasting =
        [fault("b", 30_005, PortFaultKind::AlreadyAllocated), fault("c", 31_000, PortFaultKind::OutOfRange)];
    assert_eq!(services.repair_records(&mut leaks).await.unwrap(), lasting, "the records are new");
    assert_eq!(ports.content(), Some(content(PORTS, &[5])));
    assert_eq!(addresses.content(), Some(content(ADDRESSES_RANGE, &[0, 1, 2])));

    ports.put(content(PORTS, &[]));
    let faults = services.repair_records(&mut leaks).await.unwrap();
    assert_eq!(faults[..2], lasting);
    assert_eq!(faults[2..], [fault("a", 30_005, PortFaultKind::NotAllocated)]);

    ports.put(content(PORTS, &[1, 5]));
    addresses.put(content("10.76.0.0/15", &[65_535, 65_545]));
    for round in 1..=3 {
        assert_eq!(services.repair_records(&mut leaks).await.unwrap(), lasting);
        assert_eq!(items(&ports), if round < 3 { vec![1, 5] } else { vec![5] }, "{round}");
        // 10.77.0.10 of the other range is nobody's.
        assert_eq!(items(&addresses), if round < 3 { vec![0, 1, 2, 9] } else { vec![0, 1, 2] }, "{round}");
    }
    ports.put(content("nonsense", &[]));
    let error = services.repair_records(&mut leaks).await.unwrap_err();
    assert!(error.message.contains("nonsense"), "{error}");
}

#[actix_rt::test]
async fn ports_of_the_record_are_not_given_by_another_server() {
    let (record, addresses) = (MemoryRange::default(), MemoryRange::default());
    let servers: Vec<_> = (0..2).map(|_| start_sharing_services(&record, &addresses)).collect();
    servers[0].1.repair_records(&mut RecordLeaks::default()).await.unwrap();
    let allocate = async |server: usize, port| {
        let requests = vec![PortRequest::Exactly(port)];
        servers[server].1.ports.allocate(Key::namespaced("n", "x"), requests, Permit::none()).await
    };
    let reason = |result: std::result::Result<Vec<u16>, PortError>| match result {
        Err(PortError::Refused(refusal)) => refusal.reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(allocate(0, 30_001).await.unwrap(), [30_001]);
    assert_eq!(reason(allocate(1, 30_001).await), Reason::Taken);
    assert_eq!(reason(allocate(1, 30_010).await), Reason::Outside);
    assert!(servers[1].1.ports.check(vec![30_001], Permit::none()).await.is_err());
    assert_eq!(items(&record), [1]);
    servers[0].1.ports.release(Key::namespaced("n", "x"), vec![30_001, 31_000]).await.unwrap();
    assert_eq!(allocate(1, 30_001).await.unwrap(), [30_001]);
}

#[actix_rt::test]
async fn addresses_are_taken_in_the_record_before_their_object_is_created() {
    let (ports, addresses) = (MemoryRange::default(), MemoryRange::default());
    let (_storage, services) = start_sharing_services(&ports, &addresses);
    services.repair_records(&mut RecordLeaks::default()).await.unwrap();
    let (owner, permit) = (Key::namespaced("n", "x"), Permit::none());
    // An earlier release has all but two of them, without objects.
    let all_but_two: Vec<usize> = (0..254).filter(|item| ![7, 99].contains(item)).collect();
    addresses.put(content(ADDRESSES_RANGE, &all_but_two));
    let family = Family::V4;
    let first = services.take_any_address(family, &owner, &permit).await.unwrap();
    let second = services.take_any_address(family, &owner, &permit).await.unwrap();
    let expected: [IpAddr; 2] = ["10.77.0.100".parse().unwrap(), "10.77.0.8".parse().unwrap()];
    assert_eq!([first, second], expected, "the upper band comes first");
    assert_eq!(items(&addresses).len(), 254);
    services.release_address("10.77.0.8", &owner).await.unwrap();
    assert_eq!(items(&addresses).len(), 253);
    assert!(!items(&addresses).contains(&7));
}

#[actix_rt::test]
async fn server_of_its_own_has_no_records() {
    let (_storage, services) = start_services();
    assert_eq!(services.repair_records(&mut RecordLeaks::default()).await.unwrap(), []);
}
