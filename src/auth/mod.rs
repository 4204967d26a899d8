//! Who a request comes from and what it may do: the verifiers and policies that the guard actors are given.

pub mod certificate;
pub mod modes;
pub mod rbac;
pub mod tokens;
