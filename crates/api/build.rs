//! Puts the descriptions of the API into the build folder, for `src/descriptions.rs` to embed.
//!
//! A server without descriptions serves everything all the same, so whatever goes wrong with them is a warning.

use std::env;
use std::error::Error;
use std::path::PathBuf;

use pilothouse_texts::{Bundle, read};

fn main() -> Result<(), Box<dyn Error>> {
    let variable = |name: &str| env::var_os(name).ok_or_else(|| format!("cargo sets no {name}"));
    let project = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let found = read(&project.join("../../Cargo.toml"), &PathBuf::from(variable("CARGO")?));
    for problem in &found.problems {
        say(&format!("warning=no descriptions of the API: {problem}"));
    }
    // A package of the registry never changes, so its manifest stands for all of it. Where one was missing this runs
    // again with every build until it is there.
    say("rerun-if-changed=build.rs");
    say("rerun-if-env-changed=CARGO_HOME");
    for folder in &found.folders {
        say(&format!("rerun-if-changed={}", folder.join("Cargo.toml").display()));
    }
    if !found.problems.is_empty() {
        say("rerun-if-changed=no-such-file");
    }
    Ok(Bundle::of(&found.texts).write(&out)?)
}

/// How a build script talks to cargo.
fn say(line: &str) {
    println!("cargo::{line}");
}
