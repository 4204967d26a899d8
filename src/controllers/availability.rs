//! Probes extension API servers and writes the Available condition of every APIService. Runs in every server, whichever
//! controllers are enabled.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use pilothouse_api::aggregation::availability::{
    AvailableCondition, check_endpoints, port_name, set_condition,
};
use pilothouse_api::aggregation::{ApiService, STORE, Service, discovery_identity};
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::value::Value;

use crate::aggregation::{ExtensionRequest, Extensions};
use crate::limits::{EXTENSION_DISCOVERY_TIMEOUT, EXTENSION_PROBE_INTERVAL, EXTENSION_PROBES};
use crate::metrics::Metrics;

use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// The name in health checks and metrics.
pub const NAME: &str = "apiservice-availability";

/// Probes extension API servers.
pub struct Availability {
    /// Reads and writes objects.
    pub client: Client,
    /// The registered APIServices.
    pub extensions: Arc<Extensions>,
    /// Counts unavailable APIServices.
    pub metrics: Arc<Metrics>,
}

impl Controller for Availability {
    type Key = String;

    fn needs_leader_election(&self) -> bool {
        false
    }

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[STORE, "services", "endpoints"])
    }

    /// The reference's value. A network that recovers sends no event, so the pause must not grow further.
    fn max_retry_delay(&self) -> Duration {
        EXTENSION_PROBE_INTERVAL
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<String>) {
        let key = &change.object.key;
        match change.type_name.as_str() {
            STORE => queue.add(key.name().to_owned()),
            _ => {
                let names = self.extensions.backed_by(key.namespace(), key.name());
                names.into_iter().for_each(|name| queue.add(name));
            }
        }
    }

    fn reconcile(self: Rc<Self>, name: String) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { self.sync(&name).await }.boxed_local()
    }
}

impl Availability {
    async fn sync(&self, name: &str) -> Result<Outcome> {
        let resource = self.client.resource(STORE)?;
        let target = ObjectRef { resource: &resource, namespace: "", name };
        let Some(object) = self.client.read_cached(target).await? else {
            self.metrics.aggregation.forget(name);
            return Ok(Outcome::Done);
        };
        let registration = ApiService::read(&object);
        let condition = match &registration.service {
            None => AvailableCondition::local(),
            Some(service) => self.check(&registration, service).await,
        };
        let is_available = condition.status == "True";
        self.metrics.aggregation.set_available(name, is_available);
        self.write(target, &object, &condition).await?;
        if registration.is_available && !is_available {
            self.metrics.aggregation.count_unavailable(name, condition.reason);
        }
        Ok(match (&registration.service, condition.reason) {
            (None, _) => Outcome::Done,
            // Probed again soon, with growing pauses.
            (_, "FailedDiscoveryCheck") => Outcome::Retry(condition.message),
            _ => Outcome::RequeueAfter(EXTENSION_PROBE_INTERVAL),
        })
    }

    /// Writes the condition unless it is there already. If the APIService has changed meanwhile, it is probed again.
    async fn write(
        &self,
        target: ObjectRef<'_>,
        observed: &Value,
        condition: &AvailableCondition,
    ) -> Result<()> {
        if !set_condition(&mut observed.clone(), condition, "") {
            return Ok(());
        }
        let now = self.client.now();
        let update = self.client.edit(target, "status", |object| {
            if object.get("spec") != observed.get("spec") {
                return Ok(false);
            }
            Ok(set_condition(object, condition, &now))
        });
        update.await.ignore_not_found()?;
        tracing::debug!(
            name = target.name,
            status = condition.status,
            reason = condition.reason,
            "the Available condition of an APIService was updated"
        );
        Ok(())
    }

    async fn check(&self, registration: &ApiService, service: &Service) -> AvailableCondition {
        match self.check_service(service).await {
            Err(condition) => condition,
            Ok(()) => match self.probe(registration, service).await {
                Ok(()) => AvailableCondition::passed(),
                Err(error) => AvailableCondition::failed(error),
            },
        }
    }

    /// Checks that the service has the port and at least one endpoint.
    async fn check_service(&self, service: &Service) -> std::result::Result<(), AvailableCondition> {
        let read = |store: &'static str| async move {
            let resource = self.client.resource(store)?;
            let target =
                ObjectRef { resource: &resource, namespace: &service.namespace, name: &service.name };
            self.client.read_cached(target).await
        };
        let current = read("services").await;
        let current = current
            .map_err(|status| AvailableCondition::unknown(service, "ServiceAccessError", &status.message))?;
        let Some(current) = current else { return Err(AvailableCondition::no_service(service)) };
        let Some(port) = port_name(service, &current)? else { return Ok(()) };
        let endpoints = read("endpoints").await;
        let endpoints = endpoints.map_err(|status| {
            AvailableCondition::unknown(service, "EndpointsAccessError", &status.message)
        })?;
        check_endpoints(service, &port, endpoints.as_ref())
    }

    /// Probes the server. One successful answer is enough: of several endpoints one may be down.
    async fn probe(&self, registration: &ApiService, service: &Service) -> std::result::Result<(), String> {
        let path = registration.path();
        let user = discovery_identity();
        let request = ExtensionRequest {
            verifies: false,
            ..ExtensionRequest::get(&path, &user, EXTENSION_DISCOVERY_TIMEOUT)
        };
        let mut responses: FuturesUnordered<_> = (0..EXTENSION_PROBES)
            .map(|_| self.extensions.send(self.client.backend(), service, &request))
            .collect();
        let mut last_error = String::new();
        while let Some(response) = responses.next().await {
            match response {
                Ok(response) if (200..300).contains(&response.status) => return Ok(()),
                Ok(response) => {
                    let (url, code) = (response.url, response.status);
                    last_error =
                        format!("failing or missing response from {url}: bad status from {url}: {code}");
                }
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }
}
