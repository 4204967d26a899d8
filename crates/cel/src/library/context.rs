//! The context of function calls.

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::pattern::Patterns;
use regex::Regex;

use crate::limits::CEL_UNCHARGED_STEPS;
use crate::meter;
use crate::value::Fault;

/// State that functions share during an evaluation: compiled patterns, and a limit on work that has no cost.
#[derive(Debug, Default)]
pub struct CallContext {
    patterns: Patterns,
    steps: u64,
    /// The regular expression of the current call, if it was compiled with the program.
    compiled: Option<Regex>,
}

impl CallContext {
    /// Sets the regular expression of the next call, if it was compiled with the program.
    pub fn set_pattern(&mut self, compiled: Option<&Regex>) {
        self.compiled = compiled.cloned();
    }

    /// The steps so far that the cost model does not charge for.
    pub fn uncharged_steps(&self) -> u64 {
        self.steps
    }

    /// Counts work that the cost model does not charge for, and fails beyond a limit.
    pub fn charge_steps(&mut self, steps: usize) -> Result<(), Fault> {
        self.steps = self.steps.saturating_add(steps as u64);
        if self.steps > meter::limit(CEL_UNCHARGED_STEPS) { Err(Fault::Budget) } else { Ok(()) }
    }

    /// A compiled regular expression, cached.
    pub fn pattern(&mut self, text: &str) -> Result<Regex, Fault> {
        if let Some(compiled) = &self.compiled {
            return Ok(compiled.clone());
        }
        let pattern = self.patterns.compiled(text);
        pattern.ok_or_else(|| Fault::error(format!("error parsing regexp: {}", quoted(text))))
    }
}
