//! Pilothouse: a Kubernetes API server on actix actors.
//!
//! Embedders need [`Config`] and [`Server`], and [`Assembly`] to add controllers of their own. Suggested reading order:
//!
//! - [`server`] starts and stops a server from its [`config`]; `assembly` assembles the parts, one file per group of parts;
//! - [`http`] turns sockets into requests and responses; `http::handler::app` follows one request from start to end;
//! - [`auth`] authenticates and authorizes, `flowcontrol` is API Priority and Fairness, `verbs` runs the request, with
//!   what is in `backend` (stores, admission, encoding);
//! - [`api`] holds the rules of the API as pure functions: schemas, codecs, kinds (`api::kinds::table` lists them), patches,
//!   server-side apply, CEL, custom resources;
//! - `pilothouse_actors`, a crate of its own, holds the stores, the watches and the log;
//! - [`controllers`] reconcile the cluster; `definitions` follows CustomResourceDefinitions and serves the custom resources;
//! - `upstream` and `webhook` connect to other servers; [`pki`] makes certificates; `audit` makes audit
//!   events of requests and `audit_backends` writes them; [`metrics`]; `limits` holds every bound that a client can reach.

pub mod application;
mod assembly;
mod audit;
mod audit_backends;
pub mod auth;
mod backend;
mod bootstrap;
pub mod commands;
pub mod config;
pub mod controllers;
mod definitions;
mod flowcontrol;
mod frames;
mod heavy_pool;
pub mod http;
mod kubeconfig;
mod limits;
pub mod metrics;
pub mod pki;
mod random;
pub mod server;
mod signatures;
mod socket;
pub mod telemetry;
mod upstream;
mod verbs;
mod webhook;

pub use assembly::Assembly;
pub use config::Config;
pub use server::{Exit, Handle, Server, StartError};
