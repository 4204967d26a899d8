//! Collects validation errors of a value.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::limits::{FIELD_ERROR_BYTES, FIELD_ERRORS, PATH_BYTES};

/// The path in messages about the validated value itself.
pub(super) fn root_path(base: &FieldPath) -> FieldPath {
    if base.is_empty() { FieldPath::new("<nil>") } else { base.clone() }
}

/// The position of a value: a chain on the stack, because most values are valid and their path is never needed.
#[derive(Clone, Copy)]
pub(super) struct ValuePath<'p> {
    parent: Option<&'p ValuePath<'p>>,
    step: Step<'p>,
}

#[derive(Clone, Copy)]
enum Step<'p> {
    Root,
    /// A field with a schema.
    Declared(&'p str),
    /// Another field: it has a leading dot even at the root.
    Additional(&'p str),
    Item(usize),
}

/// The end of a cut path.
const CUT: &str = "...";

impl<'p> ValuePath<'p> {
    pub(super) const ROOT: ValuePath<'static> = ValuePath { parent: None, step: Step::Root };

    pub(super) fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    pub(super) fn declared_field(&'p self, name: &'p str) -> ValuePath<'p> {
        ValuePath { parent: Some(self), step: Step::Declared(name) }
    }

    pub(super) fn additional_field(&'p self, name: &'p str) -> ValuePath<'p> {
        ValuePath { parent: Some(self), step: Step::Additional(name) }
    }

    pub(super) fn item(&'p self, index: usize) -> ValuePath<'p> {
        ValuePath { parent: Some(self), step: Step::Item(index) }
    }
}

/// The longest beginning of a text within a number of bytes.
fn head(text: &str, max_bytes: usize) -> &str {
    let end = (0..=max_bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

impl fmt::Display for ValuePath<'_> {
    /// The path as messages print it, cut if too long: clients choose the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut steps: Vec<Step<'_>> =
            std::iter::successors(Some(self), |path| path.parent).map(|path| path.step).collect();
        let mut text = String::new();
        while let Some(step) = steps.pop() {
            let (has_dot, name) = match step {
                Step::Root => continue,
                Step::Declared(name) => (!text.is_empty(), name),
                Step::Additional(name) => (true, name),
                Step::Item(index) => {
                    text.push_str(&format!("[{index}]"));
                    (false, "")
                }
            };
            if has_dot {
                text.push('.');
            }
            // One byte over the limit shows that it must be cut.
            text.push_str(head(name, PATH_BYTES + 4));
            if text.len() > PATH_BYTES {
                text.truncate(head(&text, PATH_BYTES - CUT.len()).len());
                text.push_str(CUT);
                break;
            }
        }
        f.write_str(&text)
    }
}

/// The errors of one value, and how much of it was valid.
#[derive(Default)]
pub(super) struct ValueErrors {
    pub(super) errors: Vec<ValueError>,
    pub(super) matched: usize,
    /// Bytes of the errors of this value itself, kept or not.
    pub(super) written: usize,
    /// Bytes of the kept errors.
    bytes: usize,
    /// The hashes of their messages, to report each once.
    message_hashes: BTreeSet<u64>,
}

impl ValueErrors {
    pub(super) fn add(&mut self, error: ValueError) {
        self.written += error.bytes();
        self.keep(error);
    }

    pub(super) fn merge(&mut self, other: ValueErrors) {
        self.matched += other.matched;
        other.errors.into_iter().for_each(|error| self.keep(error));
    }

    fn keep(&mut self, error: ValueError) {
        if self.errors.len() < FIELD_ERRORS && self.bytes < FIELD_ERROR_BYTES {
            let mut hasher = DefaultHasher::new();
            error.message.hash(&mut hasher);
            if self.message_hashes.insert(hasher.finish()) {
                self.bytes += error.bytes();
                self.errors.push(error);
            }
        }
    }

    /// Drops all errors.
    pub(super) fn clear(&mut self) {
        self.errors.clear();
        self.message_hashes.clear();
        self.bytes = 0;
    }

    pub(super) fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }
}

/// One error.
pub(super) struct ValueError {
    /// The path; `None` for an error without one, such as `oneOf`.
    pub(super) path: Option<String>,
    pub(super) kind: ErrorKind,
    /// The message, which also identifies it.
    pub(super) message: String,
}

pub(super) enum ErrorKind {
    Required,
    Enum { value: String, values: Vec<String> },
    TooLong(i64),
    TooMany { actual: usize, max: i64 },
    Type { value: String },
    Other { value: String },
}

impl ValueError {
    fn bytes(&self) -> usize {
        let value_bytes = match &self.kind {
            ErrorKind::Enum { value, values } => value.len() + values.iter().map(String::len).sum::<usize>(),
            ErrorKind::Type { value } | ErrorKind::Other { value } => value.len(),
            ErrorKind::Required | ErrorKind::TooLong(_) | ErrorKind::TooMany { .. } => 0,
        };
        self.path.as_ref().map_or(0, String::len) + self.message.len() + value_bytes
    }

    pub(super) fn into_field_error(self, base: &FieldPath) -> FieldError {
        let path = match self.path.as_deref().map(|path| path.strip_prefix('.').unwrap_or(path)) {
            Some(path) if !path.is_empty() => base.child(path),
            _ => root_path(base),
        };
        let count = |number: i64| usize::try_from(number).unwrap_or(0);
        match self.kind {
            ErrorKind::Required => FieldError::required(&path, ""),
            ErrorKind::Enum { value, values } => {
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                FieldError::not_supported(&path, &value, &values)
            }
            ErrorKind::TooLong(max) => FieldError::too_long(&path, count(max)),
            ErrorKind::TooMany { actual, max } => FieldError::too_many(&path, actual, count(max)),
            ErrorKind::Type { value } => FieldError::type_invalid(&path, &value, &self.message),
            ErrorKind::Other { value } => FieldError::invalid(&path, &value, &self.message),
        }
    }
}

pub(super) fn invalid_value(path: &ValuePath<'_>, value: String, message: String) -> ValueError {
    ValueError { path: Some(path.to_string()), kind: ErrorKind::Other { value }, message }
}

pub(super) fn type_error(path: &ValuePath<'_>, expected: &str, actual: &str) -> ValueError {
    let message = format!("{path} in body must be of type {expected}: {}", quoted(actual));
    ValueError { path: Some(path.to_string()), kind: ErrorKind::Type { value: quoted(actual) }, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_path_renders_like_the_reference_and_is_truncated() {
        let root = ValuePath::ROOT;
        let (spec, free) = (root.declared_field("spec"), root.additional_field("k"));
        let list = spec.declared_field("l");
        let item = list.item(12);
        assert_eq!(root.to_string(), "");
        assert_eq!(item.additional_field("x").to_string(), "spec.l[12].x");
        assert_eq!(free.item(0).to_string(), ".k[0]");
        let key = "ä".repeat(1 << 19);
        let long = list.additional_field(&key);
        let text = long.item(1).to_string();
        assert!((PATH_BYTES - 1..=PATH_BYTES).contains(&text.len()) && text.ends_with(CUT), "{}", text.len());
        assert_eq!(text, long.item(2).to_string());
    }

    #[test]
    fn value_errors_are_limited_and_deduplicated() {
        let root = ValuePath::ROOT;
        let mut errors = ValueErrors::default();
        (0..3 * FIELD_ERRORS)
            .for_each(|index| errors.add(type_error(&root.item(index / 2), "string", "integer")));
        assert_eq!(errors.errors.len(), FIELD_ERRORS);
        assert_eq!(errors.errors.last().map(|last| last.path.clone()), Some(Some("[999]".to_owned())));
        let mut all = ValueErrors::default();
        (0..20).for_each(|index| {
            let mut errors = ValueErrors::default();
            errors.add(invalid_value(&root.item(index), "x".repeat(1 << 20), index.to_string()));
            all.merge(errors);
        });
        assert_eq!((all.errors.len(), all.written), (8, 0));
        all.clear();
        assert!(all.is_valid());
        all.add(invalid_value(&root, String::new(), "0".to_owned()));
        assert!(!all.is_valid());
    }
}
