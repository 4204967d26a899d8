//! The API over HTTP: kinds, verbs, encodings, admission, custom resources, and connections to kubelets and backends.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod admission;
mod connect;
mod custom;
mod decoders;
mod errors;
mod forms;
mod heavy;
mod kinds;
mod metadata;
mod openapi;
mod patch;
mod services;
mod subresources;
#[path = "../support/mod.rs"]
mod support;
