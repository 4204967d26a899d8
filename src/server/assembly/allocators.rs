//! Makes the allocators of node ports and cluster IPs: those of this server alone, or those of records that servers of one etcd share.

use std::sync::Arc;

use actix::{Actor as _, Addr};
use pilothouse_actors::directory::Stores as Storage;
use pilothouse_actors::ports::{PortAllocator, PortPool, lower_band};
use pilothouse_actors::range_allocator::{ItemRange, RangeAllocator};
use pilothouse_actors::shared_range::own::OwnRange;
use pilothouse_api::gates::{DISABLE_ALLOCATOR_DUAL_WRITE, MULTI_CIDR_SERVICE_ALLOCATOR};
use pilothouse_etcd_layout::keys::Record;
use pilothouse_etcd_log::EtcdLog;
use pilothouse_kinds::services::addresses::AddressRange;

use crate::config::Config;
use crate::registry::services::address_records::{self, AddressRecord};
use crate::registry::services::node_ports::{NodePorts, SharedPorts};
use crate::registry::services::repair::{self, AllocationsByService};

/// The allocator of node ports. Without a log it begins with the ports of the stored Services.
pub(super) fn node_ports(
    config: &Config,
    storage: &Storage,
    log: Option<&EtcdLog>,
    held: &AllocationsByService,
) -> NodePorts {
    let range = config.api.service_node_port_range;
    let Some(log) = log else {
        let pool = PortPool::new(range.first, range.last, repair::node_ports(held));
        return NodePorts::Own(PortAllocator::new(pool, storage.fatal.clone()).start());
    };
    let size = u32::from(range.last - range.first) + 1;
    let items = ItemRange {
        text: range.to_string(),
        size: usize::try_from(size).unwrap_or(0),
        lower_band: usize::try_from(lower_band(size)).unwrap_or(0),
    };
    let allocator = range_allocator(items, storage, log, &Record::NodePorts);
    NodePorts::Shared(SharedPorts { allocator, first: range.first, last: range.last })
}

/// The records of cluster IPs, one for each range of the flags. Those that other servers read are beside the IPAddress objects: release
/// 1.33 of the reference has them unless a feature gate says otherwise. Without these objects there are only the records.
pub(super) fn address_records(
    config: &Config,
    storage: &Storage,
    log: Option<&EtcdLog>,
    ranges: &[AddressRange],
) -> Arc<[AddressRecord]> {
    let gates = config.gates();
    let (has_objects, is_alone) =
        (gates.enabled(MULTI_CIDR_SERVICE_ALLOCATOR), gates.enabled(DISABLE_ALLOCATOR_DUAL_WRITE));
    if has_objects && (is_alone || log.is_none()) {
        return Arc::default();
    }
    let records = [Record::ServiceIps, Record::SecondaryServiceIps];
    let records = ranges.iter().zip(&records).map(|(range, record)| {
        let items = address_records::item_range(range);
        let allocator = match log {
            Some(log) => range_allocator(items, storage, log, record),
            None => RangeAllocator::new(items, Arc::new(OwnRange::default()), storage.fatal.clone()).start(),
        };
        AddressRecord { range: *range, allocator }
    });
    records.collect()
}

fn range_allocator(
    range: ItemRange,
    storage: &Storage,
    log: &EtcdLog,
    record: &Record,
) -> Addr<RangeAllocator> {
    RangeAllocator::new(range, Arc::new(log.range_allocations(record)), storage.fatal.clone()).start()
}
