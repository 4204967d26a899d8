//! Pilothouse: a control-plane API server on actix actors.
//!
//! [`server`] starts one; [`config`] says how; [`http`] is its edge; [`api`] is what the API says, as pure functions.

pub mod api;
pub mod config;
pub mod http;
pub mod limits;
pub mod pki;
pub mod server;
pub mod telemetry;
mod wire;
