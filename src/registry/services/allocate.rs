//! Allocates the addresses and ports of a service. It runs in a task of its own: if the client disconnects meanwhile, the
//! resulting claim is dropped and settles itself.

use std::net::IpAddr;
use std::rc::Rc;

use pilothouse_actors::permit::Permit;
use pilothouse_actors::ports::{AllocatePorts, CheckPorts, PortRequest, Reason};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::services::addresses::{self, Family};
use pilothouse_kinds::services::ports::{self, NodePortRequest};
use pilothouse_kinds::services::{ServiceAllocations, families, list, spec};
use pilothouse_types::object::Key;

use super::Services;
use super::claim::{Claim, PendingClaim};
use crate::pki::random;

const NOT_REACHED: &str = "the ports of the nodes cannot be reached";

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
    /// Any other error.
    Other(Box<Status>),
}

impl From<Box<Status>> for AllocationError {
    fn from(status: Box<Status>) -> AllocationError {
        AllocationError::Other(status)
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
            permit: held_permit,
        };
        let mut claim = Claim::from(open);
        match self.fill(&mut request, &mut claim, &permit).await {
            Ok(()) => Ok((request.service, claim)),
            Err(error) => {
                claim.end(false).await;
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
            let (address_text, address) = match address_text {
                Some(address_text) => {
                    let address = self.take_chosen(&address_text, &open.owner, permit).await?;
                    (address_text, address)
                }
                None => {
                    let family = family(service, index)?;
                    let address = self.take_any_address(family, &open.owner, permit).await?;
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
            None => PortRequest::Any(u32::try_from(random::below(1 << 30)).unwrap_or(0)),
        };
        // No more ports than these exist, so a longer list fails at one of the first.
        let requests = request.ports.iter().take(usize::from(u16::MAX) + 2).map(port_request).collect();
        let command = AllocatePorts { owner: open.owner.clone(), requests, permit: permit.clone() };
        let allocated = self.ports.send(command).await.map_err(|_| Status::unavailable(NOT_REACHED))?;
        let allocated = allocated.map_err(|error| AllocationError::Port(error.index, error.reason))?;
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
        if !ranges.iter().any(|range| range.contains(address)) {
            return refuse("the provided network does not match the current range");
        }
        if self.take_address(address, owner, permit).await? {
            return Ok(address);
        }
        refuse("provided IP is already allocated")
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
        let check = CheckPorts {
            ports: requests.iter().filter_map(|request| request.wanted).collect(),
            permit: permit.clone(),
        };
        let free = self.ports.send(check).await.map_err(|_| Status::unavailable(NOT_REACHED))?;
        free.map_err(|error| {
            AllocationError::Port(chosen_ports.get(error.index).copied().unwrap_or(error.index), error.reason)
        })?;
        ports::set_ports(service, requests, &ports::dummies(requests));
        Ok(())
    }
}

fn family(service: &Value, index: usize) -> Result<Family> {
    let family = list(spec(service), "ipFamilies").get(index).and_then(|name| Family::parse(name));
    family.ok_or_else(|| Status::internal("a service whose address has no family"))
}
