//! Assembles the control loops: which of them run, and with which parts.

use std::rc::Rc;
use std::sync::Arc;

use actix::Actor as _;
use futures::FutureExt as _;
use pilothouse_actors::authorizer::Authorizer;
use pilothouse_api::admission_plugins::PluginName;
use pilothouse_api::gates::ORDERED_NAMESPACE_DELETION;
use pilothouse_apimachinery::status::Status;
use pilothouse_types::lock::Lock;
use tokio::sync::watch;

use super::admission_settings::quota_features;
use super::authentication::extension_authentication;
use super::{ServerParts, backend};
use crate::application::StartError;
use crate::auth::service_account::legacy_use::{self, LegacyUseReceiver, LegacyUseSender};
use crate::backend::Backend;
use crate::backend::stores::Stores;
use crate::bootstrap;
use crate::config::Config;
use crate::controllers;
use crate::controllers::resource_index::{Published, ResourceIndexes};
use crate::controllers::start::{
    Authorities, ControllerDeps, Down, ExtraController, Running, Settings, SharedDeps,
};
use crate::flowcontrol::RequestLimiter;
use crate::pki::signers::Signers;
use crate::pki::{Pki, PkiError};

/// Restores the system namespaces, the `kubernetes` service and the extension-apiserver-authentication ConfigMap.
async fn settle(
    parts: Arc<ServerParts>,
    backend: Rc<Backend>,
) -> pilothouse_apimachinery::status::Result<()> {
    let served = parts.shared.served.load_full();
    // Each step runs even if another fails: a taken service address must not keep extension servers from learning the CAs.
    let namespaces = bootstrap::namespaces(&backend, &served.catalog).await;
    let home =
        bootstrap::kubernetes_service::kubernetes(&backend, &served.catalog, &parts.addresses.home).await;
    let trust = bootstrap::system_config_maps::authentication(
        &backend,
        &served.catalog,
        extension_authentication(&parts),
    )
    .await;
    namespaces.and(home).and(trust)
}

/// Restores the built-in flow schemas and priority levels.
async fn settle_flows(
    parts: Arc<ServerParts>,
    backend: Rc<Backend>,
) -> pilothouse_apimachinery::status::Result<()> {
    let served = parts.shared.served.load_full();
    bootstrap::flow_control(&backend, &served.catalog).await?;
    count_flows(parts).await
}

/// Applies the current flow schemas and priority levels to requests that wait.
async fn count_flows(parts: Arc<ServerParts>) -> pilothouse_apimachinery::status::Result<()> {
    let RequestLimiter::Fair(gate) = &parts.shared.room else { return Ok(()) };
    gate.settle().await.map_err(|error| Status::unavailable(error.to_string()))
}

/// The control loops of a server.
pub(super) struct ControllerSetup {
    /// The CA and the signers that the loops publish and sign with.
    authorities: Arc<watch::Sender<Arc<Authorities>>>,
    /// The settings of the loops, until they have started.
    begin: Lock<Option<(Settings, LegacyUseReceiver, Vec<ExtraController>)>>,
    uses: LegacyUseSender,
    is_on: bool,
    down: watch::Sender<Down>,
    running: Lock<Option<Running>>,
}

/// The CA and the signers that follow from these settings and certificates.
pub(super) fn authorities(config: &Config, pki: &Pki) -> Result<Arc<Authorities>, PkiError> {
    Ok(Arc::new(Authorities {
        root_pem: String::from_utf8_lossy(&pki.serving_ca_pem).into_owned(),
        signers: Signers::open(config, pki)?,
    }))
}

impl ControllerSetup {
    pub(super) fn new(
        config: &Config,
        pki: &Pki,
        extra_controllers: Vec<ExtraController>,
    ) -> Result<ControllerSetup, StartError> {
        let (enabled, unknown) = controllers::choose(&config.api.controllers);
        if !unknown.is_empty() {
            tracing::warn!(?unknown, "--controllers names unknown controllers");
        }
        let is_on = !enabled.is_empty() || !extra_controllers.is_empty();
        let settings = Settings {
            enabled,
            pods_first: config.gates().enabled(ORDERED_NAMESPACE_DELETION),
            event_ttl: config.storage.event_ttl,
            longest_certificate: config.signing.cluster_signing_duration,
            namespaces_needed: config
                .admission_plugins()
                .iter()
                .any(|plugin| matches!(plugin, PluginName::NamespaceLifecycle | PluginName::NamespaceExists)),
            quota_features: quota_features(config),
            quotas_counted_every: config.loops.resource_quota_sync_period,
            tokens_unused_for: config.loops.legacy_service_account_token_clean_up_period,
            pods_that_are_over: config.loops.terminated_pod_gc_threshold,
            has_flows: config.limits.enable_priority_and_fairness,
        };
        let (uses, heard) = legacy_use::channel();
        Ok(ControllerSetup {
            authorities: Arc::new(watch::channel(authorities(config, pki)?).0),
            begin: Lock::new(Some((settings, heard, extra_controllers))),
            uses,
            is_on,
            down: watch::channel(Down::new()).0,
            running: Lock::default(),
        })
    }

    /// Where authentication reports the use of token Secrets.
    pub(super) fn uses(&self) -> LegacyUseSender {
        self.uses.clone()
    }

    /// Where a reload sends new CAs and signers.
    pub(super) fn authorities(&self) -> Arc<watch::Sender<Arc<Authorities>>> {
        self.authorities.clone()
    }

    /// Whether any control loop is enabled.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// The loops that are down, and why.
    pub(super) fn down(&self) -> watch::Receiver<Down> {
        self.down.subscribe()
    }

    /// Starts the loops; later calls do nothing.
    pub(super) fn start(&self, parts: &Arc<ServerParts>) -> Result<(), StartError> {
        let begin = self.begin.lock().take();
        let Some((settings, uses, extra_controllers)) = begin else { return Ok(()) };
        let directory = parts.storage.directory.clone();
        let outside = SharedDeps {
            notifiers: parts.storage.notifiers.clone(),
            stores: Arc::new(move || Stores::new(directory.clone())),
            clock: parts.context.clock.clone(),
            metrics: parts.shared.metrics.clone(),
            down: self.down.clone(),
            uses,
            authorities: self.authorities.subscribe(),
            extra_controllers,
        };
        let parts = parts.clone();
        let running = controllers::start::start(settings, outside, move || {
            let backend = Rc::new(backend(&parts, Authorizer::asking(parts.auth.deciding.panel()).start()));
            let (shared, tokens) = (parts.shared.clone(), parts.auth.tokens.clone());
            let own = backend.clone();
            let of_own = parts.clone();
            let (of_flows, own_flows, counted) = (parts.clone(), own.clone(), parts.clone());
            ControllerDeps {
                backend,
                catalogs: ResourceIndexes::new(move || shared.served.load_full() as Published),
                sign_token: Rc::new(move |claims| tokens.sign(claims)),
                settle: Rc::new(move || settle(of_own.clone(), own.clone()).boxed_local()),
                settle_flows: Rc::new(move || {
                    settle_flows(of_flows.clone(), own_flows.clone()).boxed_local()
                }),
                count_flows: Rc::new(move || count_flows(counted.clone()).boxed_local()),
                extensions: parts.shared.extensions.clone(),
            }
        })?;
        *self.running.lock() = Some(running);
        Ok(())
    }

    pub(super) fn stop(&self) {
        if let Some(running) = self.running.lock().take() {
            running.stop();
        }
    }
}
