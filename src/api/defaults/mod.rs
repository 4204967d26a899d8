//! Defaults that depend on other values: one file per group, one function per kind, called after the walk over the
//! type has filled in what is the same for everyone.

mod admission;
mod apiextensions;
mod apps;
mod autoscaling;
mod batch;
mod core;
mod networking;
mod rbac;

use super::schema::{GroupVersionKind, Registry, TypeId, default};
use super::value::Value;

/// Fills in what depends on other values of the object.
pub type KindDefault = fn(&mut Value);

/// Group, version, kind and what it does beyond its type.
const BY_KIND: &[(&str, &str, &str, KindDefault)] = &[
    ("", "v1", "LimitRange", core::limit_range),
    ("", "v1", "Namespace", core::namespace),
    ("", "v1", "Node", core::node),
    ("", "v1", "PersistentVolume", core::persistent_volume),
    ("", "v1", "Pod", core::pod),
    ("", "v1", "PodTemplate", core::pod_template),
    ("", "v1", "ReplicationController", core::replication_controller),
    ("", "v1", "Service", core::service),
    ("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", admission::webhooks),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", admission::policy),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", admission::policy),
    ("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", admission::webhooks),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", apiextensions::definition),
    ("apps", "v1", "DaemonSet", apps::daemon_set),
    ("apps", "v1", "Deployment", apps::deployment),
    ("apps", "v1", "ReplicaSet", apps::replica_set),
    ("apps", "v1", "StatefulSet", apps::stateful_set),
    ("autoscaling", "v2", "HorizontalPodAutoscaler", autoscaling::autoscaler),
    ("batch", "v1", "CronJob", batch::cron_job),
    ("batch", "v1", "Job", batch::job),
    ("networking.k8s.io", "v1", "NetworkPolicy", networking::policy),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", rbac::binding),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", rbac::binding),
];

/// The same, for what must be decided before the walk, while it still shows what the client left out.
const BEFORE: &[(&str, &str, &str, KindDefault)] =
    &[("apps", "v1", "StatefulSet", apps::stateful_set_rollout)];

fn find(table: &[(&str, &str, &str, KindDefault)], kind: &GroupVersionKind) -> Option<KindDefault> {
    table
        .iter()
        .find(|(group, version, name, _)| {
            *group == kind.group && *version == kind.version && *name == kind.kind
        })
        .map(|(.., function)| *function)
}

/// Fills in all defaults of an object.
pub fn apply(registry: &Registry, kind: &GroupVersionKind, ty: TypeId, value: &mut Value) {
    if let Some(function) = find(BEFORE, kind) {
        function(value);
    }
    default::apply(registry, ty, value);
    if let Some(function) = find(BY_KIND, kind) {
        function(value);
    }
}

/// Sets the field unless it is there.
fn set_if_absent(value: &mut Value, key: &str, default: impl Into<Value>) {
    if value.get(key).is_none() {
        value.set(key, default);
    }
}

/// The items of the list under `key`.
fn items_mut<'v>(value: &'v mut Value, key: &str) -> std::slice::IterMut<'v, Value> {
    match value.get_mut(key) {
        Some(Value::Array(items)) => items.iter_mut(),
        _ => [].iter_mut(),
    }
}

/// Copies the entries of one map to another that does not have them.
fn add_missing(value: &mut Value, from: &str, to: &str) {
    let Some(entries) = value.get(from).and_then(Value::fields).cloned() else { return };
    let target = value.entry(to).fields_mut();
    for (key, entry) in entries {
        target.entry(key).or_insert(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::codec::{decode_object, encode};

    /// What an object reads like after its defaults.
    pub(super) fn defaulted(group: &str, version: &str, kind: &str, body: &str) -> Value {
        let registry = Registry::builtin().unwrap();
        let kind = GroupVersionKind::new(group, version, kind);
        let ty = registry.lookup(&kind).unwrap();
        let mut value = decode_object(body.as_bytes(), &kind, &registry).unwrap().value;
        apply(&registry, &kind, ty, &mut value);
        let bytes = encode(&registry, ty, &value);
        let mut again = decode_object(&bytes, &kind, &registry).unwrap().value;
        apply(&registry, &kind, ty, &mut again);
        assert_eq!(encode(&registry, ty, &again), bytes, "defaults of defaults");
        value
    }

    #[test]
    fn every_entry_names_a_kind() {
        let registry = Registry::builtin().unwrap();
        for (group, version, kind, _) in BY_KIND.iter().chain(BEFORE) {
            assert!(registry.kind(group, version, kind).is_some(), "{group}/{version} {kind}");
        }
    }
}
