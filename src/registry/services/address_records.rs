//! The records of cluster IPs. Servers of one etcd share them; a server alone with its file keeps one only without IPAddress objects.
//!
//! Release 1.33 of the reference still keeps them beside the IPAddress objects, unless its feature gate `DisableAllocatorDualWrite` is
//! on: it takes an address in the record before it creates the IPAddress. An address that only has its IPAddress would be refused to
//! clients of such a server by an error. There the IPAddress decides who has an address; a record that is wrong costs attempts, and is
//! repaired. Without the gate `MultiCIDRServiceAllocator` there are no such objects, and the record decides alone.

use std::net::IpAddr;

use actix::Addr;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::range_allocator::{
    AllocateItems, ItemRange, ItemRequest, RangeAllocator, ReadItems, RefusalReason, ReleaseItems,
};
use pilothouse_actors::shared_range::RangeError;
use pilothouse_kinds::services::addresses::AddressRange;
use pilothouse_types::error::StoreError;
use pilothouse_types::limits::RANGE_ITEMS;

use crate::metrics::allocators::RangeUse;

/// The IPv6 addresses that a record knows: as many as the reference's.
const RECORDED_V6_ADDRESSES: u64 = 65_535;

/// The record of a range of the flags.
#[derive(Clone)]
pub struct AddressRecord {
    /// The range.
    pub range: AddressRange,
    /// The actor.
    pub allocator: Addr<RangeAllocator>,
}

/// Whether an address was reserved in a record.
#[derive(Debug)]
pub(super) enum Reservation {
    /// It was.
    Reserved,
    /// Somebody has it already.
    Taken,
    /// The record knows no such address.
    NotRecorded,
    /// The record cannot be used.
    Unusable(RangeError),
}

/// The items of the record of a range.
pub fn item_range(range: &AddressRange) -> ItemRange {
    let size = usize::try_from(recorded_size(range)).unwrap_or(RANGE_ITEMS);
    let lower_band = usize::try_from(range.lower_band()).unwrap_or(size).min(size);
    ItemRange { text: range.to_string(), size, lower_band }
}

fn recorded_size(range: &AddressRange) -> u64 {
    let most = if range.network().is_ipv4() { RANGE_ITEMS as u64 } else { RECORDED_V6_ADDRESSES };
    range.size().min(most)
}

/// The item of an address; `None` if the record of the range does not know it.
pub(super) fn item(range: &AddressRange, address: IpAddr) -> Option<usize> {
    let offset = range.offset_of(address).filter(|offset| *offset < recorded_size(range))?;
    usize::try_from(offset).ok()
}

impl AddressRecord {
    /// Reserves an address. An error means that nobody knows whether it is reserved, or that it could not be.
    pub(super) async fn reserve(&self, address: IpAddr, permit: &Permit) -> Result<Reservation, StoreError> {
        let Some(item) = item(&self.range, address).and_then(|item| i64::try_from(item).ok()) else {
            return Ok(Reservation::NotRecorded);
        };
        match self.allocate(ItemRequest::Exactly(item), permit).await {
            Ok(Ok(_)) => Ok(Reservation::Reserved),
            Ok(Err(RefusalReason::Taken)) => Ok(Reservation::Taken),
            Ok(Err(RefusalReason::Outside | RefusalReason::Full)) => Ok(Reservation::NotRecorded),
            Err(RangeError::Store(error)) => Err(error),
            Err(error) => Ok(Reservation::Unusable(error)),
        }
    }

    /// Reserves any free address; `None` if there is none, or the record cannot be used.
    pub(super) async fn reserve_any(
        &self,
        random: u32,
        permit: &Permit,
    ) -> Result<Option<IpAddr>, StoreError> {
        match self.allocate(ItemRequest::Any(random), permit).await {
            Ok(Ok(item)) => Ok(self.range.address_at(u64::try_from(item).unwrap_or(u64::MAX))),
            Ok(Err(_)) => Ok(None),
            Err(RangeError::Store(error)) => Err(error),
            Err(error) => {
                tracing::debug!(range = %self.range, %error, "cluster IPs are allocated without a record");
                Ok(None)
            }
        }
    }

    /// Frees an address that has no IPAddress any more. If that fails, a repair does it.
    pub(super) async fn release(&self, address: IpAddr) {
        let Some(item) = item(&self.range, address) else { return };
        if let Ok(Err(error)) = self.allocator.send(ReleaseItems { items: vec![item] }).await {
            tracing::debug!(%address, %error, "the record of a cluster IP is released by the next repair");
        }
    }

    /// How many addresses are taken; `None` if nobody can tell.
    pub(super) async fn range_use(&self) -> Option<RangeUse> {
        let record = self.allocator.send(ReadItems).await.ok()?.ok()??;
        let allocated = record.content.allocated.len() as u64;
        Some(RangeUse { allocated, available: recorded_size(&self.range).saturating_sub(allocated) })
    }

    async fn allocate(
        &self,
        request: ItemRequest,
        permit: &Permit,
    ) -> Result<Result<usize, RefusalReason>, RangeError> {
        let command = AllocateItems { requests: vec![request], permit: permit.clone() };
        let allocated = self.allocator.send(command).await;
        let allocated = allocated.map_err(|_| RangeError::Store(StoreError::Unavailable))??;
        Ok(match allocated {
            Ok(items) => items.first().copied().ok_or(RefusalReason::Full),
            Err(refusal) => Err(refusal.reason),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_those_of_the_reference() {
        let range = |text| AddressRange::parse(text).unwrap();
        for (text, size, lower_band, first, last) in [
            ("10.0.0.0/24", 254, 16, "10.0.0.1", "10.0.0.254"),
            ("10.0.0.0/16", 65_534, 256, "10.0.0.1", "10.0.255.254"),
            ("fd00::/120", 255, 16, "fd00::1", "fd00::ff"),
            ("fd00::/108", 65_535, 256, "fd00::1", "fd00::ffff"),
        ] {
            let range = range(text);
            let items = item_range(&range);
            assert_eq!((items.text.as_str(), items.size, items.lower_band), (text, size, lower_band));
            let item_of = |address: &str| item(&range, address.parse().unwrap());
            assert_eq!((item_of(first), item_of(last)), (Some(0), Some(size - 1)), "{text}");
        }
        let range = range("fd00::/108");
        assert_eq!(item(&range, "fd00::1:0".parse().unwrap()), None);
        assert_eq!(item(&range, "fd00::".parse().unwrap()), None);
        assert_eq!(item(&range, "10.0.0.1".parse().unwrap()), None);
    }
}
