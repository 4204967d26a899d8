//! Which cluster of etcd has the objects of which type: `--etcd-servers-overrides`.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use pilothouse_actors::shared_log::scope::TypeScope;
use pilothouse_api::catalog::build::Builtin;
use pilothouse_api::custom::definition::group_resource_of_store;
use pilothouse_apimachinery::status::GroupResource;
use pilothouse_apimachinery::well_known::{API_EXTENSIONS_GROUP, API_REGISTRATION_GROUP};
use pilothouse_types::object::TypeName;

use crate::config::etcd::ServersOverride;

/// The resource of the records of live servers, as overrides call it.
pub(super) const SERVER_RECORDS: &str = "apiServerIPInfo";
/// The resource of the records by which servers reach each other.
pub(super) const PEER_RECORDS: &str = "apiServerPeerIPInfo";
/// The resource of an override for all resources of its group without one of their own.
const ALL_RESOURCES: &str = "*";

/// A cluster beside that of all other resources.
pub(super) struct OtherCluster {
    pub(super) servers: Vec<String>,
    pub(super) types: HashSet<TypeName>,
}

/// The clusters of the overrides, in the order of the overrides. `servers`: those of all other resources. As in the reference,
/// definitions, custom resources and APIServices have no overrides.
pub(super) fn other_clusters(
    overrides: &[ServersOverride],
    servers: &[String],
    builtin: &Builtin,
) -> Vec<OtherCluster> {
    let stored = builtin.resources().iter().filter_map(|resource| Some(resource.stored()?.store.clone()));
    let names: BTreeSet<TypeName> = stored.chain([SERVER_RECORDS, PEER_RECORDS].map(TypeName::new)).collect();
    let mut clusters: Vec<OtherCluster> = Vec::new();
    for name in names {
        let Some(decisive) = decisive(overrides, &name).filter(|decisive| decisive.servers != servers) else {
            continue;
        };
        match clusters.iter_mut().find(|cluster| cluster.servers == decisive.servers) {
            Some(cluster) => drop(cluster.types.insert(name)),
            None => clusters
                .push(OtherCluster { servers: decisive.servers.clone(), types: HashSet::from([name]) }),
        }
    }
    let place = |cluster: &OtherCluster| overrides.iter().position(|entry| entry.servers == cluster.servers);
    clusters.sort_by_key(place);
    clusters
}

/// The override of a type, if it has one. The last of several counts, and one for the resource before one for its group.
fn decisive<'a>(overrides: &'a [ServersOverride], name: &TypeName) -> Option<&'a ServersOverride> {
    let GroupResource { group, resource } = group_resource_of_store(name);
    if [API_EXTENSIONS_GROUP, API_REGISTRATION_GROUP].contains(&group) {
        return None;
    }
    let last = |wanted: &str| {
        overrides.iter().rev().find(|entry| (&*entry.group, &*entry.resource) == (group, wanted))
    };
    last(resource).or_else(|| last(ALL_RESOURCES))
}

/// The types that are in none of these clusters.
pub(super) fn main_scope(clusters: &[OtherCluster]) -> TypeScope {
    TypeScope::AllBut(Arc::new(clusters.iter().flat_map(|cluster| cluster.types.iter().cloned()).collect()))
}

/// The overrides that concern no type, as an operator wrote them.
pub(super) fn unused(overrides: &[ServersOverride], builtin: &Builtin) -> Vec<String> {
    let is_used = |entry: &&ServersOverride| {
        let entry = std::slice::from_ref(*entry);
        !other_clusters(entry, &[], builtin).is_empty()
    };
    let unused = overrides.iter().filter(|entry| !is_used(entry));
    unused.map(|entry| format!("{}/{}", entry.group, entry.resource)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overrides(text: &str) -> Vec<ServersOverride> {
        text.split(',').map(|entry| entry.parse().unwrap()).collect()
    }

    #[test]
    fn overrides_decide_by_resource_and_then_by_group() {
        let builtin = Builtin::load().unwrap();
        let (event, lease) = (TypeName::new("events"), TypeName::new("leases.coordination.k8s.io"));
        let main = ["http://main:1".to_owned()];
        let clusters = |text| other_clusters(&overrides(text), &main, &builtin);
        let all = clusters(
            "/events#http://a:1,apps/*#http://b:1;http://c:1,apps/daemonsets#http://a:1,\
             coordination.k8s.io/leases#http://d:1,coordination.k8s.io/leases#http://main:1",
        );
        let [a, b] = all.as_slice() else { panic!("{} clusters", all.len()) };
        assert_eq!((a.servers.len(), b.servers.len()), (1, 2));
        assert_eq!(a.types, HashSet::from([event.clone(), TypeName::new("daemonsets.apps")]));
        assert!(b.types.contains(&TypeName::new("deployments.apps")) && b.types.len() == 4, "{:?}", b.types);
        let scope = main_scope(&all);
        assert!(!scope.has(&event) && scope.has(&lease) && scope.has(&TypeName::new("custom/a.b.c")));
        // Events of both groups are one type, that of the core group.
        assert!(clusters("events.k8s.io/events#http://a:1").is_empty());
        let core = clusters("/*#http://a:1").remove(0).types;
        assert!(core.contains(&event));
        assert!([SERVER_RECORDS, PEER_RECORDS].iter().all(|records| core.contains(&TypeName::new(records))));
        for none in ["apiextensions.k8s.io/*#http://a:1", "apiregistration.k8s.io/apiservices#http://a:1"] {
            assert!(clusters(none).is_empty(), "{none}");
        }
    }

    #[test]
    fn overrides_without_a_type_are_named() {
        let builtin = Builtin::load().unwrap();
        let all = overrides("/events#http://a:1,toys.example/kites#http://a:1,/nothing#http://a:1");
        assert_eq!(unused(&all, &builtin), ["toys.example/kites", "/nothing"]);
    }
}
