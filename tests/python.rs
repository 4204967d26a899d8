//! The Python client against the real server: `tests/python/client.py`, in an environment of its own below the build
//! folder.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use support::Server;

/// The release of the client that belongs to release 1.33 of the API.
const CLIENT: &str = "kubernetes==33.1.0";
/// Verifies signatures: a library that has nothing to do with this server.
const SIGNATURES: &str = "jwcrypto==1.5.6";

fn succeed(command: &mut Command) {
    let output = command.output().expect("python3 runs: tests/run installs it");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {} {}", text(&output.stdout), text(&output.stderr));
}

/// A Python with the client installed. It is made once, by whichever test comes first, and kept for the next run.
static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let python = home.join("bin/python");
    let done = home.join(format!("{CLIENT} {SIGNATURES}"));
    if !done.exists() {
        succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home));
        succeed(Command::new(&python).args(["-m", "pip", "install", "--quiet", CLIENT, SIGNATURES]));
        std::fs::write(done, "").expect("a mark");
    }
    python
});

#[test]
fn the_python_client_works() {
    let server = Server::start();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/client.py");
    succeed(Command::new(&*PYTHON).arg(script).arg(server.kubeconfig()).env_remove("KUBECONFIG"));
}

#[test]
fn the_python_client_sees_dependents_go() {
    let server = Server::with(&["--engine=memory", "--controllers=*"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/owners.py");
    succeed(Command::new(&*PYTHON).arg(script).arg(server.kubeconfig()).env_remove("KUBECONFIG"));
}

#[test]
fn the_signature_of_the_cluster_is_one_for_any_library() {
    let server = Server::with(&["--engine=memory", "--controllers=*"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/cluster_info.py");
    succeed(Command::new(&*PYTHON).arg(script).arg(server.kubeconfig()).env_remove("KUBECONFIG"));
}
