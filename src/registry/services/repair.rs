//! Repairs allocations at the start and every few minutes: IPAddress objects follow the services, and node ports are counted. Those that
//! servers share are repaired by `record_repair.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilothouse_actors::permit::Permit;
use pilothouse_actors::ports::{ListOwners, PortRequest};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::well_known::NETWORKING_GROUP;
use pilothouse_apimachinery::well_known::labels::{ADDRESS_ALLOCATOR, ADDRESS_MANAGED_BY};
use pilothouse_kinds::services::ServiceAllocations;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Object, Revision, TypeName};
use tokio::time::sleep;

use super::node_ports::NodePorts;
use super::record_repair::RecordLeaks;
use super::{ADDRESSES, SERVICES, Services, StoredAllocations, parent};
use crate::limits::{START_REPAIR_ATTEMPTS, START_REPAIR_PAUSE};
use crate::registry::stores::Stores;

/// The addresses and ports of every stored service; `None` for a corrupt one.
pub type AllocationsByService = BTreeMap<Key, Option<ServiceAllocations>>;

/// Reads all services.
pub async fn read_allocations(
    stores: &Stores,
    registry: &Registry,
) -> std::result::Result<AllocationsByService, StoreError> {
    let services = stores.snapshot(&TypeName::new(SERVICES), &Permit::none()).await?;
    let ty = registry.kind("", "v1", "Service");
    let allocations = |object: &Arc<Object>| {
        let service = ty.and_then(|ty| codec::decode_stored(&object.bytes, ty, registry));
        (object.key.clone(), service.as_ref().map(ServiceAllocations::from_service))
    };
    Ok(services.iter().map(allocations).collect())
}

/// The node ports of all services. A port of two services, from before this server allocated them, is counted for one of them.
pub fn node_ports(held: &AllocationsByService) -> impl Iterator<Item = (u16, Key)> {
    let readable = held.iter().filter_map(|(owner, held)| Some((owner, held.as_ref()?)));
    readable.flat_map(|(owner, held)| held.ports.iter().map(move |port| (*port, owner.clone())))
}

/// A mismatch between services and allocations. If it stems from a write in progress, it is not found a second time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// An IPAddress of this revision that its service does not use.
    Leaked(String, Key, Revision),
    /// An address of a service that has no IPAddress.
    Missing(String, Key),
    /// A port that is allocated for a service that does not use it.
    LeakedPort(u16, Key),
    /// A port of a service that is not allocated.
    MissingPort(u16, Key),
}

impl Services {
    /// Removes IPAddresses without a service, and creates missing ones. Only at the start, when no writes
    /// happen and the ports were just counted. Other servers may be writing: then nothing is removed yet, and the records that are shared
    /// with them are made or repaired.
    pub async fn repair(&self, held: &AllocationsByService) -> Result<()> {
        let is_shared = self.ports.is_shared();
        for finding in self.address_findings(held).await {
            if !(is_shared && matches!(finding, Finding::Leaked(..))) {
                self.repair_finding(&finding).await?;
            }
        }
        if is_shared || !self.has_objects { self.repair_records_at_start().await } else { Ok(()) }
    }

    /// Without them nothing could be allocated, so a short outage is waited for.
    async fn repair_records_at_start(&self) -> Result<()> {
        for _ in 1..START_REPAIR_ATTEMPTS {
            match self.repair_records(&mut RecordLeaks::default()).await {
                Err(status) if matches!(status.code, 429 | 503 | 504) => sleep(START_REPAIR_PAUSE).await,
                result => return result.map(drop),
            }
        }
        self.repair_records(&mut RecordLeaks::default()).await.map(drop)
    }

    /// All mismatches.
    pub async fn findings(&self) -> std::result::Result<BTreeSet<Finding>, StoreError> {
        // Before the services are read: a release in between then shows as a leak, but not a second time.
        let ports: Option<BTreeMap<u16, Key>> = match &self.ports {
            NodePorts::Own(ports) => Some(ports.send(ListOwners).await.map_err(|_| StoreError::Unavailable)?),
            NodePorts::Shared(_) => None,
        };
        let held = read_allocations(&self.stores, &self.registry).await?;
        let mut findings = self.address_findings(&held).await;
        let Some(ports) = ports else { return Ok(findings) };
        for (port, owner) in &ports {
            let is_used = match held.get(owner) {
                Some(Some(held)) => held.ports.contains(port),
                Some(None) => true,
                None => false,
            };
            if !is_used {
                findings.insert(Finding::LeakedPort(*port, owner.clone()));
            }
        }
        let missing = self::node_ports(&held).filter(|(port, _)| !ports.contains_key(port));
        findings.extend(missing.map(|(port, owner)| Finding::MissingPort(port, owner)));
        Ok(findings)
    }

    async fn address_findings(&self, held: &AllocationsByService) -> BTreeSet<Finding> {
        if !self.has_objects {
            return BTreeSet::new();
        }
        let addresses = self.stores.snapshot(&TypeName::new(ADDRESSES), &Permit::none()).await;
        let addresses = addresses.unwrap_or_else(|_| Snapshot::empty(Revision::FIRST));
        let (mut findings, mut allocated) = (BTreeSet::new(), BTreeSet::new());
        for object in addresses.iter() {
            let name = object.key.name();
            let owner = self.owner_of(object);
            // The addresses of a corrupt service may be in use.
            let is_used = |owner: &Key| match held.get(owner) {
                Some(Some(held)) => held.addresses.contains(name),
                Some(None) => true,
                None => false,
            };
            match owner {
                Some(owner)
                    if object.labels.get(ADDRESS_MANAGED_BY) == Some(ADDRESS_ALLOCATOR)
                        && !is_used(&owner) =>
                {
                    findings.insert(Finding::Leaked(name.to_owned(), owner, object.revision));
                }
                Some(owner) => {
                    allocated.insert((name.to_owned(), owner));
                }
                None => {}
            }
        }
        for (owner, held) in held.iter().filter_map(|(owner, held)| Some((owner, held.as_ref()?))) {
            let used = held.addresses.iter().map(|name| (name.clone(), owner.clone()));
            let missing = used.filter(|used| !allocated.contains(used));
            findings.extend(missing.map(|(name, owner)| Finding::Missing(name, owner)));
        }
        findings
    }

    /// The service that an address is allocated for.
    pub fn owner_of(&self, address: &Object) -> Option<Key> {
        self.decode(address, NETWORKING_GROUP, "IPAddress").as_ref().and_then(parent)
    }

    /// Recreates a deleted IPAddress if its Service still uses the address: otherwise another Service could get it.
    pub async fn restore_address(&self, name: &str, owner: &Key) -> Result<()> {
        if !self.has_objects {
            return Ok(());
        }
        let resource = GroupResource { group: "", resource: SERVICES };
        let stored = self.stored_allocations(owner, &Permit::none()).await;
        let stored = stored.map_err(|error| Status::from_store(&error, resource, owner.name()))?;
        if matches!(stored, StoredAllocations::Holds(stored) if stored.addresses.contains(name)) {
            tracing::warn!(
                address = name,
                service = owner.as_str(),
                "the IPAddress of a service was deleted and is recreated"
            );
            self.repair_finding(&Finding::Missing(name.to_owned(), owner.clone())).await?;
        }
        Ok(())
    }

    /// Repairs one finding.
    pub async fn repair_finding(&self, finding: &Finding) -> Result<()> {
        match finding {
            Finding::Leaked(address, owner, _) => {
                tracing::warn!(
                    address,
                    service = owner.as_str(),
                    "an IPAddress without a service is released"
                );
                if let Err(error) = self.release_address(address, owner).await {
                    tracing::warn!(address, %error, "an IPAddress cannot be released");
                }
            }
            Finding::Missing(name, owner) => {
                let Some(address) = names::parse_ip(name) else { return Ok(()) };
                if !self.take_address(address, owner, &Permit::none()).await? {
                    tracing::warn!(
                        address = name,
                        service = owner.as_str(),
                        "two services claim the same address"
                    );
                }
            }
            Finding::LeakedPort(port, owner) => {
                tracing::warn!(port, service = owner.as_str(), "a node port without a service is released");
                let _the_allocator_lives_as_long_as_the_server =
                    self.ports.release(owner.clone(), vec![*port]).await;
            }
            Finding::MissingPort(port, owner) => {
                let requests = vec![PortRequest::Exactly(i64::from(*port))];
                if self.ports.allocate(owner.clone(), requests, Permit::none()).await.is_err() {
                    tracing::debug!(
                        port,
                        service = owner.as_str(),
                        "a node port is outside the configured range"
                    );
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
