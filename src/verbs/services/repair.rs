//! What a start puts right: the objects of addresses follow the services, and the ports of services are counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilothouse_actors::error::StoreError;
use pilothouse_actors::object::{Key, Object, TypeName};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::snapshot::Snapshot;

use super::{ADDRESSES, MANAGED_BY, MANAGER, NETWORKING, SERVICES, Services, parent};
use crate::api::codec;
use crate::api::names;
use crate::api::schema::Registry;
use crate::api::services::Holdings;
use crate::api::status::Result;
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

impl Services {
    /// Removes the addresses whose service does not say them, and makes those that services say and that are missing.
    pub async fn repair(&self, held: &Held) -> Result<()> {
        let addresses = self.stores.snapshot(&TypeName::new(ADDRESSES), &Permit::none()).await;
        let addresses = addresses.unwrap_or_else(|_| Snapshot::empty());
        let mut taken = BTreeSet::new();
        for object in addresses.iter() {
            let name = object.key.name();
            let owner = self.decode(object, NETWORKING, "IPAddress").as_ref().and_then(parent);
            // The addresses of a service that cannot be read may be in use.
            let says = |owner: &Key| match held.get(owner) {
                Some(Some(held)) => held.addresses.contains(name),
                Some(None) => true,
                None => false,
            };
            match owner {
                Some(owner) if object.labels.get(MANAGED_BY) == Some(MANAGER) && !says(&owner) => {
                    tracing::warn!(
                        address = name,
                        service = owner.as_str(),
                        "the address of no service is free again"
                    );
                    if let Err(error) = self.release_address(name, &owner).await {
                        tracing::warn!(address = name, %error, "the address was not given back");
                    }
                }
                Some(owner) => {
                    taken.insert((name.to_owned(), owner));
                }
                None => {}
            }
        }
        for (owner, held) in held.iter().filter_map(|(owner, held)| Some((owner, held.as_ref()?))) {
            for name in
                held.addresses.iter().filter(|name| !taken.contains(&((*name).clone(), owner.clone())))
            {
                let Some(address) = names::parse_ip(name) else { continue };
                if !self.take_address(address, owner, &Permit::none()).await? {
                    tracing::warn!(address = name, service = owner.as_str(), "the address is another's too");
                }
            }
        }
        Ok(())
    }
}
