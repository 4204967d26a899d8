//! The fieldPath of validation rules: `.spec.size`, `.data['a.b']`.

use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::value::Value;

/// The path as messages print it; `None` if it is invalid, or not in the schema.
pub fn resolve(text: &str, schema: &Value) -> Option<String> {
    if text.is_empty() {
        return None;
    }
    let (mut path, mut current, mut rest) = (FieldPath::root(), schema, text);
    while !rest.is_empty() {
        let name;
        (name, rest) = next_name(rest)?;
        if let Some(properties) = current.get("properties") {
            current = properties.get(&name)?;
            path = path.child(&name);
        } else {
            current = current.get("additionalProperties").filter(|values| values.fields().is_some())?;
            path = path.key(&name);
        }
    }
    Some(path.to_string())
}

/// The next name, and the rest.
fn next_name(text: &str) -> Option<(String, &str)> {
    if let Some(inner) = text.strip_prefix("['") {
        let mut name = String::new();
        let mut letters = inner.char_indices();
        while let Some((index, letter)) = letters.next() {
            match letter {
                '\'' => return Some((name, inner.get(index + 1..)?.strip_prefix(']')?)),
                '\\' => name.push(match letters.next()?.1 {
                    'a' => '\u{7}',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    'v' => '\u{b}',
                    letter @ ('\'' | '\\') => letter,
                    _ => return None,
                }),
                letter => name.push(letter),
            }
        }
        return None;
    }
    let inner = text.strip_prefix('.')?;
    let end = inner.find(['.', '[', ']']).unwrap_or(inner.len());
    let (name, rest) = inner.split_at(end);
    (!name.is_empty()).then(|| (name.to_owned(), rest))
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;

    use super::*;

    #[test]
    fn field_path_resolves_within_the_schema() {
        let schema = json::read(
            br#"{"properties":{"a.b":{"additionalProperties":{"properties":{"c":{}}}},"d":{"type":"string"}}}"#,
        )
        .unwrap();
        let table = [
            (".d", Some("d")),
            ("['a.b'].x.c", Some("a.b[x].c")),
            (r"['a.b']['it\'s']", Some("a.b[it's]")),
            (".e", None),
            ("d", None),
            (".d.", None),
            ("['d'", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(resolve(text, &schema).as_deref(), expected, "{text}");
        }
    }
}
