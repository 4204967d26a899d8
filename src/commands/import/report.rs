//! What became of the objects, told line by line and in the end.

use std::collections::{BTreeMap, HashSet};

use crate::commands::progress::{Progress, count};
use crate::limits;

/// Counts objects and writes about those that need attention.
pub(super) struct Report {
    progress: Progress,
    is_dry_run: bool,
    created: u64,
    replaced: u64,
    existing: u64,
    failed: u64,
    /// Objects that the server could not check in a dry run.
    unchecked: u64,
    /// Objects that were left out, by reason.
    left_out: BTreeMap<&'static str, u64>,
    /// Warnings that were printed: the same one comes with many objects.
    warnings: HashSet<String>,
    silent_warnings: u64,
    /// What was written, for tests.
    #[cfg(test)]
    pub(super) lines: Vec<String>,
}

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was created.
    Created,
    /// It took the place of another one.
    Replaced,
    /// There was one, which was left as it is.
    Existing,
    /// It would be created in a namespace, or of a kind, that does not exist in a dry run.
    Unchecked,
}

impl Report {
    pub(super) fn new(is_dry_run: bool) -> Report {
        Report {
            progress: Progress::new(),
            is_dry_run,
            created: 0,
            replaced: 0,
            existing: 0,
            failed: 0,
            unchecked: 0,
            left_out: BTreeMap::new(),
            warnings: HashSet::new(),
            silent_warnings: 0,
            #[cfg(test)]
            lines: Vec::new(),
        }
    }

    /// The number of objects that failed.
    pub(super) fn failures(&self) -> u64 {
        self.failed
    }

    fn line(&mut self, text: String) {
        #[cfg(test)]
        self.lines.push(text.clone());
        self.progress.line(text);
    }

    /// An object failed.
    pub(super) fn fail(&mut self, subject: &str, message: impl std::fmt::Display) {
        self.failed += 1;
        self.line(format!("failed: {subject}: {message}"));
    }

    /// Something about an object is not as it was.
    pub(super) fn note(&mut self, subject: &str, message: impl std::fmt::Display) {
        self.line(format!("note: {subject}: {message}"));
    }

    /// The server has warned about an object.
    pub(super) fn warn(&mut self, subject: &str, warning: &str) {
        if self.warnings.contains(warning) || self.warnings.len() >= limits::IMPORT_WARNINGS {
            self.silent_warnings += 1;
            return;
        }
        self.warnings.insert(warning.to_owned());
        self.line(format!("warning: {subject}: {warning}"));
    }

    /// An object is not imported, on purpose.
    pub(super) fn leave_out(&mut self, reason: &'static str) {
        *self.left_out.entry(reason).or_default() += 1;
    }

    /// An object is done.
    pub(super) fn finish(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Created => self.created += 1,
            Outcome::Replaced => self.replaced += 1,
            Outcome::Existing => self.existing += 1,
            Outcome::Unchecked => self.unchecked += 1,
        }
        let done = self.created + self.replaced + self.existing + self.unchecked;
        self.progress.show(count(done, "object"));
    }

    /// Writes the numbers.
    pub(super) fn summarize(&mut self) {
        let verb = if self.is_dry_run { "would be " } else { "" };
        let mut parts = vec![format!("{} {verb}created", count(self.created, "object"))];
        if self.replaced > 0 {
            parts.push(format!("{} {verb}replaced", self.replaced));
        }
        if self.existing > 0 {
            parts.push(format!("{} existed and stay as they are", self.existing));
        }
        if self.unchecked > 0 {
            parts.push(format!(
                "{} not checked, because their namespace or kind would be created first",
                self.unchecked
            ));
        }
        parts.push(format!("{} failed", self.failed));
        self.line(parts.join(", "));
        for (reason, number) in std::mem::take(&mut self.left_out) {
            self.line(format!("left out {}: {reason}", count(number, "object")));
        }
        if self.silent_warnings > 0 {
            let number = count(self.silent_warnings, "further warning");
            self.line(format!("{number} like these"));
        }
    }
}
