//! What one write of a service has taken and may give back.

use std::rc::Rc;
use std::time::Duration;

use pilothouse_actors::error::StoreError;
use pilothouse_actors::object::Key;
use pilothouse_actors::permit::Permit;
use tokio::time::{sleep, timeout};

use super::Services;
use crate::api::services::Holdings;

/// How often a store that is busy is asked again. With the pauses doubling this is about twenty seconds; what is lost after
/// that stays taken until somebody looks at all services, but holding on would keep places from requests that could be served.
const ROUNDS: u32 = 12;
/// The first pause.
const PAUSE: Duration = Duration::from_millis(10);
/// How long an answer waits for what its write gives back, so that whoever has it finds that free. The rest of the work
/// goes on without it.
const PATIENCE: Duration = Duration::from_secs(1);

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
    /// Whether the stored service may go with this write.
    pub goes: bool,
    /// The place of the request, kept until all is given back: it bounds how many claims wait for their store.
    pub permit: Permit,
}

/// What may have to be given back. What was given back is taken out, so that a second try cannot free what somebody of
/// the same name took since.
pub(super) struct Doubt {
    /// The service.
    pub owner: Key,
    /// What it no longer holds unless the stored service says so.
    pub held: Holdings,
    /// Whether a service of that name was stored before, so that its endpoints go with it.
    pub endpoints: bool,
    /// The place of the request.
    pub permit: Permit,
}

impl Doubt {
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
    /// Of a write that has nothing to do with services.
    pub fn none() -> Claim {
        Claim(None)
    }

    /// What it holds, until it is ended.
    pub(super) fn open(&mut self) -> Option<&mut Open> {
        self.0.as_mut()
    }

    /// Gives back what is not needed: after a write that was stored, what the old state held, and all of it if the
    /// service went with the write; else what was taken for it.
    pub async fn end(mut self, stored: bool) {
        let Some(open) = self.0.take() else { return };
        let (services, goes) = (open.services.clone(), open.goes);
        let doubt = match (stored, goes) {
            (true, true) => open.all(),
            (true, false) => {
                Doubt { held: open.before, owner: open.owner, endpoints: false, permit: open.permit }
            }
            // A write that was refused removed nothing: endpoints of this name are somebody else's.
            (false, _) => {
                Doubt { held: open.taken, owner: open.owner, endpoints: false, permit: open.permit }
            }
        };
        if !doubt.is_none() {
            // On its own: a client that hangs up now must not leave it half done.
            let _ended = timeout(PATIENCE, actix::spawn(settle(services, doubt))).await;
        }
    }
}

impl Open {
    /// Everything that may have to be given back.
    fn all(self) -> Doubt {
        let mut held = self.taken;
        held.addresses.extend(self.before.addresses);
        held.ports.extend(self.before.ports);
        Doubt { owner: self.owner, held, endpoints: self.goes, permit: self.permit }
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

async fn settle(services: Rc<Services>, mut doubt: Doubt) {
    let mut pause = PAUSE;
    for _ in 1..ROUNDS {
        match services.let_go(&mut doubt).await {
            Err(StoreError::Busy) => sleep(pause).await,
            done => return tell(&doubt, done),
        }
        pause *= 2;
    }
    let done = services.let_go(&mut doubt).await;
    tell(&doubt, done);
}

fn tell(doubt: &Doubt, done: Result<(), StoreError>) {
    if let Err(error) = done {
        // What stays taken is found by the next look at all services.
        tracing::warn!(service = doubt.owner.as_str(), %error, "addresses or ports of the service were not given back");
    }
}

#[cfg(test)]
mod tests;
