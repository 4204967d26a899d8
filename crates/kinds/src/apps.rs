//! The kinds that keep pods running: Deployment, ReplicaSet, StatefulSet, DaemonSet.

mod common;
pub mod daemon_set;
pub mod deployment;
pub mod stateful_set;
#[cfg(test)]
mod tests;

pub use self::common::{validate_at_most_100_percent, validate_count_or_percent};
