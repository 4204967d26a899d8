//! The kinds of the group `resource.k8s.io`: claims of devices, and who has some. Older versions say the same with one
//! level less; their mistakes are told as those of the newest.

pub mod claim;
mod claim_status;
pub mod class;
mod selector;
mod share;
pub mod slice;
#[cfg(test)]
mod tests;
