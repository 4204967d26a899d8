//! Probes extension API servers and writes the Available condition of every APIService. Runs in every server, whichever loops are
//! enabled.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use pilothouse_api::aggregation::availability::{AvailableCondition, check_endpoints, port_name, tell};
use pilothouse_api::aggregation::{ApiService, STORE, Service, asker};
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result};
use pilothouse_apimachinery::value::Value;

use crate::backend::aggregation::{ExtensionRequest, Extensions};
use crate::limits::{EXTENSION_DISCOVERY_TIMEOUT, EXTENSION_PROBED_EVERY, EXTENSION_PROBES};
use crate::metrics::Metrics;

use super::client::{At, Client};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, Follows, ObjectChange};

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

    fn follows(&self) -> Follows {
        Follows::These(&[STORE, "services", "endpoints"])
    }

    /// The reference's value. A network that recovers sends no event, so the pause must not grow further.
    fn longest_retry(&self) -> Duration {
        EXTENSION_PROBED_EVERY
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<String>) {
        let key = &change.object.key;
        match change.of.as_str() {
            STORE => queue.add(key.name().to_owned()),
            _ => {
                let names = self.extensions.behind(key.namespace(), key.name());
                names.into_iter().for_each(|name| queue.add(name));
            }
        }
    }

    fn work(self: Rc<Self>, name: String) -> LocalBoxFuture<'static, Outcome> {
        async move { self.look(&name).await.unwrap_or_else(|status| Outcome::Again(status.to_string())) }
            .boxed_local()
    }
}

impl Availability {
    async fn look(&self, name: &str) -> Result<Outcome> {
        let resource = self.client.resource(STORE)?;
        let at = At { resource: &resource, namespace: "", name };
        let Some(object) = self.client.read_cached(at).await? else {
            self.metrics.aggregation.forget(name);
            return Ok(Outcome::Done);
        };
        let registration = ApiService::read(&object);
        let verdict = match &registration.service {
            None => AvailableCondition::local(),
            Some(service) => self.check(&registration, service).await,
        };
        let available = verdict.status == "True";
        self.metrics.aggregation.is(name, available);
        self.write(at, &object, &verdict).await?;
        if registration.is_available && !available {
            self.metrics.aggregation.became_unavailable(name, verdict.reason);
        }
        Ok(match (&registration.service, verdict.reason) {
            (None, _) => Outcome::Done,
            // Probed again soon, with growing pauses.
            (_, "FailedDiscoveryCheck") => Outcome::Again(verdict.message),
            _ => Outcome::After(EXTENSION_PROBED_EVERY),
        })
    }

    /// Writes the condition unless it is there already. If the APIService has changed meanwhile, it is probed again.
    async fn write(&self, at: At<'_>, seen: &Value, verdict: &AvailableCondition) -> Result<()> {
        if !tell(&mut seen.clone(), verdict, "") {
            return Ok(());
        }
        let now = self.client.now();
        let written = self.client.edit(at, "status", |object| {
            if object.get("spec") != seen.get("spec") {
                return Ok(false);
            }
            Ok(tell(object, verdict, &now))
        });
        written.await.ignore_not_found()?;
        tracing::debug!(name = at.name, status = verdict.status, reason = verdict.reason, "an APIService");
        Ok(())
    }

    async fn check(&self, registration: &ApiService, service: &Service) -> AvailableCondition {
        match self.stands(service).await {
            Err(verdict) => verdict,
            Ok(()) => match self.probe(registration, service).await {
                Ok(()) => AvailableCondition::passed(),
                Err(why) => AvailableCondition::failed(why),
            },
        }
    }

    /// Checks that the service has the port and at least one endpoint.
    async fn stands(&self, service: &Service) -> std::result::Result<(), AvailableCondition> {
        let read = |store: &'static str| async move {
            let resource = self.client.resource(store)?;
            let at = At { resource: &resource, namespace: &service.namespace, name: &service.name };
            self.client.read_cached(at).await
        };
        let found = read("services").await;
        let found = found
            .map_err(|status| AvailableCondition::unknown(service, "ServiceAccessError", &status.message))?;
        let Some(found) = found else { return Err(AvailableCondition::no_service(service)) };
        let Some(port) = port_name(service, &found)? else { return Ok(()) };
        let endpoints = read("endpoints").await;
        let endpoints = endpoints.map_err(|status| {
            AvailableCondition::unknown(service, "EndpointsAccessError", &status.message)
        })?;
        check_endpoints(service, &port, endpoints.as_ref())
    }

    /// Probes the server. One successful answer is enough: of several endpoints one may be down.
    async fn probe(&self, registration: &ApiService, service: &Service) -> std::result::Result<(), String> {
        let path = registration.path();
        let user = asker();
        let question = ExtensionRequest {
            verifies: false,
            ..ExtensionRequest::get(&path, &user, EXTENSION_DISCOVERY_TIMEOUT)
        };
        let mut asked: FuturesUnordered<_> = (0..EXTENSION_PROBES)
            .map(|_| self.extensions.ask(self.client.backend(), service, &question))
            .collect();
        let mut last = String::new();
        while let Some(reply) = asked.next().await {
            match reply {
                Ok(reply) if (200..300).contains(&reply.status) => return Ok(()),
                Ok(reply) => {
                    let (url, code) = (reply.url, reply.status);
                    last = format!("failing or missing response from {url}: bad status from {url}: {code}");
                }
                Err(why) => last = why,
            }
        }
        Err(last)
    }
}
