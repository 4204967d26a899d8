//! Which earlier versions are read, and how.

mod flowcontrol;
mod networking;
mod policy;
mod rbac;
mod webhooks;
mod workloads;

use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::{
    ADMISSION_REGISTRATION_GROUP as ADMISSION, API_REGISTRATION_GROUP as API_REGISTRATION,
    NETWORKING_GROUP as NETWORKING, RBAC_GROUP as RBAC,
};
use pilothouse_kinds::CONVERSIONS;

use super::Convert;

/// Kinds of an earlier version, the group that has them now, and their conversion to the version that is stored now.
struct EarlierVersion {
    group: &'static str,
    version: &'static str,
    kinds: &'static [&'static str],
    /// The group that has the kinds now.
    target: &'static str,
    convert: Convert,
}

const fn row(
    group: &'static str,
    version: &'static str,
    kinds: &'static [&'static str],
    target: &'static str,
    convert: Convert,
) -> EarlierVersion {
    EarlierVersion { group, version, kinds, target, convert }
}

/// For kinds of a version that have the shape of the one that replaced it.
const fn same(group: &'static str, version: &'static str, kinds: &'static [&'static str]) -> EarlierVersion {
    row(group, version, kinds, group, unchanged)
}

/// All earlier versions that are read, definitions apart.
const EARLIER: &[EarlierVersion] = &[
    same(ADMISSION, "v1alpha1", &["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]),
    row(
        ADMISSION,
        "v1beta1",
        &["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"],
        ADMISSION,
        webhooks::with_defaults_of_v1beta1,
    ),
    same(API_REGISTRATION, "v1beta1", &["APIService"]),
    same("apps", "v1beta1", &["ControllerRevision"]),
    row("apps", "v1beta1", &["StatefulSet"], "apps", workloads::stateful_set),
    row("apps", "v1beta1", &["Deployment"], "apps", workloads::deployment),
    same("apps", "v1beta2", &["ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"]),
    row("extensions", "v1beta1", &["DaemonSet"], "apps", workloads::daemon_set),
    row("extensions", "v1beta1", &["Deployment"], "apps", workloads::deployment),
    row("extensions", "v1beta1", &["ReplicaSet"], "apps", unchanged),
    row("extensions", "v1beta1", &["NetworkPolicy"], NETWORKING, unchanged),
    row("extensions", "v1beta1", &["Ingress"], NETWORKING, networking::ingress),
    same("autoscaling", "v2beta2", &["HorizontalPodAutoscaler"]),
    same("batch", "v1beta1", &["CronJob"]),
    row(
        "certificates.k8s.io",
        "v1beta1",
        &["CertificateSigningRequest"],
        "certificates.k8s.io",
        policy::signing_request,
    ),
    same("coordination.k8s.io", "v1beta1", &["Lease"]),
    row("discovery.k8s.io", "v1beta1", &["EndpointSlice"], "discovery.k8s.io", networking::endpoint_slice),
    row("events.k8s.io", "v1beta1", &["Event"], "", event),
    same("flowcontrol.apiserver.k8s.io", "v1beta1", &["FlowSchema"]),
    same("flowcontrol.apiserver.k8s.io", "v1beta2", &["FlowSchema"]),
    same("flowcontrol.apiserver.k8s.io", "v1beta3", &["FlowSchema"]),
    row(
        "flowcontrol.apiserver.k8s.io",
        "v1beta1",
        &["PriorityLevelConfiguration"],
        "flowcontrol.apiserver.k8s.io",
        flowcontrol::with_assured_shares,
    ),
    row(
        "flowcontrol.apiserver.k8s.io",
        "v1beta2",
        &["PriorityLevelConfiguration"],
        "flowcontrol.apiserver.k8s.io",
        flowcontrol::with_assured_shares,
    ),
    row(
        "flowcontrol.apiserver.k8s.io",
        "v1beta3",
        &["PriorityLevelConfiguration"],
        "flowcontrol.apiserver.k8s.io",
        flowcontrol::with_marked_zero,
    ),
    same(NETWORKING, "v1alpha1", &["IPAddress", "ServiceCIDR"]),
    same(NETWORKING, "v1beta1", &["IngressClass"]),
    row(NETWORKING, "v1beta1", &["Ingress"], NETWORKING, networking::ingress),
    row("node.k8s.io", "v1alpha1", &["RuntimeClass"], "node.k8s.io", workloads::runtime_class),
    same("node.k8s.io", "v1beta1", &["RuntimeClass"]),
    row("policy", "v1beta1", &["PodDisruptionBudget"], "policy", policy::disruption_budget),
    same(RBAC, "v1alpha1", &["ClusterRole", "Role"]),
    row(RBAC, "v1alpha1", &["ClusterRoleBinding", "RoleBinding"], RBAC, rbac::binding),
    same(RBAC, "v1beta1", &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]),
    same("scheduling.k8s.io", "v1alpha1", &["PriorityClass"]),
    same("scheduling.k8s.io", "v1beta1", &["PriorityClass"]),
    same("storage.k8s.io", "v1alpha1", &["CSIStorageCapacity", "VolumeAttachment"]),
    same(
        "storage.k8s.io",
        "v1beta1",
        &["CSIDriver", "CSINode", "CSIStorageCapacity", "StorageClass", "VolumeAttachment"],
    ),
];

/// Kinds of earlier versions that are not read, because nothing stores them since their group had another storage version.
#[cfg(test)]
const UNREADABLE: [(&str, &str, &str); 1] = [("autoscaling", "v2beta1", "HorizontalPodAutoscaler")];

/// The conversion from an earlier version to the one of this release.
pub(super) fn conversion(from: &GroupVersion, kind: &str, target: &GroupVersion) -> Option<Convert> {
    let is_wanted = |row: &&EarlierVersion| {
        from.is(row.group, row.version) && row.kinds.contains(&kind) && *target.group == *row.target
    };
    EARLIER.iter().find(is_wanted).map(|row| row.convert)
}

fn unchanged(object: Value) -> Value {
    object
}

/// Events have the same shape in both versions of their group, and another one in the core group.
fn event(mut event: Value) -> Value {
    let (from, to) = (GroupVersion::new("events.k8s.io", "v1"), GroupVersion::new("", "v1"));
    event.set("apiVersion", from.to_string());
    CONVERSIONS.convert(event.clone(), &from, &to, "Event").unwrap_or(event)
}

/// Changes each item of a list in place.
fn each_item(object: &mut Value, path: &[&str], change: impl Fn(&mut Value)) {
    let Some((last, parents)) = path.split_last() else { return };
    let mut parent = object;
    for step in parents {
        match parent.get_mut(step) {
            Some(inner) => parent = inner,
            None => return,
        }
    }
    if let Some(Value::Array(items)) = parent.get_mut(last) {
        for item in items {
            change(item);
        }
    }
}

/// Renames a field.
fn rename(object: &mut Value, from: &str, to: &str) {
    if let Some(value) = object.remove(from).filter(|value| !value.is_null()) {
        object.set(to, value);
    }
}

/// Sets a text that is absent.
fn fill(object: &mut Value, field: &str, text: &str) {
    if object.str(field).is_empty() {
        object.set(field, text);
    }
}

#[cfg(test)]
mod tests;
