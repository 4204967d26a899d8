//! An allocator over real stores, for tests of claims and repairs.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected fails")]

use std::rc::Rc;
use std::sync::Arc;

use actix::Actor as _;
use pilothouse_actors::directory::{Options, Stores as Storage, start};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::ports::{PortAllocator, PortPool};
use pilothouse_actors::range_allocator::{ItemRange, RangeAllocator};
use pilothouse_actors::shared_range::RangeContent;
use pilothouse_actors::shared_range::memory::MemoryRange;
use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_kinds::services::addresses::AddressRange;
use pilothouse_types::clock::Clock;
use pilothouse_types::object::{Key, Pairs, TypeName};

use super::address_records::{AddressRecord, item_range};
use super::node_ports::{NodePorts, SharedPorts};
use super::{SERVICES, Services};
use crate::registry::stores::Stores;

const RANGE: &str = "10.77.0.0/24";

/// An allocator with a range of addresses and ten ports, and its stores.
pub(super) fn start_services() -> (Storage, Rc<Services>) {
    let storage = start(Box::new(Memory::new()), Options::default()).unwrap();
    let ports = PortAllocator::new(PortPool::new(30_000, 30_009, []), storage.fatal.clone()).start();
    let services = services(&storage, NodePorts::Own(ports));
    (storage, Rc::new(services))
}

/// The same, over records of ports and addresses that others may write.
pub(super) fn start_sharing_services(
    ports: &MemoryRange,
    addresses: &MemoryRange,
) -> (Storage, Rc<Services>) {
    let storage = start(Box::new(Memory::new()), Options::default()).unwrap();
    let allocator = |items, record: &MemoryRange| {
        RangeAllocator::new(items, Arc::new(record.clone()), storage.fatal.clone()).start()
    };
    let items = ItemRange { text: "30000-30009".to_owned(), size: 10, lower_band: 0 };
    let shared = SharedPorts { allocator: allocator(items, ports), first: 30_000, last: 30_009 };
    let range = AddressRange::parse(RANGE).unwrap();
    let record = AddressRecord { range, allocator: allocator(item_range(&range), addresses) };
    let services = services(&storage, NodePorts::Shared(shared)).with_address_records(Arc::new([record]));
    (storage, Rc::new(services))
}

/// With ports of its own, and a record of addresses in the place of their objects.
pub(super) fn start_recording_services(addresses: &MemoryRange) -> (Storage, Rc<Services>) {
    let storage = start(Box::new(Memory::new()), Options::default()).unwrap();
    let ports = PortAllocator::new(PortPool::new(30_000, 30_009, []), storage.fatal.clone()).start();
    let range = AddressRange::parse(RANGE).unwrap();
    addresses.put(RangeContent { range: RANGE.to_owned(), allocated: std::iter::empty::<usize>().collect() });
    let allocator =
        RangeAllocator::new(item_range(&range), Arc::new(addresses.clone()), storage.fatal.clone()).start();
    let record = AddressRecord { range, allocator };
    let services = services(&storage, NodePorts::Own(ports))
        .with_address_records(Arc::new([record]))
        .with_objects(false);
    (storage, Rc::new(services))
}

fn services(storage: &Storage, ports: NodePorts) -> Services {
    Services::new(
        Stores::new(storage),
        Arc::new(Registry::builtin().unwrap()),
        Clock::system(),
        ports,
        AddressRange::parse(RANGE).into_iter().collect(),
        "30000-30009".to_owned(),
    )
}

/// Stores a service with these allocations, whether they were allocated or not.
pub(super) async fn store(services: &Services, owner: &Key, address: &str, port: u16) {
    let text = format!(
        r#"{{"kind":"Service","apiVersion":"v1","metadata":{{"name":"{}","namespace":"n"}},"spec":{{"type":"NodePort",
            "clusterIP":"{address}","clusterIPs":["{address}"],"ports":[{{"port":80,"nodePort":{port}}}]}}}}"#,
        owner.name()
    );
    let value = json::read(text.as_bytes()).unwrap();
    let ty = services.registry.kind("", "v1", "Service").unwrap();
    let encoded = codec::encode_draft(&services.registry, ty, &value);
    let draft = encoded.into_draft(owner.clone(), Pairs::default(), Pairs::default());
    services.stores.create(&TypeName::new(SERVICES), draft, &Permit::none()).await.unwrap();
}
