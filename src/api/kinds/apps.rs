//! The kinds that keep pods running: Deployment, ReplicaSet, StatefulSet, DaemonSet.

mod daemon_set;
mod deployment;
mod share;
mod stateful_set;
#[cfg(test)]
mod tests;

pub use self::daemon_set::{
    default_daemon_set, prepare_daemon_set, prepare_daemon_set_status, prepare_daemon_set_update,
    validate_daemon_set, validate_daemon_set_status, validate_revision, validate_revision_update,
    warn_daemon_set,
};
pub use self::deployment::{
    default_deployment, default_replica_set, validate_deployment, validate_deployment_status,
    validate_replica_set, validate_replica_set_status,
};
pub use self::share::{at_most_all, count_or_percent, prepare_replicas_status, same_selector, warn_named};
pub use self::stateful_set::{
    default_stateful_set, prepare_stateful_set, prepare_stateful_set_update, validate_stateful_set,
    validate_stateful_set_status, validate_stateful_set_update, warn_stateful_set,
};
