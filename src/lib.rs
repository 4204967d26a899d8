//! Pilothouse: a Kubernetes API server on actix actors.
//!
//! Whoever embeds one needs [`Config`] and [`Server`], and perhaps [`Wires`] for control loops of their own. Whoever reads it best
//! does so in this order:
//!
//! - [`server`] starts and stops one as [`config`] says; `wire` makes its parts, each group in a file;
//! - [`http`]: from a socket to a request and back; `http::handler::app` is the life of one request;
//! - [`auth`] who is asking and may they, `flows` whether it is their turn, `verbs` what they ask for, with admission among it;
//! - [`api`] what the API says, as pure functions: schema, codecs, the kinds (`api::kinds::table` lists them), patches, ownership,
//!   expressions, custom kinds;
//! - the stores, watches and the log are a crate of their own, `pilothouse_actors`;
//! - [`controllers`] the control loops, `definitions` who makes custom kinds true;
//! - `upstream` and `webhook`: connections to others; [`pki`] certificates; `ledger` audit; [`metrics`]; `limits` every
//!   bound that a client can reach.

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
mod kubeconfig;
mod ledger;
mod limits;
pub mod metrics;
pub mod pki;
pub mod server;
mod signatures;
mod socket;
pub mod telemetry;
mod upstream;
mod verbs;
mod webhook;
mod wire;
pub mod wiring;

pub use config::Config;
pub use server::{Exit, Handle, Server, StartError};
pub use wire::Wires;
