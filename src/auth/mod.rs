//! Who a request comes from and what it may do: the verifiers and policies that the guard actors are given.

pub mod abac;
pub mod bootstrap_token;
pub mod certificate;
pub mod chains;
pub mod counted;
pub mod followed;
pub mod front_proxy;
pub mod impersonation;
pub mod jwt;
pub mod kept;
pub mod modes;
pub mod node;
pub mod objects;
pub mod openid;
pub mod rbac;
pub mod service_account;
pub mod token_webhook;
pub mod tokens;
pub mod webhook;
