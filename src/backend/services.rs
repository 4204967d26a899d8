//! Allocates cluster IPs and node ports for writes of Services: before a service is stored its addresses and ports are taken, and
//! afterwards those that it no longer uses are released.
//!
//! An address is taken by creating the IPAddress of its name. That store serializes concurrent writers, is durable, and is
//! readable for clients. Ports are taken from the actor that owns them. Whatever happens to the write or its client, the
//! [`Claim`] is settled: it compares with the stored service and releases the rest. A crash between the two writes leaves an
//! address without a service; the next start or periodic check finds it ([`repair`]).

mod allocate;
mod claim;
pub mod repair;
#[cfg(test)]
mod testing;

pub use claim::Claim;

use std::net::IpAddr;
use std::sync::Arc;

use actix::Addr;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::ports::{PortAllocator, ReleasePorts};
use pilothouse_api::select;
use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::WriteMode;
use pilothouse_apimachinery::schema::{Registry, TypeId};
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::NETWORKING_GROUP;
use pilothouse_kinds::services::addresses::{AddressRange, Family};
use pilothouse_kinds::services::families::{self, Families};
use pilothouse_kinds::services::ports::NodePortRequest;
use pilothouse_kinds::services::{ServiceAllocations, list, ports, retained_fields, spec};
use pilothouse_types::clock::Clock;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Key, Object, TypeName};

use crate::limits::RELEASE_ATTEMPTS;
use crate::random;

use self::allocate::{AllocationError, AllocationRequest};
use self::claim::{Open, UnsettledHoldings};
use super::objects::drafted;
use super::ownership;
use super::stores::Stores;
use super::{Backend, Call};

const SERVICES: &str = "services";
const ENDPOINTS: &str = "endpoints";
/// The store of IPAddresses.
pub const ADDRESSES: &str = "ipaddresses.networking.k8s.io";
const RANGES: &str = "servicecidrs.networking.k8s.io";
/// The ServiceCIDR of the flags; it is always used, whatever its object says.
const DEFAULT_RANGE: &str = "kubernetes";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
const MANAGER: &str = "ipallocator.k8s.io";

/// The allocator of cluster IPs and node ports. One per worker.
pub struct Services {
    /// Its own access to the stores, so that a claim can be settled after its request is gone.
    stores: Stores,
    registry: Arc<Registry>,
    clock: Clock,
    ports: Addr<PortAllocator>,
    /// The ranges of the flags: one, or one of each family.
    ranges: Arc<[AddressRange]>,
    /// The node port range as messages print it.
    port_range: String,
}

/// The addresses and ports of a stored Service.
enum StoredAllocations {
    /// The Service does not exist.
    Absent,
    /// The Service has these.
    Holds(ServiceAllocations),
    /// The Service cannot be decoded, so anything may be in use.
    Unknown,
}

impl Services {
    /// An allocator for these ranges, at least one, and the ports of that actor.
    pub fn new(
        stores: Stores,
        registry: Arc<Registry>,
        clock: Clock,
        ports: Addr<PortAllocator>,
        ranges: Arc<[AddressRange]>,
        port_range: String,
    ) -> Services {
        Services { stores, registry, clock, ports, ranges, port_range }
    }

    fn families(&self) -> Families {
        let first = self.ranges.first().map_or(Family::V4, AddressRange::family);
        Families { first, both: self.ranges.iter().any(|range| range.family() != first) }
    }

    /// The ranges of a family from which addresses are taken: that of the flags, unless its object is being deleted or is not ready,
    /// and those of other ServiceCIDR objects.
    async fn ranges(&self, family: Family, permit: &Permit) -> Result<Vec<AddressRange>> {
        let of = GroupResource { group: NETWORKING_GROUP, resource: "servicecidrs" };
        let (mut added, mut closed) = (Vec::new(), Vec::new());
        let objects = self.stores.snapshot(&TypeName::new(RANGES), permit).await;
        for object in objects.map_err(|error| Status::from_store(&error, of, ""))?.iter() {
            let Some(range) = self.decode(object, NETWORKING_GROUP, "ServiceCIDR") else { continue };
            let cidrs = list(spec(&range), "cidrs").into_iter().filter_map(AddressRange::parse);
            let is_open = is_ready(&range) && !meta::is_terminating(&range);
            match (object.key.name() == DEFAULT_RANGE, is_open) {
                (true, false) => closed.extend(cidrs),
                (false, true) => added.extend(cidrs),
                (true, true) | (false, false) => {}
            }
        }
        // Deleting the default range is how a cluster moves to another one; it stays as long as it has addresses.
        let mut ranges: Vec<AddressRange> =
            self.ranges.iter().filter(|range| !closed.contains(range)).chain(&added).copied().collect();
        ranges.retain(|range| range.family() == family);
        Ok(ranges)
    }

    fn type_of(&self, group: &str, kind: &str) -> Option<TypeId> {
        self.registry.kind(group, "v1", kind)
    }

    fn decode(&self, object: &Object, group: &str, kind: &str) -> Option<Value> {
        codec::decode_stored(&object.bytes, self.type_of(group, kind)?, &self.registry)
    }

    /// Takes an address for a service. Answers whether it was free.
    async fn take_address(&self, address: IpAddr, owner: &Key, permit: &Permit) -> Result<bool> {
        let of = GroupResource { group: NETWORKING_GROUP, resource: "ipaddresses" };
        let ty = self.type_of(NETWORKING_GROUP, "IPAddress");
        let ty = ty.ok_or_else(|| Status::internal("no schema for IPAddress"))?;
        let now = time::format_seconds(self.clock.now().unix_seconds());
        let mut object = address_object(address, owner, &now);
        let version = GroupVersion::new(NETWORKING_GROUP, "v1");
        ownership::record_own(&self.registry, (&version, "IPAddress"), "", &now, None, &mut object);
        let draft = self.address_draft(ty, &address.to_string(), &object);
        match self.stores.create(&TypeName::new(ADDRESSES), draft, permit).await {
            Ok(_) => Ok(true),
            Err(StoreError::Exists) => Ok(false),
            Err(error) => Err(Status::from_store(&error, of, &address.to_string())),
        }
    }

    fn address_draft(&self, ty: TypeId, name: &str, object: &Value) -> Draft {
        let encoded = codec::encode_draft(&self.registry, ty, object);
        let fields = select::fields_of(NETWORKING_GROUP, "IPAddress", object);
        drafted(encoded, Key::cluster(name), object, fields)
    }

    /// Takes any free address of a family.
    async fn take_any(&self, family: Family, owner: &Key, permit: &Permit) -> Result<IpAddr> {
        let of = GroupResource { group: NETWORKING_GROUP, resource: "ipaddresses" };
        let taken = self.stores.snapshot(&TypeName::new(ADDRESSES), permit).await;
        let taken = taken.map_err(|error| Status::from_store(&error, of, ""))?;
        let mut random = |bound: u64| random::below(usize::try_from(bound).unwrap_or(usize::MAX)) as u64;
        for range in self.ranges(family, permit).await? {
            for address in range.candidates(&mut random) {
                // If the address was taken since the snapshot, creating its IPAddress fails and the search goes on.
                if taken.get(&address.to_string()).is_none()
                    && self.take_address(address, owner, permit).await?
                {
                    return Ok(address);
                }
            }
        }
        Err(Status::internal("failed to allocate a serviceIP: range is full"))
    }

    /// Releases an address, if this owner has it.
    async fn release_address(&self, name: &str, owner: &Key) -> std::result::Result<(), StoreError> {
        let store = TypeName::new(ADDRESSES);
        for _ in 0..RELEASE_ATTEMPTS {
            let object = match self.stores.get(&store, Key::cluster(name), &Permit::none()).await {
                Ok(object) => object,
                Err(StoreError::NotFound) => return Ok(()),
                Err(error) => return Err(error),
            };
            let address = self.decode(&object, NETWORKING_GROUP, "IPAddress").unwrap_or_default();
            if parent(&address).as_ref() != Some(owner) {
                return Ok(());
            }
            let key = object.key.clone();
            match self.stores.remove(&store, key, object.revision, &Permit::none()).await {
                Ok(_) | Err(StoreError::NotFound) => return Ok(()),
                Err(StoreError::Conflict(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Busy)
    }

    /// Deletes the endpoints of a removed service. Otherwise the next service of that name would inherit them.
    async fn remove_endpoints(&self, owner: &Key) -> std::result::Result<(), StoreError> {
        let store = TypeName::new(ENDPOINTS);
        let object = self.stores.get(&store, owner.clone(), &Permit::none()).await?;
        let endpoints = self.decode(&object, "", "Endpoints").unwrap_or_default();
        if meta::of(&endpoints).get("finalizers").is_none() {
            self.stores.remove(&store, owner.clone(), object.revision, &Permit::none()).await?;
        }
        Ok(())
    }

    /// The addresses and ports of the stored service, after all pending writes of it.
    async fn held(&self, owner: &Key, permit: &Permit) -> std::result::Result<StoredAllocations, StoreError> {
        let found = self.stores.settled(&TypeName::new(SERVICES), owner.clone(), permit).await?;
        Ok(match found {
            None => StoredAllocations::Absent,
            Some(object) => {
                self.decode(&object, "", "Service").map_or(StoredAllocations::Unknown, |service| {
                    StoredAllocations::Holds(ServiceAllocations::of(&service))
                })
            }
        })
    }

    /// Releases what is not needed. An item that cannot be released now does not stop the others: it stays in the doubt, and the
    /// error tells whether to retry.
    async fn release_unused(&self, doubt: &mut UnsettledHoldings) -> std::result::Result<(), StoreError> {
        let owner = doubt.owner.clone();
        match self.held(&owner, &doubt.permit).await? {
            StoredAllocations::Absent => {}
            StoredAllocations::Holds(held) => {
                doubt.endpoints = false;
                doubt.held = doubt.held.without(&held);
            }
            // All of it may be in use.
            StoredAllocations::Unknown => {
                tracing::warn!(
                    service = owner.as_str(),
                    "a deleted service cannot be read; its addresses and ports are not released"
                );
                (doubt.held, doubt.endpoints) = (ServiceAllocations::default(), false);
            }
        }
        let ports = std::mem::take(&mut doubt.held.ports);
        if !ports.is_empty() {
            let back = ReleasePorts { owner: owner.clone(), ports: ports.into_iter().collect() };
            self.ports.send(back).await.map_err(|_| StoreError::Unavailable)?;
        }
        let mut failed = None;
        for address in std::mem::take(&mut doubt.held.addresses) {
            if let Err(error) = self.release_address(&address, &owner).await {
                doubt.held.addresses.insert(address);
                failed = Some(error);
            }
        }
        if doubt.endpoints {
            match self.remove_endpoints(&owner).await {
                // A concurrent write uses the endpoints again.
                Ok(()) | Err(StoreError::NotFound | StoreError::Conflict(_)) => doubt.endpoints = false,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Whether a range may be used. Without a condition it may: no controller might be there to set one.
fn is_ready(range: &Value) -> bool {
    let conditions = range.at(&["status", "conditions"]).map(Value::items).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.str("type") == "Ready");
    ready.is_none_or(|ready| ready.str("status") == "True")
}

/// The service that an IPAddress belongs to.
fn parent(address: &Value) -> Option<Key> {
    let parent = address.at(&["spec", "parentRef"])?;
    let of_service = parent.str("group").is_empty() && parent.str("resource") == SERVICES;
    of_service.then(|| Key::namespaced(parent.str("namespace"), parent.str("name")))
}

fn address_object(address: IpAddr, owner: &Key, now: &str) -> Value {
    let mut object = Value::object();
    object.set("kind", "IPAddress");
    object.set("apiVersion", "networking.k8s.io/v1");
    let metadata = object.entry("metadata");
    metadata.set("name", address.to_string());
    metadata.entry("labels").set(FAMILY, Family::of(address).as_str());
    metadata.entry("labels").set(MANAGED_BY, MANAGER);
    let parent = object.entry("spec").entry("parentRef");
    parent.set("resource", SERVICES);
    parent.set("namespace", owner.namespace());
    parent.set("name", owner.name());
    meta::set_system_fields(&mut object, &random::uuid(), now);
    object
}

fn is_service(call: &Call<'_>) -> bool {
    call.stored.store.as_str() == SERVICES
}

/// Takes the addresses and ports of a new service and writes them into it.
pub async fn claim_new(
    backend: &Backend,
    call: &Call<'_>,
    service: &mut Value,
    mode: WriteMode,
) -> Result<Claim> {
    if !is_service(call) {
        return Ok(Claim::none());
    }
    retained_fields::mirror_address(service.entry("spec"));
    take(backend, call, service, None, mode).await
}

/// Takes the additional addresses and ports of a changed service, and remembers the old ones.
pub async fn claim_changed(
    backend: &Backend,
    call: &Call<'_>,
    service: &mut Value,
    old: &Value,
    mode: WriteMode,
) -> Result<Claim> {
    if !is_service(call) {
        return Ok(Claim::none());
    }
    if call.subresource.is_empty() {
        retained_fields::keep_given(service, old);
        return take(backend, call, service, Some(old), mode).await;
    }
    // A write of a subresource takes nothing, but it may be the last step of a pending deletion.
    if mode.is_dry_run() || !meta::is_terminating(old) {
        return Ok(Claim::none());
    }
    Ok(leaving(backend, call, call.key(meta::name(old)), ServiceAllocations::of(old)))
}

/// Remembers the addresses and ports of a service that is about to be removed.
pub fn claim_gone(backend: &Backend, call: &Call<'_>, object: &Object) -> Claim {
    if !is_service(call) {
        return Claim::none();
    }
    let before = backend
        .objects
        .load(call, object)
        .map(|service| ServiceAllocations::of(&service))
        .unwrap_or_default();
    leaving(backend, call, object.key.clone(), before)
}

fn leaving(backend: &Backend, call: &Call<'_>, owner: Key, before: ServiceAllocations) -> Claim {
    let (services, permit) = (backend.services.clone(), call.permit.clone());
    Open { services, owner, taken: ServiceAllocations::default(), before, goes: true, permit }.into()
}

async fn take(
    backend: &Backend,
    call: &Call<'_>,
    service: &mut Value,
    old: Option<&Value>,
    mode: WriteMode,
) -> Result<Claim> {
    let (services, name) = (&backend.services, meta::name(service).to_owned());
    // Check the IP families before anything is taken.
    families::settle(service, old, services.families()).map_err(|errors| call.invalid(&name, &errors))?;
    let (now, was) = (spec(service), old.map(spec));
    let addresses =
        was.map_or_else(|| families::asked_by_new(now), |was| families::asked_by_changed(now, was));
    let ports = was.map_or_else(|| ports::for_new(now), |was| ports::for_changed(now, was));
    let refused = |refused: AllocationError, service: &Value, asks: &[NodePortRequest]| match refused.told(
        service,
        asks,
        &services.port_range,
    ) {
        Ok(error) => call.invalid(&name, &[error]),
        Err(status) => status,
    };
    if mode.is_dry_run() {
        let pretended = services.pretend(service, addresses, &ports, &call.permit).await;
        return pretended.map(|()| Claim::none()).map_err(|error| refused(error, service, &ports));
    }
    let wanted = AllocationRequest {
        service: service.clone(),
        addresses,
        ports: ports.clone(),
        before: old.map(ServiceAllocations::of).unwrap_or_default(),
        goes: old.is_some_and(meta::is_terminating),
    };
    let taking = services.clone().take(call.key(&name), wanted, call.permit.clone());
    let taken = actix::spawn(taking).await.map_err(|error| Status::internal(error.to_string()))?;
    let (filled, claim) = taken.map_err(|error| refused(error, service, &ports))?;
    *service = filled;
    Ok(claim)
}
