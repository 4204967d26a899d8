//! Ingresses, network policies and their kin.

pub mod ingress;
pub mod policy;
pub mod ranges;
#[cfg(test)]
mod tests;
