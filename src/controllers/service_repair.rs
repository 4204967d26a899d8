//! Compares Services with the allocated cluster IPs and node ports every few minutes. A disagreement that is found twice in a row
//! is repaired; one that is found once may be a write in progress. A deleted IPAddress of an existing Service is recreated at
//! once, before another Service gets the address. Runs in every server, whichever controllers are enabled.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_types::object::{Key, TypeName};

use crate::registry::services::repair::Finding;
use crate::registry::services::{ADDRESSES, SERVICES, Services};

use super::attempts;
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// The name in health checks and metrics.
pub const NAME: &str = "service-repair";

/// A work item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// The comparison of all Services with the allocations.
    All,
    /// The removed IPAddress, and the Service that it was allocated to.
    AddressRemoved(String, Key),
}

/// Repairs allocations.
pub struct ServiceRepair {
    services: Rc<Services>,
    /// The interval of the checks.
    interval: Duration,
    /// The disagreements of the last check.
    last_findings: RefCell<BTreeSet<Finding>>,
}

impl ServiceRepair {
    /// A controller with this interval.
    pub fn new(services: Rc<Services>, interval: Duration) -> ServiceRepair {
        ServiceRepair { services, interval, last_findings: RefCell::default() }
    }

    /// Recreates an IPAddress that its Service still uses.
    async fn recreate_address(&self, address: &str, owner: &Key) -> Result<Outcome> {
        self.services.restore_address(address, owner).await?;
        Ok(Outcome::Done)
    }

    async fn check_all(&self) -> Result<Outcome> {
        let resource = GroupResource { group: "", resource: SERVICES };
        let findings =
            self.services.findings().await.map_err(|error| Status::from_store(&error, resource, ""))?;
        let confirmed: Vec<Finding> = findings.intersection(&self.last_findings.borrow()).cloned().collect();
        let result =
            attempts::all(confirmed.iter().map(|finding| self.services.repair_finding(finding)), 1).await;
        *self.last_findings.borrow_mut() = findings;
        result?;
        Ok(Outcome::RequeueAfter(self.interval))
    }
}

impl Controller for ServiceRepair {
    type Key = Work;

    fn needs_leader_election(&self) -> bool {
        false
    }

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[ADDRESSES])
    }

    fn initial_keys(&self) -> Vec<Work> {
        vec![Work::All]
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Work>) {
        let owner = || self.services.owner_of(change.object);
        if let Some(owner) = change.is_deleted.then(owner).flatten() {
            queue.add(Work::AddressRemoved(change.object.key.name().to_owned(), owner));
        }
    }

    /// Missed removals are found by the next periodic check. No extra check is made: two in a row could both see the same write
    /// in progress.
    fn on_list(&self, _: &TypeName, _: &Snapshot, _: &mut Queue<Work>) {}

    fn reconcile(self: Rc<Self>, work: Work) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move {
            match &work {
                Work::All => self.check_all().await,
                Work::AddressRemoved(address, owner) => self.recreate_address(address, owner).await,
            }
        }
        .boxed_local()
    }
}
