//! The addresses and ports that one write of a service has taken and may release.

use std::rc::Rc;
use std::time::Duration;

use pilothouse_actors::permit::Permit;
use pilothouse_kinds::services::ServiceAllocations;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::Key;
use tokio::time::{sleep, timeout};

use super::Services;

/// How often a busy store is retried. With doubling pauses this is about twenty seconds. What is not released by then stays taken
/// until the periodic check. Waiting longer would keep seats from requests that could be served.
const ROUNDS: u32 = 12;
/// The first pause.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a response waits for the release, so that its client finds the address free. The release goes on without it.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a write has taken or may release. Call [`Claim::end`] when the write is over. A claim that is dropped, because its client
/// disconnected, ends by itself.
#[must_use]
pub struct Claim(Option<Open>);

/// A claim that has not ended.
pub(super) struct Open {
    pub services: Rc<Services>,
    pub owner: Key,
    /// Taken for this write.
    pub taken: ServiceAllocations,
    /// Held by the state that this write replaces.
    pub before: ServiceAllocations,
    /// Whether this write may remove the stored service.
    pub goes: bool,
    /// The seat of the request, kept until everything is released: it bounds how many claims wait for the store.
    pub permit: Permit,
}

/// What may have to be released. Released items are taken out, so that a retry cannot free what a new service of the same name
/// took since.
pub(super) struct UnsettledHoldings {
    pub owner: Key,
    /// To be released unless the stored service has it.
    pub held: ServiceAllocations,
    /// Whether a service of that name was stored before, so that its endpoints are deleted with it.
    pub endpoints: bool,
    pub permit: Permit,
}

impl UnsettledHoldings {
    fn is_none(&self) -> bool {
        self.held.is_empty() && !self.endpoints
    }
}

impl From<Open> for Claim {
    fn from(open: Open) -> Claim {
        Claim(Some(open))
    }
}

impl Claim {
    /// For a write that does not concern services.
    pub fn none() -> Claim {
        Claim(None)
    }

    /// The contents, until the claim ends.
    pub(super) fn open(&mut self) -> Option<&mut Open> {
        self.0.as_mut()
    }

    /// Releases what is not needed. After a stored write that is what only the old state held, or everything if the service is
    /// gone. After a failed write it is what was taken for it.
    pub async fn end(mut self, stored: bool) {
        let Some(open) = self.0.take() else { return };
        let (services, goes) = (open.services.clone(), open.goes);
        let doubt = match (stored, goes) {
            (true, true) => open.all(),
            (true, false) => UnsettledHoldings {
                held: open.before,
                owner: open.owner,
                endpoints: false,
                permit: open.permit,
            },
            // A refused write removed nothing: endpoints of this name belong to another service.
            (false, _) => UnsettledHoldings {
                held: open.taken,
                owner: open.owner,
                endpoints: false,
                permit: open.permit,
            },
        };
        if !doubt.is_none() {
            // In a task of its own: a client that disconnects now must not interrupt it.
            let _ended = timeout(PATIENCE, actix::spawn(settle(services, doubt))).await;
        }
    }
}

impl Open {
    /// Everything that may have to be released.
    fn all(self) -> UnsettledHoldings {
        let mut held = self.taken;
        held.addresses.extend(self.before.addresses);
        held.ports.extend(self.before.ports);
        UnsettledHoldings { owner: self.owner, held, endpoints: self.goes, permit: self.permit }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(open) = self.0.take() else { return };
        let services = open.services.clone();
        let doubt = open.all();
        if !doubt.is_none() {
            actix::spawn(settle(services, doubt));
        }
    }
}

async fn settle(services: Rc<Services>, mut doubt: UnsettledHoldings) {
    let mut pause = PAUSE;
    for _ in 1..ROUNDS {
        match services.release_unused(&mut doubt).await {
            Err(StoreError::Busy) => sleep(pause).await,
            done => return tell(&doubt, done),
        }
        pause *= 2;
    }
    let done = services.release_unused(&mut doubt).await;
    tell(&doubt, done);
}

fn tell(doubt: &UnsettledHoldings, done: Result<(), StoreError>) {
    if let Err(error) = done {
        // The periodic check finds what stays taken.
        tracing::warn!(service = doubt.owner.as_str(), %error, "addresses or ports of a service were not released");
    }
}

#[cfg(test)]
mod tests;
