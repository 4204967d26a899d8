//! Expressions that map the claims of a token to a user, and rules about that user.

use super::{ALL, Expression};
use crate::api::cel::types::{Form, Type};
use crate::api::cel::{Environment, Val};
use crate::api::custom::pattern::Patterns;
use crate::api::policies::expressions::{list, object_type, plain, texts};
use crate::api::value::Value;

/// All claims.
const CLAIMS: &str = "claims";
/// The user that the claims have made.
const USER: &str = "user";
const NOT_TEXTS: &str = "expression must return a string or a list of strings";

/// Makes programs of the expressions of one file.
#[derive(Debug)]
pub struct Compiler {
    of_claims: Environment,
    of_user: Environment,
    patterns: Patterns,
}

impl Default for Compiler {
    fn default() -> Compiler {
        let mut user = texts(&["username", "uid"]);
        user.push(("groups", list(plain(Form::String))));
        user.push(("extra", plain(Form::Map(list(plain(Form::String))))));
        Compiler {
            of_claims: ALL.clone().variable(CLAIMS, Type::map(Type::String, Type::Dyn)),
            of_user: ALL.clone().variable(USER, object_type("kubernetes.UserInfo", user)),
            patterns: Patterns::default(),
        }
    }
}

impl Compiler {
    /// An expression over claims that makes something of them. What that is shows only when there are claims.
    pub fn mapping(&mut self, text: &str) -> Result<Expression, String> {
        Expression::compile(&self.of_claims, text, &mut self.patterns)
    }

    /// An expression over claims that must hold.
    pub fn claims_rule(&mut self, text: &str) -> Result<Expression, String> {
        true_or_false(Expression::compile(&self.of_claims, text, &mut self.patterns)?)
    }

    /// An expression over the user that must hold.
    pub fn user_rule(&mut self, text: &str) -> Result<Expression, String> {
        true_or_false(Expression::compile(&self.of_user, text, &mut self.patterns)?)
    }
}

fn true_or_false(expression: Expression) -> Result<Expression, String> {
    match expression.kind() {
        Type::Bool => Ok(expression),
        _ => Err("must evaluate to bool".to_owned()),
    }
}

impl Expression {
    /// Whether it looks at this claim.
    pub fn uses_claim(&self, claim: &str) -> bool {
        self.program.selects(CLAIMS, claim)
    }

    /// The text that it makes of claims; `None` if it makes something else.
    pub fn text_of(&self, claims: &Value) -> Result<Option<String>, String> {
        Ok(match self.evaluate(CLAIMS, claims)? {
            Val::String(text) => Some(text.to_string()),
            _ => None,
        })
    }

    /// The texts that it makes of claims. Empty ones do not count.
    pub fn texts_of(&self, claims: &Value) -> Result<Vec<String>, Untold> {
        let mut found = match self.evaluate(CLAIMS, claims).map_err(Untold::Failed)? {
            Val::Null => Vec::new(),
            Val::String(text) => vec![text.to_string()],
            Val::List(items) => {
                let text = |item| match item {
                    Ok(Val::String(text)) => Ok(text.to_string()),
                    _ => Err(Untold::NoTexts(NOT_TEXTS.to_owned())),
                };
                items.iter().map(text).collect::<Result<_, _>>()?
            }
            _ => return Err(Untold::NoTexts(NOT_TEXTS.to_owned())),
        };
        found.retain(|text| !text.is_empty());
        Ok(found)
    }
}

/// Why an expression makes no texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Untold {
    /// It could not be evaluated.
    Failed(String),
    /// It makes something else.
    NoTexts(String),
}

/// Something that must hold, and what is said when it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What must hold.
    pub expression: Expression,
    /// What is said.
    pub message: String,
}

/// Why these claims are not good enough.
pub fn check_claims(rules: &[Rule], claims: &Value) -> Result<(), String> {
    check(rules, CLAIMS, claims)
}

/// Why this user is not good enough.
pub fn check_user(rules: &[Rule], user: &Value) -> Result<(), String> {
    check(rules, USER, user)
}

/// All are evaluated before one is judged: one that cannot be is told first.
fn check(rules: &[Rule], variable: &str, value: &Value) -> Result<(), String> {
    let evaluated = rules.iter().map(|rule| rule.expression.evaluate(variable, value));
    let evaluated: Vec<Val<'_>> = evaluated.collect::<Result<_, _>>()?;
    for (rule, found) in rules.iter().zip(evaluated) {
        match found {
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
