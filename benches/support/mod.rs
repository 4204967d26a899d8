//! What the benches share: a server process, a load of HTTP/1.1 connections over TLS, and what a process costs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods
)]
#![allow(dead_code, reason = "each bench uses its own part of this module")]

pub mod config_maps;
pub mod etcd;
pub mod fanout;
pub mod floor;
pub mod hostile;
pub mod hot_object;
pub mod load;
pub mod process;
pub mod watchers;
