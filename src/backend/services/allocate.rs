//! Takes the addresses and ports of a service. It runs in a task of its own: if the client disconnects in the middle, the result
//! is a claim that nobody ends and that therefore ends itself.

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
use super::claim::{Claim, Open};
use crate::random;

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
    pub goes: bool,
}

/// Why an address or port could not be taken.
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
    pub fn told(
        self,
        service: &Value,
        asks: &[NodePortRequest],
        port_range: &str,
    ) -> std::result::Result<FieldError, Box<Status>> {
        match self {
            AllocationError::Other(status) => Err(status),
            AllocationError::Address(written, why) => {
                let all: Vec<String> = list(spec(service), "clusterIPs").into_iter().map(quoted).collect();
                let shown = format!("[]string{{{}}}", all.join(", "));
                let path = FieldPath::new("spec").child("clusterIPs");
                Ok(FieldError::invalid(&path, &shown, &format!("failed to allocate IP {written}: {why}")))
            }
            AllocationError::Port(at, reason) => {
                let ask = asks.get(at).ok_or_else(|| Status::internal("a port that nobody asked for"))?;
                let why = match reason {
                    Reason::Full if ask.entries.is_empty() => {
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
                Ok(ask.refused(&why))
            }
        }
    }
}

impl Services {
    /// Takes everything or nothing, and writes it into the service.
    pub(super) async fn take(
        self: Rc<Services>,
        owner: Key,
        mut wanted: AllocationRequest,
        permit: Permit,
    ) -> std::result::Result<(Value, Claim), AllocationError> {
        let before = std::mem::take(&mut wanted.before);
        let (goes, held) = (wanted.goes, permit.clone());
        let open = Open {
            services: self.clone(),
            owner,
            taken: ServiceAllocations::default(),
            before,
            goes,
            permit: held,
        };
        let mut claim = Claim::from(open);
        match self.fill(&mut wanted, &mut claim, &permit).await {
            Ok(()) => Ok((wanted.service, claim)),
            Err(refused) => {
                claim.end(false).await;
                Err(refused)
            }
        }
    }

    async fn fill(
        &self,
        wanted: &mut AllocationRequest,
        claim: &mut Claim,
        permit: &Permit,
    ) -> std::result::Result<(), AllocationError> {
        let Some(open) = claim.open() else { return Ok(()) };
        let service = &mut wanted.service;
        // Most writes release nothing: then the stored service need not be read.
        if !wanted.goes {
            open.before = open.before.without(&ServiceAllocations::of(service));
        }
        for (index, written) in std::mem::take(&mut wanted.addresses) {
            let (written, address) = match written {
                Some(written) => {
                    let address = self.take_chosen(&written, &open.owner, permit).await?;
                    (written, address)
                }
                None => {
                    let family = family(service, index)?;
                    let address = self.take_any(family, &open.owner, permit).await?;
                    (address.to_string(), address)
                }
            };
            open.taken.addresses.insert(address.to_string());
            families::fill(service, index, &written);
        }
        if wanted.ports.is_empty() {
            return Ok(());
        }
        let want = |ask: &NodePortRequest| match ask.wanted {
            Some(port) => PortRequest::Exactly(port),
            None => PortRequest::Any(u32::try_from(random::below(1 << 30)).unwrap_or(0)),
        };
        // No more ports than these exist, so a longer list fails at one of the first.
        let wants = wanted.ports.iter().take(usize::from(u16::MAX) + 2).map(want).collect();
        let take = AllocatePorts { owner: open.owner.clone(), wants, permit: permit.clone() };
        let got = self.ports.send(take).await.map_err(|_| Status::unavailable(NOT_REACHED))?;
        let got = got.map_err(|refused| AllocationError::Port(refused.at, refused.reason))?;
        open.taken.ports.extend(got.iter().copied());
        let got: Vec<i64> = got.into_iter().map(i64::from).collect();
        ports::fill(service, &wanted.ports, &got);
        Ok(())
    }

    /// Takes the address that the client chose.
    async fn take_chosen(
        &self,
        written: &str,
        owner: &Key,
        permit: &Permit,
    ) -> std::result::Result<IpAddr, AllocationError> {
        let no = |why: &str| Err(AllocationError::Address(written.to_owned(), why.to_owned()));
        let Some(address) = addresses::parse(written) else { return no("it is no address") };
        let ranges = self.ranges(Family::of(address), permit).await?;
        if !ranges.iter().any(|range| range.contains(address)) {
            return no("the provided network does not match the current range");
        }
        if self.take_address(address, owner, permit).await? {
            return Ok(address);
        }
        no("provided IP is already allocated")
    }

    /// Writes the result of a dry run, and takes nothing.
    pub(super) async fn pretend(
        &self,
        service: &mut Value,
        addresses: Vec<(usize, Option<String>)>,
        asks: &[NodePortRequest],
        permit: &Permit,
    ) -> std::result::Result<(), AllocationError> {
        for (index, wanted) in addresses {
            let family = family(service, index)?;
            let Some(range) = self.ranges.iter().find(|range| range.family() == family) else { continue };
            let Some(written) = wanted else {
                families::fill(service, index, &range.network().to_string());
                continue;
            };
            if let Some(address) = addresses::parse(&written).filter(|address| !range.contains(*address)) {
                let why = format!(
                    "the provided IP ({address}) is not in the valid range. The range of valid IPs is {range}"
                );
                return Err(AllocationError::Address(written, why));
            }
            families::fill(service, index, &written);
        }
        let chosen: Vec<usize> = (0..asks.len()).filter(|at| asks[*at].wanted.is_some()).collect();
        let look =
            CheckPorts { ports: asks.iter().filter_map(|ask| ask.wanted).collect(), permit: permit.clone() };
        let free = self.ports.send(look).await.map_err(|_| Status::unavailable(NOT_REACHED))?;
        free.map_err(|refused| {
            AllocationError::Port(chosen.get(refused.at).copied().unwrap_or(refused.at), refused.reason)
        })?;
        ports::fill(service, asks, &ports::dummies(asks));
        Ok(())
    }
}

fn family(service: &Value, index: usize) -> Result<Family> {
    let family = list(spec(service), "ipFamilies").get(index).and_then(|name| Family::parse(name));
    family.ok_or_else(|| Status::internal("a service whose address has no family"))
}
