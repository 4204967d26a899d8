//! Every metric that is declared is moved by a test that says what its value is then.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;

/// Metrics whose values no test says, and why.
const WITHOUT_TEST: &[(&str, &str)] = &[];

/// All names, as they are registered.
fn declared() -> BTreeSet<String> {
    let all = Registry::new();
    let registry = MetricRegistry::new(&all);
    Metrics::register(&registry, all.clone(), Timestamp(0)).unwrap();
    Exposition::default().register(&registry).unwrap();
    registry.names()
}

fn add_sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => add_sources(&path, files),
            false => files.extend(Some(path).filter(|path| path.extension().is_some_and(|end| end == "rs"))),
        }
    }
}

/// The code of all tests: whole files, and the ends of others.
fn test_code() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    add_sources(&root.join("tests"), &mut files);
    let (mut sources, mut code) = (Vec::new(), String::new());
    add_sources(&root.join("src"), &mut sources);
    for file in files.iter().chain(&sources) {
        let text = fs::read_to_string(file).unwrap();
        let name = file.file_name().unwrap().to_string_lossy();
        let is_whole = file.starts_with(root.join("tests")) || name.ends_with("tests.rs");
        // Not this one: it would name what it excuses.
        if file.ends_with("metrics/declared_tests.rs") {
            continue;
        }
        match text.split_once("#[cfg(test)]") {
            _ if is_whole => code += &text,
            Some((_, tests)) => code += tests,
            None => {}
        }
    }
    code
}

/// Whether tests say a value of a metric: in a line as it is shown, with a number at its end, or by its whole name, which is given to a
/// function that looks for its series.
fn is_told(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(offset, _)| {
        let before = code[..offset].chars().next_back().unwrap_or(' ');
        let rest = &code[offset + name.len()..];
        let rest =
            ["_bucket", "_count", "_sum"].iter().find_map(|end| rest.strip_prefix(end)).unwrap_or(rest);
        let is_whole = before == '"' && rest.starts_with('"');
        let is_line = !(before.is_alphanumeric() || before == '_') && rest.starts_with(['{', ' ']);
        is_whole || is_line && line_has_value(rest)
    })
}

/// Whether a series in a test's text ends with a value.
fn line_has_value(rest: &str) -> bool {
    let line = rest.lines().next().unwrap_or_default();
    let labels_end = line.rfind('}').map_or(0, |end| end + 1);
    line[labels_end..]
        .trim_start()
        .starts_with(|character: char| character.is_ascii_digit() || character == '{')
        || line.trim_start().starts_with(|character: char| character.is_ascii_digit())
}

#[test]
fn every_metric_is_moved_by_a_test() {
    let (names, code) = (declared(), test_code());
    assert!(names.len() > 100, "{names:?}");
    let is_excused = |name: &str| WITHOUT_TEST.iter().any(|(excused, _)| *excused == name);
    let silent: Vec<&String> =
        names.iter().filter(|name| !is_told(&code, name) && !is_excused(name)).collect();
    assert!(silent.is_empty(), "no test says a value of {silent:#?}");
    for (excused, reason) in WITHOUT_TEST {
        assert!(names.contains(*excused) && !is_told(&code, excused) && !reason.is_empty(), "{excused}");
    }
}
