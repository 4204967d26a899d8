//! Looks every few minutes whether services and the addresses and ports that are taken for them agree. What is wrong twice in a
//! row is put right; what is wrong once may be a write under way. The server does this itself, whichever loops run.

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

/// The name of the loop.
pub const NAME: &str = "service-repair";

/// The loop.
pub struct ServiceRepair {
    client: Client,
    /// How often it looks.
    every: Duration,
    /// What was wrong at the last look.
    doubted: RefCell<BTreeSet<Finding>>,
}

impl ServiceRepair {
    /// The loop, which looks every so often.
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
