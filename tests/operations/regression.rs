//! One test per fixed bug, with the bug in its comment.

mod feature_gates;
mod routing;
mod watches;
mod writes;

use pilothouse::Config;
use serde_json::{Value, json};

use crate::support::server::temp_directory;
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
