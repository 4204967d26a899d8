//! Puts the descriptions of the API into the build folder, for `src/descriptions.rs` to embed.
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
    Ok(Bundle::pack(&descriptions.texts).write(&out)?)
}

/// Prints an instruction of a build script.
fn instruct_cargo(line: &str) {
    println!("cargo::{line}");
}
