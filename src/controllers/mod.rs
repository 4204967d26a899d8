//! Control loops: clients of our own verbs that make the cluster what its objects say. One file each.
//!
//! All of them run on one thread of their own, so that they never keep a worker from its requests. Each is an actor
//! (`runner.rs`) around a [`runner::Loop`]; one informer tells them of changes; what they want to look at waits in a queue
//! (`queue.rs`); what they write goes through the verbs (`client.rs`) like everybody's writes. See docs/ARCHITECTURE.md.

mod availability;
mod bootstrap_tokens;
pub mod client;
mod clusterrole_aggregation;
mod csr;
mod csr_cleaner;
mod each;
mod events;
pub mod expiry;
mod extension_documents;
mod flow_schemas;
mod garbagecollector;
pub mod head;
mod informer;
pub mod known;
pub mod lease;
mod legacy_serviceaccount_token_cleaner;
mod namespace;
mod own_objects;
mod per_namespace;
mod per_object;
mod podgc;
mod pv_protection;
pub mod queue;
mod registrations;
mod resourcequota;
mod roster;
pub mod runner;
mod server_leases;
mod service_repair;
pub mod serviceaccount_token;
pub mod start;
mod token_use;
mod ttl_after_finished;
mod validatingadmissionpolicy_status;

/// The loops that can be chosen: the name that the reference's controller manager has for each, and the older one.
pub const NAMES: [(&str, &str); 18] = [
    ("namespace-controller", "namespace"),
    ("garbage-collector-controller", "garbagecollector"),
    ("serviceaccount-controller", "serviceaccount"),
    ("root-ca-certificate-publisher-controller", "root-ca-cert-publisher"),
    ("serviceaccount-token-controller", "serviceaccount-token"),
    ("legacy-serviceaccount-token-cleaner-controller", "legacy-service-account-token-cleaner"),
    ("resourcequota-controller", "resourcequota"),
    ("pod-garbage-collector-controller", "podgc"),
    ("bootstrap-signer-controller", "bootstrapsigner"),
    ("token-cleaner-controller", "tokencleaner"),
    ("ttl-after-finished-controller", "ttl-after-finished"),
    ("persistentvolumeclaim-protection-controller", "pvc-protection"),
    ("persistentvolume-protection-controller", "pv-protection"),
    ("certificatesigningrequest-cleaner-controller", "csrcleaner"),
    ("certificatesigningrequest-signing-controller", "csrsigning"),
    ("certificatesigningrequest-approving-controller", "csrapproving"),
    ("clusterrole-aggregation-controller", "clusterrole-aggregation"),
    ("validatingadmissionpolicy-status-controller", "validatingadmissionpolicy-status"),
];

/// Which loops a list of names asks for: `*` for all, `NAME` for one, `-NAME` for all but one. The first entry that
/// names a loop decides. Also answers the names that mean nothing here.
pub fn choose(asked: &[String]) -> (Vec<&'static str>, Vec<&str>) {
    let (plain, star) = (
        |entry: &str| entry.strip_prefix('-').unwrap_or(entry).to_owned(),
        asked.iter().any(|entry| entry == "*"),
    );
    let is_on = |(name, old): &(&'static str, &'static str)| {
        let decides = asked.iter().find(|entry| [*name, *old].contains(&plain(entry).as_str()));
        decides.map_or(star, |entry| !entry.starts_with('-'))
    };
    let on = NAMES.iter().filter(|names| is_on(names)).map(|(name, _)| *name).collect();
    let means_nothing = |entry: &&str| {
        let entry = plain(entry);
        !entry.is_empty() && entry != "*" && !NAMES.iter().any(|(name, old)| *name == entry || *old == entry)
    };
    (on, asked.iter().map(String::as_str).filter(means_nothing).collect())
}

#[cfg(test)]
mod testing {
    use crate::api::codec;
    use crate::api::value::Value;

    /// An object from its JSON.
    pub fn object(text: &str) -> Value {
        codec::json::read(text.as_bytes()).unwrap()
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
            (on.len(), on.contains(&"namespace-controller"), unknown.len())
        };
        assert_eq!(chosen(&["*"]), (NAMES.len(), true, 0));
        assert_eq!(chosen(&["-*"]), (0, false, 0));
        assert_eq!(chosen(&["*", "-namespace"]), (NAMES.len() - 1, false, 0));
        assert_eq!(chosen(&["*", "-namespace-controller"]), (NAMES.len() - 1, false, 0));
        assert_eq!(chosen(&["namespace"]), (1, true, 0));
        assert_eq!(chosen(&["-namespace", "namespace", "*"]), (NAMES.len() - 1, false, 0));
        assert_eq!(chosen(&["deployment", "*"]), (NAMES.len(), true, 1));
    }
}
