//! The kinds of `networking.k8s.io`.

pub mod ingress;
pub mod policy;
pub mod ranges;
#[cfg(test)]
mod tests;
