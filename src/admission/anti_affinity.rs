//! LimitPodHardAntiAffinityTopology: required anti-affinity may exclude nodes, but not whole zones.

use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::HOSTNAME_LABEL;

use super::{Operation, Outcome, Plugin, Write, done};

/// Refuses pods whose required anti-affinity uses a topology other than the hostname.
pub struct LimitPodHardAntiAffinityTopology;

impl Plugin for LimitPodHardAntiAffinityTopology {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete && write.is_of("", "pods")
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, pod: &'a Value) -> Outcome<'a> {
        done(check(pod).map_err(|reason| write.forbidden(pod, &reason)))
    }
}

fn check(pod: &Value) -> Result<(), String> {
    let path = ["spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = pod.get_path(&path).map(Value::items).unwrap_or_default();
    match terms.iter().map(|term| term.str("topologyKey")).find(|key| *key != HOSTNAME_LABEL) {
        None => Ok(()),
        Some(key) => Err(format!(
            "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key {HOSTNAME_LABEL} is allowed"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_anti_affinity_allows_hostname_topology_only() {
        let pod = |keys: &[&str]| {
            let term = |key: &&str| {
                let mut term = Value::object();
                term.set("topologyKey", *key);
                term
            };
            let terms: Vec<Value> = keys.iter().map(term).collect();
            let mut pod = Value::object();
            let affinity = pod.entry("spec").entry("affinity").entry("podAntiAffinity");
            affinity.set("requiredDuringSchedulingIgnoredDuringExecution", terms);
            pod
        };
        assert_eq!(check(&Value::object()), Ok(()));
        assert_eq!(check(&pod(&[HOSTNAME_LABEL, HOSTNAME_LABEL])), Ok(()));
        assert_eq!(
            check(&pod(&[HOSTNAME_LABEL, "zone"])).unwrap_err(),
            "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only key \
             kubernetes.io/hostname is allowed"
        );
    }
}
