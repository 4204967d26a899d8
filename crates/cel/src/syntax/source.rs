//! The source text of an expression, and error messages with positions in it.

use std::fmt;

use crate::limits::{CEL_ISSUES, CEL_SNIPPET_CHARS};

/// The source text by characters, because positions count characters.
#[derive(Debug, Default)]
pub struct Source {
    chars: Vec<char>,
    /// The start of each line.
    lines: Vec<usize>,
}

impl Source {
    /// Indexes the lines of a text.
    pub fn new(text: &str) -> Source {
        let chars: Vec<char> = text.chars().collect();
        let breaks = chars.iter().enumerate().filter(|(_, c)| **c == '\n').map(|(index, _)| index + 1);
        let lines = std::iter::once(0).chain(breaks).collect();
        Source { chars, lines }
    }

    /// The number of characters.
    pub fn len(&self) -> usize {
        self.chars.len()
    }

    /// The character at a position.
    pub fn char_at(&self, position: usize) -> Option<char> {
        self.chars.get(position).copied()
    }

    /// The text between two positions.
    pub fn text(&self, from: usize, to: usize) -> String {
        self.chars.get(from..to.min(self.chars.len())).unwrap_or_default().iter().collect()
    }

    /// The one-based line of a position, and the zero-based column.
    fn line_and_column(&self, position: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|begin| *begin <= position);
        (line, position - self.lines.get(line.saturating_sub(1)).copied().unwrap_or(0))
    }

    fn line(&self, line: usize) -> &[char] {
        let Some(begin) = line.checked_sub(1).and_then(|index| self.lines.get(index)) else { return &[] };
        let end = self.lines.get(line).map_or(self.chars.len(), |next| next - 1);
        self.chars.get(*begin..end).unwrap_or_default()
    }
}

/// A compile error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// The position; `None` for an error of the whole expression.
    pub position: Option<usize>,
    /// The message.
    pub message: String,
}

/// The compile errors of an expression.
#[derive(Debug, Default)]
pub struct Issues {
    all: Vec<Issue>,
    count: usize,
}

impl Issues {
    /// Adds an error.
    pub fn add(&mut self, position: impl Into<Option<usize>>, message: String) {
        self.count += 1;
        if self.all.len() < CEL_ISSUES {
            self.all.push(Issue { position: position.into(), message });
        }
    }

    /// Whether there are no errors.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The errors as text: each with its line of the source, and a marker below it.
    pub fn render(mut self, source: &Source) -> String {
        self.all.sort_by_key(|issue| issue.position);
        let mut messages: Vec<String> =
            self.all.iter().map(|issue| RenderedIssue { issue, source }.to_string()).collect();
        if self.count > self.all.len() {
            messages.push(format!("{} more errors were truncated", self.count - self.all.len()));
        }
        messages.join("\n")
    }
}

struct RenderedIssue<'i> {
    issue: &'i Issue,
    source: &'i Source,
}

impl fmt::Display for RenderedIssue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(position) = self.issue.position else {
            return write!(f, "ERROR: <input>:-1:0: {}", self.issue.message);
        };
        let (line, column) = self.source.line_and_column(position);
        // An empty source has no line to show.
        if self.source.len() == 0 {
            return write!(f, "ERROR: <input>:{line}:0: {}", self.issue.message);
        }
        write!(f, "ERROR: <input>:{line}:{}: {}", column + 1, self.issue.message)?;
        let text = self.source.line(line);
        if text.len() > CEL_SNIPPET_CHARS {
            return Ok(());
        }
        let snippet: String = text.iter().map(|c| if *c == '\t' { ' ' } else { *c }).collect();
        write!(f, "\n | {snippet}\n | ")?;
        // Wide characters get wide dots, so that the marker is below the right character.
        for c in text.iter().take(column) {
            f.write_str(if c.is_ascii() { "." } else { "\u{ff0e}" })?;
        }
        f.write_str(if text.get(column).is_none_or(char::is_ascii) { "^" } else { "\u{ff3e}" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issues_render_source_line_and_marker() {
        let source = Source::new("a +\n\tö + ü");
        let mut issues = Issues::default();
        issues.add(9, "second".to_owned());
        issues.add(0, "first".to_owned());
        issues.add(None, "whole".to_owned());
        assert_eq!(
            issues.render(&source),
            "ERROR: <input>:-1:0: whole\nERROR: <input>:1:1: first\n | a +\n | ^\n\
             ERROR: <input>:2:6: second\n |  ö + ü\n | .\u{ff0e}...\u{ff3e}"
        );
    }

    #[test]
    fn issues_are_truncated_at_limit() {
        let mut issues = Issues::default();
        for _ in 0..CEL_ISSUES + 5 {
            issues.add(0, "x".to_owned());
        }
        assert!(issues.render(&Source::new("a")).ends_with("5 more errors were truncated"));
    }
}
