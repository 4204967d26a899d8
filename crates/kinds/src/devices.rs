//! The kinds of `resource.k8s.io`: claims, classes and slices of devices. Older versions have one level less; their errors are
//! reported as those of the newest.

pub mod claim;
mod claim_status;
pub mod class;
mod common;
mod selector;
pub mod slice;
#[cfg(test)]
mod tests;
