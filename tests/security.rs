//! Known classes of attacks on API servers, each with its test, and a soak under hostile load. docs/security.md has the table of
//! them; `security/table.rs` checks that its rows name tests that exist.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the soak reports what it measured")]

#[path = "security/admission.rs"]
mod admission;
#[path = "security/backends.rs"]
mod backends;
#[path = "security/bodies.rs"]
mod bodies;
#[path = "security/hostile.rs"]
mod hostile;
#[path = "security/http2.rs"]
mod http2;
#[path = "security/logs.rs"]
mod logs;
#[path = "security/paths.rs"]
mod paths;
#[path = "security/rights.rs"]
mod rights;
#[path = "security/soak.rs"]
mod soak;
#[path = "security/streams.rs"]
mod streams;
mod support;
#[path = "security/table.rs"]
mod table;

use support::{Client, Server, USER_TOKEN};

/// A user without rights.
fn alice(server: &Server) -> Client {
    server.anonymous().with_token(Some(USER_TOKEN))
}
