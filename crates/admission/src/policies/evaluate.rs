//! Evaluates the expressions of a policy for a request, within a cost budget.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::value::Value;
use pilothouse_cel::limits::RULE_COST;
use pilothouse_cel::{EvaluationResult, Fault, Outcome, Val};

use super::authorizer::Authorizer;
use super::expressions::{
    AUTHORIZER, NAMESPACE, OBJECT, OLD_OBJECT, PARAMS, REQUEST, REQUEST_RESOURCE, VARIABLES,
};
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
    pub authorizer: Option<&'v Authorizer>,
}

/// The result of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultValue {
    /// A boolean.
    Bool(bool),
    /// A string.
    String(String),
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
    BudgetExceeded,
    /// An authorization check is pending; see [`Authorizer`].
    AuthorizationPending,
}

/// The message for an exceeded cost budget.
pub const BUDGET_EXCEEDED: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// Evaluates several expressions, of which some may be absent. `variables` are evaluated once, on first use. The cost is
/// subtracted from `budget`.
pub fn evaluate_all<'v>(
    variables: &'v [(String, Expression)],
    expressions: impl IntoIterator<Item = Option<&'v Expression>>,
    inputs: Inputs<'v>,
    budget: &mut u64,
) -> Result<Vec<Option<Evaluation>>, StopReason> {
    let scope = Scope { variables, inputs, cached: RefCell::default(), uncharged: Cell::new(0) };
    let mut results = Vec::new();
    for expression in expressions {
        results.push(match expression {
            Some(expression) => Some(scope.evaluation(expression, budget)?),
            None => None,
        });
    }
    Ok(results)
}

/// Evaluates one expression and passes the value to a function. The cost is subtracted from `budget`.
pub fn evaluate_value<'v, T>(
    variables: &'v [(String, Expression)],
    expression: &'v Expression,
    inputs: Inputs<'v>,
    budget: &mut u64,
    read: impl FnOnce(&Val<'v>) -> T,
) -> Result<Result<T, String>, StopReason> {
    let scope = Scope { variables, inputs, cached: RefCell::default(), uncharged: Cell::new(0) };
    Ok(scope.outcome(expression, budget)?.map(|value| read(&value)))
}

/// State that the expressions of one call share.
struct Scope<'v> {
    variables: &'v [(String, Expression)],
    inputs: Inputs<'v>,
    /// The evaluated variables, by index.
    cached: RefCell<BTreeMap<usize, Outcome<'v>>>,
    /// The cost of variables that is not yet charged.
    uncharged: Cell<u64>,
}

impl<'v> Scope<'v> {
    fn is_waiting(&self) -> bool {
        self.inputs.authorizer.is_some_and(|authorizer| authorizer.cache.has_pending())
    }

    fn evaluation(&self, expression: &'v Expression, budget: &mut u64) -> Result<Evaluation, StopReason> {
        let outcome = self.outcome(expression, budget)?;
        Ok(outcome.map(|value| match value {
            Val::Bool(boolean) => ResultValue::Bool(boolean),
            Val::String(text) => ResultValue::String(text.to_string()),
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
            Err(error) => return Ok(Err(format!("compilation error: {error}"))),
        };
        let EvaluationResult { outcome, cost } = program.evaluate(&|name| self.resolve(name), RULE_COST);
        if self.is_waiting() {
            return Err(StopReason::AuthorizationPending);
        }
        let cost = cost.saturating_add(self.uncharged.take());
        *budget = budget.checked_sub(cost).ok_or(StopReason::BudgetExceeded)?;
        Ok(outcome.map_err(|error| format!("expression '{}' resulted in error: {error}", expression.text)))
    }

    fn resolve(&self, name: &str) -> Option<Outcome<'v>> {
        let inputs = self.inputs;
        Some(Ok(match name {
            OBJECT => Val::untyped(inputs.object),
            OLD_OBJECT => Val::untyped(inputs.old),
            PARAMS => Val::untyped(inputs.params),
            REQUEST => Val::untyped(inputs.request),
            NAMESPACE => Val::untyped(inputs.namespace),
            AUTHORIZER => inputs.authorizer?.authorizer(),
            REQUEST_RESOURCE => inputs.authorizer?.request_resource(),
            VARIABLES => return Some(self.all()),
            other => {
                let name = other.strip_prefix(VARIABLES)?.strip_prefix('.')?;
                let index = self.variables.iter().position(|(variable, _)| variable == name)?;
                return Some(self.variable(index));
            }
        }))
    }

    /// The value of a variable. It can only refer to earlier ones, so the recursion ends.
    fn variable(&self, index: usize) -> Outcome<'v> {
        if let Some(cached) = self.cached.borrow().get(&index) {
            return cached.clone();
        }
        let (name, expression) = self.variables.get(index).ok_or_else(Fault::no_overload)?;
        let outcome = match &expression.program {
            Err(error) => {
                Err(Fault::error(format!("composited variable {} fails to compile: {error}", quoted(name))))
            }
            Ok(program) => {
                let EvaluationResult { outcome, cost } =
                    program.evaluate(&|name| self.resolve(name), RULE_COST);
                self.uncharged.set(self.uncharged.get().saturating_add(cost));
                match outcome {
                    // No error of the variable: everything is evaluated again after the authorization check.
                    Err(Fault::Budget) if self.is_waiting() => return Err(Fault::Budget),
                    Err(error) => {
                        let error =
                            format!("composited variable {} fails to evaluate: {error}", quoted(name));
                        Err(Fault::error(error))
                    }
                    cached => cached,
                }
            }
        };
        self.cached.borrow_mut().insert(index, outcome.clone());
        outcome
    }

    /// All variables as one object. Those with errors are left out.
    fn all(&self) -> Outcome<'v> {
        Ok(Val::from_fields(
            self.variables
                .iter()
                .enumerate()
                .filter_map(|(index, (name, _))| Some((name.as_str(), self.variable(index).ok()?))),
        ))
    }
}
