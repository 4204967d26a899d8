//! ValidatingAdmissionPolicies and MutatingAdmissionPolicies.
//!
//! [`expressions`] declares the CEL variables and compiles expressions; [`policy`] parses policies and their bindings;
//! [`evaluate`] evaluates the expressions of a policy for a request; [`decision`] computes the result of a validating policy, and
//! [`mutation`] that of a mutating one; [`request`] builds the `request` variable; [`authorizer`] implements the `authorizer`
//! variable; [`type_checking`] checks expressions against the types of matched resources (`status.typeChecking`).

pub mod authorizer;
pub mod decision;
pub mod evaluate;
pub mod expressions;
pub mod mutation;
pub mod policy;
pub mod request;
#[cfg(test)]
mod tests;
pub mod type_checking;
