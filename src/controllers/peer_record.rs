//! Renews the record by which the other API servers on the same etcd reach this one. Runs in every server with the gate
//! UnknownVersionInteroperabilityProxy, whichever controllers are enabled.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_apimachinery::status::Result;

use crate::peers::OwnRecord;

use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// The name in health checks and metrics.
pub const NAME: &str = "peer-endpoint-record";
/// How often the record is renewed; the reference's value.
const RENEW_INTERVAL: Duration = Duration::from_secs(10);
/// The longest pause after a renewal that has failed: the record lasts 15 seconds.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

/// Renews the record.
pub struct PeerRecord {
    /// The record.
    pub record: Arc<OwnRecord>,
}

impl Controller for PeerRecord {
    type Key = ();

    fn needs_leader_election(&self) -> bool {
        false
    }

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[])
    }

    fn max_retry_delay(&self) -> Duration {
        MAX_RETRY_DELAY
    }

    fn initial_keys(&self) -> Vec<()> {
        vec![()]
    }

    fn on_change(&self, _: &ObjectChange<'_>, _: &mut Queue<()>) {}

    fn reconcile(self: Rc<Self>, (): ()) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move {
            Ok(match self.record.renew().await {
                Ok(()) => Outcome::RequeueAfter(RENEW_INTERVAL),
                Err(error) => Outcome::Retry(error.to_string()),
            })
        }
        .boxed_local()
    }
}
