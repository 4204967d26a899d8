//! What a command tells about its work on standard error.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

/// One line that is overwritten as the work goes on, if somebody watches, and lines that stay.
pub(super) struct Progress {
    is_terminal: bool,
    /// Whether the current line is one that will be overwritten.
    is_shown: bool,
}

impl Progress {
    pub(super) fn new() -> Progress {
        Progress { is_terminal: io::stderr().is_terminal(), is_shown: false }
    }

    /// Shows how far the work has come.
    pub(super) fn show(&mut self, text: impl Display) {
        if self.is_terminal {
            self.is_shown = true;
            write(format_args!("\r\x1b[K{text}"));
        }
    }

    /// Writes a line that stays.
    pub(super) fn line(&mut self, text: impl Display) {
        let clear = if std::mem::take(&mut self.is_shown) { "\r\x1b[K" } else { "" };
        write(format_args!("{clear}{text}\n"));
    }
}

/// A closed standard error is ignored.
fn write(text: std::fmt::Arguments<'_>) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_fmt(text);
    let _ = stderr.flush();
}

/// A number with its noun: `1 object`, `2 objects`.
pub(super) fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
