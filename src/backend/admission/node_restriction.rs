//! NodeRestriction: a node may write its own Node, its leases, and the status of its own pods. The node authorizer decides what
//! it may read.

mod requests;

use pilothouse_api::gates::{
    ALLOW_INSECURE_KUBELET_CERTIFICATE_SIGNING_REQUESTS, SERVICE_ACCOUNT_NODE_AUDIENCE_RESTRICTION,
};
use pilothouse_apimachinery::field_value::same;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::LEASE_NAMESPACE;
use pilothouse_apimachinery::well_known::annotations::MIRROR;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, TypeName};

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
        node_of(write.call.user).is_some()
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, object: &'a mut Value) -> Outcome<'a> {
        Box::pin(check(write, object, self.0))
    }
}

async fn check(write: &Write<'_>, object: &Value, allowances: Allowances) -> Result<()> {
    let Some(node) = node_of(write.call.user) else { return Ok(()) };
    let no = |why: String| Err(write.forbidden(object, &why));
    if node.is_empty() {
        return no(format!("could not determine node from user {:?}", write.call.user.name));
    }
    let of = write.call.of();
    let refused = match (of.group, of.resource, write.call.subresource) {
        ("", "pods", "") => match write.operation {
            Operation::Create => match mirror_pod(node, object) {
                None => {
                    owned_by(write, object, node).await?;
                    needs_something(node, object)
                }
                refused => refused,
            },
            Operation::Delete if is_on(write.old, node) => None,
            Operation::Delete => {
                Some(format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
            }
            Operation::Update | Operation::Connect => Some(format!(
                "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"
            )),
        },
        ("", "pods", "status") => pod_status(node, object, write.old),
        ("", "pods", "eviction") => return evicted(write, object, node).await,
        ("", "pods", part) => {
            Some(format!("unexpected pod subresource {part:?}, only 'status' and 'eviction' are allowed"))
        }
        ("", "nodes", _) => own_node(write, object, node),
        ("", "persistentvolumeclaims", "status") => claim_status(node, object, write.old),
        ("", "persistentvolumeclaims", _) => Some("may only update PVC status".to_owned()),
        ("", "serviceaccounts", "token") if write.operation == Operation::Create => {
            return requests::token(write, object, node, allowances).await;
        }
        ("certificates.k8s.io", "certificatesigningrequests", _)
            if write.operation == Operation::Create && !allowances.any_certificate =>
        {
            requests::certificate(object, node)
        }
        ("coordination.k8s.io", "leases", _) => lease(write, object, node),
        ("storage.k8s.io", "csinodes", _) => csi_node(write, object, node),
        ("resource.k8s.io", "resourceslices", _) => slice(write, object, node),
        _ => None,
    };
    refused.map_or(Ok(()), no)
}

fn is_on(pod: Option<&Value>, node: &str) -> bool {
    pod.and_then(|pod| pod.at(&["spec", "nodeName"])).and_then(Value::as_str) == Some(node)
}

/// Why a node must not create this pod: it is not a mirror pod of that node.
fn mirror_pod(node: &str, pod: &Value) -> Option<String> {
    if meta::of(pod).get("annotations").and_then(|all| all.get(MIRROR)).is_none() {
        return Some(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    if !is_on(Some(pod), node) {
        return Some(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    None
}

/// Why a node must not create this pod: it references other objects.
fn needs_something(node: &str, pod: &Value) -> Option<String> {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let no = |what: &str| Some(format!("node {node:?} can not create pods that reference {what}"));
    if !spec.str("serviceAccountName").is_empty() {
        return no("a service account");
    }
    let volumes = spec.get("volumes").map(Value::items).unwrap_or_default();
    // The field names tell what they reference, wherever they stand.
    let names = |fields: &[&str]| names_any(spec, fields);
    if names(&[
        "secretName",
        "secretRef",
        "secretKeyRef",
        "secret",
        "nodePublishSecretRef",
        "imagePullSecrets",
    ]) {
        return no("secrets");
    }
    if names(&["configMap", "configMapRef", "configMapKeyRef"]) {
        return no("configmaps");
    }
    if names(&["clusterTrustBundle"]) {
        return no("clustertrustbundles");
    }
    if volumes.iter().any(|volume| volume.get("persistentVolumeClaim").is_some()) {
        return no("persistentvolumeclaims");
    }
    if spec.get("resourceClaims").is_some_and(|claims| !claims.items().is_empty()) {
        return no("resourceclaims");
    }
    None
}

/// Whether a field of one of these names occurs anywhere in a value. Decoded values are no deeper than their schema.
fn names_any(value: &Value, fields: &[&str]) -> bool {
    match value {
        Value::Array(items) => items.iter().any(|item| names_any(item, fields)),
        Value::Object(all) => all.iter().any(|(field, value)| {
            (fields.contains(&field.as_str()) && !value.is_null()) || names_any(value, fields)
        }),
        _ => false,
    }
}

/// A type that this plug-in reads. All of them are stored as v1.
struct Looked {
    group: &'static str,
    resource: &'static str,
    kind: &'static str,
}

const PODS: Looked = Looked { group: "", resource: "pods", kind: "Pod" };
const NODES: Looked = Looked { group: "", resource: "nodes", kind: "Node" };

async fn find(write: &Write<'_>, of: &Looked, namespace: &str, name: &str) -> Result<Value> {
    let Looked { group, resource, kind } = *of;
    let store = GroupResource { group, resource }.to_string();
    let key = if namespace.is_empty() { Key::cluster(name) } else { Key::namespaced(namespace, name) };
    let found = write.backend.stores.get(&TypeName::new(&store), key, &write.call.permit).await;
    // Messages name the missing object by its kind, as the reference's caches do.
    let singular = kind.to_lowercase();
    let of = GroupResource { group, resource: &singular };
    let found = found.map_err(|error: StoreError| Status::from_store(&error, of, name))?;
    write.backend.objects.load_kind(&GroupVersion::new(group, "v1"), kind, &found)
}

/// Refuses a pod that its node does not own.
async fn owned_by(write: &Write<'_>, pod: &Value, node: &str) -> Result<()> {
    let no = |why: String| Err(write.forbidden(pod, &why));
    let owners = meta::of(pod).get("ownerReferences").map(Value::items).unwrap_or_default();
    let itself = format!("node {node:?} can only create pods with an owner reference set to itself");
    let owner = match owners {
        [owner] => owner,
        [] => return no(itself),
        _ => {
            return no(format!(
                "node {node:?} can only create pods with a single owner reference set to itself"
            ));
        }
    };
    if owner.str("apiVersion") != "v1" || owner.str("kind") != "Node" || owner.str("name") != node {
        return no(itself);
    }
    if owner.get("controller").and_then(Value::as_bool) != Some(true) {
        return no(format!(
            "node {node:?} can only create pods with a controller owner reference set to itself"
        ));
    }
    if owner.get("blockOwnerDeletion").and_then(Value::as_bool) == Some(true) {
        return no(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let found = find(write, &NODES, "", node).await?;
    let (said, is) = (owner.str("uid"), meta::of(&found).str("uid"));
    if said != is {
        return no(format!("node {node} UID mismatch: expected {said} got {is}"));
    }
    Ok(())
}

fn pod_status(node: &str, new: &Value, old: Option<&Value>) -> Option<String> {
    if !is_on(old, node) {
        return Some(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let labels = |pod: Option<&Value>| pod.and_then(|pod| meta::of(pod).get("labels").cloned());
    if !same(labels(Some(new)).as_ref(), labels(old).as_ref()) {
        return Some(format!("node {node:?} cannot update labels through pod status"));
    }
    let claims =
        |pod: Option<&Value>| pod.and_then(|pod| pod.at(&["status", "resourceClaimStatuses"]).cloned());
    if !same(claims(Some(new)).as_ref(), claims(old).as_ref()) {
        return Some(format!("node {node:?} cannot update resource claim statues"));
    }
    None
}

async fn evicted(write: &Write<'_>, eviction: &Value, node: &str) -> Result<()> {
    let name = if write.call.name.is_empty() { meta::name(eviction) } else { write.call.name };
    if name.is_empty() {
        return Err(write.forbidden(eviction, "could not determine pod from request data"));
    }
    let pod = find(write, &PODS, write.call.namespace, name).await?;
    if is_on(Some(&pod), node) {
        return Ok(());
    }
    let why = format!("node {node} can only evict pods with spec.nodeName set to itself");
    Err(write.forbidden(eviction, &why))
}

/// The name of the written object.
fn written<'a>(write: &'a Write<'_>, object: &'a Value) -> &'a str {
    if write.call.name.is_empty() { meta::name(object) } else { write.call.name }
}

fn own_node(write: &Write<'_>, new: &Value, node: &str) -> Option<String> {
    let name = written(write, new);
    if name != node {
        return Some(format!("node {node:?} is not allowed to modify node {name:?}"));
    }
    if write.operation == Operation::Delete {
        return None;
    }
    let old = write.old.unwrap_or(&Value::Null);
    let differ = |path: &[&str]| !same(new.at(path), old.at(path));
    let forbidden = forbidden_labels(meta::of(new).get("labels"), meta::of(old).get("labels"));
    if write.operation == Operation::Create {
        if new.at(&["spec", "configSource"]).is_some() {
            return Some(format!("node {node:?} is not allowed to create pods with a non-nil configSource"));
        }
        let told =
            || format!("node {node:?} is not allowed to set the following labels: {}", forbidden.join(", "));
        return (!forbidden.is_empty()).then(told);
    }
    if new.at(&["spec", "configSource"]).is_some() && differ(&["spec", "configSource"]) {
        return Some(format!(
            "node {node:?} is not allowed to update configSource to a new non-nil configSource"
        ));
    }
    if differ(&["spec", "taints"]) {
        return Some(format!("node {node:?} is not allowed to modify taints"));
    }
    if differ(&["metadata", "ownerReferences"]) {
        return Some(format!("node {node:?} is not allowed to modify ownerReferences"));
    }
    (!forbidden.is_empty()).then(|| format!("is not allowed to modify labels: {}", forbidden.join(", ")))
}

/// The changed labels that a node must not change.
fn forbidden_labels(new: Option<&Value>, old: Option<&Value>) -> Vec<String> {
    let value = |labels: Option<&Value>, key: &str| labels.and_then(|all| all.get(key).cloned());
    let both = [new, old].into_iter().flatten().filter_map(Value::fields).flat_map(|all| all.keys());
    let mut changed: Vec<String> =
        both.filter(|key| value(new, key) != value(old, key) && !is_own_label(key)).cloned().collect();
    changed.sort_unstable();
    changed.dedup();
    changed
}

fn is_own_label(key: &str) -> bool {
    let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
    let within = |domain: &str| prefix == domain || prefix.ends_with(&format!(".{domain}"));
    if within(RESTRICTED) {
        return false;
    }
    let of_cluster = within("kubernetes.io") || within("k8s.io");
    !of_cluster || OWN_LABELS.contains(&key) || OWN_PREFIXES.iter().any(|own| within(own))
}

fn claim_status(node: &str, new: &Value, old: Option<&Value>) -> Option<String> {
    const FREE: [&str; 4] = ["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"];
    let fixed = |claim: &Value| {
        let mut claim = claim.clone();
        ["resourceVersion", "managedFields"].iter().for_each(|field| {
            claim.entry("metadata").remove(field);
        });
        FREE.iter().for_each(|field| {
            claim.entry("status").remove(field);
        });
        // An empty status counts as absent.
        if claim.get("status").and_then(Value::fields).is_none_or(|fields| fields.is_empty()) {
            claim.remove("status");
        }
        claim
    };
    let unchanged = old.is_some_and(|old| same(Some(&fixed(new)), Some(&fixed(old))));
    (!unchanged).then(|| {
        format!(
            "node {node:?} is not allowed to update fields other than status.quantity and status.conditions"
        )
    })
}

fn lease(write: &Write<'_>, lease: &Value, node: &str) -> Option<String> {
    if write.call.namespace != LEASE_NAMESPACE {
        return Some(format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace"));
    }
    let other = written(write, lease) != node;
    other.then(|| "can only access node lease with the same name as the requesting node".to_owned())
}

fn csi_node(write: &Write<'_>, csi_node: &Value, node: &str) -> Option<String> {
    let other = written(write, csi_node) != node;
    other.then(|| "can only access CSINode with the same name as the requesting node".to_owned())
}

fn slice(write: &Write<'_>, slice: &Value, node: &str) -> Option<String> {
    let (verb, slice) = match write.operation {
        Operation::Create => ("create", Some(slice)),
        Operation::Delete => ("delete", write.old),
        Operation::Update | Operation::Connect => return None,
    };
    let other = !is_on(slice, node);
    other.then(|| format!("can only {verb} ResourceSlice with the same NodeName as the requesting node"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_labels_itself_only_with_what_is_its_own() {
        for own in [
            "app",
            "example.com/a",
            "kubernetes.io/hostname",
            "x.kubelet.kubernetes.io/a",
            "node.kubernetes.io/a",
        ] {
            assert!(is_own_label(own), "{own}");
        }
        for other in [
            "kubernetes.io/role",
            "node-role.kubernetes.io/master",
            "a.node-restriction.kubernetes.io/x",
            "k8s.io/a",
        ] {
            assert!(!is_own_label(other), "{other}");
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
    fn a_node_tells_of_pods_that_need_nothing() {
        let mut pod = Value::object();
        assert!(mirror_pod("n", &pod).unwrap().contains("annotation"));
        pod.entry("metadata").entry("annotations").set(MIRROR, "x");
        assert!(mirror_pod("n", &pod).unwrap().contains("spec.nodeName"));
        pod.entry("spec").set("nodeName", "n");
        assert_eq!(mirror_pod("n", &pod).or(needs_something("n", &pod)), None);
        let mut volume = Value::object();
        volume.entry("configMap").set("name", "c");
        pod.entry("spec").set("volumes", vec![volume]);
        assert_eq!(
            needs_something("n", &pod).unwrap(),
            "node \"n\" can not create pods that reference configmaps"
        );
    }
}
