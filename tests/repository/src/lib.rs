//! Checks of the repository itself: its source tree, its documents, and the licences of its dependencies.
//!
//! `cargo test -p pilothouse-repository` runs them in seconds.

#![cfg(test)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that meets the unexpected fails")]

mod documents;
mod effects;
mod layers;
mod licences;

use std::path::Path;

/// The top of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}
