//! The Python client against the real server: `tests/python/client.py`, in an environment of its own below the build
//! folder.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use support::Server;
use support::python::{script, succeed, with};

/// The release of the client that belongs to release 1.33 of the API, and a library for signatures that has nothing to do with
/// this server; made by whichever test comes first.
static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| with(&["kubernetes==33.1.0", "jwcrypto==1.5.6"]));

#[test]
fn the_python_client_works() {
    let server = Server::start();
    let script = script("client.py");
    succeed(Command::new(&*PYTHON).arg(script).arg(server.kubeconfig()).env_remove("KUBECONFIG"));
}

#[test]
fn the_python_client_sees_dependents_go() {
    let server = Server::with(&["--engine=memory", "--controllers=*"]);
    let script = script("owners.py");
    succeed(Command::new(&*PYTHON).arg(script).arg(server.kubeconfig()).env_remove("KUBECONFIG"));
}

#[test]
fn the_signature_of_the_cluster_is_one_for_any_library() {
    let server = Server::with(&["--engine=memory", "--controllers=*"]);
    let script = script("cluster_info.py");
    succeed(Command::new(&*PYTHON).arg(script).arg(server.kubeconfig()).env_remove("KUBECONFIG"));
}
