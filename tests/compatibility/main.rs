//! The clients of the ecosystem, the recorded responses and objects of the reference server, and the files of `deploy/`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod deployment;
mod fixtures;
mod golden;
mod kubectl;
mod python;
#[path = "../support/mod.rs"]
mod support;
