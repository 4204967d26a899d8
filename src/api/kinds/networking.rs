//! Ingresses, network policies and their kin.

mod ingress;
mod policy;
mod ranges;
#[cfg(test)]
mod tests;

pub use self::ingress::{
    validate_ingress, validate_ingress_class, validate_ingress_class_update, validate_ingress_status,
    validate_ingress_update, warn_ingress,
};
pub use self::policy::{default_policy, validate_policy, warn_policy};
pub use self::ranges::{
    validate_address, validate_address_update, validate_service_cidr, validate_service_cidr_update,
};
