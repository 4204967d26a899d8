//! Field selectors: `spec.nodeName=n1,status.phase!=Running`.

use crate::status::{self, Status};

/// A field selector: all terms must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<Term>);

/// One requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// The name of the field.
    pub field: String,
    /// Whether the field must equal the value or differ from it.
    pub equals: bool,
    /// The value to compare with.
    pub value: String,
}

impl FieldSelector {
    /// Parses a field selector. The kind decides which fields exist.
    pub fn parse(text: &str) -> status::Result<FieldSelector> {
        let mut parts = split(text);
        parts.sort_unstable();
        let terms = parts.into_iter().filter(|part| !part.is_empty()).map(|part| {
            let invalid =
                || Status::bad_request(format!("invalid selector: '{text}'; can't understand '{part}'"));
            term(part).ok_or_else(invalid)?
        });
        let mut terms = terms.collect::<status::Result<Vec<Term>>>()?;
        // An empty field with an empty value matches everything, with either operator.
        terms.retain(|term| !(term.field.is_empty() && term.value.is_empty()));
        Ok(FieldSelector(terms))
    }

    /// The requirements.
    pub fn terms(&self) -> &[Term] {
        &self.0
    }

    /// Whether the selector has no requirements, and so matches everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value that `field` must equal.
    pub fn exact(&self, field: &str) -> Option<String> {
        self.0.iter().find(|term| term.equals && term.field == field).map(|term| term.value.clone())
    }

    /// The same selector with other field names: `name` returns the new name of each field, or an error.
    pub fn rename<E>(&self, mut name: impl FnMut(&str) -> Result<String, E>) -> Result<FieldSelector, E> {
        let terms = self.0.iter().map(|term| Ok(Term { field: name(&term.field)?, ..term.clone() }));
        terms.collect::<Result<Vec<Term>, E>>().map(FieldSelector)
    }
}

/// Splits at commas that are not escaped.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Parses one term; `None` if it has no operator.
fn term(part: &str) -> Option<status::Result<Term>> {
    let operator = part.find(['!', '=']).and_then(|first| {
        // A lone exclamation mark is part of the field.
        (first..part.len()).find(|index| {
            part.as_bytes().get(*index) == Some(&b'=') || part.as_bytes()[*index..].starts_with(b"!=")
        })
    })?;
    let (field, rest) = part.split_at(operator);
    let (equals, value) = match rest.strip_prefix("!=") {
        Some(value) => (false, value),
        None => (true, rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')).unwrap_or(rest)),
    };
    Some(unescape(value).map(|value| Term { field: field.to_owned(), equals, value }))
}

/// Removes escapes.
fn unescape(value: &str) -> status::Result<String> {
    let bad_escape = |sequence: &str| {
        Status::bad_request(format!("invalid field selector: invalid escape sequence: {sequence}"))
    };
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(c) => return Err(bad_escape(&format!("\\{c}"))),
                None => return Err(bad_escape("\\")),
            },
            ',' | '=' => {
                let code = u32::from(c);
                let message = format!("invalid field selector: unescaped character in value: {code}");
                return Err(Status::bad_request(message));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Vec<(String, bool, String)>, String> {
        let selector = FieldSelector::parse(text).map_err(|error| error.message)?;
        Ok(selector.0.into_iter().map(|term| (term.field, term.equals, term.value)).collect())
    }

    fn terms(all: &[(&str, bool, &str)]) -> Vec<(String, bool, String)> {
        all.iter().map(|(field, equals, value)| (field.to_string(), *equals, value.to_string())).collect()
    }

    #[test]
    fn field_selectors_are_parsed() {
        for (text, expected) in [
            ("", terms(&[])),
            (",", terms(&[])),
            ("=", terms(&[])),
            ("!=,a=1", terms(&[("a", true, "1")])),
            ("=1", terms(&[("", true, "1")])),
            ("b=2,a=1", terms(&[("a", true, "1"), ("b", true, "2")])),
            ("a==1", terms(&[("a", true, "1")])),
            ("a!=1", terms(&[("a", false, "1")])),
            ("a=", terms(&[("a", true, "")])),
            ("=x", terms(&[("", true, "x")])),
            ("a!b=1", terms(&[("a!b", true, "1")])),
            (r"a=x\,y\=z\\", terms(&[("a", true, r"x,y=z\")])),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn malformed_field_selectors_have_the_reference_message() {
        for (text, expected) in [
            ("bad", "invalid selector: 'bad'; can't understand 'bad'"),
            (
                "a=1,metadata.name in (a)",
                "invalid selector: 'a=1,metadata.name in (a)'; can't understand 'metadata.name in (a)'",
            ),
            (r"a=\x", r"invalid field selector: invalid escape sequence: \x"),
            (r"a=x\", r"invalid field selector: invalid escape sequence: \"),
            ("a=b=c", "invalid field selector: unescaped character in value: 61"),
        ] {
            assert_eq!(parse(text), Err(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn exact_returns_the_value_of_an_equals_term() {
        let selector = FieldSelector::parse("metadata.name=a,x!=b").unwrap();
        assert_eq!(selector.exact("metadata.name").as_deref(), Some("a"));
        assert_eq!(selector.exact("x"), None);
    }

    proptest! {
        #[test]
        fn escaped_values_round_trip(value in "\\PC{0,16}") {
            let escaped = value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
            let selector = FieldSelector::parse(&format!("a={escaped}")).unwrap();
            prop_assert_eq!(selector.exact("a"), Some(value));
        }

        #[test]
        fn parsing_arbitrary_field_selectors_never_panics(text in "([a!=,\\\\]|\\PC){0,16}") {
            let _ = FieldSelector::parse(&text);
        }
    }
}
