//! Control loops: clients of the server's own verbs that reconcile the cluster. One file each.
//!
//! All loops run on one thread of their own, so that they never block a worker. Each is an actor (`runner.rs`) around a
//! [`runner::Controller`]. One informer tells them of changes. Their work waits in a queue (`queue.rs`). Their writes go through
//! the verbs (`client.rs`) like those of other clients. See docs/controllers.md.

mod apiservice_registration;
mod attempts;
mod availability;
mod bootstrap_tokens;
pub mod client;
mod clusterrole_aggregation;
mod csr;
mod csr_cleaner;
pub mod descriptors;
mod events;
pub mod expiry;
mod extension_documents;
mod flow_schemas;
mod garbagecollector;
mod informer;
pub mod lease;
mod legacy_serviceaccount_token_cleaner;
mod namespace;
pub mod object_meta;
mod own_objects;
mod per_namespace;
mod per_object;
mod podgc;
mod pv_protection;
pub mod queue;
pub mod resource_index;
mod resourcequota;
pub mod runner;
mod server_leases;
mod service_repair;
pub mod serviceaccount_token;
pub mod start;
mod token_use;

use self::descriptors::{ControllerDescriptor, DESCRIPTORS};
mod ttl_after_finished;
mod validatingadmissionpolicy_status;

/// The loops that `--controllers` asks for: `*` for all, `NAME` for one, `-NAME` for all but one. The first entry that names a
/// loop decides. Also answers unknown names.
pub fn choose(asked: &[String]) -> (Vec<&'static ControllerDescriptor>, Vec<&str>) {
    let (plain, star) = (
        |entry: &str| entry.strip_prefix('-').unwrap_or(entry).to_owned(),
        asked.iter().any(|entry| entry == "*"),
    );
    let is_on = |ControllerDescriptor { name, old_name, .. }: &&ControllerDescriptor| {
        let decides = asked.iter().find(|entry| [*name, *old_name].contains(&plain(entry).as_str()));
        decides.map_or(star, |entry| !entry.starts_with('-'))
    };
    let on = DESCRIPTORS.iter().filter(is_on).collect();
    let means_nothing = |entry: &&str| {
        let entry = plain(entry);
        !entry.is_empty()
            && entry != "*"
            && !DESCRIPTORS.iter().any(|known| [known.name, known.old_name].contains(&&*entry))
    };
    (on, asked.iter().map(String::as_str).filter(means_nothing).collect())
}

#[cfg(test)]
mod testing {
    use pilothouse_apimachinery::json;
    use pilothouse_apimachinery::value::Value;

    /// Parses an object from JSON.
    pub fn object(text: &str) -> Value {
        json::read(text.as_bytes()).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_chosen_as_in_the_reference() {
        let chosen = |asked: &[&str]| {
            let asked: Vec<String> = asked.iter().map(|entry| (*entry).to_owned()).collect();
            let (on, unknown) = choose(&asked);
            (on.len(), on.iter().any(|entry| entry.name == "namespace-controller"), unknown.len())
        };
        assert_eq!(chosen(&["*"]), (DESCRIPTORS.len(), true, 0));
        assert_eq!(chosen(&["-*"]), (0, false, 0));
        assert_eq!(chosen(&["*", "-namespace"]), (DESCRIPTORS.len() - 1, false, 0));
        assert_eq!(chosen(&["*", "-namespace-controller"]), (DESCRIPTORS.len() - 1, false, 0));
        assert_eq!(chosen(&["namespace"]), (1, true, 0));
        assert_eq!(chosen(&["-namespace", "namespace", "*"]), (DESCRIPTORS.len() - 1, false, 0));
        assert_eq!(chosen(&["deployment", "*"]), (DESCRIPTORS.len(), true, 1));
    }
}
