//! The server as a process and embedded in another one: start and end, crashes, connections, watches, fair queuing, controllers
//! and metrics; and a test for each fixed bug.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod actors;
mod checker;
mod controllers;
mod copy;
mod crash;
mod edge;
mod egress;
mod emulation;
mod etcd_flags;
mod flows;
mod lifecycle;
mod log_files;
mod metrics;
mod migration;
mod monitoring;
mod object_streams;
mod outgoing_http2;
mod process;
mod profiles;
mod regression;
mod replicas;
mod storage;
#[path = "../support/mod.rs"]
mod support;
mod traces;
mod usual_manifests;
mod watches;
