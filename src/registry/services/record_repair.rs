//! Repairs the records that servers of one etcd share, by the stored Services and IPAddresses: at the start, and every few minutes, as the
//! reference does. What is used and not taken is taken. What is taken and not used may belong to a write in progress on any server:
//! it is freed when it was found several times.

use std::collections::{BTreeMap, BTreeSet};

use actix::Addr;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::range_allocator::{
    IfChanged, RangeAllocator, ReadItems, RepairItems, RepairOutcome, RepairPlan,
};
use pilothouse_actors::shared_range::{RangeError, RangeRecord};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_kinds::services::addresses::AddressRange;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Revision, TypeName};

use super::address_records::{self, AddressRecord};
use super::node_ports::{NodePorts, SharedPorts};
use super::repair::{AllocationsByService, node_ports, read_allocations};
use super::{ADDRESSES, SERVICES, Services};

/// How often an item must have been found taken and not used before it is freed: the reference's.
const LEAK_ROUNDS: u32 = 3;
/// How often a repair looks again when the record has changed meanwhile. The last time it only takes what is missing.
const REPAIR_ATTEMPTS: u32 = 5;

/// What seems to be leaked, and how often it was found.
#[derive(Debug, Default)]
pub struct RecordLeaks {
    ports: LeakCounts,
    /// By the text of the range.
    addresses: BTreeMap<String, LeakCounts>,
}

type LeakCounts = BTreeMap<usize, u32>;

/// Something wrong with a node port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortFault {
    /// The Service.
    pub owner: Key,
    /// Its port.
    pub port: u16,
    /// What is wrong.
    pub kind: PortFaultKind,
}

/// What is wrong with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PortFaultKind {
    /// The record did not have it. Now it does.
    NotAllocated,
    /// Another Service has it, too.
    AlreadyAllocated,
    /// It is outside of the range.
    OutOfRange,
}

impl PortFaultKind {
    /// The reason of the event, as in the reference.
    pub fn reason(self) -> &'static str {
        match self {
            PortFaultKind::NotAllocated => "PortNotAllocated",
            PortFaultKind::AlreadyAllocated => "PortAlreadyAllocated",
            PortFaultKind::OutOfRange => "PortOutOfRange",
        }
    }
}

/// The node ports that Services use.
#[derive(Debug, Default, PartialEq, Eq)]
struct PortUse {
    /// Those of the range, as items, with the first Service that has each.
    used: BTreeMap<usize, Key>,
    faults: Vec<PortFault>,
}

impl PortUse {
    fn new(ports: &SharedPorts, held: &AllocationsByService) -> PortUse {
        let mut port_use = PortUse::default();
        for (port, owner) in node_ports(held) {
            let kind = match ports.item_in_range(port) {
                None => PortFaultKind::OutOfRange,
                Some(item) if port_use.used.contains_key(&item) => PortFaultKind::AlreadyAllocated,
                Some(item) => {
                    port_use.used.insert(item, owner);
                    continue;
                }
            };
            port_use.faults.push(PortFault { owner, port, kind });
        }
        port_use
    }
}

/// The items that a record has, as items of the own range, though it may be of another one.
fn taken_items(
    record: Option<&RangeRecord>,
    text: &str,
    size: usize,
    translate: impl Fn(&str) -> Option<Box<dyn Fn(usize) -> Option<usize>>>,
) -> std::result::Result<BTreeSet<usize>, RangeError> {
    let Some(record) = record else { return Ok(BTreeSet::new()) };
    let (range, allocated) = (&record.content.range, &record.content.allocated);
    if range == text || range.is_empty() {
        return Ok(allocated.iter().filter(|item| *item < size).collect());
    }
    let translate = translate(range)
        .ok_or_else(|| RangeError::Unreadable(format!("its range is \"{}\"", range.escape_debug()).into()))?;
    Ok(allocated.iter().filter_map(translate).collect())
}

/// The first port of a range like `30000-32767`.
fn first_port(range: &str) -> Option<usize> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last) = (first.trim().parse::<u16>().ok()?, last.trim().parse::<u16>().ok()?);
    (first <= last).then_some(usize::from(first))
}

/// Counts what is taken and not used once more.
fn count_leaks(leaks: &mut LeakCounts, taken: &BTreeSet<usize>, used: &BTreeSet<usize>) {
    leaks.retain(|item, _| taken.contains(item) && !used.contains(item));
    for item in taken.difference(used) {
        *leaks.entry(*item).or_default() += 1;
    }
}

/// What a repair is going to change. If `may_free` is false, nothing is freed.
fn repair_plan(
    record: Option<&RangeRecord>,
    taken: &BTreeSet<usize>,
    used: &BTreeSet<usize>,
    leaks: &LeakCounts,
    may_free: bool,
) -> RepairPlan {
    let is_leaked = |item: &usize| may_free && leaks.get(item).is_some_and(|count| *count >= LEAK_ROUNDS);
    let leaked: Vec<usize> = taken.difference(used).copied().filter(is_leaked).collect();
    RepairPlan {
        seen: record.map(|record| record.revision),
        missing: used.difference(taken).copied().collect(),
        kept: taken.union(used).copied().filter(|item| used.contains(item) || !is_leaked(item)).collect(),
        leaked,
        if_changed: IfChanged::LookAgain,
    }
}

impl Services {
    /// Repairs all shared records, if there are any. Returns what is wrong with the ports of Services.
    pub async fn repair_records(&self, leaks: &mut RecordLeaks) -> Result<Vec<PortFault>> {
        let mut faults = Vec::new();
        if let NodePorts::Shared(ports) = &self.ports {
            faults = self.repair_ports(ports, &mut leaks.ports).await?;
        }
        for record in self.address_records.iter() {
            let leaks = leaks.addresses.entry(record.range.to_string()).or_default();
            self.repair_addresses(record, leaks).await?;
        }
        Ok(faults)
    }

    async fn repair_ports(&self, ports: &SharedPorts, leaks: &mut LeakCounts) -> Result<Vec<PortFault>> {
        let (first, size) = (usize::from(ports.first), usize::from(ports.last - ports.first) + 1);
        let port_item = move |port: usize| port.checked_sub(first).filter(|item| *item < size);
        let translate = |range: &str| {
            let other_first = first_port(range)?;
            let item = move |item: usize| port_item(other_first.checked_add(item)?);
            Some(Box::new(item) as Box<dyn Fn(usize) -> Option<usize>>)
        };
        for attempt in 1..=REPAIR_ATTEMPTS {
            // The record first: what is allocated and stored after that is not taken for a leak.
            let record = read(&ports.allocator).await?;
            let held = self.read_services().await?;
            let taken = taken_items(record.as_ref(), &self.port_range, size, translate).map_err(to_status)?;
            let PortUse { used, mut faults } = PortUse::new(ports, &held);
            let used_items: BTreeSet<usize> = used.keys().copied().collect();
            if attempt == 1 {
                count_leaks(leaks, &taken, &used_items);
            }
            // Nobody knows which ports a Service has that cannot be read.
            let may_free = held.values().all(Option::is_some);
            let mut items = repair_plan(record.as_ref(), &taken, &used_items, leaks, may_free);
            items.if_changed = if_changed(attempt);
            let outcome = repair(&ports.allocator, items).await?;
            log_freed("node ports", &outcome);
            if outcome.is_complete || attempt == REPAIR_ATTEMPTS {
                let added =
                    outcome.added.iter().filter_map(|item| Some((used.get(item)?, ports.port(*item)?)));
                let kind = PortFaultKind::NotAllocated;
                faults.extend(added.map(|(owner, port)| PortFault { owner: owner.clone(), port, kind }));
                return Ok(faults);
            }
        }
        Ok(Vec::new())
    }

    async fn repair_addresses(&self, record: &AddressRecord, leaks: &mut LeakCounts) -> Result<()> {
        let range = record.range;
        let items = address_records::item_range(&range);
        let translate = |other: &str| {
            let other = AddressRange::parse(other)?;
            let item = move |item: usize| {
                address_records::item(&range, other.address_at(u64::try_from(item).ok()?)?)
            };
            Some(Box::new(item) as Box<dyn Fn(usize) -> Option<usize>>)
        };
        for attempt in 1..=REPAIR_ATTEMPTS {
            let known = read(&record.allocator).await?;
            let held = self.read_services().await?;
            let taken = taken_items(known.as_ref(), &items.text, items.size, translate).map_err(to_status)?;
            let used = self.used_addresses(&range, &held).await?;
            if attempt == 1 {
                count_leaks(leaks, &taken, &used);
            }
            let may_free = held.values().all(Option::is_some);
            let mut repaired = repair_plan(known.as_ref(), &taken, &used, leaks, may_free);
            repaired.if_changed = if_changed(attempt);
            let outcome = repair(&record.allocator, repaired).await?;
            log_freed("cluster IPs", &outcome);
            if outcome.is_complete {
                break;
            }
        }
        Ok(())
    }

    /// The addresses of IPAddresses and of Services: those of an earlier release of the reference have no IPAddress yet.
    async fn used_addresses(
        &self,
        range: &AddressRange,
        held: &AllocationsByService,
    ) -> Result<BTreeSet<usize>> {
        let objects = match self.has_objects {
            true => self.stores.snapshot(&TypeName::new(ADDRESSES), &Permit::none()).await,
            false => Ok(Snapshot::empty(Revision::FIRST)),
        };
        let objects = objects.map_err(|error| to_status(error.into()))?;
        let of_services = held.values().flatten().flat_map(|held| &held.addresses).map(String::as_str);
        let names = objects.iter().map(|object| object.key.name()).chain(of_services);
        let addresses = names.filter_map(names::parse_ip);
        Ok(addresses.filter_map(|address| address_records::item(range, address)).collect())
    }

    async fn read_services(&self) -> Result<AllocationsByService> {
        let held = read_allocations(&self.stores, &self.registry).await;
        held.map_err(|error| to_status(error.into()))
    }

    /// The uid of a stored Service, for events about it.
    pub async fn uid(&self, owner: &Key) -> Option<String> {
        let object = self.stores.get(&TypeName::new(SERVICES), owner.clone(), &Permit::none()).await.ok()?;
        let service = self.decode(&object, "", "Service")?;
        Some(meta::metadata(&service).str("uid").to_owned())
    }

    /// The range of node ports, as messages print it.
    pub fn port_range(&self) -> &str {
        &self.port_range
    }
}

async fn read(allocator: &Addr<RangeAllocator>) -> Result<Option<RangeRecord>> {
    let record = allocator.send(ReadItems).await.unwrap_or(Err(StoreError::Unavailable.into()));
    record.map_err(to_status)
}

async fn repair(allocator: &Addr<RangeAllocator>, items: RepairPlan) -> Result<RepairOutcome> {
    let outcome = allocator.send(RepairItems(items)).await.unwrap_or(Err(StoreError::Unavailable.into()));
    outcome.map_err(to_status)
}

fn if_changed(attempt: u32) -> IfChanged {
    if attempt < REPAIR_ATTEMPTS { IfChanged::LookAgain } else { IfChanged::AddMissing }
}

fn log_freed(what: &str, outcome: &RepairOutcome) {
    if !outcome.freed.is_empty() {
        tracing::warn!(what, count = outcome.freed.len(), "items that no Service used were freed");
    }
}

/// The Status of an error of a record.
pub(super) fn to_status(error: RangeError) -> Box<Status> {
    let resource = GroupResource { group: "", resource: SERVICES };
    match error {
        RangeError::Store(error) => Status::from_store(&error, resource, ""),
        RangeError::Missing => Status::unavailable(error.to_string()),
        RangeError::OtherRange | RangeError::Unreadable(_) | RangeError::Unencodable(_) => {
            Status::internal(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests;
