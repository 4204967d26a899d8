//! The kinds that keep pods running: Deployment, ReplicaSet, StatefulSet, DaemonSet.

mod common;
pub mod daemon_set;
pub mod deployment;
pub mod stateful_set;
#[cfg(test)]
mod tests;

pub use self::common::{at_most_all, count_or_percent};
