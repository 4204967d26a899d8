//! The PriorityClasses of system pods.

use super::{BootstrapObject, object_with_name};

/// Name, value and description of each class.
const CLASSES: [(&str, i64, &str); 2] = [
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
];

/// The system classes.
pub fn all() -> Vec<BootstrapObject> {
    let class = |(name, value, description): (&str, i64, &str)| {
        let mut object = object_with_name("scheduling.k8s.io/v1", "PriorityClass", name);
        object.set("value", value);
        object.set("description", description);
        BootstrapObject { group: "scheduling.k8s.io", resource: "priorityclasses", object }
    };
    CLASSES.into_iter().map(class).collect()
}
