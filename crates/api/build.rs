//! Puts the descriptions of the API into the build folder, for `src/descriptions.rs` to embed.
//!
//! It also tells the tests whether the descriptions are there, and the recorded responses of the reference: a test that lacks them
//! is reported as ignored, not as passed.
//!
//! A server without descriptions serves everything all the same, so problems with them are only warnings.

use std::env;
use std::error::Error;
use std::path::PathBuf;

use pilothouse_texts::{Bundle, read};

fn main() -> Result<(), Box<dyn Error>> {
    let variable = |name: &str| env::var_os(name).ok_or_else(|| format!("cargo sets no {name}"));
    let project = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let descriptions = read(&project.join("../../Cargo.toml"), &PathBuf::from(variable("CARGO")?));
    for problem in &descriptions.problems {
        instruct_cargo(&format!("warning=no descriptions of the API: {problem}"));
    }
    // A package of the registry never changes, so watching its manifest is enough. If one was missing, a file that never exists
    // makes cargo run this script at every build.
    instruct_cargo("rerun-if-changed=build.rs");
    instruct_cargo("rerun-if-env-changed=CARGO_HOME");
    for folder in &descriptions.folders {
        instruct_cargo(&format!("rerun-if-changed={}", folder.join("Cargo.toml").display()));
    }
    if !descriptions.problems.is_empty() {
        instruct_cargo("rerun-if-changed=no-such-file");
    }
    set_cfg("has_descriptions", descriptions.problems.is_empty());
    instruct_cargo("rerun-if-env-changed=PILOTHOUSE_GOLDEN");
    let golden = env::var_os("PILOTHOUSE_GOLDEN");
    let recordings =
        golden.map_or_else(|| project.join("../../../shared/golden"), PathBuf::from).join("discovery");
    set_cfg("has_recorded_responses", recordings.is_dir());
    // A folder that does not exist is not watched, because cargo would build this crate anew every time.
    if recordings.is_dir() {
        instruct_cargo(&format!("rerun-if-changed={}", recordings.display()));
    }
    Ok(Bundle::pack(&descriptions.texts).write(&out)?)
}

/// Declares a cfg, and sets it if it holds.
fn set_cfg(name: &str, is_set: bool) {
    instruct_cargo(&format!("rustc-check-cfg=cfg({name})"));
    if is_set {
        instruct_cargo(&format!("rustc-cfg={name}"));
    }
}

/// Prints an instruction of a build script.
fn instruct_cargo(line: &str) {
    println!("cargo::{line}");
}
