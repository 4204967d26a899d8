//! Compares Services with the allocated cluster IPs and node ports every few minutes. A disagreement that is found twice in a row
//! is repaired; one that is found once may be a write in progress. A deleted IPAddress of an existing Service is recreated at
//! once, before another Service gets the address. Runs in every server, whichever controllers are enabled.
//!
//! The records that servers share on etcd are repaired as by the reference, with its events.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_types::object::{Key, TypeName};

use crate::limits::PORT_REPAIR_EVENTS;
use crate::registry::services::record_repair::{PortFault, PortFaultKind, RecordLeaks};
use crate::registry::services::repair::Finding;
use crate::registry::services::{ADDRESSES, SERVICES, Services};

use super::attempts;
use super::client::Client;
use super::events::Recorder;
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// The name in health checks and metrics.
pub const NAME: &str = "service-repair";
/// The source of its events, as in the reference.
const EVENT_SOURCE: &str = "portallocator-repair-controller";

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
    /// What seems to be leaked in the records that servers share.
    leaks: RefCell<RecordLeaks>,
    /// What is wrong with node ports, and was reported.
    last_faults: RefCell<BTreeSet<PortFault>>,
    client: Client,
    recorder: Recorder,
}

impl ServiceRepair {
    /// A controller with this interval.
    pub fn new(services: Rc<Services>, client: Client, interval: Duration) -> ServiceRepair {
        ServiceRepair {
            services,
            interval,
            last_findings: RefCell::default(),
            leaks: RefCell::default(),
            last_faults: RefCell::default(),
            recorder: Recorder::new(client.clone(), EVENT_SOURCE),
            client,
        }
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
        confirmed.iter().for_each(|finding| self.services.count_finding(finding));
        let result =
            attempts::all(confirmed.iter().map(|finding| self.services.repair_finding(finding)), 1).await;
        *self.last_findings.borrow_mut() = findings;
        let repaired = self.check_records().await;
        result?;
        repaired?;
        Ok(Outcome::RequeueAfter(self.interval))
    }

    async fn check_records(&self) -> Result<()> {
        let mut leaks = self.leaks.take();
        let faults = self.services.repair_records(&mut leaks).await;
        *self.leaks.borrow_mut() = leaks;
        let faults: BTreeSet<PortFault> = faults?.into_iter().collect();
        let last_faults = self.last_faults.replace(faults.clone());
        let new_faults: Vec<&PortFault> = faults.difference(&last_faults).collect();
        if new_faults.is_empty() {
            return Ok(());
        }
        let resource = self.client.resource(SERVICES)?;
        for (number, fault) in new_faults.into_iter().enumerate() {
            self.services.count_port_fault(fault.kind);
            let message = fault_message(fault, self.services.port_range());
            tracing::warn!(service = fault.owner.as_str(), message, "a node port is not as it should be");
            if number < PORT_REPAIR_EVENTS {
                self.report(&resource, fault, &message).await;
            }
        }
        Ok(())
    }

    async fn report(&self, resource: &Resource, fault: &PortFault, message: &str) {
        let uid = self.services.uid(&fault.owner).await.unwrap_or_default();
        self.recorder.warn(resource, &fault.owner, &uid, fault.kind.reason(), message).await;
    }
}

/// The message of the event, in the reference's words.
fn fault_message(fault: &PortFault, range: &str) -> String {
    let port = fault.port;
    match fault.kind {
        PortFaultKind::NotAllocated => format!("Port {port} is not allocated; repairing"),
        PortFaultKind::AlreadyAllocated => {
            format!("Port {port} was assigned to multiple services; please recreate service")
        }
        PortFaultKind::OutOfRange => {
            format!("Port {port} is not within the port range {range}; please recreate service")
        }
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
                Work::All => self.check_all().await.inspect_err(|_| self.services.count_failed_repair()),
                Work::AddressRemoved(address, owner) => self.recreate_address(address, owner).await,
            }
        }
        .boxed_local()
    }
}
