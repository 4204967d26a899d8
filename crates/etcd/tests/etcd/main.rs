//! The client against real members of etcd.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets the unexpected fails"
)]

mod all_keys;
mod calls;
mod failures;
mod support;
mod tls;
mod watches;
