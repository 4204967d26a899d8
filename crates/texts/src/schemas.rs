//! Reads the published texts: one source file for each type, in which a JSON schema is written as Rust.

use std::fs;
use std::io;
use std::path::Path;

use super::{Descriptions, TypeDescriptions};

/// The indentation of the lines that describe the type, name a field, and describe a field.
const TYPE_DESCRIPTION_INDENT: usize = 12;
const FIELD_NAME_INDENT: usize = 16;
const FIELD_DESCRIPTION_INDENT: usize = 20;

/// Reads every file below a folder.
pub(crate) fn read(folder: &Path) -> io::Result<Descriptions> {
    let mut texts = Descriptions::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                texts.extend(schema(&fs::read_to_string(path)?));
            }
        }
    }
    Ok(texts)
}

/// The published name of a file's type, and its texts.
fn schema(source: &str) -> Option<(String, TypeDescriptions)> {
    let (before, rest) = source.split_once("fn schema_name()")?;
    // Generic types have descriptions of the package's own.
    if before.trim_end().lines().next_back()?.starts_with("impl<") {
        return None;
    }
    let name = rest.split('"').nth(1)?;
    let mut words = TypeDescriptions::default();
    let mut field = String::new();
    for line in rest.lines() {
        let code = line.trim_start();
        match line.len() - code.len() {
            TYPE_DESCRIPTION_INDENT => {
                words.description = parse_description(code).unwrap_or(std::mem::take(&mut words.description));
            }
            FIELD_NAME_INDENT => field = code.split('"').nth(1).unwrap_or_default().to_owned(),
            FIELD_DESCRIPTION_INDENT => {
                if let Some(text) = parse_description(code) {
                    words.fields.insert(field.clone(), text);
                }
            }
            _ => {}
        }
    }
    Some((name.to_owned(), words))
}

/// The string of a `description` line: an entry of a map, or an insertion.
fn parse_description(code: &str) -> Option<String> {
    let literal = code
        .strip_prefix("\"description\": \"")
        .or_else(|| code.split_once("insert(\"description\".into(), \"").map(|(_, literal)| literal))?;
    unescape(literal)
}

/// The value of a string literal, after its opening quote.
fn unescape(literal: &str) -> Option<String> {
    let mut text = String::with_capacity(literal.len());
    let mut chars = literal.chars();
    loop {
        match chars.next()? {
            '"' => return Some(text),
            '\\' => text.push(match chars.next()? {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                '0' => '\0',
                'u' => {
                    let digits: String = chars.by_ref().skip(1).take_while(|c| *c != '}').collect();
                    char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
                }
                same => same,
            }),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
/// A comment that escapes \< what the schema does not.
pub struct Thing {}

impl crate::schemars::JsonSchema for Thing {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "io.example.v1.Thing".into()
    }

    fn json_schema(__gen: &mut crate::schemars::SchemaGenerator) -> crate::schemars::Schema {
        crate::schemars::json_schema!({
            "description": "A thing.",
            "type": "object",
            "properties": {
                "size": {
                    "description": "Below \"9\" < x.\n\nOr\tmore \u{e9}.",
                    "type": "integer",
                },
                "silent": {
                    "type": "object",
                },
                "part": ({
                    let mut schema_obj = __gen.subschema_for::<crate::Part>();
                    schema_obj.ensure_object().insert("description".into(), "Its part.".into());
                    schema_obj
                }),
            },
        })
    }
}
"#;

    #[test]
    fn field_descriptions_are_read_in_both_forms() {
        let (name, words) = schema(SOURCE).unwrap();
        assert_eq!((name.as_str(), words.description.as_str()), ("io.example.v1.Thing", "A thing."));
        let fields: Vec<(&str, &str)> = words.fields.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(fields, [("part", "Its part."), ("size", "Below \"9\" < x.\n\nOr\tmore \u{e9}.")]);
    }

    #[test]
    fn generic_types_and_other_files_are_skipped() {
        assert!(schema(&SOURCE.replace("impl crate", "impl<T> crate")).is_none());
        assert!(schema("mod thing;").is_none());
        assert_eq!(unescape("no end"), None);
    }
}
