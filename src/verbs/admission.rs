//! Admission: what the cluster as a whole has to say about a write, after it was decoded and before it is stored.
//!
//! A chain of plug-ins in the reference's order. All that change the object come first; then the rules of its kind
//! check it; then all plug-ins that only check have their say, about what would really be stored.

mod always_deny;
mod anti_affinity;
mod asked;
mod auto_provision;
mod certificates;
mod claim_resize;
mod configured;
mod create_rights;
mod default_class;
mod documents;
mod escalation;
mod event_rates;
mod extended_resources;
mod external_ips;
mod limit_checks;
mod limit_ranger;
mod lookup;
mod namespace_lifecycle;
mod node_restriction;
mod node_selector;
mod node_taint;
mod owner_references;
mod param_rights;
mod pod_security;
pub mod policies;
mod priority;
mod pull_images;
pub mod quota;
mod round;
mod runtime_class;
mod service_account;
mod shown;
mod storage_protection;
mod toleration_restriction;
mod toleration_seconds;
mod tolerations;
mod topology_labels;
mod view;
pub mod webhooks;

use std::sync::Arc;

use actix::Addr;
use futures::future::{LocalBoxFuture, ready};
use pilothouse_actors::authorizer::Authorizer;
use pilothouse_actors::rates::Rates;

use crate::api::catalog::resource::Resource;
use crate::api::meta;
use crate::api::status::{GroupResource, Result, Status};
use crate::api::value::Value;

use crate::metrics::Metrics;

pub use self::configured::Configured;
use self::policies::Panel;
pub use self::round::Round;
use self::webhooks::{Phase, Webhooks};
use super::{Backend, Call};

/// What a write does to the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It is new.
    Create,
    /// It takes the place of an older state.
    Update,
    /// It goes, or its going begins.
    Delete,
    /// Somebody is led to what stands behind it.
    Connect,
}

/// One write on its way in.
pub struct Write<'a> {
    /// Where other objects can be looked up.
    pub backend: &'a Backend,
    /// The request.
    pub call: &'a Call<'a>,
    /// What is to be done.
    pub operation: Operation,
    /// What is there now; nothing for what is new.
    pub old: Option<&'a Value>,
}

impl Write<'_> {
    /// Whether it is about the objects of a resource themselves and no part of them.
    pub fn is_of(&self, group: &str, resource: &str) -> bool {
        self.is_of_part(group, resource, "")
    }

    /// Whether it is about this part of the objects of a resource.
    pub fn is_of_part(&self, group: &str, resource: &str, subresource: &str) -> bool {
        self.call.of() == GroupResource { group, resource } && self.call.subresource == subresource
    }

    /// Whether nothing will be stored.
    pub fn is_dry_run(&self) -> bool {
        self.call.query.all("dryRun").any(|value| value == "All")
    }

    /// 403, in the name of the object. A new object may not have its name yet: then what it will begin with.
    pub fn forbidden(&self, object: &Value, why: &str) -> Box<Status> {
        Status::forbidden(why, Some((self.call.of(), self.name(object))))
    }

    /// What goes with its collection has no name here: the request is about all of them.
    fn name<'b>(&'b self, object: &'b Value) -> &'b str {
        let meta = meta::of(object);
        let names = [self.call.name, meta.str("name"), meta.str("generateName")];
        names.into_iter().find(|name| !name.is_empty()).unwrap_or("Unknown")
    }
}

/// What comes of asking a plug-in.
pub type Outcome<'a> = LocalBoxFuture<'a, Result<()>>;

/// The outcome of a plug-in that had nobody to ask.
fn done<'a>(result: Result<()>) -> Outcome<'a> {
    Box::pin(ready(result))
}

/// One voice in the chain.
pub trait Plugin {
    /// Whether it has anything to say about this write. Asked for every write: it must be quick.
    fn handles(&self, write: &Write<'_>) -> bool;

    /// Changes what is to be stored, or refuses it. A deletion shows it nothing but null.
    fn mutate<'a>(&'a self, _write: &'a Write<'a>, _object: &'a mut Value) -> Outcome<'a> {
        done(Ok(()))
    }

    /// The same for those that want to know what others did to the object before and after: see [`Round`].
    fn admit<'a>(&'a self, write: &'a Write<'a>, object: &'a mut Value, _: &'a Round) -> Outcome<'a> {
        self.mutate(write, object)
    }

    /// Whether it has anything to say about connections.
    fn connects(&self) -> bool {
        false
    }

    /// Whether pods get the labels of the bindings that give them their nodes.
    fn labels_bound_pods(&self) -> bool {
        false
    }

    /// Refuses what may not be stored. A deletion shows it nothing but null.
    fn validate<'a>(&'a self, _write: &'a Write<'a>, _object: &'a Value) -> Outcome<'a> {
        done(Ok(()))
    }
}

/// The resources of a group, version and kind, as they are served now.
pub type Kinds = Arc<dyn Fn(&str, &str, &str) -> Vec<Arc<Resource>> + Send + Sync>;

/// The other resources that show the objects of one, or the same part of them, as they are served now.
pub type Equivalents = Arc<dyn Fn(&Resource, &str) -> Vec<Arc<Resource>> + Send + Sync>;

/// What the plug-ins are made from.
pub struct Settings {
    /// The names of those that are on, in the order in which they work.
    pub enabled: Vec<&'static str>,
    /// How long a pod stays on a node that is not ready.
    pub not_ready_seconds: i64,
    /// How long a pod stays on a node that cannot be reached.
    pub unreachable_seconds: i64,
    /// What quotas need.
    pub quota: quota::Settings,
    /// What the operator's documents say.
    pub configured: Configured,
    /// Who knows how fast events came: the limits are those of [`Configured::event_limits`].
    pub rates: Addr<Rates>,
    /// What is served.
    pub kinds: Kinds,
    /// Who else is asked.
    pub webhooks: webhooks::Settings,
    /// What shows the same objects.
    pub equivalents: Equivalents,
    /// The policies of the cluster that check objects.
    pub policies: Arc<policies::table::Policies>,
    /// Those that change them, where the operator allows such.
    pub changing_policies: Option<Arc<policies::table::Policies>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// The plug-ins that are on, in order. One chain per worker, so that they may remember things without locks.
pub struct Chain(Vec<Box<dyn Plugin>>);

impl Chain {
    /// Makes the plug-ins. `authorizer` is asked where a plug-in wants to know whether the caller may do more than the
    /// request itself needs.
    pub fn new(settings: &Settings, authorizer: &Addr<Authorizer>) -> Chain {
        let mut chain: Vec<Box<dyn Plugin>> = vec![Box::new(create_rights::CreateRights)];
        chain.extend(settings.enabled.iter().filter_map(|name| make(name, settings, authorizer)));
        chain.push(Box::new(escalation::Escalation));
        chain.push(Box::new(param_rights::ParamRights(settings.kinds.clone())));
        Chain(chain)
    }

    /// Lets the plug-ins change a new object or the new state of one.
    pub async fn mutate(&self, write: &Write<'_>, object: &mut Value) -> Result<()> {
        let round = Round::default();
        for plugin in self.of(write) {
            plugin.admit(write, object, &round).await?;
        }
        if round.again() {
            for plugin in self.of(write) {
                plugin.admit(write, object, &round).await?;
            }
        }
        // What connects is no object.
        if round.has_patched() && write.operation != Operation::Connect {
            round.settle(write.call, write.operation == Operation::Create, object)?;
        }
        Ok(())
    }

    /// Lets the plug-ins check what would be stored.
    pub async fn validate(&self, write: &Write<'_>, object: &Value) -> Result<()> {
        for plugin in self.of(write) {
            plugin.validate(write, object).await?;
        }
        Ok(())
    }

    /// Lets the plug-ins refuse a deletion.
    pub async fn delete(&self, backend: &Backend, call: &Call<'_>, old: &Value) -> Result<()> {
        let write = Write { backend, call, operation: Operation::Delete, old: Some(old) };
        self.mutate(&write, &mut Value::Null).await?;
        self.validate(&write, &Value::Null).await
    }

    /// Lets the plug-ins refuse a connection. `options` is what the client says of it; nobody heeds what becomes of that.
    pub async fn connect(&self, backend: &Backend, call: &Call<'_>, mut options: Value) -> Result<()> {
        let write = Write { backend, call, operation: Operation::Connect, old: None };
        self.mutate(&write, &mut options).await?;
        self.validate(&write, &options).await
    }

    /// Whether pods get the labels of the bindings that give them their nodes.
    pub fn labels_bound_pods(&self) -> bool {
        self.0.iter().any(|plugin| plugin.labels_bound_pods())
    }

    fn of<'a>(&'a self, write: &'a Write<'a>) -> impl Iterator<Item = &'a dyn Plugin> {
        let connects = write.operation == Operation::Connect;
        let asked = move |plugin: &&dyn Plugin| (!connects || plugin.connects()) && plugin.handles(write);
        self.0.iter().map(AsRef::as_ref).filter(asked)
    }
}

/// The plug-in of a name; `None` for a name that means nothing here.
fn make(name: &str, settings: &Settings, authorizer: &Addr<Authorizer>) -> Option<Box<dyn Plugin>> {
    let configured = &settings.configured;
    Some(match name {
        "NamespaceAutoProvision" => Box::new(auto_provision::NamespaceAutoProvision(settings.kinds.clone())),
        "NamespaceLifecycle" => Box::new(namespace_lifecycle::NamespaceLifecycle),
        "NamespaceExists" => Box::new(namespace_lifecycle::NamespaceExists),
        "LimitPodHardAntiAffinityTopology" => Box::new(anti_affinity::LimitPodHardAntiAffinityTopology),
        "LimitRanger" => Box::new(limit_ranger::LimitRanger::default()),
        "ServiceAccount" => Box::new(service_account::ServiceAccount),
        "TaintNodesByCondition" => Box::new(node_taint::TaintNodesByCondition),
        "NodeRestriction" => Box::new(node_restriction::NodeRestriction(configured.of_nodes)),
        "AlwaysPullImages" => Box::new(pull_images::AlwaysPullImages),
        "PodSecurity" => Box::new(pod_security::PodSecurity(configured.pod_security.clone())),
        "PodNodeSelector" => Box::new(node_selector::PodNodeSelector(configured.node_selectors.clone())),
        "Priority" => Box::new(priority::Priority::default()),
        "DefaultTolerationSeconds" => Box::new(toleration_seconds::DefaultTolerationSeconds {
            not_ready: settings.not_ready_seconds,
            unreachable: settings.unreachable_seconds,
        }),
        "PodTolerationRestriction" => {
            Box::new(toleration_restriction::PodTolerationRestriction(configured.tolerations.clone()))
        }
        "EventRateLimit" => Box::new(event_rates::EventRateLimit {
            shared: configured.event_limits.iter().map(|(shared, _)| *shared).collect(),
            rates: settings.rates.clone(),
        }),
        "ExtendedResourceToleration" => Box::new(extended_resources::ExtendedResourceToleration),
        "DefaultStorageClass" => Box::new(default_class::DefaultStorageClass::default()),
        "StorageObjectInUseProtection" => Box::new(storage_protection::StorageObjectInUseProtection),
        "OwnerReferencesPermissionEnforcement" => Box::new(owner_references::OwnerReferences {
            authorizer: authorizer.clone(),
            kinds: settings.kinds.clone(),
        }),
        "PersistentVolumeClaimResize" => Box::new(claim_resize::PersistentVolumeClaimResize),
        "RuntimeClass" => Box::new(runtime_class::RuntimeClass),
        "CertificateApproval" => Box::new(certificates::Approval(authorizer.clone())),
        "CertificateSigning" => Box::new(certificates::Signing(authorizer.clone())),
        "ClusterTrustBundleAttest" => Box::new(certificates::Attest(authorizer.clone())),
        "CertificateSubjectRestriction" => Box::new(certificates::SubjectRestriction),
        "DefaultIngressClass" => Box::new(default_class::DefaultIngressClass::default()),
        "ResourceQuota" => Box::new(quota::ResourceQuota::new(settings.quota.clone())),
        "DenyServiceExternalIPs" => Box::new(external_ips::DenyServiceExternalIps),
        "PodTopologyLabels" if configured.topology_labels => Box::new(topology_labels::PodTopologyLabels),
        webhooks::MUTATING => {
            Box::new(Webhooks::new(Phase::Mutating, &settings.webhooks, &configured.webhooks))
        }
        webhooks::VALIDATING => {
            Box::new(Webhooks::new(Phase::Validating, &settings.webhooks, &configured.webhooks))
        }
        "AlwaysDeny" => Box::new(always_deny::AlwaysDeny),
        "ValidatingAdmissionPolicy" => {
            Box::new(policies::ValidatingAdmissionPolicy(panel(settings, &settings.policies)))
        }
        "MutatingAdmissionPolicy" => {
            let policies = settings.changing_policies.as_ref()?;
            Box::new(policies::MutatingAdmissionPolicy(panel(settings, policies)))
        }
        _ => return None,
    })
}

/// What asking the policies of a table needs.
fn panel(settings: &Settings, policies: &Arc<policies::table::Policies>) -> Panel {
    Panel {
        policies: policies.clone(),
        kinds: settings.kinds.clone(),
        equivalents: settings.equivalents.clone(),
        metrics: settings.metrics.clone(),
    }
}
