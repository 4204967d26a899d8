//! The admission plug-ins, and the registry that makes the enabled ones. `crate::registry::admission` is the interface that they
//! implement.

mod admin_access;
mod always_deny;
mod anti_affinity;
mod attributes;
mod auto_provision;
mod certificates;
mod claim_resize;
mod create_rights;
mod default_class;
mod escalation;
mod event_rates;
mod extended_resources;
mod external_ips;
mod image_policy;
mod limit_checks;
mod limit_ranger;
pub mod lookup;
mod namespace_lifecycle;
mod node_restriction;
mod node_selector;
mod node_taint;
mod owner_references;
mod param_rights;
mod plugin_config;
mod pod_security;
pub mod policies;
mod priority;
mod pull_images;
pub mod quota;
mod runtime_class;
mod service_account;
mod storage_protection;
mod toleration_restriction;
mod toleration_seconds;
mod tolerations;
mod topology_labels;
mod versioned;
mod view;
pub mod webhooks;

use std::sync::Arc;

use actix::Addr;
use futures::future::LocalBoxFuture;
use pilothouse_actors::rates::Rates;
use pilothouse_api::admission_plugins::PluginName;
use pilothouse_api::catalog::Catalog;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::status::Result;

use crate::live_index::LiveIndex;
use crate::metrics::Metrics;
use crate::registry::Backend;
use crate::registry::admission::{Chain, NamedPlugin, Operation, Outcome, Plugin, Write, done};

use self::image_policy::ImagePolicyWebhook;
pub use self::plugin_config::PluginConfig;
use self::policies::PolicyDeps;
use self::webhooks::{Phase, Webhooks};

/// Finds the resources of a group, version and kind in the current catalog.
pub type Kinds = Arc<dyn Fn(&str, &str, &str) -> Vec<Arc<Resource>> + Send + Sync>;

/// Finds the other resources of the current catalog that serve the same objects, or the same subresource of them.
pub type Equivalents = Arc<dyn Fn(&Resource, &str) -> Vec<Arc<Resource>> + Send + Sync>;

/// Creates a namespace as the server itself. Injected, because the verbs are a layer above admission.
pub type MakeNamespace = for<'a> fn(&'a Backend, &'a Catalog, &'a str) -> LocalBoxFuture<'a, Result<()>>;

/// The inputs from which the plug-ins are made.
pub struct Settings {
    /// The enabled plug-ins, in the order in which they run.
    pub enabled: Vec<PluginName>,
    /// The default toleration in seconds of nodes that are not ready.
    pub not_ready_seconds: i64,
    /// The default toleration in seconds of nodes that are unreachable.
    pub unreachable_seconds: i64,
    /// Settings of the ResourceQuota plug-in.
    pub quota: quota::Settings,
    /// The operator's configuration of the plug-ins.
    pub configured: PluginConfig,
    /// The actor that counts events against [`PluginConfig::event_limits`].
    pub rates: Addr<Rates>,
    /// Finds resources by kind.
    pub kinds: Kinds,
    /// Creates namespaces for NamespaceAutoProvision.
    pub make_namespace: MakeNamespace,
    /// Settings of the admission webhooks.
    pub webhooks: webhooks::Settings,
    /// Finds resources that serve the same objects.
    pub equivalents: Equivalents,
    /// The ValidatingAdmissionPolicies.
    pub policies: Arc<policies::table::Policies>,
    /// The MutatingAdmissionPolicies, if the feature gate is on.
    pub mutating_policies: Option<Arc<policies::table::Policies>>,
    /// Watches the types that plug-ins look up, and reports unreadable objects. Only held.
    pub _lookup_guards: Arc<LiveIndex<lookup::LookupGuards>>,
    /// Counts decisions of plug-ins.
    pub metrics: Arc<Metrics>,
}

/// Makes the enabled plug-ins, and those that are always on.
pub fn chain(settings: &Settings) -> Chain {
    let mut chain: Vec<NamedPlugin> = vec![(None, Box::new(create_rights::CreateRights))];
    let named = |name: &PluginName| Some((Some(*name), new_plugin(*name, settings)?));
    chain.extend(settings.enabled.iter().filter_map(named));
    chain.push((None, Box::new(admin_access::AdminAccess)));
    chain.push((None, Box::new(escalation::Escalation)));
    chain.push((None, Box::new(param_rights::ParamRights(settings.kinds.clone()))));
    Chain::new(chain, settings.metrics.clone())
}

/// Makes the plug-in of this name; `None` if it does nothing here.
fn new_plugin(name: PluginName, settings: &Settings) -> Option<Box<dyn Plugin>> {
    let configured = &settings.configured;
    Some(match name {
        PluginName::NamespaceAutoProvision => {
            Box::new(auto_provision::NamespaceAutoProvision(settings.kinds.clone(), settings.make_namespace))
        }
        PluginName::NamespaceLifecycle => Box::new(namespace_lifecycle::NamespaceLifecycle),
        PluginName::NamespaceExists => Box::new(namespace_lifecycle::NamespaceExists),
        PluginName::LimitPodHardAntiAffinityTopology => {
            Box::new(anti_affinity::LimitPodHardAntiAffinityTopology)
        }
        PluginName::LimitRanger => Box::new(limit_ranger::LimitRanger::default()),
        PluginName::ServiceAccount => Box::new(service_account::ServiceAccount),
        PluginName::TaintNodesByCondition => Box::new(node_taint::TaintNodesByCondition),
        PluginName::NodeRestriction => {
            Box::new(node_restriction::NodeRestriction(configured.node_restriction_allowances))
        }
        PluginName::AlwaysPullImages => Box::new(pull_images::AlwaysPullImages),
        PluginName::PodSecurity => Box::new(pod_security(settings)),
        PluginName::PodNodeSelector => {
            Box::new(node_selector::PodNodeSelector(configured.node_selectors.clone()))
        }
        PluginName::Priority => Box::new(priority::Priority::default()),
        PluginName::DefaultTolerationSeconds => Box::new(toleration_seconds::DefaultTolerationSeconds {
            not_ready: settings.not_ready_seconds,
            unreachable: settings.unreachable_seconds,
        }),
        PluginName::PodTolerationRestriction => {
            Box::new(toleration_restriction::PodTolerationRestriction(configured.tolerations.clone()))
        }
        PluginName::EventRateLimit => Box::new(event_rate_limit(settings)),
        PluginName::ExtendedResourceToleration => Box::new(extended_resources::ExtendedResourceToleration),
        PluginName::DefaultStorageClass => Box::new(default_class::DefaultStorageClass::default()),
        PluginName::StorageObjectInUseProtection => {
            Box::new(storage_protection::StorageObjectInUseProtection)
        }
        PluginName::OwnerReferencesPermissionEnforcement => {
            Box::new(owner_references::OwnerReferences { kinds: settings.kinds.clone() })
        }
        PluginName::PersistentVolumeClaimResize => Box::new(claim_resize::PersistentVolumeClaimResize),
        PluginName::RuntimeClass => Box::new(runtime_class::RuntimeClass),
        PluginName::CertificateApproval => Box::new(certificates::Approval),
        PluginName::CertificateSigning => Box::new(certificates::Signing),
        PluginName::ClusterTrustBundleAttest => Box::new(certificates::Attest),
        PluginName::CertificateSubjectRestriction => Box::new(certificates::SubjectRestriction),
        PluginName::DefaultIngressClass => Box::new(default_class::DefaultIngressClass::default()),
        PluginName::ResourceQuota => Box::new(quota::ResourceQuota::new(settings.quota.clone())),
        PluginName::DenyServiceExternalIPs => Box::new(external_ips::DenyServiceExternalIps),
        PluginName::PodTopologyLabels if configured.topology_labels => {
            Box::new(topology_labels::PodTopologyLabels)
        }
        PluginName::MutatingAdmissionWebhook => {
            Box::new(Webhooks::new(Phase::Mutating, &settings.webhooks, &configured.webhooks))
        }
        PluginName::ValidatingAdmissionWebhook => {
            Box::new(Webhooks::new(Phase::Validating, &settings.webhooks, &configured.webhooks))
        }
        PluginName::AlwaysDeny => Box::new(always_deny::AlwaysDeny),
        PluginName::ValidatingAdmissionPolicy => {
            Box::new(policies::ValidatingAdmissionPolicy(policy_deps(settings, &settings.policies)))
        }
        PluginName::MutatingAdmissionPolicy => {
            let policies = settings.mutating_policies.as_ref()?;
            Box::new(policies::MutatingAdmissionPolicy(policy_deps(settings, policies)))
        }
        PluginName::ImagePolicyWebhook => Box::new(ImagePolicyWebhook(configured.image_policy.clone()?)),
        PluginName::PodTopologyLabels | PluginName::AlwaysAdmit => return None,
    })
}

fn pod_security(settings: &Settings) -> pod_security::PodSecurity {
    pod_security::PodSecurity {
        config: settings.configured.pod_security.clone(),
        metrics: settings.metrics.clone(),
    }
}

fn event_rate_limit(settings: &Settings) -> event_rates::EventRateLimit {
    event_rates::EventRateLimit {
        scopes: settings.configured.event_limits.iter().map(|(scope, _)| *scope).collect(),
        rates: settings.rates.clone(),
    }
}

/// The dependencies for evaluating the policies of a table.
fn policy_deps(settings: &Settings, policies: &Arc<policies::table::Policies>) -> PolicyDeps {
    PolicyDeps {
        policies: policies.clone(),
        kinds: settings.kinds.clone(),
        equivalents: settings.equivalents.clone(),
        metrics: settings.metrics.clone(),
    }
}

#[cfg(test)]
mod tests;
