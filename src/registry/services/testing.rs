//! An allocator over real stores, for tests of claims and repairs.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected fails")]

use std::rc::Rc;
use std::sync::Arc;

use actix::Actor as _;
use pilothouse_actors::directory::{Options, Stores as Storage, start};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::ports::{PortAllocator, PortPool};
use pilothouse_apimachinery::schema::Registry;
use pilothouse_kinds::services::addresses::AddressRange;
use pilothouse_types::clock::Clock;

use super::Services;
use crate::registry::stores::Stores;

/// An allocator with a range of addresses and ten ports, and its stores.
pub(super) fn start_services() -> (Storage, Rc<Services>) {
    let storage = start(Box::new(Memory::new()), Options::default()).unwrap();
    let ports = PortAllocator::new(PortPool::new(30_000, 30_009, []), storage.fatal.clone()).start();
    let services = Services::new(
        Stores::new(&storage),
        Arc::new(Registry::builtin().unwrap()),
        Clock::system(),
        ports,
        AddressRange::parse("10.77.0.0/24").into_iter().collect(),
        "30000-30009".to_owned(),
    );
    (storage, Rc::new(services))
}
