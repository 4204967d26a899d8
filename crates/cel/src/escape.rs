//! Escapes field names to CEL identifiers: `a-b` is `a__dash__b`.

use crate::reserved_words;

/// The CEL identifier of a field; `None` if the name cannot be escaped.
pub fn escape(name: &str) -> Option<String> {
    let first = name.chars().next()?;
    if first.is_ascii_digit() {
        return None;
    }
    if reserved_words::is_reserved(name) {
        return Some(format!("__{name}__"));
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(letter) = rest.chars().next() {
        let (escaped, consumed) = match letter {
            '_' if rest.starts_with("__") => ("__underscores__", 2),
            '.' => ("__dot__", 1),
            '-' => ("__dash__", 1),
            '/' => ("__slash__", 1),
            letter if letter.is_ascii_alphanumeric() || letter == '_' => (rest.get(..1)?, 1),
            _ => return None,
        };
        out.push_str(escaped);
        rest = rest.get(consumed..)?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_are_escaped_to_identifiers() {
        let table = [
            ("a", Some("a")),
            ("a_b", Some("a_b")),
            ("namespace", Some("__namespace__")),
            ("a-b.c/d", Some("a__dash__b__dot__c__slash__d")),
            ("a__b", Some("a__underscores__b")),
            ("a___b", Some("a__underscores___b")),
            ("9a", None),
            ("", None),
            ("a b", None),
            ("ä", None),
        ];
        for (name, expected) in table {
            assert_eq!(escape(name).as_deref(), expected, "{name}");
        }
    }
}
