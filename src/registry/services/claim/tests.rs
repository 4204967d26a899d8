//! Claims over real stores, also while those are busy.

use std::net::IpAddr;

use pilothouse_actors::ports::PortRequest;
use pilothouse_actors::shared_range::memory::MemoryRange;
use pilothouse_kinds::services::addresses::Family;
use pilothouse_types::object::{Draft, Pairs, TypeName};

use super::super::testing::{start_recording_services, start_services};
use super::*;

const ADDRESS: &str = "10.77.0.5";

/// Allocates an address and a port.
async fn allocate(services: &Services, owner: &Key) -> ServiceAllocations {
    let address: IpAddr = ADDRESS.parse().unwrap();
    assert!(services.take_address(address, owner, &Permit::none()).await.unwrap());
    take_port(services, owner).await;
    ServiceAllocations { addresses: [ADDRESS.to_owned()].into(), ports: [30_001].into() }
}

async fn take_port(services: &Services, owner: &Key) {
    let requests = vec![PortRequest::Exactly(30_001)];
    services.ports.allocate(owner.clone(), requests, Permit::none()).await.unwrap();
}

async fn is_address_free(services: &Services) -> bool {
    let store = TypeName::new(super::super::ADDRESSES);
    services.stores.get(&store, Key::cluster(ADDRESS), &Permit::none()).await.is_err()
}

async fn is_port_free(services: &Services) -> bool {
    services.ports.check(vec![30_001], Permit::none()).await.is_ok()
}

#[actix_rt::test]
async fn claim_retries_release_while_store_is_busy() {
    let (storage, services) = start_services();
    let owner = Key::namespaced("n", "x");
    let allocations = allocate(&services, &owner).await;
    assert!(!is_address_free(&services).await && !is_port_free(&services).await);
    let permits: Vec<_> = std::iter::from_fn(|| storage.write_limiter.take(0)).collect();
    let open = PendingClaim {
        services: services.clone(),
        owner,
        allocated: allocations,
        before: ServiceAllocations::default(),
        may_remove: false,
        is_proposed: true,
        permit: Permit::none(),
    };
    // Returns although nothing can be written yet.
    Claim::from(open).end(WriteEnd::NotStored).await;
    assert!(is_port_free(&services).await, "the port is released although the address cannot be");
    assert!(!is_address_free(&services).await);
    drop(permits);
    let wait_until_free = async {
        while !is_address_free(&services).await {
            sleep(PAUSE).await;
        }
    };
    timeout(PAUSE * 2_u32.pow(ATTEMPTS), wait_until_free).await.expect("the address is released");
}

/// It may be stored yet, and then it uses them.
#[actix_rt::test]
async fn service_of_unknown_outcome_keeps_its_allocations() {
    let (_storage, services) = start_services();
    let owner = Key::namespaced("n", "x");
    let allocated = allocate(&services, &owner).await;
    let open = |allocated| PendingClaim {
        services: services.clone(),
        owner: owner.clone(),
        allocated,
        before: ServiceAllocations::default(),
        may_remove: true,
        is_proposed: true,
        permit: Permit::none(),
    };
    Claim::from(open(allocated.clone())).end(WriteEnd::Unknown).await;
    assert!(!is_address_free(&services).await && !is_port_free(&services).await);
    Claim::from(open(allocated)).end(WriteEnd::NotStored).await;
    assert!(is_address_free(&services).await && is_port_free(&services).await);
}

#[actix_rt::test]
async fn release_retry_keeps_ports_allocated_since() {
    let (storage, services) = start_services();
    let owner = Key::namespaced("n", "x");
    let held = allocate(&services, &owner).await;
    let mut unsettled =
        UnsettledAllocations { owner: owner.clone(), held, endpoints: true, permit: Permit::none() };
    let permits: Vec<_> = std::iter::from_fn(|| storage.write_limiter.take(0)).collect();
    assert!(matches!(services.release_unused(&mut unsettled).await, Err(StoreError::Busy)));
    // A service of the same name is made meanwhile, and takes the port that is free again.
    take_port(&services, &owner).await;
    drop(permits);
    services.release_unused(&mut unsettled).await.unwrap();
    assert!(is_address_free(&services).await && unsettled.is_settled());
    assert!(!is_port_free(&services).await, "the new service keeps it");
}

#[actix_rt::test]
async fn unreadable_service_keeps_its_allocations() {
    let (_storage, services) = start_services();
    let owner = Key::namespaced("n", "x");
    let held = allocate(&services, &owner).await;
    let head = r#"{"metadata":{"resourceVersion":""#;
    let draft = Draft {
        key: owner.clone(),
        bytes: format!(r#"{head}"}},"spec":{{"clusterIPs":"{ADDRESS}"}}}}"#).into(),
        revision_offset: head.len(),
        item_offset: 1,
        labels: Pairs::default(),
        fields: Pairs::default(),
    };
    let store = TypeName::new(super::super::SERVICES);
    services.stores.create(&store, draft, &Permit::none()).await.unwrap();
    let mut unsettled = UnsettledAllocations { owner, held, endpoints: true, permit: Permit::none() };
    services.release_unused(&mut unsettled).await.unwrap();
    assert!(!is_address_free(&services).await && !is_port_free(&services).await && unsettled.is_settled());
}

/// Its validation may take long, and somebody else may have the old items by then.
#[actix_rt::test]
async fn write_that_was_never_proposed_releases_only_its_own() {
    let (_storage, services) = start_services();
    let owner = Key::namespaced("n", "x");
    let before = allocate(&services, &owner).await;
    services.ports.allocate(owner.clone(), vec![PortRequest::Exactly(30_002)], Permit::none()).await.unwrap();
    let allocated = ServiceAllocations { addresses: [].into(), ports: [30_002].into() };
    let (may_remove, is_proposed, permit) = (true, false, Permit::none());
    let services_of_claim = services.clone();
    drop(Claim::from(PendingClaim {
        services: services_of_claim,
        owner,
        allocated,
        before,
        may_remove,
        is_proposed,
        permit,
    }));
    let wait_until_free = async {
        while services.ports.check(vec![30_002], Permit::none()).await.is_err() {
            sleep(PAUSE).await;
        }
    };
    timeout(PAUSE * 2_u32.pow(ATTEMPTS), wait_until_free).await.expect("its own port is released");
    assert!(!is_address_free(&services).await && !is_port_free(&services).await);
}

/// The record does not say who has an address. If the write comes to be stored, its address must not have been given to somebody else;
/// if not, a check frees it.
#[actix_rt::test]
async fn dropped_claim_of_unknown_outcome_keeps_addresses_without_owners() {
    let record = MemoryRange::default();
    let (_storage, services) = start_recording_services(&record);
    let owner = Key::namespaced("n", "x");
    let claim = async |is_proposed| {
        let address = services.take_any_address(Family::V4, &owner, &Permit::none()).await.unwrap();
        let allocated = ServiceAllocations { addresses: [address.to_string()].into(), ports: [].into() };
        let (services, owner, before) = (services.clone(), owner.clone(), ServiceAllocations::default());
        let (may_remove, permit) = (false, Permit::none());
        Claim::from(PendingClaim { services, owner, allocated, before, may_remove, is_proposed, permit })
    };
    let taken = || record.content().unwrap().allocated.len();
    drop(claim(true).await);
    let unproposed = claim(false).await;
    assert_eq!(taken(), 2);
    // What the store was never asked about is released. That is the later task, so the other has had its turn by then.
    drop(unproposed);
    let wait_until_free = async {
        while taken() == 2 {
            sleep(PAUSE).await;
        }
    };
    timeout(PAUSE * 2_u32.pow(ATTEMPTS), wait_until_free).await.expect("the unproposed address is released");
    // Commands to the allocator are done in order.
    services.take_any_address(Family::V4, &owner, &Permit::none()).await.unwrap();
    assert_eq!(taken(), 2);
}
