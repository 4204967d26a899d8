//! What one write of a service has taken and may give back.

use std::rc::Rc;

use pilothouse_actors::object::Key;

use super::Services;
use crate::api::services::Holdings;

/// What a write has taken or may give back. End it when the write is over; one that is dropped, because its client hung
/// up, ends by itself.
#[must_use]
pub struct Claim(Option<Open>);

/// A claim that is not ended.
pub(super) struct Open {
    pub services: Rc<Services>,
    /// The service.
    pub owner: Key,
    /// Taken for this write.
    pub taken: Holdings,
    /// Held by what this write replaces.
    pub before: Holdings,
}

impl From<Open> for Claim {
    fn from(open: Open) -> Claim {
        Claim(Some(open))
    }
}

impl Claim {
    /// Of a write that has nothing to do with services.
    pub fn none() -> Claim {
        Claim(None)
    }

    /// What it holds, until it is ended.
    pub(super) fn open(&mut self) -> Option<&mut Open> {
        self.0.as_mut()
    }

    /// Gives back what is not needed: after a write that was stored, what the old state held; else what was taken for
    /// it.
    pub async fn end(mut self, stored: bool) {
        let Some(Open { services, owner, taken, before }) = self.0.take() else { return };
        let doubtful = if stored { before } else { taken };
        if !doubtful.is_empty() {
            // On its own: a client that hangs up now must not leave it half done.
            let _ended = actix::spawn(settle(services, owner, doubtful)).await;
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(Open { services, owner, taken, before }) = self.0.take() else { return };
        let mut doubtful = taken;
        doubtful.addresses.extend(before.addresses);
        doubtful.ports.extend(before.ports);
        if !doubtful.is_empty() {
            actix::spawn(settle(services, owner, doubtful));
        }
    }
}

async fn settle(services: Rc<Services>, owner: Key, doubtful: Holdings) {
    if let Err(error) = services.let_go(&owner, doubtful).await {
        // What stays taken is found at the next start.
        tracing::warn!(service = owner.as_str(), %error, "addresses or ports of the service were not given back");
    }
}
