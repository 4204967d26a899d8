//! Assembles the controllers: which of them run, and with which parts.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Actor as _;
use futures::FutureExt as _;
use pilothouse_actors::authorizer::Authorizer;
use pilothouse_api::admission_plugins::PluginName;
use pilothouse_api::gates::{
    API_SERVER_IDENTITY, COORDINATED_LEADER_ELECTION, ORDERED_NAMESPACE_DELETION, STORAGE_VERSION_API,
    STORAGE_VERSION_MIGRATOR,
};
use pilothouse_apimachinery::status::Status;
use pilothouse_apimachinery::well_known::stores::LEASE_CANDIDATES;
use pilothouse_types::lock::Lock;
use tokio::sync::watch;

use super::admission_settings::quota_features;
use super::authentication::extension_authentication;
use super::storage::services;
use super::{ServerParts, backend, peers};
use crate::auth::service_account::legacy_use::{self, LegacyUseReceiver, LegacyUseSender};
use crate::bootstrap;
use crate::config::{Config, SigningKeyPart};
use crate::controllers;
use crate::controllers::bootstrap_tokens::KeyPart;
use crate::controllers::coordinated_election;
use crate::controllers::lease::LeaseSettings;
use crate::controllers::resource_index::{Published, ResourceIndexes};
use crate::controllers::server_identity::ServerIdentity;
use crate::controllers::start::{
    Authorities, ControllerDeps, Down, ExtraController, PeerDeps, Running, Settings, SharedDeps,
    StorageVersionFeatures,
};
use crate::flowcontrol::RequestLimiter;
use crate::pki::signers::Signers;
use crate::pki::{Pki, PkiError};
use crate::registry::Backend;
use crate::registry::stores::Stores;
use crate::server::application::{StartContext, StartError};

/// Restores the system namespaces, the `kubernetes` service and the extension-apiserver-authentication ConfigMap.
async fn restore_own_objects(
    parts: Arc<ServerParts>,
    backend: Rc<Backend>,
) -> pilothouse_apimachinery::status::Result<()> {
    let served = parts.shared.served.load_full();
    // Each step runs even if another fails: a taken service address must not keep extension servers from learning the CAs.
    let namespaces = bootstrap::namespaces(&backend, &served.catalog).await;
    let service = bootstrap::kubernetes_service::kubernetes(
        &backend,
        &served.catalog,
        &parts.addresses.kubernetes_service,
    )
    .await;
    let authentication = bootstrap::system_config_maps::authentication(
        &backend,
        &served.catalog,
        extension_authentication(&parts),
    )
    .await;
    namespaces.and(service).and(authentication)
}

/// Restores the built-in flow schemas and priority levels.
async fn restore_flow_control(
    parts: Arc<ServerParts>,
    backend: Rc<Backend>,
) -> pilothouse_apimachinery::status::Result<()> {
    let served = parts.shared.served.load_full();
    bootstrap::flow_control(&backend, &served.catalog).await?;
    apply_flow_control(parts).await
}

/// Applies the current flow schemas and priority levels to requests that wait.
async fn apply_flow_control(parts: Arc<ServerParts>) -> pilothouse_apimachinery::status::Result<()> {
    let RequestLimiter::Fair(flow_controller) = &parts.shared.limits.limiter else { return Ok(()) };
    flow_controller.settle().await.map_err(|error| Status::unavailable(error.to_string()))
}

/// The controllers of a server.
pub(super) struct ControllerSetup {
    /// The CA and the signers that the controllers publish and sign with.
    authorities: Arc<watch::Sender<Arc<Authorities>>>,
    /// The inputs of the controllers, until they are started.
    start_inputs: Lock<Option<(Settings, LegacyUseReceiver, Vec<ExtraController>)>>,
    uses: LegacyUseSender,
    /// The identity of this server, if it keeps a lease.
    identity: Option<ServerIdentity>,
    is_enabled: bool,
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

fn storage_version_features(config: &Config) -> StorageVersionFeatures {
    let gates = config.gates();
    StorageVersionFeatures {
        are_published: gates.enabled(STORAGE_VERSION_API) && gates.enabled(API_SERVER_IDENTITY),
        migrates: gates.enabled(STORAGE_VERSION_MIGRATOR),
    }
}

/// The lease by which servers agree which of them elects the leaders of other components; `None` if none does. A server alone with its
/// file has nobody to agree with, and renews it less often.
fn election_lease(config: &Config) -> Option<LeaseSettings> {
    let (flags, has_rivals) = (&config.coordinated_leadership, config.etcd().is_some());
    let (deadline, period) =
        (flags.coordinated_leadership_renew_deadline, flags.coordinated_leadership_retry_period);
    config.gates().enabled(COORDINATED_LEADER_ELECTION).then_some(LeaseSettings {
        name: coordinated_election::LEASE,
        has_rivals,
        duration: flags.coordinated_leadership_lease_duration,
        renew_interval: if has_rivals { period } else { deadline },
        work_duration: deadline,
        retry_interval: period,
    })
}

/// Whether this server keeps a lease under its identity: only if somebody asks which servers are alive.
pub(super) fn keeps_identity(config: &Config) -> bool {
    config.gates().enabled(API_SERVER_IDENTITY)
        && (config.etcd().is_some() || storage_version_features(config).are_published)
}

/// Whether there can be candidates.
fn serves_candidates(parts: &ServerParts) -> bool {
    let served = parts.shared.served.load();
    served
        .catalog
        .resources()
        .any(|resource| resource.stored().is_some_and(|stored| stored.store.as_str() == LEASE_CANDIDATES))
}

impl ControllerSetup {
    pub(super) fn new(
        context: &StartContext,
        extra_controllers: Vec<ExtraController>,
    ) -> Result<ControllerSetup, StartError> {
        let config = &context.config;
        let (mut enabled, unknown) = controllers::select(&config.controllers.controllers);
        // It signs with a key of this server, and only the keys of an external signer verify.
        if config.service_accounts.signing_endpoint().is_some() {
            enabled.retain(|controller| controller.name != controllers::descriptors::LEGACY_TOKENS);
        }
        if !unknown.is_empty() {
            tracing::warn!(?unknown, "--controllers names unknown controllers");
        }
        let is_enabled = !enabled.is_empty() || !extra_controllers.is_empty();
        let identity = || ServerIdentity::for_this_host().reached_at(peers::own_address(context));
        let identity = keeps_identity(config).then(identity);
        let settings = Settings {
            enabled,
            pods_first: config.gates().enabled(ORDERED_NAMESPACE_DELETION),
            // In etcd, leases remove them.
            event_ttl: if config.etcd().is_some() { Duration::ZERO } else { config.storage.event_ttl },
            max_certificate_lifetime: config.signing.cluster_signing_duration,
            require_namespaces: config
                .admission_plugins()
                .iter()
                .any(|plugin| matches!(plugin, PluginName::NamespaceLifecycle | PluginName::NamespaceExists)),
            quota_features: quota_features(config),
            quota_sync_period: config.controllers.resource_quota_sync_period,
            tokens_unused_for: config.controllers.legacy_service_account_token_clean_up_period,
            signing_key_part: match config.controllers.cluster_info_signing_key {
                SigningKeyPart::Token => KeyPart::Token,
                SigningKeyPart::Secret => KeyPart::Secret,
            },
            max_finished_pods: config.controllers.terminated_pod_gc_threshold,
            flow_control_enabled: config.limits.enable_priority_and_fairness,
            shares_store: config.etcd().is_some(),
            identity: identity.clone(),
            storage_versions: storage_version_features(config),
            coordinated_election: election_lease(config),
        };
        let (uses, use_receiver) = legacy_use::channel();
        Ok(ControllerSetup {
            authorities: Arc::new(watch::channel(authorities(config, &context.pki)?).0),
            start_inputs: Lock::new(Some((settings, use_receiver, extra_controllers))),
            uses,
            identity,
            is_enabled,
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

    /// The identity of this server, if it keeps a lease.
    pub(super) fn identity(&self) -> Option<&ServerIdentity> {
        self.identity.as_ref()
    }

    /// Whether any controller is enabled.
    pub(super) fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// The controllers that are down, with the reasons.
    pub(super) fn down(&self) -> watch::Receiver<Down> {
        self.down.subscribe()
    }

    /// Starts the controllers; later calls do nothing.
    pub(super) fn start(&self, parts: &Arc<ServerParts>) -> Result<(), StartError> {
        let start_inputs = self.start_inputs.lock().take();
        let Some((settings, uses, extra_controllers)) = start_inputs else { return Ok(()) };
        if settings.coordinated_election.is_some() && !serves_candidates(parts) {
            tracing::warn!(
                "{COORDINATED_LEADER_ELECTION} elects nobody: LeaseCandidates are not served. Serve them with \
                 --runtime-config=coordination.k8s.io/v1beta1=true"
            );
        }
        let storage = parts.storage.clone();
        let shared_deps = SharedDeps {
            notifiers: parts.storage.notifiers.clone(),
            stores: Arc::new(move || Stores::new(&storage)),
            clock: parts.context.clock.clone(),
            metrics: parts.shared.metrics.clone(),
            activity: parts.shared.debug.activity.clone(),
            steps: parts.shared.health.steps.clone(),
            down: self.down.clone(),
            uses,
            authorities: self.authorities.subscribe(),
            extra_controllers,
        };
        let parts = parts.clone();
        let running = controllers::start::start(settings, shared_deps, move || {
            let backend =
                Rc::new(backend(&parts, Authorizer::with_source(parts.auth.authorizers.source()).start()));
            let (shared, tokens) = (parts.shared.clone(), parts.auth.tokens.clone());
            let own_backend = backend.clone();
            let own_parts = parts.clone();
            let (flow_parts, flow_backend, apply_parts) = (parts.clone(), own_backend.clone(), parts.clone());
            ControllerDeps {
                backend,
                catalogs: ResourceIndexes::new(move || shared.served.load_full() as Published),
                sign_token: Rc::new(move |claims| tokens.sign(claims)),
                restore_own_objects: Rc::new(move || {
                    restore_own_objects(own_parts.clone(), own_backend.clone()).boxed_local()
                }),
                restore_flow_control: Rc::new(move || {
                    restore_flow_control(flow_parts.clone(), flow_backend.clone()).boxed_local()
                }),
                apply_flow_control: Rc::new(move || apply_flow_control(apply_parts.clone()).boxed_local()),
                extensions: parts.shared.aggregation.extensions.clone(),
                services: Rc::new(services(&parts)),
                peers: PeerDeps { own_record: parts.own_record.clone(), others: parts.shared.peers.clone() },
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
