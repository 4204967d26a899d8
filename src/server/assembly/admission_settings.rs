//! Assembles the admission plug-ins.

use std::sync::Arc;

use actix::Actor as _;
use pilothouse_actors::batcher::Batcher;
use pilothouse_actors::directory::Stores as Storage;
use pilothouse_actors::rates::Rates;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::gates::MUTATING_ADMISSION_POLICY;
use pilothouse_api::quota::{Features, Limited};
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::schema::Registry;

use super::enabled_features;
use crate::admission::policies::table::{self, Policies, PolicyKind};
use crate::admission::{self, lookup, quota, webhooks};
use crate::bootstrap::make_namespaces;
use crate::config::{Config, ConfigError};
use crate::http::handler::worker::Shared;
use crate::live_index::LiveIndexes;
use crate::registry::loopback::Loopback;
use crate::registry::stores::Stores;
use crate::server::application::StartContext;
use crate::server::application::StartError;

/// Reads the operator's configuration and starts the actors that the plug-ins of all workers share.
pub async fn settings(
    context: &StartContext,
    storage: &Storage,
    indexes: &LiveIndexes,
    registry: &Arc<Registry>,
    shared: Arc<Shared>,
    loopback: &Arc<Loopback>,
) -> Result<admission::Settings, StartError> {
    let config = &context.config;
    let configured = configured(context)?;
    Ok(admission::Settings {
        enabled: config.admission_plugins(),
        not_ready_seconds: config.api.default_not_ready_toleration_seconds,
        unreachable_seconds: config.api.default_unreachable_toleration_seconds,
        quota: quotas(config, configured.limited(), storage, registry, loopback),
        rates: Rates::new(configured.event_limits(), context.clock.clone()).start(),
        configured,
        webhooks: webhooks(context, indexes, &shared).await?,
        metrics: shared.metrics.clone(),
        equivalents: equivalents(shared.clone()),
        make_namespace: |backend, catalog, name| {
            Box::pin(async move { make_namespaces(backend, catalog, &[name]).await })
        },
        kinds: kinds(shared),
        policies: policies(indexes, PolicyKind::Validating).await?,
        mutating_policies: match config.gates().enabled(MUTATING_ADMISSION_POLICY) {
            true => Some(policies(indexes, PolicyKind::Mutating).await?),
            false => None,
        },
        _lookup_guards: lookup::open(indexes).await.map_err(|error| StartError::store(&error))?,
    })
}

/// The policies of the cluster. Read before anybody is served, as webhooks are.
async fn policies(indexes: &LiveIndexes, kind: PolicyKind) -> Result<Arc<Policies>, StartError> {
    table::open(indexes, kind).await.map_err(|error| StartError::store(&error))
}

/// The admission webhooks. Read before anybody is served, so that they are called from the first write on.
async fn webhooks(
    context: &StartContext,
    indexes: &LiveIndexes,
    shared: &Arc<Shared>,
) -> Result<webhooks::Settings, StartError> {
    let hooks = webhooks::open(indexes, context.pool.clone()).await;
    Ok(webhooks::Settings {
        hooks: hooks.map_err(|error| StartError::store(&error))?,
        equivalents: equivalents(shared.clone()),
        to_endpoints: context.config.aggregation.enable_aggregator_routing,
        metrics: shared.metrics.clone(),
        clock: context.clock.clone(),
        pool: context.pool.clone(),
    })
}

/// Makes the parts of the ResourceQuota plug-in. One actor charges all quotas, so that two writers cannot both take the last
/// unit.
fn quotas(
    config: &Config,
    limited: &[Limited],
    storage: &Storage,
    registry: &Arc<Registry>,
    loopback: &Arc<Loopback>,
) -> quota::Settings {
    let features = quota_features(config);
    let charger = quota::QuotaCharger {
        stores: Stores::new(storage),
        registry: registry.clone(),
        clock: loopback.clock.clone(),
        limited: limited.to_vec(),
        features,
        loopback: loopback.audit.is_some().then(|| loopback.clone()),
    };
    let charger = Batcher::new(charger.into_handler(), storage.fatal.clone()).start();
    quota::Settings { limited: limited.to_vec(), features, charger }
}

/// The feature gates that change how quotas count.
pub(super) fn quota_features(config: &Config) -> Features {
    let features = enabled_features(config);
    Features {
        resized_pods: features.has(Feature::InPlacePodVerticalScaling),
        pod_resources: features.has(Feature::PodLevelResources),
        failed_expansion: features.has(Feature::RecoverVolumeExpansionFailure),
        attributes_classes: features.has(Feature::VolumeAttributesClass),
        device_claims: features.has(Feature::DynamicResourceAllocation),
    }
}

/// Reads the admission configuration file.
fn configured(context: &StartContext) -> Result<admission::PluginConfig, StartError> {
    let config = &context.config;
    let file = config.admission_file()?;
    let enabled = config.admission_plugins();
    for plugin in file.plugins().filter(|plugin| !enabled.iter().any(|enabled| enabled.as_str() == *plugin)) {
        tracing::warn!(plugin, "--admission-control-config-file configures a plug-in that is not enabled");
    }
    let gates = config.gates();
    let (document, gate) = (|plugin: &str| file.configuration(plugin), |gate: &str| gates.enabled(gate));
    admission::PluginConfig::read(&enabled, document, gate, &context.pool)
        .map_err(|error| ConfigError::new(format!("--admission-control-config-file: {error}")).into())
}

/// Looks up a kind in the catalog as it is at the time of the call.
fn kinds(shared: Arc<Shared>) -> admission::Kinds {
    Arc::new(move |group, version, kind| {
        let served = shared.served.load();
        let group = served.catalog.group(group);
        let resources = group.and_then(|group| group.version(version)).map(|version| &version.resources);
        let matching = resources.into_iter().flatten().filter(|resource| &*resource.kind == kind);
        matching.cloned().collect()
    })
}

/// Looks up the other resources that show the same objects, as they are at the time of the call.
fn equivalents(shared: Arc<Shared>) -> admission::Equivalents {
    Arc::new(move |resource, subresource| {
        let Some(stored) = resource.stored() else { return Vec::new() };
        let served = shared.served.load();
        let is_other = |other: &&Arc<Resource>| {
            other.stored().is_some_and(|other| other.store == stored.store)
                && (subresource.is_empty() || other.subresource(subresource).is_some())
                && (&other.gv, &other.plural) != (&resource.gv, &resource.plural)
        };
        served.catalog.resources().filter(is_other).cloned().collect()
    })
}
