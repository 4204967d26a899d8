//! The Python client against the server: scripts of `tests/python`, in a virtual environment below the build folder.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use crate::support::Server;
use crate::support::python::{environment, run, script};

/// The client release for Kubernetes 1.33, and an independent library for signatures. Created by the first test that needs it.
static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| environment(&["kubernetes==33.1.0", "jwcrypto==1.5.6"]));

#[test]
fn python_client_creates_lists_watches_and_deletes() {
    let server = Server::start();
    let script = script("client.py");
    run(Command::new(&*PYTHON).arg(script).arg(server.kubeconfig()).env_remove("KUBECONFIG"));
}

#[test]
fn python_client_sees_dependents_deleted() {
    let server = Server::with_flags(&["--engine=memory", "--controllers=*"]);
    let script = script("owners.py");
    run(Command::new(&*PYTHON).arg(script).arg(server.kubeconfig()).env_remove("KUBECONFIG"));
}

#[test]
fn cluster_info_signature_verifies_with_jwcrypto() {
    let server = Server::with_flags(&["--engine=memory", "--controllers=*"]);
    let script = script("cluster_info.py");
    run(Command::new(&*PYTHON).arg(script).arg(server.kubeconfig()).env_remove("KUBECONFIG"));
}
