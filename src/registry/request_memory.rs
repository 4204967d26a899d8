//! The memory of requests: of their bodies, and of the stored objects that they change, while they are processed.

use pilothouse_apimachinery::codec::decoded_bytes_bound;
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::status::Result;
use pilothouse_types::memory::{MemoryBudget, OutOfMemory, Reservation};
use pilothouse_types::object::Object;
use pilothouse_types::user_shares::{UserShare, UserShares};

use crate::limits::{HEAVY_BYTES, LARGE_BODY_BYTES};

/// Whether a reservation may be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPriority<'u> {
    /// On behalf of this user, within the share of one user. The client can retry.
    User(&'u str),
    /// Counted, but never refused: a write that is already stored, which its client would repeat; deletions and requests of the
    /// server, which free memory; watches, which would end.
    Granted,
}

/// The memory budget of requests in flight, with a share for each user. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RequestMemory {
    budget: MemoryBudget,
    /// The share of each user in large reservations. Small ones are not worth the lookup.
    users: UserShares,
}

impl RequestMemory {
    /// Of the budget, one user may have half.
    pub fn new(budget: MemoryBudget) -> RequestMemory {
        RequestMemory { users: UserShares::new(budget.limit() / 2), budget }
    }

    /// Reserves memory for a request beside its body, such as a copy for another server: 429 if the budget or the share of the
    /// user is exhausted.
    pub fn reserve(&self, bytes: usize, priority: MemoryPriority<'_>) -> Result<RequestReservation> {
        let mut memory = self.empty_reservation();
        memory.resize(bytes, priority)?;
        Ok(memory)
    }

    /// Reserves memory for the decoded form of a stored object that the request changes.
    pub fn reserve_for_stored_object(
        &self,
        user: &str,
        object: &Object,
    ) -> Result<Option<RequestReservation>> {
        if object.bytes.len() <= HEAVY_BYTES {
            return Ok(None);
        }
        let mut memory = self.empty_reservation();
        memory.reserve_for_decoding(user, Encoding::Json, &object.bytes)?;
        Ok(Some(memory))
    }

    /// An empty reservation.
    pub fn empty_reservation(&self) -> RequestReservation {
        RequestReservation { memory: self.clone(), reserved: self.budget.empty_reservation(), share: None }
    }
}

/// Memory that a request has reserved: for its body, or for copies and decoded objects.
#[derive(Debug)]
pub struct RequestReservation {
    memory: RequestMemory,
    reserved: Reservation,
    share: Option<UserShare>,
}

impl RequestReservation {
    /// Reserves memory for reading a body of this size.
    pub fn reserve_for_reading(&mut self, bytes: usize) -> Result<()> {
        Ok(self.reserved.set(bytes)?)
    }

    /// Reserves memory for this body and its decoded form: 429 if the budget or the share of the user is exhausted.
    pub fn reserve_for_decoding(&mut self, user: &str, encoding: Encoding, body: &[u8]) -> Result<()> {
        let bytes = decoded_bytes_bound(encoding, body).saturating_add(body.len());
        self.resize(bytes, MemoryPriority::User(user))
    }

    /// The reserved bytes.
    pub fn bytes(&self) -> usize {
        self.reserved.bytes()
    }

    /// Changes the size of the reservation.
    pub fn resize(&mut self, bytes: usize, priority: MemoryPriority<'_>) -> Result<()> {
        let user = match priority {
            MemoryPriority::User(user) => user,
            MemoryPriority::Granted => {
                self.reserved.charge_to(bytes);
                return Ok(());
            }
        };
        self.share = None;
        if bytes > LARGE_BODY_BYTES {
            self.share = Some(self.memory.users.take(user, bytes).ok_or(OutOfMemory)?);
        }
        Ok(self.reserved.set(bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_memory_of_one_user_is_limited_to_half() {
        let body = format!("[{}]", vec!["1"; 20_000].join(",")).into_bytes();
        let size = decoded_bytes_bound(Encoding::Json, &body) + body.len();
        let memory = RequestMemory::new(MemoryBudget::standalone(4 * size));
        let process = |user: &str| {
            let mut held = memory.empty_reservation();
            held.reserve_for_reading(body.len())?;
            held.reserve_for_decoding(user, Encoding::Json, &body).map(|()| held)
        };
        let held: Vec<RequestReservation> = (0..4).filter_map(|_| process("greedy").ok()).collect();
        assert_eq!(held.len(), 2);
        let refused = process("greedy").unwrap_err();
        assert_eq!((refused.code, refused.retry_after()), (429, Some(1)));
        assert!(process("modest").is_ok());
        let mut small = memory.empty_reservation();
        small.reserve_for_decoding("greedy", Encoding::Json, b"{}").expect("a small body needs no share");
        drop((held, small));
        assert_eq!(memory.budget.bytes(), 0);
        assert!(process("greedy").is_ok());
    }

    #[test]
    fn request_memory_resizes_shares_and_never_refuses_granted_priority() {
        const LARGE: usize = LARGE_BODY_BYTES + 1;
        let memory = RequestMemory::new(MemoryBudget::standalone(6 * LARGE));
        let mut held = memory.reserve(LARGE, MemoryPriority::User("greedy")).unwrap();
        held.resize(2 * LARGE, MemoryPriority::User("greedy")).unwrap();
        held.resize(3 * LARGE, MemoryPriority::User("greedy"))
            .expect("its previous size does not count twice");
        assert_eq!(memory.reserve(LARGE, MemoryPriority::User("greedy")).unwrap_err().code, 429);
        assert!(memory.reserve(LARGE, MemoryPriority::User("modest")).is_ok());
        let granted = memory.reserve(9 * LARGE, MemoryPriority::Granted).unwrap();
        assert_eq!(memory.budget.bytes(), 12 * LARGE);
        drop((held, granted));
        assert_eq!(memory.budget.bytes(), 0);
    }
}
