//! NodeRestriction: a node may write its own Node, its leases, and the status of its own pods. The node authorizer decides what
//! it may read.

mod requests;

use pilothouse_api::gates::{
    ALLOW_INSECURE_KUBELET_CERTIFICATE_SIGNING_REQUESTS, SERVICE_ACCOUNT_NODE_AUDIENCE_RESTRICTION,
};
use pilothouse_apimachinery::field_value::same;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{GroupResource, Result};
use pilothouse_apimachinery::stored_type::StoredType;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::LEASE_NAMESPACE;
use pilothouse_apimachinery::well_known::annotations::MIRROR;
use pilothouse_types::object::Key;

use crate::auth::node::node_of;

use super::{Operation, Outcome, Plugin, Write};

/// Labels below kubernetes.io that a node may set on itself.
const OWN_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// Label prefixes that a node may set on itself.
const OWN_PREFIXES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// The label prefix that no node may set.
const RESTRICTED: &str = "node-restriction.kubernetes.io";

/// Relaxations that feature gates allow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowances {
    /// Nodes may request tokens for any audience.
    pub any_audience: bool,
    /// Nodes may request certificates of other nodes.
    pub any_certificate: bool,
}

impl Allowances {
    /// Reads the feature gates.
    pub fn read(gate: impl Fn(&str) -> bool) -> Allowances {
        Allowances {
            any_audience: !gate(SERVICE_ACCOUNT_NODE_AUDIENCE_RESTRICTION),
            any_certificate: gate(ALLOW_INSECURE_KUBELET_CERTIFICATE_SIGNING_REQUESTS),
        }
    }
}

/// Checks the writes of nodes.
pub struct NodeRestriction(pub Allowances);

impl Plugin for NodeRestriction {
    fn handles(&self, write: &Write<'_>) -> bool {
        node_of(write.call.user()).is_some()
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, object: &'a mut Value) -> Outcome<'a> {
        Box::pin(check(write, object, self.0))
    }
}

async fn check(write: &Write<'_>, object: &Value, allowances: Allowances) -> Result<()> {
    let Some(node) = node_of(write.call.user()) else { return Ok(()) };
    let refuse = |reason: String| Err(write.forbidden(object, &reason));
    if node.is_empty() {
        return refuse(format!("could not determine node from user {:?}", write.call.user().name));
    }
    let resource = write.group_resource();
    let message = match (resource.group, resource.resource, write.subresource()) {
        ("", "pods", "") => match write.operation {
            Operation::Create => match check_mirror_pod(node, object) {
                None => {
                    check_owner(write, object, node).await?;
                    forbidden_reference(node, object)
                }
                error => error,
            },
            Operation::Delete if is_on(write.old, node) => None,
            Operation::Delete => {
                Some(format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
            }
            Operation::Update | Operation::Connect => Some(format!(
                "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"
            )),
        },
        ("", "pods", "status") => check_pod_status(node, object, write.old),
        ("", "pods", "eviction") => return check_eviction(write, object, node).await,
        ("", "pods", part) => {
            Some(format!("unexpected pod subresource {part:?}, only 'status' and 'eviction' are allowed"))
        }
        ("", "nodes", _) => check_own_node(write, object, node),
        ("", "persistentvolumeclaims", "status") => check_claim_status(node, object, write.old),
        ("", "persistentvolumeclaims", _) => Some("may only update PVC status".to_owned()),
        ("", "serviceaccounts", "token") if write.operation == Operation::Create => {
            return requests::check_token(write, object, node, allowances).await;
        }
        ("certificates.k8s.io", "certificatesigningrequests", _)
            if write.operation == Operation::Create && !allowances.any_certificate =>
        {
            requests::check_certificate(object, node)
        }
        ("coordination.k8s.io", "leases", _) => check_lease(write, object, node),
        ("storage.k8s.io", "csinodes", _) => check_csi_node(write, object, node),
        ("resource.k8s.io", "resourceslices", _) => check_slice(write, object, node),
        _ => None,
    };
    message.map_or(Ok(()), refuse)
}

fn is_on(pod: Option<&Value>, node: &str) -> bool {
    pod.and_then(|pod| pod.get_path(&["spec", "nodeName"])).and_then(Value::as_str) == Some(node)
}

/// The error if a pod is not a mirror pod of the node.
fn check_mirror_pod(node: &str, pod: &Value) -> Option<String> {
    if meta::metadata(pod).get("annotations").and_then(|all| all.get(MIRROR)).is_none() {
        return Some(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    if !is_on(Some(pod), node) {
        return Some(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    None
}

/// The error if a pod references objects that a mirror pod must not.
fn forbidden_reference(node: &str, pod: &Value) -> Option<String> {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let refuse = |what: &str| Some(format!("node {node:?} can not create pods that reference {what}"));
    if !spec.str("serviceAccountName").is_empty() {
        return refuse("a service account");
    }
    let volumes = spec.get("volumes").map(Value::items).unwrap_or_default();
    // References are recognized by their field names, at any depth.
    let has_field = |fields: &[&str]| has_any_field(spec, fields);
    if has_field(&[
        "secretName",
        "secretRef",
        "secretKeyRef",
        "secret",
        "nodePublishSecretRef",
        "imagePullSecrets",
    ]) {
        return refuse("secrets");
    }
    if has_field(&["configMap", "configMapRef", "configMapKeyRef"]) {
        return refuse("configmaps");
    }
    if has_field(&["clusterTrustBundle"]) {
        return refuse("clustertrustbundles");
    }
    if volumes.iter().any(|volume| volume.get("persistentVolumeClaim").is_some()) {
        return refuse("persistentvolumeclaims");
    }
    if spec.get("resourceClaims").is_some_and(|claims| !claims.items().is_empty()) {
        return refuse("resourceclaims");
    }
    None
}

/// Whether a field of one of these names occurs anywhere in a value. Decoded values are no deeper than their schema.
fn has_any_field(value: &Value, fields: &[&str]) -> bool {
    match value {
        Value::Array(items) => items.iter().any(|item| has_any_field(item, fields)),
        Value::Object(all) => all.iter().any(|(field, value)| {
            (fields.contains(&field.as_str()) && !value.is_null()) || has_any_field(value, fields)
        }),
        _ => false,
    }
}

const PODS: StoredType = StoredType::v1("", "pods", "Pod");
const NODES: StoredType = StoredType::v1("", "nodes", "Node");

async fn get_object(write: &Write<'_>, stored_type: &StoredType, key: Key) -> Result<Value> {
    // Messages name a missing object by its kind, as the reference's caches do.
    let singular = stored_type.kind.to_lowercase();
    let reported = GroupResource { group: stored_type.group, resource: &singular };
    write.backend.read_stored(stored_type, key, write.call.permit(), reported).await
}

/// Refuses a pod that its node does not own.
async fn check_owner(write: &Write<'_>, pod: &Value, node: &str) -> Result<()> {
    let refuse = |reason: String| Err(write.forbidden(pod, &reason));
    let owners = meta::metadata(pod).get("ownerReferences").map(Value::items).unwrap_or_default();
    let not_self = format!("node {node:?} can only create pods with an owner reference set to itself");
    let owner = match owners {
        [owner] => owner,
        [] => return refuse(not_self),
        _ => {
            return refuse(format!(
                "node {node:?} can only create pods with a single owner reference set to itself"
            ));
        }
    };
    if owner.str("apiVersion") != "v1" || owner.str("kind") != "Node" || owner.str("name") != node {
        return refuse(not_self);
    }
    if owner.get("controller").and_then(Value::as_bool) != Some(true) {
        return refuse(format!(
            "node {node:?} can only create pods with a controller owner reference set to itself"
        ));
    }
    if owner.get("blockOwnerDeletion").and_then(Value::as_bool) == Some(true) {
        return refuse(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let object = get_object(write, &NODES, Key::cluster(node)).await?;
    let (expected, actual) = (owner.str("uid"), meta::metadata(&object).str("uid"));
    if expected != actual {
        return refuse(format!("node {node} UID mismatch: expected {expected} got {actual}"));
    }
    Ok(())
}

fn check_pod_status(node: &str, new: &Value, old: Option<&Value>) -> Option<String> {
    if !is_on(old, node) {
        return Some(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let labels = |pod: Option<&Value>| pod.and_then(|pod| meta::metadata(pod).get("labels").cloned());
    if !same(labels(Some(new)).as_ref(), labels(old).as_ref()) {
        return Some(format!("node {node:?} cannot update labels through pod status"));
    }
    let claims =
        |pod: Option<&Value>| pod.and_then(|pod| pod.get_path(&["status", "resourceClaimStatuses"]).cloned());
    if !same(claims(Some(new)).as_ref(), claims(old).as_ref()) {
        return Some(format!("node {node:?} cannot update resource claim statues"));
    }
    None
}

async fn check_eviction(write: &Write<'_>, eviction: &Value, node: &str) -> Result<()> {
    let name = if write.call.name().is_empty() { meta::name(eviction) } else { write.call.name() };
    if name.is_empty() {
        return Err(write.forbidden(eviction, "could not determine pod from request data"));
    }
    let pod = get_object(write, &PODS, Key::namespaced(write.call.namespace(), name)).await?;
    if is_on(Some(&pod), node) {
        return Ok(());
    }
    let reason = format!("node {node} can only evict pods with spec.nodeName set to itself");
    Err(write.forbidden(eviction, &reason))
}

/// The name of the written object.
fn object_name<'a>(write: &'a Write<'_>, object: &'a Value) -> &'a str {
    if write.call.name().is_empty() { meta::name(object) } else { write.call.name() }
}

fn check_own_node(write: &Write<'_>, new: &Value, node: &str) -> Option<String> {
    let name = object_name(write, new);
    if name != node {
        return Some(format!("node {node:?} is not allowed to modify node {name:?}"));
    }
    if write.operation == Operation::Delete {
        return None;
    }
    let old = write.old.unwrap_or(&Value::Null);
    let is_changed = |path: &[&str]| !same(new.get_path(path), old.get_path(path));
    let forbidden = forbidden_labels(meta::metadata(new).get("labels"), meta::metadata(old).get("labels"));
    if write.operation == Operation::Create {
        if new.get_path(&["spec", "configSource"]).is_some() {
            return Some(format!("node {node:?} is not allowed to create pods with a non-nil configSource"));
        }
        let message =
            || format!("node {node:?} is not allowed to set the following labels: {}", forbidden.join(", "));
        return (!forbidden.is_empty()).then(message);
    }
    if new.get_path(&["spec", "configSource"]).is_some() && is_changed(&["spec", "configSource"]) {
        return Some(format!(
            "node {node:?} is not allowed to update configSource to a new non-nil configSource"
        ));
    }
    if is_changed(&["spec", "taints"]) {
        return Some(format!("node {node:?} is not allowed to modify taints"));
    }
    if is_changed(&["metadata", "ownerReferences"]) {
        return Some(format!("node {node:?} is not allowed to modify ownerReferences"));
    }
    (!forbidden.is_empty()).then(|| format!("is not allowed to modify labels: {}", forbidden.join(", ")))
}

/// The changed labels that a node must not change.
fn forbidden_labels(new: Option<&Value>, old: Option<&Value>) -> Vec<String> {
    let value = |labels: Option<&Value>, key: &str| labels.and_then(|all| all.get(key).cloned());
    let keys = [new, old].into_iter().flatten().filter_map(Value::fields).flat_map(|all| all.keys());
    let mut changed: Vec<String> =
        keys.filter(|key| value(new, key) != value(old, key) && !is_own_label(key)).cloned().collect();
    changed.sort_unstable();
    changed.dedup();
    changed
}

fn is_own_label(key: &str) -> bool {
    let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
    let is_in_domain = |domain: &str| prefix == domain || prefix.ends_with(&format!(".{domain}"));
    if is_in_domain(RESTRICTED) {
        return false;
    }
    let is_reserved = is_in_domain("kubernetes.io") || is_in_domain("k8s.io");
    !is_reserved || OWN_LABELS.contains(&key) || OWN_PREFIXES.iter().any(|own| is_in_domain(own))
}

fn check_claim_status(node: &str, new: &Value, old: Option<&Value>) -> Option<String> {
    const MUTABLE: [&str; 4] = ["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"];
    let immutable_part = |claim: &Value| {
        let mut claim = claim.clone();
        ["resourceVersion", "managedFields"].iter().for_each(|field| {
            claim.entry("metadata").remove(field);
        });
        MUTABLE.iter().for_each(|field| {
            claim.entry("status").remove(field);
        });
        // An empty status counts as absent.
        if claim.get("status").and_then(Value::fields).is_none_or(|fields| fields.is_empty()) {
            claim.remove("status");
        }
        claim
    };
    let is_unchanged = old.is_some_and(|old| same(Some(&immutable_part(new)), Some(&immutable_part(old))));
    (!is_unchanged).then(|| {
        format!(
            "node {node:?} is not allowed to update fields other than status.quantity and status.conditions"
        )
    })
}

fn check_lease(write: &Write<'_>, object: &Value, node: &str) -> Option<String> {
    if write.call.namespace() != LEASE_NAMESPACE {
        return Some(format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace"));
    }
    let is_other = object_name(write, object) != node;
    is_other.then(|| "can only access node lease with the same name as the requesting node".to_owned())
}

fn check_csi_node(write: &Write<'_>, object: &Value, node: &str) -> Option<String> {
    let is_other = object_name(write, object) != node;
    is_other.then(|| "can only access CSINode with the same name as the requesting node".to_owned())
}

fn check_slice(write: &Write<'_>, object: &Value, node: &str) -> Option<String> {
    let (verb, object) = match write.operation {
        Operation::Create => ("create", Some(object)),
        Operation::Delete => ("delete", write.old),
        Operation::Update | Operation::Connect => return None,
    };
    let is_other = !is_on(object, node);
    is_other.then(|| format!("can only {verb} ResourceSlice with the same NodeName as the requesting node"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_may_set_only_its_own_labels() {
        for own in [
            "app",
            "example.com/a",
            "kubernetes.io/hostname",
            "x.kubelet.kubernetes.io/a",
            "node.kubernetes.io/a",
        ] {
            assert!(is_own_label(own), "{own}");
        }
        for label in [
            "kubernetes.io/role",
            "node-role.kubernetes.io/master",
            "a.node-restriction.kubernetes.io/x",
            "k8s.io/a",
        ] {
            assert!(!is_own_label(label), "{label}");
        }
        let labels = |pairs: &[(&str, &str)]| {
            let mut labels = Value::object();
            pairs.iter().for_each(|(key, value)| labels.set(key, *value));
            labels
        };
        let old = labels(&[("kubernetes.io/role", "a"), ("k8s.io/b", "b"), ("app", "x")]);
        let new = labels(&[("kubernetes.io/role", "a"), ("k8s.io/c", "c")]);
        assert_eq!(forbidden_labels(Some(&new), Some(&old)), ["k8s.io/b", "k8s.io/c"]);
    }

    #[test]
    fn node_may_create_only_mirror_pods_without_references() {
        let mut pod = Value::object();
        assert!(check_mirror_pod("n", &pod).unwrap().contains("annotation"));
        pod.entry("metadata").entry("annotations").set(MIRROR, "x");
        assert!(check_mirror_pod("n", &pod).unwrap().contains("spec.nodeName"));
        pod.entry("spec").set("nodeName", "n");
        assert_eq!(check_mirror_pod("n", &pod).or(forbidden_reference("n", &pod)), None);
        let mut volume = Value::object();
        volume.entry("configMap").set("name", "c");
        pod.entry("spec").set("volumes", vec![volume]);
        assert_eq!(
            forbidden_reference("n", &pod).unwrap(),
            "node \"n\" can not create pods that reference configmaps"
        );
    }
}
