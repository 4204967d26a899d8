//! What a start and a look every few minutes put right: the objects of addresses follow the services, and the ports of
//! services are counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilothouse_actors::error::StoreError;
use pilothouse_actors::object::{Key, Object, Revision, TypeName};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::ports::{Owners, Return, Take, Want};
use pilothouse_actors::snapshot::Snapshot;

use super::{ADDRESSES, MANAGED_BY, MANAGER, SERVICES, Services, Told, parent};
use crate::api::codec;
use crate::api::names;
use crate::api::schema::Registry;
use crate::api::services::Holdings;
use crate::api::status::{GroupResource, Result, Status};
use crate::api::words::NETWORKING_GROUP;
use crate::verbs::stores::Stores;

/// What every stored service holds; nothing is known of one whose record is damaged.
pub type Held = BTreeMap<Key, Option<Holdings>>;

/// Reads all services.
pub async fn held(stores: &Stores, registry: &Registry) -> std::result::Result<Held, StoreError> {
    let services = stores.snapshot(&TypeName::new(SERVICES), &Permit::none()).await?;
    let ty = registry.kind("", "v1", "Service");
    let read = |object: &Arc<Object>| {
        let service = ty.and_then(|ty| codec::decode_stored(&object.bytes, ty, registry));
        (object.key.clone(), service.as_ref().map(Holdings::of))
    };
    Ok(services.iter().map(read).collect())
}

/// The ports of all services. A port that two services say, from before this server gave them, goes to one of them.
pub fn ports(held: &Held) -> impl Iterator<Item = (u16, Key)> {
    let known = held.iter().filter_map(|(owner, held)| Some((owner, held.as_ref()?)));
    known.flat_map(|(owner, held)| held.ports.iter().map(move |port| (*port, owner.clone())))
}

/// Something that services and what they are said to hold disagree about. It may be a write under way: then it is not found
/// a second time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// An address of this revision whose service does not say it.
    Leaked(String, Key, Revision),
    /// An address that a service says and that is not taken for it.
    Missing(String, Key),
    /// A port that is taken for a service which does not say it.
    LeakedPort(u16, Key),
    /// A port that a service says and that is not taken.
    MissingPort(u16, Key),
}

impl Services {
    /// Removes the addresses whose service does not say them, and makes those that services say and that are missing. For a
    /// start: nobody writes meanwhile, and ports were just counted.
    pub async fn repair(&self, held: &Held) -> Result<()> {
        for finding in self.wrong_addresses(held).await {
            self.mend(&finding).await?;
        }
        Ok(())
    }

    /// Everything that is not as it should be.
    pub async fn findings(&self) -> std::result::Result<BTreeSet<Finding>, StoreError> {
        // Before the services are read: what is given back meanwhile is found to be leaked, and not a second time.
        let ports: BTreeMap<u16, Key> = self.ports.send(Owners).await.map_err(|_| StoreError::Unavailable)?;
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

    async fn wrong_addresses(&self, held: &Held) -> BTreeSet<Finding> {
        let addresses = self.stores.snapshot(&TypeName::new(ADDRESSES), &Permit::none()).await;
        let addresses = addresses.unwrap_or_else(|_| Snapshot::empty());
        let (mut findings, mut taken) = (BTreeSet::new(), BTreeSet::new());
        for object in addresses.iter() {
            let name = object.key.name();
            let owner = self.owner_of(object);
            // The addresses of a service that cannot be read may be in use.
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

    /// Takes an address again that was taken from this service, if it still says it: another one could get it.
    pub async fn keep(&self, name: &str, owner: &Key) -> Result<()> {
        let of = GroupResource { group: "", resource: SERVICES };
        let held = self.held(owner, &Permit::none()).await;
        let held = held.map_err(|error| Status::from_store(&error, of, owner.name()))?;
        if matches!(held, Told::Holds(held) if held.addresses.contains(name)) {
            tracing::warn!(
                address = name,
                service = owner.as_str(),
                "the address of a service was taken from it"
            );
            self.mend(&Finding::Missing(name.to_owned(), owner.clone())).await?;
        }
        Ok(())
    }

    /// Puts right what was found.
    pub async fn mend(&self, finding: &Finding) -> Result<()> {
        match finding {
            Finding::Leaked(address, owner, _) => {
                tracing::warn!(address, service = owner.as_str(), "the address of no service is free again");
                if let Err(error) = self.release_address(address, owner).await {
                    tracing::warn!(address, %error, "the address was not given back");
                }
            }
            Finding::Missing(name, owner) => {
                let Some(address) = names::parse_ip(name) else { return Ok(()) };
                if !self.take_address(address, owner, &Permit::none()).await? {
                    tracing::warn!(address = name, service = owner.as_str(), "the address is another's too");
                }
            }
            Finding::LeakedPort(port, owner) => {
                tracing::warn!(port, service = owner.as_str(), "the port of no service is free again");
                let give_back = Return { owner: owner.clone(), ports: vec![*port] };
                let _the_keeper_lives_as_long_as_the_server = self.ports.send(give_back).await;
            }
            Finding::MissingPort(port, owner) => {
                let wants = vec![Want::Exactly(i64::from(*port))];
                let take = Take { owner: owner.clone(), wants, permit: Permit::none() };
                if !matches!(self.ports.send(take).await, Ok(Ok(_))) {
                    tracing::debug!(port, service = owner.as_str(), "the port is not one that is given");
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
