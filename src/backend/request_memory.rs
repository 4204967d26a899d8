//! The memory of requests: what their bodies, and the stored objects that they change, take while they are processed.

use pilothouse_actors::memory::{MemoryBudget, OutOfMemory, Reservation};
use pilothouse_actors::object::Object;
use pilothouse_actors::user_shares::{UserShare, UserShares};

use crate::api::codec::decoded_bytes_bound;
use crate::api::media::Encoding;
use crate::api::status::Result;
use crate::limits::{HEAVY_BYTES, LARGE_BODY_BYTES};

/// Whether memory may be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The client can ask again.
    Refusable,
    /// Counted, but never refused: a write that is stored already, whose client would repeat it; a deletion or what the server does
    /// itself, which give memory back; a watch, which would end.
    Granted,
}

/// Counts the bodies of all requests in flight. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RequestMemory {
    bodies: MemoryBudget,
    /// What of it each user has for large bodies. Small ones are not worth a look at a table.
    users: UserShares,
}

impl RequestMemory {
    /// Of the budget, one user may have half.
    pub fn new(bodies: MemoryBudget) -> RequestMemory {
        RequestMemory { users: UserShares::new(bodies.most() / 2), bodies }
    }

    /// Reserves memory for a copy of an object, as other servers are sent one.
    pub fn copy(&self, bytes: usize, claim: Claim) -> Result<Reservation> {
        match claim {
            Claim::Refusable => Ok(self.bodies.take(bytes)?),
            Claim::Granted => Ok(self.bodies.charge(bytes)),
        }
    }

    /// Reserves more for a request of this user, within the user's share.
    pub fn more(&self, user: &str, bytes: usize) -> Result<BodyMemory> {
        let mut memory = self.body();
        memory.resize(user, bytes)?;
        Ok(memory)
    }

    /// Reserves what a stored object takes that is changed: its tree lives beside that of the body.
    pub fn stored(&self, user: &str, object: &Object) -> Result<Option<BodyMemory>> {
        if object.bytes.len() <= HEAVY_BYTES {
            return Ok(None);
        }
        let mut memory = self.body();
        memory.process(user, Encoding::Json, &object.bytes)?;
        Ok(Some(memory))
    }

    /// The memory of one body, which is empty yet.
    pub fn body(&self) -> BodyMemory {
        BodyMemory { memory: self.clone(), reserved: self.bodies.nothing(), share: None }
    }
}

/// What one body takes, until its request has ended.
#[derive(Debug)]
pub struct BodyMemory {
    memory: RequestMemory,
    reserved: Reservation,
    share: Option<UserShare>,
}

impl BodyMemory {
    /// Reserves what a body of this size takes while it is read.
    pub fn read(&mut self, bytes: usize) -> Result<()> {
        Ok(self.reserved.set(bytes)?)
    }

    /// Reserves what this body takes while it is processed, for this user: 429 if there is no room for it, or if the user has as
    /// much as one may have.
    pub fn process(&mut self, user: &str, encoding: Encoding, body: &[u8]) -> Result<()> {
        self.resize(user, decoded_bytes_bound(encoding, body).saturating_add(body.len()))
    }

    fn resize(&mut self, user: &str, bytes: usize) -> Result<()> {
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
    fn a_user_with_large_bodies_leaves_half_to_others() {
        let body = format!("[{}]", vec!["1"; 20_000].join(",")).into_bytes();
        let takes = decoded_bytes_bound(Encoding::Json, &body) + body.len();
        let memory = RequestMemory::new(MemoryBudget::alone(4 * takes));
        let process = |user: &str| {
            let mut held = memory.body();
            held.read(body.len())?;
            held.process(user, Encoding::Json, &body).map(|()| held)
        };
        let held: Vec<BodyMemory> = (0..4).filter_map(|_| process("greedy").ok()).collect();
        assert_eq!(held.len(), 2);
        let refused = process("greedy").unwrap_err();
        assert_eq!((refused.code, refused.retry_after()), (429, Some(1)));
        assert!(process("modest").is_ok());
        let mut small = memory.body();
        small.process("greedy", Encoding::Json, b"{}").expect("a small body needs no share");
        drop((held, small));
        assert_eq!(memory.bodies.bytes(), 0);
        assert!(process("greedy").is_ok());
    }
}
