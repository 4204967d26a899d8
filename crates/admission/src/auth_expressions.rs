//! CEL expressions in authentication and authorization configuration files: [`claims`] maps claims to users, and [`match_conditions`]
//! selects the requests for which a webhook is called.

pub mod claims;
pub mod match_conditions;
#[cfg(test)]
mod tests;

use std::sync::{Arc, LazyLock};

use pilothouse_apimachinery::pattern::Patterns;
use pilothouse_apimachinery::value::Value;
use pilothouse_cel::limits::RULE_COST;
use pilothouse_cel::types::Type;
use pilothouse_cel::{Environment, Outcome, Program, RecentLibraries, Val};

/// No older server must read these files, so all functions are available.
static ALL: LazyLock<Environment> = LazyLock::new(|| Environment::with_recent(RecentLibraries::STORED));

/// A compiled expression. Two are equal if their texts are.
#[derive(Clone, Debug)]
pub struct Expression {
    text: String,
    program: Arc<Program>,
}

impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        self.text == other.text
    }
}

impl Eq for Expression {}

impl Expression {
    fn compile(environment: &Environment, text: &str, patterns: &mut Patterns) -> Result<Expression, String> {
        let program =
            environment.compile(text, patterns).map_err(|error| format!("compilation failed: {error}"))?;
        Ok(Expression { text: text.to_owned(), program: Arc::new(program) })
    }

    /// The source text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The type of its result.
    fn kind(&self) -> Type {
        self.program.result_type()
    }

    /// Evaluates it with one variable.
    fn evaluate<'v>(&'v self, variable: &str, value: &'v Value) -> Result<Val<'v>, String> {
        let resolve =
            |name: &str| -> Option<Outcome<'v>> { (name == variable).then(|| Ok(Val::untyped(value))) };
        let result = self.program.evaluate(&resolve, RULE_COST);
        result.outcome.map_err(|error| format!("expression '{}' resulted in error: {error}", self.text))
    }
}
