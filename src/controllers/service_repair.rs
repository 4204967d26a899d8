//! Compares Services with the allocated cluster IPs and node ports every few minutes. A disagreement that is found twice in a row
//! is repaired; one that is found once may be a write in progress. A deleted IPAddress of an existing Service is recreated at
//! once, before another Service gets the address. Runs in every server, whichever loops are enabled.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_types::object::{Key, TypeName};

use crate::backend::services::ADDRESSES;
use crate::backend::services::repair::Finding;

use super::attempts;
use super::client::Client;
use super::queue::{Outcome, Queue};
use super::runner::{Controller, Follows, ObjectChange};

/// The name in health checks and metrics.
pub const NAME: &str = "service-repair";

/// What is looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// Everything.
    All,
    /// An address that is no longer taken, and the service for which it was.
    Gone(String, Key),
}

/// Repairs allocations.
pub struct ServiceRepair {
    client: Client,
    /// The interval of the checks.
    every: Duration,
    /// The disagreements of the last check.
    doubted: RefCell<BTreeSet<Finding>>,
}

impl ServiceRepair {
    /// A loop with this interval.
    pub fn new(client: Client, every: Duration) -> ServiceRepair {
        ServiceRepair { client, every, doubted: RefCell::default() }
    }

    /// Takes an address again that its service still says.
    async fn keep(&self, address: &str, owner: &Key) -> Result<Outcome> {
        self.client.services().keep(address, owner).await?;
        Ok(Outcome::Done)
    }

    async fn look(&self) -> Result<Outcome> {
        let of = GroupResource { group: "", resource: "services" };
        let services = self.client.services();
        let found = services.findings().await.map_err(|error| Status::from_store(&error, of, ""))?;
        let wrong: Vec<Finding> = found.intersection(&self.doubted.borrow()).cloned().collect();
        let mended = attempts::all(wrong.iter().map(|finding| services.mend(finding)), 1).await;
        *self.doubted.borrow_mut() = found;
        mended?;
        Ok(Outcome::After(self.every))
    }
}

impl Controller for ServiceRepair {
    type Key = Work;

    fn follows(&self) -> Follows {
        Follows::These(&[ADDRESSES])
    }

    fn begins_with(&self) -> Vec<Work> {
        vec![Work::All]
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Work>) {
        let owner = || self.client.services().owner_of(change.object);
        if let Some(owner) = change.gone.then(owner).flatten() {
            queue.add(Work::Gone(change.object.key.name().to_owned(), owner));
        }
    }

    /// What has gone unheard is found by the next look. None is taken for that: two in a row could both meet one write.
    fn on_list(&self, _: &TypeName, _: &Snapshot, _: &mut Queue<Work>) {}

    fn work(self: Rc<Self>, work: Work) -> LocalBoxFuture<'static, Outcome> {
        async move {
            let done = match &work {
                Work::All => self.look().await,
                Work::Gone(address, owner) => self.keep(address, owner).await,
            };
            done.unwrap_or_else(|status| Outcome::Again(status.to_string()))
        }
        .boxed_local()
    }
}
