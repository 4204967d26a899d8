//! The direction of imports: an arrow that points up fails here. See docs/ARCHITECTURE.md.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that meets the unexpected fails")]

use std::fs;
use std::path::{Path, PathBuf};

/// A part of the tree and what it may not name.
struct Layer {
    /// The folder or file, from the root of the repository.
    place: &'static str,
    /// Words that would be an arrow pointing up or sideways.
    forbidden: &'static [&'static str],
    /// Why.
    because: &'static str,
}

/// What decides who is let in stands in a folder and in the file of its name.
const ABOVE_FLOWS: &[&str] =
    &["crate::http", "crate::wire", "crate::config", "crate::server", "crate::controllers", "actix_web"];
const FLOWS_BECAUSE: &str = "who is let in is decided by whom and what, not by how it came";

const LAYERS: &[Layer] = &[
    Layer {
        place: "actors/src",
        forbidden: &["actix_web", "actix_http", "actix_server", "pilothouse::", "openssl", "serde_json"],
        because: "the lower crate knows neither HTTP nor what an object means",
    },
    Layer {
        place: "actors/src/engine",
        forbidden: &[
            "crate::store",
            "crate::committer",
            "crate::directory",
            "crate::session",
            "crate::broadcaster",
        ],
        because: "engines keep records and know nobody who uses them",
    },
    Layer {
        place: "src/api",
        forbidden: &[
            "crate::http",
            "crate::verbs",
            "crate::wire",
            "crate::auth",
            "crate::config",
            "crate::server",
            "crate::ids",
            "actix",
            "tokio",
            "std::fs",
            "net::Tcp",
            "net::Udp",
            "openssl::ssl",
            "openssl::pkey",
            "openssl::x509",
            "openssl::rand",
        ],
        because: "the API is pure: no actors, no I/O, nothing of HTTP; addresses and digests are values",
    },
    Layer {
        place: "src/verbs",
        forbidden: &[
            "crate::http",
            "crate::wire",
            "crate::config",
            "crate::controllers",
            "crate::server",
            "actix_web",
            "actix_http",
        ],
        because: "verbs answer to whoever asks; only http/ knows actix-web",
    },
    Layer {
        place: "src/upstream",
        forbidden: &[
            "crate::http",
            "crate::verbs",
            "crate::wire",
            "crate::config",
            "crate::server",
            "actix_web",
            "actix_http",
        ],
        because: "connections out of this server know nothing of those who come in",
    },
    Layer {
        place: "src/frames",
        forbidden: &[
            "crate::http",
            "crate::verbs",
            "crate::wire",
            "crate::config",
            "crate::upstream",
            "actix",
        ],
        because: "frames are bytes, whoever sends them",
    },
    Layer {
        place: "src/controllers",
        forbidden: &["crate::http", "crate::wire", "crate::config", "crate::server", "actix_web"],
        because: "control loops are clients of the verbs and are told what they need",
    },
    Layer {
        place: "src/definitions",
        forbidden: &["crate::http", "crate::wire", "crate::config", "crate::server", "actix_web"],
        because: "who follows definitions is a client of the verbs and is told how to publish",
    },
    Layer {
        place: "src/definitions.rs",
        forbidden: &["crate::http", "crate::wire", "crate::config", "crate::server", "actix_web"],
        because: "who follows definitions is a client of the verbs and is told how to publish",
    },
    Layer {
        place: "src/auth",
        forbidden: &["crate::http", "crate::verbs", "crate::wire", "crate::server", "actix_web"],
        because: "verifiers and policies are injected and know nobody above them",
    },
    Layer { place: "src/flows", forbidden: ABOVE_FLOWS, because: FLOWS_BECAUSE },
    Layer { place: "src/flows.rs", forbidden: ABOVE_FLOWS, because: FLOWS_BECAUSE },
    Layer {
        place: "src/http",
        forbidden: &["crate::wire", "crate::server"],
        because: "the edge is wired, it does not wire",
    },
    Layer {
        place: "src/config",
        forbidden: &["crate::http", "crate::verbs", "crate::auth", "crate::wire", "crate::server", "actix"],
        because: "settings are values that everybody may read, so they know nobody",
    },
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(place: &Path, found: &mut Vec<PathBuf>) {
    if place.is_file() {
        found.push(place.to_owned());
        return;
    }
    for entry in fs::read_dir(place).unwrap_or_else(|error| panic!("{}: {error}", place.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() || path.extension().is_some_and(|extension| extension == "rs") {
            sources(&path, found);
        }
    }
}

/// The code of a file without its tests and comments: tests may reach up to set a scene.
fn code(path: &Path) -> String {
    if path.ends_with("tests.rs") {
        return String::new();
    }
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn imports_point_down() {
    let mut wrong = Vec::new();
    for layer in LAYERS {
        let mut files = Vec::new();
        sources(&root().join(layer.place), &mut files);
        assert!(!files.is_empty(), "{} has no sources", layer.place);
        for file in files {
            let code = code(&file);
            for word in layer.forbidden.iter().filter(|word| code.contains(**word)) {
                let file = file.strip_prefix(root()).unwrap().display().to_string();
                wrong.push(format!("{file} names {word}: {}", layer.because));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn files_stay_small() {
    /// Tables stand alone in their files and may be long.
    const CEILING: usize = 1_000;
    let mut files = Vec::new();
    for place in ["src", "actors/src", "texts/src", "tests", "benches"] {
        sources(&root().join(place), &mut files);
    }
    let long: Vec<String> = files
        .iter()
        .filter_map(|file| {
            let lines = fs::read_to_string(file).unwrap().lines().count();
            (lines > CEILING)
                .then(|| format!("{}: {lines} lines", file.strip_prefix(root()).unwrap().display()))
        })
        .collect();
    assert!(long.is_empty(), "files over {CEILING} lines:\n{}", long.join("\n"));
}

#[test]
fn only_the_clock_reads_the_clock() {
    let mut files = Vec::new();
    for place in ["src", "actors/src"] {
        sources(&root().join(place), &mut files);
    }
    let wrong: Vec<_> = files
        .iter()
        .filter(|file| !file.ends_with("clock.rs"))
        .filter(|file| ["SystemTime::now", "Instant::now"].iter().any(|call| code(file).contains(call)))
        .collect();
    assert!(wrong.is_empty(), "read the clock elsewhere: {wrong:?}");
}
