//! Runs expressions over the inputs of one request, one after the other, until they have cost too much.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::authorizer::Authorizer;
use super::expressions::{AUTHORIZER, NAMESPACE, OBJECT, OF_REQUEST, OLD_OBJECT, PARAMS, REQUEST, VARIABLES};
use super::policy::Expression;
use crate::api::cel::{Evaluated, Fault, Outcome, Val};
use crate::api::field::quoted;
use crate::api::limits::RULE_COST;
use crate::api::value::Value;

/// What expressions see. What there is not is null.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'v> {
    /// What would be stored.
    pub object: &'v Value,
    /// What is stored.
    pub old: &'v Value,
    /// What the binding gives.
    pub params: &'v Value,
    /// The request.
    pub request: &'v Value,
    /// The namespace that it is in.
    pub namespace: &'v Value,
    /// How they ask who may do what, if they may ask.
    pub rights: Option<&'v Authorizer>,
}

/// What an expression comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultValue {
    /// Yes or no.
    Truth(bool),
    /// A text.
    Text(String),
    /// Nothing.
    Null,
    /// Something else, by the name of its type.
    Other(String),
}

/// What came of an expression: its value, or why there is none.
pub type Evaluation = Result<ResultValue, String>;

/// Why no more expressions are evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// They have cost too much.
    UsedUp,
    /// Somebody has to be asked first; see [`Authorizer`].
    Unanswered,
}

/// What is said when expressions have cost too much.
pub const USED_UP: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// Evaluates a row of expressions, of which some may be missing. `variables` are what they may use besides; each is
/// worked out once, if at all. What it costs is taken out of `budget`.
pub fn run<'v>(
    variables: &'v [(String, Expression)],
    expressions: impl IntoIterator<Item = Option<&'v Expression>>,
    inputs: Inputs<'v>,
    budget: &mut u64,
) -> Result<Vec<Option<Evaluation>>, StopReason> {
    let scope = Scope { variables, inputs, known: RefCell::default(), spent: Cell::new(0) };
    let mut found = Vec::new();
    for expression in expressions {
        found.push(match expression {
            Some(expression) => Some(scope.evaluation(expression, budget)?),
            None => None,
        });
    }
    Ok(found)
}

/// Evaluates one expression, and lets somebody read what it makes. What it costs is taken out of `budget`.
pub fn value<'v, T>(
    variables: &'v [(String, Expression)],
    expression: &'v Expression,
    inputs: Inputs<'v>,
    budget: &mut u64,
    read: impl FnOnce(&Val<'v>) -> T,
) -> Result<Result<T, String>, StopReason> {
    let scope = Scope { variables, inputs, known: RefCell::default(), spent: Cell::new(0) };
    Ok(scope.outcome(expression, budget)?.map(|value| read(&value)))
}

/// What the expressions of one row share.
struct Scope<'v> {
    variables: &'v [(String, Expression)],
    inputs: Inputs<'v>,
    /// The variables that were worked out, by their place.
    known: RefCell<BTreeMap<usize, Outcome<'v>>>,
    /// What working them out has cost since somebody last looked.
    spent: Cell<u64>,
}

impl<'v> Scope<'v> {
    fn is_waiting(&self) -> bool {
        self.inputs.rights.is_some_and(|rights| rights.answers.is_waiting())
    }

    fn evaluation(&self, expression: &'v Expression, budget: &mut u64) -> Result<Evaluation, StopReason> {
        let outcome = self.outcome(expression, budget)?;
        Ok(outcome.map(|value| match value {
            Val::Bool(truth) => ResultValue::Truth(truth),
            Val::String(text) => ResultValue::Text(text.to_string()),
            Val::Null => ResultValue::Null,
            other => ResultValue::Other(other.type_name().to_owned()),
        }))
    }

    fn outcome(
        &self,
        expression: &'v Expression,
        budget: &mut u64,
    ) -> Result<Result<Val<'v>, String>, StopReason> {
        let program = match &expression.program {
            Ok(program) => program,
            Err(why) => return Ok(Err(format!("compilation error: {why}"))),
        };
        let Evaluated { outcome, cost } = program.evaluate(&|name| self.resolve(name), RULE_COST);
        if self.is_waiting() {
            return Err(StopReason::Unanswered);
        }
        let cost = cost.saturating_add(self.spent.take());
        *budget = budget.checked_sub(cost).ok_or(StopReason::UsedUp)?;
        Ok(outcome.map_err(|why| format!("expression '{}' resulted in error: {why}", expression.text)))
    }

    fn resolve(&self, name: &str) -> Option<Outcome<'v>> {
        let inputs = self.inputs;
        Some(Ok(match name {
            OBJECT => Val::free(inputs.object),
            OLD_OBJECT => Val::free(inputs.old),
            PARAMS => Val::free(inputs.params),
            REQUEST => Val::free(inputs.request),
            NAMESPACE => Val::free(inputs.namespace),
            AUTHORIZER => inputs.rights?.authorizer(),
            OF_REQUEST => inputs.rights?.of_request(),
            VARIABLES => return Some(self.all()),
            other => {
                let name = other.strip_prefix(VARIABLES)?.strip_prefix('.')?;
                let place = self.variables.iter().position(|(own, _)| own == name)?;
                return Some(self.variable(place));
            }
        }))
    }

    /// The value of a variable. It can only speak of those before it, so this ends.
    fn variable(&self, place: usize) -> Outcome<'v> {
        if let Some(known) = self.known.borrow().get(&place) {
            return known.clone();
        }
        let (name, expression) = self.variables.get(place).ok_or_else(Fault::no_overload)?;
        let outcome = match &expression.program {
            Err(why) => {
                Err(Fault::error(format!("composited variable {} fails to compile: {why}", quoted(name))))
            }
            Ok(program) => {
                let Evaluated { outcome, cost } = program.evaluate(&|name| self.resolve(name), RULE_COST);
                self.spent.set(self.spent.get().saturating_add(cost));
                match outcome {
                    // Not an error of the variable: everything begins again once the answer is there.
                    Err(Fault::Budget) if self.is_waiting() => return Err(Fault::Budget),
                    Err(why) => {
                        let why = format!("composited variable {} fails to evaluate: {why}", quoted(name));
                        Err(Fault::error(why))
                    }
                    known => known,
                }
            }
        };
        self.known.borrow_mut().insert(place, outcome.clone());
        outcome
    }

    /// All variables, for an expression that wants them as one. Those that have no value are left out.
    fn all(&self) -> Outcome<'v> {
        Ok(Val::named_fields(
            self.variables
                .iter()
                .enumerate()
                .filter_map(|(place, (name, _))| Some((name.as_str(), self.variable(place).ok()?))),
        ))
    }
}
