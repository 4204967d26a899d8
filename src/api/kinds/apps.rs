//! The kinds that keep pods running: Deployment, ReplicaSet, StatefulSet, DaemonSet.

pub mod daemon_set;
pub mod deployment;
mod share;
pub mod stateful_set;
#[cfg(test)]
mod tests;

pub use self::share::{at_most_all, count_or_percent};
