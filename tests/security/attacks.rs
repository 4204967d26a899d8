//! Known classes of attacks on API servers, each with its test, and a soak under hostile load. docs/security.md has the table of
//! them; `attacks/docs_table.rs` checks that its rows name tests that exist.

#![allow(clippy::print_stdout, reason = "the soak reports what it measured")]

mod admission;
mod backends;
mod bodies;
mod debug_pages;
mod docs_table;
mod escalation;
mod hostile;
mod http2;
mod logs;
mod paths;
mod soak;
mod streams;

use crate::support::{Client, Server, USER_TOKEN};

/// A user without rights.
fn alice(server: &Server) -> Client {
    server.anonymous().with_token(Some(USER_TOKEN))
}
