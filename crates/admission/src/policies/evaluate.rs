//! Evaluates the expressions of a policy for a request, within a cost budget.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::value::Value;
use pilothouse_cel::limits::RULE_COST;
use pilothouse_cel::{Evaluated, Fault, Outcome, Val};

use super::authorizer::Authorizer;
use super::expressions::{AUTHORIZER, NAMESPACE, OBJECT, OF_REQUEST, OLD_OBJECT, PARAMS, REQUEST, VARIABLES};
use super::policy::Expression;

/// The values of CEL variables. Absent ones are null.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'v> {
    /// The new object.
    pub object: &'v Value,
    /// The old object.
    pub old: &'v Value,
    /// The parameters of the binding.
    pub params: &'v Value,
    /// The request.
    pub request: &'v Value,
    /// The namespace of the request.
    pub namespace: &'v Value,
    /// The `authorizer` variable, if available.
    pub rights: Option<&'v Authorizer>,
}

/// The result of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultValue {
    /// A boolean.
    Truth(bool),
    /// A string.
    Text(String),
    /// Null.
    Null,
    /// Another type, by name.
    Other(String),
}

/// The result of an expression, or its error.
pub type Evaluation = Result<ResultValue, String>;

/// Why evaluation stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The cost budget is exceeded.
    UsedUp,
    /// An authorization check is pending; see [`Authorizer`].
    Unanswered,
}

/// The message for an exceeded cost budget.
pub const USED_UP: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// Evaluates several expressions, of which some may be absent. `variables` are evaluated once, on first use. The cost is
/// subtracted from `budget`.
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

/// Evaluates one expression and passes the value to a function. The cost is subtracted from `budget`.
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

/// State that the expressions of one call share.
struct Scope<'v> {
    variables: &'v [(String, Expression)],
    inputs: Inputs<'v>,
    /// The evaluated variables, by index.
    known: RefCell<BTreeMap<usize, Outcome<'v>>>,
    /// The cost of variables that is not yet charged.
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

    /// The value of a variable. It can only refer to earlier ones, so the recursion ends.
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
                    // No error of the variable: everything is evaluated again after the authorization check.
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

    /// All variables as one object. Those with errors are left out.
    fn all(&self) -> Outcome<'v> {
        Ok(Val::named_fields(
            self.variables
                .iter()
                .enumerate()
                .filter_map(|(place, (name, _))| Some((name.as_str(), self.variable(place).ok()?))),
        ))
    }
}
