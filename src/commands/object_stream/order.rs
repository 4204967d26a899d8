//! The order in which objects are created: what others need comes first.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_apimachinery::well_known::{ADMISSION_REGISTRATION_GROUP, API_REGISTRATION_GROUP};

/// The part of an import that an object belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Phase {
    /// Namespaces, in which the others are.
    Namespaces,
    /// CustomResourceDefinitions, without which there are no custom resources.
    Definitions,
    /// Service accounts, which pods and token Secrets name.
    ServiceAccounts,
    /// Other objects without a namespace: classes, volumes, roles.
    Cluster,
    /// Secrets, ConfigMaps and claims, which workloads mount.
    Inputs,
    /// All other objects.
    Namespaced,
    /// What may refuse or change objects: quotas, limit ranges, admission policies and webhooks. What the old cluster had accepted
    /// must not be refused because the program behind a webhook does not run yet.
    Guards,
    /// APIServices, which can take a whole group away from the server.
    ApiServices,
}

impl Phase {
    /// The phase of a kind.
    pub(crate) fn new(group: &str, kind: &str, is_namespaced: bool) -> Phase {
        match (group, kind) {
            ("", "Namespace") => Phase::Namespaces,
            ("apiextensions.k8s.io", "CustomResourceDefinition") => Phase::Definitions,
            ("", "ServiceAccount") => Phase::ServiceAccounts,
            ("", "Secret" | "ConfigMap" | "PersistentVolumeClaim") => Phase::Inputs,
            ("", "ResourceQuota" | "LimitRange") => Phase::Guards,
            (ADMISSION_REGISTRATION_GROUP, _) => Phase::Guards,
            (API_REGISTRATION_GROUP, _) => Phase::ApiServices,
            _ if is_namespaced => Phase::Namespaced,
            _ => Phase::Cluster,
        }
    }
}

/// An object, as far as the order depends on it.
#[derive(Debug)]
pub(crate) struct Node {
    /// Its phase.
    pub phase: Phase,
    /// The indexes of the objects that must exist before it: its owners, its namespace, its definition.
    pub needs: Vec<u32>,
}

/// Groups of indexes. The objects of a group need only those of earlier groups, so they can be created at the same time. Within its
/// needs, an object comes in its phase. Objects that need each other in a circle cannot be ordered: one of them comes before
/// something that it needs.
pub(crate) fn waves(nodes: &[Node]) -> Vec<Vec<u32>> {
    let mut dependents: Vec<Vec<u32>> = vec![Vec::new(); nodes.len()];
    let mut missing: Vec<usize> = nodes.iter().map(|node| node.needs.len()).collect();
    for (index, node) in nodes.iter().enumerate() {
        for need in &node.needs {
            if let Some(dependents) = dependents.get_mut(*need as usize) {
                dependents.push(index as u32);
            }
        }
    }
    // The phase, and the number of steps from the beginning of that phase.
    let mut ranks: Vec<(Phase, u32)> = nodes.iter().map(|node| (node.phase, 0)).collect();
    let mut waiting: BTreeSet<(Phase, u32)> = BTreeSet::new();
    let mut ready: Vec<u32> = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        match node.needs.is_empty() {
            true => ready.push(index as u32),
            false => _ = waiting.insert((node.phase, index as u32)),
        }
    }
    let mut waves: BTreeMap<(Phase, u32), Vec<u32>> = BTreeMap::new();
    loop {
        let index = match ready.pop() {
            Some(index) => index,
            // Only circles are left, and what needs them: an object of one is created without what it still needs.
            None => match waiting.first() {
                Some((_, index)) => find_in_circle(nodes, &waiting, *index),
                None => break,
            },
        };
        if let Some(node) = nodes.get(index as usize) {
            waiting.remove(&(node.phase, index));
        }
        let Some(rank) = ranks.get(index as usize).copied() else { continue };
        waves.entry(rank).or_default().push(index);
        for dependent in dependents.get_mut(index as usize).map(std::mem::take).unwrap_or_default() {
            let position = dependent as usize;
            let (Some(node), Some(missing), Some(own)) =
                (nodes.get(position), missing.get_mut(position), ranks.get_mut(position))
            else {
                continue;
            };
            *own = (*own).max((rank.0, rank.1 + 1));
            *missing -= 1;
            // One that was taken out of its circle is done.
            if *missing == 0 && waiting.remove(&(node.phase, dependent)) {
                ready.push(dependent);
            }
        }
    }
    let mut waves: Vec<Vec<u32>> = waves.into_values().collect();
    // In the order of the stream.
    waves.iter_mut().for_each(|wave| wave.sort_unstable());
    waves
}

/// An object that needs itself in the end, found by following the needs of `start` that are still waiting.
fn find_in_circle(nodes: &[Node], waiting: &BTreeSet<(Phase, u32)>, start: u32) -> u32 {
    let mut visited = BTreeSet::new();
    let mut index = start;
    while visited.insert(index) {
        let is_waiting = |need: &&u32| {
            nodes.get(**need as usize).is_some_and(|node| waiting.contains(&(node.phase, **need)))
        };
        let needs = nodes.get(index as usize).map(|node| node.needs.as_slice()).unwrap_or_default();
        index = needs.iter().find(is_waiting).copied().unwrap_or(index);
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(phase: Phase, needs: &[u32]) -> Node {
        Node { phase, needs: needs.to_vec() }
    }

    #[test]
    fn kinds_have_their_phases() {
        for (group, kind, is_namespaced, phase) in [
            ("", "Namespace", false, Phase::Namespaces),
            ("apiextensions.k8s.io", "CustomResourceDefinition", false, Phase::Definitions),
            ("", "Node", false, Phase::Cluster),
            ("apps", "Deployment", true, Phase::Namespaced),
            ("example.com", "Namespace", true, Phase::Namespaced),
            (ADMISSION_REGISTRATION_GROUP, "ValidatingWebhookConfiguration", false, Phase::Guards),
            (API_REGISTRATION_GROUP, "APIService", false, Phase::ApiServices),
        ] {
            assert_eq!(Phase::new(group, kind, is_namespaced), phase, "{group} {kind}");
        }
        assert!(Phase::Namespaces < Phase::Definitions && Phase::Namespaced < Phase::Guards);
    }

    #[test]
    fn objects_come_by_phase() {
        let nodes = [Phase::Namespaced, Phase::Guards, Phase::Namespaces, Phase::Namespaced]
            .map(|phase| node(phase, &[]));
        assert_eq!(waves(&nodes), [vec![2], vec![0, 3], vec![1]]);
    }

    #[test]
    fn owners_come_before_their_dependents() {
        // Pod, ReplicaSet, Deployment: in the stream the other way round.
        let nodes = [
            node(Phase::Namespaced, &[1]),
            node(Phase::Namespaced, &[2]),
            node(Phase::Namespaced, &[]),
            node(Phase::Namespaced, &[]),
        ];
        assert_eq!(waves(&nodes), [vec![2, 3], vec![1], vec![0]]);
    }

    #[test]
    fn owner_of_later_phase_delays_its_dependents() {
        // A custom resource owns a service account; a cluster-scoped one owns a namespace with an object in it.
        let nodes = [
            node(Phase::ServiceAccounts, &[1]),
            node(Phase::Namespaced, &[]),
            node(Phase::Namespaces, &[3]),
            node(Phase::Cluster, &[]),
            node(Phase::Inputs, &[2]),
        ];
        assert_eq!(waves(&nodes), [vec![3], vec![2], vec![4], vec![1], vec![0]]);
    }

    #[test]
    fn circles_are_broken_and_the_rest_is_ordered() {
        let nodes = [
            node(Phase::Namespaced, &[1]),
            node(Phase::Namespaced, &[0]),
            node(Phase::ServiceAccounts, &[0]),
            node(Phase::Namespaced, &[3, 3]),
        ];
        let order = waves(&nodes).concat();
        let position = |index: u32| order.iter().position(|other| *other == index).unwrap();
        assert_eq!(order.len(), 4);
        assert!(position(0) < position(2), "what is not in the circle waits for it: {order:?}");
    }
}
