//! The objects that a node may read: those that its pods need.
//!
//! Pods connect a node with Secrets, ConfigMaps, claims and service accounts; volumes connect a claim with the Secrets that they
//! need. Indexed by the needed object, so that a decision is one lookup.

use std::collections::{BTreeSet, HashMap};

use pilothouse_apimachinery::well_known::annotations::MIRROR;
use serde_json::Value as Json;

/// A kind of object that a node may read because of its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PodDependency {
    /// A pod itself.
    Pod,
    /// A Secret.
    Secret,
    /// A ConfigMap.
    ConfigMap,
    /// A PersistentVolumeClaim.
    Claim,
    /// A ServiceAccount.
    Account,
    /// A ResourceClaim.
    DeviceClaim,
}

/// An object: kind, namespace and name.
type ObjectKey = (PodDependency, Box<str>, Box<str>);

#[derive(Debug)]
struct Pod {
    node: Box<str>,
    needs: BTreeSet<ObjectKey>,
}

#[derive(Debug)]
struct Volume {
    claim: ObjectKey,
    secrets: BTreeSet<ObjectKey>,
}

/// The graph. See the module documentation.
#[derive(Debug, Default)]
pub struct Graph {
    pods: HashMap<(Box<str>, Box<str>), Pod>,
    volumes: HashMap<Box<str>, Volume>,
    /// The number of pods per node that need an object.
    needed: HashMap<ObjectKey, HashMap<Box<str>, usize>>,
    /// The claims whose volumes need a Secret, by volume.
    volume_secrets: HashMap<ObjectKey, HashMap<Box<str>, ObjectKey>>,
    attachments: HashMap<Box<str>, Box<str>>,
    slices: HashMap<Box<str>, Box<str>>,
}

/// Volume types, of pods and persistent volumes, that reference a Secret.
const SECRET_REFS: [&str; 7] = ["cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos"];
/// The Secrets of a CSI volume that a kubelet needs.
const CSI_SECRETS: [&str; 3] = ["nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"];

fn text<'a>(value: &'a Json, path: &[&str]) -> &'a str {
    path.iter().fold(value, |value, field| &value[*field]).as_str().unwrap_or_default()
}

fn items<'a>(value: &'a Json, field: &str) -> &'a [Json] {
    value[field].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// All objects that a pod needs.
fn pod_needs(pod: &Json, namespace: &str, name: &str) -> BTreeSet<ObjectKey> {
    let mut needs = BTreeSet::new();
    let mut need = |kind: PodDependency, name: &str| {
        if !name.is_empty() {
            needs.insert((kind, namespace.into(), name.into()));
        }
    };
    need(PodDependency::Pod, name);
    // A mirror pod needs nothing from the server.
    if !pod["metadata"]["annotations"][MIRROR].is_null() {
        return needs;
    }
    let spec = &pod["spec"];
    need(PodDependency::Account, text(spec, &["serviceAccountName"]));
    items(spec, "imagePullSecrets")
        .iter()
        .for_each(|secret| need(PodDependency::Secret, text(secret, &["name"])));
    let containers = ["containers", "initContainers", "ephemeralContainers"];
    for container in containers.iter().flat_map(|field| items(spec, field)) {
        for source in items(container, "envFrom") {
            need(PodDependency::Secret, text(source, &["secretRef", "name"]));
            need(PodDependency::ConfigMap, text(source, &["configMapRef", "name"]));
        }
        for env in items(container, "env") {
            need(PodDependency::Secret, text(env, &["valueFrom", "secretKeyRef", "name"]));
            need(PodDependency::ConfigMap, text(env, &["valueFrom", "configMapKeyRef", "name"]));
        }
    }
    for volume in items(spec, "volumes") {
        for field in SECRET_REFS {
            need(PodDependency::Secret, text(volume, &[field, "secretRef", "name"]));
        }
        need(PodDependency::Secret, text(volume, &["csi", "nodePublishSecretRef", "name"]));
        need(PodDependency::Secret, text(volume, &["azureFile", "secretName"]));
        need(PodDependency::Secret, text(volume, &["secret", "secretName"]));
        need(PodDependency::ConfigMap, text(volume, &["configMap", "name"]));
        for source in items(&volume["projected"], "sources") {
            need(PodDependency::Secret, text(source, &["secret", "name"]));
            need(PodDependency::ConfigMap, text(source, &["configMap", "name"]));
        }
        need(PodDependency::Claim, text(volume, &["persistentVolumeClaim", "claimName"]));
        if !volume["ephemeral"].is_null() {
            need(PodDependency::Claim, &format!("{name}-{}", text(volume, &["name"])));
        }
    }
    items(spec, "resourceClaims")
        .iter()
        .for_each(|claim| need(PodDependency::DeviceClaim, text(claim, &["resourceClaimName"])));
    for status in items(&pod["status"], "resourceClaimStatuses") {
        need(PodDependency::DeviceClaim, text(status, &["resourceClaimName"]));
    }
    needs
}

/// All objects that a persistent volume needs.
fn parse_volume(volume: &Json) -> Option<Volume> {
    let spec = &volume["spec"];
    let claim = &spec["claimRef"];
    let (namespace, name) = (text(claim, &["namespace"]), text(claim, &["name"]));
    if name.is_empty() {
        return None;
    }
    let mut secrets = BTreeSet::new();
    let mut need = |reference: &Json, field: &str, namespace_field: &str| {
        let (name, own_namespace) = (text(reference, &[field]), text(reference, &[namespace_field]));
        if !name.is_empty() {
            let namespace = if own_namespace.is_empty() { namespace } else { own_namespace };
            secrets.insert((PodDependency::Secret, namespace.into(), name.into()));
        }
    };
    for field in SECRET_REFS {
        need(&spec[field]["secretRef"], "name", "namespace");
    }
    for field in CSI_SECRETS {
        need(&spec["csi"][field], "name", "namespace");
    }
    need(&spec["azureFile"], "secretName", "secretNamespace");
    Some(Volume { claim: (PodDependency::Claim, namespace.into(), name.into()), secrets })
}

impl Graph {
    /// Adds a pod, or replaces its older state. A pod that cannot be parsed is removed.
    pub fn put_pod(&mut self, namespace: &str, name: &str, json: &[u8]) -> serde_json::Result<()> {
        self.remove_pod(namespace, name);
        let pod = serde_json::from_slice::<Json>(json)?;
        let node: Box<str> = text(&pod, &["spec", "nodeName"]).into();
        if node.is_empty() {
            return Ok(());
        }
        let needs = pod_needs(&pod, namespace, name);
        for key in &needs {
            *self.needed.entry(key.clone()).or_default().entry(node.clone()).or_default() += 1;
        }
        self.pods.insert((namespace.into(), name.into()), Pod { node, needs });
        Ok(())
    }

    /// Removes a pod.
    pub fn remove_pod(&mut self, namespace: &str, name: &str) {
        let Some(pod) = self.pods.remove(&(Box::from(namespace), Box::from(name))) else { return };
        for key in &pod.needs {
            let Some(nodes) = self.needed.get_mut(key) else { continue };
            if let Some(count) = nodes.get_mut(&pod.node) {
                *count -= 1;
                if *count == 0 {
                    nodes.remove(&pod.node);
                }
            }
            if nodes.is_empty() {
                self.needed.remove(key);
            }
        }
    }

    /// Adds a volume, or replaces its older state.
    pub fn put_volume(&mut self, name: &str, json: &[u8]) -> serde_json::Result<()> {
        self.remove_volume(name);
        let Some(volume) = parse_volume(&serde_json::from_slice(json)?) else { return Ok(()) };
        for secret in &volume.secrets {
            self.volume_secrets.entry(secret.clone()).or_default().insert(name.into(), volume.claim.clone());
        }
        self.volumes.insert(name.into(), volume);
        Ok(())
    }

    /// Removes a volume.
    pub fn remove_volume(&mut self, name: &str) {
        let Some(volume) = self.volumes.remove(name) else { return };
        for secret in &volume.secrets {
            let Some(claims) = self.volume_secrets.get_mut(secret) else { continue };
            claims.remove(name);
            if claims.is_empty() {
                self.volume_secrets.remove(secret);
            }
        }
    }

    /// Adds a VolumeAttachment.
    pub fn put_attachment(&mut self, name: &str, json: &[u8]) -> serde_json::Result<()> {
        put_node(&mut self.attachments, name, json)
    }

    /// Removes a VolumeAttachment.
    pub fn remove_attachment(&mut self, name: &str) {
        self.attachments.remove(name);
    }

    /// Adds a ResourceSlice.
    pub fn put_slice(&mut self, name: &str, json: &[u8]) -> serde_json::Result<()> {
        put_node(&mut self.slices, name, json)
    }

    /// Removes a ResourceSlice.
    pub fn remove_slice(&mut self, name: &str) {
        self.slices.remove(name);
    }

    /// Removes all pods (0), volumes (1), attachments (2) or slices, before they are read again.
    pub fn forget(&mut self, kind: usize) {
        match kind {
            0 => {
                self.pods.clear();
                self.needed.clear();
            }
            1 => {
                self.volumes.clear();
                self.volume_secrets.clear();
            }
            2 => self.attachments.clear(),
            _ => self.slices.clear(),
        }
    }

    /// Whether a pod on this node needs this object.
    pub fn needs(&self, node: &str, kind: PodDependency, namespace: &str, name: &str) -> bool {
        let key = (kind, Box::from(namespace), Box::from(name));
        self.needs_directly(node, &key)
            || self
                .volume_secrets
                .get(&key)
                .is_some_and(|claims| claims.values().any(|claim| self.needs_directly(node, claim)))
    }

    fn needs_directly(&self, node: &str, key: &ObjectKey) -> bool {
        self.needed.get(key).is_some_and(|nodes| nodes.contains_key(node))
    }

    /// Whether a pod on this node needs this volume.
    pub fn needs_volume(&self, node: &str, name: &str) -> bool {
        self.volumes.get(name).is_some_and(|volume| self.needs_directly(node, &volume.claim))
    }

    /// Whether this VolumeAttachment is for this node.
    pub fn has_attachment(&self, node: &str, name: &str) -> bool {
        self.attachments.get(name).is_some_and(|attached| **attached == *node)
    }

    /// Whether this ResourceSlice is of this node.
    pub fn has_slice(&self, node: &str, name: &str) -> bool {
        self.slices.get(name).is_some_and(|owner| **owner == *node)
    }
}

fn put_node(map: &mut HashMap<Box<str>, Box<str>>, name: &str, json: &[u8]) -> serde_json::Result<()> {
    map.remove(name);
    let object = serde_json::from_slice::<Json>(json)?;
    let node = text(&object, &["spec", "nodeName"]);
    if !node.is_empty() {
        map.insert(name.into(), node.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn put(graph: &mut Graph, name: &str, node: &str, spec: &Json) {
        let mut pod = json!({"spec": spec});
        pod["spec"]["nodeName"] = node.into();
        graph.put_pod("n", name, pod.to_string().as_bytes()).unwrap();
    }

    #[test]
    fn node_needs_follow_its_pods() {
        let mut graph = Graph::default();
        let spec = json!({
            "serviceAccountName": "sa",
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "env"}}}],
                            "envFrom": [{"configMapRef": {"name": "all"}}]}],
            "volumes": [{"name": "v", "secret": {"secretName": "vol"}}, {"name": "e", "ephemeral": {}},
                        {"projected": {"sources": [{"configMap": {"name": "part"}}]}}],
        });
        put(&mut graph, "a", "n1", &spec);
        put(&mut graph, "b", "n1", &json!({"imagePullSecrets": [{"name": "pull"}]}));
        for (kind, name) in [
            (PodDependency::Account, "sa"),
            (PodDependency::Secret, "pull"),
            (PodDependency::Secret, "env"),
            (PodDependency::Secret, "vol"),
            (PodDependency::ConfigMap, "all"),
            (PodDependency::ConfigMap, "part"),
            (PodDependency::Claim, "a-e"),
            (PodDependency::Pod, "a"),
        ] {
            assert!(graph.needs("n1", kind, "n", name), "{name}");
            assert!(!graph.needs("n2", kind, "n", name) && !graph.needs("n1", kind, "m", name), "{name}");
        }
        graph.remove_pod("n", "a");
        assert!(
            graph.needs("n1", PodDependency::Secret, "n", "pull")
                && !graph.needs("n1", PodDependency::Secret, "n", "env")
        );
        graph.remove_pod("n", "b");
        assert!(graph.needed.is_empty() && graph.pods.is_empty());
    }

    #[test]
    fn volume_secrets_are_needed_through_claims() {
        let mut graph = Graph::default();
        put(&mut graph, "a", "n1", &json!({"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}]}));
        let volume = json!({"spec": {
            "claimRef": {"namespace": "n", "name": "c"},
            "csi": {"nodeStageSecretRef": {"name": "s", "namespace": "x"}, "controllerExpandSecretRef": {"name": "t", "namespace": "x"}},
        }});
        graph.put_volume("pv", volume.to_string().as_bytes()).unwrap();
        assert!(graph.needs_volume("n1", "pv") && !graph.needs_volume("n2", "pv"));
        assert!(
            graph.needs("n1", PodDependency::Secret, "x", "s")
                && !graph.needs("n1", PodDependency::Secret, "x", "t")
        );
        graph.remove_volume("pv");
        assert!(!graph.needs("n1", PodDependency::Secret, "x", "s") && graph.volume_secrets.is_empty());
    }
}
