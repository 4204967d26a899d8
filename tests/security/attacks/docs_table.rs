//! Checks that the table of docs/security.md names existing tests.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The text of every source file below a folder.
fn sources(folder: &Path, files: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            files.push((path, text));
        }
    }
}

/// The names of the functions that a test attribute stands above.
fn tests(text: &str) -> impl Iterator<Item = &str> {
    let is_attribute = |line: &str| line.trim_start().starts_with("#[");
    let is_test = |line: &str| {
        let line = line.trim();
        line.starts_with("#[") && (line.ends_with("test]") || line.contains("::test("))
    };
    let lines: Vec<&str> = text.lines().collect();
    (0..lines.len()).filter_map(move |index| {
        let mut attributes = lines[..index].iter().rev().take_while(|line| is_attribute(line));
        let name = lines[index].trim_start().trim_start_matches("async ").strip_prefix("fn ")?;
        attributes.any(|line| is_test(line)).then(|| name.split('(').next().unwrap_or_default())
    })
}

/// The texts in backticks of a cell.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn security_page_names_existing_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources_of_repository = Vec::new();
    for folder in ["src", "tests", "actors/src", "crates"] {
        sources(&root.join(folder), &mut sources_of_repository);
    }
    let known: HashSet<(String, &str)> = sources_of_repository
        .iter()
        .flat_map(|(path, text)| {
            let path = path.strip_prefix(root).unwrap().display().to_string();
            tests(text).map(move |name| (path.clone(), name))
        })
        .collect();
    let page = fs::read_to_string(root.join("docs/security.md")).unwrap();
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| class"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() >= 30, "the table has {} rows", rows.len());
    for row in &rows {
        let [class, attack, defence, cell] = row[..] else { panic!("a row has four cells: {row:?}") };
        assert!(!class.is_empty() && !attack.is_empty() && !defence.is_empty(), "{row:?}");
        let named = quoted(cell);
        assert!(!named.is_empty(), "no test for {class}");
        for test in named {
            let (file, name) = test.split_once("::").unwrap_or_else(|| panic!("{test} is no FILE::NAME"));
            assert!(known.contains(&(file.to_owned(), name)), "{class}: there is no test {name} in {file}");
        }
    }
}
