//! Authentication, authorization, tokens, audit, and known classes of attacks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod attacks;
mod audit;
mod authentication;
mod authorization;
mod cross_origin;
#[path = "../support/mod.rs"]
mod support;
mod tokens;
