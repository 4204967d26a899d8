//! Controllers: clients of the server's own verbs that reconcile the cluster. One file each.
//!
//! All controllers run on one thread of their own, so that they never block a worker. Each is an actor (`runner.rs`) around a
//! [`runner::Controller`]. One informer notifies them of changes. Their work waits in a queue (`queue.rs`). Their writes go through
//! the verbs (`client.rs`) like those of other clients. See docs/controllers.md.

pub mod apiservice_registration;
mod attempts;
pub mod availability;
pub mod bootstrap_tokens;
pub mod client;
mod clusterrole_aggregation;
pub mod coordinated_election;
mod csr;
mod csr_cleaner;
pub mod descriptors;
mod events;
pub mod expiry;
pub mod extension_documents;
pub mod extension_openapi;
mod flow_schemas;
mod garbagecollector;
mod informer;
pub mod lease;
mod lease_candidate_expiry;
mod legacy_serviceaccount_token_cleaner;
mod namespace;
pub mod object_meta;
pub mod own_objects;
pub mod peer_discovery;
pub mod peer_record;
mod per_namespace;
mod per_object;
mod podgc;
mod pv_protection;
pub mod queue;
pub mod resource_index;
mod resourcequota;
pub mod runner;
pub mod server_identity;
pub mod server_leases;
pub mod service_repair;
pub mod serviceaccount_token;
pub mod start;
mod storage_version_migrator;
mod storage_versions;
mod storageversion_garbage_collector;
pub mod token_use;

mod ttl_after_finished;
mod validatingadmissionpolicy_status;

use self::descriptors::{ControllerDescriptor, DESCRIPTORS};

/// The controllers that `--controllers` enables: `*` for all, `NAME` for one, `-NAME` for all but one. The first entry that names a
/// controller decides. Also returns unknown names.
pub fn select(requested: &[String]) -> (Vec<&'static ControllerDescriptor>, Vec<&str>) {
    let (without_minus, has_star) = (
        |entry: &str| entry.strip_prefix('-').unwrap_or(entry).to_owned(),
        requested.iter().any(|entry| entry == "*"),
    );
    let is_enabled = |ControllerDescriptor { name, old_name, .. }: &&ControllerDescriptor| {
        let deciding =
            requested.iter().find(|entry| [*name, *old_name].contains(&without_minus(entry).as_str()));
        deciding.map_or(has_star, |entry| !entry.starts_with('-'))
    };
    let enabled = DESCRIPTORS.iter().filter(is_enabled).collect();
    let is_unknown = |entry: &&str| {
        let entry = without_minus(entry);
        !entry.is_empty()
            && entry != "*"
            && !DESCRIPTORS.iter().any(|known| [known.name, known.old_name].contains(&&*entry))
    };
    (enabled, requested.iter().map(String::as_str).filter(is_unknown).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_flag_selects_controllers_as_in_the_reference() {
        let count_selected = |requested: &[&str]| {
            let requested: Vec<String> = requested.iter().map(|entry| (*entry).to_owned()).collect();
            let (enabled, unknown) = select(&requested);
            (enabled.len(), enabled.iter().any(|entry| entry.name == "namespace-controller"), unknown.len())
        };
        assert_eq!(count_selected(&["*"]), (DESCRIPTORS.len(), true, 0));
        assert_eq!(count_selected(&["-*"]), (0, false, 0));
        assert_eq!(count_selected(&["*", "-namespace"]), (DESCRIPTORS.len() - 1, false, 0));
        assert_eq!(count_selected(&["*", "-namespace-controller"]), (DESCRIPTORS.len() - 1, false, 0));
        assert_eq!(count_selected(&["namespace"]), (1, true, 0));
        assert_eq!(count_selected(&["-namespace", "namespace", "*"]), (DESCRIPTORS.len() - 1, false, 0));
        assert_eq!(count_selected(&["deployment", "*"]), (DESCRIPTORS.len(), true, 1));
    }
}
