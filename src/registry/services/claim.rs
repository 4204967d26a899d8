//! The addresses and ports that one write of a service has allocated and may release.

use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::permit::Permit;
use pilothouse_kinds::services::ServiceAllocations;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::Key;
use tokio::time::{sleep, timeout};

use super::Services;
use crate::registry::write_hooks::{FinishWrite, WriteEnd};

/// How often a busy store is retried. With doubling pauses this is about twenty seconds. What is not released by then stays
/// allocated until the periodic check. Waiting longer would keep permits from requests that could be served.
const ATTEMPTS: u32 = 12;
/// The first pause.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a response waits for the release, so that its client finds the address free. The release goes on without it.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// What a write has allocated or may release. Call [`Claim::end`] when the write is over. A claim that is dropped, because its
/// client disconnected, ends by itself: behind the writes of its service that are on their way.
///
/// The records that servers share do not say who has an item. So nothing is released in them but what certainly belongs to this write:
/// another server may have freed the rest meanwhile, and given it to somebody else.
#[must_use]
pub(super) struct Claim(Option<PendingClaim>);

/// A claim that has not ended.
pub(super) struct PendingClaim {
    pub services: Rc<Services>,
    pub owner: Key,
    /// Allocated for this write.
    pub allocated: ServiceAllocations,
    /// Held by the state that this write replaces.
    pub before: ServiceAllocations,
    /// Whether this write may remove the stored service.
    pub may_remove: bool,
    /// Whether the store was asked, so that the write may be stored.
    pub is_proposed: bool,
    /// The permit of the request, kept until everything is released: it bounds how many claims wait for the store.
    pub permit: Permit,
}

/// What may have to be released. Released items are removed from it, so that a retry cannot free what a new service of the same
/// name has allocated since.
pub(super) struct UnsettledAllocations {
    pub owner: Key,
    /// Released unless the stored service uses it.
    pub held: ServiceAllocations,
    /// Whether a service of that name was stored before, so that its endpoints are deleted with it.
    pub endpoints: bool,
    pub permit: Permit,
}

impl UnsettledAllocations {
    fn is_settled(&self) -> bool {
        self.held.is_empty() && !self.endpoints
    }
}

impl From<PendingClaim> for Claim {
    fn from(open: PendingClaim) -> Claim {
        Claim(Some(open))
    }
}

impl Claim {
    /// The contents, until the claim ends.
    pub(super) fn open(&mut self) -> Option<&mut PendingClaim> {
        self.0.as_mut()
    }

    /// Releases what is not needed. After a stored write that is what only the old state held, or everything if the service was
    /// removed. After a failed write it is what was allocated for it. Nothing is released if nobody knows: the write may still come to be
    /// stored, so that is left to the periodic check.
    pub async fn end(mut self, end: WriteEnd) {
        let Some(open) = self.0.take() else { return };
        let (services, may_remove) = (open.services.clone(), open.may_remove);
        let unsettled = match (end, may_remove) {
            (WriteEnd::Unknown, _) => return log_unknown(&open),
            (WriteEnd::Stored, true) => open.into_unsettled(),
            (WriteEnd::Stored, false) => UnsettledAllocations {
                held: open.before,
                owner: open.owner,
                endpoints: false,
                permit: open.permit,
            },
            // A refused write removed nothing: endpoints of this name belong to another service.
            (WriteEnd::NotStored, _) => open.into_own(),
        };
        if !unsettled.is_settled() {
            // In a task of its own: a client that disconnects now must not interrupt it.
            let _ended = timeout(RELEASE_TIMEOUT, actix::spawn(settle(services, unsettled))).await;
        }
    }
}

impl FinishWrite for Claim {
    fn propose(&mut self) {
        if let Some(open) = &mut self.0 {
            open.is_proposed = true;
        }
    }

    fn finish(self: Box<Self>, end: WriteEnd) -> LocalBoxFuture<'static, ()> {
        self.end(end).boxed_local()
    }
}

impl PendingClaim {
    /// What was allocated for this write, which is not stored.
    fn into_own(self) -> UnsettledAllocations {
        UnsettledAllocations {
            held: self.allocated,
            owner: self.owner,
            endpoints: false,
            permit: self.permit,
        }
    }

    /// Everything that may have to be released.
    fn into_unsettled(self) -> UnsettledAllocations {
        let mut held = self.allocated;
        held.addresses.extend(self.before.addresses);
        held.ports.extend(self.before.ports);
        UnsettledAllocations { owner: self.owner, held, endpoints: self.may_remove, permit: self.permit }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(open) = self.0.take() else { return };
        let services = open.services.clone();
        let unsettled = match open.is_proposed {
            false => open.into_own(),
            // A record without owners cannot tell whether somebody else has got the address or port meanwhile.
            true if services.ports.is_shared() || !services.has_objects => return log_unknown(&open),
            true => open.into_unsettled(),
        };
        if !unsettled.is_settled() {
            actix::spawn(settle(services, unsettled));
        }
    }
}

async fn settle(services: Rc<Services>, mut unsettled: UnsettledAllocations) {
    let mut pause = PAUSE;
    for _ in 1..ATTEMPTS {
        match services.release_unused(&mut unsettled).await {
            Err(StoreError::Busy) => sleep(pause).await,
            result => return log_failure(&unsettled, result),
        }
        pause *= 2;
    }
    let result = services.release_unused(&mut unsettled).await;
    log_failure(&unsettled, result);
}

fn log_unknown(open: &PendingClaim) {
    let service = open.owner.as_str();
    tracing::warn!(
        service,
        "it is unknown whether a service was stored; its addresses and ports are kept until a check"
    );
}

fn log_failure(unsettled: &UnsettledAllocations, result: Result<(), StoreError>) {
    if let Err(error) = result {
        // The periodic check releases the rest.
        tracing::warn!(service = unsettled.owner.as_str(), %error, "addresses or ports of a service were not released");
    }
}

#[cfg(test)]
mod tests;
