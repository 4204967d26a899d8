//! Claims over real stores, also while those are busy.

use std::net::IpAddr;

use pilothouse_actors::ports::{AllocatePorts, CheckPorts, PortRequest};
use pilothouse_types::object::{Draft, Pairs, TypeName};

use super::super::testing::start_services;
use super::*;

const ADDRESS: &str = "10.77.0.5";

/// Allocates an address and a port.
async fn allocate(services: &Services, owner: &Key) -> ServiceAllocations {
    let address: IpAddr = ADDRESS.parse().unwrap();
    assert!(services.take_address(address, owner, &Permit::none()).await.unwrap());
    let command = AllocatePorts {
        owner: owner.clone(),
        requests: vec![PortRequest::Exactly(30_001)],
        permit: Permit::none(),
    };
    services.ports.send(command).await.unwrap().unwrap();
    ServiceAllocations { addresses: [ADDRESS.to_owned()].into(), ports: [30_001].into() }
}

async fn is_address_free(services: &Services) -> bool {
    let store = TypeName::new(super::super::ADDRESSES);
    services.stores.get(&store, Key::cluster(ADDRESS), &Permit::none()).await.is_err()
}

async fn is_port_free(services: &Services) -> bool {
    services.ports.send(CheckPorts { ports: vec![30_001], permit: Permit::none() }).await.unwrap().is_ok()
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
        permit: Permit::none(),
    };
    // Returns although nothing can be written yet.
    Claim::from(open).end(false).await;
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
    let command =
        AllocatePorts { owner, requests: vec![PortRequest::Exactly(30_001)], permit: Permit::none() };
    services.ports.send(command).await.unwrap().unwrap();
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
