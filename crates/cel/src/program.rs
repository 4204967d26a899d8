//! Compiled expressions.

use pilothouse_apimachinery::pattern::Patterns;

use crate::checker::CheckedExpression;
use crate::constructed_types;
use crate::estimate;
use crate::eval::Evaluator;
use crate::meter;
use crate::plan::{self, Node};
use crate::syntax::ast::{Expr, Kind};
use crate::types::Type;
use crate::value::Outcome;

/// A compiled expression. Can be evaluated many times, by many threads.
pub struct Program {
    root: Expr,
    checked: CheckedExpression,
    node: Node,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Program").field(&self.node).finish()
    }
}

/// The result of an evaluation.
#[derive(Debug)]
pub struct EvaluationResult<'v> {
    /// The value, or the error.
    pub outcome: Outcome<'v>,
    /// The runtime cost, including the step that exceeded the limit.
    pub cost: u64,
}

impl Program {
    /// Plans the evaluation of a checked expression; `None` if it cannot be evaluated.
    pub(crate) fn new(root: Expr, checked: CheckedExpression, patterns: &mut Patterns) -> Option<Program> {
        let node = plan::plan(&root, &checked, patterns)?;
        Some(Program { root, checked, node })
    }

    /// The result type.
    pub fn result_type(&self) -> Type {
        self.checked.types.get(self.root.id).cloned().unwrap_or(Type::Dyn)
    }

    /// Whether the result is a value of a map, so that its type is the value type of the map.
    pub fn is_map_lookup(&self) -> bool {
        let mut expr = &self.root;
        loop {
            let operand = match &expr.kind {
                Kind::Fold(fold) => {
                    expr = &fold.result;
                    continue;
                }
                Kind::Select { operand, test: false, .. } => operand,
                Kind::Call { function, args, .. } if function == "_[_]" => match args.first() {
                    Some(operand) => operand,
                    None => return false,
                },
                _ => return false,
            };
            return matches!(self.checked.types.get(operand.id), Some(Type::Map(..)));
        }
    }

    /// The constructible type that the expression names without constructing it, which is no value.
    pub fn named_type(&self) -> Option<&str> {
        let mut pending = vec![&self.root];
        while let Some(expr) = pending.pop() {
            match &expr.kind {
                Kind::Ident(name) if !self.uses(name) && constructed_types::type_named(name).is_some() => {
                    return Some(name);
                }
                _ => pending.extend(expr.parts()),
            }
        }
        None
    }

    /// Whether the expression uses this variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.checked.uses.iter().any(|used| used == variable)
    }

    /// Whether the expression selects this field of this variable, or tests its presence, as `variable.field`.
    pub fn selects(&self, variable: &str, field: &str) -> bool {
        let is_variable = |expr: &Expr| matches!(&expr.kind, Kind::Ident(name) if name == variable);
        let mut pending = vec![&self.root];
        while let Some(expr) = pending.pop() {
            let is_match = match &expr.kind {
                Kind::Select { operand, field: selected, .. } => selected == field && is_variable(operand),
                Kind::Call { function, target: None, args } if function == "_?._" => {
                    matches!(args.as_slice(), [operand, name] if is_variable(operand) && name.literal_text() == Some(field))
                }
                _ => false,
            };
            if is_match {
                return true;
            }
            pending.extend(expr.parts());
        }
        false
    }

    /// The estimated maximum cost. `sizes` gives the maximum number of items, entries or bytes of the value at a path; the first
    /// element of the path is a variable.
    pub fn max_cost(&self, sizes: &dyn Fn(&[String]) -> Option<u64>) -> u64 {
        estimate::estimate(&self.root, &self.checked, sizes).max
    }

    /// Evaluates the program within the cost limit. `resolve` is called once per variable, on first use.
    pub fn evaluate<'v>(
        &'v self,
        resolve: &dyn Fn(&str) -> Option<Outcome<'v>>,
        limit: u64,
    ) -> EvaluationResult<'v> {
        let mut evaluator = Evaluator::new(&self.checked.uses, resolve, meter::limit(limit));
        let outcome = evaluator.eval(&self.node);
        meter::spend(evaluator.spent());
        EvaluationResult { outcome, cost: evaluator.cost }
    }
}
