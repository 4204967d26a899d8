//! Who allocates node ports: the actor of the one server that has the store, or the record that all servers of one etcd share.

use actix::Addr;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::ports::{
    AllocatePorts, CheckPorts, CountPorts, PortAllocator, PortCounts, PortRefusal, PortRequest, Reason,
    ReleasePorts,
};
use pilothouse_actors::range_allocator::{
    AllocateItems, CheckItems, ItemRefusal, ItemRequest, RangeAllocator, ReadItems, RefusalReason,
    ReleaseItems,
};
use pilothouse_actors::shared_range::RangeError;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::Key;

use crate::metrics::allocators::RangeUse;

/// The allocator of node ports. Cheap to clone.
#[derive(Clone)]
pub enum NodePorts {
    /// The actor that knows the owner of each port.
    Own(Addr<PortAllocator>),
    /// The actor that shares a record with other servers. Nobody but the stored Services tells who has a port.
    Shared(SharedPorts),
}

/// The ports of a shared record.
#[derive(Clone)]
pub struct SharedPorts {
    /// The actor.
    pub allocator: Addr<RangeAllocator>,
    /// The first port of the range.
    pub first: u16,
    /// The last one.
    pub last: u16,
}

/// Why there are no ports.
#[derive(Debug)]
pub(super) enum PortError {
    /// One is refused.
    Refused(PortRefusal),
    /// The record cannot be used.
    Record(RangeError),
    /// The actor has ended.
    Ended,
}

impl From<ItemRefusal> for PortError {
    fn from(refusal: ItemRefusal) -> PortError {
        let reason = match refusal.reason {
            RefusalReason::Taken => Reason::Taken,
            RefusalReason::Outside => Reason::Outside,
            RefusalReason::Full => Reason::Full,
        };
        PortError::Refused(PortRefusal { index: refusal.index, reason })
    }
}

impl NodePorts {
    /// Whether other servers allocate the same ports. Then nobody knows who has one.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self, NodePorts::Shared(_))
    }

    /// Allocates ports, all or none, in the order of the requests.
    pub(super) async fn allocate(
        &self,
        owner: Key,
        requests: Vec<PortRequest>,
        permit: Permit,
    ) -> Result<Vec<u16>, PortError> {
        match self {
            NodePorts::Own(allocator) => {
                let command = AllocatePorts { owner, requests, permit };
                let allocated = allocator.send(command).await.map_err(|_| PortError::Ended)?;
                allocated.map_err(PortError::Refused)
            }
            NodePorts::Shared(shared) => shared.allocate(requests, permit).await,
        }
    }

    /// Checks whether these ports are free, without taking them.
    pub(super) async fn check(&self, ports: Vec<i64>, permit: Permit) -> Result<(), PortError> {
        match self {
            NodePorts::Own(allocator) => {
                let free = allocator.send(CheckPorts { ports, permit }).await;
                free.map_err(|_| PortError::Ended)?.map_err(PortError::Refused)
            }
            NodePorts::Shared(shared) => {
                let items = ports.iter().map(|port| shared.item(*port)).collect();
                let free = shared.allocator.send(CheckItems { items, permit }).await;
                Ok(free.map_err(|_| PortError::Ended)?.map_err(PortError::Record)??)
            }
        }
    }

    /// How many ports of the range are taken; `None` if nobody can tell.
    pub(super) async fn range_use(&self) -> Option<RangeUse> {
        match self {
            NodePorts::Own(allocator) => {
                let PortCounts { allocated, free } = allocator.send(CountPorts).await.ok()?;
                Some(RangeUse { allocated: allocated as u64, available: free as u64 })
            }
            NodePorts::Shared(shared) => {
                let record = shared.allocator.send(ReadItems).await.ok()?.ok()??;
                let allocated = record.content.allocated.len() as u64;
                let size = u64::from(shared.last - shared.first) + 1;
                Some(RangeUse { allocated, available: size.saturating_sub(allocated) })
            }
        }
    }

    /// Releases ports that this owner has. With the error Busy nothing was released. After any other error those of a shared record stay
    /// taken until a repair.
    pub(super) async fn release(&self, owner: Key, ports: Vec<u16>) -> Result<(), StoreError> {
        match self {
            NodePorts::Own(allocator) => {
                allocator.send(ReleasePorts { owner, ports }).await.map_err(|_| StoreError::Unavailable)
            }
            NodePorts::Shared(shared) => {
                let items = ports.iter().filter_map(|port| shared.item_in_range(*port)).collect();
                let released = shared.allocator.send(ReleaseItems { items }).await;
                match released.map_err(|_| StoreError::Unavailable)? {
                    Ok(()) => Ok(()),
                    Err(RangeError::Store(error)) => Err(error),
                    Err(error) => {
                        tracing::warn!(%error, "node ports are released by the next repair");
                        Ok(())
                    }
                }
            }
        }
    }
}

impl SharedPorts {
    /// The item of a port, which may be outside of the range.
    fn item(&self, port: i64) -> i64 {
        port.saturating_sub(i64::from(self.first))
    }

    /// The item of a port of the range.
    pub(super) fn item_in_range(&self, port: u16) -> Option<usize> {
        (port <= self.last).then_some(port)?.checked_sub(self.first).map(usize::from)
    }

    /// The port of an item.
    pub(super) fn port(&self, item: usize) -> Option<u16> {
        self.first.checked_add(u16::try_from(item).ok()?).filter(|port| *port <= self.last)
    }

    async fn allocate(&self, requests: Vec<PortRequest>, permit: Permit) -> Result<Vec<u16>, PortError> {
        let item_request = |request: PortRequest| match request {
            PortRequest::Exactly(port) => ItemRequest::Exactly(self.item(port)),
            PortRequest::Any(random) => ItemRequest::Any(random),
        };
        let requests = requests.into_iter().map(item_request).collect();
        let allocated = self.allocator.send(AllocateItems { requests, permit }).await;
        let items = allocated.map_err(|_| PortError::Ended)?.map_err(PortError::Record)??;
        Ok(items.into_iter().filter_map(|item| self.port(item)).collect())
    }
}
