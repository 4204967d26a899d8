//! The problems of a body that decoding finds, and their paths.
//!
//! Problems are recorded without their path; each level adds its own part on the way out, and only if there is a problem. So paths
//! cost nothing in a valid body.

use std::fmt;
use std::sync::Arc;

use super::{Field, Registry, Struct, TypeId, text_types};
use crate::field::quoted;
use crate::limits;

/// The problems so far.
pub(super) struct Notes<'r> {
    pub(super) registry: &'r Registry,
    pub(super) findings: Vec<Finding>,
    /// The first mismatch that does not end decoding.
    pub(super) saved: Option<Problem>,
    /// The mismatch that ended decoding. It takes precedence over a saved one.
    pub(super) fatal: Option<Problem>,
}

/// An unknown or duplicate field.
pub(super) struct Finding {
    message: &'static str,
    path: String,
    /// Whether the path begins with an index, which follows a name without a dot.
    indexed: bool,
}

/// A value of the wrong type.
pub(super) struct Problem {
    pub(super) kind: ProblemKind,
    /// The struct whose field it is.
    owner: Option<Arc<str>>,
    /// The fields on the path, innermost first.
    path: Vec<Arc<str>>,
}

/// The kind of a problem.
pub(super) enum ProblemKind {
    /// A token of the wrong type.
    Mismatch { actual: String, expected: String },
    /// Invalid text, with the whole message.
    Other(String),
}

impl Problem {
    fn new(kind: ProblemKind) -> Problem {
        Problem { kind, owner: None, path: Vec::new() }
    }

    /// Replaces the expected type by the Go type of the field, or of its items.
    fn name_type(&mut self, owner: &Struct, field: &Field, registry: &Registry) {
        let ProblemKind::Mismatch { expected, .. } = &mut self.kind else { return };
        if let Some(name) = text_types::type_name(&owner.package, &owner.name, &field.name) {
            let is_whole = *expected == registry.type_name(field.ty);
            *expected = if is_whole { name } else { text_types::element_type(name) }.to_owned();
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.message, quoted(&self.path))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.kind, &self.owner) {
            (ProblemKind::Other(message), _) => f.write_str(message),
            (ProblemKind::Mismatch { actual, expected }, None) => {
                write!(f, "json: cannot unmarshal {actual} into Go value of type {expected}")
            }
            (ProblemKind::Mismatch { actual, expected }, Some(owner)) => {
                write!(f, "json: cannot unmarshal {actual} into Go struct field {owner}")?;
                for name in self.path.iter().rev() {
                    write!(f, ".{name}")?;
                }
                write!(f, " of type {expected}")
            }
        }
    }
}

/// The number of problems when a level was entered.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    findings: usize,
    saved: bool,
}

impl<'r> Notes<'r> {
    pub(super) fn new(registry: &'r Registry) -> Notes<'r> {
        Notes { registry, findings: Vec::new(), saved: None, fatal: None }
    }

    /// Records a problem that does not end decoding, unless there is one already.
    pub(super) fn save(&mut self, kind: ProblemKind) {
        self.saved.get_or_insert_with(|| Problem::new(kind));
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { findings: self.findings.len(), saved: self.saved.is_some() }
    }

    pub(super) fn is_unchanged(&self, mark: Mark) -> bool {
        self.findings.len() == mark.findings && self.saved.is_some() == mark.saved && self.fatal.is_none()
    }

    pub(super) fn add_finding(&mut self, message: &'static str, name: &str) {
        if self.findings.len() < limits::STRICT_FINDINGS {
            self.findings.push(Finding { message, path: name.to_owned(), indexed: false });
        }
    }

    pub(super) fn mismatch(&mut self, actual: impl Into<String>, ty: TypeId) {
        if self.saved.is_none() {
            self.save(ProblemKind::Mismatch { actual: actual.into(), expected: self.registry.type_name(ty) });
        }
    }

    pub(super) fn stop<E: serde::de::Error>(&mut self, kind: ProblemKind) -> E {
        self.fatal = Some(Problem::new(kind));
        E::custom("stopped")
    }

    pub(super) fn leave_struct_field(&mut self, mark: Mark, owner: &Struct, field: &Field) {
        if self.is_unchanged(mark) {
            return;
        }
        let saved = if mark.saved { None } else { self.saved.as_mut() };
        for problem in [saved, self.fatal.as_mut()].into_iter().flatten() {
            if problem.owner.is_none() {
                problem.owner = Some(owner.name.clone());
                problem.name_type(owner, field, self.registry);
            }
            problem.path.push(field.name.clone());
        }
        self.prefix(mark, &field.name);
    }

    pub(super) fn prefix(&mut self, mark: Mark, name: &str) {
        for finding in self.findings.iter_mut().skip(mark.findings) {
            let dot = if finding.indexed { "" } else { "." };
            finding.path = format!("{name}{dot}{}", finding.path);
            finding.indexed = false;
        }
    }

    pub(super) fn leave_list_item(&mut self, mark: Mark, index: usize) {
        if self.is_unchanged(mark) {
            return;
        }
        self.prefix(mark, &format!("[{index}]"));
        for finding in self.findings.iter_mut().skip(mark.findings) {
            finding.indexed = true;
        }
    }
}
