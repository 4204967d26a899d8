//! The kinds of `networking.k8s.io`.

pub mod ingress;
pub mod policy;
pub mod service_cidr;
#[cfg(test)]
mod tests;
