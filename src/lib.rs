//! Pilothouse: a control-plane API server on actix actors.
//!
//! [`server`] starts one; [`config`] says how; [`http`] is its edge; [`api`] is what the API says, as pure functions.

pub mod api;
pub mod auth;
pub mod commands;
pub mod config;
pub mod controllers;
mod definitions;
mod flows;
mod frames;
pub mod http;
mod ids;
pub mod kubeconfig;
pub mod ledger;
pub mod limits;
pub mod metrics;
pub mod pki;
pub mod server;
mod signatures;
mod socket;
pub mod telemetry;
pub mod upstream;
pub mod verbs;
pub mod webhook;
mod wire;
pub mod wiring;

pub use config::Config;
pub use server::{Exit, Handle, Server, StartError};
pub use wire::Wires;
