//! Documents name files, tests and identifiers that exist.

use std::collections::{BTreeSet, HashSet};
use std::fs;

use crate::root;

/// Suffixes of file names.
const ENDINGS: [&str; 9] = [".rs", ".md", ".toml", ".txt", ".api", ".yaml", ".yml", ".sh", ".py"];
/// Files that documents name and that are not in the repository: they are generated, or belong to other projects.
const ELSEWHERE: [&str; 2] = ["hack/make-rules/test-cmd.sh", "vendor/"];

/// All files of the repository, from its root. A fresh clone has no others.
fn files() -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
            if path.is_dir() {
                // Created by cargo, git and a running server.
                if !["target", ".git", "pilothouse-data"].contains(&name.as_str()) {
                    folders.push(path);
                }
            } else {
                files.push(path.strip_prefix(root()).unwrap().display().to_string());
            }
        }
    }
    files
}

/// The texts of all Rust sources among some files.
fn sources(files: &[String]) -> Vec<String> {
    let sources = files.iter().filter(|file| file.ends_with(".rs"));
    sources.map(|file| fs::read_to_string(root().join(file)).unwrap()).collect()
}

/// The code spans of a document.
fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The commands in the indented blocks of a document, without comments.
fn indented_commands(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("    "));
    lines.map(|line| line.split(" #").next().unwrap_or(line).trim())
}

/// Whether a code span is a source folder such as `auth/openid/`, and not a URL or an API path.
fn is_folder(span: &str) -> bool {
    span.ends_with('/')
        && !span.starts_with('/')
        && span.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-/".contains(letter))
}

#[test]
fn documents_name_files_that_exist() {
    let files = files();
    let mut missing = BTreeSet::new();
    let documents = files.iter().filter(|file| file.ends_with(".md"));
    for document in documents {
        let text = fs::read_to_string(root().join(document)).unwrap();
        let is_file = |span: &&str| {
            (ENDINGS.iter().any(|ending| span.ends_with(ending)) || is_folder(span))
                && !span.contains([' ', '*', '<', '{', '$', ':', '='])
                && !span.starts_with('.')
        };
        for span in code_spans(&text).filter(is_file) {
            // Tables may name a file by the last part of its path.
            let exists = files.iter().any(|file| match span.strip_suffix('/') {
                Some(_) => file.starts_with(span) || file.contains(&format!("/{span}")),
                None => {
                    file.strip_suffix(span).is_some_and(|before| before.is_empty() || before.ends_with('/'))
                }
            });
            if !exists && !ELSEWHERE.contains(&span) {
                missing.insert(format!("{document}: {span}"));
            }
        }
    }
    assert!(
        missing.is_empty(),
        "named and not there:\n{}",
        missing.into_iter().collect::<Vec<_>>().join("\n")
    );
}

/// The test filters of a `cargo test` command: before and after `--`, all arguments that are no options.
fn test_filters<'w>(arguments: &[&'w str]) -> Vec<&'w str> {
    let takes_value = ["--test", "-p", "--package", "--bench", "--bin", "--features"];
    let (mut filters, mut is_value, mut is_command) = (Vec::new(), false, false);
    for argument in arguments {
        match *argument {
            "test" if !is_command => is_command = true,
            _ if !is_command || is_value || argument.starts_with('-') => {}
            _ => filters.push(*argument),
        }
        is_value = takes_value.contains(argument);
    }
    filters
}

/// Whether there is an integration test of this name: a file or a folder of `tests`.
fn has_test_target(files: &[String], name: &str) -> bool {
    let paths = [format!("tests/{name}.rs"), format!("tests/{name}/main.rs")];
    files.iter().any(|file| paths.iter().any(|path| file.ends_with(path)))
}

#[test]
fn documents_name_tests_that_exist() {
    let files = files();
    let sources = sources(&files);
    // A filter is a substring of the path of a test: of its module or of its name.
    let exists = |filter: &str| {
        let last = filter.rsplit("::").next().unwrap_or(filter);
        sources.iter().any(|source| {
            source.lines().any(|line| {
                let line = line.trim_start();
                ["fn ", "async fn ", "mod ", "pub mod "]
                    .iter()
                    .any(|start| line.strip_prefix(start).is_some_and(|name| name.contains(last)))
            })
        })
    };
    let mut missing = BTreeSet::new();
    for document in files.iter().filter(|file| file.ends_with(".md")) {
        let text = fs::read_to_string(root().join(document)).unwrap();
        let commands = code_spans(&text).chain(indented_commands(&text));
        for command in commands.filter(|command| command.contains("cargo test")) {
            let arguments: Vec<&str> = command.split_whitespace().collect();
            let target = arguments.windows(2).filter(|pair| pair[0] == "--test").map(|pair| pair[1]);
            let unknown = target.filter(|name| !has_test_target(&files, name));
            missing.extend(unknown.map(|name| format!("{document}: --test {name}")));
            let unknown = test_filters(&arguments).into_iter().filter(|argument| !exists(argument));
            missing.extend(unknown.map(|argument| format!("{document}: {command}: {argument}")));
        }
    }
    assert!(
        missing.is_empty(),
        "named and not there:\n{}",
        missing.into_iter().collect::<Vec<_>>().join("\n")
    );
}

/// The identifiers of Rust code that a code span names: constants, types, functions with an underscore, and every part of a path.
fn identifiers(span: &str) -> Vec<&str> {
    let span = span.strip_suffix("()").unwrap_or(span);
    let parts: Vec<&str> = span.split("::").collect();
    let is_word = |part: &str| {
        !part.is_empty() && part.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    let is_name = |part: &str| {
        let is_capitalized = part.starts_with(|letter: char| letter.is_ascii_uppercase());
        is_capitalized || (part.contains('_') && !part.starts_with('_') && !part.ends_with('_'))
    };
    if parts.iter().all(|part| is_word(part)) && (parts.len() > 1 || is_name(span)) {
        parts
    } else {
        Vec::new()
    }
}

#[test]
fn documents_name_identifiers_that_exist() {
    let sources = sources(&files());
    let is_separator = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
    let known: HashSet<&str> = sources.iter().flat_map(|source| source.split(is_separator)).collect();
    let mut missing = BTreeSet::new();
    for document in ["CONTRIBUTING.md", "docs/ARCHITECTURE.md", "docs/code-map.md"] {
        let text = fs::read_to_string(root().join(document)).unwrap();
        let named = code_spans(&text).flat_map(identifiers);
        let unknown = named.filter(|name| !known.contains(name));
        missing.extend(unknown.map(|name| format!("{document}: {name}")));
    }
    assert!(
        missing.is_empty(),
        "named and not there:\n{}",
        missing.into_iter().collect::<Vec<_>>().join("\n")
    );
}

/// proptest looks for the failures of `src/a/b.rs` in `proptest-regressions/a/b.txt`; after a rename it would not find them.
#[test]
fn proptest_regressions_have_their_source() {
    let files = files();
    let regressions = files.iter().filter(|file| file.contains("proptest-regressions/"));
    let orphans: Vec<&String> = regressions
        .filter(|file| {
            let source = file.replacen("proptest-regressions/", "src/", 1).replace(".txt", ".rs");
            !files.contains(&source)
        })
        .collect();
    assert!(orphans.is_empty(), "no source file for {orphans:?}");
}
