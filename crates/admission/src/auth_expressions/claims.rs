//! Expressions that map the claims of a token to a user, and rules about that user.

use pilothouse_apimachinery::pattern::Patterns;
use pilothouse_apimachinery::value::Value;
use pilothouse_cel::types::{DeclKind, Type};
use pilothouse_cel::{Environment, Val};

use super::{ALL, Expression};
use crate::policies::expressions::{list, object_type, plain, texts};

/// The CEL variable with all claims.
const CLAIMS: &str = "claims";
/// The CEL variable with the mapped user.
const USER: &str = "user";
const NOT_STRINGS: &str = "expression must return a string or a list of strings";

/// Compiles the expressions of one configuration file.
#[derive(Debug)]
pub struct Compiler {
    claims_environment: Environment,
    user_environment: Environment,
    patterns: Patterns,
}

impl Default for Compiler {
    fn default() -> Compiler {
        let mut user = texts(&["username", "uid"]);
        user.push(("groups", list(plain(DeclKind::String))));
        user.push(("extra", plain(DeclKind::Map(list(plain(DeclKind::String))))));
        Compiler {
            claims_environment: ALL.clone().variable(CLAIMS, Type::map(Type::String, Type::Dyn)),
            user_environment: ALL.clone().variable(USER, object_type("kubernetes.UserInfo", user)),
            patterns: Patterns::default(),
        }
    }
}

impl Compiler {
    /// A mapping expression over the claims. Its type is known only when it is evaluated.
    pub fn mapping(&mut self, text: &str) -> Result<Expression, String> {
        Expression::compile(&self.claims_environment, text, &mut self.patterns)
    }

    /// A validation rule over the claims.
    pub fn claims_rule(&mut self, text: &str) -> Result<Expression, String> {
        expect_bool(Expression::compile(&self.claims_environment, text, &mut self.patterns)?)
    }

    /// A validation rule over the user.
    pub fn user_rule(&mut self, text: &str) -> Result<Expression, String> {
        expect_bool(Expression::compile(&self.user_environment, text, &mut self.patterns)?)
    }
}

fn expect_bool(expression: Expression) -> Result<Expression, String> {
    match expression.kind() {
        Type::Bool => Ok(expression),
        _ => Err("must evaluate to bool".to_owned()),
    }
}

impl Expression {
    /// Whether the expression reads this claim.
    pub fn uses_claim(&self, claim: &str) -> bool {
        self.program.selects(CLAIMS, claim)
    }

    /// The string it evaluates to; `None` if the result is of another type.
    pub fn evaluate_string(&self, claims: &Value) -> Result<Option<String>, String> {
        Ok(match self.evaluate(CLAIMS, claims)? {
            Val::String(text) => Some(text.to_string()),
            _ => None,
        })
    }

    /// The strings it evaluates to. Empty ones are dropped.
    pub fn evaluate_strings(&self, claims: &Value) -> Result<Vec<String>, ExpressionError> {
        let mut strings = match self.evaluate(CLAIMS, claims).map_err(ExpressionError::Failed)? {
            Val::Null => Vec::new(),
            Val::String(text) => vec![text.to_string()],
            Val::List(items) => {
                let text = |item| match item {
                    Ok(Val::String(text)) => Ok(text.to_string()),
                    _ => Err(ExpressionError::NotStrings(NOT_STRINGS.to_owned())),
                };
                items.iter().map(text).collect::<Result<_, _>>()?
            }
            _ => return Err(ExpressionError::NotStrings(NOT_STRINGS.to_owned())),
        };
        strings.retain(|text| !text.is_empty());
        Ok(strings)
    }
}

/// Why an expression yields no strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpressionError {
    /// It could not be evaluated.
    Failed(String),
    /// The result is of another type.
    NotStrings(String),
}

/// A validation rule: an expression, and the message if it is false.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The expression that must be true.
    pub expression: Expression,
    /// The message if it is false.
    pub message: String,
}

/// Checks claims against the validation rules.
pub fn check_claims(rules: &[Rule], claims: &Value) -> Result<(), String> {
    check(rules, CLAIMS, claims)
}

/// Checks a user against the validation rules.
pub fn check_user(rules: &[Rule], user: &Value) -> Result<(), String> {
    check(rules, USER, user)
}

/// All rules are evaluated first: an evaluation error is reported before a rule that is false.
fn check(rules: &[Rule], variable: &str, value: &Value) -> Result<(), String> {
    let results = rules.iter().map(|rule| rule.expression.evaluate(variable, value));
    let results: Vec<Val<'_>> = results.collect::<Result<_, _>>()?;
    for (rule, result) in rules.iter().zip(results) {
        match result {
            Val::Bool(true) => {}
            Val::Bool(false) => {
                let (expression, message) = (rule.expression.text(), &rule.message);
                return Err(format!("validation expression '{expression}' failed: {message}"));
            }
            _ => return Err("validation expression must return a boolean".to_owned()),
        }
    }
    Ok(())
}
