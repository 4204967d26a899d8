//! Tells the tests which data and tools this machine has: a test that lacks them is reported as ignored, not as passed.
//!
//! Files that do not exist are not watched, because cargo would build the server anew every time. When they come, `touch build.rs`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The first minor release of kubectl that has all that the tests use.
const KUBECTL_MINOR: u32 = 27;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    set_cfg("has_recorded_responses", has_data("PILOTHOUSE_GOLDEN", "../shared/golden", "replay.py"));
    let fixtures = "../shared/fixtures/roundtrip-1.33";
    set_cfg("has_fixtures", has_data("PILOTHOUSE_FIXTURES", fixtures, "core.v1.Pod.json"));
    set_cfg("has_network_namespaces", can_create_network_namespace());
    set_cfg("has_host_namespaces", can_rename_host());
    // Without kubectl the tests fail and say so: tests/run installs it.
    set_cfg("has_old_kubectl", kubectl_minor().is_some_and(|minor| minor < KUBECTL_MINOR));
}

/// Declares a cfg, and sets it if it holds.
fn set_cfg(name: &str, is_set: bool) {
    println!("cargo::rustc-check-cfg=cfg({name})");
    if is_set {
        println!("cargo::rustc-cfg={name}");
    }
}

/// Whether a folder, which a variable may name instead, has this file.
fn has_data(variable: &str, default_folder: &str, file: &str) -> bool {
    println!("cargo::rerun-if-env-changed={variable}");
    let path = env::var_os(variable).map_or_else(|| PathBuf::from(default_folder), PathBuf::from).join(file);
    watch(&path)
}

/// Makes cargo run this script again when a file changes. Returns whether the file exists.
fn watch(path: &Path) -> bool {
    let exists = path.is_file();
    if exists {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    exists
}

/// Whether a user may create a network namespace and configure its interfaces.
fn can_create_network_namespace() -> bool {
    let mut command = Command::new("unshare");
    command.args(["-rn", "ip", "link", "set", "lo", "up"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Whether a user may give a process another name of the host.
fn can_rename_host() -> bool {
    let mut command = Command::new("unshare");
    command.args(["-ru", "hostname", "other"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The minor release of kubectl, if there is one.
fn kubectl_minor() -> Option<u32> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).find(|folder| watch(&folder.join("kubectl")))?;
    let output = Command::new("kubectl").args(["version", "--client", "-o", "json"]).output().ok()?;
    let json = String::from_utf8(output.stdout).ok()?;
    // `"minor": "33+"`
    let (_, rest) = json.split_once("\"minor\"")?;
    rest.split('"').nth(1)?.trim_end_matches('+').parse().ok()
}
