//! Pilothouse: a Kubernetes API server on actix actors.
//!
//! Embedders need [`Config`] and [`Server`], and [`Assembly`] to add controllers of their own. Suggested reading order:
//!
//! - [`server`] starts and stops a server from its [`config`]; `server::assembly` makes the parts, one file per group of parts;
//! - [`http`] turns sockets into requests and responses; `http::handler::app` follows one request from start to end;
//! - [`auth`] authenticates and authorizes, `flowcontrol` is API Priority and Fairness, `audit` records requests;
//! - `verbs` runs the request with what is in `registry`: access to the stores, decoding, conversion, encoding, and the interface
//!   of the plug-ins in `admission`;
//! - `live_index` keeps views of stored objects that are never older than the last answered write: roles, policies, webhooks;
//! - [`controllers`] reconcile the cluster, `bootstrap` creates the objects of a fresh one, `apiextensions` follows
//!   CustomResourceDefinitions, `aggregation` finds extension API servers, `peers` the other servers on the same etcd;
//! - [`pki`] makes keys and certificates, [`metrics`] and [`telemetry`] tell the operator, `profiles` shows where time and
//!   memory go, `activity` what the actors do, `limits` holds every bound that a client
//!   can reach.
//!
//! The crates below it: `pilothouse_actors` has the stores, the watches and the log; `pilothouse_client` makes outgoing calls;
//! `pilothouse_api` and the others hold the rules of the API as pure functions: schemas, codecs, kinds (`pilothouse_kinds::table`
//! lists them), patches, server-side apply, CEL, custom resources.

mod activity;
mod admission;
mod aggregation;
mod apiextensions;
mod audit;
pub mod auth;
mod backups;
mod bootstrap;
pub mod commands;
pub mod config;
pub mod controllers;
mod encryption;
mod flowcontrol;
pub mod http;
mod limits;
mod live_index;
mod log_files;
pub mod metrics;
mod peers;
pub mod pki;
mod profiles;
mod registry;
pub mod server;
pub mod telemetry;
mod verbs;

pub use config::Config;
pub use server::{Assembly, Exit, Handle, Server, StartError};
