//! The lists of allowed words in the facts table (`schema/`), as constants of the server's own language: a check that
//! names one cannot drift from what is published, and one that names none does not compile.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

/// Reads all files of the table in a folder, and gives the constants: a module for each file, in it a type for each that
/// has such lists, on it a constant for each field.
pub fn constants(folder: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "api") {
            let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            files.push((name, std::fs::read_to_string(&path)?));
        }
    }
    files.sort();
    Ok(files.iter().map(|(name, text)| module(name, text)).collect())
}

fn module(name: &str, text: &str) -> String {
    let (mut types, mut constants, mut owner) = (String::new(), String::new(), "");
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("type ") {
            types += &structure(owner, &constants);
            constants.clear();
            owner = head.split_ascii_whitespace().next().unwrap_or_default();
        }
        let mut parts = line.split_ascii_whitespace();
        let field = parts.by_ref().nth(1).unwrap_or_default();
        let list = parts.find_map(|part| part.strip_prefix("enum=").or(part.strip_prefix("itemenum=")));
        if let Some(list) = list.filter(|_| line.starts_with(' ')) {
            let words: Vec<String> = list.split(',').map(word).collect();
            constants += &format!("pub const {}: &[&str] = &{words:?};\n", shouted(field));
        }
    }
    types += &structure(owner, &constants);
    if types.is_empty() { types } else { format!("pub mod {name} {{\n{types}}}\n") }
}

fn structure(name: &str, constants: &str) -> String {
    let mut text = String::new();
    if !constants.is_empty() {
        // Writing to a text cannot fail.
        let _ = write!(text, "pub struct {name};\nimpl {name} {{\n{constants}}}\n");
    }
    text
}

/// A word as it is, without the form that the table gives to one with spaces or to an empty one.
fn word(word: &str) -> String {
    word.trim_matches('"').replace("\\u0020", " ")
}

/// `restartPolicy` as constants are written.
fn shouted(field: &str) -> String {
    let mut name = String::new();
    for letter in field.chars() {
        if letter.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"package k8s.io.api.test.v1
group test version v1

resource things Thing namespaced
  col Name string

type Thing object
  1 mode string fill="A" enum=B,A
  2 plain string

type Plain
  1 field string

type Last
  1 manyModes [string] list=atomic itemenum="","a\u0020b",c
"#;

    #[test]
    fn each_list_becomes_a_constant_in_the_order_of_the_table() {
        let wanted = r#"pub mod test_v1 {
pub struct Thing;
impl Thing {
pub const MODE: &[&str] = &["B", "A"];
}
pub struct Last;
impl Last {
pub const MANY_MODES: &[&str] = &["", "a b", "c"];
}
}
"#;
        assert_eq!(module("test_v1", FILE), wanted);
        assert_eq!(module("none_v1", "type Thing\n  1 plain string\n"), "");
    }

    #[test]
    fn only_the_files_of_the_table_are_read() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("b_v1.api"), FILE).unwrap();
        std::fs::write(folder.path().join("a_v1.api"), FILE).unwrap();
        std::fs::write(folder.path().join("README.md"), FILE).unwrap();
        let text = constants(folder.path()).unwrap();
        assert_eq!(text, module("a_v1", FILE) + &module("b_v1", FILE));
    }
}
