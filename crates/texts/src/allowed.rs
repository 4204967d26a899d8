//! Renders the enum values in the schema table (`schema/`) as Rust constants, so that a validation that names a field cannot
//! drift from the published values.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

/// Reads all files of the schema table in a directory and renders them: a module per file, a unit struct per type with enums,
/// and a constant per field.
pub fn constants(folder: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "api") {
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
            let values: Vec<String> = list.split(',').map(decode_value).collect();
            constants += &format!("pub const {}: &[&str] = &{values:?};\n", screaming_snake_case(field));
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

/// An enum value without the quoting of the table, which quotes empty values and escapes spaces.
fn decode_value(value: &str) -> String {
    value.trim_matches('"').replace("\\u0020", " ")
}

/// `restartPolicy` as `RESTART_POLICY`.
fn screaming_snake_case(field: &str) -> String {
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
    fn enum_values_become_constants_in_table_order() {
        let expected = r#"pub mod test_v1 {
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
        assert_eq!(module("test_v1", FILE), expected);
        assert_eq!(module("none_v1", "type Thing\n  1 plain string\n"), "");
    }

    #[test]
    fn constants_ignores_files_without_api_extension() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("b_v1.api"), FILE).unwrap();
        std::fs::write(folder.path().join("a_v1.api"), FILE).unwrap();
        std::fs::write(folder.path().join("README.md"), FILE).unwrap();
        let text = constants(folder.path()).unwrap();
        assert_eq!(text, module("a_v1", FILE) + &module("b_v1", FILE));
    }
}
