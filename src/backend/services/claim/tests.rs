//! Claims over real stores, and what they do when those have no place for a write.

use std::net::IpAddr;

use pilothouse_actors::ports::{AllocatePorts, CheckPorts, PortRequest};
use pilothouse_types::object::{Draft, Pairs, TypeName};

use super::super::testing::running;
use super::*;

const ADDRESS: &str = "10.77.0.5";

/// Takes an address and a port.
async fn taken(services: &Services, owner: &Key) -> ServiceAllocations {
    let address: IpAddr = ADDRESS.parse().unwrap();
    assert!(services.take_address(address, owner, &Permit::none()).await.unwrap());
    let take = AllocatePorts {
        owner: owner.clone(),
        wants: vec![PortRequest::Exactly(30_001)],
        permit: Permit::none(),
    };
    services.ports.send(take).await.unwrap().unwrap();
    ServiceAllocations { addresses: [ADDRESS.to_owned()].into(), ports: [30_001].into() }
}

async fn is_address_free(services: &Services) -> bool {
    let of = TypeName::new(super::super::ADDRESSES);
    services.stores.get(&of, Key::cluster(ADDRESS), &Permit::none()).await.is_err()
}

async fn is_port_free(services: &Services) -> bool {
    services.ports.send(CheckPorts { ports: vec![30_001], permit: Permit::none() }).await.unwrap().is_ok()
}

#[actix_rt::test]
async fn stores_without_a_place_delay_what_is_given_back_and_lose_nothing() {
    let (storage, services) = running();
    let owner = Key::namespaced("n", "x");
    let taken = taken(&services, &owner).await;
    assert!(!is_address_free(&services).await && !is_port_free(&services).await);
    let places: Vec<_> = std::iter::from_fn(|| storage.write_limiter.take(0)).collect();
    let open = Open {
        services: services.clone(),
        owner,
        taken,
        before: ServiceAllocations::default(),
        goes: false,
        permit: Permit::none(),
    };
    // It answers although nothing can be written yet.
    Claim::from(open).end(false).await;
    assert!(is_port_free(&services).await, "an address that cannot be given back does not keep the port");
    assert!(!is_address_free(&services).await);
    drop(places);
    let free = async {
        while !is_address_free(&services).await {
            sleep(PAUSE).await;
        }
    };
    timeout(PAUSE * 2_u32.pow(ROUNDS), free).await.expect("the address comes back");
}

#[actix_rt::test]
async fn a_second_try_frees_only_what_the_first_did_not() {
    let (storage, services) = running();
    let owner = Key::namespaced("n", "x");
    let held = taken(&services, &owner).await;
    let mut doubt = UnsettledHoldings { owner: owner.clone(), held, endpoints: true, permit: Permit::none() };
    let places: Vec<_> = std::iter::from_fn(|| storage.write_limiter.take(0)).collect();
    assert!(matches!(services.release_unused(&mut doubt).await, Err(StoreError::Busy)));
    // A service of the same name is made meanwhile, and takes the port that is free again.
    let take = AllocatePorts { owner, wants: vec![PortRequest::Exactly(30_001)], permit: Permit::none() };
    services.ports.send(take).await.unwrap().unwrap();
    drop(places);
    services.release_unused(&mut doubt).await.unwrap();
    assert!(is_address_free(&services).await && doubt.is_none());
    assert!(!is_port_free(&services).await, "the new service keeps it");
}

#[actix_rt::test]
async fn a_service_that_cannot_be_read_keeps_what_is_taken_for_it() {
    let (_storage, services) = running();
    let owner = Key::namespaced("n", "x");
    let held = taken(&services, &owner).await;
    let head = r#"{"metadata":{"resourceVersion":""#;
    let draft = Draft {
        key: owner.clone(),
        bytes: format!(r#"{head}"}},"spec":{{"clusterIPs":"{ADDRESS}"}}}}"#).into(),
        revision_at: head.len(),
        item_at: 1,
        labels: Pairs::default(),
        fields: Pairs::default(),
    };
    let of = TypeName::new(super::super::SERVICES);
    services.stores.create(&of, draft, &Permit::none()).await.unwrap();
    let mut doubt = UnsettledHoldings { owner, held, endpoints: true, permit: Permit::none() };
    services.release_unused(&mut doubt).await.unwrap();
    assert!(!is_address_free(&services).await && !is_port_free(&services).await && doubt.is_none());
}
