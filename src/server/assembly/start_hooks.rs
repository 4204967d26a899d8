//! The start hooks of the reference that have a counterpart here, and the step of the start that each stands for. A hook without a step
//! is not listed: neither one that does something that does not exist here, nor one that a flag or gate switches off.

use pilothouse_actors::start_steps::StartSteps;
use pilothouse_api::catalog::Catalog;
use pilothouse_api::gates::{COORDINATED_LEADER_ELECTION, WATCH_CACHE_INITIALIZATION_POST_START_HOOK};

use super::controller_setup::keeps_identity;
use crate::bootstrap::steps;
use crate::config::Config;
use crate::controllers::{
    apiservice_registration, availability, coordinated_election, extension_openapi, own_objects,
    peer_discovery, peer_record, server_identity, server_leases, service_repair, token_use,
};
use crate::http::handler::health::StartHook;

/// The policies and webhooks of admission are followed.
pub(super) const ADMISSION: &str = "admission";
/// The APIServices are followed.
pub(super) const API_SERVICES_FOLLOWED: &str = "apiservices";
/// Stored definitions are served.
pub(super) const DEFINITIONS: &str = "definitions";
/// The configuration of API Priority and Fairness is followed.
pub(super) const FLOW_TABLE: &str = "flow-table";
/// Seats are lent between priority levels.
pub(super) const SEATS: &str = "seats";
/// The stored objects are in memory.
pub(super) const STORAGE: &str = "storage";

/// When a hook exists.
#[derive(Clone, Copy)]
enum Condition {
    Always,
    /// It elects the leaders of other components.
    Election,
    /// API Priority and Fairness is on.
    Fairness,
    /// This server keeps a lease under its identity.
    Identity,
    /// It keeps a record by which other servers reach it.
    PeerRecord,
    /// It passes requests on to them.
    PeerProxy,
    /// ServiceCIDRs are served.
    ServiceCidrs,
    /// The gate for the check of the stores is on.
    StorageReadiness,
}
use Condition::{
    Always, Election, Fairness, Identity, PeerProxy, PeerRecord, ServiceCidrs, StorageReadiness,
};

/// The hooks in the order of the reference, because monitoring shows them so.
const HOOKS: [(&str, &str, Condition); 27] = [
    ("poststarthook/start-apiserver-admission-initializer", ADMISSION, Always),
    ("poststarthook/priority-and-fairness-config-consumer", FLOW_TABLE, Fairness),
    ("poststarthook/priority-and-fairness-filter", SEATS, Fairness),
    ("poststarthook/crd-informer-synced", DEFINITIONS, Always),
    ("poststarthook/start-system-namespaces-controller", steps::NAMESPACES, Always),
    (
        "poststarthook/start-kube-apiserver-coordinated-leader-election-controller",
        coordinated_election::LEASE_HOLDER,
        Election,
    ),
    ("poststarthook/peer-endpoint-reconciler-controller", peer_record::NAME, PeerRecord),
    ("poststarthook/peer-discovery-cache-sync", peer_discovery::NAME, PeerProxy),
    ("poststarthook/mixed-version-proxy-handler", peer_discovery::NAME, PeerProxy),
    ("poststarthook/start-cluster-authentication-info-controller", steps::AUTHENTICATION, Always),
    ("poststarthook/start-kube-apiserver-identity-lease-controller", server_identity::NAME, Identity),
    ("poststarthook/start-kube-apiserver-identity-lease-garbage-collector", server_leases::NAME, Always),
    ("poststarthook/storage-readiness", STORAGE, StorageReadiness),
    ("poststarthook/start-legacy-token-tracking-controller", token_use::NAME, Always),
    ("poststarthook/start-service-ip-repair-controllers", service_repair::NAME, Always),
    ("poststarthook/rbac/bootstrap-roles", steps::ROLES, Always),
    ("poststarthook/scheduling/bootstrap-system-priority-classes", steps::PRIORITY_CLASSES, Always),
    ("poststarthook/priority-and-fairness-config-producer", steps::FLOW_CONTROL, Always),
    ("poststarthook/bootstrap-controller", steps::KUBERNETES_SERVICE, Always),
    ("poststarthook/start-kubernetes-service-cidr-controller", steps::SERVICE_CIDR, ServiceCidrs),
    ("poststarthook/start-kube-aggregator-informers", API_SERVICES_FOLLOWED, Always),
    ("poststarthook/apiservice-status-local-available-controller", availability::NAME, Always),
    ("poststarthook/apiservice-status-remote-available-controller", availability::NAME, Always),
    ("poststarthook/kube-apiserver-autoregistration", apiservice_registration::NAME, Always),
    ("autoregister-completion", steps::API_SERVICES, Always),
    ("poststarthook/apiservice-openapi-controller", extension_openapi::NAME, Always),
    ("poststarthook/apiservice-openapiv3-controller", extension_openapi::NAME, Always),
];

/// The step after which the informer of the controllers follows the stores: its first controller has seen all objects.
pub(super) const INFORMER: &str = own_objects::NAME;

/// The hooks of a server that serves this catalog. `keeps_record`: whether other servers can reach it.
pub(super) fn hooks(config: &Config, catalog: &Catalog, keeps_record: bool) -> Vec<StartHook> {
    let exists = |condition| match condition {
        Always => true,
        Election => config.gates().enabled(COORDINATED_LEADER_ELECTION),
        Fairness => config.limits.enable_priority_and_fairness,
        Identity => keeps_identity(config),
        PeerRecord => keeps_record,
        PeerProxy => keeps_record && config.peers.peer_ca_file.is_some(),
        ServiceCidrs => catalog.find("networking.k8s.io", "v1", "servicecidrs").is_some(),
        StorageReadiness => config.gates().enabled(WATCH_CACHE_INITIALIZATION_POST_START_HOOK),
    };
    let listed = HOOKS.iter().filter(|(_, _, condition)| exists(*condition));
    listed.map(|(name, step, _)| StartHook { name, step }).collect()
}

/// Waits until every hook has run.
pub(super) async fn wait_for(steps: &StartSteps, hooks: &[StartHook]) {
    let mut names: Vec<&'static str> = hooks.iter().map(|hook| hook.step).collect();
    names.push(INFORMER);
    steps.wait_for(&names).await;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::shared_state;
    use super::*;

    fn names(flags: &str) -> Vec<&'static str> {
        let line = ["pilothouse"].into_iter().chain(flags.split_whitespace());
        let config = Config::parse(line).unwrap();
        let catalog = shared_state::catalog(&config).unwrap();
        hooks(&config, &catalog, false).iter().map(|hook| hook.name).collect()
    }

    #[test]
    fn hooks_that_are_off_are_not_listed() {
        let all = names("");
        assert!(all.contains(&"poststarthook/priority-and-fairness-filter"));
        assert!(!all.contains(&"poststarthook/peer-discovery-cache-sync"));
        assert!(all.contains(&"poststarthook/start-kubernetes-service-cidr-controller"));
        let without_group = names("--runtime-config=networking.k8s.io/v1=false");
        assert!(!without_group.contains(&"poststarthook/start-kubernetes-service-cidr-controller"));
        let plain = names("--enable-priority-and-fairness=false");
        assert!(!plain.contains(&"poststarthook/priority-and-fairness-filter"));
        assert!(plain.contains(&"poststarthook/priority-and-fairness-config-producer"));
    }

    #[test]
    fn hooks_are_listed_once() {
        let unique: BTreeSet<&str> = HOOKS.iter().map(|(name, _, _)| *name).collect();
        assert_eq!(unique.len(), HOOKS.len());
    }
}
