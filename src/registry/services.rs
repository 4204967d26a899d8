//! Allocates cluster IPs and node ports for writes of Services: before a service is stored its addresses and ports are allocated,
//! and afterwards those that it no longer uses are released.
//!
//! This is the [`WriteHook`] of Services. An address is allocated by creating the IPAddress of its name, or, without the gate
//! `MultiCIDRServiceAllocator`, by a record as for ports. The store of IPAddresses serializes
//! concurrent writers, is durable, and is readable for clients. Ports are allocated by their own actor ([`node_ports`]), on etcd by a record
//! that all servers share. Whatever happens to the write or its client, its claim is settled: it is compared with the stored service, and
//! the rest is released. A crash between the two writes leaves an address without a service; the next start or periodic check releases
//! it ([`repair`], [`record_repair`]). So it is if nobody knows whether the service was stored.

pub mod address_records;
mod allocate;
mod claim;
pub mod node_ports;
mod range_use;
pub mod record_repair;
pub mod repair;
#[cfg(test)]
mod testing;

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::permit::Permit;
use pilothouse_api::draft::builtin_draft;
use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::WriteMode;
use pilothouse_apimachinery::schema::{Registry, TypeId};
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::NETWORKING_GROUP;
use pilothouse_apimachinery::well_known::labels::{ADDRESS_ALLOCATOR, ADDRESS_MANAGED_BY};
use pilothouse_kinds::services::addresses::{AddressRange, Family};
use pilothouse_kinds::services::families::{self, Families};
use pilothouse_kinds::services::ports::NodePortRequest;
use pilothouse_kinds::services::{ServiceAllocations, list, ports, retained_fields, spec};
use pilothouse_types::clock::Clock;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Draft, Key, Object, TypeName};

use crate::limits::RELEASE_ATTEMPTS;
use crate::metrics::Metrics;
use crate::pki::random;

use self::address_records::AddressRecord;
use self::allocate::{AllocationError, AllocationRequest};
use self::claim::{Claim, PendingClaim, UnsettledAllocations};
use self::node_ports::NodePorts;
use super::Call;
use super::ownership::{self, ServerWrite};
use super::rewrite::WriteTarget;
use super::stores::Stores;
use super::write_hooks::{PendingWrite, WriteHook};

/// The store of Services.
pub const SERVICES: &str = "services";
const ENDPOINTS: &str = "endpoints";
/// The store of IPAddresses.
pub const ADDRESSES: &str = "ipaddresses.networking.k8s.io";
const RANGES: &str = "servicecidrs.networking.k8s.io";
/// The ServiceCIDR of the flags.
const DEFAULT_RANGE: &str = "kubernetes";
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";

/// The allocator of cluster IPs and node ports. One per worker.
pub struct Services {
    /// Its own access to the stores, so that a claim can be settled after its request is gone.
    stores: Stores,
    registry: Arc<Registry>,
    clock: Clock,
    ports: NodePorts,
    /// The ranges of the flags: one, or one of each family.
    ranges: Arc<[AddressRange]>,
    /// The records of those ranges, if there are any.
    address_records: Arc<[AddressRecord]>,
    /// Whether IPAddress objects say which addresses are taken, and ServiceCIDR objects may add ranges. Otherwise the records decide.
    has_objects: bool,
    /// The node port range as messages print it.
    port_range: String,
    /// Counts allocations, if anybody does.
    metrics: Option<Arc<Metrics>>,
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
    /// An allocator for these ranges, at least one, and these ports.
    pub fn new(
        stores: Stores,
        registry: Arc<Registry>,
        clock: Clock,
        ports: NodePorts,
        ranges: Arc<[AddressRange]>,
        port_range: String,
    ) -> Services {
        Services {
            stores,
            registry,
            clock,
            ports,
            ranges,
            address_records: Arc::default(),
            has_objects: true,
            port_range,
            metrics: None,
        }
    }

    /// Counts its allocations.
    #[must_use]
    pub fn with_metrics(self, metrics: Arc<Metrics>) -> Services {
        Services { metrics: Some(metrics), ..self }
    }

    /// Says whether there are IPAddress objects.
    #[must_use]
    pub fn with_objects(self, has_objects: bool) -> Services {
        Services { has_objects, ..self }
    }

    /// Keeps records of its ranges.
    #[must_use]
    pub fn with_address_records(self, address_records: Arc<[AddressRecord]>) -> Services {
        Services { address_records, ..self }
    }

    fn families(&self) -> Families {
        let first = self.ranges.first().map_or(Family::V4, AddressRange::family);
        Families { first, both: self.ranges.iter().any(|range| range.family() != first) }
    }

    /// The ranges of a family from which addresses are allocated: that of the flags, unless its object is being deleted or is not
    /// ready, and those of other ServiceCIDR objects.
    async fn ranges(&self, family: Family, permit: &Permit) -> Result<Vec<AddressRange>> {
        let resource = GroupResource { group: NETWORKING_GROUP, resource: "servicecidrs" };
        if !self.has_objects {
            return Ok(self.ranges.iter().filter(|range| range.family() == family).copied().collect());
        }
        let (mut added, mut closed) = (Vec::new(), Vec::new());
        let objects = self.stores.snapshot(&TypeName::new(RANGES), permit).await;
        for object in objects.map_err(|error| Status::from_store(&error, resource, ""))?.iter() {
            let Some(range) = self.decode(object, NETWORKING_GROUP, "ServiceCIDR") else { continue };
            let cidrs = list(spec(&range), "cidrs").into_iter().filter_map(AddressRange::parse);
            let is_open = is_ready(&range) && !meta::is_terminating(&range);
            match (object.key.name() == DEFAULT_RANGE, is_open) {
                (true, false) => closed.extend(cidrs),
                (false, true) => added.extend(cidrs),
                (true, true) | (false, false) => {}
            }
        }
        // A cluster moves to another range by deleting the default one, which stays as long as it has addresses.
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

    /// Creates the IPAddress by which a service has an address, if there are such objects. Returns whether the address was free.
    async fn create_address(
        &self,
        address: IpAddr,
        owner: &Key,
        permit: &Permit,
    ) -> std::result::Result<bool, StoreError> {
        if !self.has_objects {
            return Ok(true);
        }
        // The registry is the built-in one.
        let ty = self.type_of(NETWORKING_GROUP, "IPAddress").ok_or(StoreError::Unavailable)?;
        let now = time::format_seconds(self.clock.now().unix_seconds());
        let mut object = new_address(address, owner, &now);
        let version = GroupVersion::new(NETWORKING_GROUP, "v1");
        let write = ServerWrite { version: &version, kind: "IPAddress", subresource: "", now: &now };
        ownership::record_server_fields(&self.registry, &write, None, &mut object);
        let draft = self.address_draft(ty, &address.to_string(), &object);
        match self.stores.create(&TypeName::new(ADDRESSES), draft, permit).await {
            Ok(_) => Ok(true),
            Err(StoreError::Exists) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn address_draft(&self, ty: TypeId, name: &str, object: &Value) -> Draft {
        builtin_draft(&self.registry, ty, (NETWORKING_GROUP, "IPAddress"), Key::cluster(name), object)
    }

    /// Releases an address, if this owner has it.
    async fn release_address(&self, name: &str, owner: &Key) -> std::result::Result<(), StoreError> {
        if !self.has_objects {
            if let Ok(address) = name.parse() {
                self.release_record(address).await;
            }
            return Ok(());
        }
        let (store, permit) = (&TypeName::new(ADDRESSES), &Permit::none());
        let object = match self.stores.get(store, Key::cluster(name), permit).await {
            Ok(object) => object,
            Err(StoreError::NotFound) => return Ok(()),
            Err(error) => return Err(error),
        };
        let attempt = async |object: &Arc<Object>| {
            let address = self.decode(object, NETWORKING_GROUP, "IPAddress").unwrap_or_default();
            if parent(&address).as_ref() != Some(owner) {
                return Ok(Ok(()));
            }
            let removed = self.stores.remove(store, object.key.clone(), object.revision, permit).await;
            if let (Ok(_), Ok(address)) = (&removed, name.parse()) {
                self.release_record(address).await;
            }
            Ok(removed.map(drop))
        };
        let target = WriteTarget { store, permit, attempts: RELEASE_ATTEMPTS };
        match self.stores.retry_on_conflict::<_, StoreError>(&target, object, attempt).await? {
            Err(StoreError::NotFound) => Ok(()),
            Err(StoreError::Conflict(_)) => Err(StoreError::Busy),
            result => result,
        }
    }

    /// Frees an address in the record of its range: after its IPAddress was removed, if there are such objects.
    async fn release_record(&self, address: IpAddr) {
        if let Some(record) = self.address_record(address) {
            record.release(address).await;
        }
    }

    fn address_record(&self, address: IpAddr) -> Option<&AddressRecord> {
        self.address_records.iter().find(|record| record.range.contains(address))
    }

    /// Deletes the endpoints of a removed service. Otherwise the next service of that name would inherit them.
    async fn remove_endpoints(&self, owner: &Key) -> std::result::Result<(), StoreError> {
        let store = TypeName::new(ENDPOINTS);
        let object = self.stores.get(&store, owner.clone(), &Permit::none()).await?;
        let endpoints = self.decode(&object, "", "Endpoints").unwrap_or_default();
        if meta::metadata(&endpoints).get("finalizers").is_none() {
            self.stores.remove(&store, owner.clone(), object.revision, &Permit::none()).await?;
        }
        Ok(())
    }

    /// The addresses and ports of the stored service, after all pending writes of it.
    async fn stored_allocations(
        &self,
        owner: &Key,
        permit: &Permit,
    ) -> std::result::Result<StoredAllocations, StoreError> {
        let object = self.stores.get_settled(&TypeName::new(SERVICES), owner.clone(), permit).await?;
        Ok(match object {
            None => StoredAllocations::Absent,
            Some(object) => {
                self.decode(&object, "", "Service").map_or(StoredAllocations::Unknown, |service| {
                    StoredAllocations::Holds(ServiceAllocations::from_service(&service))
                })
            }
        })
    }

    /// Releases what the stored service does not use. An item that cannot be released now does not stop the others: it stays in
    /// `unsettled`, and the error tells whether to retry.
    async fn release_unused(
        &self,
        unsettled: &mut UnsettledAllocations,
    ) -> std::result::Result<(), StoreError> {
        let owner = unsettled.owner.clone();
        match self.stored_allocations(&owner, &unsettled.permit).await? {
            StoredAllocations::Absent => {}
            StoredAllocations::Holds(held) => {
                unsettled.endpoints = false;
                unsettled.held = unsettled.held.without(&held);
            }
            // Everything may be in use.
            StoredAllocations::Unknown => {
                tracing::warn!(
                    service = owner.as_str(),
                    "a deleted service cannot be read; its addresses and ports are not released"
                );
                (unsettled.held, unsettled.endpoints) = (ServiceAllocations::default(), false);
            }
        }
        let mut last_error = None;
        let ports = std::mem::take(&mut unsettled.held.ports);
        if !ports.is_empty()
            && let Err(error) = self.ports.release(owner.clone(), ports.iter().copied().collect()).await
        {
            // After any other error somebody else may have them already.
            if matches!(error, StoreError::Busy) {
                unsettled.held.ports = ports;
            }
            last_error = Some(error);
        }
        for address in std::mem::take(&mut unsettled.held.addresses) {
            if let Err(error) = self.release_address(&address, &owner).await {
                // If it was removed, a new service of the same name may have it already.
                if !matches!(error, StoreError::UnknownOutcome) {
                    unsettled.held.addresses.insert(address);
                }
                last_error = Some(error);
            }
        }
        if unsettled.endpoints {
            match self.remove_endpoints(&owner).await {
                // A concurrent write uses the endpoints again.
                Ok(()) | Err(StoreError::NotFound | StoreError::Conflict(_)) => unsettled.endpoints = false,
                Err(error) => last_error = Some(error),
            }
        }
        last_error.map_or(Ok(()), Err)
    }
}

/// Whether a range may be used. It may without a condition: there might be no controller to set one.
fn is_ready(range: &Value) -> bool {
    let conditions = range.get_path(&["status", "conditions"]).map(Value::items).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.str("type") == "Ready");
    ready.is_none_or(|ready| ready.str("status") == "True")
}

/// The service that an IPAddress belongs to.
fn parent(address: &Value) -> Option<Key> {
    let parent = address.get_path(&["spec", "parentRef"])?;
    let is_service = parent.str("group").is_empty() && parent.str("resource") == SERVICES;
    is_service.then(|| Key::namespaced(parent.str("namespace"), parent.str("name")))
}

fn new_address(address: IpAddr, owner: &Key, now: &str) -> Value {
    let mut object = Value::object();
    object.set("kind", "IPAddress");
    object.set("apiVersion", "networking.k8s.io/v1");
    let metadata = object.entry("metadata");
    metadata.set("name", address.to_string());
    metadata.entry("labels").set(FAMILY, Family::from_address(address).as_str());
    metadata.entry("labels").set(ADDRESS_MANAGED_BY, ADDRESS_ALLOCATOR);
    let parent = object.entry("spec").entry("parentRef");
    parent.set("resource", SERVICES);
    parent.set("namespace", owner.namespace());
    parent.set("name", owner.name());
    meta::set_system_fields(&mut object, &random::uuid(), now);
    object
}

impl WriteHook for Services {
    /// Allocates the addresses and ports of a new service and writes them into it.
    fn begin_create<'a>(
        self: Rc<Self>,
        call: &'a Call<'a>,
        service: &'a mut Value,
        mode: WriteMode,
    ) -> LocalBoxFuture<'a, Result<PendingWrite>> {
        async move {
            retained_fields::mirror_address(service.entry("spec"));
            self.claim(call, service, None, mode).await
        }
        .boxed_local()
    }

    /// Allocates the additional addresses and ports of a changed service, and remembers the old ones.
    fn begin_update<'a>(
        self: Rc<Self>,
        call: &'a Call<'a>,
        service: &'a mut Value,
        old: &'a Value,
        mode: WriteMode,
    ) -> LocalBoxFuture<'a, Result<PendingWrite>> {
        async move {
            if call.subresource().is_empty() {
                retained_fields::restore_allocated(service, old);
                return self.claim(call, service, Some(old), mode).await;
            }
            // A write of a subresource allocates nothing, but it may be the last step of a pending deletion.
            if mode.is_dry_run() || !meta::is_terminating(old) {
                return Ok(PendingWrite::none());
            }
            let (owner, held) = (call.key(meta::name(old)), ServiceAllocations::from_service(old));
            Ok(self.claim_for_removal(owner, held, call.permit().clone()))
        }
        .boxed_local()
    }

    /// Remembers the addresses and ports of a service that is about to be removed.
    fn begin_removal(self: Rc<Self>, call: &Call<'_>, object: &Object) -> PendingWrite {
        let service = self.decode(object, "", "Service");
        let held = service.as_ref().map(ServiceAllocations::from_service).unwrap_or_default();
        self.claim_for_removal(object.key.clone(), held, call.permit().clone())
    }
}

impl Services {
    fn claim_for_removal(
        self: Rc<Self>,
        owner: Key,
        before: ServiceAllocations,
        permit: Permit,
    ) -> PendingWrite {
        let allocated = ServiceAllocations::default();
        let (may_remove, is_proposed) = (true, false);
        let claim =
            PendingClaim { services: self, owner, allocated, before, may_remove, is_proposed, permit };
        Claim::from(claim).into()
    }

    async fn claim(
        self: Rc<Self>,
        call: &Call<'_>,
        service: &mut Value,
        old: Option<&Value>,
        mode: WriteMode,
    ) -> Result<PendingWrite> {
        let name = meta::name(service).to_owned();
        // Check the IP families before anything is allocated.
        families::resolve(service, old, self.families()).map_err(|errors| call.invalid(&name, &errors))?;
        let (spec, old_spec) = (self::spec(service), old.map(self::spec));
        let addresses = old_spec.map_or_else(
            || families::addresses_for_new(spec),
            |old_spec| families::addresses_for_updated(spec, old_spec),
        );
        let ports =
            old_spec.map_or_else(|| ports::for_new(spec), |old_spec| ports::for_updated(spec, old_spec));
        let to_status = |error: AllocationError, service: &Value, requests: &[NodePortRequest]| match error
            .into_field_error(service, requests, &self.port_range)
        {
            Ok(error) => call.invalid(&name, &[error]),
            Err(status) => status,
        };
        if mode.is_dry_run() {
            let result = self.dry_run(service, addresses, &ports, call.permit()).await;
            return result.map(|()| PendingWrite::none()).map_err(|error| to_status(error, service, &ports));
        }
        let request = AllocationRequest {
            service: service.clone(),
            addresses,
            ports: ports.clone(),
            before: old.map(ServiceAllocations::from_service).unwrap_or_default(),
            may_remove: old.is_some_and(meta::is_terminating),
        };
        let allocation = self.clone().take(call.key(&name), request, call.permit().clone());
        let result = actix::spawn(allocation).await.map_err(|error| Status::internal(error.to_string()))?;
        let (allocated, claim) = result.map_err(|error| to_status(error, service, &ports))?;
        *service = allocated;
        Ok(claim.into())
    }
}
