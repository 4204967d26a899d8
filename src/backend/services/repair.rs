//! Repairs allocations at the start and every few minutes: IPAddress objects follow the services, and node ports are counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilothouse_actors::permit::Permit;
use pilothouse_actors::ports::{AllocatePorts, ListOwners, PortRequest, ReleasePorts};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::well_known::NETWORKING_GROUP;
use pilothouse_kinds::services::ServiceAllocations;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Object, Revision, TypeName};

use super::{ADDRESSES, MANAGED_BY, MANAGER, SERVICES, Services, StoredAllocations, parent};
use crate::backend::stores::Stores;

/// The addresses and ports of every stored service; `None` for a corrupt one.
pub type HoldingsByService = BTreeMap<Key, Option<ServiceAllocations>>;

/// Reads all services.
pub async fn held(
    stores: &Stores,
    registry: &Registry,
) -> std::result::Result<HoldingsByService, StoreError> {
    let services = stores.snapshot(&TypeName::new(SERVICES), &Permit::none()).await?;
    let ty = registry.kind("", "v1", "Service");
    let read = |object: &Arc<Object>| {
        let service = ty.and_then(|ty| codec::decode_stored(&object.bytes, ty, registry));
        (object.key.clone(), service.as_ref().map(ServiceAllocations::of))
    };
    Ok(services.iter().map(read).collect())
}

/// The node ports of all services. A port that two services have, from before this server allocated them, goes to one of them.
pub fn ports(held: &HoldingsByService) -> impl Iterator<Item = (u16, Key)> {
    let known = held.iter().filter_map(|(owner, held)| Some((owner, held.as_ref()?)));
    known.flat_map(|(owner, held)| held.ports.iter().map(move |port| (*port, owner.clone())))
}

/// A disagreement between services and allocations. It may be a write in progress: then it is not found a second time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// An IPAddress of this revision whose service does not have it.
    Leaked(String, Key, Revision),
    /// An address of a service that has no IPAddress.
    Missing(String, Key),
    /// A port that is taken for a service which does not have it.
    LeakedPort(u16, Key),
    /// A port of a service that is not taken.
    MissingPort(u16, Key),
}

impl Services {
    /// Removes IPAddresses without a service, and creates missing ones. For the start: no writes happen meanwhile, and ports were
    /// just counted.
    pub async fn repair(&self, held: &HoldingsByService) -> Result<()> {
        for finding in self.wrong_addresses(held).await {
            self.mend(&finding).await?;
        }
        Ok(())
    }

    /// All disagreements.
    pub async fn findings(&self) -> std::result::Result<BTreeSet<Finding>, StoreError> {
        // Before the services are read: a release in between then shows as a leak, but not a second time.
        let ports: BTreeMap<u16, Key> =
            self.ports.send(ListOwners).await.map_err(|_| StoreError::Unavailable)?;
        let held = held(&self.stores, &self.registry).await?;
        let mut findings = self.wrong_addresses(&held).await;
        for (port, owner) in &ports {
            let says = match held.get(owner) {
                Some(Some(held)) => held.ports.contains(port),
                Some(None) => true,
                None => false,
            };
            if !says {
                findings.insert(Finding::LeakedPort(*port, owner.clone()));
            }
        }
        let missing = self::ports(&held).filter(|(port, _)| !ports.contains_key(port));
        findings.extend(missing.map(|(port, owner)| Finding::MissingPort(port, owner)));
        Ok(findings)
    }

    async fn wrong_addresses(&self, held: &HoldingsByService) -> BTreeSet<Finding> {
        let addresses = self.stores.snapshot(&TypeName::new(ADDRESSES), &Permit::none()).await;
        let addresses = addresses.unwrap_or_else(|_| Snapshot::empty());
        let (mut findings, mut taken) = (BTreeSet::new(), BTreeSet::new());
        for object in addresses.iter() {
            let name = object.key.name();
            let owner = self.owner_of(object);
            // The addresses of a corrupt service may be in use.
            let says = |owner: &Key| match held.get(owner) {
                Some(Some(held)) => held.addresses.contains(name),
                Some(None) => true,
                None => false,
            };
            match owner {
                Some(owner) if object.labels.get(MANAGED_BY) == Some(MANAGER) && !says(&owner) => {
                    findings.insert(Finding::Leaked(name.to_owned(), owner, object.revision));
                }
                Some(owner) => {
                    taken.insert((name.to_owned(), owner));
                }
                None => {}
            }
        }
        for (owner, held) in held.iter().filter_map(|(owner, held)| Some((owner, held.as_ref()?))) {
            let wanted = held.addresses.iter().map(|name| (name.clone(), owner.clone()));
            let missing = wanted.filter(|wanted| !taken.contains(wanted));
            findings.extend(missing.map(|(name, owner)| Finding::Missing(name, owner)));
        }
        findings
    }

    /// The service that an address is taken for.
    pub fn owner_of(&self, address: &Object) -> Option<Key> {
        self.decode(address, NETWORKING_GROUP, "IPAddress").as_ref().and_then(parent)
    }

    /// Recreates a deleted IPAddress if the Service still has the address: another Service could get it.
    pub async fn keep(&self, name: &str, owner: &Key) -> Result<()> {
        let of = GroupResource { group: "", resource: SERVICES };
        let held = self.held(owner, &Permit::none()).await;
        let held = held.map_err(|error| Status::from_store(&error, of, owner.name()))?;
        if matches!(held, StoredAllocations::Holds(held) if held.addresses.contains(name)) {
            tracing::warn!(
                address = name,
                service = owner.as_str(),
                "the IPAddress of a service was deleted and is recreated"
            );
            self.mend(&Finding::Missing(name.to_owned(), owner.clone())).await?;
        }
        Ok(())
    }

    /// Repairs one finding.
    pub async fn mend(&self, finding: &Finding) -> Result<()> {
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
                let give_back = ReleasePorts { owner: owner.clone(), ports: vec![*port] };
                let _the_keeper_lives_as_long_as_the_server = self.ports.send(give_back).await;
            }
            Finding::MissingPort(port, owner) => {
                let wants = vec![PortRequest::Exactly(i64::from(*port))];
                let take = AllocatePorts { owner: owner.clone(), wants, permit: Permit::none() };
                if !matches!(self.ports.send(take).await, Ok(Ok(_))) {
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
