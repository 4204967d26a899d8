//! One test per fixed bug, with the bug in its comment.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod feature_gates;
mod routing;
#[path = "../support/mod.rs"]
mod support;
mod watches;
mod writes;

use pilothouse::Config;
use serde_json::{Value, json};
use support::wait::{TIMEOUT, poll};
use support::{Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
