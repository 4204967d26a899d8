//! Admission: plug-ins that change or refuse a write after it is decoded and before it is stored.
//!
//! A chain of plug-ins in the reference's order. All mutating plug-ins run first. Then the object is validated by the rules of
//! its kind. Then all validating plug-ins check the object as it would be stored.

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
mod plugin_document;
mod pod_security;
pub mod policies;
mod priority;
mod pull_images;
pub mod quota;
mod reinvocation;
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
use futures::future::{LocalBoxFuture, ready};
use pilothouse_actors::rates::Rates;
use pilothouse_api::admission_plugins::PluginName;
use pilothouse_api::catalog::Catalog;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;

use crate::auth::live_index::LiveIndex;

use crate::metrics::Metrics;

pub use self::plugin_config::PluginConfig;
use self::policies::PolicyDeps;
pub use self::reinvocation::Reinvocation;
use self::webhooks::{Phase, Webhooks};
use super::{Backend, Call};

/// The operation of a write, as admission rules name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new object is created.
    Create,
    /// An existing object is replaced.
    Update,
    /// An object is deleted, or marked as being deleted.
    Delete,
    /// A connecting subresource, such as exec or proxy, is opened.
    Connect,
}

/// One write that passes through admission.
pub struct Write<'a> {
    /// Gives plug-ins access to other objects.
    pub backend: &'a Backend,
    /// The request.
    pub call: &'a Call<'a>,
    /// The operation.
    pub operation: Operation,
    /// The object as it is stored now; `None` for a create.
    pub old: Option<&'a Value>,
}

impl Write<'_> {
    /// Whether it writes objects of this resource, not a subresource of them.
    pub fn is_of(&self, group: &str, resource: &str) -> bool {
        self.is_of_subresource(group, resource, "")
    }

    /// Whether it writes this subresource of a resource.
    pub fn is_of_subresource(&self, group: &str, resource: &str, subresource: &str) -> bool {
        self.call.group_resource() == GroupResource { group, resource }
            && self.call.subresource == subresource
    }

    /// Whether it is a dry run.
    pub fn is_dry_run(&self) -> bool {
        self.call.query.all("dryRun").any(|value| value == "All")
    }

    /// 403 that names the object, by its generateName if it has no name yet.
    pub fn forbidden(&self, object: &Value, reason: &str) -> Box<Status> {
        Status::forbidden(reason, Some((self.call.group_resource(), self.name(object))))
    }

    /// The name for messages. In a deletion of a collection the request has no name.
    fn name<'b>(&'b self, object: &'b Value) -> &'b str {
        let meta = meta::metadata(object);
        let names = [self.call.name, meta.str("name"), meta.str("generateName")];
        names.into_iter().find(|name| !name.is_empty()).unwrap_or("Unknown")
    }
}

/// The result of a plug-in, which may have to wait.
pub type Outcome<'a> = LocalBoxFuture<'a, Result<()>>;

/// The outcome of a plug-in that did not have to wait.
fn done<'a>(result: Result<()>) -> Outcome<'a> {
    Box::pin(ready(result))
}

/// An admission plug-in.
pub trait Plugin {
    /// Whether the plug-in is interested in this write. Called for every write, so it must be fast.
    fn handles(&self, write: &Write<'_>) -> bool;

    /// Changes the object, or refuses it. For a deletion `object` is null.
    fn mutate<'a>(&'a self, _write: &'a Write<'a>, _object: &'a mut Value) -> Outcome<'a> {
        done(Ok(()))
    }

    /// Like [`Plugin::mutate`], for plug-ins that run again after others have changed the object: see [`Reinvocation`].
    fn admit<'a>(&'a self, write: &'a Write<'a>, object: &'a mut Value, _: &'a Reinvocation) -> Outcome<'a> {
        self.mutate(write, object)
    }

    /// Whether the plug-in is interested in connecting subresources.
    fn connects(&self) -> bool {
        false
    }

    /// Whether pods get the labels of their Binding.
    fn labels_bound_pods(&self) -> bool {
        false
    }

    /// Refuses an object that must not be stored. For a deletion `object` is null.
    fn validate<'a>(&'a self, _write: &'a Write<'a>, _object: &'a Value) -> Outcome<'a> {
        done(Ok(()))
    }
}

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
    /// Watches the types that plug-ins look up, and reports unreadable objects.
    pub lookup_guards: Arc<LiveIndex<lookup::LookupGuards>>,
    /// Counts decisions of plug-ins.
    pub metrics: Arc<Metrics>,
}

/// The enabled plug-ins, in order. One chain per worker, so that plug-ins may cache without locks.
pub struct Chain(Vec<Box<dyn Plugin>>);

impl Chain {
    /// Makes the plug-ins.
    pub fn new(settings: &Settings) -> Chain {
        let mut chain: Vec<Box<dyn Plugin>> = vec![Box::new(create_rights::CreateRights)];
        chain.extend(settings.enabled.iter().filter_map(|name| new_plugin(*name, settings)));
        chain.push(Box::new(admin_access::AdminAccess));
        chain.push(Box::new(escalation::Escalation));
        chain.push(Box::new(param_rights::ParamRights(settings.kinds.clone())));
        Chain(chain)
    }

    /// Runs the mutating plug-ins on the new state of an object.
    pub async fn mutate(&self, write: &Write<'_>, object: &mut Value) -> Result<()> {
        let reinvocation = Reinvocation::default();
        for plugin in self.plugins_for(write) {
            plugin.admit(write, object, &reinvocation).await?;
        }
        if reinvocation.start_second_round() {
            for plugin in self.plugins_for(write) {
                plugin.admit(write, object, &reinvocation).await?;
            }
        }
        // Options of a connecting subresource have no metadata.
        if reinvocation.is_patched() && write.operation != Operation::Connect {
            reinvocation.restore_invariants(write.call, write.operation == Operation::Create, object)?;
        }
        Ok(())
    }

    /// Runs the validating plug-ins on the object as it would be stored.
    pub async fn validate(&self, write: &Write<'_>, object: &Value) -> Result<()> {
        for plugin in self.plugins_for(write) {
            plugin.validate(write, object).await?;
        }
        Ok(())
    }

    /// Runs admission for a deletion.
    pub async fn delete(&self, backend: &Backend, call: &Call<'_>, old: &Value) -> Result<()> {
        let write = Write { backend, call, operation: Operation::Delete, old: Some(old) };
        self.mutate(&write, &mut Value::Null).await?;
        self.validate(&write, &Value::Null).await
    }

    /// Runs admission for a connecting subresource. `options` is its options object; changes to it have no effect.
    pub async fn connect(&self, backend: &Backend, call: &Call<'_>, mut options: Value) -> Result<()> {
        let write = Write { backend, call, operation: Operation::Connect, old: None };
        self.mutate(&write, &mut options).await?;
        self.validate(&write, &options).await
    }

    /// Whether pods get the labels of their Binding.
    pub fn labels_bound_pods(&self) -> bool {
        self.0.iter().any(|plugin| plugin.labels_bound_pods())
    }

    fn plugins_for<'a>(&'a self, write: &'a Write<'a>) -> impl Iterator<Item = &'a dyn Plugin> {
        let is_connect = write.operation == Operation::Connect;
        let is_interested =
            move |plugin: &&dyn Plugin| (!is_connect || plugin.connects()) && plugin.handles(write);
        self.0.iter().map(AsRef::as_ref).filter(is_interested)
    }
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
        PluginName::PodTopologyLabels | PluginName::AlwaysAdmit | PluginName::ImagePolicyWebhook => {
            return None;
        }
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
