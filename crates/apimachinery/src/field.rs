//! Validation errors: the path of a field, and the violated rule.

use std::fmt::{self, Write as _};

use super::limits::PATH_BYTES;

/// The path of a field as messages print it: `spec.containers[0].name`, `data[tls.crt]`. A path that is too long is truncated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldPath(String);

/// The end of a truncated path.
const ELLIPSIS: &str = "...";

impl FieldPath {
    /// The path of a top-level field.
    pub fn new(field: &str) -> FieldPath {
        FieldPath(field.to_owned())
    }

    /// The path of the object itself, which prints as nothing.
    pub fn root() -> FieldPath {
        FieldPath::default()
    }

    /// The path of a field below this one.
    pub fn child(&self, field: &str) -> FieldPath {
        // Validation makes many more paths than errors: one allocation of the right size, without the formatter.
        let mut text = String::with_capacity(self.0.len() + field.len() + 1);
        text.push_str(&self.0);
        if !self.0.is_empty() {
            text.push('.');
        }
        text.push_str(field);
        FieldPath::truncated(text)
    }

    /// The path of an item of this list.
    pub fn index(&self, index: usize) -> FieldPath {
        match u8::try_from(index) {
            Ok(digit) if digit < 10 => self.subscript(char::from(b'0' + digit).encode_utf8(&mut [0; 4])),
            _ => self.subscript(&index.to_string()),
        }
    }

    /// The path of an entry of this map.
    pub fn key(&self, key: &str) -> FieldPath {
        self.subscript(key)
    }

    /// The path of rules about an object as a whole, which prints as an empty subscript.
    pub fn nameless() -> FieldPath {
        FieldPath("[]".to_owned())
    }

    fn subscript(&self, inner: &str) -> FieldPath {
        let mut text = String::with_capacity(self.0.len() + inner.len() + 2);
        text.push_str(&self.0);
        text.push('[');
        text.push_str(inner);
        text.push(']');
        FieldPath::truncated(text)
    }

    /// Truncates a path that becomes too long. Clients choose the keys, and each field below repeats them.
    fn truncated(mut text: String) -> FieldPath {
        if text.len() > PATH_BYTES {
            let mut end = PATH_BYTES - ELLIPSIS.len();
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            text.push_str(ELLIPSIS);
            text.shrink_to_fit();
        }
        FieldPath(text)
    }

    /// The length of the path in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether this is the path of the object itself.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The type of a validation error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorType {
    /// A required field is missing.
    Required,
    /// The value violates a rule.
    Invalid,
    /// The value has the wrong type.
    TypeInvalid,
    /// The value is not in the list of supported ones.
    NotSupported,
    /// The value occurs twice.
    Duplicate,
    /// The field must not be set, or not to this value, or not by this request.
    Forbidden,
    /// The value is longer than allowed.
    TooLong,
    /// The list is longer than allowed.
    TooMany,
    /// The value refers to an object that does not exist.
    NotFound,
    /// The check itself failed.
    Internal,
}

impl ErrorType {
    /// The reason in the causes of a Status.
    pub fn reason(self) -> &'static str {
        match self {
            ErrorType::Required => "FieldValueRequired",
            ErrorType::Invalid => "FieldValueInvalid",
            ErrorType::TypeInvalid => "FieldValueTypeInvalid",
            ErrorType::NotSupported => "FieldValueNotSupported",
            ErrorType::Duplicate => "FieldValueDuplicate",
            ErrorType::Forbidden => "FieldValueForbidden",
            ErrorType::TooLong => "FieldValueTooLong",
            ErrorType::TooMany => "FieldValueTooMany",
            ErrorType::NotFound => "FieldValueNotFound",
            ErrorType::Internal => "InternalError",
        }
    }

    fn title(self) -> &'static str {
        match self {
            ErrorType::Required => "Required value",
            ErrorType::Invalid | ErrorType::TypeInvalid => "Invalid value",
            ErrorType::NotSupported => "Unsupported value",
            ErrorType::Duplicate => "Duplicate value",
            ErrorType::Forbidden => "Forbidden",
            ErrorType::TooLong => "Too long",
            ErrorType::TooMany => "Too many",
            ErrorType::NotFound => "Not found",
            ErrorType::Internal => "Internal error",
        }
    }
}

/// One validation error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The path of the field.
    pub path: FieldPath,
    /// The type of the error.
    pub problem: ErrorType,
    /// The message without the path: `Invalid value: "x": must be a number`.
    pub message: String,
    /// The violated rule, if both declarative and handwritten validation check it under this name; else empty.
    pub rule: &'static str,
    /// Whether declarative validation finds the same error.
    pub covered: bool,
}

impl FieldError {
    fn new(path: &FieldPath, problem: ErrorType, value: Option<&str>, detail: &str) -> FieldError {
        let mut message = problem.title().to_owned();
        if let Some(value) = value {
            let _ = write!(message, ": {value}");
        }
        if !detail.is_empty() {
            let _ = write!(message, ": {detail}");
        }
        FieldError::with_message(path, problem, message)
    }

    /// An error with a complete message.
    pub fn with_message(path: &FieldPath, problem: ErrorType, message: String) -> FieldError {
        FieldError { path: path.clone(), problem, message, rule: "", covered: false }
    }

    /// Names the violated rule.
    pub fn by_rule(self, rule: &'static str) -> FieldError {
        FieldError { rule, ..self }
    }

    /// Marks that declarative validation finds the same error.
    pub fn covered(self) -> FieldError {
        FieldError { covered: true, ..self }
    }

    /// A required field is missing.
    pub fn required(path: &FieldPath, detail: &str) -> FieldError {
        FieldError::new(path, ErrorType::Required, None, detail)
    }

    /// The value violates a rule. `value` is printed as the API prints it: see [`quoted`].
    pub fn invalid(path: &FieldPath, value: &str, detail: &str) -> FieldError {
        FieldError::new(path, ErrorType::Invalid, Some(value), detail)
    }

    /// The check itself failed.
    pub fn internal(path: &FieldPath, detail: &str) -> FieldError {
        FieldError::new(path, ErrorType::Internal, None, detail)
    }

    /// The value has the wrong type.
    pub fn type_invalid(path: &FieldPath, value: &str, detail: &str) -> FieldError {
        FieldError::new(path, ErrorType::TypeInvalid, Some(value), detail)
    }

    /// The value is not in `supported`, which is printed in the given order.
    pub fn not_supported(path: &FieldPath, value: &str, supported: &[&str]) -> FieldError {
        let names: Vec<String> = supported.iter().map(|name| quoted(name)).collect();
        let detail =
            if names.is_empty() { String::new() } else { format!("supported values: {}", names.join(", ")) };
        FieldError::new(path, ErrorType::NotSupported, Some(value), &detail)
    }

    /// The value occurs twice.
    pub fn duplicate(path: &FieldPath, value: &str) -> FieldError {
        FieldError::new(path, ErrorType::Duplicate, Some(value), "")
    }

    /// The field must not be set like this.
    pub fn forbidden(path: &FieldPath, detail: &str) -> FieldError {
        FieldError::new(path, ErrorType::Forbidden, None, detail)
    }

    /// The value has more than `limit` bytes. The value itself is not repeated.
    pub fn too_long(path: &FieldPath, limit: usize) -> FieldError {
        FieldError::new(path, ErrorType::TooLong, None, &format!("may not be more than {limit} bytes"))
    }

    /// The list has `actual` items, but `limit` are allowed.
    pub fn too_many(path: &FieldPath, actual: usize, limit: usize) -> FieldError {
        FieldError::new(
            path,
            ErrorType::TooMany,
            Some(&actual.to_string()),
            &format!("must have at most {limit} items"),
        )
    }

    /// The value refers to an object that does not exist.
    pub fn not_found(path: &FieldPath, value: &str) -> FieldError {
        FieldError::new(path, ErrorType::NotFound, Some(value), "")
    }

    /// Appends a reason.
    pub fn because(mut self, detail: &str) -> FieldError {
        self.message.push_str(": ");
        self.message.push_str(detail);
        self
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path == FieldPath::root() {
            return f.write_str(&self.message);
        }
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// Quotes a text like Go's `%q`.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c if !is_printable(c) => {
                let _ = match c as u32 {
                    number @ ..=0xffff => write!(out, "\\u{number:04x}"),
                    number => write!(out, "\\U{number:08x}"),
                };
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Whether Go prints a character as it is: letters, marks, numbers, punctuation and symbols are; spaces, control, private and
/// unassigned characters are not. The standard library's debug format agrees, except for spaces, for characters that are not the
/// first of a text.
fn is_printable(c: char) -> bool {
    c.is_ascii() || (!c.is_whitespace() && format!("a{c}").escape_debug().nth(1) == Some(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_errors_have_the_reference_format() {
        let name = FieldPath::new("spec").child("containers").index(0).child("name");
        assert_eq!(FieldError::required(&name, "").to_string(), "spec.containers[0].name: Required value");
        let data = FieldPath::new("data").key("tls.crt");
        assert_eq!(data.to_string(), "data[tls.crt]");
        let error = FieldError::not_supported(&FieldPath::new("type"), &quoted("X"), &["B", "A"]);
        assert_eq!(error.message, r#"Unsupported value: "X": supported values: "B", "A""#);
        assert_eq!(FieldError::not_found(&data, "x").because("y").message, "Not found: x: y");
        assert_eq!(FieldPath::new("a").index(9).index(10).key("k").to_string(), "a[9][10][k]");
        assert_eq!(FieldError::forbidden(&FieldPath::nameless(), "x").to_string(), "[]: Forbidden: x");
        assert_eq!(quoted("a\"b\n\u{1}"), r#""a\"b\n\x01""#);
        assert_eq!(quoted("é漢🦀\u{301}"), "\"é漢🦀\u{301}\"");
        assert_eq!(
            quoted("\u{200b}\u{a0}\u{feff}\u{e000}\u{10ffff}"),
            r#""\u200b\u00a0\ufeff\ue000\U0010ffff""#
        );
    }

    #[test]
    fn long_paths_are_truncated() {
        let long = FieldPath::new("a").key(&"ä".repeat(PATH_BYTES)).child("b").index(12);
        assert!((PATH_BYTES - 1..=PATH_BYTES).contains(&long.len()), "{}", long.len());
        assert!(long.to_string().ends_with("..."));
        let fits = FieldPath::new("a").key(&"x".repeat(PATH_BYTES - 3));
        assert!(fits.len() == PATH_BYTES && fits.to_string().ends_with(']'));
    }
}
