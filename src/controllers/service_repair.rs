//! Compares Services with the allocated cluster IPs and node ports every few minutes. A disagreement that is found twice in a row
//! is repaired; one that is found once may be a write in progress. Runs in every server, whichever loops are enabled.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use crate::api::status::{GroupResource, Result, Status};
use crate::verbs::services::repair::Finding;

use super::client::Client;
use super::each;
use super::queue::{Outcome, Queue};
use super::runner::{Follows, Loop, News};

/// The name in health checks and metrics.
pub const NAME: &str = "service-repair";

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

    async fn look(&self) -> Result<Outcome> {
        let of = GroupResource { group: "", resource: "services" };
        let services = self.client.services();
        let found = services.findings().await.map_err(|error| Status::from_store(&error, of, ""))?;
        let wrong: Vec<Finding> = found.intersection(&self.doubted.borrow()).cloned().collect();
        let mended = each::all(wrong.iter().map(|finding| services.mend(finding)), 1).await;
        *self.doubted.borrow_mut() = found;
        mended?;
        Ok(Outcome::After(self.every))
    }
}

impl Loop for ServiceRepair {
    type Key = ();

    fn follows(&self) -> Follows {
        Follows::These(&[])
    }

    fn begins_with(&self) -> Vec<()> {
        vec![()]
    }

    fn hear(&self, _: &News<'_>, _: &mut Queue<()>) {}

    fn work(self: Rc<Self>, (): ()) -> LocalBoxFuture<'static, Outcome> {
        async move { self.look().await.unwrap_or_else(|status| Outcome::Again(status.to_string())) }
            .boxed_local()
    }
}
