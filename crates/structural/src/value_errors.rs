//! Collects validation problems of a value.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::limits::{FIELD_ERROR_BYTES, FIELD_ERRORS, PATH_BYTES};

/// The path in messages about the whole object.
pub(super) fn nowhere(base: &FieldPath) -> FieldPath {
    if base.is_empty() { FieldPath::new("<nil>") } else { base.clone() }
}

/// The position of a value: a chain on the stack, because most values are valid and their path is never needed.
#[derive(Clone, Copy)]
pub(super) struct ValuePath<'p> {
    above: Option<&'p ValuePath<'p>>,
    step: Step<'p>,
}

#[derive(Clone, Copy)]
enum Step<'p> {
    Root,
    /// A field with a schema.
    Named(&'p str),
    /// Another field: it has a leading dot even at the root.
    Other(&'p str),
    Item(usize),
}

/// The end of a cut path.
const CUT: &str = "...";

impl<'p> ValuePath<'p> {
    pub(super) const ROOT: ValuePath<'static> = ValuePath { above: None, step: Step::Root };

    pub(super) fn is_root(&self) -> bool {
        self.above.is_none()
    }

    pub(super) fn named(&'p self, name: &'p str) -> ValuePath<'p> {
        ValuePath { above: Some(self), step: Step::Named(name) }
    }

    pub(super) fn other(&'p self, name: &'p str) -> ValuePath<'p> {
        ValuePath { above: Some(self), step: Step::Other(name) }
    }

    pub(super) fn item(&'p self, index: usize) -> ValuePath<'p> {
        ValuePath { above: Some(self), step: Step::Item(index) }
    }
}

/// The beginning of a text within a number of bytes.
fn head(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

impl fmt::Display for ValuePath<'_> {
    /// The path as messages print it, cut if too long: clients choose the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut steps: Vec<Step<'_>> =
            std::iter::successors(Some(self), |place| place.above).map(|place| place.step).collect();
        let mut text = String::new();
        while let Some(step) = steps.pop() {
            let (dot, name) = match step {
                Step::Root => continue,
                Step::Named(name) => (!text.is_empty(), name),
                Step::Other(name) => (true, name),
                Step::Item(index) => {
                    text.push_str(&format!("[{index}]"));
                    (false, "")
                }
            };
            if dot {
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

/// The problems of one value, and how much of it was valid.
#[derive(Default)]
pub(super) struct ValueErrors {
    pub(super) problems: Vec<ValueError>,
    pub(super) matched: usize,
    /// Bytes written for problems of this value itself.
    pub(super) written: usize,
    /// Bytes of the kept problems.
    bytes: usize,
    /// The hashes of their texts, to report each once.
    known: BTreeSet<u64>,
}

impl ValueErrors {
    pub(super) fn add(&mut self, problem: ValueError) {
        self.written += problem.bytes();
        self.keep(problem);
    }

    pub(super) fn merge(&mut self, other: ValueErrors) {
        self.matched += other.matched;
        other.problems.into_iter().for_each(|problem| self.keep(problem));
    }

    fn keep(&mut self, problem: ValueError) {
        if self.problems.len() < FIELD_ERRORS && self.bytes < FIELD_ERROR_BYTES {
            let mut hasher = DefaultHasher::new();
            problem.text.hash(&mut hasher);
            if self.known.insert(hasher.finish()) {
                self.bytes += problem.bytes();
                self.problems.push(problem);
            }
        }
    }

    /// Drops all problems.
    pub(super) fn forgive(&mut self) {
        self.problems.clear();
        self.known.clear();
        self.bytes = 0;
    }

    pub(super) fn is_good(&self) -> bool {
        self.problems.is_empty()
    }
}

/// One problem.
pub(super) struct ValueError {
    /// The path in its text; `None` if it is about the whole.
    pub(super) place: Option<String>,
    pub(super) what: ErrorKind,
    /// The message, which also identifies it.
    pub(super) text: String,
}

pub(super) enum ErrorKind {
    Required,
    Enum { value: String, values: Vec<String> },
    TooLong(i64),
    TooMany { found: usize, most: i64 },
    Type { value: String },
    Other { value: String },
}

impl ValueError {
    fn bytes(&self) -> usize {
        let what = match &self.what {
            ErrorKind::Enum { value, values } => value.len() + values.iter().map(String::len).sum::<usize>(),
            ErrorKind::Type { value } | ErrorKind::Other { value } => value.len(),
            ErrorKind::Required | ErrorKind::TooLong(_) | ErrorKind::TooMany { .. } => 0,
        };
        self.place.as_ref().map_or(0, String::len) + self.text.len() + what
    }

    pub(super) fn at(self, base: &FieldPath) -> FieldError {
        let path = match self.place.as_deref().map(|place| place.strip_prefix('.').unwrap_or(place)) {
            Some(place) if !place.is_empty() => base.child(place),
            _ => nowhere(base),
        };
        let count = |number: i64| usize::try_from(number).unwrap_or(0);
        match self.what {
            ErrorKind::Required => FieldError::required(&path, ""),
            ErrorKind::Enum { value, values } => {
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                FieldError::not_supported(&path, &value, &values)
            }
            ErrorKind::TooLong(most) => FieldError::too_long(&path, count(most)),
            ErrorKind::TooMany { found, most } => FieldError::too_many(&path, found, count(most)),
            ErrorKind::Type { value } => FieldError::type_invalid(&path, &value, &self.text),
            ErrorKind::Other { value } => FieldError::invalid(&path, &value, &self.text),
        }
    }
}

pub(super) fn other(path: &ValuePath<'_>, value: String, text: String) -> ValueError {
    ValueError { place: Some(path.to_string()), what: ErrorKind::Other { value }, text }
}

pub(super) fn typed(path: &ValuePath<'_>, wanted: &str, found: &str) -> ValueError {
    let text = format!("{path} in body must be of type {wanted}: {}", quoted(found));
    ValueError { place: Some(path.to_string()), what: ErrorKind::Type { value: quoted(found) }, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_as_they_always_did_and_do_not_grow_for_ever() {
        let root = ValuePath::ROOT;
        let (spec, free) = (root.named("spec"), root.other("k"));
        let list = spec.named("l");
        let item = list.item(12);
        assert_eq!(root.to_string(), "");
        assert_eq!(item.other("x").to_string(), "spec.l[12].x");
        assert_eq!(free.item(0).to_string(), ".k[0]");
        let key = "ä".repeat(1 << 19);
        let long = list.other(&key);
        let text = long.item(1).to_string();
        assert!((PATH_BYTES - 1..=PATH_BYTES).contains(&text.len()) && text.ends_with(CUT), "{}", text.len());
        assert_eq!(text, long.item(2).to_string());
    }

    #[test]
    fn what_is_kept_is_bounded_and_told_once() {
        let root = ValuePath::ROOT;
        let mut found = ValueErrors::default();
        (0..3 * FIELD_ERRORS).for_each(|at| found.add(typed(&root.item(at / 2), "string", "integer")));
        assert_eq!(found.problems.len(), FIELD_ERRORS);
        assert_eq!(found.problems.last().map(|last| last.place.clone()), Some(Some("[999]".to_owned())));
        let mut all = ValueErrors::default();
        (0..20).for_each(|at| {
            let mut found = ValueErrors::default();
            found.add(other(&root.item(at), "x".repeat(1 << 20), at.to_string()));
            all.merge(found);
        });
        assert_eq!((all.problems.len(), all.written), (8, 0));
        all.forgive();
        assert!(all.is_good());
        all.add(other(&root, String::new(), "0".to_owned()));
        assert!(!all.is_good());
    }
}
