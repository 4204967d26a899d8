//! Real members and clusters of etcd on the loopback interface, and a proxy that cuts connections: for the tests of this crate and
//! of others.
//!
//! Whatever is started here ends when its owner is dropped, and also when the test process is killed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets the unexpected fails"
)]

mod binary;
mod certificates;
mod cluster;
mod process;
mod proxy;

pub use self::binary::etcd;
pub use self::certificates::Certificates;
pub use self::cluster::{Cluster, Member, Options};
pub use self::proxy::{Flow, Proxy};
