//! The kinds of the core group.

pub mod address;
pub mod affinity;
pub mod config;
pub mod container;
pub mod endpoints;
pub mod event;
pub mod limits;
pub mod namespace;
pub mod node;
pub mod node_label;
pub mod pod;
pub mod pod_default;
pub mod pod_spec;
pub mod pod_warn;
pub mod probe;
pub mod replication;
pub mod resources;
pub mod service;
pub mod service_account;
pub mod template;
pub mod volume;
pub mod volume_claim;
