//! The clients of the ecosystem, and the recorded responses and objects of the reference server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod fixtures;
mod golden;
mod kubectl;
mod python;
#[path = "../support/mod.rs"]
mod support;
