//! What metrics tell of the allocators: how many addresses and ports are taken, and how many allocations there were.

use std::net::IpAddr;

use futures::future::join_all;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::yield_every::YieldEvery;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::well_known::NETWORKING_GROUP;
use pilothouse_kinds::services::addresses::{AddressRange, Family};
use pilothouse_kinds::services::ports::NodePortRequest;
use pilothouse_kinds::services::{list, spec};
use pilothouse_types::clock::Moment;
use pilothouse_types::object::TypeName;

use super::node_ports::PortError;
use super::record_repair::PortFaultKind;
use super::repair::Finding;
use super::{ADDRESSES, RANGES, Services};
use crate::metrics::allocators::{AllocationScope, RangeUse, RepairFault};

/// Addresses that are compared with the ranges before the worker's other requests get a turn.
const ADDRESSES_PER_TURN: usize = 1_024;

impl Services {
    /// How many addresses of each range of the cluster are taken; `None` if nobody can tell.
    pub async fn address_use(&self) -> Option<Vec<(String, RangeUse)>> {
        if !self.has_objects {
            return self.recorded_use().await;
        }
        let permit = Permit::none();
        let ranges = self.stores.snapshot(&TypeName::new(RANGES), &permit).await;
        let addresses = self.stores.snapshot(&TypeName::new(ADDRESSES), &permit).await;
        let (ranges, addresses) = (ranges.ok()?, addresses.ok()?);
        let mut counted: Vec<(AddressRange, u64)> = Vec::new();
        for object in ranges.iter() {
            let Some(range) = self.decode(object, NETWORKING_GROUP, "ServiceCIDR") else { continue };
            for range in list(spec(&range), "cidrs").into_iter().filter_map(AddressRange::parse) {
                if !counted.iter().any(|(known, _)| *known == range) {
                    counted.push((range, 0));
                }
            }
        }
        let mut turn = YieldEvery::new(ADDRESSES_PER_TURN);
        for object in addresses.iter() {
            if let Some(address) = names::parse_ip(object.key.name()) {
                let ranges = counted.iter_mut().filter(|(range, _)| range.contains(address));
                ranges.for_each(|(_, allocated)| *allocated += 1);
            }
            turn.worked(1).await;
        }
        let range_use = |(range, allocated): (AddressRange, u64)| {
            let available = range.size().saturating_sub(allocated);
            (range.to_string(), RangeUse { allocated, available })
        };
        Some(counted.into_iter().map(range_use).collect())
    }

    /// The same by the records of the ranges, where nothing else tells who has an address.
    async fn recorded_use(&self) -> Option<Vec<(String, RangeUse)>> {
        let uses = self.address_records.iter().map(async |record| {
            let range_use = record.range_use().await?;
            Some((record.range.to_string(), range_use))
        });
        join_all(uses).await.into_iter().collect()
    }

    /// How many node ports are taken; `None` if nobody can tell.
    pub async fn port_use(&self) -> Option<RangeUse> {
        self.ports.range_use().await
    }

    /// Counts the allocation of an address that the client has chosen, or of any of a family.
    pub(super) async fn count_address(
        &self,
        scope: AllocationScope,
        address: Option<IpAddr>,
        family: Option<Family>,
        is_allocated: bool,
        began: Moment,
        permit: &Permit,
    ) {
        let Some(metrics) = &self.metrics else { return };
        let elapsed = self.clock.elapsed(began);
        let range = match (address, family) {
            (Some(address), _) => self.range_of(address, permit).await,
            // None of the ranges has a free one.
            (None, Some(family)) => self.ranges.iter().find(|range| range.family() == family).copied(),
            (None, None) => None,
        };
        // One outside of all ranges is the fault of the client, and was not tried.
        if let Some(range) = range {
            metrics.allocators.count_address(&range.to_string(), scope, is_allocated, elapsed);
        }
    }

    /// The range of an address: first those of the flags, which need no message.
    async fn range_of(&self, address: IpAddr, permit: &Permit) -> Option<AddressRange> {
        if let Some(range) = self.ranges.iter().find(|range| range.contains(address)) {
            return Some(*range);
        }
        let ranges = self.ranges(Family::from_address(address), permit).await.ok()?;
        ranges.into_iter().find(|range| range.contains(address))
    }

    /// Counts the allocation of ports, all or none.
    pub(super) fn count_ports(
        &self,
        requests: &[NodePortRequest],
        allocated: &std::result::Result<Vec<u16>, PortError>,
    ) {
        let Some(metrics) = &self.metrics else { return };
        let scope = |request: &NodePortRequest| {
            if request.wanted.is_some() { AllocationScope::Static } else { AllocationScope::Dynamic }
        };
        match allocated {
            Ok(_) => requests.iter().for_each(|request| metrics.allocators.count_port(scope(request), true)),
            Err(PortError::Refused(refusal)) => {
                let refused = requests.get(refusal.index).map_or(AllocationScope::Dynamic, scope);
                metrics.allocators.count_port(refused, false);
            }
            Err(PortError::Record(_) | PortError::Ended) => {
                metrics
                    .allocators
                    .count_port(requests.first().map_or(AllocationScope::Dynamic, scope), false);
            }
        }
    }

    /// Counts what a repair has found.
    pub fn count_finding(&self, finding: &Finding) {
        let Some(metrics) = &self.metrics else { return };
        match finding {
            Finding::Leaked(..) => metrics.allocators.count_address_fault(RepairFault::Leak),
            Finding::Missing(..) => metrics.allocators.count_address_fault(RepairFault::Missing),
            Finding::LeakedPort(..) => metrics.allocators.count_port_fault(RepairFault::Leak),
            Finding::MissingPort(..) => metrics.allocators.count_port_fault(RepairFault::Missing),
        }
    }

    /// Counts what a repair has found in the record that servers share.
    pub fn count_port_fault(&self, kind: PortFaultKind) {
        let fault = match kind {
            PortFaultKind::NotAllocated => RepairFault::Missing,
            PortFaultKind::AlreadyAllocated => RepairFault::Duplicate,
            PortFaultKind::OutOfRange => RepairFault::OutOfRange,
        };
        self.metrics.iter().for_each(|metrics| metrics.allocators.count_port_fault(fault));
    }

    /// Counts a repair that has failed.
    pub fn count_failed_repair(&self) {
        self.metrics.iter().for_each(|metrics| metrics.allocators.count_failed_repair());
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_actors::shared_range::memory::MemoryRange;
    use pilothouse_types::object::Key;

    use super::super::testing::start_recording_services;
    use super::*;

    #[actix_rt::test]
    async fn addresses_without_objects_are_counted_by_their_record() {
        let (_storage, services) = start_recording_services(&MemoryRange::default());
        let counted = async || {
            let counted = services.address_use().await.unwrap();
            counted
                .into_iter()
                .map(|(range, RangeUse { allocated, available })| (range, allocated, available))
                .collect::<Vec<_>>()
        };
        assert_eq!(counted().await, [("10.77.0.0/24".to_owned(), 0, 254)]);
        let owner = Key::namespaced("n", "x");
        for _ in 0..3 {
            services.take_any_address(Family::V4, &owner, &Permit::none()).await.unwrap();
        }
        assert_eq!(counted().await, [("10.77.0.0/24".to_owned(), 3, 251)]);
    }
}
