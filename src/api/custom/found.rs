//! What is wrong with a value, as it is found, and how it is told.

use crate::api::field::{FieldError, Path, quoted};
use crate::api::limits::FIELD_ERRORS;

/// What a message without a place says of it.
pub(super) fn nowhere(base: &Path) -> Path {
    if base.is_empty() { Path::new("<nil>") } else { base.clone() }
}

/// What was found in one value, and how much of it was right.
#[derive(Default)]
pub(super) struct Found {
    pub(super) problems: Vec<Problem>,
    pub(super) matched: usize,
}

impl Found {
    pub(super) fn add(&mut self, problem: Problem) {
        if self.problems.len() < FIELD_ERRORS && !self.problems.iter().any(|known| known.text == problem.text)
        {
            self.problems.push(problem);
        }
    }

    pub(super) fn merge(&mut self, other: Found) {
        self.matched += other.matched;
        other.problems.into_iter().for_each(|problem| self.add(problem));
    }

    pub(super) fn is_good(&self) -> bool {
        self.problems.is_empty()
    }
}

/// One thing that is wrong.
pub(super) struct Problem {
    /// Where, as the text names it; `None` for what is wrong with the whole.
    pub(super) place: Option<String>,
    pub(super) what: What,
    /// What is said of it; also what tells it from others.
    pub(super) text: String,
}

pub(super) enum What {
    Required,
    Enum { value: String, values: Vec<String> },
    TooLong(i64),
    TooMany { found: usize, most: i64 },
    Type { value: String },
    Other { value: String },
}

impl Problem {
    pub(super) fn at(self, base: &Path) -> FieldError {
        let path = match self.place.as_deref().map(|place| place.strip_prefix('.').unwrap_or(place)) {
            Some(place) if !place.is_empty() => base.child(place),
            _ => nowhere(base),
        };
        let count = |number: i64| usize::try_from(number).unwrap_or(0);
        match self.what {
            What::Required => FieldError::required(&path, ""),
            What::Enum { value, values } => {
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                FieldError::not_supported(&path, &value, &values)
            }
            What::TooLong(most) => FieldError::too_long(&path, count(most)),
            What::TooMany { found, most } => FieldError::too_many(&path, found, count(most)),
            What::Type { value } => FieldError::type_invalid(&path, &value, &self.text),
            What::Other { value } => FieldError::invalid(&path, &value, &self.text),
        }
    }
}

pub(super) fn other(path: &str, value: String, text: String) -> Problem {
    Problem { place: Some(path.to_owned()), what: What::Other { value }, text }
}

pub(super) fn typed(path: &str, wanted: &str, found: &str) -> Problem {
    let text = format!("{path} in body must be of type {wanted}: {}", quoted(found));
    Problem { place: Some(path.to_owned()), what: What::Type { value: quoted(found) }, text }
}
