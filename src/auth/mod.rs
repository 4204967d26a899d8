//! Who a request comes from and what it may do: the verifiers and policies that the guard actors are given.

pub mod bootstrap_token;
pub mod certificate;
pub mod defaults;
pub mod jwt;
pub mod modes;
pub mod objects;
pub mod service_account;
pub mod tokens;
