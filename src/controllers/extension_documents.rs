//! Fetches discovery documents of extension API servers, when an APIService changes and periodically, so that discovery requests
//! never wait for them. Runs in every server, whichever controllers are enabled.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_api::aggregation::discovered::{
    CURRENT, DiscoveredVersion, STALE, is_aggregated, read_all, read_one,
};
use pilothouse_api::aggregation::{ApiService, STORE, Service, discovery_identity};
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::well_known::JSON;
use pilothouse_types::identity::Identity;

use crate::aggregation::{Discovery, ExtensionRequest, ExtensionResponse, Extensions};
use crate::limits::{EXTENSION_DISCOVERY_INTERVAL, EXTENSION_DISCOVERY_TIMEOUT};

use super::client::Client;
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

/// The name in health checks and metrics.
pub const NAME: &str = "apiservice-documents";
/// The media types of aggregated discovery.
const AGGREGATED_DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                          application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// Fetches the documents of discovery.
pub struct ExtensionDocuments {
    /// Reads objects.
    pub client: Client,
    /// The registered APIServices, and where the documents are kept.
    pub extensions: Arc<Extensions>,
}

impl Controller for ExtensionDocuments {
    type Key = String;

    fn needs_leader_election(&self) -> bool {
        false
    }

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&[STORE])
    }

    fn max_retry_delay(&self) -> Duration {
        EXTENSION_DISCOVERY_INTERVAL
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<String>) {
        queue.add(change.object.key.name().to_owned());
    }

    fn reconcile(self: Rc<Self>, name: String) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move { Ok(self.read(&name).await) }.boxed_local()
    }
}

impl ExtensionDocuments {
    async fn read(&self, name: &str) -> Outcome {
        let registration = self.extensions.named(name).await.filter(|api_service| !api_service.is_unreadable);
        let Some((registration, service)) =
            registration.as_ref().and_then(|api_service| Some((api_service, api_service.service.as_ref()?)))
        else {
            self.extensions.unpublish(name);
            return Outcome::Done;
        };
        let previous = self.extensions.published(name).unwrap_or_default();
        let discovery = self.discover(registration, service, &previous.discovery).await;
        self.extensions.publish(name, |documents| documents.discovery = discovery);
        Outcome::RequeueAfter(EXTENSION_DISCOVERY_INTERVAL)
    }

    async fn request(&self, service: &Service, request: &ExtensionRequest<'_>) -> Option<ExtensionResponse> {
        let response = self.extensions.send(self.client.backend(), service, request).await;
        if let Err(error) = &response {
            tracing::debug!(path = request.path, error, "discovery of an aggregated API server failed");
        }
        response.ok()
    }

    async fn discover(
        &self,
        registration: &ApiService,
        service: &Service,
        previous: &Discovery,
    ) -> Discovery {
        let user = discovery_identity();
        let version = &*registration.gv.version;
        let documents = |version: DiscoveredVersion, etag: &str, bytes| Discovery {
            version: Some(Arc::new(version)),
            etag: etag.to_owned(),
            bytes,
        };
        let stale = || documents(DiscoveredVersion::bare(version, STALE), "", 0);
        let request = ExtensionRequest {
            accept: AGGREGATED_DISCOVERY,
            if_none_match: &previous.etag,
            ..ExtensionRequest::get("/apis", &user, EXTENSION_DISCOVERY_TIMEOUT)
        };
        match self.request(service, &request).await {
            None => return stale(),
            Some(response) if response.status == 503 => return stale(),
            Some(response) if response.status == 304 => return previous.clone(),
            Some(response) if response.status == 200 && is_aggregated(&response.content_type) => {
                let Some(mut all) = read_all(&response.body) else { return stale() };
                let bytes = response.body.len();
                // A server whose aggregated discovery lacks this version serves nothing in it.
                let discovered = all.remove(&registration.gv);
                return documents(
                    discovered.unwrap_or_else(|| DiscoveredVersion::bare(version, CURRENT)),
                    &response.etag,
                    bytes,
                );
            }
            Some(_) => {}
        }
        // Older servers have one document per version.
        let user = Identity { groups: Vec::new(), ..user };
        let path = registration.path();
        let request = ExtensionRequest {
            accept: JSON,
            ..ExtensionRequest::get(&path, &user, EXTENSION_DISCOVERY_TIMEOUT)
        };
        let response = self.request(service, &request).await.filter(|response| response.status == 200);
        let discovered =
            response.and_then(|response| Some((read_one(version, &response.body)?, response.body.len())));
        discovered.map_or_else(stale, |(discovered, bytes)| documents(discovered, "", bytes))
    }
}
