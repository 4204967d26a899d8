//! Allocates the addresses and ports of a service. It runs in a task of its own: if the client disconnects meanwhile, the
//! resulting claim is dropped and settles itself.

use std::net::IpAddr;
use std::rc::Rc;

use pilothouse_actors::permit::Permit;
use pilothouse_actors::ports::{PortRequest, Reason};
use pilothouse_actors::shared_range::RangeError;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::NETWORKING_GROUP;
use pilothouse_kinds::services::addresses::{self, Family};
use pilothouse_kinds::services::ports::{self, NodePortRequest};
use pilothouse_kinds::services::{ServiceAllocations, families, list, spec};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, TypeName};

use super::address_records::Reservation;
use super::claim::{Claim, PendingClaim};
use super::node_ports::PortError;
use super::record_repair::to_status;
use super::{ADDRESSES, Services};
use crate::metrics::allocators::AllocationScope;
use crate::pki::random;
use crate::registry::write_hooks::WriteEnd;

const RANGE_IS_FULL: &str = "failed to allocate a serviceIP: range is full";
const NOT_REACHED: &str = "the ports of the nodes cannot be reached";
/// How many addresses of a shared record are tried that turn out to have an IPAddress, before one is searched among those that have none.
const RECORD_ATTEMPTS: u32 = 8;

/// The addresses and ports that a service asks for.
pub(super) struct AllocationRequest {
    /// The service, with its IP families settled.
    pub service: Value,
    /// The index of each address, and the address itself if the client chose one.
    pub addresses: Vec<(usize, Option<String>)>,
    pub ports: Vec<NodePortRequest>,
    /// Held by the state that the service replaces.
    pub before: ServiceAllocations,
    /// Whether all of that may be released: the service is being deleted, perhaps by this write.
    pub may_remove: bool,
}

/// An address or port could not be allocated.
pub(super) enum AllocationError {
    /// An address that the client chose, and the reason.
    Address(String, String),
    /// The index of the port, and the reason.
    Port(usize, Reason),
    /// The record of the ports is not one by which ports may be allocated.
    PortRecord(String),
    /// Any other error.
    Other(Box<Status>),
}

impl From<Box<Status>> for AllocationError {
    fn from(status: Box<Status>) -> AllocationError {
        AllocationError::Other(status)
    }
}

impl From<PortError> for AllocationError {
    fn from(error: PortError) -> AllocationError {
        match error {
            PortError::Refused(refusal) => AllocationError::Port(refusal.index, refusal.reason),
            PortError::Record(RangeError::OtherRange) => {
                AllocationError::PortRecord(RangeError::OtherRange.to_string())
            }
            PortError::Record(error) => to_status(error).into(),
            PortError::Ended => Status::unavailable(NOT_REACHED).into(),
        }
    }
}

impl AllocationError {
    /// The error for the client: of the request, or of fields of the service.
    pub fn into_field_error(
        self,
        service: &Value,
        requests: &[NodePortRequest],
        port_range: &str,
    ) -> std::result::Result<FieldError, Box<Status>> {
        match self {
            AllocationError::Other(status) => Err(status),
            AllocationError::Address(address, reason) => {
                let all: Vec<String> = list(spec(service), "clusterIPs").into_iter().map(quoted).collect();
                let rendered = format!("[]string{{{}}}", all.join(", "));
                let path = FieldPath::new("spec").child("clusterIPs");
                Ok(FieldError::invalid(
                    &path,
                    &rendered,
                    &format!("failed to allocate IP {address}: {reason}"),
                ))
            }
            AllocationError::PortRecord(reason) => match requests.first() {
                Some(request) if request.wanted.is_some() => Ok(request.refused(&reason)),
                _ => Err(Status::internal(format!("failed to allocate a nodePort: {reason}"))),
            },
            AllocationError::Port(index, reason) => {
                let request = requests.get(index).ok_or_else(|| {
                    Status::internal("the allocator returned a port that was not requested")
                })?;
                let reason = match reason {
                    Reason::Full if request.entries.is_empty() => {
                        let message = "failed to allocate a HealthCheck NodePort 0: range is full";
                        return Err(Status::internal(message));
                    }
                    Reason::Full => {
                        return Err(Status::internal("failed to allocate a nodePort: range is full"));
                    }
                    Reason::Taken => "provided port is already allocated".to_owned(),
                    Reason::Outside => format!(
                        "provided port is not in the valid range. The range of valid ports is {port_range}"
                    ),
                };
                Ok(request.refused(&reason))
            }
        }
    }
}

impl Services {
    /// Allocates everything or nothing, and writes it into the service.
    pub(super) async fn take(
        self: Rc<Services>,
        owner: Key,
        mut request: AllocationRequest,
        permit: Permit,
    ) -> std::result::Result<(Value, Claim), AllocationError> {
        let before = std::mem::take(&mut request.before);
        let (may_remove, held_permit) = (request.may_remove, permit.clone());
        let open = PendingClaim {
            services: self.clone(),
            owner,
            allocated: ServiceAllocations::default(),
            before,
            may_remove,
            is_proposed: false,
            permit: held_permit,
        };
        let mut claim = Claim::from(open);
        match self.fill(&mut request, &mut claim, &permit).await {
            Ok(()) => Ok((request.service, claim)),
            Err(error) => {
                claim.end(WriteEnd::NotStored).await;
                Err(error)
            }
        }
    }

    async fn fill(
        &self,
        request: &mut AllocationRequest,
        claim: &mut Claim,
        permit: &Permit,
    ) -> std::result::Result<(), AllocationError> {
        let Some(open) = claim.open() else { return Ok(()) };
        let service = &mut request.service;
        // Most writes release nothing: then the stored service need not be read.
        if !request.may_remove {
            open.before = open.before.without(&ServiceAllocations::from_service(service));
        }
        for (index, address_text) in std::mem::take(&mut request.addresses) {
            let began = self.clock.moment();
            let (address_text, address) = match address_text {
                Some(address_text) => {
                    let taken = self.take_chosen(&address_text, &open.owner, permit).await;
                    let chosen = addresses::parse(&address_text);
                    self.count_address(AllocationScope::Static, chosen, None, taken.is_ok(), began, permit)
                        .await;
                    (address_text, taken?)
                }
                None => {
                    let family = family(service, index)?;
                    let taken = self.take_any_address(family, &open.owner, permit).await;
                    let found = taken.as_ref().ok().copied();
                    self.count_address(
                        AllocationScope::Dynamic,
                        found,
                        Some(family),
                        taken.is_ok(),
                        began,
                        permit,
                    )
                    .await;
                    let address = taken?;
                    (address.to_string(), address)
                }
            };
            open.allocated.addresses.insert(address.to_string());
            families::set_address(service, index, &address_text);
        }
        if request.ports.is_empty() {
            return Ok(());
        }
        let port_request = |request: &NodePortRequest| match request.wanted {
            Some(port) => PortRequest::Exactly(port),
            None => PortRequest::Any(random_number()),
        };
        // No more ports than these exist, so a longer list fails at one of the first.
        let requests = request.ports.iter().take(usize::from(u16::MAX) + 2).map(port_request).collect();
        let allocated = self.ports.allocate(open.owner.clone(), requests, permit.clone()).await;
        self.count_ports(&request.ports, &allocated);
        let allocated = allocated?;
        open.allocated.ports.extend(allocated.iter().copied());
        let allocated: Vec<i64> = allocated.into_iter().map(i64::from).collect();
        ports::set_ports(service, &request.ports, &allocated);
        Ok(())
    }

    /// Allocates the address that the client chose.
    async fn take_chosen(
        &self,
        text: &str,
        owner: &Key,
        permit: &Permit,
    ) -> std::result::Result<IpAddr, AllocationError> {
        let refuse = |reason: &str| Err(AllocationError::Address(text.to_owned(), reason.to_owned()));
        let Some(address) = addresses::parse(text) else { return refuse("it is no address") };
        let ranges = self.ranges(Family::from_address(address), permit).await?;
        let is_inside = ranges.iter().any(|range| range.contains(address));
        if !is_inside && self.has_objects {
            return refuse("the provided network does not match the current range");
        }
        if !is_inside || (!self.has_objects && self.address_record(address).is_none()) {
            let known: Vec<String> = ranges.iter().map(ToString::to_string).collect();
            let range = known.join(",");
            return refuse(&format!(
                "the provided IP ({address}) is not in the valid range. The range of valid IPs is {range}"
            ));
        }
        let result = match self.address_record(address) {
            None => Reservation::NotRecorded,
            Some(record) => record.reserve(address, permit).await.map_err(|error| to_status(error.into()))?,
        };
        match result {
            Reservation::NotRecorded if !self.has_objects => {
                return refuse("it is not in the recorded range");
            }
            Reservation::Reserved | Reservation::NotRecorded => {}
            Reservation::Taken => return refuse("provided IP is already allocated"),
            Reservation::Unusable(error) => return refuse(&error.to_string()),
        }
        if self.create_reserved_address(address, owner, permit).await? {
            return Ok(address);
        }
        refuse("provided IP is already allocated")
    }

    /// Creates the IPAddress of an address that is reserved in its record, if it has one. Returns whether it was free.
    async fn create_reserved_address(&self, address: IpAddr, owner: &Key, permit: &Permit) -> Result<bool> {
        let created = self.create_address(address, owner, permit).await;
        // If there is an IPAddress, whoever made it, its item stays taken. After an unknown outcome a repair decides.
        if !matches!(created, Ok(_) | Err(StoreError::UnknownOutcome)) {
            self.release_record(address).await;
        }
        created.map_err(|error| address_error(&error, &address.to_string()))
    }

    /// Allocates any free address of a family.
    pub(super) async fn take_any_address(
        &self,
        family: Family,
        owner: &Key,
        permit: &Permit,
    ) -> Result<IpAddr> {
        let ranges = self.ranges(family, permit).await?;
        let record = self.address_records.iter().find(|record| ranges.contains(&record.range));
        for _ in 0..RECORD_ATTEMPTS {
            let Some(record) = record else { break };
            let taken = record.reserve_any(random_number(), permit).await;
            let Some(address) = taken.map_err(|error| to_status(error.into()))? else { break };
            if self.create_reserved_address(address, owner, permit).await? {
                return Ok(address);
            }
        }
        if !self.has_objects {
            return Err(Status::internal(RANGE_IS_FULL));
        }
        let allocated = self.stores.snapshot(&TypeName::new(ADDRESSES), permit).await;
        let allocated = allocated.map_err(|error| address_error(&error, ""))?;
        let mut random = |bound: u64| random::below(usize::try_from(bound).unwrap_or(usize::MAX)) as u64;
        for range in ranges {
            for address in range.candidates(&mut random) {
                // If the address was taken since the snapshot, creating its IPAddress fails and the search goes on.
                if allocated.get(&address.to_string()).is_none()
                    && self.take_address(address, owner, permit).await?
                {
                    return Ok(address);
                }
            }
        }
        Err(Status::internal(RANGE_IS_FULL))
    }

    /// Allocates an address for a service by its IPAddress alone. Returns whether it was free.
    pub(super) async fn take_address(&self, address: IpAddr, owner: &Key, permit: &Permit) -> Result<bool> {
        let created = self.create_address(address, owner, permit).await;
        created.map_err(|error| address_error(&error, &address.to_string()))
    }

    /// Writes the result of a dry run, without allocating.
    pub(super) async fn dry_run(
        &self,
        service: &mut Value,
        addresses: Vec<(usize, Option<String>)>,
        requests: &[NodePortRequest],
        permit: &Permit,
    ) -> std::result::Result<(), AllocationError> {
        for (index, chosen_address) in addresses {
            let family = family(service, index)?;
            let Some(range) = self.ranges.iter().find(|range| range.family() == family) else { continue };
            let Some(text) = chosen_address else {
                families::set_address(service, index, &range.network().to_string());
                continue;
            };
            if let Some(address) = addresses::parse(&text).filter(|address| !range.contains(*address)) {
                let reason = format!(
                    "the provided IP ({address}) is not in the valid range. The range of valid IPs is {range}"
                );
                return Err(AllocationError::Address(text, reason));
            }
            families::set_address(service, index, &text);
        }
        let chosen_ports: Vec<usize> =
            (0..requests.len()).filter(|index| requests[*index].wanted.is_some()).collect();
        let chosen = requests.iter().filter_map(|request| request.wanted).collect();
        self.ports.check(chosen, permit.clone()).await.map_err(|error| match error.into() {
            AllocationError::Port(index, reason) => {
                AllocationError::Port(chosen_ports.get(index).copied().unwrap_or(index), reason)
            }
            error => error,
        })?;
        ports::set_ports(service, requests, &ports::dummies(requests));
        Ok(())
    }
}

fn family(service: &Value, index: usize) -> Result<Family> {
    let family = list(spec(service), "ipFamilies").get(index).and_then(|name| Family::parse(name));
    family.ok_or_else(|| Status::internal("a service whose address has no family"))
}

fn random_number() -> u32 {
    u32::try_from(random::below(1 << 30)).unwrap_or(0)
}

fn address_error(error: &StoreError, name: &str) -> Box<Status> {
    let resource = GroupResource { group: NETWORKING_GROUP, resource: "ipaddresses" };
    Status::from_store(error, resource, name)
}
