//! Generates constants for the enum values of the schema table, for `src/allowed.rs`.

use std::env;
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let variable = |name: &str| env::var_os(name).ok_or_else(|| format!("cargo sets no {name}"));
    let facts = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("../apimachinery/schema");
    println!("cargo::rerun-if-changed={}", facts.display());
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(variable("OUT_DIR")?).join("allowed.rs");
    Ok(std::fs::write(out, pilothouse_texts::constants(&facts)?)?)
}
